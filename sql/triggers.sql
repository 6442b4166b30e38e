--
-- Other triggers on a fenced table, and what fires no row trigger.
--
\set schema triggers
\i test/lib/regress.sql

CREATE TABLE item (id int PRIMARY KEY, v text, version bigint NOT NULL DEFAULT 0, twice bigint GENERATED ALWAYS AS (version * 2) STORED);

-- Key by key: what PostgreSQL holds, what Redis holds, what a reader gets. Whatever was cached must be the row as it is.
CREATE FUNCTION look() RETURNS TABLE (id int, stored bigint, fence bigint, relation text, cached text) LANGUAGE sql AS $$
	SELECT k, s.row_version, s.fence_version, s.relation,
		   CASE WHEN g.status = 'hit' AND g.payload::jsonb IS DISTINCT FROM to_jsonb(t) THEN 'STALE ' || g.payload ELSE g.status END
	  FROM generate_series(1, 6) k
	 CROSS JOIN LATERAL fence.get('triggers.item', k::text) g
	  LEFT JOIN item t ON t.id = k
	 CROSS JOIN LATERAL fence.status('triggers.item', k::text) s
	 WHERE s.row_version IS NOT NULL OR g.status NOT IN ('miss') OR s.pending > 0
	 ORDER BY k
$$;

-- Within a transaction: keys that are reserved, and what its statements have stored. An answer on the connection on which
-- reservations are sent comes after they are made.
CREATE FUNCTION reserved() RETURNS TABLE (key int, stored bigint) LANGUAGE sql AS $$
	SELECT k, s.row_version
	  FROM (SELECT generate_series(1, 7) UNION ALL SELECT 1000) x (k) CROSS JOIN LATERAL fence.status('triggers.item', k::text) s
	 WHERE s.pending > 0 ORDER BY k
$$;

-- Every row a hit
CREATE PROCEDURE seed() LANGUAGE plpgsql AS $$
DECLARE
	k text;
BEGIN
	FOR k IN SELECT item.id FROM item LOOP
		PERFORM fence.read('triggers.item', k);
		IF (fence.get('triggers.item', k)).status <> 'hit' THEN
			RAISE 'key % is not cached', k;
		END IF;
	END LOOP;
END $$;

INSERT INTO item SELECT i, 'item ' || i FROM generate_series(1, 4) i;
SELECT fence.attach('item');
CALL wait_for('triggers.item', '1');

-- generated columns see the version that is stored
CALL seed();
UPDATE item SET v = 'new' WHERE id = 1 RETURNING version, twice;
INSERT INTO item VALUES (5, 'new', 50) RETURNING version, twice;
SELECT * FROM look();
DELETE FROM item WHERE id = 5;

--
-- Rows that another trigger suppresses: whether it fires before ours or after
--
CREATE FUNCTION suppress() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
CREATE TRIGGER aaa BEFORE INSERT OR UPDATE OR DELETE ON item FOR EACH ROW EXECUTE FUNCTION suppress();
CALL seed();
BEGIN;
UPDATE item SET v = 'never';
DELETE FROM item WHERE id = 2;
INSERT INTO item VALUES (6, 'never');
SELECT * FROM reserved();
COMMIT;
SELECT * FROM look();
DROP TRIGGER aaa ON item;
CREATE TRIGGER zzzz BEFORE INSERT OR UPDATE OR DELETE ON item FOR EACH ROW EXECUTE FUNCTION suppress();
BEGIN;
UPDATE item SET v = 'never' WHERE id = 1;
DELETE FROM item WHERE id = 2;
UPDATE item SET id = 6 WHERE id = 3;
-- asked for and not written
SELECT * FROM reserved();
COMMIT;
SELECT * FROM look();
SELECT count(*) FROM fence.tombstone JOIN fence.domain d ON d.id = domain_id WHERE d.name = 'triggers.item' AND key <> '5';
DROP TRIGGER zzzz ON item;
-- the version that was not taken is the next
UPDATE item SET v = 'now' WHERE id = 1 RETURNING version;
SELECT * FROM look();

