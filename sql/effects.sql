--
-- Effects: what happens to keys in Redis at COMMIT, at ROLLBACK, at ROLLBACK TO; what is refused.
--
\set schema effects
\i test/lib/regress.sql

SELECT fence.wait_open('90 s');

-- What a key has, without taking it: that is rolled back.
CREATE FUNCTION look(key text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	found text;
BEGIN
	found := fence.take(key);
	RAISE SQLSTATE 'LOOK1' USING MESSAGE = coalesce(found, '(nothing)');
EXCEPTION WHEN SQLSTATE 'LOOK1' THEN
	RETURN SQLERRM;
END $$;

-- Idempotency keys: the first does the work, all others are told its result.
BEGIN;
SELECT * FROM fence.once('effects:request 1');
SELECT * FROM fence.once('effects:request 1');
SELECT fence.once_result('effects:request 1', '{"paid": 5}');
SELECT * FROM fence.once('effects:request 1');
COMMIT;
SELECT * FROM fence.once('effects:request 1');
-- a rollback leaves nothing
BEGIN;
SELECT * FROM fence.once('effects:request 2');
SELECT fence.once_result('effects:request 2', '1');
ROLLBACK;
BEGIN;
SELECT * FROM fence.once('effects:request 2');
SAVEPOINT s;
SELECT fence.once_result('effects:request 2', '"taken back"');
ROLLBACK TO s;
COMMIT;
-- no result was told: null, but of JSON
SELECT * FROM fence.once('effects:request 2');
-- the key itself taken back by a savepoint, and taken again
BEGIN;
SAVEPOINT s;
SELECT * FROM fence.once('effects:request 3');
ROLLBACK TO s;
SELECT * FROM fence.once('effects:request 3');
COMMIT;
SELECT fence.once_result('effects:request 3', '1');
SELECT * FROM fence.once('effects:request 4', '0');
SELECT * FROM fence.once('effects:request 4', NULL);
SELECT * FROM fence.once(NULL);

-- Counters: held at once, final at COMMIT
BEGIN;
SELECT fence.counter_add('effects:stock', 10);
COMMIT;
SELECT fence.counter_add('effects:stock', 0);
BEGIN;
SELECT fence.counter_add('effects:stock', -7, 0);
SAVEPOINT s;
SELECT fence.counter_add('effects:stock', -3, min => 0);
ROLLBACK TO s;
SELECT fence.counter_add('effects:stock', -2, 0);
RELEASE s;
SAVEPOINT t;
SELECT fence.counter_add('effects:stock', -2, 0);
ROLLBACK TO t;
COMMIT;
SELECT look('effects:stock');
SELECT fence.counter_add('effects:stock', -2, 0);
-- what would come back at a rollback is not there to be given, and what would go is not there as room
BEGIN;
SELECT fence.counter_add('effects:stock', 5, max => 6);
SAVEPOINT s;
SELECT fence.counter_add('effects:stock', -2, 0);
ROLLBACK TO s;
SELECT fence.counter_add('effects:stock', 1, max => 6);
ROLLBACK;
SELECT look('effects:stock');
SELECT fence.counter_add('effects:huge', 9007199254740992);
SELECT fence.counter_add('effects:huge', 9007199254740991);
SELECT fence.counter_add('effects:huge', 1);
SELECT fence.take_and_set('effects:no number', 'x');
SELECT fence.counter_add('effects:no number', 1);

-- What happens at a bound: an error, or null and nothing is held, or as much as the bound allows
SELECT fence.counter_add('effects:bounded', 5);
SELECT fence.counter_add('effects:bounded', -6, 0, on_bound => 'refuse');
BEGIN;
SELECT fence.counter_add('effects:bounded', -6, 0, on_bound => 'refuse') IS NULL AS refused;
SELECT fence.counter_add('effects:bounded', -4, 0, on_bound => 'refuse');
-- what is held is not there
SELECT fence.counter_add('effects:bounded', -2, 0, on_bound => 'refuse') IS NULL AS refused;
SELECT fence.counter_add('effects:bounded', -2, 0, on_bound => 'clamp');
SELECT fence.counter_add('effects:bounded', -2, 0, on_bound => 'clamp');
SELECT fence.counter_add('effects:bounded', 9, max => 7, on_bound => 'clamp');
SELECT fence.counter_add('effects:bounded', 9, max => 7, on_bound => 'clamp');
COMMIT;
SELECT look('effects:bounded');
BEGIN;
SELECT fence.counter_add('effects:bounded', -9, 0, on_bound => 'clamp');
ROLLBACK;
SELECT look('effects:bounded');
-- beyond its bound already: nothing is counted, and never the other way
SELECT fence.counter_add('effects:bounded', -1, 5, on_bound => 'clamp'), fence.counter_add('effects:bounded', 1, max => -5, on_bound => 'clamp');
SELECT look('effects:bounded');
-- a bound on the other side is none
SELECT fence.counter_add('effects:bounded', 1, min => 100, on_bound => 'refuse');
SELECT fence.counter_add('effects:bounded', 1, on_bound => 'wrap');
SELECT fence.counter_add('effects:bounded', 1, on_bound => NULL);
SELECT fence.counter_add('effects:huge', 9, max => 9007199254740991, on_bound => 'clamp');
SELECT fence.counter_add('effects:huge', 9, on_bound => 'clamp');
-- of durable ones the row has what was counted
BEGIN;
SELECT fence.counter_add('effects:clamped', 9, max => 5, durable => true, on_bound => 'clamp');
SELECT fence.transfer('effects:{bank}:x', 'effects:{bank}:y', 8, -3, durable => true, on_bound => 'clamp');
SELECT kind, arguments FROM fence.outbox WHERE key IN ('effects:clamped', 'effects:{bank}:x') ORDER BY id;
COMMIT;
SELECT look('effects:clamped'), look('effects:{bank}:x'), look('effects:{bank}:y');
SELECT fence.transfer('effects:{bank}:x', 'effects:{bank}:y', 2, -4, 3, on_bound => 'refuse') IS NULL AS refused,
	   fence.transfer('effects:{bank}:x', 'effects:{bank}:y', 2, NULL, 4, on_bound => 'refuse') IS NULL AS refused,
	   fence.transfer('effects:{bank}:x', 'effects:{bank}:y', 2, -4, 5, on_bound => 'clamp'),
	   fence.transfer('effects:{bank}:x', 'effects:{bank}:y', 2, NULL, 5, on_bound => 'clamp');
SELECT look('effects:{bank}:x'), look('effects:{bank}:y');
SELECT fence.transfer('effects:{bank}:x', 'effects:{bank}:y', 2, -4, on_bound => 'clamp');
-- holds of nothing beside holds of something
BEGIN;
SELECT fence.counter_add('effects:zero', 1), fence.counter_add('effects:zero', 0), fence.counter_add('effects:zero', 2);
COMMIT;
SELECT look('effects:zero');

-- Fields of hashes
CREATE FUNCTION fields(key text) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
	field text;
	found jsonb := '{}';
BEGIN
	FOREACH field IN ARRAY '{a,b,c,"",n,x:1}'::text[] LOOP
		-- a number of a field is known without a change of it
		BEGIN
			found := found || jsonb_build_object(field, fence.hash_add(key, field, 0));
			RAISE SQLSTATE 'LOOK1';
		EXCEPTION WHEN SQLSTATE 'LOOK1' THEN
		WHEN numeric_value_out_of_range THEN
			found := found || jsonb_build_object(field, 'no number');
		END;
	END LOOP;
	RETURN found;
END $$;
SELECT fence.hash_set('effects:{h}', 'a', 'text'), fence.hash_set('effects:{h}', 'b', '7'), fence.hash_add('effects:{h}', 'n', 3);
SELECT fields('effects:{h}');
BEGIN;
SELECT fence.hash_set('effects:{h}', 'a', '8'), fence.hash_set('effects:{h}', 'b', NULL), fence.hash_add('effects:{h}', 'n', -5);
ROLLBACK;
SELECT fields('effects:{h}');
-- savepoints; the last of several counts
BEGIN;
SELECT fence.hash_set('effects:{h}', 'a', '1');
SAVEPOINT s;
SELECT fence.hash_set('effects:{h}', 'a', '2'), fence.hash_add('effects:{h}', 'n', 100);
ROLLBACK TO s;
SELECT fence.hash_set('effects:{h}', 'b', '3'), fence.hash_add('effects:{h}', 'n', 10), fence.hash_set('effects:{h}', 'b', '4');
SELECT fence.hash_add('effects:{h}', 'n', 10), fence.hash_set('effects:{h}', '', '5'), fence.hash_set('effects:{h}', 'x:1', '6');
COMMIT;
SELECT fields('effects:{h}');
-- bounds are those of the field
BEGIN;
SELECT fence.hash_add('effects:{h}', 'n', -20, 0);
SELECT fence.hash_add('effects:{h}', 'n', -4, 0, on_bound => 'refuse') IS NULL AS refused, fence.hash_add('effects:{h}', 'b', -4, 0);
SELECT fence.hash_add('effects:{h}', 'n', -4, 0, on_bound => 'clamp');
SAVEPOINT s;
SELECT fence.hash_add('effects:{h}', 'n', -1, 0);
ROLLBACK TO s;
COMMIT;
SELECT fields('effects:{h}');
-- one field has effects of one kind
BEGIN;
SELECT fence.hash_add('effects:{h}', 'n', 1);
SELECT fence.hash_set('effects:{h}', 'n', '1');
COMMIT;
BEGIN;
SELECT fence.hash_set('effects:{h}', 'n', '1');
SELECT fence.hash_add('effects:{h}', 'n', 1);
ROLLBACK;
BEGIN;
SELECT fence.hash_add('effects:{h}', 'n', 1);
SELECT fence.publish_hash('effects:{h}', '{"a": 1}');
COMMIT;
SELECT fence.hash_set('effects:value of h', 'a', 'x'), fence.counter_add('effects:no hash', 1);
SELECT fence.hash_add('effects:no hash', 'a', 1);
SELECT fence.hash_set('effects:no hash', 'a', 'x');
SELECT fence.hash_set('effects:{h}', NULL, 'x');
SELECT fence.hash_set('effects:{h}', repeat('x', 1025), 'x');
SELECT fence.hash_add('effects:{h}', 'n', NULL);
-- the log: what the field had, by stamp and number, in the same step
SELECT fence.hash_set('effects:{h}', 'a', 'x', log_key => 'effects:{h}:log');
SELECT fence.hash_set('effects:{h}', 'new "one"', 'x', 'effects:{h}:log'), fence.hash_add('effects:{h}', 'c', 5, log_key => 'effects:{h}:log');
BEGIN;
SELECT fence.hash_add('effects:{h}', 'c', 1, log_key => 'effects:{h}:log'), fence.hash_set('effects:{h}', 'b', 'x', 'effects:{h}:log');
ROLLBACK;
BEGIN;
SELECT fence.hash_add('effects:{h}', 'c', 1, log_key => 'effects:{h}:log'), fence.hash_add('effects:{h}', 'c', 1, log_key => 'effects:{h}:log'),
	   fence.hash_set('effects:{h}', 'b', NULL, 'effects:{h}:log');
COMMIT;
SELECT cardinality(fence._log_stamps('effects:{h}:log', 100)), (SELECT count(DISTINCT s) FROM unnest(fence._log_stamps('effects:{h}:log', 100)) s);
SELECT fence.hash_set('effects:{h}', 'a', 'x', log_key => 'effects:log');
SELECT fence.hash_set('effects:{h}', 'a', 'x', log_key => 'effects:{h}');
SELECT fence.hash_set('effects:{h}', 'a', 'x', log_key => 'effects:no hash');
SELECT fence.hash_set('effects:{h}', 'a', 'x', log_key => current_setting('pgcache_fence.namespace') || ':{h}');

-- Expiry at a point in time
SELECT fence.take_and_set('effects:until', 'x', expire_at => now() + '1 hour');
SELECT look('effects:until');
SELECT fence.take_and_extend('effects:until', expire_at => '-infinity');
SELECT look('effects:until');
SELECT fence.compare_and_set('effects:until', NULL, 'y', '1 hour', expire_at => '2001-01-01');
SELECT look('effects:until');
SELECT fence.compare_and_set('effects:until', NULL, 'z', expire_at => 'infinity'), fence.publish('effects:until page', 'x', expire_at => '2001-01-01');
SELECT look('effects:until'), look('effects:until page');
SELECT fence.take_and_extend('effects:until');
SELECT first FROM fence.once('effects:until request', expire_at => now() - interval '1 s');
SELECT first FROM fence.once('effects:until request', expire_at => now() + interval '1 hour');
SELECT first FROM fence.once('effects:until request', expire_at => 'infinity');
SELECT first FROM fence.once('effects:until request 2', expire_at => 'infinity');
SELECT first FROM fence.once('effects:until request', NULL, expire_at => now() + interval '1 hour');
SELECT fence.commit_marker(NULL, expire_at => now() + interval '1 hour') IS NOT NULL;
SELECT fence.commit_marker(NULL);

-- Transfers: both counters or none
SELECT fence.counter_add('effects:{bank}:a', 100);
SELECT fence.transfer('effects:{bank}:a', 'effects:{bank}:b', 30);
BEGIN;
SELECT fence.transfer('effects:{bank}:a', 'effects:{bank}:b', 70);
ROLLBACK;
SELECT fence.transfer('effects:{bank}:a', 'effects:{bank}:b', 71);
SELECT fence.transfer('effects:{bank}:a', 'effects:{bank}:b', 10, max => 39);
SELECT look('effects:{bank}:a'), look('effects:{bank}:b');
SELECT fence.transfer('effects:{bank}:a', 'effects:{bank}:a', 1);
SELECT fence.transfer('effects:{bank}:a', 'effects:{bank}:b', 0);

-- Compare and set
SELECT fence.compare_and_set('effects:value', 'x', 'one');
SELECT fence.compare_and_set('effects:value', NULL, 'one');
SELECT fence.compare_and_set('effects:value', NULL, 'two');
BEGIN;
SELECT fence.compare_and_set('effects:value', 'one', 'two');
SELECT fence.compare_and_set('effects:value', 'one', 'three');
SELECT fence.compare_and_set('effects:value', 'two', 'three');
SAVEPOINT s;
SELECT fence.compare_and_set('effects:value', 'three', NULL);
SELECT fence.compare_and_set('effects:value', NULL, 'four');
ROLLBACK TO s;
COMMIT;
SELECT look('effects:value');
SELECT fence.compare_and_set('effects:value', 'three', NULL);
SELECT look('effects:value');

-- Take: read and delete, read and keep longer, read and replace
SELECT fence.take('effects:value');
SELECT fence.take_and_set('effects:value', 'v', '1 hour');
SELECT fence.take_and_extend('effects:value', '2 hours');
BEGIN;
SELECT fence.take('effects:value');
SELECT fence.take('effects:value');
ROLLBACK;
SELECT fence.take('effects:value');
SELECT look('effects:value');
SELECT fence.take_and_extend('effects:value', '1 hour');

-- Publish
SELECT fence.publish('effects:page', repeat('0123456789', 100000), '1 hour');
SELECT length(look('effects:page'));
BEGIN;
SELECT fence.publish('effects:page', 'half');
ROLLBACK;
SELECT length(look('effects:page'));
BEGIN;
SELECT fence.publish('effects:page', 'first');
SELECT fence.publish('effects:page', 'second');
SELECT fence.take('effects:page');
ROLLBACK;
SELECT fence.publish('effects:empty', '');
SELECT fence.publish_hash('effects:hash', '{"a": 1, "b": "text", "c": null}');
SELECT fence.publish_hash('effects:hash', '[1]');
SELECT fence.publish_hash('effects:hash', '{}');

-- Logs. Stamps differ from run to run.
CREATE TABLE stamp (n int PRIMARY KEY, stamp text);
INSERT INTO stamp SELECT 1, fence.append('effects:{log}:a', 'one');
INSERT INTO stamp SELECT 2, fence.append(ARRAY['effects:{log}:a', 'effects:log b'], 'two');
INSERT INTO stamp SELECT 3, fence.append('effects:{log}:a', 'three');
SELECT n FROM stamp WHERE stamp = fence.latest_common(ARRAY['effects:{log}:a', 'effects:log b']);
SELECT n FROM stamp WHERE stamp = fence.latest_common(ARRAY['effects:{log}:a']);
SELECT fence.latest_common(ARRAY['effects:{log}:a', 'effects:no log']);
SELECT cardinality(fence._log_stamps('effects:{log}:a', 2));
SELECT fence.append('effects:set', 'x', 'zset', 2) IS NOT NULL, fence.append('effects:set', 'x', 'zset', 2) IS NOT NULL,
	   fence.append('effects:set', 'x', 'zset', 2) IS NOT NULL;
SELECT cardinality(fence._log_stamps('effects:set', 10));
SELECT fence.append('effects:stream', 'x', 'stream') IS NOT NULL;
SELECT cardinality(fence._log_stamps('effects:stream', 10));
SELECT fence.append('effects:set', 'x');
SELECT fence.append('effects:set', 'x', 'bag');
SELECT fence.append('effects:set', 'x', 'zset', 0);

-- Commit markers
BEGIN;
SELECT fence.commit_marker() AS stamp \gset
SELECT fence.is_committed(:'stamp');
COMMIT;
SELECT fence.is_committed(:'stamp');
BEGIN;
SELECT fence.commit_marker() AS stamp \gset
ROLLBACK;
SELECT fence.is_committed(:'stamp');
SELECT fence.is_committed('nonsense');

-- Keys
SELECT fence.take('');
SELECT fence.take(repeat('x', 1025));
SELECT fence.take('a}b');
SELECT fence.take('a{}b}');
SELECT fence.take(current_setting('pgcache_fence.namespace') || ':f:1.t:{1}');
SELECT fence.counter_add(current_setting('pgcache_fence.namespace') || ':heartbeat', 1);
SELECT fence.transfer('effects:{bank}:a', current_setting('pgcache_fence.namespace') || ':m:{bank}', 1);

-- One transaction, several kinds of one key
BEGIN;
SELECT fence.counter_add('effects:mixed', 1);
SELECT fence.take('effects:mixed');
ROLLBACK;

BEGIN READ ONLY;
SELECT fence.counter_add('effects:stock', 1);
ROLLBACK;

-- Nobody may who was not told that he may.
CREATE ROLE effects_user;
SET ROLE effects_user;
SELECT fence.take('effects:value');
SELECT * FROM fence.once('effects:request 1');
SELECT fence.latest_common(ARRAY['x']);
RESET ROLE;
GRANT EXECUTE ON FUNCTION fence.counter_add TO effects_user;
SET ROLE effects_user;
SELECT fence.counter_add('effects:stock', 0);
-- a durable one is written to a table that he has no right to
SELECT fence.counter_add('effects:stock', 1, durable => true);
SELECT count(*) FROM fence.outbox;
RESET ROLE;

-- Durable effects: their rows go when they are applied.
BEGIN;
SELECT fence.append('effects:durable', 'x', durable => true) IS NOT NULL;
SELECT fence.publish('effects:durable page', 'text', durable => true);
SELECT kind, key FROM fence.outbox WHERE key LIKE 'effects:durable%' ORDER BY id;
SAVEPOINT s;
SELECT fence.append('effects:durable', 'taken back', durable => true) IS NOT NULL;
ROLLBACK TO s;
COMMIT;
CALL wait_until($$NOT EXISTS (SELECT FROM fence.outbox)$$);
SELECT cardinality(fence._log_stamps('effects:durable', 10)), look('effects:durable page'), look('effects:stock');

SET client_min_messages = warning;
DROP SCHEMA effects CASCADE;
REVOKE EXECUTE ON FUNCTION fence.counter_add FROM effects_user;
DROP ROLE effects_user;
