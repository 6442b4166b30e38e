--
-- Every kind of statement: the version that Redis reserved is the version that is stored, and no copy that was cached
-- before is served after.
--
\set schema statements
\i test/lib/regress.sql

-- The row of a key as JSON, read past the extension.
CREATE FUNCTION row_of(domain text, key text[]) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
	d fence.domains;
	found jsonb;
BEGIN
	SELECT * INTO STRICT d FROM fence.domains x WHERE x.domain = row_of.domain;
	EXECUTE format('SELECT to_jsonb(t) FROM %s t WHERE ARRAY[%s] = $1', d.relation,
				   (SELECT string_agg(format('%I::text', k), ', ') FROM unnest(d.key) k))
		INTO found USING key;
	RETURN found;
END $$;

-- Every key that a table has ever had here
CREATE TABLE known (domain text, key text[], PRIMARY KEY (domain, key));

CREATE PROCEDURE learn(domain text) LANGUAGE plpgsql AS $$
DECLARE
	d fence.domains;
BEGIN
	SELECT * INTO STRICT d FROM fence.domains x WHERE x.domain = learn.domain;
	EXECUTE format('INSERT INTO known SELECT $1, ARRAY[%s] FROM %s ON CONFLICT DO NOTHING',
				   (SELECT string_agg(format('%I::text', k), ', ') FROM unnest(d.key) k), d.relation)
		USING domain;
END $$;

-- Reads every key, so that each row is a hit and each deleted one has a fence.
CREATE PROCEDURE seed(domain text) LANGUAGE plpgsql AS $$
DECLARE
	k text[];
BEGIN
	CALL learn(domain);
	FOR k IN SELECT x.key FROM known x WHERE x.domain = seed.domain LOOP
		IF fence.read(domain, VARIADIC k) IS DISTINCT FROM row_of(domain, k) THEN
			RAISE 'read of % is wrong: %', k, fence.read(domain, VARIADIC k);
		END IF;
		IF row_of(domain, k) IS NOT NULL AND (fence.get(domain, VARIADIC k)).status <> 'hit' THEN
			RAISE 'key % is not cached: %', k, fence.get(domain, VARIADIC k);
		END IF;
	END LOOP;
END $$;

-- Keys that this transaction has reserved in Redis, beside what its statements stored in row or tombstone. An answer on the
-- connection on which reservations are sent comes after they are made.
CREATE FUNCTION reserved(domain text) RETURNS TABLE (key text, stored bigint) LANGUAGE plpgsql AS $$
BEGIN
	CALL learn(domain);
	RETURN QUERY
	SELECT k.key::text, s.row_version FROM known k CROSS JOIN LATERAL fence.status(k.domain, VARIADIC k.key) s
	 WHERE k.domain = reserved.domain AND s.pending > 0 ORDER BY k.key COLLATE "C";
END $$;

-- The mechanical comparison: every fence is equal to its row or absent, and nothing is pending.
CREATE PROCEDURE check_fences(domain text) LANGUAGE plpgsql AS $$
DECLARE
	a record;
BEGIN
	FOR a IN SELECT * FROM fence.audit(domain) x WHERE x.relation NOT IN ('equal', 'missing') AND x.count > 0 LOOP
		RAISE 'fences are wrong: % of them %', a.count, a.relation;
	END LOOP;
	FOR a IN SELECT * FROM fence.pending p WHERE p.domain = check_fences.domain LOOP
		RAISE 'a reservation is left: %', a;
	END LOOP;
END $$;

-- After a commit: every key that is not a hit. A hit must be the row as it is now.
CREATE FUNCTION changed(domain text)
	RETURNS TABLE (key text, "row" text, stored bigint, fence bigint, relation text, cached text) LANGUAGE plpgsql AS $$