--
-- Rows that another trigger rewrites after ours has stamped them
--
CREATE FUNCTION set_version() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	NEW.version := TG_ARGV[0];
	RETURN NEW;
END $$;
CALL seed();
-- lower: refused, and nothing is left
CREATE TRIGGER zzzz BEFORE INSERT OR UPDATE ON item FOR EACH ROW EXECUTE FUNCTION set_version('1');
UPDATE item SET v = 'never' WHERE id = 1;
\echo :LAST_ERROR_SQLSTATE
INSERT INTO item VALUES (5, 'never');
\echo :LAST_ERROR_SQLSTATE
UPDATE item SET id = 5 WHERE id = 2;
DROP TRIGGER zzzz ON item;
CREATE TRIGGER zzzz BEFORE INSERT OR UPDATE ON item FOR EACH ROW EXECUTE FUNCTION set_version('-1');
UPDATE item SET v = 'never' WHERE id = 1;
INSERT INTO item VALUES (6, 'never');
DROP TRIGGER zzzz ON item;
SELECT * FROM look();
-- higher: that is the version then
CREATE TRIGGER zzzz BEFORE INSERT OR UPDATE ON item FOR EACH ROW EXECUTE FUNCTION set_version('100');
BEGIN;
UPDATE item SET v = 'hundred' WHERE id = 1 RETURNING version;
INSERT INTO item VALUES (5, 'hundred'), (6, 'hundred');
UPDATE item SET id = id WHERE id = 3;
SELECT * FROM reserved();
COMMIT;
SELECT * FROM look();
-- the same again is no new version
UPDATE item SET v = 'never' WHERE id = 1;
-- not even in a transaction whose own write it was
BEGIN;
INSERT INTO item VALUES (7, 'hundred');
UPDATE item SET v = 'never' WHERE id = 7;
ROLLBACK;
DROP TRIGGER zzzz ON item;
-- before ours: it may say what it likes
CREATE TRIGGER aaa BEFORE INSERT OR UPDATE ON item FOR EACH ROW EXECUTE FUNCTION set_version('7');
CALL seed();
UPDATE item SET v = 'stamped' WHERE id = 1 RETURNING version;
SELECT * FROM look() WHERE id = 1;
DROP TRIGGER aaa ON item;

--
-- Another trigger changes the key after ours has reserved another one
--
CREATE FUNCTION set_key() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	NEW.id := TG_ARGV[0];
	RETURN NEW;
END $$;
DELETE FROM item WHERE id > 4;
CALL seed();
CREATE TRIGGER zzzz BEFORE INSERT OR UPDATE ON item FOR EACH ROW EXECUTE FUNCTION set_key('6');
BEGIN;
INSERT INTO item VALUES (5, 'meant for 5');
SELECT id, v FROM item WHERE id > 4;
SELECT * FROM reserved();
COMMIT;
-- the tombstone of 6 was not looked at before: version 0 would be taken for an old one
SELECT * FROM look();
DROP TRIGGER zzzz ON item;
CREATE TRIGGER zzzz BEFORE INSERT OR UPDATE ON item FOR EACH ROW EXECUTE FUNCTION set_key('1000');
CALL seed();
BEGIN;
INSERT INTO item VALUES (5, 'meant for 5', 500);
SELECT * FROM reserved();
COMMIT;
DELETE FROM item WHERE id = 1000;
BEGIN;
UPDATE item SET v = 'moved' WHERE id = 2;
SELECT id, v FROM item ORDER BY id;
ROLLBACK;
DELETE FROM fence.tombstone WHERE key = '1000';
BEGIN;
UPDATE item SET v = 'moved' WHERE id = 2;
SELECT id, v, version FROM item ORDER BY id;
SELECT * FROM reserved();
COMMIT;
DROP TRIGGER zzzz ON item;
SELECT * FROM look();
SELECT fence_version, row_version, relation FROM fence.status('triggers.item', '1000');
UPDATE item SET id = 2 WHERE id = 1000;

--
-- A trigger that writes the same row again, and one that does so at COMMIT
--
CREATE FUNCTION again() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	UPDATE item SET v = v || '+' WHERE id = NEW.id AND NOT v LIKE '%+++';
	RETURN NULL;
