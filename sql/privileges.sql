--
-- Who may do what: an ordinary role writes and reads its tables, and has no other way to what readers trust.
--
\set schema privileges
\i test/lib/regress.sql

SET client_min_messages = warning;
DROP ROLE IF EXISTS regress_fence_owner, regress_fence_writer, regress_fence_reader, regress_fence_stranger;
RESET client_min_messages;
CREATE ROLE regress_fence_owner;
CREATE ROLE regress_fence_writer;
CREATE ROLE regress_fence_reader;
CREATE ROLE regress_fence_stranger;
GRANT USAGE, CREATE ON SCHEMA privileges TO regress_fence_owner;
GRANT USAGE ON SCHEMA privileges TO PUBLIC;

--
-- attach needs the owner, and EXECUTE
--
SET ROLE regress_fence_owner;
CREATE TABLE item (id int PRIMARY KEY, v text, version bigint NOT NULL DEFAULT 0);
INSERT INTO item VALUES (1, 'a', 0), (2, 'b', 0), (3, 'c', 0);
GRANT SELECT, INSERT, UPDATE, DELETE ON item TO regress_fence_writer;
GRANT SELECT ON item TO regress_fence_reader;
SELECT fence.attach('item');
RESET ROLE;
GRANT EXECUTE ON FUNCTION fence.attach, fence.detach TO regress_fence_owner, regress_fence_writer;
SET ROLE regress_fence_writer;
SELECT fence.attach('item');
SET ROLE regress_fence_owner;
SELECT fence.attach('item');
SET ROLE regress_fence_writer;
SELECT fence.detach('item');
RESET ROLE;
CALL wait_for('privileges.item', '1');
SELECT tgname, tgenabled FROM pg_trigger WHERE tgrelid = 'item'::regclass ORDER BY tgname COLLATE "C";

--
-- A writer needs his privileges on the table and nothing else
--
SELECT fence.read('privileges.item', k) FROM (VALUES ('1'), ('2'), ('3')) x (k);
SET ROLE regress_fence_writer;
UPDATE item SET v = 'A' WHERE id = 1 RETURNING version;
DELETE FROM item WHERE id = 2;
INSERT INTO item VALUES (4, 'd') RETURNING version;
INSERT INTO item VALUES (2, 'back') RETURNING version;
UPDATE item SET id = 5 WHERE id = 3;
-- what the triggers write for him is out of his reach
SELECT * FROM fence.tombstone;
INSERT INTO fence.tombstone VALUES (1, '2', 1000, now());
DELETE FROM fence.tombstone;
SELECT * FROM fence.floor;
UPDATE fence.floor SET version = 0;
SELECT * FROM fence.cluster;
DELETE FROM fence.cluster;
DELETE FROM fence.domain;
UPDATE fence.domain SET version_column = 'v';
ALTER TABLE item DISABLE TRIGGER ALL;
RESET ROLE;
SELECT key, version FROM fence.tombstone JOIN fence.domain d ON d.id = domain_id
 WHERE d.name = 'privileges.item' ORDER BY key COLLATE "C";
SELECT relation, count FROM fence.audit('privileges.item') WHERE count > 0;

-- TRIGGER on the table is no way around its triggers, even where their functions are granted
GRANT TRIGGER ON item TO regress_fence_writer;
GRANT CREATE ON SCHEMA privileges TO regress_fence_writer;
GRANT EXECUTE ON FUNCTION fence.before_row, fence.after_row, fence.before_truncate TO regress_fence_writer;
SET ROLE regress_fence_writer;
CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
CREATE OR REPLACE TRIGGER zzz_pgcache_fence_after AFTER INSERT OR UPDATE OR DELETE ON item FOR EACH ROW WHEN (false)
	EXECUTE FUNCTION fence.after_row();
CREATE OR REPLACE TRIGGER zzz_pgcache_fence_before BEFORE UPDATE ON item FOR EACH ROW WHEN (false) EXECUTE FUNCTION nothing();
CREATE TRIGGER zzz_pgcache_fence_x AFTER UPDATE ON item FOR EACH ROW EXECUTE FUNCTION fence.after_row();
ALTER TRIGGER zzz_pgcache_fence_after ON item RENAME TO aaa;
DROP TRIGGER zzz_pgcache_fence_after ON item;
SET session_replication_role = replica;
SELECT fence.read('privileges.item', '1');
UPDATE item SET v = 'AA' WHERE id = 1 RETURNING version;
RESET ROLE;
SELECT (fence.get('privileges.item', '1')).status, fence.read('privileges.item', '1');
UPDATE item SET v = 'A' WHERE id = 1;
DROP FUNCTION nothing;
REVOKE EXECUTE ON FUNCTION fence.before_row, fence.after_row, fence.before_truncate FROM regress_fence_writer;

