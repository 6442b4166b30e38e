--
-- Versions: applications that raise them too, as ORMs with optimistic locking do; where they end; how they begin anew.
--
\set schema versions
\i test/lib/regress.sql

CREATE TABLE doc (id int PRIMARY KEY, body text, lock_version int NOT NULL DEFAULT 0);
INSERT INTO doc SELECT i, 'doc ' || i FROM generate_series(1, 4) i;
SELECT fence.attach('doc', version => 'lock_version');
CALL wait_for('versions.doc', '1');

-- Key by key: what PostgreSQL holds, what Redis holds, what a reader gets. Whatever was cached must be the row as it is.
CREATE FUNCTION look() RETURNS TABLE (id int, stored bigint, fence bigint, relation text, cached text) LANGUAGE sql AS $$
	SELECT k, s.row_version, s.fence_version, s.relation,
		   CASE WHEN g.status = 'hit' AND g.payload::jsonb IS DISTINCT FROM to_jsonb(t) THEN 'STALE ' || g.payload ELSE g.status END
	  FROM generate_series(1, 6) k
	 CROSS JOIN LATERAL fence.get('versions.doc', k::text) g
	  LEFT JOIN doc t ON t.id = k
	 CROSS JOIN LATERAL fence.status('versions.doc', k::text) s
	 WHERE s.row_version IS NOT NULL OR g.status NOT IN ('miss') OR s.pending > 0
	 ORDER BY k
$$;

-- Within a transaction: keys that are reserved, and what its statements have stored. An answer on the connection on which
-- reservations are sent comes after they are made.
CREATE FUNCTION reserved() RETURNS TABLE (key int, stored bigint) LANGUAGE sql AS $$
	SELECT k, s.row_version
	  FROM generate_series(1, 6) k CROSS JOIN LATERAL fence.status('versions.doc', k::text) s
	 WHERE s.pending > 0 ORDER BY k
$$;

-- Every row a hit
CREATE PROCEDURE seed() LANGUAGE plpgsql AS $$
DECLARE
	k text;
BEGIN
	FOR k IN SELECT doc.id FROM doc LOOP
		PERFORM fence.read('versions.doc', k);
		IF (fence.get('versions.doc', k)).status <> 'hit' THEN
			RAISE 'key % is not cached', k;
		END IF;
	END LOOP;
END $$;

--
-- Writes
--
CALL seed();
BEGIN;
UPDATE doc SET body = 'new', lock_version = lock_version + 1 WHERE id = 1 AND lock_version = 0;
SELECT * FROM reserved();
COMMIT;
SELECT * FROM look();
-- another version than the next one is no rule of ours: it gets the next one
CALL seed();
BEGIN;
UPDATE doc SET lock_version = 10 WHERE id = 1;
UPDATE doc SET lock_version = lock_version + 1 WHERE id IN (1, 2);
SAVEPOINT s;
UPDATE doc SET lock_version = 90 WHERE id = 3;
ROLLBACK TO s;
SELECT * FROM reserved() WHERE key <> 3;
COMMIT;
SELECT * FROM look();
-- not raised: it is, all the same
CALL seed();
UPDATE doc SET body = 'next' WHERE id = 1 RETURNING lock_version;
UPDATE doc SET body = 'next', lock_version = 1 WHERE id = 1 RETURNING lock_version;
UPDATE doc SET body = 'next', lock_version = -1 WHERE id = 1 RETURNING lock_version;
UPDATE doc SET body = 'next', lock_version = NULL WHERE id = 1 RETURNING lock_version;
SELECT * FROM look();
-- a row that comes back starts above what it was, whatever the application says
DELETE FROM doc WHERE id = 1;
SELECT * FROM look();
INSERT INTO doc VALUES (1, 'back', 0) RETURNING lock_version;
BEGIN;
DELETE FROM doc WHERE id = 2;
INSERT INTO doc VALUES (2, 'back', 0) RETURNING lock_version;
SELECT * FROM reserved();
COMMIT;
SELECT * FROM look();
-- another key: the version must be above what that key was
DELETE FROM doc WHERE id = 1;
BEGIN;
UPDATE doc SET id = 1, lock_version = 20 WHERE id = 4;
SELECT * FROM reserved();
COMMIT;
SELECT * FROM look();
-- upserts
CALL seed();
INSERT INTO doc VALUES (3, 'upsert', 0) ON CONFLICT (id) DO UPDATE SET body = EXCLUDED.body;
INSERT INTO doc VALUES (3, 'upsert', 0), (5, 'insert', 7)
	ON CONFLICT (id) DO UPDATE SET body = EXCLUDED.body, lock_version = doc.lock_version + 1 RETURNING id, lock_version;
