--
-- Statements that change what an attachment rests on: it follows, or it ends.
--
\set schema follow
\i test/lib/regress.sql
SELECT fence.wait_open('90 s');
\set SHOW_CONTEXT always

-- One line for each key: what a reader gets, twice: from the table, then from the cache.
CREATE FUNCTION look(domain text, VARIADIC keys text[]) RETURNS TABLE (key text, before text, value jsonb, after text, relation text)
LANGUAGE plpgsql AS $$
BEGIN
	CALL wait_for(domain, keys[1]);		-- it may have begun anew
	RETURN QUERY
	SELECT k, (fence.get(domain, k)).status, fence.read(domain, k), (fence.get(domain, k)).status, (fence.status(domain, k)).relation
	  FROM unnest(keys) k;
END $$;
-- An attachment: the same as before?
CREATE VIEW attachment AS SELECT d.name, d.id, to_jsonb(d) - 'id' AS options FROM fence.domain d WHERE d.name LIKE 'follow.%';
CREATE TABLE before (name text, id bigint, options jsonb);
CREATE FUNCTION remember() RETURNS void LANGUAGE sql AS $$ DELETE FROM before; INSERT INTO before TABLE attachment $$;
CREATE FUNCTION compare() RETURNS TABLE (name text, attachment text, options text) LANGUAGE sql AS $$
	SELECT coalesce(b.name, a.name),
		   CASE WHEN a.id = b.id THEN 'the same' WHEN a.id > b.id THEN 'anew' WHEN b.id IS NULL THEN 'new' ELSE 'ended' END,
		   CASE WHEN a.options = b.options THEN 'the same' ELSE 'others' END
	  FROM attachment a FULL JOIN before b USING (name) ORDER BY 1
$$;
-- What the triggers rest on
CREATE VIEW rests AS
	SELECT t.tgrelid::regclass AS relation, pg_describe_object(refclassid, refobjid, refobjsubid) COLLATE "C" AS what
	  FROM pg_depend d JOIN pg_trigger t ON classid = 'pg_trigger'::regclass AND objid = t.oid JOIN pg_class c ON c.oid = t.tgrelid
	 WHERE t.tgname ~ 'pgcache_fence' AND t.tgparentid = 0 AND deptype = 'n' AND refclassid <> 'pg_proc'::regclass ORDER BY relname COLLATE "C", 2;

-- what a mapper's migration from AutoField to BigAutoField does; a table refers to the column
CREATE TABLE account (id serial PRIMARY KEY, owner text, version int NOT NULL DEFAULT 0, UNIQUE (owner));
CREATE TABLE orders (id int PRIMARY KEY, account int REFERENCES account);
INSERT INTO account (owner) VALUES ('first'), ('second'), ('third');
INSERT INTO orders VALUES (1, 1);
SELECT fence.attach('orders', scope => 'group', key => '{account}');
SELECT fence.attach('account', tag => 'account/{id}', cache => 'row', columns => '{id,owner}', ttl => '1 hour',
					on_redis_failure => 'bypass', publish => 'pubsub');