--
-- A reader needs SELECT on the table
--
SET ROLE regress_fence_reader;
SELECT fence.read('privileges.item', '1');
SELECT status, payload FROM fence.get('privileges.item', '1');
SELECT fence_version, row_version, relation, pending FROM fence.status('privileges.item', '1');
SELECT domain, relation FROM fence.domains WHERE domain LIKE 'privileges.%';
SELECT state FROM fence.state;
SELECT count(*) FROM fence.nodes;
SET ROLE regress_fence_stranger;
SELECT fence.read('privileges.item', '1');
SELECT status, payload FROM fence.get('privileges.item', '1');
SELECT fence.status('privileges.item', '1');
SELECT fence.fence_key('privileges.item', '1') LIKE 'fence:f:%:{1}',
	   fence.value_key('privileges.item', '1') LIKE 'fence:v:%:{1}';
-- SELECT on some columns is not enough: a cached row has them all
RESET ROLE;
GRANT SELECT (id, version) ON item TO regress_fence_stranger;
SET ROLE regress_fence_stranger;
SELECT id, version FROM item WHERE id = 1;
SELECT fence.read('privileges.item', '1');
RESET ROLE;
-- a function that somebody else lends him is another matter
CREATE FUNCTION read_item(id int) RETURNS jsonb LANGUAGE sql SECURITY DEFINER AS $$
	SELECT fence.read('privileges.item', id::text)
$$;
SET ROLE regress_fence_stranger;
SELECT read_item(1);
RESET ROLE;

--
-- What lets readers be deceived is denied unless it is granted
--
SELECT permit FROM fence.get('privileges.item', '4') \gset
SET ROLE regress_fence_reader;
SELECT fence.put('privileges.item', :'permit', 0, 'x', NULL, '4');
SELECT fence.begin_write('privileges.item', 0, '4');
SELECT fence.abort_write('privileges.item', '4');
SELECT * FROM fence.pending;
SELECT * FROM fence._pending();
SELECT fence.audit('privileges.item');
SELECT fence.repair('privileges.item', '4');
SELECT fence.attach('item');
SELECT fence.detach('item');
CREATE TABLE fence.mine (id int);
RESET ROLE;
GRANT EXECUTE ON FUNCTION fence.put(text, text, bigint, text, interval, text[]) TO regress_fence_reader;
SET ROLE regress_fence_reader;
SELECT fence.put('privileges.item', :'permit', 0, 'x', NULL, '4');
SELECT fence.put('privileges.item', :'permit', 0, 'x', NULL, 4);
SELECT status, payload FROM fence.get('privileges.item', '4');
RESET ROLE;
REVOKE EXECUTE ON FUNCTION fence.put(text, text, bigint, text, interval, text[]) FROM regress_fence_reader;

--
-- Row-level security: a cached row knows no policies
--
SET ROLE regress_fence_owner;
CREATE TABLE secret (id int PRIMARY KEY, owner name, version bigint NOT NULL DEFAULT 0);
INSERT INTO secret VALUES (1, 'regress_fence_reader'), (2, 'somebody else');
GRANT SELECT, INSERT, UPDATE, DELETE ON secret TO regress_fence_reader;
ALTER TABLE secret ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON secret USING (owner = current_user);
SELECT fence.attach('secret');
RESET ROLE;
CALL wait_for('privileges.secret', '1');
SELECT fence.read('privileges.secret', '2');
SET ROLE regress_fence_owner;
SELECT fence.read('privileges.secret', '2');
SET ROLE regress_fence_reader;
SELECT fence.read('privileges.secret', '1');
SELECT fence.read('privileges.secret', '2');
SELECT * FROM fence.get('privileges.secret', '2');
SELECT * FROM fence.status('privileges.secret', '2');
-- his own rows he writes, and readers learn of it
UPDATE secret SET version = 5 RETURNING *;
DELETE FROM secret;
RESET ROLE;
SELECT fence_version, row_version, relation FROM fence.status('privileges.secret', '1');
-- policies apply to the owner too, if he says so
ALTER TABLE secret FORCE ROW LEVEL SECURITY;
SET ROLE regress_fence_owner;
SELECT fence.read('privileges.secret', '2');
RESET ROLE;
-- a role that policies do not apply to
ALTER ROLE regress_fence_reader BYPASSRLS;
SET ROLE regress_fence_reader;
SELECT fence.read('privileges.secret', '2');
RESET ROLE;

