--
-- Explicit reservations: begin_write and abort_write, in domains with a table and without.
--
\set schema manual
\i test/lib/regress.sql

-- What get and status say, without what differs from run to run.
CREATE FUNCTION look(domain text, VARIADIC key text[])
	RETURNS TABLE (fence bigint, "row" bigint, relation text, pending int, get text, permit boolean, payload text) LANGUAGE sql AS $$
	SELECT s.fence_version, s.row_version, s.relation, s.pending, g.status,
		   g.permit <> '', g.payload
	  FROM fence.get(domain, VARIADIC key) g CROSS JOIN fence.status(domain, VARIADIC key) s
$$;

-- A reader's part: asks, and stores what he read elsewhere.
CREATE FUNCTION fill(domain text, version bigint, value text, VARIADIC key text[]) RETURNS text LANGUAGE sql AS $$
	SELECT fence.put(domain, g.permit, fill.version, fill.value, NULL, VARIADIC key) FROM fence.get(domain, VARIADIC key) g
$$;

--
-- Without a table: the versions are the caller's
--
SELECT fence.attach(NULL, scope => 'manual', domain => 'manual.free');
CALL wait_for('manual.free', 'a');
SELECT fence.begin_write('manual.free', 0, 'a');
SELECT * FROM look('manual.free', 'a');
SELECT fill('manual.free', 1, 'one', 'a');
SELECT * FROM look('manual.free', 'a');

-- readers are told while the write is under way; a commit ends what was cached
BEGIN;
SELECT fence.begin_write('manual.free', 1, 'a');
SELECT * FROM look('manual.free', 'a');
SELECT fence.put('manual.free', 'any', 2, 'two', NULL, 'a');
COMMIT;
SELECT * FROM look('manual.free', 'a');
SELECT fill('manual.free', 2, 'two', 'a');

-- a rollback leaves the key cold
BEGIN;
SELECT fence.begin_write('manual.free', 2, 'a');
ROLLBACK;
SELECT * FROM look('manual.free', 'a');

-- observed too low: the version is above the last one given; again: above that; larger: counts
BEGIN;
SELECT fence.begin_write('manual.free', 0, 'a');
SELECT fence.begin_write('manual.free', 0, 'a');
SELECT fence.begin_write('manual.free', 0, 'a');
SELECT fence.begin_write('manual.free', 41, 'a');
COMMIT;
SELECT * FROM look('manual.free', 'a');
-- a larger one that is not committed raises nothing
SELECT fill('manual.free', 42, 'forty-two', 'a');
BEGIN;
SELECT fence.begin_write('manual.free', 1000, 'a');
ROLLBACK;
SELECT * FROM look('manual.free', 'a');

-- abort_write
BEGIN;
SELECT fence.begin_write('manual.free', 42, 'a');
SELECT fence.begin_write('manual.free', 0, 'b');
SELECT fence.abort_write('manual.free', 'a');
COMMIT;
SELECT * FROM look('manual.free', 'a');
SELECT count(*) FROM fence.pending WHERE domain = 'manual.free';
BEGIN;
SELECT fence.begin_write('manual.free', 42, 'a');
SELECT fence.abort_write('manual.free', 'a');
SELECT fence.begin_write('manual.free', 42, 'a');
COMMIT;
SELECT fence, get FROM look('manual.free', 'a');
SELECT fence.abort_write('manual.free', 'a');
BEGIN;
SELECT fence.begin_write('manual.free', 44, 'a');
SELECT fence.abort_write('manual.free', 'a');
SELECT fence.abort_write('manual.free', 'a');
ROLLBACK;

-- savepoints
SELECT fill('manual.free', 45, 'forty-five', 'a');
BEGIN;
SAVEPOINT s;
SELECT fence.begin_write('manual.free', 44, 'a');
ROLLBACK TO s;
COMMIT;
SELECT fence, pending, get, payload FROM look('manual.free', 'a');
BEGIN;
SELECT fence.begin_write('manual.free', 44, 'a');
SAVEPOINT s;
SELECT fence.begin_write('manual.free', 45, 'a');
ROLLBACK TO s;
COMMIT;
SELECT fence, pending, get FROM look('manual.free', 'a');
BEGIN;
SELECT fence.begin_write('manual.free', 45, 'a');
SAVEPOINT s;
SELECT fence.abort_write('manual.free', 'a');
ROLLBACK TO s;
COMMIT;
SELECT fence, pending, get FROM look('manual.free', 'a');
BEGIN;
SELECT fence.begin_write('manual.free', 46, 'a');
SAVEPOINT s;
SELECT fence.abort_write('manual.free', 'a');
RELEASE s;
COMMIT;
SELECT fence, pending, get FROM look('manual.free', 'a');

