--
-- Tables without a version column: version => NULL.
--
\set schema versionless
\i test/lib/regress.sql
SELECT fence.wait_open('90 s');

-- the table stays as its application knows it
CREATE TABLE account (id int PRIMARY KEY, owner text);
INSERT INTO account SELECT g, 'first' FROM generate_series(1, 3) g;
SELECT fence.attach('account', version => NULL, cache => 'row');
SELECT fence.attach('account', version => NULL, add_version => true);
SELECT fence.attach('account', version => NULL, on_redis_failure => 'bypass');
SELECT key, version, scope FROM fence.domains WHERE domain = 'versionless.account';
SELECT tgname FROM pg_trigger WHERE tgrelid = 'account'::regclass ORDER BY tgname COLLATE "C";
SELECT * FROM account ORDER BY id;

-- a row by itself is the value, and each change of it is one version more
CREATE FUNCTION look() RETURNS TABLE (id text, version bigint, status text, value text, relation text) LANGUAGE sql AS $$
	SELECT k, fence.group_version('versionless.account', k), g.status, g.payload, s.relation
	  FROM unnest('{1,2,3,4}'::text[]) k
	 CROSS JOIN LATERAL fence.get('versionless.account', k) g
	 CROSS JOIN LATERAL fence.status('versionless.account', k) s ORDER BY 1
$$;
CREATE FUNCTION fill() RETURNS SETOF jsonb LANGUAGE sql AS $$ SELECT fence.read('versionless.account', k) FROM unnest('{1,2,3,4}'::text[]) k $$;
SELECT * FROM fill();
SELECT * FROM look();
UPDATE account SET owner = 'second' WHERE id = 1;
DELETE FROM account WHERE id = 2;
INSERT INTO account VALUES (4, 'new');
SELECT * FROM look();
SELECT * FROM fill();
SELECT * FROM look();

-- rolled back, also to a savepoint, nothing has happened
BEGIN;
UPDATE account SET owner = 'never' WHERE id = 1;
ROLLBACK;
BEGIN;
SAVEPOINT s;
UPDATE account SET owner = 'never' WHERE id = 1;
ROLLBACK TO s;
COMMIT;
SELECT fence.read('versionless.account', '1');
SELECT version, status FROM look() WHERE id = '1';
-- who has written a row is not served what was before, and caches nothing of it
BEGIN;
UPDATE account SET owner = 'third' WHERE id = 1;
SELECT fence.read('versionless.account', '1');
SELECT status FROM fence.get('versionless.account', '1');
COMMIT;
SELECT fence.read('versionless.account', '1');
SELECT version, status FROM look() WHERE id = '1';
-- a key that comes back goes on counting; one that moves is two
INSERT INTO account VALUES (2, 'back') ON CONFLICT (id) DO UPDATE SET owner = 'merged';
INSERT INTO account VALUES (2, 'back') ON CONFLICT (id) DO UPDATE SET owner = 'merged';
UPDATE account SET id = 5 WHERE id = 4;
SELECT * FROM fill();
SELECT * FROM look();
SELECT fence.read('versionless.account', '5');
SELECT version, value FROM fence.read_many(fence.fence_keys('versionless.account', '{1,2,5}'));
-- what a trigger that comes before ours reads is not cached
CREATE FUNCTION peek() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM fence.read('versionless.account', NEW.id::text); RETURN NULL; END $$;
CREATE TRIGGER aaa AFTER UPDATE ON account FOR EACH ROW EXECUTE FUNCTION peek();
BEGIN;
UPDATE account SET owner = 'peeked' WHERE id = 1;
ROLLBACK;
SELECT fence.read('versionless.account', '1')->>'owner';
DROP TRIGGER aaa ON account;

-- all the rest is as for other tables
SELECT relation, count FROM fence.audit('versionless.account') WHERE relation <> 'missing' ORDER BY 1;
SELECT fence.repair('versionless.account', '1');
TRUNCATE account;
SELECT fence.read('versionless.account', '1');
INSERT INTO account VALUES (1, 'again');
SELECT fence.renumber('versionless.account');
SELECT fence.read('versionless.account', '1');
SELECT version, status FROM look() WHERE id = '1';
CREATE TABLE parted (id int PRIMARY KEY, what text) PARTITION BY RANGE (id);
CREATE TABLE part PARTITION OF parted FOR VALUES FROM (0) TO (10);
SELECT fence.attach('parted', version => NULL);
INSERT INTO parted VALUES (1, 'a');
SELECT fence.read('versionless.parted', '1');
UPDATE parted SET what = 'b';
SELECT fence.read('versionless.parted', '1');
SELECT status, version FROM fence.get('versionless.parted', '1');

SELECT count(*) FROM fence.pending WHERE domain LIKE 'versionless.%';
SELECT fence.detach('account');
SELECT fence.detach('parted');
SET client_min_messages = warning;
DROP SCHEMA versionless CASCADE;
