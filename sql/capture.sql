--
-- Changed rows that the executor tells of (pgcache_fence.capture = 'auto'), and those that only row triggers can tell of. Whoever told of
-- them, the same comes of it.
--
\set schema capture
\i test/lib/regress.sql
SET pgcache_fence.capture = 'auto';
-- A worker tries once what the executor does; until then triggers tell.
CALL wait_until($$(SELECT capture FROM fence.state) = 'executor'$$);

CREATE TABLE item (id int PRIMARY KEY, version bigint NOT NULL DEFAULT 0, data text, n int,
	ten bigint GENERATED ALWAYS AS (version * 10) STORED, old_style int);
ALTER TABLE item DROP COLUMN old_style;
INSERT INTO item SELECT i, 0, 'row', i FROM generate_series(1, 5) i;
CREATE TABLE part (id int NOT NULL, version int NOT NULL DEFAULT 0, k int NOT NULL, data text, PRIMARY KEY (id, k)) PARTITION BY RANGE (k);
CREATE TABLE part_1 PARTITION OF part FOR VALUES FROM (0) TO (10);
-- its columns stand in another order
CREATE TABLE part_2 (data text, k int NOT NULL, gone int, id int NOT NULL, version int NOT NULL DEFAULT 0, PRIMARY KEY (id, k));
ALTER TABLE part_2 DROP COLUMN gone;
ALTER TABLE part ATTACH PARTITION part_2 FOR VALUES FROM (10) TO (20);
INSERT INTO part VALUES (1, 0, 1, 'row'), (2, 0, 2, 'row'), (3, 0, 11, 'row');
CREATE TABLE account (id int PRIMARY KEY, data text);
INSERT INTO account VALUES (1, 'row'), (2, 'row');
CREATE TABLE member (room int, name text);
INSERT INTO member VALUES (1, 'a'), (1, 'b'), (2, 'c'), (NULL, 'd');
CREATE TABLE wide (id text PRIMARY KEY, version smallint NOT NULL DEFAULT 0, a text, b text);
ALTER TABLE wide ALTER b SET STORAGE external;
INSERT INTO wide VALUES ('long', 0, NULL, repeat('x', 9000)), ('short', 0, 'a', 'b');
SELECT fence.attach('item'), fence.attach('part'), fence.attach('account', version => NULL),
	   fence.attach('member', scope => 'group', key => '{room}'), fence.attach('wide', cache_absent => true);

CREATE FUNCTION short(text) RETURNS text LANGUAGE sql AS $$ SELECT CASE WHEN length($1) > 9 THEN length($1) || ' bytes' ELSE $1 END $$;

-- Rows and tombstones, but those that were there at first
CREATE VIEW now AS
	SELECT 'item' AS name, i::text AS what FROM item i UNION ALL
	SELECT format('part (%s)', tableoid::regclass), format('(%s,%s,%s,%s)', id, version, k, data) FROM part UNION ALL
	SELECT 'account', a::text FROM account a UNION ALL
	SELECT 'member', m::text FROM member m UNION ALL
	SELECT 'wide', format('(%s,%s,%s,%s)', id, version, short(a), short(b)) FROM wide UNION ALL
	SELECT 'version of ' || split_part(d.name, '.', 2), format('%s: %s', t.key, t.version)
	  FROM fence.tombstone t JOIN fence.domain d ON d.id = t.domain_id WHERE d.name LIKE 'capture.%';
CREATE TABLE first AS SELECT * FROM now;
CREATE FUNCTION changed() RETURNS text LANGUAGE sql AS $$
	SELECT string_agg(format('%s %s', name, what), '; ' ORDER BY name, what) FROM (SELECT * FROM now EXCEPT ALL SELECT * FROM first) x
$$;

-- How many rows were told of in which way, ever
CREATE FUNCTION told(OUT executor int, OUT triggers int) LANGUAGE sql AS $$
	SELECT coalesce(sum(value) FILTER (WHERE labels->>'way' = 'executor'), 0), coalesce(sum(value) FILTER (WHERE labels->>'way' = 'triggers'), 0)
	  FROM fence.metrics WHERE name = 'cache_fence_changed_rows_total' AND labels->>'domain' LIKE 'capture.%'
$$;

-- Executes the statement in both ways, and takes it back. One line if nothing differs but who told.
CREATE FUNCTION try(statement text) RETURNS TABLE (executor int, triggers int, outcome text) LANGUAGE plpgsql AS $$
DECLARE
	way text;
	before record;
	outcomes text[];