SELECT * FROM look();
MERGE INTO doc USING (VALUES (3), (5), (6)) s (id) ON doc.id = s.id
	WHEN MATCHED AND s.id = 3 THEN DELETE
	WHEN MATCHED THEN UPDATE SET lock_version = lock_version + 1
	WHEN NOT MATCHED THEN INSERT VALUES (6, 'merged');
SELECT * FROM look();
-- a trigger that comes before ours, and RETURNING, read the row: nothing of that may reach the cache
CREATE FUNCTION read_early() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	RAISE NOTICE 'read %, put %', fence.read('versions.doc', NEW.id::text),
		fence.put('versions.doc', coalesce((g).permit, ''), NEW.lock_version, '{"early": true}', NULL, NEW.id::text)
		FROM fence.get('versions.doc', NEW.id::text) g;
	RETURN NULL;
END $$;
CREATE TRIGGER aaa AFTER UPDATE ON doc FOR EACH ROW EXECUTE FUNCTION read_early();
BEGIN;
UPDATE doc SET body = 'never', lock_version = lock_version + 1 WHERE id = 5;
ROLLBACK;
SELECT * FROM look();
CALL seed();
BEGIN;
UPDATE doc SET body = 'never', lock_version = lock_version + 1 WHERE id = 6
	RETURNING (fence.read('versions.doc', '6')), (SELECT count(*) FROM fence.read_many(fence.fence_keys('versions.doc', '{5,6}')));
ROLLBACK;
SELECT * FROM look();
UPDATE doc SET body = 'read early', lock_version = lock_version + 1 WHERE id IN (5, 6);
SELECT * FROM look();
DROP TRIGGER aaa ON doc;
-- a trigger of the table may stand in for the application
CREATE FUNCTION raise_version() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	NEW.lock_version := OLD.lock_version + 1;
	RETURN NEW;
END $$;
CREATE TRIGGER aaa BEFORE UPDATE ON doc FOR EACH ROW EXECUTE FUNCTION raise_version();
CALL seed();
UPDATE doc SET body = 'by hand' WHERE id = 5 RETURNING lock_version;
SELECT * FROM look();
DROP TRIGGER aaa ON doc;

--
-- Many rows: past bulk_threshold the domain as a whole, however the rows come
--
SET pgcache_fence.bulk_threshold = 3;
CALL seed();
BEGIN;
UPDATE doc SET lock_version = lock_version + 1;
SELECT p.key, p.kind FROM fence.pending p WHERE p.domain = 'versions.doc' AND p.kind = 'domain';
COMMIT;
CALL wait_for('versions.doc', '1');
SELECT id, stored, cached FROM look();
BEGIN;
DELETE FROM doc;
ROLLBACK;
RESET pgcache_fence.bulk_threshold;
CALL wait_for('versions.doc', '1');

-- of a statement some are reserved while it runs, the others before COMMIT
INSERT INTO doc SELECT i, 'many' FROM generate_series(101, 400) i;
BEGIN;
UPDATE doc SET lock_version = lock_version + 1 WHERE id > 100;
UPDATE doc SET lock_version = lock_version + 1 WHERE id > 390;
COMMIT;
SELECT count(*), min(s.row_version), max(s.row_version), bool_and(coalesce(s.fence_version = s.row_version, true) AND s.pending = 0) AS good
  FROM generate_series(101, 400) k, LATERAL fence.status('versions.doc', k::text) s;