END $$;
CREATE TRIGGER aaa AFTER INSERT OR UPDATE ON item FOR EACH ROW EXECUTE FUNCTION again();
CALL seed();
UPDATE item SET v = 'again' WHERE id = 1;
INSERT INTO item VALUES (5, 'again');
SELECT id, v, version FROM item WHERE id IN (1, 5) ORDER BY id;
SELECT * FROM look();
DROP TRIGGER aaa ON item;
CREATE CONSTRAINT TRIGGER late AFTER UPDATE ON item DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION again();
CALL seed();
BEGIN;
UPDATE item SET v = 'late' WHERE id = 1 RETURNING version;
COMMIT;
SELECT id, v, version FROM item WHERE id = 1;
SELECT * FROM look() WHERE id = 1;
DROP TRIGGER late ON item;
-- a row that a BEFORE trigger changes under the statement's feet
CREATE FUNCTION early() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF pg_trigger_depth() = 1 THEN
		UPDATE item SET v = 'early' WHERE id = OLD.id;
	END IF;
	RETURN NEW;
END $$;
CREATE TRIGGER aaa BEFORE UPDATE ON item FOR EACH ROW EXECUTE FUNCTION early();
CALL seed();
UPDATE item SET v = 'never' WHERE id = 1;
SELECT * FROM look() WHERE id = 1;
DROP TRIGGER aaa ON item;

--
-- Foreign keys: what they change in a fenced table is fenced
--
CREATE TABLE parent (id int PRIMARY KEY, version bigint NOT NULL DEFAULT 0);
CREATE TABLE child (parent int REFERENCES parent ON UPDATE CASCADE ON DELETE CASCADE, n int, version bigint NOT NULL DEFAULT 0,
					PRIMARY KEY (parent, n));
CREATE TABLE friend (id int PRIMARY KEY, parent int REFERENCES parent ON DELETE SET NULL, version bigint NOT NULL DEFAULT 0);
INSERT INTO parent VALUES (1), (2);
INSERT INTO child SELECT p, n FROM generate_series(1, 2) p, generate_series(1, 2) n;
INSERT INTO friend VALUES (1, 1), (2, 2);
SELECT fence.attach(t) FROM unnest(ARRAY['parent', 'child', 'friend']) t;
CALL wait_for('triggers.parent', '1');
CALL wait_for('triggers.child', '1', '1');
CALL wait_for('triggers.friend', '1');
CREATE FUNCTION family() RETURNS TABLE (key text, stored bigint, fence bigint, relation text, cached text) LANGUAGE sql AS $$
	SELECT concat_ws(' ', d, k), s.row_version, s.fence_version, s.relation, g.status
	  FROM (VALUES ('triggers.parent', '{1}'::text[]), ('triggers.parent', '{2}'), ('triggers.parent', '{3}'),
				   ('triggers.child', '{1,1}'), ('triggers.child', '{1,2}'), ('triggers.child', '{2,1}'), ('triggers.child', '{3,1}'),
				   ('triggers.friend', '{1}'), ('triggers.friend', '{2}')) x (d, k)
	 CROSS JOIN LATERAL fence.get(d, VARIADIC k) g
	 CROSS JOIN LATERAL fence.status(d, VARIADIC k) s
$$;
CREATE PROCEDURE seed_family() LANGUAGE sql AS $$
	SELECT fence.read('triggers.parent', id::text) FROM parent;
	SELECT fence.read('triggers.child', parent::text, n::text) FROM child;
	SELECT fence.read('triggers.friend', id::text) FROM friend;
$$;
CALL seed_family();
SELECT * FROM family();
DELETE FROM parent WHERE id = 1;
SELECT * FROM family();
CALL seed_family();
DELETE FROM friend;
UPDATE parent SET id = 3 WHERE id = 2;
SELECT * FROM family();

--
-- Replication applies with this setting; ours fire all the same
--
CALL seed();
SET session_replication_role = replica;
UPDATE item SET v = 'replica' WHERE id = 1;
DELETE FROM item WHERE id = 2;
RESET session_replication_role;
SELECT * FROM look();

