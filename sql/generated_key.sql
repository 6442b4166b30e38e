--
-- Keys that are computed: a user is found by e-mail in small letters, whatever spelling is stored. The key is a generated column; the e-mail's own type does not matter.
--
\set schema generated_key
\i test/lib/regress.sql
SELECT fence.wait_open('90 s');
\pset null '(null)'
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS citext;
RESET client_min_messages;
CREATE COLLATION ignore_case (provider = icu, locale = 'und-u-ks-level2', deterministic = false);

-- what fence.attach refuses; the hint says what to do
CREATE TABLE plain (id int PRIMARY KEY, email text, mail citext UNIQUE, loose text COLLATE ignore_case UNIQUE, version int);
CREATE UNIQUE INDEX ON plain (lower(email));
SELECT fence.attach('plain', key => '{lower(email)}');
SELECT fence.attach('plain', key => '{email}');
SELECT fence.attach('plain', key => '{mail}');
SELECT fence.attach('plain', key => '{loose}');

-- the stored row does not have the value of a virtual column (PostgreSQL 18)
DO $$
BEGIN
	IF current_setting('server_version_num')::int >= 180000 THEN
		EXECUTE 'CREATE TABLE virtual (id int PRIMARY KEY, k int GENERATED ALWAYS AS (id + 1) VIRTUAL, version int)';
		PERFORM fence.attach('virtual', key => '{k}', scope => 'group');
		RAISE 'attached';
	END IF;
EXCEPTION WHEN feature_not_supported THEN
	IF SQLERRM <> 'key column "k" is a virtual generated column' THEN
		RAISE;
	END IF;
END $$;

-- the way that the hint names, for text, citext and a collation that ignores case
CREATE TABLE users (id int PRIMARY KEY, email text, mail citext, loose text COLLATE ignore_case, tenant text,
	email_key text GENERATED ALWAYS AS (lower(email)) STORED UNIQUE,
	mail_key text GENERATED ALWAYS AS (lower(mail::text)) STORED UNIQUE,
	loose_key text COLLATE "C" GENERATED ALWAYS AS (lower(loose COLLATE "C")) STORED UNIQUE,
	tenant_key text GENERATED ALWAYS AS (lower(tenant)) STORED,
	version bigint NOT NULL DEFAULT 0);
INSERT INTO users VALUES (1, 'Ann@A', 'Ann@B', 'Ann@C', 'Acme'), (2, 'Bob@A', 'Bob@B', 'Bob@C', 'ACME'), (3, NULL, NULL, NULL, NULL);
SELECT fence.attach('users', domain => 'computed'), fence.attach('users', key => '{email_key}', domain => 'by_email'),
	fence.attach('users', key => '{mail_key}', domain => 'by_mail'), fence.attach('users', key => '{loose_key}', domain => 'by_loose'),
	fence.attach('users', key => '{tenant_key}', scope => 'group', domain => 'of_tenant');
CALL wait_for('computed', '1');
CALL wait_for('by_email', 'x');
CALL wait_for('by_mail', 'x');
CALL wait_for('by_loose', 'x');
CALL wait_for('of_tenant', 'x');

-- Returns for each key what a reader gets, and whether that is the present row
CREATE FUNCTION look() RETURNS TABLE (domain text, key text, version bigint, status text, cached text) LANGUAGE sql AS $$
	SELECT d, k, s.row_version, g.status,
		   CASE WHEN g.status <> 'hit' THEN NULL
				WHEN g.payload::jsonb IS DISTINCT FROM CASE d
					 WHEN 'by_email' THEN (SELECT to_jsonb(u) FROM users u WHERE lower(u.email) = k)
					 WHEN 'by_mail' THEN (SELECT to_jsonb(u) FROM users u WHERE u.mail = k::citext)
					 WHEN 'by_loose' THEN (SELECT to_jsonb(u) FROM users u WHERE u.loose = k)
					 ELSE (SELECT coalesce(jsonb_agg(to_jsonb(u) ORDER BY to_jsonb(u)::text), '[]') FROM users u WHERE lower(u.tenant) = k) END
				THEN 'STALE ' || g.payload ELSE 'current' END
	  FROM (VALUES ('by_email', 'ann@a'), ('by_email', 'bob@a'), ('by_email', 'cleo@a'), ('by_mail', 'ann@b'), ('by_mail', 'cleo@b'),
			('by_loose', 'ann@c'), ('by_loose', 'cleo@c'), ('of_tenant', 'acme'), ('of_tenant', 'bolt')) keys (d, k)
	 CROSS JOIN LATERAL fence.get(d, k) g CROSS JOIN LATERAL fence.status(d, k) s
