--
-- fence.metrics: what is counted for a domain, and that it begins again at 0.
--
\set schema metrics
\i test/lib/regress.sql
SET pgcache_fence.zero_counters = on;

-- What the courier and the patrol count comes a moment later.
CREATE PROCEDURE expect(operation text, result text, wanted float8) LANGUAGE plpgsql AS $$
DECLARE
	deadline timestamptz := clock_timestamp() + '60 s';
	seen float8;
BEGIN
	LOOP
		PERFORM count(*) FROM fence.pending;	-- takes the answers that this session has not looked at yet
		SELECT value INTO STRICT seen FROM fence.metrics m
		 WHERE name = 'cache_fence_operations_total' AND labels->>'domain' = 'metrics.item'
		   AND labels->>'operation' = expect.operation AND labels->>'result' = expect.result;
		EXIT WHEN seen = wanted;
		IF clock_timestamp() > deadline THEN
			RAISE '% % is %, not %', operation, result, seen, wanted;
		END IF;
		PERFORM pg_sleep(0.01);
	END LOOP;
END $$;

CREATE FUNCTION counted() RETURNS TABLE (name text, labels jsonb, value float8) LANGUAGE sql AS $$
	SELECT m.name, m.labels - 'domain', m.value FROM fence.metrics m
	 WHERE m.labels->>'domain' = 'metrics.item' AND m.value <> 0 AND m.labels->>'result' IS DISTINCT FROM 'unarmed'
	   AND m.labels->>'reason' IS DISTINCT FROM 'unarmed' AND m.name <> 'cache_fence_db_compare'
	 ORDER BY m.name COLLATE "C", m.labels::text COLLATE "C"
$$;

CREATE TABLE item (id int PRIMARY KEY, v text, version bigint NOT NULL DEFAULT 0);
SELECT fence.attach('item');
CALL wait_for('metrics.item', '0');

--
-- The list is a contract: names and labels of a domain, and of the server
--
SELECT name, labels FROM fence.metrics WHERE labels->>'domain' = 'metrics.item'
 ORDER BY name COLLATE "C", labels::text COLLATE "C";
SELECT name, labels FROM fence.metrics WHERE NOT labels ? 'domain' ORDER BY name COLLATE "C", labels::text COLLATE "C";
SELECT DISTINCT labels->>'domain' FROM fence.metrics WHERE labels->>'domain' LIKE 'metrics.%';

--
-- What writers and readers do
--
-- the look at key 0 above was a miss
CALL expect('get', 'miss', 1);
SELECT fence.reset_metrics();
SELECT * FROM counted();
INSERT INTO item VALUES (1, 'a'), (2, 'b'), (3, 'c');	-- of new rows Redis is not told
UPDATE item SET v = 'A' WHERE id = 1;
CALL expect('commit', 'written', 1);
BEGIN;
UPDATE item SET v = 'never';
ROLLBACK;
CALL expect('abort', 'written', 3);
BEGIN;
UPDATE item SET v = 'own' WHERE id = 3;
SELECT fence.read('metrics.item', '3');
COMMIT;
CALL expect('commit', 'written', 2);
SELECT fence.read('metrics.item', '1'), fence.read('metrics.item', '2');
SELECT fence.read('metrics.item', '1'), fence.read('metrics.item', '2');
SELECT status FROM fence.get('metrics.item', '1');
-- a put that comes too late
SELECT fence.put('metrics.item', '1.0123456789abcdef 1', 0, 'old', NULL, '1');
SELECT fence.put('metrics.item', 'another', 5, 'old', NULL, '1');
CALL expect('get', 'hit', 3);
CALL expect('seed', 'refused', 2);
SELECT fence.repair('metrics.item', '1');
-- many rows
SET pgcache_fence.bulk_threshold = 1;
UPDATE item SET v = 'bulk';
RESET pgcache_fence.bulk_threshold;
CALL expect('domain_commit', 'written', 1);
SELECT * FROM counted();

--
-- Gauges are 0 again when nothing is pending
--
BEGIN;
UPDATE item SET v = 'pending' WHERE id = 1;
CALL wait_until($$(SELECT value = 1 FROM fence.metrics WHERE name = 'cache_fence_pending' AND labels->>'domain' = 'metrics.item')$$);
SELECT value FROM fence.metrics WHERE name = 'cache_fence_pending' AND labels->>'domain' = 'metrics.item';
ROLLBACK;
CALL wait_until($$(SELECT value = 0 FROM fence.metrics WHERE name = 'cache_fence_pending' AND labels->>'domain' = 'metrics.item')$$);
SELECT value FROM fence.metrics WHERE name = 'cache_fence_pending' AND labels->>'domain' = 'metrics.item';

--
-- The audit, and the time from commit to fence
--
SELECT fence.reset_metrics();
SELECT relation, count FROM fence.audit('metrics.item') WHERE count > 0;
SELECT labels->>'relation' AS relation FROM fence.metrics
 WHERE name = 'cache_fence_db_compare' AND labels->>'domain' = 'metrics.item' AND value >= 3;
UPDATE item SET v = 'x' WHERE id = 2;
CALL expect('commit', 'written', 1);
SELECT value >= 1 AS counted FROM fence.metrics WHERE name = 'cache_fence_commit_window_seconds_count';
SELECT bool_and(value >= before) AS cumulative FROM
	(SELECT value, lag(value, 1, 0::float8) OVER (ORDER BY (labels->>'le')::float8) AS before
	   FROM fence.metrics WHERE name = 'cache_fence_commit_window_seconds_bucket') b;
SELECT i.value = c.value AS same FROM fence.metrics i, fence.metrics c
 WHERE i.name = 'cache_fence_commit_window_seconds_bucket' AND i.labels->>'le' = '+Inf'
   AND c.name = 'cache_fence_commit_window_seconds_count';
SELECT value > 0 AND value < 60 AS plausible FROM fence.metrics WHERE name = 'cache_fence_commit_window_seconds_sum';
SELECT value FROM fence.metrics WHERE name IN ('cache_fence_open', 'cache_fence_lease_seconds') ORDER BY name;

--
-- A counter goes on when the table is attached anew
--
SELECT fence.detach('item');
SELECT fence.attach('item');
CALL wait_for('metrics.item', '1');
CALL expect('commit', 'written', 1);
UPDATE item SET v = 'd' WHERE id = 1;
CALL expect('commit', 'written', 2);

--
-- For those who watch servers; only the owner resets
--
SET client_min_messages = warning;
DROP ROLE IF EXISTS regress_fence_watcher, regress_fence_nobody;
RESET client_min_messages;
CREATE ROLE regress_fence_watcher IN ROLE pg_monitor;
CREATE ROLE regress_fence_nobody;
SET ROLE regress_fence_watcher;
SELECT count(*) > 0 AS seen FROM fence.metrics;
SELECT fence.reset_metrics();
SET ROLE regress_fence_nobody;
SELECT count(*) FROM fence.metrics;
SELECT count(*) FROM fence._metrics();
SELECT count(*) FROM fence.doctor();
RESET ROLE;
DROP ROLE regress_fence_watcher, regress_fence_nobody;

SET client_min_messages = warning;
DROP SCHEMA metrics CASCADE;