--
-- What fires no row trigger: the whole domain is reserved, and nothing cached before is served
--
CREATE VIEW reservations AS
	SELECT kind, count(*) FROM fence.pending WHERE domain = 'triggers.item' AND pid = pg_backend_pid() GROUP BY kind;
CALL seed();
BEGIN;
TRUNCATE item;
SELECT (fence.get('triggers.item', '1')).status;
SELECT * FROM reservations;
ROLLBACK;
SELECT * FROM look();
BEGIN;
SAVEPOINT a;
TRUNCATE item;
ROLLBACK TO a;
COMMIT;
SELECT * FROM look();
-- a row that changes type, one that is added, one that gets another name, a default for old rows
ALTER TABLE item ALTER v TYPE varchar(100);
SELECT * FROM look();
CALL seed();
ALTER TABLE item ADD w int DEFAULT 7;
SELECT * FROM look();
CALL seed();
ALTER TABLE item RENAME w TO ww;
SELECT * FROM look();
CALL seed();
ALTER TABLE item DROP ww;
SELECT * FROM look();
-- what it must not become
BEGIN;
ALTER TABLE item SET UNLOGGED;
ROLLBACK;
ALTER TABLE item DISABLE TRIGGER ALL;
ALTER TRIGGER zzz_pgcache_fence_after ON item RENAME TO mine;
BEGIN;
CREATE TABLE heir () INHERITS (item);
ROLLBACK;
CREATE TABLE heir (LIKE item INCLUDING GENERATED);
BEGIN;
ALTER TABLE heir INHERIT item;
ROLLBACK;
DROP TABLE heir;
-- a table with parents: whatever is done through a parent counts
CREATE TABLE ancestor (id int, v text, version bigint NOT NULL DEFAULT 0);
CREATE TABLE heir (PRIMARY KEY (id)) INHERITS (ancestor);
INSERT INTO heir SELECT i, 'old' FROM generate_series(1, 3) i;
SELECT fence.attach('heir');
CREATE PROCEDURE seed_heir() LANGUAGE plpgsql AS $$
BEGIN
	CALL wait_for('triggers.heir', '1');
	PERFORM fence.read('triggers.heir', i::text) FROM generate_series(1, 3) i;
	COMMIT;
END $$;
CREATE VIEW heirs AS
	SELECT i, (fence.get('triggers.heir', i::text)).status, (fence.read('triggers.heir', i::text)) ->> 'v' AS v FROM generate_series(1, 3) i;
CALL seed_heir();
UPDATE ancestor SET v = 'new' WHERE id = 1;
DELETE FROM ancestor WHERE id = 2;
SELECT * FROM heirs;
CALL seed_heir();
ALTER TABLE ancestor ALTER v TYPE varchar(20) USING upper(v);
SELECT * FROM heirs;
CALL seed_heir();
ALTER TABLE ancestor RENAME v TO vv;
SELECT i, fence.read('triggers.heir', i::text) FROM generate_series(1, 3) i;
ALTER TABLE ancestor RENAME version TO counter;
UPDATE ancestor SET vv = 'newer' WHERE id = 1;
SELECT version, (SELECT counter FROM heir WHERE id = 1) FROM fence.domains WHERE domain = 'triggers.heir';
BEGIN;
ALTER TABLE ancestor DROP counter;
ROLLBACK;
CALL seed_heir();
TRUNCATE ancestor;
SELECT i, (fence.get('triggers.heir', i::text)).status, fence.read('triggers.heir', i::text) FROM generate_series(1, 3) i;
ALTER TABLE heir NO INHERIT ancestor;
ALTER TABLE heir INHERIT ancestor;
DROP TABLE ancestor CASCADE;
SELECT count(*) FROM fence.domains WHERE domain = 'triggers.heir';
-- what values of a type look like, in whatever rows they are
CALL seed();
CREATE TYPE mood AS ENUM ('a', 'b');
ALTER TYPE mood ADD VALUE 'c';
SELECT * FROM look();
ALTER TYPE mood RENAME VALUE 'a' TO 'z';
SELECT * FROM look();
-- the same rows elsewhere
CALL seed();
VACUUM FULL item;
CLUSTER item USING item_pkey;
REINDEX TABLE item;
ANALYZE item;
SELECT * FROM look();
SELECT sum(count) FROM fence.audit('triggers.item') WHERE relation IN ('fence_behind_db', 'fence_ahead_db', 'payload_differs', 'pending');
-- rows that come back may count from the beginning: nothing that was said of them before is trusted
TRUNCATE item;
SELECT * FROM look();
INSERT INTO item SELECT i, 'again ' || i FROM generate_series(1, 4) i;
CALL seed();
SELECT * FROM look();
TRUNCATE parent CASCADE;
SELECT (fence.get('triggers.parent', '1')).status, fence.read('triggers.parent', '1');

