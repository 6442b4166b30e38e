--
-- Write-through (cache => 'row'): a row that is written stays a hit, with exactly what a reader would have stored.
--
\set schema wt
\i test/lib/regress.sql

CREATE TABLE item (
	id int PRIMARY KEY, name text, at timestamptz, doubled int GENERATED ALWAYS AS (id * 2) STORED, more jsonb,
	version bigint NOT NULL DEFAULT 0);
INSERT INTO item (id, name) SELECT g, 'row ' || g FROM generate_series(1, 6) g;
SELECT fence.attach('item', cache => 'row');
SELECT domain, cache, columns, ttl FROM fence.domains WHERE domain = 'wt.item';
CALL wait_for('wt.item', '1');

-- What readers get of each key, never through fence.read, which would repair what is wrong. "same": to the byte what
-- fence.read stores.
CREATE FUNCTION look(VARIADIC keys int[] = '{1,2,3,4,5,6}') RETURNS TABLE (id int, stored bigint, status text, version bigint, value text)
LANGUAGE sql SET timezone = 'UTC' AS $$
	SELECT k, t.version, g.status, g.version,
		   CASE WHEN g.payload IS NULL THEN NULL WHEN g.payload = to_jsonb(t)::text THEN 'same' ELSE 'OTHER ' || g.payload END
	  FROM unnest(keys) k LEFT JOIN item t ON t.id = k CROSS JOIN LATERAL fence.get('wt.item', k::text) g ORDER BY k
$$;
CREATE FUNCTION too_large() RETURNS bigint LANGUAGE sql AS 'SELECT values_too_large FROM fence.state';

-- a write warms its key, though nobody has read it before; another key stays cold
UPDATE item SET name = 'warm' WHERE id = 1;
SELECT * FROM look(1, 2);

-- what a reader stores, and what a writer stores
SELECT fence.read('wt.item', id::text) FROM item ORDER BY id;
SELECT * FROM look();
UPDATE item SET name = 'written', at = '2026-01-31 12:00+00', more = '{"b": [1, 2], "a": "é"}' WHERE id = 1;
SELECT payload FROM fence.get('wt.item', '1');
SELECT * FROM look(1);

-- whatever the settings of the session that writes
SET timezone = 'Asia/Tokyo';
SET datestyle = 'German';
SET extra_float_digits = -3;
UPDATE item SET at = '2026-02-01 12:00+00', more = '{"pi": 3.14159265358979}' WHERE id = 1;
RESET timezone;
RESET datestyle;
RESET extra_float_digits;
SELECT payload FROM fence.get('wt.item', '1');

-- many rows, the same row again, in one transaction
BEGIN;
UPDATE item SET name = name || '!';
UPDATE item SET name = name || '?' WHERE id <= 3;
UPDATE item SET name = name || '.' WHERE id = 1;
COMMIT;
SELECT * FROM look();

-- statement kinds
INSERT INTO item (id, name) VALUES (2, 'conflict') ON CONFLICT (id) DO UPDATE SET name = excluded.name;
INSERT INTO item (id, name) VALUES (3, 'ignored') ON CONFLICT DO NOTHING;
MERGE INTO item USING (VALUES (4, 'merged'), (5, NULL)) v (id, name) ON item.id = v.id
	WHEN MATCHED AND v.name IS NULL THEN DELETE
	WHEN MATCHED THEN UPDATE SET name = v.name;
WITH moved AS (DELETE FROM item WHERE id = 6 RETURNING *) UPDATE item SET name = moved.name FROM moved WHERE item.id = 3;
SELECT * FROM look();
-- what was deleted has no fence; what comes back is warm at once
SELECT (fence.status('wt.item', '5')).relation, (fence.status('wt.item', '6')).relation;
INSERT INTO item (id, name) VALUES (5, 'back'), (6, 'back');
SELECT * FROM look(5, 6);
-- deleted and inserted, inserted and deleted, in one transaction
BEGIN;
DELETE FROM item WHERE id = 5;
INSERT INTO item (id, name) VALUES (5, 'once more');
DELETE FROM item WHERE id = 6;
INSERT INTO item (id, name) VALUES (6, 'in vain');
DELETE FROM item WHERE id = 6;
COMMIT;
SELECT * FROM look(5, 6);
INSERT INTO item (id, name) VALUES (6, 'six');