BEGIN
	FOREACH way IN ARRAY '{triggers,auto}'::text[] LOOP
		before := told();
		BEGIN
			PERFORM set_config('pgcache_fence.capture', way, true);
			EXECUTE statement;
			outcomes := outcomes || coalesce(changed(), 'nothing');
			RAISE SQLSTATE 'UNDO0';
		EXCEPTION
			WHEN SQLSTATE 'UNDO0' THEN NULL;
			WHEN OTHERS THEN outcomes := outcomes || format('%s %s', SQLSTATE, SQLERRM);
		END;
		SELECT t.executor - before.executor, t.triggers - before.triggers INTO executor, triggers FROM told() t;
		IF way = 'triggers' AND executor > 0 THEN
			RAISE 'the executor told though it should not';
		END IF;
	END LOOP;
	outcome := outcomes[2];
	RETURN NEXT;
	IF outcomes[1] IS DISTINCT FROM outcomes[2] THEN
		executor := NULL;
		outcome := 'TRIGGERS: ' || outcomes[1];
		RETURN NEXT;
	END IF;
END $$;

\pset format unaligned
\pset tuples_only on

-- UPDATE: its version is no more its own than with triggers
SELECT * FROM try('UPDATE item SET data = ''new'' WHERE id = 1');
SELECT * FROM try('UPDATE item SET version = 7 WHERE id <= 2');
SELECT * FROM try('UPDATE item SET data = ''never'' WHERE id = 99');
SELECT * FROM try('UPDATE item SET data = v.data FROM (VALUES (1, ''a''), (1, ''b''), (2, ''c'')) v (id, data) WHERE v.id = item.id AND v.data <> ''b''');
SELECT * FROM try('UPDATE item SET n = 7 FROM (VALUES (1), (1), (2)) v (id) WHERE v.id = item.id');
SELECT * FROM try('UPDATE item SET data = (SELECT max(version)::text FROM item), version = (SELECT 100) WHERE id = 3');
SELECT * FROM try('UPDATE item SET (data, n) = (SELECT ''both'', 9) WHERE id = 3');
SELECT * FROM try('UPDATE item SET ten = DEFAULT, version = DEFAULT WHERE id = 3');
SELECT * FROM try('UPDATE wide SET a = repeat(''y'', 5000)');
SELECT * FROM try('UPDATE account SET data = ''new'' WHERE id = 1');
SELECT * FROM try('UPDATE member SET name = upper(name)');
SELECT * FROM try('UPDATE member SET room = 3 WHERE name IN (''a'', ''d'')');
-- other keys: a tombstone, and a version above that of the new key
SELECT * FROM try('UPDATE item SET id = id + 10 WHERE id >= 4');
SELECT * FROM try('DELETE FROM item WHERE id = 1; UPDATE item SET id = 1, data = ''moved'' WHERE id = 2');
SELECT * FROM try('UPDATE item SET id = 2, version = 50 WHERE id = 1');
SELECT * FROM try('UPDATE item SET id = 12, version = 50 WHERE id = 1');
SELECT * FROM try('UPDATE item SET id = 12, version = -3 WHERE id = 1');
SELECT * FROM try('UPDATE account SET id = 5 WHERE id = 1');
SELECT * FROM try('UPDATE item SET id = NULL WHERE id = 1');
SELECT * FROM try('UPDATE wide SET id = repeat(''long'', 600) WHERE id = ''long''');

-- INSERT
SELECT * FROM try('INSERT INTO item (id) VALUES (6)');
SELECT * FROM try('INSERT INTO item (id, version) VALUES (6, 7), (7, -7), (8, NULL)');
SELECT * FROM try('INSERT INTO item SELECT i, 0, ''many'', 1 FROM generate_series(11, 13) i');
SELECT * FROM try('DELETE FROM item WHERE id = 1; INSERT INTO item (id) VALUES (1)');
SELECT * FROM try('UPDATE item SET data = ''x'' WHERE id = 1; DELETE FROM item WHERE id = 1; INSERT INTO item (id, version) VALUES (1, 9)');
SELECT * FROM try('INSERT INTO item (id) VALUES (1)');
SELECT * FROM try('INSERT INTO item (id) VALUES (NULL)');
SELECT * FROM try('INSERT INTO item (id) VALUES (1), (6) ON CONFLICT DO NOTHING');
SELECT * FROM try('INSERT INTO wide SELECT ''more'', 3, b, a FROM wide WHERE id = ''long''');
SELECT * FROM try('INSERT INTO account VALUES (3, ''new''), (4, ''new'')');
SELECT * FROM try('INSERT INTO member VALUES (1, ''new''), (NULL, ''new'')');

