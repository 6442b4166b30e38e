--
-- Programs that load data disable all triggers, and enable them afterwards. Ours fire all the same.
--
\set schema loaders
\i test/lib/regress.sql
SELECT fence.wait_open('90 s');

CREATE TABLE author (id int PRIMARY KEY, name text, version bigint NOT NULL DEFAULT 0);
CREATE TABLE book (id int PRIMARY KEY, author int REFERENCES author, title text);
CREATE TABLE plain (id int PRIMARY KEY);
CREATE FUNCTION never() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'this trigger must not fire'; END $$;
CREATE TRIGGER aaa BEFORE INSERT OR UPDATE ON book FOR EACH ROW EXECUTE FUNCTION never();
CREATE TRIGGER aaa BEFORE INSERT ON plain FOR EACH ROW EXECUTE FUNCTION never();
SELECT fence.attach('author'), fence.attach('book', version => NULL);
CREATE VIEW triggers AS SELECT tgrelid::regclass AS relation, CASE WHEN tgisinternal THEN 'a foreign key''s' ELSE tgname END AS name, tgenabled
  FROM pg_trigger JOIN pg_class c ON c.oid = tgrelid
 WHERE relnamespace = 'loaders'::regnamespace ORDER BY relname COLLATE "C", tgisinternal, tgname COLLATE "C";
CREATE PROCEDURE seed() LANGUAGE plpgsql AS $$
BEGIN
	CALL wait_for('loaders.author', '1');
	CALL wait_for('loaders.book', '1');
	PERFORM fence.read('loaders.author', i::text), fence.read('loaders.book', i::text) FROM generate_series(1, 2) i;
	COMMIT;
END $$;
CREATE VIEW look AS
	SELECT i, (fence.get('loaders.author', i::text)).status AS author, fence.read('loaders.author', i::text) ->> 'name' AS name,
		   (fence.get('loaders.book', i::text)).status AS book, fence.read('loaders.book', i::text) ->> 'title' AS title
	  FROM generate_series(1, 2) i;

-- as fixtures are loaded: one statement for each table, children before their parents
CREATE PROCEDURE fixtures(label text, what text) LANGUAGE plpgsql AS $$
DECLARE
	t regclass;
BEGIN
	FOREACH t IN ARRAY '{author,book,plain}'::regclass[] LOOP EXECUTE format('ALTER TABLE %s DISABLE TRIGGER %s', t, what); END LOOP;
	DELETE FROM book;
	IF what = 'ALL' THEN
		DELETE FROM author;
	END IF;
	INSERT INTO book SELECT i, i, label || i FROM generate_series(1, 2) i;
	INSERT INTO author SELECT i, label || i FROM generate_series(1, 2) i ON CONFLICT (id) DO UPDATE SET name = excluded.name;
	FOREACH t IN ARRAY '{author,book,plain}'::regclass[] LOOP EXECUTE format('ALTER TABLE %s ENABLE TRIGGER %s', t, what); END LOOP;
END $$;
CALL fixtures('first ', 'ALL');
SELECT * FROM triggers;
CALL seed();
SELECT * FROM look;
CALL fixtures('second ', 'ALL');
SELECT * FROM look;
SELECT * FROM triggers;
CALL seed();
CALL fixtures('third ', 'USER');
SELECT * FROM look;
SELECT * FROM triggers;

-- the notice came with the first of them; now as the others
CALL seed();
ALTER TABLE author DISABLE TRIGGER ALL;
ALTER TABLE book DISABLE TRIGGER USER, ADD COLUMN more int;
SELECT * FROM triggers;
CALL seed();
UPDATE author SET name = 'updated' WHERE id = 1;
UPDATE book SET title = 'updated' WHERE id = 2;
SELECT * FROM look;
CALL seed();
BEGIN;
TRUNCATE book;
DELETE FROM author WHERE id = 1;
COPY author (id, name) FROM STDIN;
1	copied
\.
COMMIT;
SELECT * FROM look;
ALTER TABLE author ENABLE TRIGGER ALL;
ALTER TABLE book ENABLE TRIGGER USER, DROP COLUMN more;
ALTER TABLE plain ENABLE TRIGGER ALL;
SELECT * FROM triggers;
-- by name they are what they were: the others can be disabled, ours cannot
ALTER TABLE book DISABLE TRIGGER aaa;
ALTER TABLE book DISABLE TRIGGER zzz_pgcache_fence_after;
ALTER TABLE book ENABLE TRIGGER zzz_pgcache_fence_after;
SELECT * FROM triggers WHERE relation = 'book'::regclass;

