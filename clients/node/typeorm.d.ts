import { ObjectLiteral, Repository } from 'typeorm';
import { Fences, Key } from './index';

export interface FencedRepository<Entity> {
  /** The entity, or null. A key of several columns is an array in the order of the attachment's key. */
  findById(id: Key): Promise<Entity | null>;
  /** The same of several keys, in their order. */
  findByIds(ids: readonly Key[]): Promise<(Entity | null)[]>;
}

/** Reads of entities by their primary keys, through fences. Everything else stays with the repository. domain: that of
 *  fence.attach, if it is not the name of the table. */
export function fencedRepository<Entity extends ObjectLiteral>(fences: Fences, repository: Repository<Entity>,
  options?: { domain?: string }): FencedRepository<Entity>;
