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

--
-- The table is guarded: nobody writes a row without a reservation, or with another version. The executor and triggers report rows.
--
CREATE PROCEDURE way(way text) LANGUAGE plpgsql AS $$
BEGIN
	PERFORM set_config('pgcache_fence.capture', way, false);
	IF way = 'auto' THEN
		CALL wait_until($c$(SELECT capture FROM fence.state) = 'executor'$c$);
	END IF;
END $$;
CREATE FUNCTION refused(statement text) RETURNS TABLE (state text, message text, detail text) LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE statement;
	message := 'not refused';
	RETURN NEXT;
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS state := RETURNED_SQLSTATE, message := MESSAGE_TEXT, detail := PG_EXCEPTION_DETAIL;
	RETURN NEXT;
END $$;
CREATE TABLE told (way text, executor bigint, triggers bigint);
CREATE PROCEDURE note(which text) LANGUAGE sql AS $$
	INSERT INTO told SELECT which, coalesce(sum(value) FILTER (WHERE labels->>'way' = 'executor'), 0),
			coalesce(sum(value) FILTER (WHERE labels->>'way' = 'triggers'), 0)
	  FROM fence.metrics WHERE name = 'cache_fence_changed_rows_total' AND labels->>'domain' = 'manual.doc'
$$;
UPDATE doc SET v = 'x' WHERE id = 1;
\echo :LAST_ERROR_SQLSTATE
CREATE PROCEDURE guarded() LANGUAGE plpgsql AS $$
DECLARE
	statement text;
	r record;
BEGIN
	FOREACH statement IN ARRAY ARRAY[
		'UPDATE doc SET v = $q$x$q$ WHERE id = 1',
		'DELETE FROM doc WHERE id = 1',
		'INSERT INTO doc VALUES (7, $q$x$q$)',
		-- reserved, but another version is stored
		'WITH w AS MATERIALIZED (SELECT fence.begin_write($q$manual.doc$q$, 0, 7) AS version) INSERT INTO doc SELECT 7, $q$x$q$, version + 1 FROM w',
		'WITH w AS MATERIALIZED (SELECT fence.begin_write($q$manual.doc$q$, 0, 1) AS version) UPDATE doc SET v = $q$x$q$ FROM w WHERE id = 1 AND w.version > 0',
		-- an UPDATE of the key needs reservations of both keys
		'UPDATE doc SET id = 8, version = fence.begin_write($q$manual.doc$q$, 0, 8) WHERE id = 1',
		'UPDATE doc SET id = 8, version = fence.begin_write($q$manual.doc$q$, version, id) WHERE id = 1',
		'DO $d$ BEGIN PERFORM fence.begin_write($q$manual.doc$q$, 0, 1); UPDATE doc SET id = 8, version = fence.begin_write($q$manual.doc$q$, 0, 8) WHERE id = 1; '
			'RAISE SQLSTATE $q$00001$q$; END $d$',
		-- a rollback to a savepoint has withdrawn the reservation
		'DO $d$ BEGIN BEGIN PERFORM fence.begin_write($q$manual.doc$q$, 0, 1); RAISE SQLSTATE $q$00001$q$; EXCEPTION WHEN SQLSTATE $q$00001$q$ THEN END; '
			'DELETE FROM doc WHERE id = 1; END $d$',
		'DO $d$ BEGIN PERFORM fence.begin_write($q$manual.doc$q$, 0, 1); PERFORM fence.abort_write($q$manual.doc$q$, 1); DELETE FROM doc WHERE id = 1; END $d$',
		'DO $d$ BEGIN PERFORM fence.begin_write($q$manual.doc$q$, 0, 1); DELETE FROM doc WHERE id = 1; PERFORM fence.abort_write($q$manual.doc$q$, 1); END $d$'
	] LOOP
		SELECT * INTO r FROM refused(statement);
		RAISE NOTICE '% | % | %', r.state, r.message, r.detail;
	END LOOP;
END $$;
CALL way('auto');
CALL guarded();
CALL way('triggers');
CALL guarded();
SELECT * FROM doc ORDER BY id;

-- reserved writes pass, whether the executor or triggers report them
CREATE PROCEDURE right_way(n int) LANGUAGE plpgsql AS $$
DECLARE
	w bigint;
BEGIN
	INSERT INTO doc VALUES (n, 'new', fence.begin_write('manual.doc', 0, n));
	w := fence.begin_write('manual.doc', 0, n);
	UPDATE doc SET v = 'once', version = w WHERE id = n;
	-- several writes under one reservation
	UPDATE doc SET v = 'twice' WHERE id = n;
	PERFORM fence.begin_write('manual.doc', 0, n);
	w := fence.begin_write('manual.doc', 0, n + 1);
	UPDATE doc SET id = n + 1, version = w WHERE id = n;
	DELETE FROM doc WHERE id = n + 1;
END $$;
CALL note('before');
CALL way('auto');
CALL right_way(100);
CALL note('executor');
CALL way('triggers');
CALL right_way(200);
CALL note('triggers');
SELECT way, executor - lag(executor) OVER w AS by_executor, triggers - lag(triggers) OVER w AS by_triggers
  FROM told WINDOW w AS (ORDER BY way COLLATE "C") ORDER BY way COLLATE "C";