-- partitions
CREATE TABLE parted (id int PRIMARY KEY, v text, version bigint NOT NULL DEFAULT 0) PARTITION BY LIST (id);
CREATE TABLE part PARTITION OF parted FOR VALUES IN (1);
CREATE TRIGGER aaa AFTER UPDATE ON parted FOR EACH ROW EXECUTE FUNCTION never();
SELECT fence.attach('parted');
ALTER TABLE parted DISABLE TRIGGER ALL;
SELECT * FROM triggers WHERE relation IN ('parted'::regclass, 'part'::regclass);
ALTER TABLE parted ENABLE TRIGGER ALL;
ALTER TABLE ONLY parted DISABLE TRIGGER USER;
ALTER TABLE part DISABLE TRIGGER ALL;
SELECT * FROM triggers WHERE relation IN ('parted'::regclass, 'part'::regclass);
INSERT INTO parted VALUES (1, 'old');
CALL wait_for('loaders.parted', '1');
SELECT fence.read('loaders.parted', '1') ->> 'v';
UPDATE part SET v = 'new';
SELECT (fence.get('loaders.parted', '1')).status, fence.read('loaders.parted', '1') ->> 'v';
ALTER TABLE part ENABLE TRIGGER USER;
ALTER TABLE parted ENABLE TRIGGER USER;
SELECT * FROM triggers WHERE relation IN ('parted'::regclass, 'part'::regclass);

-- a table that a restore has brought before its attachment: our triggers refuse its rows, unless they are disabled
CREATE TABLE early (id int PRIMARY KEY, version bigint NOT NULL DEFAULT 0);
SELECT fence.attach('early');
BEGIN;
DELETE FROM fence.domain WHERE name = 'loaders.early';
SAVEPOINT s;
INSERT INTO early VALUES (1);
ROLLBACK TO s;
ALTER TABLE early DISABLE TRIGGER ALL;
INSERT INTO early VALUES (1);
SELECT * FROM triggers WHERE relation = 'early'::regclass;
ALTER TABLE early ENABLE TRIGGER ALL;
SELECT * FROM triggers WHERE relation = 'early'::regclass;
ROLLBACK;
-- the trigger of fence.domain itself, which completes what a restore brings
ALTER TABLE fence.domain DISABLE TRIGGER ALL;
ALTER TABLE fence.domain DISABLE TRIGGER USER;
SELECT tgname, tgenabled FROM pg_trigger WHERE tgrelid = 'fence.domain'::regclass;
ALTER TABLE fence.domain ENABLE TRIGGER ALL;
SELECT tgname, tgenabled FROM pg_trigger WHERE tgrelid = 'fence.domain'::regclass;

-- who may not, gets the errors that he would get without us
CREATE ROLE regress_fence_loader;
GRANT USAGE ON SCHEMA loaders TO regress_fence_loader;
SET ROLE regress_fence_loader;
ALTER TABLE loaders.book DISABLE TRIGGER ALL;
RESET ROLE;
GRANT CREATE ON SCHEMA loaders TO regress_fence_loader;
ALTER TABLE plain OWNER TO regress_fence_loader;
ALTER TABLE author OWNER TO regress_fence_loader;
SET ROLE regress_fence_loader;
ALTER TABLE loaders.author DISABLE TRIGGER USER;
DO $$
BEGIN
	ALTER TABLE loaders.author DISABLE TRIGGER ALL;
EXCEPTION WHEN insufficient_privilege THEN
	RAISE NOTICE '%', regexp_replace(sqlerrm, '[0-9]+', 'N');
END $$;
RESET ROLE;
BEGIN READ ONLY;
ALTER TABLE author DISABLE TRIGGER ALL;
ROLLBACK;
ALTER TABLE nonsense DISABLE TRIGGER ALL;
ALTER TABLE IF EXISTS nonsense DISABLE TRIGGER ALL;
SELECT * FROM triggers WHERE relation IN ('author'::regclass, 'plain'::regclass);

SET client_min_messages = warning;
DROP SCHEMA loaders CASCADE;
DROP ROLE regress_fence_loader;