--
-- Write-through, and partitions that come later
--
CREATE TABLE part (id int PRIMARY KEY, body text, version bigint NOT NULL DEFAULT 0) PARTITION BY RANGE (id);
CREATE TABLE part_1 PARTITION OF part FOR VALUES FROM (1) TO (100);
INSERT INTO part VALUES (1, 'one');
SELECT fence.attach('part', cache => 'row');
CREATE TABLE part_2 PARTITION OF part FOR VALUES FROM (100) TO (200);
INSERT INTO part VALUES (100, 'hundred');
SELECT tgrelid::regclass, tgname, tgnargs, tgenabled FROM pg_trigger t
 WHERE tgrelid IN ('part'::regclass, 'part_1'::regclass, 'part_2'::regclass) ORDER BY 1, 2;
CALL wait_for('versions.part', '1');
UPDATE part SET body = 'new', version = version + 1;
SELECT status, version, payload FROM fence.get('versions.part', '1') UNION ALL SELECT status, version, payload FROM fence.get('versions.part', '100');
UPDATE part_2 SET body = 'newer';
SELECT status, version, payload FROM fence.get('versions.part', '100');
DROP TABLE part;

SELECT fence.detach('doc');
SELECT count(*) FROM pg_trigger WHERE tgrelid = 'doc'::regclass;
SELECT count(*) FROM fence.domains WHERE domain = 'versions.doc';

--
-- Versions that are brought: up to half of what the column can hold, or the next one. Nobody comes near the end with one row.
--
CREATE TABLE big (id int PRIMARY KEY, parent int REFERENCES big ON DELETE CASCADE, version bigint NOT NULL DEFAULT 0);
CREATE TABLE mid (id int PRIMARY KEY, v int NOT NULL DEFAULT 0);
CREATE TABLE tiny (id int PRIMARY KEY, v smallint NOT NULL DEFAULT 0);
SELECT fence.attach('big'), fence.attach('mid', version => 'v'), fence.attach('tiny', version => 'v');
CALL wait_for('versions.big', '1');
INSERT INTO big (id, version) VALUES (1, 4611686018427387903), (2, 4611686018427387904), (3, 9223372036854775806),
	(4, 9223372036854775807), (5, 1792000000000000) RETURNING id, version;
INSERT INTO mid VALUES (1, 1073741823), (2, 1073741824), (3, 2147483647) RETURNING *;
INSERT INTO tiny VALUES (1, 16383), (2, 16384), (3, 32767) RETURNING *;
-- what is there counts on from there
UPDATE big SET parent = NULL WHERE id = 1 RETURNING version;
DELETE FROM big WHERE id = 1;
INSERT INTO big (id, version) VALUES (1, 9223372036854775806) RETURNING version;
SELECT max(version) FROM fence.tombstone WHERE domain_id = (SELECT id FROM fence.domain WHERE name = 'versions.big');
-- many rows
SET pgcache_fence.bulk_threshold = 1;
INSERT INTO big (id, version) VALUES (11, 7), (12, 9223372036854775806), (13, 9223372036854775806) ON CONFLICT DO NOTHING
	RETURNING id, version;
RESET pgcache_fence.bulk_threshold;
-- an application that sets them, and another trigger
UPDATE mid SET v = 1073741824 WHERE id = 3 RETURNING v;
UPDATE mid SET v = 1073741823 WHERE id = 3 RETURNING v;
UPDATE mid SET v = 1073741824 WHERE id = 3 RETURNING v;
UPDATE mid SET v = 2147483647 WHERE id = 3 RETURNING v;
CREATE FUNCTION jump() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.v := 32767; RETURN NEW; END';
CREATE TRIGGER zzzz BEFORE INSERT OR UPDATE ON tiny FOR EACH ROW EXECUTE FUNCTION jump();
INSERT INTO tiny VALUES (4);
UPDATE tiny SET id = id WHERE id = 2;
SET pgcache_fence.bulk_threshold = 1;
UPDATE tiny SET id = id;
RESET pgcache_fence.bulk_threshold;
DROP TRIGGER zzzz ON tiny;