RESET pgcache_fence.capture;

-- a migration: readers get no cached value of the domain any more
SELECT fill('manual.doc', 1, 'one', '1') = 'stored', fill('manual.doc', 0, 'two', '2') = 'stored';
SELECT fence, relation, get FROM look('manual.doc', '2');
SET pgcache_fence.unreserved_writes = 'reserve_domain';
BEGIN;
UPDATE doc SET v = 'migrated', version = version + 7 WHERE id = 1;
SELECT get FROM look('manual.doc', '2');
COMMIT;
SELECT fence.read('manual.doc', '1'), fence.read('manual.doc', '2');
-- a rollback to a savepoint withdraws the reservation of the domain, and the next row makes it again
BEGIN;
SAVEPOINT s;
UPDATE doc SET v = 'taken back' WHERE id = 1;
ROLLBACK TO s;
UPDATE doc SET v = 'again' WHERE id = 2;
COMMIT;
SELECT fence.read('manual.doc', '1'), fence.read('manual.doc', '2');
BEGIN;
SAVEPOINT s;
UPDATE doc SET v = 'taken back' WHERE id = 1;
ROLLBACK TO s;
SET LOCAL pgcache_fence.unreserved_writes = 'error';
UPDATE doc SET v = 'x' WHERE id = 1;
ROLLBACK;
-- a reserved row does not reserve the domain
UPDATE doc SET v = 'reserved', version = fence.begin_write('manual.doc', version, id) WHERE id = 1;
SELECT get, payload FROM look('manual.doc', '2');
RESET pgcache_fence.unreserved_writes;
-- neither does a row after TRUNCATE
BEGIN;
TRUNCATE doc;
INSERT INTO doc VALUES (1, 'loaded', 3);
UPDATE doc SET v = 'changed';
COMMIT;
SELECT fence.read('manual.doc', '1');

-- begin_write_strict: the observed version is the newest
SELECT fence.begin_write_strict('manual.doc', 2, 1);
\echo :LAST_ERROR_SQLSTATE
BEGIN;
SELECT fence.begin_write_strict('manual.doc', 3, 1);
-- after the reservation no other transaction can write the key
SELECT fence.begin_write_strict('manual.doc', 3, 1);
ROLLBACK;
BEGIN;
SAVEPOINT s;
SELECT fence.begin_write('manual.doc', 3, 1);
ROLLBACK TO s;
SELECT fence.begin_write_strict('manual.doc', 3, 1);
COMMIT;
-- the row's version counts, not one that begin_write gave and nobody stored
SELECT fence.begin_write_strict('manual.doc', 10, 1);
UPDATE doc SET version = fence.begin_write_strict('manual.doc', version, id);
SELECT fence.begin_write_strict('manual.doc', 3, '1');
-- a caller that has seen no row observes 0
BEGIN;
SELECT fence.begin_write('manual.doc', 0, 1);
DELETE FROM doc;
COMMIT;
SELECT fence.begin_write_strict('manual.doc', 11, 1);
INSERT INTO doc VALUES (1, 'back', fence.begin_write_strict('manual.doc', 0, 1)) RETURNING *;
-- without a version column the version that begin_write gave last counts
SELECT fence.begin_write_strict('manual.free', 0, 'strict');
SELECT fence.begin_write_strict('manual.free', 0, 'strict');
SELECT fence.begin_write_strict('manual.free', 1, 'strict');
SELECT fence.begin_write_strict('manual.free', NULL, 'strict');
BEGIN READ ONLY;
SELECT fence.begin_write_strict('manual.free', 0, 'strict');
ROLLBACK;
-- a floor is not a version of the key
BEGIN;
INSERT INTO fence.floor SELECT id, 50 FROM fence.domain WHERE name = 'manual.free'
	ON CONFLICT (domain_id) DO UPDATE SET version = 50;
SELECT fence.begin_write_strict('manual.free', 0, 'pruned');
ROLLBACK;

-- partitions are guarded, too
CREATE TABLE part (id int, place int, v text, version bigint NOT NULL DEFAULT 0, PRIMARY KEY (id, place)) PARTITION BY LIST (place);
CREATE TABLE part_1 PARTITION OF part FOR VALUES IN (1);
SELECT fence.attach('part', scope => 'manual');
CREATE TABLE part_2 PARTITION OF part FOR VALUES IN (2);
INSERT INTO part_1 VALUES (1, 1, 'x');
INSERT INTO part VALUES (1, 1, 'a', fence.begin_write('manual.part', 0, 1, 1)), (1, 2, 'a', fence.begin_write('manual.part', 0, 1, 2));
UPDATE part_2 SET v = 'x';
UPDATE part SET id = 3, place = 2 WHERE place = 1;
DROP TABLE part;

-- without a version column there is nothing to read or compare
CREATE TABLE bare (id int PRIMARY KEY, v text);
SELECT fence.attach('bare', scope => 'manual');
CALL wait_for('manual.bare', '1');
INSERT INTO bare VALUES (1, 'a');
BEGIN;
SELECT fence.begin_write('manual.bare', 0, '1');
INSERT INTO bare VALUES (1, 'a');
UPDATE bare SET v = 'b';
COMMIT;
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
