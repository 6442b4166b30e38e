--
-- When a changed row stops being served: with the change, or with the commit (reserve => 'commit', pgcache_fence.reserve).
--
\set schema reserve
\i test/lib/regress.sql

CREATE TABLE late (id int PRIMARY KEY, v text, version bigint NOT NULL DEFAULT 0);
CREATE TABLE usual (LIKE late INCLUDING ALL);
CREATE TABLE early (LIKE late INCLUDING ALL);
INSERT INTO late SELECT i, 'old' FROM generate_series(1, 3) i;
INSERT INTO usual TABLE late;
INSERT INTO early TABLE late;
SELECT fence.attach('late', reserve => 'commit'), fence.attach('usual'), fence.attach('early', reserve => 'early');
SELECT domain, reserve FROM fence.domains WHERE domain LIKE 'reserve.%' ORDER BY domain COLLATE "C";
CALL wait_for('reserve.late', '1');
CALL wait_for('reserve.usual', '1');
CALL wait_for('reserve.early', '1');
CREATE PROCEDURE seed() LANGUAGE sql AS $$
	SELECT fence.read(d, k::text) FROM unnest('{reserve.late,reserve.usual,reserve.early}'::text[]) d, generate_series(1, 3) k
$$;
-- What readers get of each key, in order; what is cached.
CREATE FUNCTION look() RETURNS TABLE (domain text, status text, v text) LANGUAGE sql AS $$
	SELECT d, string_agg(g.status, ' ' ORDER BY k), string_agg(coalesce(g.payload::jsonb ->> 'v', '-'), ' ' ORDER BY k)
	  FROM unnest('{reserve.late,reserve.usual,reserve.early}'::text[]) WITH ORDINALITY x (d, n), generate_series(1, 3) k,
		   LATERAL fence.get(d, k::text) g
	 GROUP BY d, n ORDER BY n
$$;
CREATE PROCEDURE change(what text) LANGUAGE plpgsql AS $$
BEGIN
	UPDATE late SET v = what WHERE id = 1;
	UPDATE usual SET v = what WHERE id = 1;
	UPDATE early SET v = what WHERE id = 1;
	DELETE FROM late WHERE id = 2;
	DELETE FROM usual WHERE id = 2;
	DELETE FROM early WHERE id = 2;
END $$;

-- a rollback leaves the hit where nothing was reserved before
CALL seed();
BEGIN;
CALL change('never');
SELECT * FROM look();
ROLLBACK;
SELECT * FROM look();
-- and to a savepoint; what is left is reserved with the commit
CALL seed();
BEGIN;
SAVEPOINT s;
CALL change('never');
ROLLBACK TO s;
SELECT * FROM look();
UPDATE late SET v = 'new' WHERE id = 3;
UPDATE usual SET v = 'new' WHERE id = 3;
UPDATE early SET v = 'new' WHERE id = 3;
SELECT * FROM look();
COMMIT;
SELECT * FROM look();
-- a commit ends the hit in each
CALL seed();
BEGIN;
CALL change('new');
SELECT * FROM look();
COMMIT;
SELECT * FROM look();
CALL seed();
SELECT * FROM look();

-- who has written a row reads it from the table, and stores nothing of it
BEGIN;
UPDATE late SET v = 'own' WHERE id = 1;
SELECT fence.read('reserve.late', '1') ->> 'v' AS own, (fence.get('reserve.late', '1')).payload::jsonb ->> 'v' AS cached;
ROLLBACK;
SELECT fence.read('reserve.late', '1') ->> 'v' AS own, (fence.get('reserve.late', '1')).payload::jsonb ->> 'v' AS cached;

-- the setting is for tables that chose nothing
SET pgcache_fence.reserve = 'commit';
SELECT domain, reserve FROM fence.domains WHERE domain LIKE 'reserve.%' ORDER BY domain COLLATE "C";
CALL seed();
BEGIN;
CALL change('never');
SELECT * FROM look();
ROLLBACK;
SELECT * FROM look();
CALL seed();
CALL change('newer');
SELECT * FROM look();
-- whole tables too
CALL seed();
BEGIN;
TRUNCATE usual;
SELECT * FROM look() WHERE domain = 'reserve.usual';
ROLLBACK;
SET pgcache_fence.bulk_threshold = 1;
CALL seed();
UPDATE usual SET v = 'many';
SELECT * FROM look() WHERE domain = 'reserve.usual';
RESET pgcache_fence.bulk_threshold;
SET pgcache_fence.reserve = 'late';
RESET pgcache_fence.reserve;

SELECT domain, relation, count FROM unnest('{reserve.late,reserve.usual,reserve.early}'::text[]) domain, fence.audit(domain)
 WHERE relation NOT IN ('equal', 'missing') AND count > 0;
SELECT count(*) FROM fence.pending WHERE domain LIKE 'reserve.%';
SET client_min_messages = warning;
DROP SCHEMA reserve CASCADE;