-- any number of key parts, all of them text
SELECT fence.begin_write('manual.free', 0, 'a', 'b', '{:%}');
SELECT fill('manual.free', 1, 'three', 'a', 'b', '{:%}');
SELECT fence, get, payload FROM look('manual.free', 'a', 'b', '{:%}');
SELECT fence, get FROM look('manual.free', 'a', 'b,{:%}');
SELECT fence.begin_write('manual.free', 0, VARIADIC '{}'::text[]);

-- exact to the last digit; beyond half of what a bigint holds only one by one
SELECT fence.begin_write('manual.free', 9007199254740992, 'big');
SELECT fill('manual.free', 9007199254740993, 'big', 'big');
SELECT fence.begin_write('manual.free', 0, 'big');
SELECT fence, get FROM look('manual.free', 'big');
SELECT fence.begin_write('manual.free', 4611686018427387903, 'big');
SELECT fence.begin_write('manual.free', 4611686018427387904, 'big');
SELECT fence.begin_write('manual.free', 4611686018427387907, 'big');
SELECT fence.begin_write('manual.free', 9223372036854775807, 'big');
SELECT fence.begin_write('manual.free', 0, 'big');
SELECT fence, pending FROM look('manual.free', 'big');

-- what does not work
SELECT fence.begin_write('manual.free', -1, 'a');
SELECT fence.begin_write('manual.free', 0, NULL);
SELECT fence.begin_write(NULL, 0, 'a');
SELECT fence.abort_write(NULL, 'a') IS NULL;
SELECT fence.read('manual.free', 'a');
BEGIN READ ONLY;
SELECT fence.begin_write('manual.free', 0, 'a');
ROLLBACK;
SELECT * FROM fence.audit('manual.free') WHERE count > 0;
SELECT fence.repair('manual.free', 'a');
SELECT fence FROM look('manual.free', 'a');

--
-- With a table: rows are written by the application with the version that it was given
--
CREATE TABLE doc (id int PRIMARY KEY, v text, version bigint NOT NULL DEFAULT 0);
INSERT INTO doc VALUES (1, 'a'), (2, 'b');
SELECT fence.attach('doc', scope => 'manual');
CALL wait_for('manual.doc', '1');
SELECT fence.read('manual.doc', '1');
SELECT * FROM look('manual.doc', '1');
BEGIN;
UPDATE doc SET v = 'A', version = fence.begin_write('manual.doc', version, id::text) WHERE id = 1 RETURNING *;
SELECT fence.read('manual.doc', '1');
SELECT get FROM look('manual.doc', '1');
COMMIT;
SELECT * FROM look('manual.doc', '1');
SELECT fence.read('manual.doc', '1');
SELECT * FROM look('manual.doc', '1');
SELECT * FROM fence.audit('manual.doc') WHERE count > 0;
SELECT count(*) FROM fence.pending WHERE domain IN ('manual.doc', 'manual.free');
-- a table's key has types
SELECT fence.begin_write('manual.doc', 0, 'one');
SELECT fence.begin_write('manual.doc', 0, '1', '2');
-- reserved as a whole, like in any fenced table
TRUNCATE doc;

-- without a version column there is nothing to read or compare
CREATE TABLE bare (id int PRIMARY KEY, v text);
SELECT fence.attach('bare', scope => 'manual');
CALL wait_for('manual.bare', '1');
INSERT INTO bare VALUES (1, 'a');
SELECT fence.begin_write('manual.bare', 0, '1');
SELECT fence.read('manual.bare', '1');
SELECT fill('manual.bare', 1, 'one', '1');
SELECT fence.repair('manual.bare', '1');
SELECT * FROM fence.audit('manual.bare') WHERE count > 0;
SELECT * FROM look('manual.bare', '1');

--
-- Triggers do it themselves
--
CREATE TABLE fenced (id int PRIMARY KEY, v text, version bigint NOT NULL DEFAULT 0);
SELECT fence.attach('fenced');
SELECT fence.begin_write('manual.fenced', 0, '1');
SELECT fence.abort_write('manual.fenced', '1');

SELECT domain, relation, key, version, scope FROM fence.domains WHERE domain LIKE 'manual.%' ORDER BY domain COLLATE "C";

SET client_min_messages = warning;
DROP SCHEMA manual CASCADE;
SELECT domain FROM fence.domains WHERE domain LIKE 'manual.%';