CREATE FUNCTION title(key bigint) RETURNS jsonb LANGUAGE sql STABLE AS $$ SELECT to_jsonb(upper(owner)) FROM follow.account WHERE id = key $$;
SELECT fence.define_derived('follow.title', '{follow.account(1)}', 'title(bigint)');
-- attach has reserved the table as a whole, and a value comes with a commit once that has ended
CALL wait_until($$(fence.get('follow.account', '1')).status = 'miss'$$);
UPDATE account SET owner = 'First' WHERE id = 1;
DELETE FROM account WHERE id = 3;
SELECT * FROM look('follow.account', '1', '2', '3');
SELECT fence.read_derived('follow.title', '1');
SELECT remember();
BEGIN;
ALTER TABLE account ALTER COLUMN id TYPE bigint USING id::bigint;
ALTER SEQUENCE account_id_seq AS bigint;
ALTER TABLE account ALTER version TYPE bigint;
ALTER TABLE orders DROP CONSTRAINT orders_account_fkey;
ALTER TABLE orders ALTER account TYPE bigint;
ALTER TABLE orders ADD CONSTRAINT orders_account_fkey FOREIGN KEY (account) REFERENCES account DEFERRABLE INITIALLY DEFERRED;
COMMIT;
SELECT * FROM compare();
SELECT * FROM rests;
SELECT * FROM look('follow.account', '1', '2', '3');
SELECT fence.read_derived('follow.title', '1');
UPDATE account SET owner = 'again' WHERE id = 1 RETURNING *;
SELECT (fence.get('follow.account', '1')).payload;
SELECT fence.read_derived('follow.title', '1');
UPDATE orders SET id = 2;
SELECT key, value FROM look('follow.orders', '1');
-- a key that was deleted goes on counting, beyond an integer there is room
INSERT INTO account VALUES (3, 'back'), (3000000000, 'large') RETURNING *;
SELECT * FROM look('follow.account', '3', '3000000000');
-- what the statement does not keep, a transaction takes back as a whole, and a savepoint too
BEGIN;
ALTER TABLE orders DROP CONSTRAINT orders_account_fkey;
SAVEPOINT s;
ALTER TABLE account ALTER id DROP DEFAULT, ALTER id TYPE text USING 'key ' || id;
SELECT * FROM compare();
ROLLBACK TO s;
SELECT * FROM compare();
ALTER TABLE account ALTER id DROP DEFAULT, ALTER id TYPE uuid USING gen_random_uuid();
SELECT * FROM compare();
ROLLBACK;
SELECT * FROM compare();
SELECT * FROM rests;
SELECT * FROM look('follow.account', '1');
-- whatever else fails leaves it as it was
ALTER TABLE account ALTER id TYPE bigint, ADD CHECK (id > 1);
ALTER TABLE account ALTER id TYPE nonsense;
ALTER TABLE IF EXISTS nonsense ALTER id TYPE bigint;
ALTER TABLE account ALTER nonsense TYPE bigint;
SELECT * FROM compare();
SELECT * FROM rests;
DROP TABLE orders, account CASCADE;

-- texts of keys that may be others: it begins anew, under the same name and with the same options
CREATE TABLE item (id int PRIMARY KEY, v text, version bigint NOT NULL DEFAULT 0);
INSERT INTO item SELECT i, 'item ' || i FROM generate_series(1, 3) i;
SELECT fence.attach('item');
CREATE TABLE note (id int PRIMARY KEY, v text);
INSERT INTO note SELECT i, 'note ' || i FROM generate_series(1, 3) i;
SELECT fence.attach('note', version => NULL);
UPDATE item SET v = 'changed' WHERE id = 1;
UPDATE note SET v = 'changed' WHERE id = 1;
DELETE FROM item WHERE id = 3;
SELECT * FROM look('follow.item', '1', '2');
SELECT * FROM look('follow.note', '1', '2');
SELECT remember();
ALTER TABLE item ALTER id TYPE text USING 'x' || id;
ALTER TABLE note ALTER id TYPE text USING 'x' || id;
SELECT * FROM compare();
SELECT fence.wait_open('90 s');
SELECT * FROM look('follow.item', '1', 'x1', 'x2');
SELECT * FROM look('follow.note', '1', 'x1', 'x2');
UPDATE item SET v = 'again' WHERE id = 'x1';
UPDATE note SET v = 'again' WHERE id = 'x1';
SELECT * FROM look('follow.item', '1', 'x1', 'x2');
SELECT * FROM look('follow.note', '1', 'x1', 'x2');
SELECT count(*) FROM fence.tombstone t WHERE NOT EXISTS (SELECT FROM fence.domain d WHERE d.id = t.domain_id);
DROP TABLE note;
TRUNCATE item;
ALTER TABLE item ALTER id TYPE int USING 0;
-- which changes of a type keep the texts of keys
CREATE FUNCTION change(statement text) RETURNS TABLE (attachment text, tombstones bigint) LANGUAGE plpgsql AS $$
BEGIN
	PERFORM remember();
	INSERT INTO fence.tombstone SELECT b.id, '9', 7, now() FROM before b WHERE b.name = 'follow.item' ON CONFLICT DO NOTHING;
	EXECUTE statement;
	RETURN QUERY SELECT c.attachment, (SELECT count(*) FROM fence.tombstone t JOIN before b ON b.id = domain_id WHERE b.name = 'follow.item')
	  FROM compare() c WHERE name = 'follow.item';
END $$;
CREATE TABLE changed (n serial, type text, attachment text, tombstones bigint);
DO $$
DECLARE
	type text;
