--
-- What the value of a row is made of: no code of a user runs for it, and nothing beside the row changes it unnoticed.
--
\set schema payloads
\i test/lib/regress.sql
SET client_min_messages = warning;
DROP ROLE IF EXISTS regress_fence_author;
RESET client_min_messages;
SET timezone = 'UTC';

--
-- A role makes types, casts of them to json and a table. A superuser reads and writes it.
--
CREATE ROLE regress_fence_author;
GRANT USAGE, CREATE ON SCHEMA payloads TO regress_fence_author;
GRANT EXECUTE ON FUNCTION fence.attach TO regress_fence_author;
SET ROLE regress_fence_author;
CREATE TYPE mood AS ENUM ('sad', 'glad');
CREATE TYPE span AS RANGE (subtype = float8);
CREATE DOMAIN feeling AS mood;
CREATE TYPE pair AS (m mood, f feeling, n int);
CREATE DOMAIN moods AS mood[];
CREATE FUNCTION trap(mood) RETURNS json LANGUAGE plpgsql AS $$
BEGIN
	RAISE WARNING 'trap runs as %', current_user;
	ALTER ROLE regress_fence_author SUPERUSER;
	RETURN '"trapped"';
END $$;
CREATE FUNCTION trap(span) RETURNS json LANGUAGE sql AS $$ SELECT trap('sad'::mood) $$;
CREATE FUNCTION trap(pair) RETURNS json LANGUAGE sql AS $$ SELECT trap('sad'::mood) $$;
CREATE CAST (mood AS json) WITH FUNCTION trap(mood);
CREATE CAST (span AS json) WITH FUNCTION trap(span) AS IMPLICIT;
CREATE CAST (pair AS json) WITH FUNCTION trap(pair) AS ASSIGNMENT;
CREATE TABLE lure (
	id int PRIMARY KEY, m mood, ms mood[], f feeling, fs feeling[], d moods, ds moods[], s span, ss span_multirange, p pair, ps pair[],
	gone int, n numeric, b bytea, t text, at timestamptz, version bigint NOT NULL DEFAULT 0);
ALTER TABLE lure DROP gone;
INSERT INTO lure VALUES
	(1, 'sad', '{{sad,glad},{glad,NULL}}', 'glad', '{sad}', '{glad}', ARRAY['{sad}'::moods], '[1,2)', '{[1,2),[3,4)}', '(sad,glad,1)',
	 '{"(sad,,2)",NULL}', 1.50, '\xff', E'"\\\n', '2026-01-31 12:00+00'),
	(2, NULL, '{}', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 'NaN', NULL, 'é', NULL);
SELECT fence.attach('lure', cache => 'row');
CREATE TABLE lure_some (id int PRIMARY KEY, m mood, other text, version bigint NOT NULL DEFAULT 0);
INSERT INTO lure_some VALUES (1, 'sad', 'x');
SELECT fence.attach('lure_some', columns => '{id,m}');
CREATE TABLE lure_group (id int NOT NULL, m mood);
INSERT INTO lure_group VALUES (1, 'sad'), (1, 'glad');
SELECT fence.attach('lure_group', key => '{id}', scope => 'group');
CREATE FUNCTION whose_mood(id int) RETURNS mood STABLE LANGUAGE sql AS $$ SELECT m FROM payloads.lure WHERE lure.id = $1 $$;
RESET ROLE;
CALL wait_for('payloads.lure', '1');
CALL wait_for('payloads.lure_some', '1');
CALL wait_for('payloads.lure_group', '1');
SELECT fence.define_derived('mood', '{payloads.lure}', 'payloads.whose_mood(int)');
SELECT fence.read('payloads.lure', id::text) FROM generate_series(1, 2) id;
UPDATE lure SET t = t || '!';
SELECT payload FROM generate_series(1, 2) id, fence.get('payloads.lure', id::text);
SELECT value FROM fence.read_many(fence.fence_keys('payloads.lure', '{1}'));
SELECT fence.read('payloads.lure_some', '1'), fence.read('payloads.lure_group', '1');
SELECT fence.read_derived('mood', '1'), fence.read_derived('mood', '2');
SELECT fence.read_derived('mood', '1');
SELECT sum(count) FROM fence.audit('payloads.lure');
SELECT fence.repair('payloads.lure', '1');
SELECT count(*) FROM fence.explain('payloads.lure', '1') WHERE topic = 'answer';
SELECT rolsuper FROM pg_roles WHERE rolname = 'regress_fence_author';

-- without casts it is what to_jsonb says
DROP CAST (mood AS json);
DROP CAST (span AS json);
DROP CAST (pair AS json);
SELECT fence.read('payloads.lure', id::text) = to_jsonb(lure) FROM lure ORDER BY id;
UPDATE lure SET t = t;
SELECT payload::jsonb = to_jsonb(lure) FROM lure, fence.get('payloads.lure', id::text) ORDER BY id;

--
-- What prints the name of something else
--
CREATE TABLE referred ();
CREATE TYPE refs AS (c regclass, t regtype[]);
CREATE TABLE refers (
	id int PRIMARY KEY, c regclass, cs regclass[], r regrole, p regprocedure, n regnamespace, f regconfig, a aclitem, rr refs,
	version bigint NOT NULL DEFAULT 0);
