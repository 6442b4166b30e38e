--
-- fence.doctor: what it finds in the tables of a database. Findings about the server and Redis are in test/t/operate/doctor.pl.
--
\set schema doctor
\i test/lib/regress.sql

-- Findings about this schema.
CREATE FUNCTION found() RETURNS TABLE (severity text, finding text, hint text) LANGUAGE sql AS $$
	SELECT d.severity, d.finding, d.hint FROM fence.doctor() d
	 WHERE d.finding LIKE '%doctor.%' OR d.hint LIKE '%doctor.%' ORDER BY d.severity, d.finding COLLATE "C"
$$;

CREATE TABLE item (id int PRIMARY KEY, v text, version bigint NOT NULL DEFAULT 0);
CREATE TABLE room (id int, part int, version bigint NOT NULL DEFAULT 0, PRIMARY KEY (part, id)) PARTITION BY LIST (part);
CREATE TABLE room_1 PARTITION OF room FOR VALUES IN (1);
INSERT INTO item VALUES (1, 'a'), (2, 'b');
SELECT fence.attach('item');
SELECT fence.attach('room');
CALL wait_for('doctor.item', '1');
SELECT * FROM found();
SELECT severity, finding FROM fence.doctor() WHERE severity = 'ok' AND (finding LIKE '%trigger%' OR finding LIKE '%index%');

-- a table that is left out
CREATE TABLE forgotten (id int PRIMARY KEY, version int NOT NULL);
CREATE TABLE no_key (id int, version int NOT NULL);
CREATE TABLE no_number (id int PRIMARY KEY, version text NOT NULL);
SELECT * FROM found();
DROP TABLE forgotten, no_key, no_number;

-- what several attachments make possible: the same twice, in vain, dear, read by nobody
CREATE TABLE busy (id int PRIMARY KEY, a int, b int, c int, d int, e int, version int NOT NULL DEFAULT 0);
SELECT fence.attach('busy', columns => '{id,a}', only_columns => true), fence.attach('busy', domain => 'doctor.busy_again');
SELECT fence.attach('busy', key => ARRAY[column_name]::name[], scope => 'group', domain => 'doctor.busy_' || column_name)
  FROM unnest('{a,b,c,d}'::text[]) column_name;
SELECT * FROM found();
SELECT fence.attach('busy', key => '{e}', scope => 'group', domain => 'doctor.busy_e');
SELECT * FROM found();
SELECT fence.detach('busy', 'doctor.busy_' || column_name) FROM unnest('{again,a,b,c,d,e}'::text[]) column_name;
SELECT fence.attach('busy', key => '{}', domain => 'doctor.busy_all');
INSERT INTO busy SELECT g FROM generate_series(1, 10001) g;
ANALYZE busy;
SELECT * FROM found();
SELECT relation, count FROM fence.audit('doctor.busy', 0.2) WHERE count > 0 AND relation <> 'missing';
SELECT severity, regexp_replace(finding, '[0-9]+', 'N') AS finding, hint FROM found();
DROP TABLE busy;

-- Nothing of the following can be done in a usual way: it takes the catalogues themselves.
SET allow_system_table_mods = on;
UPDATE pg_trigger SET tgenabled = 'O' WHERE tgrelid = 'item'::regclass AND tgname = 'zzz_pgcache_fence_after';
UPDATE pg_trigger SET tgenabled = 'D' WHERE tgrelid = 'room_1'::regclass AND tgname = 'zzz_pgcache_fence_before';
SELECT * FROM found();
UPDATE pg_trigger SET tgenabled = 'A' WHERE tgrelid IN ('item'::regclass, 'room_1'::regclass) AND tgname LIKE 'zzz%';
SELECT * FROM found();

UPDATE pg_trigger SET tgname = 'renamed' WHERE tgrelid = 'item'::regclass AND tgname = 'zzz_pgcache_fence_truncate';
SELECT * FROM found();
UPDATE pg_trigger SET tgname = 'zzz_pgcache_fence_truncate' WHERE tgrelid = 'item'::regclass AND tgname = 'renamed';

UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'item_pkey'::regclass;
SELECT * FROM found();
UPDATE pg_index SET indisvalid = true WHERE indexrelid = 'item_pkey'::regclass;
SELECT * FROM found();

UPDATE fence.domain SET relation = 999999999 WHERE name = 'doctor.room';
SELECT * FROM found();
UPDATE fence.domain SET relation = 'room'::regclass WHERE name = 'doctor.room';
SELECT * FROM found();

UPDATE pg_extension SET extversion = '0.9' WHERE extname = 'pgcache_fence';
-- (Debian's PostgreSQL 17 does not list what is in extension_destdir, where the tests install)
SELECT severity, finding, hint FROM fence.doctor() WHERE finding LIKE '%version 0.9%'
UNION ALL
SELECT 'warning', 'the extension has version 0.9 in this database, the installed files have 1.0', 'ALTER EXTENSION pgcache_fence UPDATE.'
WHERE NOT EXISTS (SELECT FROM pg_available_extensions WHERE name = 'pgcache_fence');
UPDATE pg_extension SET extversion = '1.0' WHERE extname = 'pgcache_fence';

-- a transaction that is prepared and forgotten
BEGIN;
UPDATE item SET v = 'x' WHERE id = 1;
PREPARE TRANSACTION 'doctor.forgotten';
CALL wait_until($$EXISTS (SELECT FROM fence.doctor() WHERE finding LIKE 'prepared transaction%')$$);
SELECT severity, regexp_replace(finding, 'for .*', 'for TIME') AS finding, hint FROM found();
ROLLBACK PREPARED 'doctor.forgotten';

-- writes past the triggers: a promise is broken, and told
CALL wait_until($$NOT EXISTS (SELECT FROM fence.pending WHERE domain = 'doctor.item')$$);
SELECT fence.reset_metrics();
SELECT fence.read('doctor.item', '1') ->> 'version' AS version;
BEGIN;
UPDATE pg_trigger SET tgenabled = 'D' WHERE tgrelid = 'item'::regclass AND tgname LIKE 'zzz%';
UPDATE pg_class SET relname = relname WHERE oid = 'item'::regclass;	-- so that the table is looked at anew
UPDATE item SET version = version + 1 WHERE id = 1 RETURNING version;
UPDATE pg_trigger SET tgenabled = 'A' WHERE tgrelid = 'item'::regclass AND tgname LIKE 'zzz%';
UPDATE pg_class SET relname = relname WHERE oid = 'item'::regclass;
COMMIT;
-- the patrol's own audit may find it first
SET client_min_messages = error;
SELECT count(*) FROM fence.audit('doctor.item');
SELECT severity, regexp_replace(finding, '^\d+', 'N') AS finding, hint FROM found();
SELECT count(*) FROM fence.repair('doctor.item', '1');
RESET client_min_messages;
SELECT fence.reset_metrics();
SELECT * FROM found();
RESET allow_system_table_mods;

SET client_min_messages = warning;
DROP SCHEMA doctor CASCADE;