$$;
CREATE PROCEDURE fill() LANGUAGE sql AS $$
	SELECT fence.read('by_email', k) FROM unnest('{ann@a,bob@a,cleo@a}'::text[]) k;
	SELECT fence.read('by_mail', k) FROM unnest('{ann@b,cleo@b}'::text[]) k;
	SELECT fence.read('by_loose', k) FROM unnest('{ann@c,cleo@c}'::text[]) k;
	SELECT fence.read('of_tenant', k) FROM unnest('{acme,bolt}'::text[]) k;
$$;
-- returns how many keys this transaction has reserved
CREATE FUNCTION reserved() RETURNS bigint LANGUAGE sql AS $$ SELECT sum(fences) FROM fence.pending WHERE pid = pg_backend_pid() $$;

SELECT fence.read('by_email', lower('ANN@a'))->>'id' AS by_email, fence.read('by_mail', lower('ANN@b'))->>'id' AS by_mail,
	fence.read('by_loose', lower('ANN@c'))->>'id' AS by_loose, jsonb_array_length(fence.read('of_tenant', 'acme')) AS of_tenant;
CALL fill();
SELECT * FROM look();

-- another spelling is the same key, so the row keeps it: one fence of each attachment is reserved
BEGIN;
UPDATE users SET email = 'ANN@A', mail = 'ANN@B' WHERE id = 1 RETURNING email_key, mail_key, version;
SELECT reserved();
COMMIT;
SELECT * FROM look();
CALL fill();
SELECT * FROM look() WHERE cached <> 'current';

-- another e-mail: the old and the new key are reserved, and the old one has no row any more
BEGIN;
UPDATE users SET email = 'Cleo@A', mail = 'Cleo@B', loose = 'Cleo@C', tenant = 'Bolt' WHERE id = 1 RETURNING version;
SELECT reserved();
COMMIT;
SELECT * FROM look();
CALL fill();
SELECT * FROM look();

-- a new row of a key that another row had gets a version above all of the key's
INSERT INTO users (id, email, mail, loose, tenant) VALUES (4, 'ann@A', 'ann@B', 'ann@C', 'acme') RETURNING email_key, version;
SELECT * FROM look();
CALL fill();
SELECT * FROM look() WHERE cached <> 'current';

-- other ways to write
INSERT INTO users (id, email) VALUES (4, 'dora@a') ON CONFLICT (id) DO UPDATE SET email = excluded.email RETURNING email_key, version;
COPY users (id, email, tenant) FROM stdin;
5	ANN@a	BOLT
\.
MERGE INTO users u USING (VALUES (2, 'Eve@A'), (6, 'Bob@A')) s (id, email) ON s.id = u.id
	WHEN MATCHED THEN UPDATE SET email = s.email WHEN NOT MATCHED THEN INSERT (id, email) VALUES (s.id, s.email);
SELECT * FROM look();
CALL fill();
SELECT * FROM look() WHERE cached <> 'current';
DELETE FROM users WHERE id = 5;
SELECT * FROM look() WHERE status <> 'hit' OR cached <> 'current';
CALL fill();

-- two rows exchange their e-mails in one transaction
BEGIN;
UPDATE users SET email = NULL WHERE id = 6;
UPDATE users SET email = 'BOB@a' WHERE id = 1;
UPDATE users SET email = 'CLEO@a' WHERE id = 6;
COMMIT;
SELECT * FROM look() WHERE domain = 'by_email';
CALL fill();
SELECT * FROM look() WHERE cached <> 'current';

