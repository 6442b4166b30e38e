-- What can be fenced and what cannot, and everything that ends an attachment.
\set schema att
\i test/lib/regress.sql
\pset format unaligned
\pset tuples_only on
\pset null '(null)'

-- SQLSTATE, message, detail and hint of a statement that must fail, one a line
CREATE FUNCTION fails(sql text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    detail text;
    hint text;
BEGIN
    EXECUTE sql;
    RETURN 'no error';
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
    RETURN concat_ws(E'\n', SQLSTATE || ' ' || SQLERRM, '  DETAIL ' || nullif(detail, ''), '  HINT ' || nullif(hint, ''));
END$$;

-- fence.attach with these arguments must fail
CREATE FUNCTION refused(arguments text) RETURNS text LANGUAGE sql AS
    $$SELECT fails('SELECT fence.attach(' || arguments || ')')$$;

-- Our triggers on a table, and how they are enabled
CREATE VIEW triggers AS
    SELECT tgrelid::regclass AS relation, tgname, tgenabled FROM pg_trigger
     WHERE tgfoid::regproc::text ~ '^fence\.' AND tgrelid <> 'fence.domain'::regclass ORDER BY 1, 2;
CREATE VIEW domains AS
    SELECT * FROM fence.domains WHERE relation IN (SELECT oid FROM pg_class WHERE relnamespace = 'att'::regnamespace)
     ORDER BY domain;

CREATE TABLE good (id bigint PRIMARY KEY, other text, version integer NOT NULL DEFAULT 0);

-- ---------------------------------------------------------------------------------------------------------------------
-- Arguments
-- ---------------------------------------------------------------------------------------------------------------------
SELECT refused($$'good', scope => 'table'$$);
SELECT refused($$'good', scope => 'group'$$);
SELECT refused($$'good', scope => NULL$$);
SELECT refused($$'good', cache => 'all'$$);
SELECT refused($$'good', cache => NULL$$);
SELECT refused($$'good', cache => 'row', scope => 'group', key => '{other}'$$);
SELECT refused($$'good', cache => 'row', scope => 'manual'$$);
SELECT refused($$'good', publish => 'channel'$$);
SELECT refused($$'good', publish => NULL$$);
SELECT refused($$'good', on_redis_failure => 'ignore'$$);
SELECT refused($$'good', cache_absent => true, scope => 'group', key => '{other}'$$);
SELECT refused($$'good', cache_absent => true, scope => 'manual'$$);
SELECT refused($$'good', reserve => 'late'$$);
SELECT refused($$'good', ttl => '-1 second'$$);
SELECT refused($$'good', ttl => '0'$$);
SELECT refused($$'good', ttl => '11 years'$$);
SELECT refused($$'good', domain => ''$$);
SELECT refused($$'good', domain => repeat('x', 64)$$);
SELECT refused($$'good', domain => repeat('é', 32)$$);
SELECT refused($$'good', columns => '{id,nosuch}'$$);
SELECT refused($$'good', columns => '{id,ctid}'$$);
SELECT refused($$'good', columns => ARRAY['id', NULL]::name[]$$);
SELECT refused($$'good', tag => 'constant'$$);
SELECT refused($$'good', tag => ''$$);
SELECT refused($$'good', tag => 'x/{other}'$$);
SELECT refused($$'good', tag => '{id'$$);
SELECT refused($$'good', tag => '{}'$$);
SELECT refused($$'good', tag => 'a}{id}'$$);
SELECT refused($$'good', tag => '{id}:x'$$);
SELECT refused($$NULL$$);
SELECT refused($$NULL, domain => 'x'$$);
SELECT refused($$NULL, scope => 'manual'$$);
SELECT refused($$NULL, scope => 'manual', domain => 'x', key => '{a}'$$);
SELECT refused($$NULL, scope => 'manual', domain => 'x', add_version => true$$);
SELECT refused($$4294967295::oid$$);

-- ---------------------------------------------------------------------------------------------------------------------
-- Relations
-- ---------------------------------------------------------------------------------------------------------------------
CREATE VIEW a_view AS SELECT 1 AS id;
CREATE MATERIALIZED VIEW a_matview AS SELECT 1 AS id;
CREATE SEQUENCE a_sequence;
CREATE TYPE a_type AS (id int, version int);
CREATE FOREIGN DATA WRAPPER a_wrapper;
CREATE SERVER a_server FOREIGN DATA WRAPPER a_wrapper;
CREATE FOREIGN TABLE a_foreign_table (id int NOT NULL, version int) SERVER a_server;
CREATE TEMP TABLE a_temp_table (id int PRIMARY KEY, version int);
CREATE UNLOGGED TABLE an_unlogged_table (id int PRIMARY KEY, version int);
CREATE TABLE partitioned (id int PRIMARY KEY, version int) PARTITION BY RANGE (id);
CREATE TABLE a_partition PARTITION OF partitioned FOR VALUES FROM (0) TO (10);
CREATE TABLE parent (id int PRIMARY KEY, version int);
CREATE TABLE child (PRIMARY KEY (id)) INHERITS (parent);
SELECT refused($$'a_view'$$);
SELECT refused($$'a_matview'$$);
SELECT refused($$'a_sequence'$$);
SELECT refused($$'a_type'$$);
SELECT refused($$'good_pkey'$$);
SELECT refused($$'a_foreign_table'$$);
SELECT refused($$'a_temp_table'$$);
SELECT refused($$'an_unlogged_table'$$);
SELECT refused($$'a_partition'$$);
SELECT refused($$'parent'$$);
SELECT refused($$'pg_catalog.pg_class'$$);
SELECT refused($$'fence.domain'$$);

-- ---------------------------------------------------------------------------------------------------------------------
-- Keys
-- ---------------------------------------------------------------------------------------------------------------------
CREATE TABLE keyless (a int NOT NULL, b int NOT NULL, c int, version int);
SELECT refused($$'keyless'$$);
SELECT refused($$'keyless', key => '{}', scope => 'manual'$$);
SELECT refused($$'keyless', key => '{a,nosuch}'$$);
SELECT refused($$'keyless', key => '{xmin}'$$);
SELECT refused($$'keyless', key => '{a,b,a}'$$);
SELECT refused($$'keyless', key => ARRAY['a', NULL]::name[]$$);
SELECT refused($$'keyless', key => '{a}'$$);
CREATE UNIQUE INDEX unfit ON keyless (a) WHERE b > 0;
SELECT refused($$'keyless', key => '{a}'$$);
DROP INDEX unfit;
CREATE UNIQUE INDEX unfit ON keyless ((a + 1));
SELECT refused($$'keyless', key => '{a}'$$);
DROP INDEX unfit;
ALTER TABLE keyless ADD CONSTRAINT unfit UNIQUE (a) DEFERRABLE;
SELECT refused($$'keyless', key => '{a}'$$);
ALTER TABLE keyless DROP CONSTRAINT unfit;
INSERT INTO keyless (a, b) VALUES (1, 1), (1, 2);
CREATE UNIQUE INDEX CONCURRENTLY unfit ON keyless (a);
SELECT refused($$'keyless', key => '{a}'$$);
DROP INDEX unfit;
CREATE INDEX not_unique ON keyless (a);
CREATE UNIQUE INDEX too_wide ON keyless (a, b) INCLUDE (c);
SELECT refused($$'keyless', key => '{a}'$$);
SELECT refused($$'keyless', key => '{a,b,c}'$$);
-- in any order, columns that the index only carries along do not count
BEGIN;
SELECT fence.attach('keyless', key => '{b,a}');
SELECT domain, key FROM domains;
ROLLBACK;
DELETE FROM keyless;
CREATE UNIQUE INDEX nullable ON keyless (c, a);
-- a row with a null in a key column has no key
BEGIN;
SELECT fence.attach('keyless', key => '{a,c}');
ROLLBACK;

-- types whose equal values can look different
CREATE TABLE key_float (id float8 PRIMARY KEY, version int);
CREATE TABLE key_interval (id interval PRIMARY KEY, version int);
CREATE TABLE key_jsonb (id jsonb PRIMARY KEY, version int);
CREATE TABLE key_array (id text[] PRIMARY KEY, version int);
CREATE TABLE key_range (id int4range PRIMARY KEY, version int);
CREATE COLLATION ignore_case (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
CREATE TABLE key_collation (id text COLLATE ignore_case PRIMARY KEY, version int);
SELECT refused($$'key_float'$$);
SELECT refused($$'key_interval'$$);
SELECT refused($$'key_jsonb'$$);
SELECT refused($$'key_array'$$);
SELECT refused($$'key_range'$$);
SELECT refused($$'key_collation'$$);
SELECT refused($$'key_collation', key => '{lower(id)}'$$);
BEGIN;
-- the index decides what is equal
ALTER TABLE key_collation DROP CONSTRAINT key_collation_pkey;
CREATE UNIQUE INDEX ON key_collation (id COLLATE "C");
SELECT fence.attach('key_collation', key => '{id}');
ROLLBACK;

-- ---------------------------------------------------------------------------------------------------------------------
-- Versions
-- ---------------------------------------------------------------------------------------------------------------------
CREATE TABLE versions (id int PRIMARY KEY, n numeric, t text, s smallint, g int GENERATED ALWAYS AS (1) STORED,
                       i int GENERATED BY DEFAULT AS IDENTITY);
SELECT refused($$'versions'$$);
SELECT refused($$'versions', version => NULL, add_version => true$$);
SELECT refused($$'versions', version => 'xmin'$$);
SELECT refused($$'versions', version => 'n'$$);
SELECT refused($$'versions', version => 't', add_version => true$$);
SELECT refused($$'versions', version => 'g'$$);
SELECT refused($$'versions', version => 'i'$$);
SELECT refused($$'versions', version => 'id'$$);
-- a nullable column will do
BEGIN;
SELECT fence.attach('versions', version => 's');
ROLLBACK;
-- adding one rewrites nothing, and is undone with the rest
SELECT pg_relation_filenode('versions') AS before \gset
BEGIN;
SELECT fence.attach('versions', version => 'Row "Version"', add_version => true);
SELECT pg_relation_filenode('versions') = :before AS same_file;
SELECT attname, atttypid::regtype, attnotnull FROM pg_attribute WHERE attrelid = 'versions'::regclass AND attname ~ 'ersion';
SELECT version FROM domains;
ROLLBACK;
SELECT fence.attach('versions', add_version => true);
-- one that is there is used as it is
SELECT fence.detach('versions');
SELECT fence.attach('versions', add_version => true);
SELECT fence.detach('versions');

-- ---------------------------------------------------------------------------------------------------------------------
-- Attaching and detaching
-- ---------------------------------------------------------------------------------------------------------------------
SELECT fence.attach('good', columns => '{other,id}', ttl => '1 hour', on_redis_failure => 'bypass', tag => 'good/{id}');
SELECT * FROM domains;
SELECT * FROM triggers;
SELECT refused($$'good'$$);
SELECT refused($$'versions', domain => 'att.good'$$);
SELECT fails('SELECT fence.detach(''versions'')');
-- its triggers stay as they are
SELECT fails('ALTER TABLE good DISABLE TRIGGER zzz_pgcache_fence_after') ~ '^0A000';
SELECT fails('DROP EXTENSION pgcache_fence') ~ '^2BP01';
-- what does not touch it may change
ALTER TABLE good ADD COLUMN more text DEFAULT 'x';
ALTER TABLE good DROP COLUMN more;
ALTER TABLE good RENAME COLUMN other TO another;
-- a renamed column does not come back by guessing
BEGIN;
ALTER TABLE good RENAME COLUMN id TO key;
SELECT fails('SELECT fence.fence_key(''att.good'', ''1'')');
SELECT fails('INSERT INTO good VALUES (1)');
SELECT fence.detach('good');
SELECT fence.attach('good');
SELECT key FROM domains;
ROLLBACK;
-- the domain keeps its name
BEGIN;
ALTER TABLE good RENAME TO better;
ALTER TABLE better SET SCHEMA public;
SELECT d.domain, d.relation FROM fence.domains d WHERE d.relation = 'public.better'::regclass;
INSERT INTO public.better VALUES (1);
ROLLBACK;

-- Each of these ends the attachment, and nothing is left of it.
CREATE FUNCTION ends(VARIADIC statements text[]) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    ended bigint := (SELECT id FROM fence.domain WHERE name = 'att.good');
    one text;
    said text;
BEGIN
    INSERT INTO good VALUES (1), (2);
    DELETE FROM good;
    IF (SELECT count(*) FROM fence.tombstone t WHERE t.domain_id = ended) <> 2 THEN
        RAISE 'no tombstones';
    END IF;
    FOREACH one IN ARRAY statements LOOP
        EXECUTE one;
    END LOOP;
    SELECT format('domains %s, tombstones %s, triggers %s',
                  (SELECT count(*) FROM fence.domain d WHERE d.id = ended),
                  (SELECT count(*) FROM fence.tombstone t WHERE t.domain_id = ended),
                  (SELECT count(*) FROM triggers WHERE relation = to_regclass('att.good'))) INTO said;
    RAISE EXCEPTION USING ERRCODE = 'P0099', MESSAGE = said;
EXCEPTION WHEN SQLSTATE 'P0099' THEN
    RETURN SQLERRM;
END$$;
SET client_min_messages = warning;
SELECT ends($$SELECT fence.detach('good')$$);
SELECT ends('DROP TRIGGER zzz_pgcache_fence_after ON good');
SELECT ends('DROP TRIGGER zzz_pgcache_fence_truncate ON good', 'DROP TRIGGER zzz_pgcache_fence_before ON good',
            'DROP TRIGGER zzz_pgcache_fence_after ON good');
SELECT ends('ALTER TABLE good DROP COLUMN id CASCADE');
SELECT ends('ALTER TABLE good DROP COLUMN version CASCADE');
SELECT ends('ALTER TABLE good DROP CONSTRAINT good_pkey CASCADE');
SELECT ends('DROP TABLE good CASCADE');
RESET client_min_messages;
-- all of them were taken back: it is still attached
SELECT domain FROM domains;
SELECT count(*) FROM triggers WHERE relation = 'good'::regclass;
INSERT INTO good VALUES (1), (2);
UPDATE good SET another = 'x' WHERE id = 1;
SELECT id, another FROM good ORDER BY id;
-- the id of an attachment never comes back
SELECT id AS first_id FROM fence.domain WHERE name = 'att.good' \gset
SELECT fence.detach('good');
SELECT fence.attach('good');
SELECT id > :first_id FROM fence.domain WHERE name = 'att.good';
SELECT fence.detach('good');
SELECT fails($$SELECT fence.detach('good')$$);
SELECT fails($$SELECT fence.fence_key('att.good', '1')$$);
-- a detached table is like any other
UPDATE good SET id = id + 10;
TRUNCATE good;

BEGIN;
SELECT fence.attach('good', on_redis_failure => 'error', version => 'version', cache => 'none', publish => 'none');
SELECT on_redis_failure, columns, ttl, tag FROM domains;
ROLLBACK;

-- a savepoint takes an attachment back
BEGIN;
SAVEPOINT s;
SELECT fence.attach('good');
SELECT regexp_replace(fence.fence_key('att.good', '1'), '.*:', '');
ROLLBACK TO s;
SELECT fails($$SELECT fence.fence_key('att.good', '1')$$);
SELECT fence.attach('good', tag => 'x/{id}');
SELECT regexp_replace(fence.fence_key('att.good', '1'), '^[^{]*', '');
ROLLBACK;

-- the same without a table
BEGIN;
SAVEPOINT s;
SELECT fence.attach(NULL, domain => 'att.fleeting', scope => 'manual');
SELECT regexp_replace(fence.fence_key('att.fleeting', '1'), '.*:', '');
ROLLBACK TO s;
SELECT fails($$SELECT fence.fence_key('att.fleeting', '1')$$);
ROLLBACK;

-- ended twice in one statement
BEGIN;
SELECT fence.attach(NULL, domain => 'att.twice', scope => 'manual');
SELECT fails($$SELECT fence.detach_domain(d) FROM unnest(ARRAY['att.twice', 'att.twice']) d$$);
SELECT fence.attach('good');
SELECT fails($$SELECT fence.define_derived('att.twice', '{att.good(1)}', f) FROM (VALUES ('pg_catalog.version()'::regprocedure), ('pg_catalog.version()')) x (f)$$);
SELECT fails($$SELECT fence.drop_derived(d) FROM unnest(ARRAY['att.twice', 'att.twice']) d$$);
SELECT fails($$SELECT fence.define_derived('att.twice', '{att.good(1)}', 4294967295::regprocedure)$$);
ROLLBACK;

-- scope manual: a row trigger guards the table, which needs no version column
CREATE TABLE by_hand (id int PRIMARY KEY, loose int);
SELECT refused($$'by_hand', scope => 'manual', key => '{loose}'$$);
SELECT refused($$'by_hand', scope => 'manual', version => 'v'$$);
SELECT fence.attach('by_hand', scope => 'manual');
SELECT domain, version, scope FROM domains;
SELECT * FROM triggers;
DROP TABLE by_hand;
SELECT count(*) FROM domains;

-- ---------------------------------------------------------------------------------------------------------------------
-- Names
-- ---------------------------------------------------------------------------------------------------------------------
CREATE SCHEMA "odd ""schema""";
CREATE TABLE "odd ""schema"""."Ünï 'table'" ("Key {1}" int, "key,2" text, "Ver$ion" smallint NOT NULL DEFAULT 0,
                                             PRIMARY KEY ("Key {1}", "key,2"));
SET search_path = '';
SELECT fence.attach('"odd ""schema"""."Ünï ''table''"', version => 'Ver$ion', domain => 'Ünï ''d''', tag => '{key,2}');
SELECT pg_catalog.regexp_replace(fence.fence_key('Ünï ''d''', '1', '}'), '^[^:]+:f:\w+\.', '');
INSERT INTO "odd ""schema"""."Ünï 'table'" VALUES (1, 'x');
DELETE FROM "odd ""schema"""."Ünï 'table'";
SELECT fence.detach('"odd ""schema"""."Ünï ''table''"');
SELECT fence.attach('"odd ""schema"""."Ünï ''table''"', version => 'Ver$ion');
SET search_path = att;
-- without a schema in its name only in public
CREATE TABLE public.att_public (id int PRIMARY KEY, version int NOT NULL DEFAULT 0);
SELECT fence.attach('public.att_public');
DROP TABLE public.att_public;
-- something else called like ours is in nobody's way
CREATE SCHEMA decoy;
CREATE TABLE decoy.domain (id int);
CREATE FUNCTION decoy.before_row() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
SET search_path = decoy, att;
SELECT fence.attach('good');
SELECT fence.detach('good');
SET search_path = att;

-- ---------------------------------------------------------------------------------------------------------------------
-- Privileges
-- ---------------------------------------------------------------------------------------------------------------------
CREATE ROLE regress_fence_owner;
CREATE ROLE regress_fence_other;
GRANT USAGE, CREATE ON SCHEMA att TO regress_fence_owner, regress_fence_other;
SET ROLE regress_fence_owner;
CREATE TABLE owned (id int PRIMARY KEY, note text);
GRANT ALL ON owned TO regress_fence_other;
SELECT refused($$'owned'$$);
RESET ROLE;
GRANT EXECUTE ON FUNCTION fence.attach, fence.detach TO regress_fence_owner, regress_fence_other;
SET ROLE regress_fence_other;
SELECT refused($$'owned', add_version => true$$);
SELECT refused($$'good'$$);
SET ROLE regress_fence_owner;
SELECT fence.attach('owned', add_version => true);
SELECT domain, relation FROM fence.domains WHERE domain = 'att.owned';
SET ROLE regress_fence_other;
-- whoever may write the table needs nothing else
INSERT INTO owned VALUES (1), (2);
UPDATE owned SET note = 'x' WHERE id = 2;
DELETE FROM owned WHERE id = 1;
SELECT fails('TABLE fence.tombstone') ~ '^42501';
SELECT fails($$SELECT fence.detach('owned')$$);
SET ROLE regress_fence_owner;
SELECT fence.detach('owned');
SELECT fence.attach('owned');
RESET ROLE;
SET client_min_messages = warning;
DROP OWNED BY regress_fence_owner CASCADE;
SELECT count(*) FROM fence.domain WHERE name = 'att.owned';
DROP OWNED BY regress_fence_other;
DROP ROLE regress_fence_owner, regress_fence_other;

-- ---------------------------------------------------------------------------------------------------------------------
-- The rest goes at once
-- ---------------------------------------------------------------------------------------------------------------------
SELECT fence.attach('good');
SELECT fence.attach('versions');
DROP SCHEMA att, decoy, "odd ""schema""" CASCADE;
SELECT count(*) FROM fence.domain WHERE name ~ '^att\.|^odd';
SELECT count(*) FROM fence.tombstone t WHERE NOT EXISTS (SELECT FROM fence.domain d WHERE d.id = t.domain_id);
DROP FOREIGN DATA WRAPPER a_wrapper CASCADE;