BEGIN
	CALL check_fences(domain);
	CALL learn(domain);
	RETURN QUERY
	SELECT k.key::text, CASE WHEN r IS NULL THEN 'gone' ELSE 'live' END, s.row_version, s.fence_version, s.relation,
		   CASE WHEN g.status = 'hit' AND r IS DISTINCT FROM g.payload::jsonb THEN 'STALE ' || g.payload ELSE g.status END
	  FROM known k
	 CROSS JOIN LATERAL fence.get(k.domain, VARIADIC k.key) g
	 CROSS JOIN LATERAL row_of(k.domain, k.key) r
	 CROSS JOIN LATERAL fence.status(k.domain, VARIADIC k.key) s
	 WHERE k.domain = changed.domain AND (g.status <> 'hit' OR r IS DISTINCT FROM g.payload::jsonb)
	 ORDER BY k.key COLLATE "C";
END $$;

--
-- One integer key, bigint version
--
CREATE TABLE item (id int PRIMARY KEY, v text, version bigint NOT NULL DEFAULT 0);
INSERT INTO item VALUES (1, 'a', 0), (2, 'b', 0), (3, 'c', 0), (4, 'd', 40);
SELECT fence.attach('item');
CALL wait_for('statements.item', '1');

-- INSERT: default, own, NULL and negative version
CALL seed('statements.item');
BEGIN;
INSERT INTO item VALUES (5, 'e') RETURNING version;
INSERT INTO item VALUES (6, 'f', 66), (7, 'g', NULL), (8, 'h', -3) RETURNING id, version;
SELECT * FROM reserved('statements.item');
COMMIT;
SELECT * FROM changed('statements.item');

-- a key of which a reader knows that it does not exist
INSERT INTO known VALUES ('statements.item', '{9}');
SELECT fence.read('statements.item', '9');
INSERT INTO item VALUES (9, 'i');
SELECT * FROM changed('statements.item') WHERE key = '{9}';

-- UPDATE that does not mention the version, one that counts itself, one that invents, one that changes nothing
CALL seed('statements.item');
BEGIN;
UPDATE item SET v = 'A' WHERE id = 1 RETURNING version;
UPDATE item SET v = 'B', version = version + 1 WHERE id = 2 AND version = 0 RETURNING version;
UPDATE item SET v = 'C', version = 1000 WHERE id = 3 RETURNING version;
UPDATE item SET v = 'D', version = -1 WHERE id = 4 RETURNING version;
UPDATE item SET v = v WHERE id = 5 RETURNING version;
UPDATE item SET v = 'never' WHERE id = 12345;
SELECT * FROM reserved('statements.item');
COMMIT;
SELECT * FROM changed('statements.item');

-- several rows; the same row several times; several times in one statement's reach
CALL seed('statements.item');
BEGIN;
UPDATE item SET v = v || '!' WHERE id <= 3;
UPDATE item SET v = v || '?' WHERE id = 3;
UPDATE item SET v = v || '?' WHERE id = 3 RETURNING version;
UPDATE item SET v = x.v FROM (VALUES (4, 'x'), (4, 'y'), (5, 'z')) x (id, v) WHERE item.id = x.id
	RETURNING item.id, version;
SELECT * FROM reserved('statements.item');
COMMIT;
SELECT * FROM changed('statements.item');

-- DELETE leaves a tombstone above the row; a key that comes back goes on counting
CALL seed('statements.item');
BEGIN;
DELETE FROM item WHERE id = 1 RETURNING version;
DELETE FROM item USING (VALUES (2), (6)) x (id) WHERE item.id = x.id;
SELECT * FROM reserved('statements.item');
COMMIT;
SELECT * FROM changed('statements.item');
SELECT key, version FROM fence.tombstone JOIN fence.domain d ON d.id = domain_id
 WHERE d.name = 'statements.item' ORDER BY key COLLATE "C";
CALL check_fences('statements.item');
CALL seed('statements.item');
BEGIN;
INSERT INTO item VALUES (1, 'again') RETURNING version;
INSERT INTO item VALUES (2, 'again', 2) RETURNING version;
INSERT INTO item VALUES (6, 'again', 666) RETURNING version;
SELECT * FROM reserved('statements.item');
COMMIT;
SELECT * FROM changed('statements.item');

-- COPY
CALL seed('statements.item');
BEGIN;
COPY item (id, v) FROM STDIN;
20	copied
21	copied
\.
COPY item FROM STDIN;
22	copied	220
\.
SELECT * FROM reserved('statements.item');
COMMIT;
SELECT * FROM changed('statements.item');