-- DELETE, with and without RETURNING
SELECT * FROM try('DELETE FROM item WHERE id = 1');
SELECT * FROM try('DELETE FROM item');
SELECT * FROM try('DELETE FROM item USING generate_series(1, 3) g WHERE g = n AND g > 1');
SELECT * FROM try('DELETE FROM account');
SELECT * FROM try('DELETE FROM member WHERE name IN (''a'', ''b'', ''d'')');
SELECT * FROM try('DELETE FROM wide');

-- RETURNING sees what was stored
BEGIN;
UPDATE item SET data = 'returned' WHERE id = 1 RETURNING *, item, tableoid::regclass, xmin <> '0' AS stored;
DELETE FROM item WHERE id IN (1, 2) RETURNING *, (SELECT count(*) FROM item) AS before;
INSERT INTO item (id, data) VALUES (1, 'back'), (9, 'new') RETURNING *, item;
ROLLBACK;
SELECT * FROM try($$DO 'DECLARE i int; BEGIN DELETE FROM item WHERE id IN (1, 2); GET DIAGNOSTICS i = ROW_COUNT; UPDATE item SET n = i WHERE id = 3; END'$$);
SELECT * FROM try($$DO 'DECLARE i int; BEGIN DELETE FROM item WHERE id = 2 RETURNING n INTO STRICT i; UPDATE item SET n = i + 100 WHERE id = 3; END'$$);
SELECT * FROM try($$DO 'DECLARE i int; BEGIN DELETE FROM item WHERE id IN (1, 2) RETURNING n INTO i; END'$$);

