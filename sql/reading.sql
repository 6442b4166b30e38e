--
-- Reading: get first; a miss is read from PostgreSQL and put with what get gave; everything else is only read.
--
\set schema reading
\i test/lib/regress.sql

-- What get says, without what differs from run to run.
CREATE FUNCTION look(domain text, VARIADIC key text[])
	RETURNS TABLE (status text, permit boolean, version bigint, payload text) LANGUAGE sql AS $$
	SELECT status, permit <> '', version, payload
	  FROM fence.get(domain, VARIADIC key)
$$;

CREATE TABLE note (id int PRIMARY KEY, body text, version bigint NOT NULL DEFAULT 0);
INSERT INTO note SELECT i, 'note ' || i FROM generate_series(1, 9) i;
SELECT fence.attach('note');
CALL wait_for('reading.note', '1');

\pset null '-'

-- miss, put, hit
SELECT * FROM look('reading.note', '1');
SELECT permit FROM fence.get('reading.note', '1') \gset
SELECT fence.put('reading.note', :'permit', 0, 'anything', NULL, '1');
SELECT * FROM look('reading.note', '1');
-- any number of reads; the same through read
SELECT fence.read('reading.note', '2');
SELECT * FROM look('reading.note', '2');
SELECT fence.read('reading.note', '2');
-- from where it is; that there is no row is not cached here
SELECT * FROM fence.try_read('reading.note', 2);
SELECT * FROM fence.try_read('reading.note', '99');

-- a reader who was slow: something has ended since he was given the permit
UPDATE note SET body = 'new' WHERE id = 1;
SELECT * FROM look('reading.note', '1');
SELECT fence.put('reading.note', :'permit', 0, 'old', NULL, '1');
SELECT * FROM look('reading.note', '1');
-- a permit is good for all keys of which nothing has ended since, and more than once
SELECT permit FROM fence.get('reading.note', '1') \gset
SELECT fence.put('reading.note', :'permit', 1, 'new', NULL, '1');
SELECT fence.put('reading.note', :'permit', 1, 'new again', NULL, '1');
SELECT fence.put('reading.note', :'permit', 0, 'good', NULL, '3');
SELECT * FROM look('reading.note', '1');
SELECT payload FROM look('reading.note', '3');

-- no permit
SELECT fence.put('reading.note', '1.0123456789abcdef 1', 1, 'never', NULL, '1');
SELECT fence.put('reading.note', split_part(:'permit', ' ', 1) || ' 999999999999', 1, 'never', NULL, '1');
SELECT fence.put('reading.note', split_part(:'permit', ' ', 1), 1, 'never', NULL, '1');
SELECT fence.put('reading.note', '', 1, 'never', NULL, '1');
SELECT payload FROM look('reading.note', '1');

-- a write that was rolled back has ended, too
SELECT permit FROM fence.get('reading.note', '4') \gset
BEGIN;
UPDATE note SET body = 'never' WHERE id = 4;
ROLLBACK;
SELECT * FROM look('reading.note', '4');
SELECT fence.put('reading.note', :'permit', 0, 'old', NULL, '4');
SELECT fence.read('reading.note', '4');
SELECT * FROM look('reading.note', '4');

-- neither row nor tombstone: nothing is put
SELECT fence.read('reading.note', '100');
SELECT * FROM look('reading.note', '100');
SELECT fence_version, row_version, relation, pending, token <> '' AS token FROM fence.status('reading.note', '100');

-- deleted: nothing is put
SELECT permit FROM fence.get('reading.note', '5') \gset
SELECT fence.read('reading.note', '5');
DELETE FROM note WHERE id = 5;
SELECT * FROM look('reading.note', '5');
SELECT fence.read('reading.note', '5');
SELECT fence.put('reading.note', :'permit', 0, 'old', NULL, '5');
SELECT * FROM look('reading.note', '5');
SELECT fence_version, row_version, relation, pending FROM fence.status('reading.note', '5');
INSERT INTO note VALUES (5, 'back');
SELECT fence.read('reading.note', '5');
SELECT * FROM look('reading.note', '5');

-- a transaction that has written reads what it wrote, and neither caches it nor anything else of the domain
SELECT fence.read('reading.note', '6') IS NOT NULL;
BEGIN;
SELECT permit FROM fence.get('reading.note', '7') \gset
UPDATE note SET body = 'mine' WHERE id = 6;
SELECT fence.read('reading.note', '6');
SELECT * FROM look('reading.note', '6');
SELECT fence.read('reading.note', '7');
SELECT * FROM look('reading.note', '7');
SELECT fence.put('reading.note', :'permit', 0, 'never', NULL, '7');
-- what was cached is served to others meanwhile, of other keys
SELECT * FROM look('reading.note', '2');
ROLLBACK;
SELECT fence.read('reading.note', '6');
SELECT * FROM look('reading.note', '6');
-- nor does it where the write was rolled back to a savepoint
BEGIN;
SAVEPOINT a;
UPDATE note SET body = 'mine' WHERE id = 6;
ROLLBACK TO a;
SELECT fence.read('reading.note', '7');
SELECT * FROM look('reading.note', '7');
COMMIT;
SELECT * FROM look('reading.note', '6');