-- INSERT ... SELECT
CALL seed('statements.item');
BEGIN;
INSERT INTO item SELECT id + 10, v, version FROM item WHERE id >= 20;
SELECT * FROM reserved('statements.item');
COMMIT;
SELECT * FROM changed('statements.item');

-- ON CONFLICT DO NOTHING changes nothing, whatever its row would have been; DO UPDATE is an update
CALL seed('statements.item');
BEGIN;
INSERT INTO item VALUES (1, 'never', 0), (2, 'never', 5000), (40, 'new', 0) ON CONFLICT DO NOTHING
	RETURNING id, version;
INSERT INTO item VALUES (3, 'upsert', 0), (4, 'upsert', 6000), (41, 'new', 0)
	ON CONFLICT (id) DO UPDATE SET v = excluded.v RETURNING id, version;
INSERT INTO item VALUES (5, 'upsert') ON CONFLICT (id) DO UPDATE SET v = excluded.v WHERE item.v = 'no such';
SELECT id, v, version FROM item WHERE id <= 5 ORDER BY id;
-- who only asked to insert has reserved nothing
SELECT * FROM reserved('statements.item');
COMMIT;
SELECT * FROM changed('statements.item');
-- the next version is the next
UPDATE item SET v = 'next' WHERE id IN (2, 4) RETURNING id, version;
CALL check_fences('statements.item');

-- MERGE
CALL seed('statements.item');
BEGIN;
MERGE INTO item USING (VALUES (1, 'merged'), (2, NULL), (3, 'leave'), (50, 'merged'), (51, 'leave')) x (id, v)
	ON item.id = x.id
 WHEN MATCHED AND x.v = 'leave' THEN DO NOTHING
 WHEN MATCHED AND x.v IS NULL THEN DELETE
 WHEN MATCHED THEN UPDATE SET v = x.v
 WHEN NOT MATCHED AND x.v = 'leave' THEN DO NOTHING
 WHEN NOT MATCHED THEN INSERT (id, v) VALUES (x.id, x.v);
SELECT * FROM reserved('statements.item');
COMMIT;
SELECT * FROM changed('statements.item');

-- statements in WITH: they see one snapshot, the version does not care
CALL seed('statements.item');
BEGIN;
WITH moved AS (DELETE FROM item WHERE id = 50 RETURNING *),
	 other AS (UPDATE item SET v = 'with' WHERE id = 4 RETURNING version)
INSERT INTO item SELECT id + 2, v, version FROM moved RETURNING id, version, (SELECT version FROM other) AS other;
-- the same row in both: the second finds it gone
WITH first AS (UPDATE item SET v = 'first' WHERE id = 3 RETURNING id)
UPDATE item SET v = 'second' FROM first WHERE item.id = first.id;
SELECT * FROM reserved('statements.item');
COMMIT;
SELECT * FROM changed('statements.item');

-- the key changes: to a new one, to one with a tombstone, to one that this statement frees
CALL seed('statements.item');
BEGIN;
UPDATE item SET id = 60 WHERE id = 1 RETURNING version;
UPDATE item SET id = 2 WHERE id = 3 RETURNING version;
SELECT * FROM reserved('statements.item');
COMMIT;
SELECT * FROM changed('statements.item');
CALL seed('statements.item');
BEGIN;
UPDATE item SET id = 1 WHERE id = 60 RETURNING version;
UPDATE item SET id = 3 WHERE id = 2 RETURNING version;
UPDATE item SET id = id - 1000 WHERE id BETWEEN 20 AND 22 RETURNING id, version;
UPDATE item SET id = id + 1001 WHERE id < 0 RETURNING id, version;
SELECT * FROM reserved('statements.item');
COMMIT;
SELECT * FROM changed('statements.item');