-- a key that changes: the old one's value goes, the new one's comes
UPDATE item SET id = 16 WHERE id = 6;
SELECT * FROM look(6, 16);
UPDATE item SET id = 6 WHERE id = 16;
SELECT * FROM look(6, 16);

-- another trigger has the last word: what is stored counts
CREATE FUNCTION meddle() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	NEW.name := NEW.name || ' (meddled)';
	RETURN NEW;
END $$;
CREATE TRIGGER zzzz_meddle BEFORE UPDATE ON item FOR EACH ROW EXECUTE FUNCTION meddle();
UPDATE item SET name = 'one' WHERE id = 1;
SELECT payload::jsonb ->> 'name' FROM fence.get('wt.item', '1');
DROP TRIGGER zzzz_meddle ON item;
-- one that writes the row again, before and after ours fires
CREATE FUNCTION again() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF pg_trigger_depth() = 1 THEN
		UPDATE item SET name = name || ' (again)' WHERE id = NEW.id;
	END IF;
	RETURN NULL;
END $$;
CREATE TRIGGER aaa_again AFTER UPDATE ON item FOR EACH ROW EXECUTE FUNCTION again();
UPDATE item SET name = 'two' WHERE id = 2;
ALTER TRIGGER aaa_again ON item RENAME TO zzzz_again;
UPDATE item SET name = 'three' WHERE id = 3;
SELECT * FROM look(2, 3);
SELECT payload::jsonb ->> 'name' FROM fence.get('wt.item', '2') UNION ALL SELECT payload::jsonb ->> 'name' FROM fence.get('wt.item', '3');
DROP TRIGGER zzzz_again ON item;

-- ---------------------------------------------------------------------------------------------------------------------
-- Savepoints
-- ---------------------------------------------------------------------------------------------------------------------
BEGIN;
UPDATE item SET name = 'kept' WHERE id = 1;
SAVEPOINT a;
UPDATE item SET name = 'never' WHERE id IN (1, 2);
ROLLBACK TO a;
UPDATE item SET name = 'kept' WHERE id = 3;
SAVEPOINT b;
UPDATE item SET name = 'kept too' WHERE id = 3;
SAVEPOINT c;
UPDATE item SET name = 'never' WHERE id = 3;
DELETE FROM item WHERE id = 4;
ROLLBACK TO c;
RELEASE b;
SAVEPOINT d;
UPDATE item SET name = 'never' WHERE id = 5;
ROLLBACK TO d;
-- the same version once more, with another row
UPDATE item SET name = 'kept' WHERE id = 5;
COMMIT;
SELECT * FROM look();
SELECT id, name FROM item WHERE id IN (1, 3, 5) ORDER BY id;

-- released into a savepoint that is rolled back; changed in each of many; a deletion rolled back
BEGIN;
SAVEPOINT a;
UPDATE item SET name = 'a' WHERE id = 1;
SAVEPOINT b;
UPDATE item SET name = 'b' WHERE id = 1;
RELEASE b;
UPDATE item SET name = 'c' WHERE id = 1;
ROLLBACK TO a;
DO $$
BEGIN
	FOR i IN 1 .. 200 LOOP
		BEGIN
			UPDATE item SET name = 'loop ' || i WHERE id = 2;
			IF i % 3 = 0 THEN
				RAISE 'enough';
			END IF;
		EXCEPTION WHEN raise_exception THEN NULL;
		END;
	END LOOP;
END $$;
SAVEPOINT e;
DELETE FROM item WHERE id = 2;
ROLLBACK TO e;
COMMIT;
SELECT * FROM look(1, 2);
SELECT name FROM item WHERE id = 2;
-- all of it rolled back: it is cold, and read again
BEGIN;
UPDATE item SET name = 'never';
SELECT * FROM look(1);
ROLLBACK;
SELECT * FROM look();

