import { Pool } from 'pg';

/** A value of a key column. Pass an integer that a number cannot hold exactly as a bigint or a string. */
export type KeyValue = string | number | bigint | boolean | Date | Uint8Array;

/** The value of a key of one column, or an array with the values of all its columns in their order. */
export type Key = KeyValue | readonly KeyValue[];

/** What a load function returns for one key. version: what fence.row_version(version) told in the statement that read the row. If it
 *  is null, the value is used and not stored. */
export interface Loaded<T> {
  version: string | null;
  value: T;
}

/** Loads several keys at once. Resolves to an array in their order, with null for a key without a row. It must not read in a
 *  transaction of its caller, because PostgreSQL must take the snapshot after the function was called. */
export type LoadFunction<T, K extends Key = any> =
  (keys: K[], pg: Pool) => Promise<(Loaded<T> | null | undefined)[]> | (Loaded<T> | null | undefined)[];

/** A query: $1 is an array of the values of the first key column (as texts: $1::bigint[]), and so on; its columns are the key
 *  columns, fence.row_version(version) AS version, and value (json or jsonb). Or a function. Without a load the value is the row itself. */
export type Load<T> = string | LoadFunction<T> | null;

export interface ReadOptions {
  /** Stores the value beside the fence under this name, so that several representations of one row can be cached. */
  beside?: string;
  /** Resolve to a Details. */
  details?: boolean;
  /** Resolve to the text itself, JSON as PostgreSQL printed it, not to the value made of it: T is string. Not with details. */
  raw?: boolean;
}

/** hit: from Redis. local: from this process, after a check. The others say why the value is from PostgreSQL. */
export type Source = 'hit' | 'local' | 'miss' | 'pending' | 'unarmed' | 'unavailable';

export interface Details<T> {
  value: T | null;
  /** A string, because versions have 64 bits, without the epoch. Null if there is no row, if its row version is null, and for derived
   *  values. */
  version: string | null;
  source: Source;
}

export interface Peeked<T> {
  freshness: 'fresh' | 'unknown' | 'none' | 'unavailable';
  version: string | null;
  value: T | null;
}

export interface Options {
  /** A client of ioredis (Redis or Cluster) or node-redis (createClient or createCluster), or an array of clients: the shards, in the
   *  order of pgcache_fence.redis_url. The library only copies their options. It makes its own connections, and decides some
   *  of the options. */
  redis: unknown;
  /** A Pool that is connected to the primary. */
  pg: Pool;
  /** If given, the library checks that it equals pgcache_fence.namespace of the server. */
  namespace?: string;
  /** Milliseconds to wait for Redis before the library reads PostgreSQL. Default: 200. */
  timeout?: number;
  /** Milliseconds for which a stored value stays in Redis; 0 means pgcache_fence.default_ttl. */
  ttl?: number;
  /** Number of values that this process keeps, and checks before each use. Default: none. */
  local?: boolean | { max?: number; maxBytes?: number };
  /** Called with each error of Redis. The default warns once of each kind of error. */
  onError?: (error: Error) => void;
}

export interface Counts {
  reads: { [domain: string]: { [source: string]: number } };
  events: { [domain: string]: { [event: string]: number } };
}

export class Fences {
  constructor(options: Options);

  /** The newest committed value, or null if there is no row. */
  read<T = any>(domain: string, key: Key, load: Load<T> | undefined, options: ReadOptions & { details: true }): Promise<Details<T>>;
  read<T = any>(domain: string, key: Key, load?: Load<T>, options?: ReadOptions): Promise<T | null>;

  /** The values of several keys, in their order. Each was the newest at some instant of the call, but not all at the same one. */
  readMany<T = any>(domain: string, keys: readonly Key[], load: Load<T> | undefined,
    options: ReadOptions & { details: true }): Promise<Details<T>[]>;
  readMany<T = any>(domain: string, keys: readonly Key[], load?: Load<T>, options?: ReadOptions): Promise<(T | null)[]>;

  /** The values of several keys, which were all current at one instant. */
  readTogether<T = any>(domain: string, keys: readonly Key[], load: Load<T> | undefined, options: { details: true }): Promise<Details<T>[]>;
  readTogether<T = any>(domain: string, keys: readonly Key[], load?: Load<T>, options?: { details?: boolean }): Promise<(T | null)[]>;
  /** The same for keys of several domains. */
  readTogether<T = any>(pairs: readonly (readonly [domain: string, key: Key])[], options: { details: true }): Promise<Details<T>[]>;
  readTogether<T = any>(pairs: readonly (readonly [domain: string, key: Key])[], options?: { details?: boolean }): Promise<(T | null)[]>;

  /** A value that fence.define_derived has defined. */
  derived<T = any>(name: string, args: Key | undefined, options: { details: true }): Promise<Details<T>>;
  derived<T = any>(name: string, args?: Key, options?: { details?: boolean }): Promise<T | null>;

  /** What Redis has. The value may be old unless freshness is "fresh". */
  peek<T = any>(domain: string, key: Key): Promise<Peeked<T>>;

  counters(): Counts;
  /** client: require('prom-client'). */
  registerPrometheus(client: any, register?: any): unknown[];
  /** meter: of @opentelemetry/api. */
  registerOpenTelemetry(meter: any): void;

  /** Waits for the connection to Redis, at most for that time. Reads need not wait for it; they go to PostgreSQL meanwhile. */
  ready(milliseconds?: number): Promise<boolean>;
  close(): Promise<void>;
}

/** code begins with ERR_FENCE_. */
export class FenceError extends Error {
  code: string;
  cause?: unknown;
}