-- one key through everything in one transaction
INSERT INTO known VALUES ('statements.item', '{70}');
CALL seed('statements.item');
BEGIN;
DELETE FROM item WHERE id = 4;
INSERT INTO item VALUES (4, 'back') RETURNING version;
UPDATE item SET v = 'back again' WHERE id = 4 RETURNING version;
DELETE FROM item WHERE id = 4;
INSERT INTO item VALUES (70, 'short'), (71, 'short');
UPDATE item SET v = 'shorter' WHERE id = 70 RETURNING version;
DELETE FROM item WHERE id IN (70, 71);
INSERT INTO item VALUES (71, 'stays') RETURNING version;
SELECT * FROM reserved('statements.item');
COMMIT;
SELECT * FROM changed('statements.item');

-- cursor, prepared statement, function, view
CALL seed('statements.item');
PREPARE change AS UPDATE item SET v = 'prepared' WHERE id = $1 RETURNING version;
CREATE FUNCTION change(int) RETURNS bigint LANGUAGE sql AS $$
	UPDATE item SET v = 'function' WHERE id = $1 RETURNING version
$$;
CREATE VIEW items AS SELECT id AS key, v AS text FROM item;
BEGIN;
DECLARE c CURSOR FOR SELECT * FROM item WHERE id IN (1, 5) ORDER BY id FOR UPDATE;
FETCH 2 FROM c;
UPDATE item SET v = 'cursor' WHERE CURRENT OF c RETURNING id, version;
EXECUTE change(7);
EXECUTE change(7);
SELECT change(8);
UPDATE items SET text = 'view' WHERE key = 9;
INSERT INTO items VALUES (80, 'view');
SELECT * FROM reserved('statements.item');
COMMIT;
DEALLOCATE change;
SELECT * FROM changed('statements.item');

-- locks and reads are no writes
CALL seed('statements.item');
BEGIN;
SELECT count(*) FROM (SELECT * FROM item FOR UPDATE) x;
SELECT count(*) FROM (SELECT * FROM item FOR KEY SHARE) x;
SELECT * FROM reserved('statements.item');
COMMIT;
SELECT * FROM changed('statements.item') WHERE "row" = 'live';

-- an error in the middle of a statement, and ROLLBACK: nothing is left but cold keys
UPDATE item SET v = (1 / (id - 7))::text WHERE id >= 5;
INSERT INTO item VALUES (90, 'never'), (1, 'twice');
BEGIN;
UPDATE item SET v = 'never';
DELETE FROM item WHERE id < 5;
INSERT INTO item VALUES (91, 'never');
ROLLBACK;
SELECT * FROM changed('statements.item') WHERE "row" = 'live';
-- nothing was skipped
UPDATE item SET v = 'next' WHERE id = 1 RETURNING version;

--
-- Composite key, a tag, an integer version
--
CREATE TABLE seat (room text, n smallint, holder text, version int NOT NULL DEFAULT 0, PRIMARY KEY (room, n));
INSERT INTO seat SELECT room, n FROM (VALUES ('red'), ('blue')) r (room), generate_series(1, 2) n;
SELECT fence.attach('seat', tag => 'room/{room}');
CALL wait_for('statements.seat', 'red', '1');
CALL seed('statements.seat');
BEGIN;
UPDATE seat SET holder = 'Ann' WHERE room = 'red' RETURNING n, version;
UPDATE seat SET n = 3 WHERE (room, n) = ('blue', 1) RETURNING n, version;
UPDATE seat SET room = 'green' WHERE (room, n) = ('blue', 2) RETURNING n, version;
INSERT INTO seat VALUES ('blue', 1, 'Bob') RETURNING version;
COMMIT;
SELECT * FROM changed('statements.seat');
UPDATE seat SET version = 2147483646, holder = 'Zoe' WHERE (room, n) = ('red', 1) RETURNING version;
INSERT INTO seat VALUES ('red', 9, 'Max', 1073741823);
CALL seed('statements.seat');
UPDATE seat SET holder = 'last' WHERE (room, n) = ('red', 9) RETURNING version;
UPDATE seat SET holder = 'one more' WHERE (room, n) = ('red', 9);
SELECT * FROM changed('statements.seat') WHERE "row" = 'live';

