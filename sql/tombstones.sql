--
-- Tombstones: they are written many at a time, and what is looked up once is not looked up again. Nothing of that is seen.
--
\set schema tombstones
\i test/lib/regress.sql

CREATE TABLE item (id int PRIMARY KEY, v text, version bigint NOT NULL DEFAULT 0);
CREATE TABLE other (LIKE item INCLUDING ALL);
SELECT fence.attach('item'), fence.attach('other'), fence.attach(NULL, scope => 'manual', domain => 'tombstones.free');

-- What the table has, in short
CREATE FUNCTION stones(of text DEFAULT 'item') RETURNS TABLE (version bigint, n bigint, keys text) LANGUAGE sql AS $$
	SELECT t.version, count(*), min(t.key::int) || '-' || max(t.key::int)
	  FROM fence.tombstone t JOIN fence.domain d ON d.id = t.domain_id
	 WHERE d.name = 'tombstones.' || of AND t.key ~ '^\d+$' GROUP BY t.version ORDER BY t.version
$$;
CREATE FUNCTION versions() RETURNS TABLE (version bigint, n bigint, ids text) LANGUAGE sql AS $$
	SELECT i.version, count(*), min(i.id) || '-' || max(i.id) FROM item i GROUP BY i.version ORDER BY i.version
$$;

-- several batches; they are there when the statement has ended
INSERT INTO item SELECT i FROM generate_series(1, 1000) i;
BEGIN;
DELETE FROM item;
SELECT * FROM stones();
COMMIT;
SELECT * FROM stones();

-- keys that come back, in one statement, with others that were never there
INSERT INTO item SELECT i FROM generate_series(1, 1200) i;
SELECT * FROM versions();

-- tombstones that are raised: some with many between them, some with few; some keys have none
DELETE FROM item WHERE id % 100 = 0 OR id BETWEEN 501 AND 520 OR id = 1101;
SELECT * FROM stones();
INSERT INTO item SELECT i FROM generate_series(100, 1200, 100) i;
SELECT id, version FROM item WHERE id % 100 = 0 ORDER BY id;

-- two domains in one statement, both with tombstones
INSERT INTO other SELECT i FROM generate_series(1, 300) i;
DELETE FROM other;
INSERT INTO other SELECT i FROM generate_series(1, 300) i;
WITH a AS (DELETE FROM item WHERE id <= 300), b AS (DELETE FROM other) SELECT;
SELECT * FROM stones();
SELECT * FROM stones('other');

-- each key that is free has been deleted by the same statement just before: the version goes on
TRUNCATE item;
INSERT INTO item SELECT i, NULL, 50 FROM generate_series(2001, 2400) i ORDER BY i;
UPDATE item SET id = id - 1;
SELECT * FROM versions();
SELECT version, n FROM stones() WHERE version > 50;

-- a subtransaction in the midst of a statement has its own, and takes them back with it
CREATE FUNCTION delete_other(key int, fails bool) RETURNS bool LANGUAGE plpgsql AS $$
BEGIN
	DELETE FROM other WHERE id BETWEEN key AND key + 299;
	IF fails THEN
		RAISE division_by_zero;
	END IF;
	RETURN true;
EXCEPTION WHEN division_by_zero THEN
	RETURN true;
END $$;
TRUNCATE item;
DELETE FROM fence.tombstone;
INSERT INTO other SELECT i, NULL, 10 FROM generate_series(1, 1200) i ON CONFLICT DO NOTHING;
INSERT INTO item SELECT i, NULL, 10 FROM generate_series(1, 4) i;
DELETE FROM item WHERE delete_other((id - 1) * 300 + 1, id % 2 = 0);
SELECT * FROM stones();
SELECT * FROM stones('other');
SELECT count(*) FROM other;

-- a savepoint's are undone with it, those before and after it are not; look-ups follow
BEGIN;
INSERT INTO item VALUES (11, 'a', 5), (12, 'b', 5), (13, 'c', 5);
DELETE FROM item WHERE id = 11;
SAVEPOINT a;
DELETE FROM item WHERE id = 12;
INSERT INTO item VALUES (12) RETURNING version;
DELETE FROM item WHERE id = 12;
ROLLBACK TO a;
DELETE FROM item WHERE id = 13;
SAVEPOINT b;
INSERT INTO item VALUES (13) RETURNING version;
DELETE FROM item WHERE id = 13;
RELEASE b;
INSERT INTO item VALUES (13) RETURNING version;
COMMIT;
SELECT * FROM stones() WHERE version IN (6, 8);
SELECT id, version FROM item ORDER BY id;

-- no statement ends between a call and its commit, or its savepoint
DO $$
DECLARE
	w bigint;
BEGIN
	w := fence.begin_write('tombstones.free', 4, '1');
	BEGIN
		w := fence.begin_write('tombstones.free', 6, '2');
	EXCEPTION WHEN division_by_zero THEN
	END;
	BEGIN
		w := fence.begin_write('tombstones.free', 8, '3');
		w := 1 / 0;
	EXCEPTION WHEN division_by_zero THEN
	END;
	-- the newest is known before it is written
	w := fence.begin_write('tombstones.free', 0, '1');
END $$;
SELECT * FROM stones('free');

-- versions begin anew in the transaction that deletes
BEGIN;
DELETE FROM item;
SELECT fence.renumber('tombstones.item');
SELECT * FROM stones();
INSERT INTO item VALUES (1) RETURNING version;
COMMIT;

-- what is written directly is seen by the next statement of the same transaction
BEGIN;
INSERT INTO item VALUES (21), (22), (23) RETURNING version;
INSERT INTO fence.tombstone SELECT id, '24', 70, now() FROM fence.domain WHERE name = 'tombstones.item';
INSERT INTO fence.floor SELECT id, 60 FROM fence.domain WHERE name = 'tombstones.item';
INSERT INTO item VALUES (24), (25) RETURNING version;
ROLLBACK;

-- none is left of a domain that ends
DO $$
DECLARE
	w bigint;
BEGIN
	w := fence.begin_write('tombstones.free', 98, '9');
	PERFORM fence.detach_domain('tombstones.free');
END $$;
SELECT count(*) FROM fence.tombstone WHERE version = 99;
SET client_min_messages = warning;
DROP SCHEMA tombstones CASCADE;
