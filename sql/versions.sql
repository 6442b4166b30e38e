--
-- fence.version_by_application: the application raises the version itself, as ORMs with optimistic locking do.
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS pgcache_fence;
RESET client_min_messages;
CREATE SCHEMA versions;
SET search_path = versions;

-- Attached now, announced to Redis a moment later.
CREATE PROCEDURE wait_for(domain text, VARIADIC key text[]) LANGUAGE plpgsql AS $$
DECLARE
	deadline timestamptz := clock_timestamp() + '90 s';
BEGIN
	WHILE (fence.get(domain, VARIADIC key)).status IN ('unarmed', 'unavailable') LOOP
		IF clock_timestamp() > deadline THEN
			RAISE 'domain % is not served: %', domain, (SELECT s FROM fence.state s);
		END IF;
		PERFORM pg_sleep(0.01);
	END LOOP;
END $$;

CREATE TABLE doc (id int PRIMARY KEY, body text, lock_version int NOT NULL DEFAULT 0);
INSERT INTO doc SELECT i, 'doc ' || i FROM generate_series(1, 4) i;
SELECT fence.attach('doc', version => 'lock_version');
CALL wait_for('versions.doc', '1');

-- Key by key: what PostgreSQL holds, what Redis holds, what a reader gets. Whatever was cached must be the row as it is.
CREATE FUNCTION look() RETURNS TABLE (id int, stored bigint, fence bigint, relation text, cached text) LANGUAGE sql AS $$
	SELECT k, s.row_version, s.fence_version, s.relation,
		   CASE WHEN g.status = 'hit' AND g.value::jsonb IS DISTINCT FROM to_jsonb(t) THEN 'STALE ' || g.value ELSE g.status END
	  FROM generate_series(1, 6) k
	 CROSS JOIN LATERAL fence.get('versions.doc', k::text) g
	  LEFT JOIN doc t ON t.id = k
	 CROSS JOIN LATERAL fence.status('versions.doc', k::text) s
	 WHERE s.row_version IS NOT NULL OR g.status NOT IN ('miss') OR s.pending > 0
	 ORDER BY k
$$;

-- Within a transaction: what it has reserved, beside what its statements have stored.
CREATE FUNCTION reserved() RETURNS TABLE (key text, reserved bigint, stored bigint) LANGUAGE plpgsql AS $$
BEGIN
	-- an answer on the connection on which reservations are sent comes after they are made
	PERFORM fence.status('versions.doc', '1');
	RETURN QUERY
	SELECT p.key, p.version, (fence.status('versions.doc', p.key)).row_version
	  FROM fence.pending p WHERE p.domain = 'versions.doc' AND p.pid = pg_backend_pid() ORDER BY p.key COLLATE "C";
END $$;

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
-- Who may, and of what
--
CREATE ROLE versions_other;
GRANT USAGE ON SCHEMA versions TO versions_other;
SET ROLE versions_other;
SELECT fence.version_by_application('doc');
RESET ROLE;
GRANT EXECUTE ON FUNCTION fence.version_by_application TO versions_other;
SET ROLE versions_other;
SELECT fence.version_by_application('doc');
RESET ROLE;
REVOKE EXECUTE ON FUNCTION fence.version_by_application FROM versions_other;
REVOKE USAGE ON SCHEMA versions FROM versions_other;
DROP ROLE versions_other;
CREATE TABLE bag (room int NOT NULL, n int);
SELECT fence.version_by_application('bag');
SELECT fence.attach('bag', scope => 'group', key => '{room}');
SELECT fence.version_by_application('bag');
SELECT fence.detach('bag');
SELECT fence.attach('bag', scope => 'manual', key => '{room}', domain => 'hand');
CREATE UNIQUE INDEX ON bag (room);
SELECT fence.attach('bag', scope => 'manual', key => '{room}', domain => 'hand');
SELECT fence.version_by_application('bag');
DROP TABLE bag;

-- a version that is missing cannot be raised
ALTER TABLE doc ALTER lock_version DROP NOT NULL;
SELECT fence.version_by_application('doc');
ALTER TABLE doc ALTER lock_version SET NOT NULL;