INSERT INTO refers VALUES (1, 'referred', '{pg_class,NULL}', 10, 'abs(int)', 'pg_catalog', 'simple', 'regress_fence_author=r/regress_fence_author',
	ROW('referred', '{int4}'));
SELECT fence.attach('refers', cache => 'row');
CALL wait_for('payloads.refers', '1');
CREATE FUNCTION referred_as_oids(j jsonb) RETURNS boolean LANGUAGE sql AS $$
	SELECT j - 'version' = jsonb_build_object('id', 1, 'c', o, 'cs', '["1259", null]'::jsonb, 'r', '10', 'p', to_jsonb('abs(int)'::regprocedure::oid),
		   'n', '11', 'f', to_jsonb('simple'::regconfig::oid), 'rr', jsonb_build_object('c', o, 't', '["23"]'::jsonb),
		   'a', format('%s=2/%s', r, r))
	  FROM to_jsonb('payloads.referred'::regclass::oid) o, (SELECT oid FROM pg_roles WHERE rolname = 'regress_fence_author') x (r)
$$;
UPDATE refers SET id = 1;
SELECT referred_as_oids(fence.read('payloads.refers', '1')), status, referred_as_oids(payload::jsonb) FROM fence.get('payloads.refers', '1');
ALTER ROLE regress_fence_author RENAME TO regress_fence_penman;
SELECT status, payload::jsonb = fence.read('payloads.refers', '1') FROM fence.get('payloads.refers', '1');
ALTER ROLE regress_fence_penman RENAME TO regress_fence_author;

--
-- Rows of other tables, composite types, casts: what is cached ends with their changes
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS hstore SCHEMA public;
RESET client_min_messages;
CREATE TABLE part (a int, b text);
CREATE TYPE inner_type AS (x int, y mood);
CREATE DOMAIN parts AS part[];
CREATE TYPE outer_type AS (p parts, i inner_type);
CREATE TABLE whole (id int PRIMARY KEY, o outer_type, h public.hstore, version bigint NOT NULL DEFAULT 0);
CREATE TABLE aloof (id int PRIMARY KEY, version bigint NOT NULL DEFAULT 0);
INSERT INTO whole VALUES (1, ROW(ARRAY[ROW(1, 'b')::part], ROW(1, 'sad')), 'k=>v');
INSERT INTO aloof VALUES (1);
CREATE FUNCTION parts_of() RETURNS SETOF part STABLE LANGUAGE sql AS 'TABLE payloads.part';
SELECT fence.attach('whole'), fence.attach('aloof', cache => 'row');
CALL wait_for('payloads.whole', '1');
CALL wait_for('payloads.aloof', '1');
UPDATE aloof SET id = 1;

-- Caches the row, runs the statement, and shows what readers get; of the other table that stays.
CREATE PROCEDURE try(statement text) LANGUAGE plpgsql AS $$
DECLARE
	deadline timestamptz := clock_timestamp() + '90 s';
	before text;
	after record;
BEGIN
	LOOP
		PERFORM fence.read('payloads.whole', '1');
		SELECT status INTO before FROM fence.get('payloads.whole', '1');
		EXIT WHEN before = 'hit' OR clock_timestamp() > deadline;
		COMMIT;
	END LOOP;
	EXECUTE statement;
	COMMIT;
	SELECT g.status, (SELECT status FROM fence.get('payloads.aloof', '1')) AS aloof, fence.read('payloads.whole', '1') - 'version' AS value
	  INTO after FROM fence.get('payloads.whole', '1') g;
	RAISE NOTICE '% > %: %', before, CASE WHEN after.status = 'hit' THEN 'hit' ELSE 'not' END, after.value;
	IF after.aloof <> 'hit' THEN
		RAISE NOTICE 'the other table: %', after.aloof;
	END IF;
END $$;
CALL try('SELECT 1');
CALL try('ALTER TABLE part RENAME b TO bb');
CALL try('ALTER TABLE part ADD c int');
CALL try('ALTER TABLE part DROP a');
CALL try('ALTER TYPE inner_type RENAME ATTRIBUTE x TO xx');
CALL try('ALTER TYPE inner_type ADD ATTRIBUTE z int');
CALL try('ALTER TYPE outer_type DROP ATTRIBUTE i');
CALL try('ALTER TABLE part SET (fillfactor = 90)');
CALL try('CREATE INDEX ON part (c)');
CALL try('ALTER EXTENSION hstore DROP CAST (public.hstore AS json); DROP CAST (public.hstore AS json)');
CALL try('CREATE CAST (public.hstore AS json) WITH FUNCTION public.hstore_to_json(public.hstore)');
CALL try('ALTER EXTENSION hstore ADD CAST (public.hstore AS json)');
CALL try('CREATE TYPE another AS (a int)');
CALL try('ALTER TYPE another ADD ATTRIBUTE b int');

SET client_min_messages = warning;
DROP EXTENSION hstore CASCADE;
DROP SCHEMA payloads CASCADE;
DROP OWNED BY regress_fence_author;
DROP ROLE regress_fence_author;
