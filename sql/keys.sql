-- One canonical text per key value: whatever the session's settings are, however a caller spells it, whatever is in it.
\set schema keys
\i test/lib/regress.sql
\pset format unaligned
\pset tuples_only on
\pset null '(null)'

-- A key's name in Redis without what differs from run to run
CREATE FUNCTION k(domain text, VARIADIC key text[]) RETURNS text LANGUAGE sql AS
    $$SELECT regexp_replace(fence.fence_key(domain, VARIADIC key), '^[^:]+:f:\w+\.', '')$$;

-- The key as the triggers see it in the row: the tombstone that they leave has it. The row is only deleted for a moment.
CREATE FUNCTION row_key(tab regclass, condition text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    found text;
BEGIN
    BEGIN
        EXECUTE format('DELETE FROM %s WHERE %s', tab, condition);
        SELECT t.key INTO found
          FROM fence.tombstone t JOIN fence.domain d ON d.id = t.domain_id
         WHERE d.relation = tab ORDER BY t.removed_at DESC LIMIT 1;
        RAISE EXCEPTION USING ERRCODE = 'P0099';
    EXCEPTION WHEN SQLSTATE 'P0099' THEN
        RETURN found;
    END;
END$$;

-- A part of a key as it was before percent-encoding
CREATE FUNCTION decoded(part text) RETURNS text LANGUAGE sql AS $$
    SELECT CASE WHEN part = '%00' THEN '' ELSE
        convert_from(decode(string_agg(CASE WHEN length(m[1]) = 3 THEN substr(m[1], 2)
                                            ELSE encode(convert_to(m[1], 'UTF8'), 'hex') END, ''), 'hex'), 'UTF8') END
      FROM regexp_matches(part, '%..|.', 'g') m$$;

-- SQLSTATE and message of a statement that fails
CREATE FUNCTION fails(sql text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE sql;
    RETURN 'no error';
EXCEPTION WHEN OTHERS THEN
    RETURN SQLSTATE || ' ' || SQLERRM;
END$$;

-- Makes table t_<name> with a key of that type and a row for each value; prints for each the text of the key, which
-- must be the same whether it is taken from the row or from what a caller spells, or from that text itself.
CREATE FUNCTION try(name text, type text, VARIADIC spelled text[])
    RETURNS TABLE (spelling text, key text) LANGUAGE plpgsql AS $$
DECLARE
    tab text := 't_' || name;
    one text;
    from_row text;
BEGIN
    EXECUTE format('CREATE TABLE %I (id %s PRIMARY KEY, version bigint NOT NULL DEFAULT 0)', tab, type);
    FOREACH one IN ARRAY spelled LOOP
        EXECUTE format('INSERT INTO %I (id) VALUES (%L) ON CONFLICT DO NOTHING', tab, one);
    END LOOP;
    PERFORM fence.attach(tab::regclass, domain => tab);
    FOREACH one IN ARRAY spelled LOOP
        spelling := one;
        key := k(tab, one);
        from_row := row_key(tab::regclass, format('id = %L::%s', one, type));
        IF key IS DISTINCT FROM format('%s:{%s}', tab, from_row) THEN
            key := key || ' but the row has ' || coalesce(from_row, 'none');
        ELSIF type <> 'money' AND k(tab, decoded(from_row)) <> key THEN
            key := key || ' but read again it is ' || k(tab, decoded(from_row));
        END IF;
        RETURN NEXT;
    END LOOP;
END$$;

-- ---------------------------------------------------------------------------------------------------------------------
-- Types. Equal values have equal text
-- ---------------------------------------------------------------------------------------------------------------------
SELECT * FROM try('int2', 'smallint', '-32768', ' 7', '32767');
SELECT * FROM try('int4', 'integer', '-2147483648', '007', '+7', '7');
SELECT * FROM try('int8', 'bigint', '-9223372036854775808', '9223372036854775807', '0');
SELECT * FROM try('oid', 'oid', '4294967295', '0');
SELECT * FROM try('bool', 'boolean', 'yes', 'true', 'on', '0', 'f');
SELECT * FROM try('numeric', 'numeric', '1', '1.0', '1.00', '1e0', '-0.50', '-0', '100', '1e2', '1e-3', '0.0010',
                  '123456789012345678901234567890.120', 'NaN', 'Infinity', '-inf');
SELECT * FROM try('money', 'money', '12.34', '-1', '0');
SELECT * FROM try('uuid', 'uuid', 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11', '{a0eebc999c0b4ef8bb6d6bb9bd380a11}');
SELECT * FROM try('bytea', 'bytea', '\xDEADBEEF', '\336\255\276\357', '\x', '\x00', 'abc');
SELECT * FROM try('bpchar', 'char(5)', 'ab', 'ab   ', '', ' ab');
SELECT * FROM try('bpchar_any', 'bpchar', 'ab', 'ab   ', '');
SELECT * FROM try('varchar', 'varchar(8)', 'ab', 'ab ', '');
SELECT * FROM try('name', 'name', 'Some Name');
SELECT * FROM try('inet', 'inet', '10.0.0.1', '10.0.0.1/32', '10.0.0.0/8', '::1');
SELECT * FROM try('cidr', 'cidr', '10.0.0.0/8', '10');
SELECT * FROM try('macaddr', 'macaddr', '08:00:2b:01:02:03', '08002B010203');
SELECT * FROM try('bit', 'bit(3)', '101', '010');
SELECT * FROM try('lsn', 'pg_lsn', '16/B374D848', '0/0');
SELECT * FROM try('date', 'date', '2024-02-29', 'Feb 29 2024', '20240229', '0044-03-15 BC', 'infinity', '12345-06-07');
SELECT * FROM try('time', 'time', '04:05:06.789000', '040506.789', '24:00', '04:00 PM');
SELECT * FROM try('timetz', 'timetz', '04:05:06+02', '04:05:06.10-08:30');
SELECT * FROM try('timestamp', 'timestamp', '2024-02-29 12:00:00', '2024-02-29T12:00', '2024-02-29 12:00:00.5000',
                  '0044-03-15 12:00 BC', '-infinity', '12345-06-07 00:00:00');
SELECT * FROM try('timestamptz', 'timestamptz', '2024-02-29 12:00:00+00', '2024-02-29 14:00:00+02',
                  '2024-02-29 12:00:00.000001Z', '0044-03-15 12:00:00+00 BC', 'infinity', '12345-06-07 00:00:00+00');
CREATE TYPE mood AS ENUM ('sad', 'o,k', 'Ünlücky');
SELECT * FROM try('enum', 'keys.mood', 'sad', 'o,k', 'Ünlücky');
CREATE DOMAIN short_text AS varchar(10) CHECK (VALUE <> 'never');
SELECT * FROM try('domain', 'keys.short_text', 'a b');
SELECT k('t_domain', 'never');      -- no row can have it, but it is a key like any other
SELECT * FROM try('regclass', 'regclass', '1259', 'pg_class', 'pg_catalog.pg_class');
SELECT * FROM try('tid', 'tid', '(1,2)', '( 1,2)');

-- Values that equal others without having the same bytes stay the same key when a row changes from one to the other.
SELECT fence.detach('t_numeric');
BEGIN;
SELECT fence.attach('t_numeric', domain => 't_numeric');
UPDATE t_numeric SET id = 100.000 WHERE id = 100;
SELECT count(*) AS tombstones FROM fence.tombstone t JOIN fence.domain d ON d.id = t.domain_id WHERE d.name = 't_numeric';
UPDATE t_numeric SET id = 101 WHERE id = 100;
SELECT t.key FROM fence.tombstone t JOIN fence.domain d ON d.id = t.domain_id WHERE d.name = 't_numeric';
ROLLBACK;

-- ---------------------------------------------------------------------------------------------------------------------
-- Hostile text
-- ---------------------------------------------------------------------------------------------------------------------
SELECT * FROM try('text', 'text', 'plain-._~09AZ', '', ' ', 'a{b}c', '{', '}', ':', ',', '%', '%00', '%2C', 'a,b',
                  E'new\nline', E'tab\tcr\r', '"', '''', '\', '/', '*', '?', 'ü', '漢字', '🙂', 'a:f:{x}', 'NULL');

-- Each text is its own key: as many keys as texts.
SELECT count(*) = count(DISTINCT k('t_text', id)) AS distinct_keys FROM t_text;
-- Nothing in a key is reserved by Redis or by us, whatever the data.
SELECT count(*) AS bad FROM t_text WHERE k('t_text', id) !~ '^t_text:\{[A-Za-z0-9._~%-]+\}$';

-- The name of the domain, too.
CREATE TABLE "odd {na}me:%" (id int PRIMARY KEY, version int NOT NULL DEFAULT 0);
SELECT fence.attach('"odd {na}me:%"', domain => 'odd {na}me:%,é');
SELECT k('odd {na}me:%,é', '1');

-- ---------------------------------------------------------------------------------------------------------------------
-- Composite keys, and tags
-- ---------------------------------------------------------------------------------------------------------------------
CREATE TABLE pair (a text, n int, b text, version int NOT NULL DEFAULT 0, PRIMARY KEY (a, b));
SELECT fence.attach('pair', domain => 'pair');
INSERT INTO pair VALUES ('a,b', 1, 'c'), ('a', 2, 'b,c'), ('', 3, ''), ('', 4, ','), (',', 5, '');
SELECT a, b, k('pair', a, b), row_key('pair', format('n = %s', n)) FROM pair ORDER BY n;
SELECT count(DISTINCT k('pair', a, b)) FROM pair;
SELECT fence.detach('pair');
-- the order is that of the primary key, or as asked for
SELECT fence.attach('pair', key => '{b,a}', domain => 'pair', tag => 'room/{a}');
SELECT k('pair', 'the b', 'the a');
SELECT regexp_replace(fence.value_key('pair', 'the b', 'the a'), '^[^:]+:', '') ~ '^v:\w+\.pair:\{room/the%20a\}:the%20b,the%20a$';
SELECT fence.read('pair', 'b,c', 'a'), fence.read('pair', 'a', 'b,c');
SELECT fence.detach('pair');
SELECT fence.attach('pair', domain => 'pair', tag => '{b}.{a}~{b}');
SELECT k('pair', '', '}{');

-- A domain without a table: any number of parts, as they are
SELECT fence.attach(NULL, domain => 'free', scope => 'manual');
SELECT k('free', 'a'), k('free', 'a', 'b'), k('free', 'a,b'), k('free', '', ''), k('free', '007');

-- ---------------------------------------------------------------------------------------------------------------------
-- The session's settings change nothing
-- ---------------------------------------------------------------------------------------------------------------------
CREATE TABLE before_settings AS
    SELECT 't_date' AS tab, 'id = ''2024-02-29''' AS condition UNION ALL
    SELECT 't_time', 'id = ''24:00''' UNION ALL
    SELECT 't_timetz', 'id = ''04:05:06+02''' UNION ALL
    SELECT 't_timestamp', 'id = ''2024-02-29 12:00:00''' UNION ALL
    SELECT 't_timestamptz', 'id = ''2024-02-29 12:00:00+00''' UNION ALL
    SELECT 't_timestamptz', 'id = ''0044-03-15 12:00:00+00 BC''' UNION ALL
    SELECT 't_bytea', 'id = ''\xDEADBEEF''' UNION ALL
    SELECT 't_money', 'id = ''12.34''::numeric::money' UNION ALL
    SELECT 't_numeric', 'id = 0.001' UNION ALL
    SELECT 't_regclass', 'id = 1259';
SELECT fence.attach('t_numeric', domain => 't_numeric');
ALTER TABLE before_settings ADD key text;
UPDATE before_settings SET key = row_key(tab::regclass, condition);
SET DateStyle = 'SQL, DMY';
SET IntervalStyle = 'sql_standard';
SET TimeZone = 'Pacific/Chatham';
SET bytea_output = 'escape';
SET extra_float_digits = -15;
SET lc_monetary = 'C';
SET quote_all_identifiers = on;
SET search_path = keys, pg_catalog;
SELECT tab, key, row_key(tab::regclass, condition) = key AS same,
       tab = 't_money' OR k(tab, decoded(key)) = format('%s:{%s}', tab, key) AS same_if_read_again
  FROM before_settings ORDER BY tab, key;
-- a caller spells as his own settings say, and means the same row
SELECT k('t_date', '29/02/2024'), k('t_date', '2024-02-29');
SELECT k('t_timestamptz', '29/02/2024 12:00:00 UTC'), k('t_timestamptz', '2024-03-01 01:45:00');
SELECT k('t_bytea', '\336\255\276\357');
RESET DateStyle;
RESET IntervalStyle;
RESET TimeZone;
RESET bytea_output;
RESET extra_float_digits;
RESET lc_monetary;
RESET quote_all_identifiers;
SET search_path = keys;

-- ---------------------------------------------------------------------------------------------------------------------
-- What is no key
-- ---------------------------------------------------------------------------------------------------------------------
SELECT fails($$SELECT fence.fence_key('pair', 'a')$$);
SELECT fails($$SELECT fence.fence_key('pair', 'a', 'b', 'c')$$);
SELECT fails($$SELECT fence.fence_key('pair', 'a', NULL)$$);
SELECT fails($$SELECT fence.fence_key('pair', VARIADIC '{}'::text[])$$);
SELECT fails($$SELECT fence.fence_key('free', VARIADIC '{}'::text[])$$);
SELECT fails($$SELECT fence.fence_key('t_int2', '32768')$$);
SELECT fails($$SELECT fence.fence_key('t_int4', 'x')$$);
SELECT fails($$SELECT fence.fence_key('t_enum', 'glad')$$);
SELECT fails($$SELECT fence.fence_key('t_bpchar', 'abcdef')$$);
SELECT fails($$SELECT fence.fence_key('nosuch', '1')$$);
SELECT fails(format('SELECT fence.fence_key(%L, %L)', repeat('x', 64), '1'));
SELECT fails(format('SELECT fence.fence_key(''t_text'', %L)', repeat('x', 2001)));
SELECT fails(format('INSERT INTO t_text VALUES (%L)', repeat('{', 667)));
SELECT length(k('t_text', repeat('{', 666)));

-- quiet: which tables go depends on nothing here
SET client_min_messages = warning;
DROP SCHEMA keys CASCADE;