BEGIN
	FOREACH type IN ARRAY '{bigint, smallint, text, varchar(20), varchar(30), varchar(10), varchar, "text COLLATE \"C\"",
							numeric USING 1, int USING 1, int USING id, int USING id + 0, int USING id::int, bigint USING id::int, "varchar(3) USING id::varchar(3)",
							uuid USING gen_random_uuid()}'::text[]
	LOOP
		INSERT INTO changed (type, attachment, tombstones) SELECT type, c.* FROM change('ALTER TABLE item ALTER id TYPE ' || type) c;
	END LOOP;
END $$;
SELECT type, attachment, tombstones FROM changed ORDER BY n;
SELECT fence.wait_open('90 s');
INSERT INTO item VALUES ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 'of a uuid') RETURNING *;
SELECT * FROM look('follow.item', 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11');
-- no type for a key, nor for a version: the fencing ends, and the statement succeeds
SELECT remember();
BEGIN;
ALTER TABLE item ALTER id TYPE interval USING '1 day';
SELECT * FROM compare() WHERE attachment <> 'the same';
ROLLBACK;
BEGIN;
ALTER TABLE item ALTER version TYPE text;
SELECT * FROM compare() WHERE attachment <> 'the same';
ROLLBACK;
CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
BEGIN;
ALTER TABLE item ALTER id TYPE text COLLATE loose;
SELECT * FROM compare() WHERE attachment <> 'the same';
ROLLBACK;
-- what fits into the column
UPDATE item SET v = 'small';
ALTER TABLE item ALTER version TYPE smallint;
UPDATE item SET v = 'smaller' RETURNING version;
SELECT * FROM look('follow.item', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11');

-- the constraint, and the index
BEGIN;
ALTER TABLE item DROP CONSTRAINT item_pkey;
SELECT * FROM compare() WHERE attachment <> 'the same';
ROLLBACK;
BEGIN;
ALTER TABLE item DROP CONSTRAINT item_pkey, ADD UNIQUE (id) DEFERRABLE;
SELECT * FROM compare() WHERE attachment <> 'the same';
ROLLBACK;
CREATE UNIQUE INDEX other ON item (id) INCLUDE (v);
SELECT remember();
ALTER TABLE item DROP CONSTRAINT item_pkey, ADD PRIMARY KEY USING INDEX other;
SELECT * FROM rests WHERE relation = 'item'::regclass;
SELECT * FROM look('follow.item', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11');
-- a column that is only in the index
ALTER TABLE item ALTER v TYPE varchar(100);
SELECT * FROM rests WHERE relation = 'item'::regclass;
CREATE UNIQUE INDEX one ON item (id);
CREATE UNIQUE INDEX two ON item (id);
ALTER TABLE item DROP CONSTRAINT other;
SELECT count(*) FROM rests WHERE relation = 'item'::regclass AND what ~ 'index (one|two)';
DROP INDEX one;
SELECT * FROM rests WHERE relation = 'item'::regclass;
BEGIN;
DROP INDEX two;
SELECT * FROM compare() WHERE attachment <> 'the same';
ROLLBACK;
DROP INDEX CONCURRENTLY two;
CREATE INDEX plain ON item (v);
DROP INDEX plain, nonsense;
DROP INDEX IF EXISTS plain, nonsense;
SELECT * FROM compare();
UPDATE item SET v = 'in the end';
SELECT * FROM look('follow.item', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11');
-- CASCADE: the same
BEGIN;
DROP INDEX two CASCADE;
SELECT * FROM compare();
ROLLBACK;
BEGIN;
ALTER TABLE item ADD PRIMARY KEY USING INDEX two;
ALTER TABLE item DROP CONSTRAINT two CASCADE;
SELECT * FROM compare();
ROLLBACK;
-- a column of the attachment
BEGIN;
ALTER TABLE item DROP version;
SELECT * FROM compare();
UPDATE item SET v = 'not fenced';
ROLLBACK;
BEGIN;
ALTER TABLE item DROP COLUMN id CASCADE;
SELECT * FROM compare();
ROLLBACK;
-- dropped by other means: the end is told
BEGIN;
CREATE DOMAIN short AS varchar(40);
ALTER TABLE item ALTER id TYPE short;
DROP DOMAIN short CASCADE;
SELECT * FROM compare();
ROLLBACK;
BEGIN;
DROP TABLE item;
ROLLBACK;
-- who is not the owner locks nothing and changes nothing
CREATE ROLE regress_fence_stranger;
GRANT USAGE ON SCHEMA follow TO regress_fence_stranger;
SET ROLE regress_fence_stranger;
ALTER TABLE item ALTER id TYPE text;
DROP INDEX two;
SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND mode = 'AccessExclusiveLock' AND relation = 'item'::regclass;
RESET ROLE;
-- who is, needs no other right
SELECT remember();
ALTER TABLE item OWNER TO regress_fence_stranger;
SET ROLE regress_fence_stranger;
ALTER TABLE follow.item ALTER id TYPE text;
RESET ROLE;
SELECT * FROM compare();
ALTER TABLE item OWNER TO CURRENT_USER;
SELECT fence.wait_open('90 s');
SELECT * FROM look('follow.item', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11');
SELECT remember();
DROP OWNED BY regress_fence_stranger;
DROP ROLE regress_fence_stranger;
BEGIN READ ONLY;
ALTER TABLE item ALTER id TYPE text;
ROLLBACK;
SELECT * FROM compare();

-- an identity column, and a column with another name
CREATE TABLE ident (id int GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, version bigint NOT NULL DEFAULT 0);
SELECT fence.attach('ident', version => NULL);
INSERT INTO ident DEFAULT VALUES;
SELECT remember();
ALTER TABLE ident ALTER id TYPE bigint;
ALTER TABLE ident ALTER id DROP IDENTITY;
ALTER TABLE ident ALTER id ADD GENERATED ALWAYS AS IDENTITY;
SELECT * FROM compare() WHERE name = 'follow.ident';
UPDATE ident SET version = 5;
-- versions beside the table go on, too
SELECT fence.group_version('follow.ident', '1');
SELECT * FROM look('follow.ident', '1');
ALTER TABLE ident RENAME id TO number;
ALTER TABLE ident ALTER number TYPE int;
SELECT * FROM look('follow.ident', '1');
SELECT fence.group_version('follow.ident', '1');

-- a partitioned table; its partitions follow
CREATE TABLE parted (id int, region text, version bigint NOT NULL DEFAULT 0, PRIMARY KEY (region, id)) PARTITION BY LIST (region);
CREATE TABLE north PARTITION OF parted FOR VALUES IN ('north') PARTITION BY LIST (region);
CREATE TABLE south PARTITION OF parted FOR VALUES IN ('south');
ALTER TABLE parted ADD v text;
SELECT fence.attach('parted', key => '{id,region}');
SELECT remember();
ALTER TABLE parted ALTER id TYPE bigint;
CREATE TABLE even PARTITION OF parted FOR VALUES IN ('east');
ALTER TABLE parted ALTER version TYPE int;
INSERT INTO parted VALUES (1, 'south'), (2, 'east');
UPDATE parted SET v = 'moved', region = 'south' WHERE id = 2 RETURNING *;
SELECT k, fence.read('follow.parted', '2', k), (fence.get('follow.parted', '2', k)).status FROM unnest('{south,east}'::text[]) k;
SELECT * FROM compare() WHERE name = 'follow.parted';
SELECT * FROM rests WHERE relation = 'parted'::regclass;
ALTER TABLE south ALTER id TYPE int;
BEGIN;
ALTER TABLE parted DROP CONSTRAINT parted_pkey;
SELECT * FROM compare() WHERE attachment <> 'the same';
ROLLBACK;
ALTER TABLE parted ALTER id SET NOT NULL, ALTER region SET NOT NULL, DROP CONSTRAINT parted_pkey, ADD UNIQUE (region, id);
UPDATE parted SET v = 'unique' WHERE id = 2;
SELECT fence.read('follow.parted', '2', 'south'), (fence.get('follow.parted', '2', 'south')).status;

-- one of two attachments ends; the other goes on with the triggers that it needs
CREATE TABLE person (id int PRIMARY KEY, email text UNIQUE, name text, version bigint NOT NULL DEFAULT 0);
SELECT fence.attach('person'), fence.attach('person', key => '{email}', domain => 'follow.by_email', ttl => '1 hour', cache_absent => true);
INSERT INTO person VALUES (1, 'a@b.c', 'old');
SELECT * FROM look('follow.person', '1');
ALTER TABLE person DROP COLUMN email CASCADE;
SELECT name FROM attachment WHERE name ~ 'person|email';
SELECT * FROM rests WHERE relation = 'person'::regclass;
UPDATE person SET name = 'new';
SELECT * FROM look('follow.person', '1');
-- a child: what was cached is served neither now nor when the table is fenced again
CREATE TABLE pupil () INHERITS (person);
SELECT fence.read('follow.person', '1');
SELECT count(*) FROM pg_trigger WHERE tgrelid = 'person'::regclass AND tgname ~ 'pgcache_fence';
UPDATE person SET name = 'newer';
DROP TABLE pupil;
SELECT fence.attach('follow.person', key => ARRAY['id']);
SELECT * FROM look('follow.person', '1');
CREATE TABLE pupil (LIKE person);
CREATE TABLE IF NOT EXISTS pupil () INHERITS (person);
SELECT count(*) FROM fence.domains WHERE domain = 'follow.person';
ALTER TABLE pupil INHERIT person;
ALTER TABLE pupil NO INHERIT person;
SELECT fence.attach('person');
-- storage; a role that may alter a partition only; two-phase commit
BEGIN;
ALTER TABLE person SET UNLOGGED;
PREPARE TRANSACTION 'follow';
SELECT count(*) FROM fence.domains WHERE domain = 'follow.person';
BEGIN;
CREATE ACCESS METHOD other TYPE TABLE HANDLER heap_tableam_handler;
ALTER TABLE person SET ACCESS METHOD other;
ROLLBACK;
CREATE ROLE regress_fence_stranger;
GRANT USAGE ON SCHEMA follow TO regress_fence_stranger;
ALTER TABLE south OWNER TO regress_fence_stranger;
SET ROLE regress_fence_stranger;
ALTER TABLE follow.south SET UNLOGGED;
RESET ROLE;
ALTER TABLE south OWNER TO CURRENT_USER;
DROP OWNED BY regress_fence_stranger;
DROP ROLE regress_fence_stranger;
DROP TABLE person CASCADE;

-- children, each fenced by itself; a group; a domain by hand
CREATE TABLE ancestor (id int, room int, version int NOT NULL DEFAULT 0);
CREATE TABLE child (PRIMARY KEY (id)) INHERITS (ancestor);
CREATE TABLE crowd () INHERITS (ancestor);
CREATE TABLE hand (PRIMARY KEY (id)) INHERITS (ancestor);
SELECT fence.attach('child'), fence.attach('crowd', scope => 'group', key => '{room}'), fence.attach('hand', scope => 'manual');
INSERT INTO child VALUES (1, 1);
INSERT INTO crowd VALUES (1, 1);
SELECT remember();
ALTER TABLE ONLY ancestor ALTER id TYPE bigint;
ALTER TABLE ancestor ALTER id TYPE bigint, ALTER room TYPE bigint, ALTER version TYPE bigint;
SELECT * FROM compare();
SELECT * FROM rests WHERE relation IN ('child'::regclass, 'crowd'::regclass, 'hand'::regclass);
UPDATE child SET room = 2 RETURNING *;
UPDATE crowd SET id = 2;
SELECT fence.group_version('follow.crowd', '1');
SELECT * FROM look('follow.child', '1');

-- within a procedure, whose statement sees the end of a transaction; prepared, unless the attachment begins anew
CREATE PROCEDURE widen() LANGUAGE plpgsql AS $$
BEGIN
	ALTER TABLE ident ALTER number TYPE bigint;
	COMMIT;
	ALTER TABLE ident ALTER number TYPE int;
END $$;
CALL widen();
SELECT * FROM compare() WHERE name = 'follow.ident';
SELECT * FROM look('follow.ident', '1');
BEGIN;
ALTER TABLE ident ALTER number TYPE bigint;
PREPARE TRANSACTION 'follow';
COMMIT PREPARED 'follow';
SELECT * FROM compare() WHERE name = 'follow.ident';
SELECT fence.read('follow.ident', '1');
BEGIN;
ALTER TABLE item ALTER id TYPE varchar(40);
PREPARE TRANSACTION 'follow';
SELECT * FROM compare() WHERE name = 'follow.item';

SET client_min_messages = warning;
DROP SCHEMA follow CASCADE;
SELECT fence.drop_derived('follow.title');
SELECT count(*) FROM fence.domain WHERE name LIKE 'follow.%';