-- a snapshot that is older than get: it is read, never put
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT fence.read('reading.note', '7');
SELECT * FROM look('reading.note', '7');
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT fence.read('reading.note', '7');
SELECT * FROM look('reading.note', '7');
COMMIT;
-- a transaction that may not write PostgreSQL may fill the cache
BEGIN READ ONLY;
SELECT fence.read('reading.note', '7');
SELECT * FROM look('reading.note', '7');
COMMIT;
-- a query that began before reads the newest row all the same
SELECT fence.read('reading.note', k) FROM (VALUES ('8'), ('8')) x (k);

-- values that are no JSON, or JSON that jsonb does not hold: read looks past them and leaves them alone
SELECT permit FROM fence.get('reading.note', '9') \gset
SELECT fence.put('reading.note', :'permit', 0, 'no {json', NULL, '9');
SELECT fence.read('reading.note', '9');
SELECT * FROM look('reading.note', '9');
SELECT left(v, 20) AS payload, fence.put('reading.note', :'permit', 0, v, NULL, '9'), fence.read('reading.note', '9'),
	   (SELECT payload = v FROM look('reading.note', left('9' || v, 1))) AS kept
  FROM (VALUES (''), ('{"a":"\u0000"}'), ('"\ud800"'), ('1e1000000'), ('[1,2'),
			   (repeat('[', 100000)), ('null'), ('{"own": "json"}')) x (v);

-- a time to live
SELECT fence.put('reading.note', :'permit', 0, 'brief', '1 ms', '9');
CALL wait_until($$(fence.get('reading.note', '9')).status <> 'hit'$$);
SELECT fence_version, relation FROM fence.status('reading.note', '9');
SELECT fence.put('reading.note', :'permit', 0, 'long', '1 month 2 days 03:04:05', '9');
SELECT * FROM look('reading.note', '9');
SELECT fence.put('reading.note', :'permit', 0, 'never', '-1 ms', '9');
SELECT fence.put('reading.note', :'permit', 0, 'never', '0', '9');
SELECT fence.put('reading.note', :'permit', 0, 'never', '11 years', '9');

-- large values, and versions beyond what a double holds
SELECT fence.put('reading.note', :'permit', 0, repeat('x', 2000000), NULL, '9');
SELECT length(payload) FROM look('reading.note', '9');
CREATE TABLE far (id int PRIMARY KEY, body text, version bigint NOT NULL);
INSERT INTO far VALUES (1, 'a', 9007199254740993);
SELECT fence.attach('far');
CALL wait_for('reading.far', '1');
SELECT fence.read('reading.far', '1');
SELECT * FROM look('reading.far', '1');
SELECT fence_version, relation FROM fence.status('reading.far', '1');

-- only some columns; a value per type
CREATE TABLE wide (id uuid PRIMARY KEY, "Name" text, secret text, at timestamptz, n numeric, tags text[], doc jsonb,
				   version int NOT NULL DEFAULT 0);
INSERT INTO wide VALUES ('00000000-0000-0000-0000-00000000000a', 'Ünï "q"', 'hidden',
						 '2024-01-02 03:04:05+00', 1.50, '{a,NULL}', '{"x": [1]}');
SELECT fence.attach('wide', columns => ARRAY['Name', 'at', 'n', 'tags', 'doc', 'version'], ttl => '1 hour');
CALL wait_for('reading.wide', '00000000-0000-0000-0000-00000000000a');
SELECT fence.read('reading.wide', '00000000-0000-0000-0000-00000000000A');
SELECT * FROM look('reading.wide', '{00000000-0000-0000-0000-00000000000a}');

-- what is cached does not depend on the settings of who read first
CREATE TABLE styled (id int PRIMARY KEY, f float8, b bytea, at timestamptz, i interval, r daterange, c regclass,
					 version int NOT NULL DEFAULT 0);
INSERT INTO styled VALUES (1, 0.1::float8 + 0.2, '\x00ff', '2024-01-02 03:04:05+00',
						   '1 day -00:00:01', '[2024-01-02,2024-02-03)', 'pg_class');
