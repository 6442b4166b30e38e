--
-- Several keys at once: names, get_many, read_many; and peek.
--
\set schema many
\i test/lib/regress.sql
\pset null '-'

-- What differs from run to run, left out
CREATE FUNCTION short(fence text) RETURNS text LANGUAGE sql AS
	$$ SELECT regexp_replace(fence, '^.*?:f:\w+\.many\.', '') $$;
CREATE FUNCTION look(VARIADIC fences text[])
	RETURNS TABLE (fence text, status text, permit boolean, version bigint, payload text, stamp boolean) LANGUAGE sql AS $$
	SELECT many.short(fence), status, permit <> '', version, payload, stamp <> ''
	  FROM fence.get_many(VARIADIC fences)
$$;
CREATE FUNCTION agree(fences text[], retries int DEFAULT 0)
	RETURNS TABLE (fence text, version bigint, value jsonb, stamp boolean, source text) LANGUAGE sql AS $$
	SELECT many.short(fence), version, value, stamp <> '', source FROM fence.read_many(fences, retries)
$$;

CREATE TABLE room (id int PRIMARY KEY, name text, version bigint NOT NULL DEFAULT 0);
CREATE TABLE member (room_id int, user_id int, role text, version bigint NOT NULL DEFAULT 0, PRIMARY KEY (room_id, user_id));
CREATE TABLE tagging (room_id int NOT NULL, tag text);
CREATE INDEX ON tagging (room_id);
INSERT INTO room SELECT i, 'room ' || i FROM generate_series(1, 5) i;
INSERT INTO member SELECT r, u, 'guest' FROM generate_series(1, 2) r, generate_series(1, 3) u;
INSERT INTO tagging VALUES (1, 'a'), (1, 'b');
SELECT fence.attach('room'), fence.attach('member', tag => 'room/{room_id}'), fence.attach('tagging', key => '{room_id}', scope => 'group');
CALL wait_for('many.tagging', '1');
CALL wait_for('many.member', '1', '1');
CALL wait_for('many.room', '1');

-- names
SELECT short(f) FROM unnest(fence.fence_keys('many.room', '{3,1,3}')) f;
SELECT short(f) FROM unnest(fence.fence_keys('many.member', '{{1,2},{ 2 ,3}}')) f;
SELECT fence.fence_keys('many.room', '{}'), fence.fence_keys('many.member', '{}');
SELECT fence.fence_keys('many.room', '{1}') = ARRAY[fence.fence_key('many.room', '1')] AS same;
SELECT fence.fence_keys('many.member', '{1,2}');
SELECT fence.fence_keys('many.room', '{{1,2}}');
SELECT fence.fence_keys('many.room', '{{{1}}}');
SELECT fence.fence_keys('many.room', '{1,NULL}');

-- all at once: misses with permits, then hits
SELECT fence.fence_keys('many.room', '{1,2}') || fence.fence_keys('many.member', '{{1,1}}') ||
	   fence.fence_keys('many.tagging', '{1}') AS set \gset
SELECT * FROM look(VARIADIC :'set');
SELECT * FROM agree(:'set');
SELECT * FROM agree(:'set');
SELECT * FROM look(VARIADIC :'set');
-- in the order asked for, the same perhaps twice; none
SELECT * FROM agree(fence.fence_keys('many.room', '{2,1,2}'));
SELECT * FROM agree('{}');
SELECT * FROM look(VARIADIC '{}');
-- with the permit that get_many gave
SELECT permit FROM fence.get_many(fence.fence_key('many.room', '5')) \gset
SELECT fence.put('many.room', :'permit', 0, '{"own": 1}', NULL, '5');
SELECT * FROM agree(fence.fence_keys('many.room', '{5}'));

-- a write of several keys: one version set
BEGIN;
UPDATE room SET name = 'new' WHERE id IN (1, 2);
UPDATE member SET role = 'owner' WHERE room_id = 1;
-- its own writer reads what it wrote, and nothing is cached
SELECT * FROM agree(:'set');
SELECT status FROM fence.get_many(VARIADIC :'set') ORDER BY 1;
COMMIT;
SELECT fence, status, version, payload FROM look(VARIADIC :'set');
SELECT * FROM agree(:'set');
SELECT * FROM agree(:'set');

-- one that is missing: all are read from the tables
INSERT INTO tagging VALUES (1, 'c');
SELECT * FROM agree(:'set');
SELECT * FROM agree(:'set');
-- a key that has no row is always missing; of a group that has none the array is empty
SELECT * FROM agree(fence.fence_keys('many.room', '{1,77}'));
SELECT * FROM agree(fence.fence_keys('many.room', '{1,77}'));
SELECT * FROM agree(fence.fence_keys('many.tagging', '{77}'));
SELECT * FROM agree(fence.fence_keys('many.tagging', '{77}'));
DELETE FROM room WHERE id = 4;
SELECT * FROM agree(fence.fence_keys('many.room', '{4}'));
-- a value that is no JSON is read past, and left alone
UPDATE room SET name = 'newer' WHERE id = 2;
SELECT permit FROM fence.get_many(fence.fence_key('many.room', '2')) \gset
SELECT fence.put('many.room', :'permit', 2, 'no {json', NULL, '2');
SELECT * FROM agree(fence.fence_keys('many.room', '{2}'));
SELECT payload FROM look(fence.fence_key('many.room', '2'));