-- Several in one statement, and what the statement sees of them
SELECT * FROM try('WITH u AS (UPDATE item SET data = ''cte'' WHERE id = 1 RETURNING *), d AS (DELETE FROM item WHERE id = 2),
	i AS (INSERT INTO item (id) SELECT id + 10 FROM u) UPDATE account SET data = (SELECT version FROM u)::text || (SELECT count(*) FROM item) WHERE id = 1');
SELECT * FROM try('WITH u AS (UPDATE item SET data = ''cte'' WHERE id = 1), c AS (INSERT INTO item (id) VALUES (2) ON CONFLICT (id) DO UPDATE SET data = ''upsert'')
	DELETE FROM item WHERE id = 3');
SELECT * FROM try('CREATE TEMP TABLE made AS WITH d AS (DELETE FROM item WHERE id < 3 RETURNING *) SELECT * FROM d');
SELECT * FROM try('COPY (UPDATE item SET n = 0 WHERE id < 3 RETURNING id) TO ''/dev/null''');

-- Views, with check option; rules; cursors; plans that are kept; SQL functions
CREATE VIEW open AS SELECT id, data, version, n FROM item WHERE n < 4 WITH CHECK OPTION;
SELECT * FROM try('UPDATE open SET data = ''view'' WHERE id <> 2');
SELECT * FROM try('UPDATE open SET n = 5 WHERE id = 1');
SELECT * FROM try('INSERT INTO open VALUES (20, ''view'', 0, 0)');
SELECT * FROM try('INSERT INTO open VALUES (20, ''view'', 0, 4)');
SELECT * FROM try('DELETE FROM open');
CREATE TABLE log (entry text);
CREATE RULE noted AS ON UPDATE TO open DO ALSO INSERT INTO log VALUES (NEW.data);
SELECT * FROM try('UPDATE open SET data = ''rule'' WHERE id = 1; INSERT INTO item (id, data) SELECT 50, entry FROM log');
DROP VIEW open;
SELECT * FROM try($$DO 'DECLARE c CURSOR FOR SELECT * FROM item WHERE id IN (2, 3) FOR UPDATE; BEGIN FOR r IN c LOOP
	IF r.id = 2 THEN UPDATE item SET data = ''cursor'' WHERE CURRENT OF c; ELSE DELETE FROM item WHERE CURRENT OF c; END IF; END LOOP; END'$$);
CREATE FUNCTION add(int) RETURNS SETOF item LANGUAGE sql AS 'UPDATE item SET n = n + $1 RETURNING *';
SELECT * FROM try('INSERT INTO account SELECT version + 100, n::text FROM add(5) LIMIT 1');
PREPARE one(int) AS UPDATE item SET n = 0 WHERE id = $1;
SET plan_cache_mode = force_generic_plan;
SELECT * FROM try('EXECUTE one(1); EXECUTE one(1); EXECUTE one(2)');
-- a plan from before the table is fenced, and after
SELECT fence.detach('item');
SELECT * FROM try('EXECUTE one(1)');
SELECT fence.attach('item');
SELECT * FROM try('EXECUTE one(1)');
RESET plan_cache_mode;
SET jit_above_cost = 0;
SELECT * FROM try('UPDATE item SET data = data || ''!'', n = n + 1 WHERE id < 3; DELETE FROM item WHERE id = 1');
RESET jit_above_cost;
SELECT * FROM try('EXPLAIN UPDATE item SET n = 0');
SELECT * FROM try('EXPLAIN ANALYZE UPDATE item SET n = 0');
SELECT * FROM try('EXPLAIN ANALYZE DELETE FROM item');

-- Partitions; rows that move, and rows that are routed, are for triggers
SELECT * FROM try('UPDATE part SET data = ''new''');
SELECT * FROM try('DELETE FROM part WHERE id <> 2');
SELECT * FROM try('UPDATE part SET id = id + 10');
SELECT * FROM try('UPDATE part SET k = k + 9');
SELECT * FROM try('UPDATE part_1 SET k = 3 WHERE id = 1');
SELECT * FROM try('INSERT INTO part VALUES (4, 0, 4), (5, 0, 15)');
SELECT * FROM try('INSERT INTO part_2 (id, k) VALUES (5, 15)');
SELECT * FROM try('INSERT INTO part_1 VALUES (5, 0, 15)');
SET enable_partition_pruning = off;
SELECT * FROM try('UPDATE part SET data = ''new'' WHERE k = 11');
RESET enable_partition_pruning;

-- ON CONFLICT DO UPDATE: rows that are new, changed, left alone; a key and a version that change; RETURNING; a row that is met twice
SELECT * FROM try('INSERT INTO item (id) VALUES (1), (6) ON CONFLICT (id) DO UPDATE SET data = ''upsert''');
SELECT * FROM try('INSERT INTO item (id, data) VALUES (1, ''a''), (7, ''b''), (2, ''c'') ON CONFLICT (id) DO UPDATE SET data = excluded.data WHERE item.id = 2');
SELECT * FROM try('WITH i AS (INSERT INTO item (id, version) VALUES (1, 9000), (8, 9000) ON CONFLICT (id) DO UPDATE SET version = excluded.version
	RETURNING id, version, data) INSERT INTO item (id, data) SELECT id + 50, format(''%s %s'', version, data) FROM i');
SELECT * FROM try('INSERT INTO item (id) VALUES (1), (2) ON CONFLICT (id) DO UPDATE SET id = item.id + 100');
SELECT * FROM try('INSERT INTO item (id) VALUES (9), (9) ON CONFLICT (id) DO UPDATE SET data = ''twice''');
SELECT * FROM try('DELETE FROM item WHERE id = 1; INSERT INTO item (id) VALUES (1), (2) ON CONFLICT (id) DO UPDATE SET data = excluded.version::text');
SELECT * FROM try('WITH u AS (UPDATE item SET data = ''first'' WHERE id = 1 RETURNING data) INSERT INTO item (id) VALUES (1), (6)
	ON CONFLICT (id) DO UPDATE SET data = (SELECT data FROM u)');
SELECT * FROM try('INSERT INTO account VALUES (1, ''a''), (3, ''c'') ON CONFLICT (id) DO UPDATE SET data = excluded.data');
SELECT * FROM try('INSERT INTO part_1 VALUES (1, 0, 1, ''a''), (4, 0, 4, ''b'') ON CONFLICT (id, k) DO UPDATE SET data = excluded.data');
SELECT * FROM try('INSERT INTO part VALUES (1, 0, 1, ''a''), (4, 0, 4, ''b'') ON CONFLICT (id, k) DO UPDATE SET data = excluded.data');
SELECT * FROM try('INSERT INTO wide VALUES (''short'', 7, ''u''), (''new'', 7, ''n'') ON CONFLICT (id) DO UPDATE SET a = excluded.a');

-- What only triggers can tell of
SELECT * FROM try('MERGE INTO item USING generate_series(4, 6) s ON s = id WHEN MATCHED AND s = 4 THEN DELETE WHEN MATCHED THEN UPDATE SET data = ''merged''
	WHEN NOT MATCHED THEN INSERT (id) VALUES (s)');
BEGIN;
SELECT * INTO TEMP before FROM told();
COPY item (id, data) FROM stdin;
7	copied
8	copied
\.
SELECT now.executor - before.executor, now.triggers - before.triggers FROM told() now, before;
ROLLBACK;

-- Other triggers. Those before the row change what is stored, and must come before us; the others do not matter
CREATE FUNCTION meddle() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF TG_OP = 'DELETE' THEN RETURN OLD; END IF;
	NEW.data := format('%s old %s new %s', TG_OP, CASE TG_OP WHEN 'UPDATE' THEN OLD.version END, NEW.version);
	RETURN NEW;
END $$;
CREATE TRIGGER meddle BEFORE UPDATE ON item FOR EACH ROW EXECUTE FUNCTION meddle();
SELECT * FROM try('UPDATE item SET n = 0 WHERE id = 1; INSERT INTO item (id) VALUES (6); DELETE FROM item WHERE id = 2');
ALTER TABLE item DISABLE TRIGGER meddle;
SELECT * FROM try('UPDATE item SET n = 0 WHERE id = 1');
ALTER TABLE item ENABLE REPLICA TRIGGER meddle;
SELECT * FROM try('UPDATE item SET n = 0 WHERE id = 1');
SET session_replication_role = replica;
SELECT * FROM try('UPDATE item SET n = 0 WHERE id = 1; INSERT INTO item (id) VALUES (6); DELETE FROM item WHERE id = 2');
RESET session_replication_role;
DROP TRIGGER meddle ON item;
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF TG_OP <> 'INSERT' THEN INSERT INTO member VALUES (8, format('%s old %s', TG_OP, OLD.version)); END IF;
	IF TG_OP <> 'DELETE' THEN INSERT INTO member VALUES (9, format('%s new %s', TG_OP, NEW.version)); END IF;
	IF TG_OP = 'UPDATE' AND NEW.n = 1000 THEN UPDATE item SET n = 2000 WHERE id = NEW.id; END IF;
	RETURN NULL;
END $$;
CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON item FOR EACH ROW EXECUTE FUNCTION note();
SELECT * FROM try('UPDATE item SET n = 0 WHERE id = 1; INSERT INTO item (id) VALUES (6); DELETE FROM item WHERE id = 2');
-- it changes the row again
SELECT * FROM try('UPDATE item SET n = 1000 WHERE id = 1');
DROP TRIGGER note ON item;
CREATE FUNCTION tables() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO member SELECT 7, string_agg(o.version || ' to ' || n.version, ', ') FROM o JOIN n USING (id);
	RETURN NULL;
END $$;
CREATE TRIGGER tables AFTER UPDATE ON item REFERENCING OLD TABLE AS o NEW TABLE AS n FOR EACH STATEMENT EXECUTE FUNCTION tables();
SELECT * FROM try('UPDATE item SET n = 0 WHERE id = 1');
DROP TRIGGER tables ON item;

-- Foreign keys
CREATE TABLE parent (id int PRIMARY KEY);
INSERT INTO parent VALUES (1), (2), (3), (4), (5);
ALTER TABLE item ADD FOREIGN KEY (n) REFERENCES parent ON UPDATE CASCADE ON DELETE SET NULL, ADD up int REFERENCES item ON DELETE CASCADE ON UPDATE CASCADE;
UPDATE item SET up = id - 1 WHERE id > 1;
TRUNCATE first;
INSERT INTO first SELECT * FROM now;
SELECT * FROM try('UPDATE parent SET id = 10 WHERE id = 1; DELETE FROM parent WHERE id = 2');
SELECT * FROM try('UPDATE item SET id = 30 WHERE id = 3');
SELECT * FROM try('DELETE FROM item WHERE id = 3');
SELECT * FROM try('UPDATE item SET n = 99 WHERE id = 3');
ALTER TABLE item DROP CONSTRAINT item_n_fkey, DROP up;
TRUNCATE first;
INSERT INTO first SELECT * FROM now;

-- A table that has a fenced child
CREATE TABLE base (id int, version bigint NOT NULL DEFAULT 0, data text);
CREATE TABLE child (extra int, PRIMARY KEY (id)) INHERITS (base);
INSERT INTO base VALUES (1, 0, 'base');
INSERT INTO child VALUES (2, 0, 'child', 7);
SELECT fence.attach('child');
BEGIN;
UPDATE base SET data = 'both' RETURNING tableoid::regclass, *;
DELETE FROM base;
SELECT key, version FROM fence.tombstone WHERE domain_id = (SELECT id FROM fence.domain WHERE name = 'capture.child');
ROLLBACK;
DROP TABLE base CASCADE;

-- Row-level security, and privileges on columns: none is needed for the version
CREATE ROLE capture_user;
GRANT USAGE ON SCHEMA capture TO capture_user;
GRANT SELECT, DELETE ON item TO capture_user;
GRANT UPDATE (data, n), INSERT (id, data, n) ON item TO capture_user;
ALTER TABLE item ENABLE ROW LEVEL SECURITY;
CREATE POLICY seen ON item USING (n < 3) WITH CHECK (n < 3 AND version < 3);
CREATE FUNCTION try_as_user(statement text) RETURNS SETOF text LANGUAGE plpgsql AS $$
BEGIN
	RETURN QUERY SELECT x.executor || '|' || x.triggers || '|' || x.outcome
	  FROM try('SET LOCAL ROLE capture_user; ' || statement || '; SET LOCAL ROLE NONE') x;
END $$;
SELECT * FROM try_as_user('UPDATE item SET data = ''seen'' WHERE version < 9');
SELECT * FROM try_as_user('UPDATE item SET data = ''too often''; UPDATE item SET data = ''too often''');
SELECT * FROM try_as_user('UPDATE item SET n = 3');
SELECT * FROM try_as_user('INSERT INTO item (id, n) VALUES (6, 1)');
SELECT * FROM try_as_user('INSERT INTO item (id, n) VALUES (6, 3)');
SELECT * FROM try_as_user('DELETE FROM item');
SELECT * FROM try_as_user('UPDATE item SET version = 1');
REVOKE ALL ON item FROM capture_user;
REVOKE USAGE ON SCHEMA capture FROM capture_user;
-- only superusers may choose
SET ROLE capture_user;
SET pgcache_fence.capture = 'triggers';
RESET ROLE;
DROP ROLE capture_user;
ALTER TABLE item DISABLE ROW LEVEL SECURITY;

-- Versions at their end
INSERT INTO wide VALUES ('end', 16383), ('end', 32767) ON CONFLICT DO NOTHING;
SELECT * FROM try('UPDATE wide SET version = 32767 WHERE id = ''end''');
SELECT fence.detach('wide');
UPDATE wide SET version = 32767 WHERE id = 'end';
SELECT fence.attach('wide');
SELECT * FROM try('UPDATE wide SET a = ''x'' WHERE id = ''end''');
SELECT * FROM try('DELETE FROM wide WHERE id = ''end''; INSERT INTO wide VALUES (''end'')');

-- Past bulk_threshold
SET pgcache_fence.bulk_threshold = 2;
SELECT * FROM try('UPDATE item SET data = ''bulk''');
SELECT * FROM try('DELETE FROM item');
SELECT * FROM try('UPDATE item SET id = id + 100');
-- a key that comes back in the statement in which it loses its row
SELECT * FROM try('UPDATE item SET id = id - 1');
SELECT * FROM try('WITH gone AS (DELETE FROM item RETURNING id) INSERT INTO item (id) SELECT id FROM gone');
-- the same where the statement passes bulk_threshold between the two rows
CREATE TABLE crowded (id int PRIMARY KEY, version bigint NOT NULL DEFAULT 0);
INSERT INTO crowded VALUES (4), (3);
SELECT fence.attach('crowded', cache_absent => true);
SET pgcache_fence.bulk_threshold = 3;
SELECT * FROM try('UPDATE crowded SET id = id + 1');
RESET pgcache_fence.bulk_threshold;

-- Rows stay where indexes need not hear of them
CREATE TABLE hot (id int PRIMARY KEY, version bigint NOT NULL DEFAULT 0, data text) WITH (fillfactor = 40, autovacuum_enabled = off);
INSERT INTO hot SELECT i FROM generate_series(1, 50) i;
SELECT fence.attach('hot');
UPDATE hot SET data = 'new';
SELECT pg_stat_force_next_flush();
SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'hot' AND schemaname = 'capture';

SET client_min_messages = warning;
DROP SCHEMA capture CASCADE;