--
-- At the end: rows that were there before the table was fenced
--
SELECT fence.detach('big'), fence.detach('mid'), fence.detach('tiny');
INSERT INTO big VALUES (20, NULL, 5), (21, 20, 9223372036854775807), (22, NULL, 9223372036854775807);
INSERT INTO mid VALUES (20, 2147483647);
SELECT fence.attach('big', cache => 'row'), fence.attach('mid', version => 'v');
CALL wait_for('versions.big', '1');
CALL wait_for('versions.mid', '1');
UPDATE big SET parent = 5 WHERE id = 22;
UPDATE mid SET v = 1 WHERE id = 20;
-- a parent's DELETE is not held up by such a child
SELECT fence.read('versions.big', '21');
DELETE FROM big WHERE id = 20;
SELECT status FROM fence.get('versions.big', '21');
SELECT fence.read('versions.big', '21') IS NULL;
INSERT INTO big (id) VALUES (21);
-- and where the patrol has made a floor of it
INSERT INTO fence.floor SELECT id, 9223372036854775807 FROM fence.domain WHERE name = 'versions.big';
INSERT INTO big (id) VALUES (30);
\echo :LAST_ERROR_SQLSTATE

--
-- fence.renumber: the way out
--
SELECT fence.read('versions.big', '22'), fence.read('versions.big', '5');
CREATE FUNCTION loud() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE NOTICE ''a trigger of the table''; RETURN NEW; END';
CREATE TRIGGER loud BEFORE UPDATE ON big FOR EACH ROW EXECUTE FUNCTION loud();
CREATE RULE nothing AS ON UPDATE TO big WHERE NEW.version = 1 DO INSTEAD NOTHING;
BEGIN;
SELECT fence.renumber('versions.big');
ROLLBACK;
CALL wait_for('versions.big', '5');
SELECT max(version), (SELECT status FROM fence.get('versions.big', '5')) FROM big;
SELECT fence.renumber('versions.big');
CALL wait_for('versions.big', '5');
SELECT min(version), max(version), (SELECT status FROM fence.get('versions.big', '5')) FROM big;
SELECT (SELECT count(*) FROM fence.tombstone t WHERE t.domain_id = d.id), (SELECT count(*) FROM fence.floor f WHERE f.domain_id = d.id)
  FROM fence.domain d WHERE name = 'versions.big';
DROP RULE nothing ON big;
DROP TRIGGER loud ON big;
INSERT INTO big (id) VALUES (21), (30) RETURNING version;
UPDATE big SET parent = 5 WHERE id = 22 RETURNING version;
SELECT fence.read('versions.big', '22');
SELECT status, version FROM fence.get('versions.big', '22');
SELECT sum(count) FROM fence.audit('versions.big') WHERE relation LIKE 'fence_%';
-- at once with other changes, and again: nothing is left to do
BEGIN;
UPDATE big SET parent = NULL WHERE id = 22;
DELETE FROM big WHERE id = 30;
SELECT fence.renumber('versions.big');
INSERT INTO big (id) VALUES (30) RETURNING version;
COMMIT;
SELECT fence.renumber('versions.big');
SELECT fence.renumber('versions.mid') > 0;
UPDATE mid SET v = 1 WHERE id = 20 RETURNING v;

-- partitions, groups, by hand with a table and without
CREATE TABLE parts (id int PRIMARY KEY, version int NOT NULL DEFAULT 7) PARTITION BY RANGE (id);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (1) TO (10);
CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (10) TO (20);
INSERT INTO parts VALUES (1), (11);
SELECT fence.attach('parts');
CALL wait_for('versions.parts', '1');
SELECT fence.renumber('versions.parts');
SELECT * FROM parts;
CREATE TABLE member (room int NOT NULL, n int);
CREATE INDEX ON member (room);
SELECT fence.attach('member', scope => 'group', key => '{room}');
CALL wait_for('versions.member', '1');
INSERT INTO member VALUES (1, 1);
INSERT INTO member VALUES (1, 2);
SELECT fence.group_version('versions.member', '1');
SELECT fence.renumber('versions.member');
SELECT fence.group_version('versions.member', '1');
CALL wait_for('versions.member', '1');
SELECT fence.read('versions.member', '1');
INSERT INTO member VALUES (1, 3);
SELECT fence.read('versions.member', '1');
SELECT fence.attach(NULL, scope => 'manual', domain => 'versions.free');
CALL wait_for('versions.free', '1');
SELECT fence.begin_write('versions.free', 6, '1');
SELECT fence.renumber('versions.free');
SELECT fence.begin_write('versions.free', 0, '1');
SELECT fence.detach_domain('versions.free');

