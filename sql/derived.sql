--
-- Derived values: computed from rows of several domains, fresh only while all of them are unchanged.
--
\set schema derived
\i test/lib/regress.sql
\pset null '-'

-- Effective permissions: global defaults, defaults of the room, the member's role, the member's own exceptions.
CREATE TABLE setting (name text COLLATE "C" PRIMARY KEY, permissions text[], version bigint NOT NULL DEFAULT 0);
CREATE TABLE room (room_id int PRIMARY KEY, permissions text[], version bigint NOT NULL DEFAULT 0);
CREATE TABLE member (room_id int, user_id int, role text, version bigint NOT NULL DEFAULT 0, PRIMARY KEY (room_id, user_id));
-- a member may have none: as a group that is a value too
CREATE TABLE exception (room_id int NOT NULL, user_id int NOT NULL, permission text, granted boolean);
CREATE INDEX ON exception (room_id, user_id);
INSERT INTO setting VALUES ('default', '{read}');
INSERT INTO room SELECT i, '{write}' FROM generate_series(1, 2) i;
INSERT INTO member SELECT r, u, 'guest' FROM generate_series(1, 2) r, generate_series(1, 3) u;
SELECT fence.attach('setting'), fence.attach('room', tag => 'room/{room_id}'), fence.attach('member', tag => 'room/{room_id}'),
	   fence.attach('exception', key => '{room_id,user_id}', scope => 'group', tag => 'room/{room_id}');
CALL wait_for('derived.setting', 'default');
CALL wait_for('derived.room', '1');
CALL wait_for('derived.member', '1', '1');
CALL wait_for('derived.exception', '1', '1');

CREATE SEQUENCE computed;
-- It also counts how often it runs.
CREATE FUNCTION permission(room int, usr int) RETURNS jsonb STABLE LANGUAGE plpgsql AS $$
BEGIN
	PERFORM nextval('derived.computed');
	RETURN (
		SELECT jsonb_agg(p ORDER BY p)
		  FROM (SELECT unnest(s.permissions) FROM derived.setting s WHERE s.name = 'default'
				UNION SELECT unnest(r.permissions) FROM derived.room r WHERE r.room_id = room
				UNION SELECT 'manage' FROM derived.member m WHERE m.room_id = room AND m.user_id = usr AND m.role = 'owner'
				UNION SELECT e.permission FROM derived.exception e WHERE e.room_id = room AND e.user_id = usr AND e.granted
				EXCEPT SELECT e.permission FROM derived.exception e WHERE e.room_id = room AND e.user_id = usr AND NOT e.granted) x (p)
		 WHERE EXISTS (SELECT FROM derived.member m WHERE m.room_id = room AND m.user_id = usr));
END $$;
SELECT fence.define_derived('permission', '{derived.member,derived.exception,derived.room($1),derived.setting(default)}',
							'permission(int, int)');
SELECT name, compute, sources, ttl FROM fence.derived WHERE name = 'permission';

-- What it is for all members, and how often it was computed for that.
CREATE FUNCTION everybody(OUT permissions text, OUT times_computed bigint) LANGUAGE plpgsql AS $$
DECLARE
	before bigint := nextval('derived.computed');