--
-- A domain without a table is for those who may write it: no table's privileges can decide
--
SELECT fence.attach(NULL, domain => 'privileges.manual', scope => 'manual');
CALL wait_for('privileges.manual', '1');
SET ROLE regress_fence_stranger;
SELECT * FROM fence.get('privileges.manual', '1');
SELECT * FROM fence.get_many(fence.fence_key('privileges.manual', '1'));
SELECT * FROM fence.peek('privileges.manual', '1');
SELECT * FROM fence.status('privileges.manual', '1');
SELECT * FROM fence.explain('privileges.manual', '1');
RESET ROLE;
-- one of the two functions of a name is enough
GRANT EXECUTE ON FUNCTION fence.put(text, text, bigint, text, interval, "any") TO regress_fence_stranger;
GRANT EXECUTE ON FUNCTION fence.begin_write(text, bigint, text[]) TO regress_fence_reader;
SET ROLE regress_fence_stranger;
SELECT status FROM fence.get('privileges.manual', '1');
SELECT fence_version FROM fence.status('privileges.manual', '1');
SET ROLE regress_fence_reader;
SELECT status FROM fence.get('privileges.manual', '1');
RESET ROLE;
REVOKE EXECUTE ON FUNCTION fence.put(text, text, bigint, text, interval, "any") FROM regress_fence_stranger;
REVOKE EXECUTE ON FUNCTION fence.begin_write(text, bigint, text[]) FROM regress_fence_reader;
-- another function of the name, which somebody has put there, is none of them
CREATE FUNCTION fence.put(text) RETURNS text LANGUAGE sql AS 'SELECT $1';
SET ROLE regress_fence_stranger;
SELECT status FROM fence.get('privileges.manual', '1');
RESET ROLE;
DROP FUNCTION fence.put(text);
SELECT fence.detach_domain('privileges.manual');

--
-- The URL may hold a password
--
SET ROLE regress_fence_stranger;
-- (PostgreSQL's own message differs between its versions)
\set VERBOSITY sqlstate
SHOW pgcache_fence.redis_url;
SELECT current_setting('pgcache_fence.redis_url');
\set VERBOSITY default
SELECT count(*) FROM pg_settings WHERE name = 'pgcache_fence.redis_url';
SHOW pgcache_fence.namespace;
SET pgcache_fence.on_redis_failure = 'error';
-- what others pay for: reservations in the memory of Redis, or the cache of a whole table
SET pgcache_fence.bulk_threshold = 2000000000;
SET pgcache_fence.bulk_threshold = 1;
ALTER ROLE regress_fence_stranger SET pgcache_fence.bulk_threshold = 2000000000;
SELECT set_config('pgcache_fence.bulk_threshold', '2000000000', false);
RESET ROLE;
GRANT SET ON PARAMETER pgcache_fence.bulk_threshold TO regress_fence_stranger;
SET ROLE regress_fence_stranger;
SET pgcache_fence.bulk_threshold = 1;
RESET pgcache_fence.bulk_threshold;
RESET ROLE;
REVOKE SET ON PARAMETER pgcache_fence.bulk_threshold FROM regress_fence_stranger;
GRANT pg_read_all_settings TO regress_fence_stranger;
SET ROLE regress_fence_stranger;
SELECT current_setting('pgcache_fence.redis_url') <> '' AS told;
RESET ROLE;

--
-- detach is the owner's
--
SET ROLE regress_fence_owner;
SELECT fence.detach('item');
DROP TABLE secret;
RESET ROLE;
SELECT count(*) FROM fence.domains WHERE domain LIKE 'privileges.%';
SET ROLE regress_fence_reader;
SELECT fence.read('privileges.item', '1');
RESET ROLE;

SET client_min_messages = warning;
DROP SCHEMA privileges CASCADE;
REVOKE EXECUTE ON FUNCTION fence.attach, fence.detach FROM regress_fence_owner, regress_fence_writer;
DROP ROLE regress_fence_owner, regress_fence_writer, regress_fence_reader, regress_fence_stranger;
