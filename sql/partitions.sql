--
-- Partitioned tables: the root is the domain.
--
\set schema parts
\i test/lib/regress.sql

-- range, with a partition whose columns stand in another order, and hash below a range
CREATE TABLE m (day date, city int, peak int, version int NOT NULL DEFAULT 0, PRIMARY KEY (city, day)) PARTITION BY RANGE (day);
CREATE TABLE m1 PARTITION OF m FOR VALUES FROM ('2026-01-01') TO ('2026-02-01');
CREATE TABLE m2 (peak int, gone text, version int NOT NULL DEFAULT 0, city int NOT NULL, day date NOT NULL);
ALTER TABLE m2 DROP gone;
ALTER TABLE m ATTACH PARTITION m2 FOR VALUES FROM ('2026-02-01') TO ('2026-03-01');
CREATE TABLE m3 PARTITION OF m FOR VALUES FROM ('2026-03-01') TO ('2026-04-01') PARTITION BY HASH (city);
CREATE TABLE m3a PARTITION OF m3 FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE m3b PARTITION OF m3 FOR VALUES WITH (MODULUS 2, REMAINDER 1);
INSERT INTO m SELECT '2026-01-15'::date + 30 * (i % 3), i, 10 * i FROM generate_series(1, 9) i;
SELECT fence.attach('m');
CALL wait_for('parts.m', '1', '2026-02-14');
SELECT tgrelid::regclass, count(*), bool_and(tgenabled = 'A') FROM pg_trigger WHERE tgname LIKE 'zzz_pgcache_fence%' AND tgrelid::regclass::text LIKE 'm%'
 GROUP BY 1 ORDER BY tgrelid::regclass::text;

CREATE PROCEDURE seed() LANGUAGE sql AS $$ SELECT fence.read('parts.m', city::text, day::text) FROM m $$;
-- Every row of before or now: rows, hits, and hits that are not what the table holds.
CREATE TABLE keys AS SELECT city, day FROM m;
CREATE FUNCTION look() RETURNS TABLE (rows bigint, hits bigint, stale bigint) LANGUAGE sql AS $$
	SELECT count(*), count(*) FILTER (WHERE g.status = 'hit'),
		   count(*) FILTER (WHERE g.status = 'hit' AND g.payload::jsonb IS DISTINCT FROM to_jsonb(t))
	  FROM (SELECT city, day FROM m UNION SELECT city, day FROM keys) k
	 CROSS JOIN LATERAL fence.get('parts.m', k.city::text, k.day::text) g LEFT JOIN m t USING (city, day)
$$;
CREATE FUNCTION anomalies() RETURNS SETOF record LANGUAGE sql AS $$
	SELECT relation, count FROM fence.audit('parts.m')
	 WHERE relation IN ('fence_behind_db', 'fence_ahead_db', 'payload_differs', 'pending') AND count > 0
$$;

-- through the root and directly
CALL seed();
SELECT * FROM look();
UPDATE m SET peak = peak + 1 WHERE city = 1;
UPDATE m2 SET peak = peak + 1 WHERE city = 4;
UPDATE m3b SET peak = peak + 1;
SELECT city, day, peak, version FROM m WHERE version > 0 ORDER BY 1;
SELECT * FROM look();
SELECT * FROM anomalies() AS (relation text, count bigint);

-- a row moves to another partition: its key changes with it
CALL seed();
UPDATE m SET day = day + 30 WHERE city IN (3, 4);
SELECT city, tableoid::regclass, version FROM m WHERE city IN (3, 4) ORDER BY 1;
SELECT * FROM look();
SELECT * FROM anomalies() AS (relation text, count bigint);
UPDATE m SET day = day - 30 WHERE city IN (3, 4);
SELECT city, tableoid::regclass, version FROM m WHERE city IN (3, 4) ORDER BY 1;
CALL seed();
SELECT * FROM look();
SELECT * FROM anomalies() AS (relation text, count bigint);

-- partitions go and come with their rows, fenced from the first moment to the last
ALTER TABLE m DETACH PARTITION m2;
SELECT * FROM look();
UPDATE m2 SET peak = -1;
CALL seed();
ALTER TABLE m ATTACH PARTITION m2 FOR VALUES FROM ('2026-02-01') TO ('2026-03-01');
SELECT * FROM look();
CALL seed();
UPDATE m2 SET peak = -2;
SELECT * FROM look();
SELECT * FROM anomalies() AS (relation text, count bigint);
CALL seed();
TRUNCATE m2;
SELECT * FROM look();
CALL seed();
ALTER TABLE m3a ALTER peak SET DEFAULT 5;
SELECT * FROM look();
CALL seed();
DROP TABLE m1;
SELECT * FROM look();
CREATE TABLE m1 PARTITION OF m FOR VALUES FROM ('2026-01-01') TO ('2026-02-01');
INSERT INTO m VALUES ('2026-01-15', 3, 7);
CALL seed();
SELECT * FROM look();
SELECT * FROM anomalies() AS (relation text, count bigint);