-- ---------------------------------------------------------------------------------------------------------------------
-- Size
-- ---------------------------------------------------------------------------------------------------------------------
SELECT too_large() AS before \gset
UPDATE item SET name = repeat('x', 9000) WHERE id = 1;
SELECT status FROM fence.get('wt.item', '1');
SELECT too_large() - :before AS counted;
-- the reader stores it; smaller again, the writer does
SELECT length(fence.read('wt.item', '1') ->> 'name');
SELECT * FROM look(1);
UPDATE item SET name = 'small' WHERE id = 1;
SELECT * FROM look(1);
-- exactly at the limit, and above it by one
SELECT octet_length(to_jsonb(t)::text) AS size FROM item t WHERE id = 1 \gset
SET pgcache_fence.value_limit = :size;
UPDATE item SET name = 'liams' WHERE id = 1;
SELECT * FROM look(1);
UPDATE item SET name = 'larger' WHERE id = 1;
SELECT status FROM fence.get('wt.item', '1');
SELECT fence.read('wt.item', '1') ->> 'name';
-- none at all; that is no surprise to count
SELECT too_large() AS before \gset
SET pgcache_fence.value_limit = 0;
UPDATE item SET name = 'x' WHERE id = 1;
SELECT status FROM fence.get('wt.item', '1');
SELECT too_large() - :before AS counted;
-- the largest that is possible; a row that is compressed in the table
SET pgcache_fence.value_limit = '512kB';
SELECT fence.read('wt.item', '1') ->> 'name';
UPDATE item SET name = repeat('y', 520000) WHERE id = 1;
SELECT status, length(payload) > 520000 AS whole FROM fence.get('wt.item', '1');
UPDATE item SET name = repeat('z', 50000000) WHERE id = 1;
SELECT status FROM fence.get('wt.item', '1');
RESET pgcache_fence.value_limit;
UPDATE item SET name = 'one' WHERE id = 1;
SELECT fence.read('wt.item', '1') ->> 'name';
-- more than a transaction keeps: no row is lost, some are cold
CREATE TABLE big (id int PRIMARY KEY, body text, version bigint NOT NULL DEFAULT 0);
INSERT INTO big SELECT g FROM generate_series(1, 1000) g;
SELECT fence.attach('big', cache => 'row');
CALL wait_for('wt.big', '1');
SELECT count(fence.read('wt.big', id::text)) FROM big;
UPDATE big SET body = repeat('b', 8000);
SELECT bool_or(g.status = 'hit') AS some, bool_and(g.status = 'hit') AS every, bool_and(g.payload = to_jsonb(b)::text) AS same,
	   count(*) FILTER (WHERE g.status NOT IN ('hit', 'miss')) AS neither
  FROM big b CROSS JOIN LATERAL fence.get('wt.big', id::text) g;

-- ---------------------------------------------------------------------------------------------------------------------
-- Whole tables
-- ---------------------------------------------------------------------------------------------------------------------
SET pgcache_fence.bulk_threshold = 3;
UPDATE item SET name = 'many';
SELECT DISTINCT status FROM look();
RESET pgcache_fence.bulk_threshold;
SELECT count(fence.read('wt.item', id::text)) FROM item;
-- rows first, then all: nothing that was written before is trusted
BEGIN;
UPDATE item SET name = 'before' WHERE id = 1;
TRUNCATE item;
INSERT INTO item (id, name, version) VALUES (1, 'another', 1), (2, 'another', 1);
COMMIT;
SELECT * FROM look(1, 2, 3);
SELECT fence.read('wt.item', '1') ->> 'name';
UPDATE item SET name = 'and another' WHERE id = 1;
SELECT * FROM look(1);
-- TRUNCATE that is rolled back: the rows' own reservations count, their values do not
BEGIN;
UPDATE item SET name = 'outside' WHERE id = 1;
SAVEPOINT a;
TRUNCATE item;
ROLLBACK TO a;
COMMIT;
SELECT id, stored, status, version FROM look(1);