--
-- A key that is deleted and comes back in one statement: its row starts above its tombstone
--
CALL seed();
WITH gone AS (DELETE FROM item WHERE id = 1 RETURNING *)
INSERT INTO item SELECT id, 'back', version + 1 FROM gone RETURNING id, version;
CREATE FUNCTION revive() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO item VALUES (OLD.id, 'revived', 0);
	RETURN NULL;
END $$;
CREATE TRIGGER aaa AFTER DELETE ON item FOR EACH ROW EXECUTE FUNCTION revive();
DELETE FROM item WHERE id = 2;
DROP TRIGGER aaa ON item;
SELECT key, version FROM fence.tombstone JOIN fence.domain d ON d.id = domain_id
 WHERE d.name = 'triggers.item' AND key IN ('1', '2') ORDER BY key;
SELECT * FROM look();
CALL seed();
SELECT * FROM look();

--
-- Our functions where they do not belong
--
CREATE TABLE plain (id int PRIMARY KEY, version bigint);
CREATE TRIGGER t BEFORE INSERT ON plain FOR EACH ROW EXECUTE FUNCTION fence.before_row();
INSERT INTO plain VALUES (1);
DROP TRIGGER t ON plain;
CREATE TRIGGER t AFTER INSERT ON plain FOR EACH ROW EXECUTE FUNCTION fence.before_row();
INSERT INTO plain VALUES (1);
DROP TRIGGER t ON plain;
CREATE TRIGGER t BEFORE INSERT ON plain FOR EACH STATEMENT EXECUTE FUNCTION fence.after_row();
INSERT INTO plain VALUES (1);
DROP TRIGGER t ON plain;
SELECT fence.before_row();