BEGIN
	SELECT string_agg(room_id || '/' || user_id || ' ' || coalesce(p #>> '{}', '-'), '; ' ORDER BY room_id, user_id) INTO permissions
	  FROM (SELECT *, fence.read_derived('permission', room_id::text, user_id::text) p FROM derived.member) x;
	times_computed := nextval('derived.computed') - before - 1;
END $$;

\x
SELECT * FROM everybody();
SELECT * FROM everybody();
-- one member: only that member's
UPDATE member SET role = 'owner' WHERE room_id = 1 AND user_id = 2;
SELECT * FROM everybody();
INSERT INTO exception VALUES (1, 1, 'write', false), (1, 1, 'invite', true);
SELECT * FROM everybody();
DELETE FROM exception WHERE permission = 'invite';
SELECT * FROM everybody();
-- the room's defaults: all of the room's
UPDATE room SET permissions = '{write,invite}' WHERE room_id = 1;
SELECT * FROM everybody();
SELECT * FROM everybody();
-- the global defaults: all
UPDATE setting SET permissions = '{read,search}' WHERE name = 'default';
SELECT * FROM everybody();
SELECT * FROM everybody();
-- a bulk change of one source: all
SET pgcache_fence.bulk_threshold = 1;
UPDATE room SET permissions = '{}';
RESET pgcache_fence.bulk_threshold;
SELECT * FROM everybody();
SELECT * FROM everybody();
\x

-- while a source is being written it is computed, seen by the writer, and not kept
BEGIN;
UPDATE member SET role = 'owner' WHERE room_id = 2 AND user_id = 1;
SELECT fence.read_derived('permission', '2', '1');
ROLLBACK;
SELECT fence.read_derived('permission', '2', '1');
-- an old snapshot is computed in, and not kept
UPDATE member SET role = 'owner' WHERE room_id = 2 AND user_id = 1;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT fence.read_derived('permission', '2', '1');
SELECT f.status FROM fence.derived_keys('permission', '2', '1') k, fence.get_many(k.fence) f;
COMMIT;
SELECT fence.read_derived('permission', '2', '1');
SELECT times_computed FROM everybody();

-- a source that has no row has no version: it is computed each time
SELECT fence.read_derived('permission', '2', '77'), fence.read_derived('permission', '1', '77');
DELETE FROM member WHERE room_id = 2 AND user_id = 3;
SELECT fence.read_derived('permission', '2', '3'), currval('computed') AS before \gset
SELECT fence.read_derived('permission', '2', '3'), currval('computed') - :before AS times_computed;
INSERT INTO member VALUES (2, 3, 'owner');
SELECT fence.read_derived('permission', '2', '3');
SELECT times_computed FROM everybody();

-- unless its absence is cached
CREATE TABLE pardon (user_id int PRIMARY KEY, version bigint NOT NULL DEFAULT 0);
SELECT fence.attach('pardon', cache_absent => true);
CALL wait_for('derived.pardon', '1');
CREATE FUNCTION pardoned(usr int) RETURNS boolean STABLE LANGUAGE plpgsql AS $$
BEGIN
	PERFORM nextval('derived.computed');
	RETURN EXISTS (SELECT FROM derived.pardon WHERE user_id = usr);
END $$;
SELECT fence.define_derived('pardoned', '{derived.pardon}', 'pardoned(int)');
SELECT fence.read_derived('pardoned', '1'), currval('computed') AS before \gset
SELECT fence.read_derived('pardoned', '1'), currval('computed') - :before AS times_computed;
INSERT INTO pardon VALUES (1);
-- its version is another one than that of its absence
SELECT fence.read('derived.pardon', '1');
SELECT fence.read_derived('pardoned', '1'), fence.read_derived('pardoned', '1'), currval('computed') - :before AS times_computed;
DELETE FROM pardon;
SELECT fence.read_derived('pardoned', '1'), fence.read_derived('pardoned', '1'), currval('computed') - :before AS times_computed;
SELECT fence.drop_derived('pardoned');

-- arguments are one whatever they are spelled like
SELECT regexp_replace(fence, '^.*?:f:\w+\.', '') AS fence,
	   regexp_replace(regexp_replace(value, '^.*?:v:\w+\.', ''), 'permission\.[0-9]+', 'permission.N') AS value
  FROM fence.derived_keys('permission', ' 01', '2 ');
SELECT fence.read_derived('permission', ' 01', '2 '), currval('computed') AS before \gset
SELECT fence.read_derived('permission', '1', '2'), currval('computed') - :before AS times_computed;

-- another definition of the name takes the place of the former; its values are others
CREATE FUNCTION role_of(room int, usr int) RETURNS text STABLE LANGUAGE sql
	BEGIN ATOMIC SELECT role FROM member WHERE room_id = room AND user_id = usr; END;
SELECT fence.define_derived('permission', '{derived.member}', 'role_of(int, int)', '1 minute');
SELECT sources, ttl FROM fence.derived WHERE name = 'permission';
SELECT fence.read_derived('permission', '1', '2'), fence.read_derived('permission', '1', '2');
UPDATE member SET role = NULL WHERE room_id = 1 AND user_id = 2;
SELECT fence.read_derived('permission', '1', '2'), fence.read_derived('permission', '1', '2');
SELECT fence.drop_derived('permission');
SELECT fence.read_derived('permission', '1', '2');
SELECT fence.drop_derived('permission');

-- what a value is does not depend on the settings of who reads first, and what it stands for is the same
CREATE FUNCTION styled(at timestamptz, who text) RETURNS jsonb STABLE LANGUAGE sql
	RETURN jsonb_build_object('at', at::text, 'float', (0.1::float8 + 0.2)::text, 'who', who, 'path', current_setting('search_path'));
SELECT fence.define_derived('{styled}: a "name"', '{derived.setting(default)}', 'styled(timestamptz, text)');
SET timezone = 'IST-5:30';
SET datestyle = 'SQL, DMY';
SET extra_float_digits = -10;
SELECT fence.read_derived('{styled}: a "name"', '2024-02-03 01:02:03+00', '{x}:,%');
RESET timezone;
RESET datestyle;
RESET extra_float_digits;
SELECT fence.read_derived('{styled}: a "name"', '2024-02-03 02:02:03+01', '{x}:,%');
SELECT regexp_replace(regexp_replace(value, '^.*?:v:\w+\.', ''), '\.[0-9]+:', '.N:') AS value
  FROM fence.derived_keys('{styled}: a "name"', '2024-02-03 01:02:03+00', '{x}:,%');

-- definitions that cannot be
SELECT fence.define_derived('x', '{derived.member}', 'nosuch(int)');
SELECT fence.define_derived('x', '{nosuch}', 'permission(int, int)');
SELECT fence.define_derived('x', '{}', 'permission(int, int)');
SELECT fence.define_derived('x', '{NULL}', 'permission(int, int)');
SELECT fence.define_derived(NULL, '{derived.member}', 'permission(int, int)');
SELECT fence.define_derived('x', NULL, 'permission(int, int)');
SELECT fence.define_derived('x', '{derived.member}', NULL);
SELECT fence.define_derived('x', '{derived.member}', 'permission(int, int)', '-1 s');
SELECT fence.define_derived('x', '{derived.member}', 'permission(int, int)', '0');
SELECT fence.define_derived('x', ARRAY[s], 'permission(int, int)')
  FROM (SELECT 'derived.member($1)') x (s);
SELECT fence.define_derived('x', '{"derived.member($1,$3)"}', 'permission(int, int)');
SELECT fence.define_derived('x', '{"derived.room($0)"}', 'permission(int, int)');
SELECT fence.define_derived('x', '{"derived.room($1x)"}', 'permission(int, int)');
SELECT fence.define_derived('x', '{"derived.room(a b)"}', 'permission(int, int)');
SELECT fence.define_derived('x', '{derived.room()}', 'permission(int, int)');
SELECT fence.define_derived('x', '{"derived.member($1,)"}', 'permission(int, int)');
CREATE FUNCTION one(int) RETURNS int STABLE LANGUAGE sql RETURN 1;
SELECT fence.define_derived('x', '{derived.member}', 'one(int)');
CREATE FUNCTION restless(int) RETURNS int LANGUAGE sql RETURN 1;
SELECT fence.define_derived('x', '{derived.room}', 'restless(int)');
CREATE FUNCTION lots(int) RETURNS SETOF int STABLE LANGUAGE sql BEGIN ATOMIC SELECT 1; END;
SELECT fence.define_derived('x', '{derived.room}', 'lots(int)');
CREATE AGGREGATE total(int) (SFUNC = int4pl, STYPE = int);
SELECT fence.define_derived('x', '{derived.room}', 'total(int)');
SELECT fence.attach(NULL, domain => 'derived.manual', scope => 'manual');
SELECT fence.define_derived('x', '{derived.manual($1)}', 'one(int)');
SELECT fence.detach_domain('derived.manual');
-- and calls
SELECT fence.define_derived('x', '{derived.room}', 'one(int)');
SELECT fence.read_derived('x', '1');
SELECT fence.read_derived('x');
SELECT fence.read_derived('x', '1', '2');
SELECT fence.read_derived('x', NULL);
SELECT fence.read_derived('x', 'one');
SELECT fence.read_derived('nosuch', '1');
-- what has changed since
ALTER FUNCTION one(int) VOLATILE;
SELECT fence.read_derived('x', '1');
DROP FUNCTION one(int);
SELECT fence.read_derived('x', '1');
CREATE FUNCTION one(int) RETURNS int STABLE LANGUAGE sql RETURN 2;
SELECT fence.define_derived('x', '{derived.room}', 'one(int)');
SELECT fence.read_derived('x', '1');
CREATE FUNCTION fails(int) RETURNS int STABLE LANGUAGE sql RETURN 1 / ($1 - 1);
SELECT fence.define_derived('x', '{derived.room}', 'fails(int)');
SELECT fence.read_derived('x', '1');
SELECT fence.read_derived('x', '2');

-- privileges: the function runs as its caller; who may not run it, or not read its sources, has no results of it either
SELECT fence.define_derived('permission', '{derived.member,derived.exception,derived.room($1),derived.setting(default)}', 'permission(int, int)');
SELECT fence.read_derived('permission', '1', '1');
SET client_min_messages = warning;
DROP ROLE IF EXISTS regress_fence_derived;
RESET client_min_messages;
CREATE ROLE regress_fence_derived;
GRANT USAGE ON SCHEMA derived TO regress_fence_derived;
GRANT SELECT ON member, exception, room TO regress_fence_derived;
GRANT USAGE ON computed TO regress_fence_derived;
SET ROLE regress_fence_derived;
SELECT fence.read_derived('permission', '1', '1');
RESET ROLE;
GRANT SELECT ON setting TO regress_fence_derived;
REVOKE EXECUTE ON FUNCTION permission FROM PUBLIC;
SET ROLE regress_fence_derived;
SELECT fence.read_derived('permission', '1', '1');
RESET ROLE;
GRANT EXECUTE ON FUNCTION permission TO regress_fence_derived;
SET ROLE regress_fence_derived;
SELECT fence.read_derived('permission', '1', '1');
SELECT fence.define_derived('x', '{derived.room}', 'one(int)');
SELECT fence.drop_derived('x');
DELETE FROM fence.derived;
SELECT count(*) FROM fence.derived WHERE name = 'permission';
RESET ROLE;
ALTER TABLE member ENABLE ROW LEVEL SECURITY;
SET ROLE regress_fence_derived;
SELECT fence.read_derived('permission', '1', '1');
-- with the caller's search_path no unqualified name means something else
RESET ROLE;
ALTER TABLE member DISABLE ROW LEVEL SECURITY;
CREATE FUNCTION careless(int) RETURNS text STABLE LANGUAGE plpgsql AS $$ BEGIN RETURN (SELECT permissions::text FROM room WHERE room_id = $1); END $$;
SELECT fence.define_derived('x', '{derived.room}', 'careless(int)');
SELECT fence.read_derived('x', '1');
CREATE TEMP TABLE room (room_id int, permissions text);
INSERT INTO room VALUES (1, 'forged');
SELECT fence.read_derived('x', '1');
ALTER FUNCTION careless SET search_path = derived, pg_temp;
SELECT fence.read_derived('x', '1');
-- nor does a type, which pg_temp could have in front of pg_catalog's
CREATE FUNCTION answer(int) RETURNS text STABLE LANGUAGE plpgsql AS $$
DECLARE
	said text;
BEGIN
	IF said IS NULL THEN
		said := 'true';
	END IF;
	RETURN said;
END $$;
SELECT fence.define_derived('answer', '{derived.room}', 'answer(int)');
CREATE DOMAIN pg_temp.text AS pg_catalog.text DEFAULT 'forged';
SELECT fence.read_derived('answer', '1');
DROP DOMAIN pg_temp.text;
SELECT fence.read_derived('answer', '1');
-- a search_path of the function's own must not let the caller in
ALTER FUNCTION answer SET search_path = derived;
SELECT fence.read_derived('answer', '1');
UPDATE derived.room SET room_id = room_id WHERE room_id = 1;
SELECT fence.read_derived('answer', '1');
SELECT fence.define_derived('answer', '{derived.room}', 'answer(int)');
ALTER FUNCTION answer SET search_path = '';
SELECT fence.define_derived('answer', '{derived.room}', 'answer(int)');
ALTER FUNCTION answer SET search_path = pg_temp, derived;
SELECT fence.define_derived('answer', '{derived.room}', 'answer(int)');
ALTER FUNCTION answer SET search_path = "$user", derived, pg_temp;
SELECT fence.define_derived('answer', '{derived.room}', 'answer(int)');
ALTER FUNCTION answer SET search_path = derived, pg_temp;
SELECT fence.define_derived('answer', '{derived.room}', 'answer(int)');
SELECT fence.read_derived('answer', '1');
DROP TABLE pg_temp.room;

-- it runs with the rights of the function's owner, whoever reads it first; so only the owner may define it
GRANT CREATE ON SCHEMA derived TO regress_fence_derived;
GRANT EXECUTE ON FUNCTION fence.define_derived TO regress_fence_derived;
SET ROLE regress_fence_derived;
CREATE FUNCTION derived.who(int) RETURNS text STABLE LANGUAGE plpgsql AS $$ BEGIN RETURN current_user; END $$;
SELECT fence.define_derived('who', '{derived.room}', 'derived.who(int)');
SELECT fence.define_derived('x', '{derived.room}', 'derived.answer(int)');
RESET ROLE;
SELECT fence.read_derived('who', '1');
SELECT current_user = 'regress_fence_derived';
-- and changes nothing, nor who is who
CREATE OR REPLACE FUNCTION derived.who(int) RETURNS text STABLE LANGUAGE plpgsql AS $$ BEGIN EXECUTE 'RESET ROLE'; RETURN current_user; END $$;
SELECT fence.define_derived('who', '{derived.room}', 'derived.who(int)');
SELECT fence.read_derived('who', '1');
DROP FUNCTION derived.who;
REVOKE EXECUTE ON FUNCTION fence.define_derived FROM regress_fence_derived;

SELECT fence.drop_derived(name) FROM fence.derived;
REVOKE ALL ON ALL TABLES IN SCHEMA derived FROM regress_fence_derived;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA derived FROM regress_fence_derived;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA derived FROM regress_fence_derived;
REVOKE ALL ON SCHEMA derived FROM regress_fence_derived;
DROP ROLE regress_fence_derived;
SET client_min_messages = warning;
DROP SCHEMA derived CASCADE;