SELECT fence.attach('styled');
CALL wait_for('reading.styled', '1');
SET extra_float_digits = -10;
SET bytea_output = escape;
SET timezone = 'IST-5:30';
SET intervalstyle = sql_standard;
SET datestyle = 'SQL, DMY';
SELECT fence.read('reading.styled', '1');
SHOW timezone;
RESET extra_float_digits;
RESET bytea_output;
RESET timezone;
RESET intervalstyle;
RESET datestyle;
SELECT payload FROM look('reading.styled', '1');

-- that there is no such row is cached, too
CREATE TABLE rare (id int PRIMARY KEY, body text, version bigint NOT NULL DEFAULT 0);
SELECT fence.attach('rare', cache_absent => true);
CALL wait_for('reading.rare', '1');
SELECT fence.read('reading.rare', '1');
SELECT * FROM look('reading.rare', '1');
SELECT fence.read('reading.rare', '1');
SELECT fence_version, row_version, relation FROM fence.status('reading.rare', '1');
INSERT INTO rare VALUES (1, 'here');
SELECT * FROM look('reading.rare', '1');
SELECT fence.read('reading.rare', '1');
SELECT * FROM look('reading.rare', '1');
DELETE FROM rare;
SELECT fence.read('reading.rare', '1');
SELECT * FROM look('reading.rare', '1');
SELECT fence_version, row_version, relation FROM fence.status('reading.rare', '1');
SELECT version, value, source FROM fence.read_many(fence.fence_keys('reading.rare', '{1,2}'));
SELECT version, value, source FROM fence.read_many(fence.fence_keys('reading.rare', '{1,2}'));
SELECT relation, count FROM fence.audit('reading.rare') WHERE count > 0;

-- arguments
SELECT * FROM fence.get(NULL, '1');
SELECT fence.read('reading.note', VARIADIC NULL::text[]);
SELECT * FROM fence.get('reading.note', NULL);
SELECT fence.read('reading.note', NULL);
SELECT fence.put(NULL, 't', 0, 'v', NULL, '1');
SELECT fence.put('reading.note', NULL, 0, 'v', NULL, '1');
SELECT fence.put('reading.note', 't', NULL, 'v', NULL, '1');
SELECT fence.put('reading.note', 't', 0, NULL, NULL, '1');
SELECT fence.put('reading.note', 't', -1, 'v', NULL, '1');
SELECT fence.put('reading.note', 't', 0, 'v', NULL, VARIADIC NULL::text[]);
SELECT fence.put('reading.note', 't', 0, 'v', NULL, NULL);
SELECT * FROM fence.get('no such domain', '1');
SELECT fence.read('', '1');
SELECT fence.read('note', '1');
SELECT * FROM fence.get('reading.note', '1', '2');
SELECT * FROM fence.get('reading.note', VARIADIC '{}'::text[]);
SELECT * FROM fence.get('reading.note', 'one');
SELECT fence.status('reading.note', '99999999999');
SELECT * FROM fence.audit('reading.note', 0);
SELECT * FROM fence.audit('reading.note', 1.5);
SELECT * FROM fence.audit('reading.note', 'NaN');
SELECT * FROM fence.audit('no such domain');
SELECT fence.repair('no such domain', '1');
SELECT fence.repair('reading.note', '1');
-- a row that is not what the table has, of its version; what is of another form is let be
SELECT fence.read('reading.note', '8') IS NOT NULL AS cached;
SELECT permit FROM fence.get('reading.note', '0') \gset
SELECT fence.put('reading.note', :'permit', 0, '{"id": 8, "body": "forged", "version": 0}', NULL, '8');
SELECT relation FROM fence.status('reading.note', '8');
SELECT fence.repair('reading.note', '8');
SELECT permit FROM fence.get('reading.note', '8') \gset
SELECT relation FROM fence.status('reading.note', '8');
SELECT fence.put('reading.note', :'permit', 0, '{"version": 0, "body": "note 8", "id": 8.0}', NULL, '8');
SELECT relation FROM fence.status('reading.note', '8');
SELECT fence.put('reading.note', :'permit', 0, '{"id": 8, "body": "other"}', NULL, '8');
SELECT relation FROM fence.status('reading.note', '8');
-- a fence of another version than the row's
SELECT fence.put('reading.note', :'permit', 7, 'ahead', NULL, '8');
SELECT fence_version, row_version, relation FROM fence.status('reading.note', '8');
SELECT fence.repair('reading.note', '8');
SELECT fence_version, row_version, relation FROM fence.status('reading.note', '8');
SELECT relation, count > 0 AS any FROM fence.audit('reading.note') ORDER BY relation COLLATE "C";
SELECT sum(count) > 0 AS sampled FROM fence.audit('reading.note', 0.5);

SET client_min_messages = warning;
DROP SCHEMA reading CASCADE;
