--
-- Many rows in one transaction: past bulk_threshold the domain is reserved as a whole.
--
\set schema bulk
\i test/lib/regress.sql

CREATE TABLE many (id int PRIMARY KEY, v text, version bigint NOT NULL DEFAULT 0);
INSERT INTO many SELECT i, 'row ' || i FROM generate_series(1, 60) i;
SELECT fence.attach('many');
CALL wait_for('bulk.many', '1');
SET pgcache_fence.bulk_threshold = 10;

CREATE PROCEDURE seed() LANGUAGE sql AS $$ SELECT fence.read('bulk.many', id::text) FROM many $$;

-- How many rows are hits, and how many of these are not what the table holds.
CREATE FUNCTION look() RETURNS TABLE (rows bigint, hits bigint, stale bigint) LANGUAGE sql AS $$
	SELECT count(*), count(*) FILTER (WHERE g.status = 'hit'),
		   count(*) FILTER (WHERE g.status = 'hit' AND g.payload::jsonb IS DISTINCT FROM to_jsonb(t))
	  FROM generate_series(1, 60) k CROSS JOIN LATERAL fence.get('bulk.many', k::text) g LEFT JOIN many t ON t.id = k
$$;
CREATE FUNCTION anomalies() RETURNS SETOF record LANGUAGE sql AS $$
	SELECT relation, count FROM fence.audit('bulk.many')
	 WHERE relation IN ('fence_behind_db', 'fence_ahead_db', 'payload_differs', 'pending') AND count > 0
$$;
-- What this session has reserved. The answer of status comes after all reservations on the same connection.
CREATE FUNCTION reserved() RETURNS TABLE (kind text, count bigint) LANGUAGE plpgsql AS $$
BEGIN
	PERFORM fence.status('bulk.many', '1');
	RETURN QUERY SELECT p.kind, coalesce(sum(p.fences), count(*)) FROM fence.pending p
				  WHERE p.domain = 'bulk.many' AND p.pid = pg_backend_pid() GROUP BY 1 ORDER BY 1;
END $$;

-- up to the threshold: row by row, the others stay warm
CALL seed();
BEGIN;
UPDATE many SET v = v || '!' WHERE id <= 10;
SELECT * FROM reserved();
COMMIT;
SELECT * FROM look();

-- past it: the domain
CALL seed();
BEGIN;
UPDATE many SET v = v || '!' WHERE id <= 11;
SELECT * FROM reserved();
SELECT * FROM look();
COMMIT;
SELECT * FROM look();
SELECT count(*), min(version), max(version) FROM many WHERE id <= 10;
SELECT * FROM anomalies() AS (relation text, count bigint);

-- rolled back: nothing happened, but what was reserved row by row is cold
CALL seed();
BEGIN;
UPDATE many SET v = v || '?';
ROLLBACK;
SELECT * FROM look();

-- rolled back to a savepoint: what was reserved before it is committed, the rest is as it was
BEGIN;
UPDATE many SET v = v || '+' WHERE id = 1;
SAVEPOINT a;
UPDATE many SET v = v || '?';
SELECT * FROM reserved();
ROLLBACK TO a;
COMMIT;
SELECT * FROM look();
SELECT * FROM anomalies() AS (relation text, count bigint);

-- again after the savepoint: the count goes on, so the next row reserves the domain again
CALL seed();
BEGIN;
SAVEPOINT a;
UPDATE many SET v = v || '?';
ROLLBACK TO a;
UPDATE many SET v = v || '+' WHERE id = 60;
SELECT * FROM reserved();
COMMIT;
SELECT * FROM look();

-- a row of before that changes again within the bulk
CALL seed();
BEGIN;
UPDATE many SET v = 'first' WHERE id = 1;
UPDATE many SET v = 'second';
UPDATE many SET v = 'third' WHERE id = 1;
COMMIT;
SELECT * FROM look();
SELECT v, count(*) FROM many GROUP BY v ORDER BY v;
SELECT * FROM anomalies() AS (relation text, count bigint);

-- inserts and deletes
CALL seed();
BEGIN;
DELETE FROM many WHERE id > 20;
SELECT * FROM reserved();
COMMIT;
SELECT * FROM look();
SELECT count(*) FROM fence.tombstone t JOIN fence.domain d ON d.id = t.domain_id WHERE d.name = 'bulk.many';
INSERT INTO many SELECT i, 'back' FROM generate_series(21, 60) i;
SELECT min(version) > 0 FROM many WHERE id > 20;
CALL seed();
SELECT * FROM look();
SELECT * FROM anomalies() AS (relation text, count bigint);

-- COPY
COPY many (id, v) FROM stdin;
61	a
62	b
63	c
64	d
65	e
66	f
67	g
68	h
69	i
70	j
71	k
\.
SELECT count(*) FROM many;
SELECT * FROM anomalies() AS (relation text, count bigint);

-- two tables: each counts for itself
CREATE TABLE other (id int PRIMARY KEY, version bigint NOT NULL DEFAULT 0);
INSERT INTO other VALUES (1);
SELECT fence.attach('other');
CALL wait_for('bulk.other', '1');
SELECT fence.read('bulk.other', '1');
CALL seed();
BEGIN;
UPDATE many SET v = 'all';
UPDATE other SET version = 1 WHERE id = 2;
COMMIT;
SELECT (fence.get('bulk.other', '1')).status;

-- an error in the middle
CALL seed();
INSERT INTO many SELECT i, 'x' FROM generate_series(75, 60, -1) i;
SELECT * FROM look();

SELECT count(*) FROM fence.pending WHERE domain LIKE 'bulk.%';
SELECT fence.detach('many');
SELECT fence.detach('other');
SET client_min_messages = warning;
DROP SCHEMA bulk CASCADE;