-- their copies of our triggers are copies
CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
CREATE OR REPLACE TRIGGER zzz_pgcache_fence_after AFTER UPDATE ON m3a FOR EACH ROW WHEN (false) EXECUTE FUNCTION fence.after_row();
CREATE TRIGGER zzz_pgcache_fence_truncate BEFORE TRUNCATE ON m3a FOR EACH STATEMENT EXECUTE FUNCTION nothing();
CREATE TRIGGER zzz_pgcache_fence_x AFTER UPDATE ON m3a FOR EACH ROW EXECUTE FUNCTION fence.after_row();
CREATE OR REPLACE TRIGGER zzz_pgcache_fence_after AFTER UPDATE ON m FOR EACH ROW WHEN (false) EXECUTE FUNCTION fence.after_row();
ALTER TABLE ONLY m DISABLE TRIGGER zzz_pgcache_fence_after;
ALTER TABLE m3 ENABLE TRIGGER zzz_pgcache_fence_after;
ALTER TRIGGER zzz_pgcache_fence_after ON m3a RENAME TO mine;
-- a table that brings a trigger of that name with it
CREATE TABLE m4 (LIKE m INCLUDING ALL);
CREATE TRIGGER zzz_pgcache_fence_after AFTER UPDATE ON m4 FOR EACH ROW WHEN (false) EXECUTE FUNCTION nothing();
ALTER TABLE m ATTACH PARTITION m4 FOR VALUES FROM ('2026-04-01') TO ('2026-05-01');
DROP TRIGGER zzz_pgcache_fence_after ON m4;
-- partitions that are elsewhere, or vanish, and children: the fencing ends
ALTER TABLE m4 SET UNLOGGED;
BEGIN;
ALTER TABLE m ATTACH PARTITION m4 FOR VALUES FROM ('2026-04-01') TO ('2026-05-01');
ROLLBACK;
BEGIN;
ALTER TABLE m3a SET UNLOGGED;
ROLLBACK;
BEGIN;
CREATE UNLOGGED TABLE m5 PARTITION OF m FOR VALUES FROM ('2026-04-01') TO ('2026-05-01');
ROLLBACK;
CREATE FOREIGN DATA WRAPPER parts_wrapper;
CREATE SERVER parts_server FOREIGN DATA WRAPPER parts_wrapper;
CREATE TABLE g (id int, room int) PARTITION BY LIST (id);
CREATE TABLE g1 PARTITION OF g FOR VALUES IN (1);
SELECT fence.attach('g', scope => 'group', key => '{room}');
BEGIN;
CREATE FOREIGN TABLE gf PARTITION OF g FOR VALUES IN (2) SERVER parts_server;
ROLLBACK;
CREATE FOREIGN TABLE gf (id int, room int) SERVER parts_server;
BEGIN;
ALTER TABLE g ATTACH PARTITION gf FOR VALUES IN (2);
ROLLBACK;
CREATE TABLE gp (id int, room int) PARTITION BY LIST (id);
CREATE FOREIGN TABLE gp1 PARTITION OF gp FOR VALUES IN (2) SERVER parts_server;
BEGIN;
ALTER TABLE g ATTACH PARTITION gp FOR VALUES IN (2);
ROLLBACK;
CREATE TABLE h (id int PRIMARY KEY, version bigint);
SELECT fence.attach('h');
BEGIN;
CREATE FOREIGN TABLE hf () INHERITS (h) SERVER parts_server;
ROLLBACK;
CREATE FOREIGN TABLE hf (id int NOT NULL, version bigint) SERVER parts_server;
BEGIN;
ALTER FOREIGN TABLE hf INHERIT h;
ROLLBACK;
BEGIN;
CREATE TEMP TABLE ht () INHERITS (h);
ROLLBACK;
BEGIN;
CREATE UNLOGGED TABLE hu () INHERITS (h);
ROLLBACK;
-- none of these has changed anything
CALL seed();
SELECT * FROM look();
UPDATE m SET peak = peak + 1;
SELECT * FROM look();
-- a copy that somebody edited in the catalogue: nothing of the domain is read, or written in that partition
BEGIN;
SET LOCAL allow_system_table_mods = on;
UPDATE pg_trigger SET tgenabled = 'D' WHERE tgrelid = 'm3a'::regclass AND tgname = 'zzz_pgcache_fence_after';
UPDATE pg_class SET relpages = relpages WHERE oid IN ('m'::regclass, 'm3a'::regclass, 'm3b'::regclass);
SAVEPOINT s;
SELECT fence.get('parts.m', '2', '2026-03-16');
ROLLBACK TO s;
UPDATE m3a SET peak = -7;
ROLLBACK TO s;
UPDATE m3b SET peak = -7;
SELECT finding FROM fence.doctor() WHERE finding ~ 'parts.m';
ROLLBACK;
DROP FOREIGN DATA WRAPPER parts_wrapper CASCADE;

-- a column that gets another name, and one that must stay
ALTER TABLE m RENAME city TO town;
SELECT key FROM fence.domains WHERE domain = 'parts.m';
UPDATE m SET peak = 8 WHERE town = 3;
SELECT fence.read('parts.m', '3', '2026-01-15');
ALTER TABLE m DROP town;

-- what cannot be
ALTER TABLE m DETACH PARTITION m2 CONCURRENTLY;
SELECT fence.attach('m1');
ALTER TABLE m3a DISABLE TRIGGER ALL;
DROP TRIGGER zzz_pgcache_fence_after ON m3a;
CREATE TABLE u (id int PRIMARY KEY, version int) PARTITION BY LIST (id);
CREATE UNLOGGED TABLE u1 PARTITION OF u FOR VALUES IN (1);
SELECT fence.attach('u');

SELECT fence.detach('m');
SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'zzz_pgcache_fence%' AND tgrelid::regclass::text ~ '^m[0-9]?[ab]?$';
SELECT count(*) FROM fence.pending WHERE domain LIKE 'parts.%';
SET client_min_messages = warning;
DROP SCHEMA parts CASCADE;