-- ---------------------------------------------------------------------------------------------------------------------
-- Columns, time to live, types
-- ---------------------------------------------------------------------------------------------------------------------
CREATE TABLE person (
	id int PRIMARY KEY, secret text, name text, version bigint NOT NULL DEFAULT 0,
	upper_name text GENERATED ALWAYS AS (upper(name)) STORED);
INSERT INTO person VALUES (1, 'hidden', 'ann');
SELECT fence.attach('person', cache => 'row', columns => '{name,upper_name,id}', ttl => '1 hour');
SELECT columns, ttl FROM fence.domains WHERE domain = 'wt.person';
CALL wait_for('wt.person', '1');
SELECT fence.read('wt.person', '1');
UPDATE person SET name = 'bob', secret = 'still hidden' WHERE id = 1;
SELECT status, version, payload FROM fence.get('wt.person', '1');
-- what is not told does not count
UPDATE person SET secret = repeat('s', 100000) WHERE id = 1;
SELECT status, version, payload FROM fence.get('wt.person', '1');
-- a column that is renamed, one that is dropped, one that is added
ALTER TABLE person RENAME COLUMN name TO first_name;
SELECT fence.read('wt.person', '1');
UPDATE person SET first_name = 'carl' WHERE id = 1;
SELECT status, payload FROM fence.get('wt.person', '1');
ALTER TABLE item DROP COLUMN at;
ALTER TABLE item ADD COLUMN later int DEFAULT 7;
SELECT fence.read('wt.item', '1') ->> 'name';
UPDATE item SET more = NULL WHERE id = 1;
SELECT * FROM look(1);
SELECT payload FROM fence.get('wt.item', '1');

-- JSON that jsonb does not take must not fail a write: the reader is told by fence.read
CREATE TABLE doc (id int PRIMARY KEY, body json, version bigint NOT NULL DEFAULT 0);
INSERT INTO doc VALUES (1, '{}');
SELECT fence.attach('doc', cache => 'row');
CALL wait_for('wt.doc', '1');
SELECT fence.read('wt.doc', '1');
UPDATE doc SET body = '{"b":1, "a": [1,  2]}' WHERE id = 1;
SELECT payload FROM fence.get('wt.doc', '1');
UPDATE doc SET body = '{"a": "\u0000"}' WHERE id = 1;
SELECT status FROM fence.get('wt.doc', '1');
UPDATE doc SET body = '1e1000000' WHERE id = 1;
SELECT status FROM fence.get('wt.doc', '1');
UPDATE doc SET body = 'null' WHERE id = 1;
SELECT fence.read('wt.doc', '1');

-- partitions: the same text whatever the order of the columns there, also when a row moves
CREATE TABLE part (id int, name text, version bigint NOT NULL DEFAULT 0, PRIMARY KEY (id)) PARTITION BY RANGE (id);
CREATE TABLE part_1 PARTITION OF part FOR VALUES FROM (0) TO (10);
CREATE TABLE part_2 (version bigint NOT NULL DEFAULT 0, gone int, name text, id int NOT NULL);
ALTER TABLE part_2 DROP COLUMN gone;
ALTER TABLE part ATTACH PARTITION part_2 FOR VALUES FROM (10) TO (20);
INSERT INTO part VALUES (1, 'one'), (11, 'eleven');
SELECT fence.attach('part', cache => 'row');
CALL wait_for('wt.part', '1');
SELECT fence.read('wt.part', id::text) FROM part ORDER BY id;
UPDATE part SET name = name || '!';
SELECT g.status, g.payload, g.payload = to_jsonb(p)::text AS same FROM part p CROSS JOIN LATERAL fence.get('wt.part', id::text) g ORDER BY id;
SELECT fence.read('wt.part', '12');
UPDATE part SET id = 12 WHERE id = 1;
SELECT status FROM fence.get('wt.part', '1');
SELECT (fence.read('wt.part', '12')) ->> 'name';