-- who may; row-level security hides no row, or it is an error
CREATE ROLE versions_tenant;
GRANT USAGE, CREATE ON SCHEMA versions TO versions_tenant;
SET ROLE versions_tenant;
SELECT fence.renumber('versions.big');
RESET ROLE;
GRANT EXECUTE ON FUNCTION fence.renumber, fence.attach TO versions_tenant;
CREATE TABLE own (id int PRIMARY KEY, tenant text NOT NULL, version bigint NOT NULL DEFAULT 3);
ALTER TABLE own OWNER TO versions_tenant;
INSERT INTO own VALUES (1, 'a'), (2, 'b');
SET ROLE versions_tenant;
SELECT fence.renumber('versions.big');
SELECT fence.attach('own');
ALTER TABLE own ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY p ON own USING (tenant = 'a');
SELECT fence.renumber('versions.own');
\echo :LAST_ERROR_SQLSTATE
ALTER TABLE own NO FORCE ROW LEVEL SECURITY;
SELECT fence.renumber('versions.own');
SELECT id, version FROM own ORDER BY id;
-- what the table's owner has prepared runs as him
CREATE FUNCTION who(bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	IF current_user <> 'versions_tenant' THEN
		RAISE 'runs as %', current_user;
	END IF;
	RETURN true;
END $$;
UPDATE own SET tenant = tenant;
ALTER TABLE own ADD CHECK (versions.who(version));
RESET ROLE;
SELECT fence.renumber('versions.own');
-- a trigger that keeps the version is noticed
SET ROLE versions_tenant;
CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.version := 9; RETURN NEW; END';
CREATE TRIGGER keep BEFORE UPDATE ON own FOR EACH ROW EXECUTE FUNCTION keep();
ALTER TABLE own ENABLE ALWAYS TRIGGER keep;
UPDATE own SET tenant = tenant;
SELECT fence.renumber('versions.own');
RESET ROLE;
SELECT fence.detach('own');
DROP TABLE own;
DROP FUNCTION who, keep;
REVOKE EXECUTE ON FUNCTION fence.renumber, fence.attach FROM versions_tenant;
REVOKE ALL ON SCHEMA versions FROM versions_tenant;

-- a tenant who may write his own rows, and no others
CREATE TABLE shared (id int PRIMARY KEY, tenant text NOT NULL DEFAULT current_user, version bigint NOT NULL DEFAULT 0);
SELECT fence.attach('shared');
ALTER TABLE shared ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_rows ON shared USING (tenant = current_user);
GRANT SELECT, INSERT, UPDATE, DELETE ON shared TO versions_tenant;
GRANT USAGE ON SCHEMA versions TO versions_tenant;
CALL wait_for('versions.shared', '1');
SET ROLE versions_tenant;
INSERT INTO shared (id, version) VALUES (1, 9223372036854775806) RETURNING version;
INSERT INTO shared (id, version) VALUES (2, 4611686018427387903) RETURNING version;
UPDATE shared SET version = 9223372036854775806 RETURNING version;
DELETE FROM shared;
RESET ROLE;
-- as the patrol does when they are old
INSERT INTO fence.floor SELECT domain_id, max(version) FROM fence.tombstone
 WHERE domain_id = (SELECT id FROM fence.domain WHERE name = 'versions.shared') GROUP BY 1;
INSERT INTO shared (id) VALUES (3) RETURNING version > 4611686018427387903 AS above_the_floor, version < 4611686018427388000 AS far_from_the_end;
UPDATE shared SET id = 4 RETURNING version < 4611686018427388000;
DROP TABLE shared;
REVOKE USAGE ON SCHEMA versions FROM versions_tenant;
DROP ROLE versions_tenant;

SET client_min_messages = warning;
DROP SCHEMA versions CASCADE;