--
-- Our triggers look as they are made: whatever else has one of their names, or calls one of their functions, is refused
--
CREATE FUNCTION attempt(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	detail text;
BEGIN
	EXECUTE statement;
	RETURN 'done';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
	RETURN concat_ws(E'\n', SQLSTATE || ' ' || SQLERRM, nullif(detail, ''));
END $$;
CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
CREATE TABLE crowd (room int, n int PRIMARY KEY);
CREATE TABLE hand (id int PRIMARY KEY);
SELECT fence.attach('crowd', scope => 'group', key => '{room}'), fence.attach('hand', scope => 'manual');
\pset format unaligned
\pset tuples_only on
-- made anew, in every way that would leave it hollow, or without what it was
SELECT attempt('CREATE OR REPLACE TRIGGER zzz_pgcache_fence_after ' || rest) FROM (VALUES
	('AFTER INSERT OR UPDATE OR DELETE ON item FOR EACH ROW WHEN (false) EXECUTE FUNCTION fence.after_row()'),
	('AFTER INSERT OR UPDATE OR DELETE ON item FOR EACH ROW EXECUTE FUNCTION nothing()'),
	('AFTER INSERT OR DELETE ON item FOR EACH ROW EXECUTE FUNCTION fence.after_row()'),
	('AFTER INSERT OR UPDATE OF v OR DELETE ON item FOR EACH ROW EXECUTE FUNCTION fence.after_row()'),
	('AFTER INSERT OR UPDATE OR DELETE ON item FOR EACH STATEMENT EXECUTE FUNCTION fence.after_row()'),
	('BEFORE INSERT OR UPDATE OR DELETE ON item FOR EACH ROW EXECUTE FUNCTION fence.after_row()'),
	('AFTER INSERT OR UPDATE OR DELETE ON item FOR EACH ROW EXECUTE FUNCTION fence.before_row()'),
	('AFTER INSERT OR UPDATE OR DELETE ON item FOR EACH ROW EXECUTE FUNCTION fence.after_row(''x'')'),
	('AFTER DELETE ON item REFERENCING OLD TABLE AS t FOR EACH ROW EXECUTE FUNCTION fence.after_row()'),
	('AFTER INSERT OR UPDATE OR DELETE ON item FOR EACH ROW EXECUTE FUNCTION fence.after_row()')) x (rest);
SELECT attempt('CREATE OR REPLACE TRIGGER zzz_pgcache_fence_before ' || rest) FROM (VALUES
	('BEFORE INSERT OR UPDATE OR DELETE ON item FOR EACH ROW WHEN (false) EXECUTE FUNCTION fence.before_row()'),
	('BEFORE INSERT OR DELETE ON item FOR EACH ROW EXECUTE FUNCTION fence.before_row()'),
	('BEFORE INSERT OR UPDATE ON item FOR EACH ROW EXECUTE FUNCTION fence.before_row()'),
	('BEFORE INSERT ON crowd FOR EACH ROW EXECUTE FUNCTION fence.before_row()')) x (rest);
SELECT attempt('CREATE OR REPLACE TRIGGER zzz_pgcache_fence_truncate BEFORE TRUNCATE ON item FOR EACH STATEMENT EXECUTE FUNCTION nothing()');
-- others that call our functions, and junk with a name that begins like ours
SELECT attempt(statement) FROM (VALUES
	('CREATE TRIGGER mine AFTER UPDATE ON item FOR EACH ROW EXECUTE FUNCTION fence.after_row()'),
	('CREATE TRIGGER zzz_pgcache_fence_x AFTER UPDATE ON item FOR EACH ROW EXECUTE FUNCTION fence.after_row()'),
	('CREATE CONSTRAINT TRIGGER zzz_pgcache_fence_x AFTER UPDATE ON item FOR EACH ROW EXECUTE FUNCTION fence.after_row()'),
	('CREATE TRIGGER zzz_pgcache_fence_before BEFORE INSERT OR UPDATE OR DELETE ON hand FOR EACH ROW EXECUTE FUNCTION fence.before_row()'),
	('CREATE TRIGGER zzz_pgcache_fence_x BEFORE UPDATE ON item FOR EACH ROW WHEN (false) EXECUTE FUNCTION nothing()'),
	('DROP TRIGGER zzz_pgcache_fence_x ON item'),
	('CREATE RULE elsewhere AS ON UPDATE TO item DO INSTEAD NOTHING'),
	('ALTER TRIGGER zzz_pgcache_fence_after ON item RENAME TO zzz_pgcache_fence_later'),
	('ALTER TRIGGER zzz_pgcache_fence_after ON item DEPENDS ON EXTENSION plpgsql'),
	('ALTER TRIGGER zzz_pgcache_fence_after ON item NO DEPENDS ON EXTENSION plpgsql'),
	('ALTER TABLE item DISABLE TRIGGER USER'),
	('ALTER TABLE item ENABLE TRIGGER zzz_pgcache_fence_after'),
	('ALTER TABLE item ENABLE REPLICA TRIGGER zzz_pgcache_fence_after'),
	('ALTER TABLE item ENABLE ALWAYS TRIGGER zzz_pgcache_fence_after'),
	('ALTER TRIGGER zzz_pgcache_fence_before ON crowd RENAME TO x')) x (statement);
-- a rule changes no row behind the triggers' backs: the statement does nothing
CALL seed();
UPDATE item SET v = 'never';
SELECT * FROM look();
DROP RULE elsewhere ON item;
-- none of that has ended the attachment, or weakened it
UPDATE item SET v = 'fenced';
SELECT * FROM look();
SELECT tgname, tgenabled, tgqual IS NULL AS always FROM pg_trigger WHERE tgrelid = 'item'::regclass ORDER BY tgname COLLATE "C";
-- a hollow one of ours, and another's of that name, that were there before
CREATE TABLE before (id int PRIMARY KEY, version bigint NOT NULL DEFAULT 0);
CREATE TRIGGER zzz_pgcache_fence_after AFTER UPDATE ON before FOR EACH ROW WHEN (false) EXECUTE FUNCTION nothing();
CREATE TRIGGER zzz_pgcache_fence_before BEFORE UPDATE ON before FOR EACH ROW WHEN (false) EXECUTE FUNCTION fence.before_row();
CREATE TRIGGER mine BEFORE UPDATE ON before FOR EACH ROW WHEN (false) EXECUTE FUNCTION fence.before_row();
SELECT fence.attach('before');
SELECT tgname, tgenabled, tgqual IS NULL AS always, tgfoid::regproc FROM pg_trigger WHERE tgrelid = 'before'::regclass ORDER BY tgname COLLATE "C";
DROP TABLE before;
-- one that is dropped ends the attachment, as the master does; what is left of it lets nothing pass
BEGIN;
DROP TRIGGER zzz_pgcache_fence_before ON item;
SELECT count(*) FROM fence.domains WHERE domain = 'triggers.item';
SELECT attempt('UPDATE item SET v = v');
SELECT fence.attach('item');
UPDATE item SET v = v;
ROLLBACK;
\pset format aligned
\pset tuples_only off

--
-- What was edited past ALTER TABLE is found when the table is looked at: nothing is served, nothing is written
--
CREATE PROCEDURE edit(change text, relation regclass) LANGUAGE plpgsql AS $$
BEGIN
	SET LOCAL allow_system_table_mods = on;
	EXECUTE 'UPDATE pg_trigger SET ' || change || ' AND tgrelid = $1' USING relation;
	-- the cached Domain goes with the relation's cache
	EXECUTE 'UPDATE pg_class SET relpages = relpages WHERE oid = $1' USING relation;
END $$;
CREATE FUNCTION broken() RETURNS text LANGUAGE sql AS $$
	SELECT concat_ws(E'\n', attempt('SELECT fence.get(''triggers.item'', ''1'')'), attempt('SELECT fence.read(''triggers.item'', ''1'')'),
					 attempt('SELECT fence.status(''triggers.item'', ''1'')'), attempt('SELECT fence.audit(''triggers.item'')'),
					 attempt('UPDATE item SET v = ''never'' WHERE id = 1'), finding, hint)
	  FROM fence.doctor() WHERE finding ~ 'triggers.item'
$$;
\pset format unaligned
\pset tuples_only on
BEGIN;
CALL edit('tgenabled = ''O'' WHERE tgname = ''zzz_pgcache_fence_before''', 'item');
SELECT broken();
ROLLBACK;
BEGIN;
CALL edit('tgtype = 9 WHERE tgname = ''zzz_pgcache_fence_after''', 'item');
SELECT broken();
ROLLBACK;
BEGIN;
SET LOCAL allow_system_table_mods = on;
WITH gone AS (DELETE FROM pg_trigger WHERE tgrelid = 'item'::regclass AND tgname = 'zzz_pgcache_fence_truncate' RETURNING oid)
DELETE FROM pg_depend d USING gone WHERE gone.oid IN (d.objid, d.refobjid);
CALL edit('tgname = tgname WHERE true', 'item');
SELECT broken();
-- the way out
SELECT fence.detach('item');
SELECT fence.attach('item');
UPDATE item SET v = 'fenced again' WHERE id = 1;
ROLLBACK;
BEGIN;
CREATE OR REPLACE FUNCTION fence.after_row() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
CALL edit('tgname = tgname WHERE true', 'item');
SELECT broken();
ROLLBACK;
\pset format aligned
\pset tuples_only off
CALL seed();
SELECT * FROM look();

SET client_min_messages = warning;
DROP SCHEMA triggers CASCADE;
SELECT count(*) FROM fence.domains WHERE domain LIKE 'triggers.%';
