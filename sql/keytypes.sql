-- Values of keys that are no texts: they name the fence that the row's triggers write, or nothing.
\set schema keytypes
\i test/lib/regress.sql
\pset format unaligned
\pset tuples_only on
\pset null '(null)'

-- What a statement returns, or SQLSTATE, message, detail and hint of its error; a name in Redis without what differs from run to run
CREATE FUNCTION tell(sql text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	result text;
	detail text;
	hint text;
	context text;
BEGIN
	EXECUTE sql INTO result;
	RETURN regexp_replace(result, '^[^:]+:[fv]:\w+\.', '');
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT, context = PG_EXCEPTION_CONTEXT;
	RETURN concat_ws(E'\n  ', SQLSTATE || ' ' || SQLERRM, nullif(detail, ''), nullif(hint, ''),
		'CONTEXT: ' || substring(context, '(?n)^(?:key column|argument) .*$'));
END$$;
CREATE FUNCTION named(domain text, VARIADIC expressions text[]) RETURNS SETOF text LANGUAGE sql AS $$
	SELECT e || ': ' || keytypes.tell(format('SELECT fence.fence_key(%L, %s)', domain, e)) FROM unnest(expressions) e$$;

-- ---------------------------------------------------------------------------------------------------------------------
-- Integers: the commonest of all
-- ---------------------------------------------------------------------------------------------------------------------
CREATE TABLE account (id int PRIMARY KEY, balance int, version bigint NOT NULL DEFAULT 0);
INSERT INTO account VALUES (42, 100), (43, 200);
SELECT fence.attach('account', domain => 'account');
CALL wait_for('account', '42');
SELECT fence.read('account', 42)->'balance', fence.read('account', '42')->'balance', fence.read('account', 42::bigint)->'balance';
SELECT status, version FROM fence.get('account', 42);
SELECT * FROM named('account', '42', '''42''', '42::smallint', '42::bigint', '42::numeric', '42.0', '4.2e1', '42::oid', '42::text',
	'42::varchar', '''42 ''::char(5)', '''42''::name', 'NULL', 'NULL::int', 'NULL::text', 'VARIADIC ARRAY[42]',
	'VARIADIC ARRAY[42]::bigint[]', 'VARIADIC ''{42}''::text[]', 'VARIADIC ''{42}''', 'VARIADIC ARRAY[''42'']');
-- what would name another row, or none, is an error
SELECT * FROM named('account', '42.5', '3000000000', '42::float8', '42::money', 'B''101010''', 'true', '''2024-02-29''::date', 'pg_typeof(42)',
	'''42''::json', 'ARRAY[42]', 'ARRAY[''42'']', 'ROW(42)', 'ROW(42, 43)', '''(42)''::record', 'VARIADIC ARRAY[42.5]',
	'VARIADIC ARRAY[ARRAY[42]]', 'VARIADIC NULL', 'VARIADIC NULL::int[]', 'VARIADIC NULL::text[]', 'VARIADIC ''{}''::int[]',
	'VARIADIC ARRAY[NULL]::int[]', 'VARIADIC 42', '42, 43', '42, ''43''');
SELECT tell($$SELECT fence.fence_key('account')$$);
SELECT tell($$SELECT fence.fence_key(NULL, 42)$$), tell($$SELECT fence.fence_key(NULL, '42')$$);
SELECT tell($$SELECT fence.fence_key('no such domain', 42)$$);
-- names that exist: in another schema, in capitals, with another letter; of two, both
SELECT tell(format('SELECT fence.fence_key(%L, 42)', name)) FROM unnest('{public.account,Account,acount,acc,x,""}'::text[]) name;
SELECT fence.attach('account', domain => 'b.account', key => '{id}');
SELECT tell($$SELECT fence.fence_key('c.account', 42)$$);
SELECT tell($$SELECT fence.detach_domain('c.account')$$);
SELECT fence.detach('account', 'b.account');

-- ---------------------------------------------------------------------------------------------------------------------
-- Parameters
-- ---------------------------------------------------------------------------------------------------------------------
PREPARE untyped AS SELECT fence.read('account', $1)->'balance';
PREPARE untyped_array AS SELECT fence.read('account', VARIADIC $1)->'balance';      -- of which type is told by nothing
PREPARE text_array AS SELECT fence.read('account', VARIADIC $1::text[])->'balance';
PREPARE typed(int) AS SELECT fence.read('account', $1)->'balance';
PREPARE typed_array(int[]) AS SELECT fence.read('account', VARIADIC $1)->'balance';
EXECUTE untyped(43);
EXECUTE text_array('{43}');
EXECUTE typed(43);
EXECUTE typed_array('{43}');
SELECT parameter_types FROM pg_prepared_statements WHERE name = 'untyped';
EXECUTE typed(NULL);
DO $$
DECLARE
	id int := 43;
	key int[] := '{42}';
BEGIN
	RAISE NOTICE '%, %', fence.read('account', id)->'balance', fence.read('account', VARIADIC key)->'balance';
	EXECUTE 'SELECT fence.read($1, $2)' USING 'account', id;
END$$;
SELECT id, fence.read('account', id)->'balance' AS balance FROM account ORDER BY id;

-- ---------------------------------------------------------------------------------------------------------------------
-- Each function
-- ---------------------------------------------------------------------------------------------------------------------
CREATE FUNCTION same(call text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
	a text;
	b text;
BEGIN
	EXECUTE format('SELECT ' || call, '42') INTO a;
	EXECUTE format('SELECT ' || call, '''42''') INTO b;
	RETURN a = b;
END$$;
CREATE TABLE member (account_id int, name text, PRIMARY KEY (account_id, name));
INSERT INTO member VALUES (42, 'a'), (42, 'b');
SELECT fence.attach('member', domain => 'member', key => '{account_id}', scope => 'group');
SELECT fence.attach(NULL, domain => 'keytypes.free', scope => 'manual');
CREATE FUNCTION balance(int) RETURNS int STABLE LANGUAGE sql AS 'SELECT balance FROM keytypes.account WHERE id = $1';
SELECT fence.define_derived('balance', '{account}', 'balance(int)');
CALL wait_for('member', '42');
CALL wait_for('keytypes.free', '42');
SELECT call, same(call) FROM unnest('{
	"fence.fence_key(''account'', %s)", "fence.value_key(''account'', %s)",
	"fence.get(''account'', %s)", "fence.peek(''account'', %s)", "fence.status(''account'', %s)", "fence.read(''account'', %s)",
	"fence.explain(''account'', %s)", "fence.repair(''account'', %s)", "fence.group_version(''member'', %s)", "fence.read(''member'', %s)",
	"fence.put(''account'', ''none'', 1, ''{}'', NULL, %s)", "fence.read_derived(''balance'', %s)", "fence.derived_keys(''balance'', %s)"
	}'::text[]) call;
BEGIN;
SELECT fence.begin_write('keytypes.free', 0, 42);
SELECT fence.begin_write('keytypes.free', 0, '42');
SELECT fence.abort_write('keytypes.free', 42);
COMMIT;
SELECT fence.commit(token) = version FROM fence.reserve('account', NULL, '1 minute', 42);
UPDATE account SET balance = 300 WHERE id = 42;
SELECT fence.read('account', 42)->'balance';
SELECT right(k, 4) FROM unnest(fence.fence_keys('account', '{42,43}')) k;
SELECT right(k, 4) FROM unnest(fence.fence_keys('account', (SELECT array_agg(id ORDER BY id)::text[] FROM account))) k;
SELECT tell($$SELECT fence.read_derived('balance', NULL::int)$$);
SELECT tell($$SELECT fence.read_derived(NULL, 42)$$);
SELECT tell($$SELECT fence.read_derived('balance', VARIADIC NULL::int[])$$);
SELECT tell($$SELECT fence.read_derived('balance', 42.5)$$);
SELECT tell($$SELECT fence.read_derived('balance', 42::float8)$$);
SELECT tell($$SELECT fence.read_derived('balance', 42.0)$$);

-- ---------------------------------------------------------------------------------------------------------------------
-- Each type's value names its row, under any settings
-- ---------------------------------------------------------------------------------------------------------------------
CREATE TYPE mood AS ENUM ('sad', 'o,k');
CREATE DOMAIN small AS int CHECK (VALUE < 100);
CREATE DOMAIN smaller AS small;
CREATE FUNCTION add_table(name text, type text, value text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE format('CREATE TABLE %I (id %s PRIMARY KEY, version bigint NOT NULL DEFAULT 0)', 't_' || name, type);
	EXECUTE format('INSERT INTO %I VALUES (%L)', 't_' || name, value);
	RETURN fence.attach(('t_' || name)::regclass, domain => 't_' || name);
END$$;
CREATE TABLE kind (name text PRIMARY KEY, type text, value text);
INSERT INTO kind VALUES ('int2', 'smallint', '-7'), ('int4', 'int', '-7'), ('int8', 'bigint', '9223372036854775807'), ('oid', 'oid', '4294967295'),
	('regclass', 'regclass', 'pg_class'), ('bool', 'boolean', 'true'), ('numeric', 'numeric', '1.500'), ('money', 'money', '12.34'),
	('uuid', 'uuid', 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'), ('bytea', 'bytea', '\xDEAD5C'), ('text', 'text', ' a,b '),
	('varchar', 'varchar(8)', 'ab '), ('bpchar', 'char(5)', 'ab'), ('name', 'name', 'ab'), ('inet', 'inet', '10.0.0.1'),
	('cidr', 'cidr', '10.0.0.0/8'), ('bit', 'bit(3)', '101'), ('date', 'date', '2024-02-03'), ('time', 'time', '04:05:06.7'),
	('timetz', 'timetz', '04:05:06+02'), ('timestamp', 'timestamp', '2024-02-03 04:05:06.7'),
	('timestamptz', 'timestamptz', '2024-02-03 04:05:06.7+02'), ('enum', 'mood', 'o,k'), ('small', 'small', '7'), ('smaller', 'smaller', '7');
SELECT count(add_table(name, type, value)) FROM kind;
-- The keys that the triggers tell: of rows deleted for a moment
CREATE TABLE told AS SELECT 'x' AS name, 'x' AS key LIMIT 0;
DO $$
DECLARE
	n text;
	k text;
BEGIN
	FOR n IN SELECT name FROM kind LOOP
		BEGIN
			EXECUTE format('DELETE FROM %I', 't_' || n);
			SELECT t.key INTO STRICT k FROM fence.tombstone t JOIN fence.domain d ON d.id = t.domain_id WHERE d.name = 't_' || n;
			RAISE EXCEPTION USING ERRCODE = 'P0099';
		EXCEPTION WHEN SQLSTATE 'P0099' THEN
			INSERT INTO told VALUES (n, k);
		END;
	END LOOP;
END$$;
SET DateStyle = 'SQL, DMY';
SET IntervalStyle = 'sql_standard';
SET TimeZone = 'Pacific/Chatham';
SET bytea_output = 'escape';
SET extra_float_digits = -15;
SET lc_monetary = 'C';
SET quote_all_identifiers = on;
CREATE FUNCTION key_of(name text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	k text;
BEGIN
	EXECUTE format('SELECT fence.fence_key(%L, id) FROM keytypes.%1$I', 't_' || name) INTO STRICT k;
	RETURN substring(k, '\{(.*)\}$');
END$$;
SELECT name, key, key_of(name) = key AS same FROM told ORDER BY name COLLATE "C";
RESET quote_all_identifiers;

-- ---------------------------------------------------------------------------------------------------------------------
-- Other types than the column's
-- ---------------------------------------------------------------------------------------------------------------------
SELECT * FROM named('t_int8', '7', '7::smallint', '7.0', '9223372036854775808', '7::smaller', '7::oid');
SELECT * FROM named('t_int2', '7', '7::bigint', '70000');
SELECT * FROM named('t_small', '7', '7::smaller', '700', '''7''');
SELECT * FROM named('t_numeric', '7', '7::bigint', '1.50', '''1.50''', '1.5::float8', '''NaN''::numeric');
SELECT * FROM named('t_oid', '7', '7::bigint', '''pg_class''::regclass');
SELECT * FROM named('t_regclass', '1259', '''pg_class''::regclass', '''pg_class''', '1259::oid');
SELECT * FROM named('t_uuid', '''a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11''::varchar', '7', '''\x00''::bytea');
SELECT * FROM named('t_text', '7', '-7::bigint', '''A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11''::uuid', '''o,k''::mood', '''a ''::char(5)', '''a ''::varchar',
	'''a''::name', '7::smaller', '1.5', 'true', 'now()', 'now()::date', '''\x00''::bytea', '''10.0.0.1''::inet', '''1''::jsonb', '7::money');
SELECT * FROM named('t_bpchar', '7', '''ab''::varchar', '''ab''::char(9)', '''abcdef''::text', '123456');
SELECT * FROM named('t_name', '7', '''ab''::text');
SELECT * FROM named('t_bool', 'true', '''yes''', '1', '''on''::text');
SELECT * FROM named('t_date', '''29/02/2024''', '''29/02/2024''::text', '''29/02/2024''::date', 'now()', '''29/02/2024 10:00''::timestamp', '20240229');
SELECT * FROM named('t_timestamp', '''29/02/2024 10:00''::timestamp', '''29/02/2024''::date', 'now()');
SELECT * FROM named('t_timestamptz', '''29/02/2024 10:00 UTC''::timestamptz', '''29/02/2024''::date', '''29/02/2024 10:00''::timestamp');
SELECT * FROM named('t_time', '''10:00''::time', '''10:00+02''::timetz');
SELECT * FROM named('t_inet', '''10.0.0.1/8''::inet', '''10.0.0.0/8''::cidr');
SELECT * FROM named('t_cidr', '''10.0.0.0/8''::cidr', '''10.0.0.1/8''::inet');
SELECT * FROM named('t_bit', 'B''101''', '5', 'B''101''::varbit');
SELECT * FROM named('t_enum', '''sad''', '''sad''::mood', '''sad''::text', '1');
CREATE TYPE other_mood AS ENUM ('sad');
SELECT * FROM named('t_enum', '''sad''::other_mood');
-- a domain without a table has texts
SELECT * FROM named('keytypes.free', '42', '''42''', '42, ''a'', ''A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11''::uuid', '''o,k''::mood', 'VARIADIC ARRAY[1, 2]', '1.0', 'true',
	'now()', 'ARRAY[1]', 'ROW(1)', '1::float8');
RESET DateStyle;
RESET IntervalStyle;
RESET TimeZone;
RESET bytea_output;
RESET extra_float_digits;
RESET lc_monetary;

-- No cast of a user's is run
CREATE TYPE evil AS (i int);
CREATE FUNCTION evil(evil) RETURNS int LANGUAGE plpgsql AS $$ BEGIN RAISE 'run'; END $$;
CREATE CAST (evil AS int) WITH FUNCTION evil(evil) AS IMPLICIT;
SELECT * FROM named('account', 'ROW(42)::evil');

-- ---------------------------------------------------------------------------------------------------------------------
-- Composite keys of mixed types
-- ---------------------------------------------------------------------------------------------------------------------
CREATE TABLE seat (event int, name text, at timestamptz, taken boolean, version bigint NOT NULL DEFAULT 0, PRIMARY KEY (event, name, at));
INSERT INTO seat VALUES (7, 'a,b', '2024-02-29 12:00+00', true);
SELECT fence.attach('seat', domain => 'seat');
SELECT * FROM named('seat', '7, ''a,b'', ''2024-02-29 12:00+00''::timestamptz', '''7'', ''a,b'', ''2024-02-29 12:00+00''', '7::bigint, ''a,b''::varchar, ''2024-02-29 12:00+00''',
	'7, ''a,b''', '''a,b'', 7, now()', '7, NULL, now()', 'VARIADIC ARRAY[7, 8, 9]', 'ARRAY[7, 8, 9], ''a,b'', now()',
	'ARRAY[7, 8, 9]', 'ARRAY[''7'', ''a,b'', ''now'']', '7, ''a'', ''tomorrows''');
SELECT fence.read('seat', event, name, at)->'taken' FROM seat;
PREPARE mixed(int, text, timestamptz) AS SELECT fence.read('seat', $1, $2, $3)->'taken';
EXECUTE mixed(7, 'a,b', '2024-02-29 13:00+01');
PREPARE untyped_seat AS SELECT fence.read('seat', $1, $2, $3)->'taken';
EXECUTE untyped_seat(7, 'a,b', '2024-02-29 13:00+01');
PREPARE half_typed(int) AS SELECT fence.read('seat', $1, $2, $3);
PREPARE cast_typed(int) AS SELECT fence.read('seat', $1, $2::text, $3::timestamptz)->'taken';
EXECUTE cast_typed(7, 'a,b', '2024-02-29 13:00+01');

SELECT fence.drop_derived('balance');
SELECT fence.detach_domain('keytypes.free');
-- quiet: which tables go depends on nothing here
SET client_min_messages = warning;
DROP SCHEMA keytypes CASCADE;