--
-- smallint version: its end, and life after it
--
CREATE TABLE small (id int PRIMARY KEY, v text, version smallint NOT NULL DEFAULT 0);
INSERT INTO small VALUES (1, 'a', 32766), (2, 'b', 0);
SELECT fence.attach('small');
CALL wait_for('statements.small', '1');
CALL seed('statements.small');
UPDATE small SET v = 'last' RETURNING id, version;
CALL seed('statements.small');
UPDATE small SET v = 'one too many' WHERE id = 1;
-- no row holds the version of a tombstone
DELETE FROM small WHERE id = 1;
SELECT * FROM changed('statements.small');
INSERT INTO small VALUES (1, 'never');
CALL check_fences('statements.small');

--
-- bigint versions are exact to the last digit
--
CREATE TABLE big (id int PRIMARY KEY, v text, version bigint NOT NULL DEFAULT 0);
INSERT INTO big VALUES (1, 'a', 9007199254740991), (2, 'b', 123456789012345677), (3, 'c', 9223372036854775806);
SELECT fence.attach('big');
CALL wait_for('statements.big', '1');
CALL seed('statements.big');
BEGIN;
UPDATE big SET v = 'A' RETURNING id, version;
SELECT * FROM reserved('statements.big');
COMMIT;
SELECT * FROM changed('statements.big');
CALL seed('statements.big');
BEGIN;
UPDATE big SET v = 'B' WHERE id <= 2 RETURNING id, version;
SELECT * FROM reserved('statements.big');
COMMIT;
SELECT * FROM changed('statements.big');
UPDATE big SET v = 'never' WHERE id = 3;
DELETE FROM big WHERE id = 3;
CALL check_fences('statements.big');

--
-- Keys that look like parts of the protocol
--
CREATE TABLE hostile (a text, b text, v int, version bigint NOT NULL DEFAULT 0, PRIMARY KEY (a, b));
INSERT INTO hostile (a, b) VALUES
	('', ''), (',', ''), ('', ','), ('a,b', 'c'), ('a', 'b,c'), ('{', '}'), ('}', '{'), ('{}', '{x}'), ('%', '%00'),
	('%2C', ','), (':', ':f:'), (E'\n', E'\r\n'), (' ', '  '), ('- 1', '* $3'),
	('Ünï', '雪'), ('''', '"\'), (E'\u0001', '_%'), ('NULL', 'null');
SELECT fence.attach('hostile');
CALL wait_for('statements.hostile', '', '');
SELECT count(DISTINCT fence.fence_key('statements.hostile', a, b)),
	   count(DISTINCT fence.value_key('statements.hostile', a, b))
  FROM hostile;
CALL seed('statements.hostile');
SELECT * FROM changed('statements.hostile');
UPDATE hostile SET v = 1 WHERE (a, b) = ('a,b', 'c');
SELECT * FROM changed('statements.hostile');
UPDATE hostile SET v = 2;
SELECT count(*), min(stored), max(stored), relation, cached FROM changed('statements.hostile')
 GROUP BY relation, cached;
CALL seed('statements.hostile');
DELETE FROM hostile WHERE a = '';
SELECT * FROM changed('statements.hostile');
INSERT INTO hostile (a, b) VALUES ('', '') RETURNING version;
CALL check_fences('statements.hostile');

--
-- Attached, filled and changed in one transaction. COPY FREEZE makes rows look old: they prove nothing yet.
--
BEGIN;
CREATE TABLE young (id int PRIMARY KEY, v text, version bigint NOT NULL DEFAULT 0);
SELECT fence.attach('young');
COPY young (id, v) FROM STDIN (FREEZE);
1	a
2	b
\.
UPDATE young SET v = 'A' WHERE id = 1 RETURNING version;
DELETE FROM young WHERE id = 2;
INSERT INTO young VALUES (3, 'c');
COMMIT;
CALL wait_for('statements.young', '1');
CALL seed('statements.young');
UPDATE young SET v = 'B' RETURNING id, version;
SELECT * FROM changed('statements.young');

SET client_min_messages = warning;
DROP SCHEMA statements CASCADE;
SELECT count(*) FROM fence.domains WHERE domain LIKE 'statements.%';