SELECT fence.version_by_application('doc');
SELECT domain, version_by_application FROM fence.domains WHERE domain = 'versions.doc';
SELECT pg_get_triggerdef(oid), tgenabled FROM pg_trigger WHERE tgrelid = 'doc'::regclass ORDER BY tgname;
-- again is nothing new
SELECT fence.version_by_application('doc');
SELECT count(*) FROM pg_trigger WHERE tgrelid = 'doc'::regclass;
-- what the attachment rests on is guarded as before
ALTER TABLE doc DROP COLUMN lock_version;
ALTER TABLE doc DISABLE TRIGGER zzz_pgcache_fence_before;
SELECT severity, finding FROM fence.doctor() WHERE finding LIKE '%versions.doc%';

--
-- Writes
--
CALL seed();
BEGIN;
UPDATE doc SET body = 'new', lock_version = lock_version + 1 WHERE id = 1 AND lock_version = 0;
SELECT * FROM reserved();
COMMIT;
SELECT * FROM look();
-- any higher version, and again in the same transaction
CALL seed();
BEGIN;
UPDATE doc SET lock_version = 10 WHERE id = 1;
UPDATE doc SET lock_version = lock_version + 1 WHERE id IN (1, 2);
SAVEPOINT s;
UPDATE doc SET lock_version = 90 WHERE id = 3;
ROLLBACK TO s;
SELECT * FROM reserved() WHERE key <> '3';
COMMIT;
SELECT * FROM look();
-- not raised: refused, and nothing is left
CALL seed();
UPDATE doc SET body = 'never' WHERE id = 1;
\echo :LAST_ERROR_SQLSTATE
UPDATE doc SET body = 'never', lock_version = 3 WHERE id = 1;
UPDATE doc SET body = 'never', lock_version = -1 WHERE id = 1;
BEGIN;
UPDATE doc SET lock_version = lock_version + 1 WHERE id = 1;
UPDATE doc SET body = 'never' WHERE id = 1;
ROLLBACK;
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
UPDATE doc SET id = 1, lock_version = lock_version + 1 WHERE id = 4;
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
-- a trigger that comes before ours, and RETURNING, read the row before it is reserved: nothing of that may reach the cache
CREATE FUNCTION read_early() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	RAISE NOTICE 'read %, put %', fence.read('versions.doc', NEW.id::text),
		fence.put('versions.doc', (g).token, (g).ticket, NEW.lock_version, '{"early": true}', NULL, NEW.id::text)
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
UPDATE doc SET body = 'never' WHERE id = 2;
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
SELECT fence.version_by_application('part');
CREATE TABLE part_2 PARTITION OF part FOR VALUES FROM (100) TO (200);
INSERT INTO part VALUES (100, 'hundred');
SELECT tgrelid::regclass, tgname, tgnargs, tgenabled FROM pg_trigger t
 WHERE tgrelid IN ('part'::regclass, 'part_1'::regclass, 'part_2'::regclass) ORDER BY 1, 2;
CALL wait_for('versions.part', '1');
UPDATE part SET body = 'new', version = version + 1;
SELECT status, version, value FROM fence.get('versions.part', '1') UNION ALL SELECT status, version, value FROM fence.get('versions.part', '100');
UPDATE part_2 SET body = 'never';
SELECT fence.version_by_application('part', false);
UPDATE part_2 SET body = 'newer';
SELECT status, version, value FROM fence.get('versions.part', '100');
DROP TABLE part;

--
-- Back again; and undone by ROLLBACK
--
BEGIN;
SELECT fence.version_by_application('doc', false);
UPDATE doc SET body = 'trigger' WHERE id = 2 RETURNING lock_version;
ROLLBACK;
UPDATE doc SET body = 'never' WHERE id = 2;
SELECT fence.version_by_application('doc', false);
SELECT pg_get_triggerdef(oid), tgenabled FROM pg_trigger WHERE tgrelid = 'doc'::regclass ORDER BY tgname;
SELECT version_by_application FROM fence.domains WHERE domain = 'versions.doc';
UPDATE doc SET body = 'trigger' WHERE id = 2 RETURNING lock_version;
SELECT * FROM look();
-- the attachment ends as it always did
SELECT fence.version_by_application('doc');
SELECT fence.detach('doc');
SELECT count(*) FROM pg_trigger WHERE tgrelid = 'doc'::regclass;
SELECT count(*) FROM fence.domains WHERE domain = 'versions.doc';

SET client_min_messages = warning;
DROP SCHEMA versions CASCADE;