-- another trigger sets the e-mail before ours, and one after ours
CREATE FUNCTION other() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.email := TG_ARGV[0]; RETURN NEW; END $$;
CREATE TRIGGER aaa BEFORE UPDATE ON users FOR EACH ROW EXECUTE FUNCTION other('Ann@A');
UPDATE users SET tenant = 'ACME' WHERE id = 6 RETURNING email_key;
SELECT * FROM look();
DROP TRIGGER aaa ON users;
CALL fill();
CREATE TRIGGER zzzz BEFORE UPDATE ON users FOR EACH ROW EXECUTE FUNCTION other('Cleo@A');
UPDATE users SET tenant = 'Bolt' WHERE id = 6 RETURNING email_key;
SELECT * FROM look();
DROP TRIGGER zzzz ON users;
CALL fill();
SELECT * FROM look() WHERE cached <> 'current';

-- so many rows that the domain is reserved as a whole
SET pgcache_fence.bulk_threshold = 2;
UPDATE users SET email = 'all-' || id || '@A';
SELECT * FROM look() WHERE status <> 'miss';
RESET pgcache_fence.bulk_threshold;
UPDATE users SET email = 'ann@a' WHERE id = 1;
CALL fill();
SELECT * FROM look() WHERE cached <> 'current';

-- the expression raises the error that it raises without us
CREATE TABLE divided (a int, b int GENERATED ALWAYS AS (10 / a) STORED PRIMARY KEY, version int);
SELECT fence.attach('divided');
INSERT INTO divided (a) VALUES (0);
INSERT INTO divided (a) VALUES (5) RETURNING *;
-- a key that has more than the generated column; and partitions that have their columns in another order
CREATE TABLE parts (a int, b int, c int GENERATED ALWAYS AS (b * 2) STORED, version bigint, PRIMARY KEY (a)) PARTITION BY RANGE (a);
CREATE TABLE parts_2 (version bigint, c int GENERATED ALWAYS AS (b * 2) STORED, b int, a int NOT NULL);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (10);
ALTER TABLE parts ATTACH PARTITION parts_2 FOR VALUES FROM (10) TO (20);
CREATE UNIQUE INDEX ON parts (c, a);
SELECT fence.attach('parts', key => '{c,a}');
CALL wait_for('generated_key.parts', '0', '0');
INSERT INTO parts (a, b) VALUES (1, 1), (11, 1) RETURNING c, version;
SELECT fence.read('generated_key.parts', 2, a)->>'b' FROM parts;
UPDATE parts SET b = 2 RETURNING c, version;
SELECT a, g.status FROM parts, fence.get('generated_key.parts', 2, a) g;
SELECT fence.read('generated_key.parts', 4, a)->>'b' FROM parts;
UPDATE parts SET a = 12 WHERE a = 1 RETURNING c, version;
SELECT a, g.status FROM (VALUES (1), (12)) v (a), fence.get('generated_key.parts', 4, a) g;

-- the column stops being generated: nothing else changes
ALTER TABLE users ALTER email_key DROP EXPRESSION;
CALL wait_for('by_email', 'x');
CALL fill();
UPDATE users SET email_key = 'cleo@a' WHERE id = 1;
SELECT domain, key, version, status FROM look() WHERE domain = 'by_email';

-- another expression gives all rows other keys, so the domain begins anew (from PostgreSQL 17 on there is such a statement)
CREATE TABLE spelled (id int PRIMARY KEY, e text, k text GENERATED ALWAYS AS (lower(e)) STORED UNIQUE, version int);
SELECT fence.attach('spelled', key => '{k}');
SELECT id AS former FROM fence.domain WHERE name = 'generated_key.spelled' \gset
DO $$
BEGIN
	IF current_setting('server_version_num')::int >= 170000 THEN
		EXECUTE 'ALTER TABLE spelled ALTER k SET EXPRESSION AS (upper(e))';
	END IF;
END $$;
SELECT current_setting('server_version_num')::int < 170000 OR id <> :former AS renewed FROM fence.domain WHERE name = 'generated_key.spelled';

SELECT fence.detach('users', all_domains => true), fence.detach('divided'), fence.detach('parts'), fence.detach('spelled');
SET client_min_messages = warning;
DROP SCHEMA generated_key CASCADE;