-- an old snapshot: nothing is put
SELECT fence.fence_keys('many.room', '{3}') AS three \gset
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT * FROM agree(:'three');
SELECT status FROM fence.get_many(VARIADIC :'three');
COMMIT;
SELECT * FROM agree(:'three');
SELECT status FROM fence.get_many(VARIADIC :'three');

-- more than one call holds: the second look agrees
INSERT INTO room SELECT i, 'many' FROM generate_series(1001, 1250) i;
SELECT fence.fence_keys('many.room', (SELECT array_agg(i::text) FROM generate_series(1001, 1250) i)) AS large \gset
SELECT source, count(*), count(value) FROM fence.read_many(:'large') GROUP BY 1;
SELECT source, count(*), count(value) FROM fence.read_many(:'large') GROUP BY 1;
SELECT status, count(*) FROM fence.get_many(VARIADIC :'large') GROUP BY 1;
UPDATE room SET name = 'one' WHERE id = 1200;
SELECT source, count(*), max(version) FROM fence.read_many(:'large') GROUP BY 1;
SELECT source, count(*), max(version) FROM fence.read_many(:'large') GROUP BY 1;

-- arguments
SELECT * FROM fence.get_many('x');
SELECT * FROM fence.get_many(NULL);
SELECT * FROM fence.read_many(NULL);
SELECT * FROM fence.read_many('{NULL}');
SELECT * FROM fence.read_many(:'set', retries => -1);
SELECT * FROM fence.read_many(:'set', backoff => '1 minute');
SELECT * FROM fence.read_many(:'set', backoff => '-1 ms');
SELECT * FROM fence.read_many(array_fill(fence.fence_key('many.room', '1'), '{1001}'));
-- a name that writers do not use
CREATE FUNCTION refused(name text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	PERFORM fence.get_many(name);
	RETURN 'taken';
EXCEPTION WHEN OTHERS THEN
	RETURN SQLSTATE || ' ' || replace(SQLERRM, name, '...');
END $$;
SELECT what, refused(replace(fence.fence_key('many.room', '1'), a, b))
  FROM (VALUES ('the name', '', ''), ('leading zero', '{1}', '{01}'), ('blank', '{1}', '{%201}'), ('no integer', '{1}', '{x}'),
			   ('two values', '{1}', '{1,2}'), ('a suffix', '{1}', '{1}:x'), ('a value', ':f:', ':v:'), ('a tag', '{1}', '{room}:1'),
			   ('another domain', 'many.room', 'many.nosuch'), ('another namespace', 'fence:', 'other:'),
			   ('another database', ':f:', ':f:1'), ('another cluster', '.many.', '_.many.')) x (what, a, b);
SELECT refused(replace(fence.fence_key('many.member', '1', '2'), 'room/1', 'room/2'));
-- domains whose versions PostgreSQL does not know
SELECT fence.attach(NULL, domain => 'many.manual', scope => 'manual');
CALL wait_for('many.manual', 'x');
SELECT * FROM look(fence.fence_key('many.manual', 'x'));
SELECT * FROM fence.read_many(fence.fence_keys('many.manual', '{x}'));
SELECT fence.detach_domain('many.manual');

-- privileges
SET client_min_messages = warning;
DROP ROLE IF EXISTS regress_fence_many;
RESET client_min_messages;
CREATE ROLE regress_fence_many;
GRANT USAGE ON SCHEMA many TO regress_fence_many;
GRANT SELECT ON room TO regress_fence_many;
SET ROLE regress_fence_many;
SELECT count(*) FROM fence.read_many(fence.fence_keys('many.room', '{1,2}'));
SELECT count(*) FROM fence.read_many(:'set');
SELECT count(*) FROM fence.get_many(VARIADIC :'set');
SELECT count(*) FROM fence.peek('many.member', '1', '1');
RESET ROLE;
REVOKE ALL ON SCHEMA many FROM regress_fence_many;
REVOKE ALL ON room FROM regress_fence_many;
DROP ROLE regress_fence_many;

--
-- peek: what is there, and what is known of it
--
CREATE FUNCTION glance(domain text, VARIADIC key text[])
	RETURNS TABLE (freshness text, version bigint, payload text, stamp boolean) LANGUAGE sql AS $$
	SELECT freshness, version, payload, stamp <> '' FROM fence.peek(domain, VARIADIC key)
$$;
SELECT * FROM glance('many.member', '2', '1');
SELECT fence.read('many.member', '2', '1') IS NOT NULL AS cached;
SELECT * FROM glance('many.member', '2', '1');
BEGIN;
UPDATE member SET role = 'owner' WHERE room_id = 2 AND user_id = 1;
-- its reservation is on its way: a strong get waits for what was sent before. Nothing is stored from then on
SELECT status FROM fence.get('many.member', '2', '1');
SELECT * FROM glance('many.member', '2', '1');
ROLLBACK;
SELECT status FROM fence.get('many.member', '2', '1');
SELECT * FROM glance('many.member', '2', '1');
-- a bulk change: nothing is known of what was cached before
SELECT fence.read('many.member', '2', '3') IS NOT NULL AS cached;
SET pgcache_fence.bulk_threshold = 1;
UPDATE member SET role = 'owner';
RESET pgcache_fence.bulk_threshold;
SELECT status FROM fence.get('many.member', '2', '3');
SELECT * FROM glance('many.member', '2', '3');

SET client_min_messages = warning;
DROP SCHEMA many CASCADE;