-- that there is no row is stored like a row: DELETE brings it, INSERT makes it go, and so does a key that moves
CREATE TABLE rare (id int PRIMARY KEY, name text, version bigint NOT NULL DEFAULT 0);
INSERT INTO rare VALUES (1, 'one'), (2, 'two');
SELECT fence.attach('rare', cache => 'row', cache_absent => true);
CALL wait_for('wt.rare', '1');
CREATE FUNCTION rares() RETURNS TABLE (id int, status text, version bigint, value text, row_version bigint, relation text) LANGUAGE sql AS $$
	SELECT k, g.status, g.version, g.payload, s.row_version, s.relation
	  FROM generate_series(1, 4) k CROSS JOIN LATERAL fence.get('wt.rare', k::text) g CROSS JOIN LATERAL fence.status('wt.rare', k::text) s
$$;
DELETE FROM rare WHERE id = 1;
SELECT * FROM rares();
SELECT fence.read('wt.rare', '1') IS NULL AS none, fence.read('wt.rare', '3') IS NULL AS none;
SELECT * FROM rares();
INSERT INTO rare VALUES (1, 'back'), (3, 'new');
SELECT * FROM rares();
UPDATE rare SET id = 4 WHERE id = 2;
SELECT * FROM rares();
BEGIN;
DELETE FROM rare WHERE id = 1;
SELECT status FROM fence.get('wt.rare', '1');
ROLLBACK;
SELECT status FROM fence.get('wt.rare', '1');
BEGIN;
DELETE FROM rare WHERE id = 3;
INSERT INTO rare VALUES (3, 'newer');
INSERT INTO rare VALUES (2, 'in vain');
DELETE FROM rare WHERE id = 2;
COMMIT;
SELECT * FROM rares();
SELECT fence.read('wt.rare', '2') IS NULL AS none, fence.read('wt.rare', '3') ->> 'name' AS three;
SELECT relation, count FROM fence.audit('wt.rare') WHERE relation NOT IN ('equal', 'missing') AND count > 0;

-- without write-through: as ever
CREATE TABLE plain (id int PRIMARY KEY, version bigint NOT NULL DEFAULT 0);
INSERT INTO plain VALUES (1);
SELECT fence.attach('plain');
CALL wait_for('wt.plain', '1');
SELECT fence.read('wt.plain', '1');
UPDATE plain SET id = 1;
SELECT status FROM fence.get('wt.plain', '1');

-- ---------------------------------------------------------------------------------------------------------------------
-- Who may read: a value is the whole row, as the owner sees it, whoever wrote it
-- ---------------------------------------------------------------------------------------------------------------------
CREATE ROLE wt_writer;
CREATE ROLE wt_reader;
GRANT USAGE ON SCHEMA wt TO wt_writer, wt_reader;
GRANT SELECT (id), UPDATE ON person TO wt_writer;
GRANT SELECT (id) ON person TO wt_reader;
SELECT fence.read('wt.person', '1') \g /dev/null
SET ROLE wt_writer;
UPDATE person SET first_name = 'dora' WHERE id = 1;
SELECT fence.get('wt.person', '1');
SET ROLE wt_reader;
SELECT fence.read('wt.person', '1');
RESET ROLE;
GRANT SELECT ON person TO wt_reader;
ALTER TABLE person ENABLE ROW LEVEL SECURITY;
CREATE POLICY nothing ON person FOR SELECT TO wt_reader USING (false);
SET ROLE wt_reader;
SELECT fence.get('wt.person', '1');
SELECT fence.read('wt.person', '1');
RESET ROLE;
DROP OWNED BY wt_writer, wt_reader;
DROP ROLE wt_writer, wt_reader;

SELECT count(*) FROM fence.pending WHERE domain LIKE 'wt.%';
SET client_min_messages = warning;
DROP SCHEMA wt CASCADE;
