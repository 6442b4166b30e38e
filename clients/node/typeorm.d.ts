import { ObjectLiteral, Repository } from 'typeorm';
import { Fences, Key } from './index';

export interface FencedRepository<Entity> {
  /** The entity, or null. A key of several columns is an array in the order of the attachment's key. */
  findById(id: Key): Promise<Entity | null>;
  /** The same of several keys, in their order. */
  findByIds(ids: readonly Key[]): Promise<(Entity | null)[]>;
}

/** Reads of entities by their primary keys, through fences. Use the repository for everything else. domain: the name of
 *  the fence domain, if it is not that of the table. */
export function fencedRepository<Entity extends ObjectLiteral>(fences: Fences, repository: Repository<Entity>,
  options?: { domain?: string }): FencedRepository<Entity>;
