import { Pool } from 'pg';

/** A value of a key column. What has more digits than a number holds is passed as a bigint or a string. */
export type KeyValue = string | number | bigint | boolean | Date | Uint8Array;

/** The value of a key of one column, or an array with the values of all its columns in their order. */
export type Key = KeyValue | readonly KeyValue[];

/** What a function that loads has found of one key. version: of the version column, as text where it may be large. */
export interface Loaded<T> {
  version: string | bigint | number;
  value: T;
}

/** Loads several keys at once. Answers with an array in their order, null where there is no row. It must not read in a
 *  transaction of its caller: the snapshot must be taken after the function was called. */
export type LoadFunction<T, K extends Key = any> =
  (keys: K[], pg: Pool) => Promise<(Loaded<T> | null | undefined)[]> | (Loaded<T> | null | undefined)[];

/** A query: $1 is an array of the values of the first key column (as texts: $1::bigint[]), and so on; its columns are the key
 *  columns, version, and value (json or jsonb). Or a function. Without a load it is the row itself. */
export type Load<T> = string | LoadFunction<T> | null;

export interface ReadOptions {
  /** Keeps the value beside the fence under this name, so that several representations of one row can be cached. */
  beside?: string;
  /** Answer with a Details. */
  details?: boolean;
}

/** hit: from Redis. local: kept in this process, and checked. The others are from PostgreSQL, and say why. */
export type Source = 'hit' | 'local' | 'miss' | 'pending' | 'unarmed' | 'unavailable';

export interface Details<T> {
  value: T | null;
  /** A text, because versions have 64 bits; null where there is no row, and of derived values. */
  version: string | null;
  source: Source;
}

export interface Peeked<T> {
  freshness: 'fresh' | 'unknown' | 'none' | 'unavailable';
  version: string | null;
  value: T | null;
}

export interface Options {
  /** A client of ioredis (Redis or Cluster) or node-redis (createClient or createCluster). The library makes a connection of its
   *  own like it, whose options it decides; this one is only copied. */
  redis: unknown;
  /** A Pool that is connected to the primary. */
  pg: Pool;
  /** pgcache_fence.namespace, if it is to be compared with what PostgreSQL says. */
  namespace?: string;
  /** Milliseconds to wait for Redis before PostgreSQL is read; 200. */
  timeout?: number;
  /** Milliseconds for which a value that was put stays in Redis; 0 is pgcache_fence.default_ttl. */
  ttl?: number;
  /** Values that this process keeps, and checks before each use; none. */
  local?: boolean | { max?: number; maxBytes?: number };
  /** Is told of each trouble with Redis. The default warns once of each kind. */
  onError?: (error: Error) => void;
}

export interface Counts {
  reads: { [domain: string]: { [source: string]: number } };
  events: { [domain: string]: { [event: string]: number } };
}

export class Fences {
  constructor(options: Options);

  /** The newest committed value, null if there is no row. */
  read<T = any>(domain: string, key: Key, load: Load<T> | undefined, options: ReadOptions & { details: true }): Promise<Details<T>>;
  read<T = any>(domain: string, key: Key, load?: Load<T>, options?: ReadOptions): Promise<T | null>;

  /** The same of several keys, in their order. Each is the newest at an instant of the call, not all at the same one. */
  readMany<T = any>(domain: string, keys: readonly Key[], load: Load<T> | undefined,
    options: ReadOptions & { details: true }): Promise<Details<T>[]>;
  readMany<T = any>(domain: string, keys: readonly Key[], load?: Load<T>, options?: ReadOptions): Promise<(T | null)[]>;

  /** Several keys whose values were all current at one instant. */
  readTogether<T = any>(domain: string, keys: readonly Key[], load: Load<T> | undefined, options: { details: true }): Promise<Details<T>[]>;
  readTogether<T = any>(domain: string, keys: readonly Key[], load?: Load<T>, options?: { details?: boolean }): Promise<(T | null)[]>;

  /** A value that fence.define_derived has defined. */
  derived<T = any>(name: string, args: Key | undefined, options: { details: true }): Promise<Details<T>>;
  derived<T = any>(name: string, args?: Key, options?: { details?: boolean }): Promise<T | null>;

  /** What is in Redis, which may be old unless freshness is "fresh". */
  peek<T = any>(domain: string, key: Key): Promise<Peeked<T>>;

  counters(): Counts;
  /** client: require('prom-client'). */
  registerPrometheus(client: any, register?: any): unknown[];
  /** meter: of @opentelemetry/api. */
  registerOpenTelemetry(meter: any): void;

  /** Waits for the connection to Redis, at most for that time. Reads need not wait: until then they go to PostgreSQL. */
  ready(milliseconds?: number): Promise<boolean>;
  close(): Promise<void>;
}

/** code begins with ERR_FENCE_. */
export class FenceError extends Error {
  code: string;
  cause?: unknown;
}
