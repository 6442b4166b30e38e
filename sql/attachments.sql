--
-- Several attachments of one table: a user by id, by e-mail and in the list of a tenant; and only_columns.
--
\set schema many_keys
\i test/lib/regress.sql
SELECT fence.wait_open('90 s');
\pset null '(null)'

CREATE TABLE users (id int PRIMARY KEY, email text UNIQUE, tenant int, name text, seen int DEFAULT 0, version bigint NOT NULL DEFAULT 0);
INSERT INTO users VALUES (1, 'a', 1, 'Ann'), (2, 'b', 1, 'Bob'), (3, NULL, 2, 'Cleo');
SELECT fence.attach('users', domain => 'users');
SELECT fence.attach('users', key => '{email}', domain => 'users_by_email');
SELECT fence.attach('users', key => '{tenant}', scope => 'group', domain => 'users_of_tenant');
SELECT tgname FROM pg_trigger WHERE tgrelid = 'users'::regclass ORDER BY tgname COLLATE "C";

-- second attachments that fence.attach refuses
SELECT fence.attach('users', key => '{email}', domain => 'users_by_email');
SELECT fence.attach('users', scope => 'manual', domain => 'by hand');
SELECT fence.attach('users', key => '{email}', domain => 'other', version => 'seen');
SELECT fence.attach('users', key => '{name}', domain => 'other');
-- a call that names no domain means the domain with the table's name
CREATE TABLE own (id int PRIMARY KEY, name text UNIQUE, version int);
SELECT fence.attach('own'), fence.attach('own', key => '{name}', domain => 'own_by_name');
SELECT fence.attach('own', key => '{name}');

-- Returns for each key the version that its domain has, what a reader gets, and whether that is the present row
CREATE FUNCTION look() RETURNS TABLE (domain text, key text, version bigint, status text, cached text) LANGUAGE sql AS $$
	SELECT d, k, s.row_version, g.status,
		   CASE WHEN g.status <> 'hit' THEN NULL
				WHEN g.payload::jsonb IS DISTINCT FROM CASE d
					 WHEN 'users' THEN (SELECT to_jsonb(u) FROM users u WHERE u.id::text = k)
					 WHEN 'users_by_email' THEN (SELECT to_jsonb(u) FROM users u WHERE u.email = k)
					 ELSE (SELECT coalesce(jsonb_agg(to_jsonb(u) ORDER BY to_jsonb(u)::text), '[]') FROM users u WHERE u.tenant::text = k) END
				THEN 'STALE ' || g.payload ELSE 'current' END
	  FROM (VALUES ('users', '1'), ('users', '2'), ('users', '3'), ('users_by_email', 'a'), ('users_by_email', 'b'), ('users_by_email', 'c'),
			('users_of_tenant', '1'), ('users_of_tenant', '2')) keys (d, k)
	 CROSS JOIN LATERAL fence.get(d, k) g CROSS JOIN LATERAL fence.status(d, k) s
$$;
CREATE PROCEDURE fill() LANGUAGE sql AS $$
	SELECT fence.read('users', k) FROM unnest('{1,2,3}'::text[]) k;
	SELECT fence.read('users_by_email', k) FROM unnest('{a,b,c}'::text[]) k;
	SELECT fence.read('users_of_tenant', k) FROM unnest('{1,2}'::text[]) k;
$$;
-- The keeper announces the domains to Redis a moment after the attach
CALL wait_until($$(SELECT count(*) FROM look() WHERE status IN ('unarmed', 'unavailable')) = 0$$);
CALL fill();
SELECT * FROM look();

-- adding and ending an attachment rewrites nothing and locks as CREATE TRIGGER does; the others keep their cached values
CREATE TEMPORARY TABLE storage AS SELECT relfilenode FROM pg_class WHERE oid = 'users'::regclass;
BEGIN;
SELECT fence.attach('users', key => '{name}', scope => 'group', domain => 'users_of_name');
SELECT mode FROM pg_locks WHERE pid = pg_backend_pid() AND relation = 'users'::regclass ORDER BY 1;
COMMIT;
SELECT count(*) FROM pg_class JOIN storage USING (relfilenode) WHERE oid = 'users'::regclass;
SELECT domain, key, status FROM look() WHERE status <> 'hit';
SELECT fence.detach('users', 'users_of_name');
SELECT domain, key, status FROM look() WHERE status <> 'hit';

-- one UPDATE reserves all fences of the row
BEGIN;
UPDATE users SET name = 'Anna' WHERE id = 1;
SELECT sum(fences) AS fences FROM fence.pending WHERE domain LIKE 'users%' AND pid = pg_backend_pid();
COMMIT;
SELECT * FROM look();
CALL fill();
SELECT * FROM look();

-- The e-mail changes: both keys are reserved. The row's version rises above its own and above the tombstone of the new key
UPDATE users SET email = 'c' WHERE id = 1;
UPDATE users SET email = 'a' WHERE id = 2;
SELECT * FROM look();
CALL fill();
SELECT * FROM look();
SELECT id, email, version FROM users ORDER BY id;
SELECT d.name, t.key, t.version FROM fence.tombstone t JOIN fence.domain d ON d.id = t.domain_id WHERE d.name LIKE 'users%' ORDER BY 1, 2;
-- a row with a low version takes a key with a high one: the row gets a version above both
UPDATE users SET name = name || '!' FROM generate_series(1, 1) WHERE id = 2;
UPDATE users SET name = name || '!' WHERE id = 2;
UPDATE users SET name = name || '!' WHERE id = 2;
UPDATE users SET email = 'z' WHERE id = 2;
INSERT INTO users VALUES (4, 'a', 2, 'Dora') RETURNING version;
UPDATE users SET email = NULL WHERE id = 4 RETURNING version;
UPDATE users SET email = 'a' WHERE id = 3 RETURNING version;
DELETE FROM users WHERE id = 3;
INSERT INTO users VALUES (3, 'a', 2, 'Cleo', 0, 3) RETURNING version;
INSERT INTO users VALUES (5, 'd', 2, 'Emil', 0, 30) RETURNING version;
-- two rows exchange their e-mails in one transaction
BEGIN;
UPDATE users SET email = 'tmp' WHERE id = 1 RETURNING email, version;
UPDATE users SET email = 'c' WHERE id = 3 RETURNING email, version;
UPDATE users SET email = 'a' WHERE id = 1 RETURNING email, version;
COMMIT;
CALL fill();
SELECT * FROM look();
SELECT d.domain, a.relation, a.count FROM fence.domains d, fence.audit(d.domain) a
 WHERE d.domain LIKE 'users%' AND a.relation IN ('fence_behind_db', 'fence_ahead_db', 'payload_differs') AND a.count > 0;
-- the transaction or a savepoint is rolled back
BEGIN;
SAVEPOINT s;
UPDATE users SET email = 'b', tenant = 2 WHERE id = 1;
DELETE FROM users WHERE id = 3;
ROLLBACK TO s;
UPDATE users SET name = 'Ann' WHERE id = 1;
COMMIT;
CALL fill();
SELECT * FROM look();

-- a null is no key: nothing is reserved for it
UPDATE users SET email = NULL WHERE id = 1;
UPDATE users SET name = 'nobody' WHERE id = 1;
SELECT fence.read('users_by_email', 'a'), fence.read('users', 1)->>'name' AS name;

-- many rows at once
SET pgcache_fence.bulk_threshold = 1;
CALL fill();
UPDATE users SET email = upper(email), tenant = 3 - tenant;
UPDATE users SET email = lower(email);
RESET pgcache_fence.bulk_threshold;
SELECT * FROM look();
CALL fill();
SELECT * FROM look();
TRUNCATE users;
SELECT * FROM look();
INSERT INTO users VALUES (1, 'a', 1, 'Ann'), (2, 'b', 1, 'Bob'), (3, NULL, 2, 'Cleo');
CALL fill();
SELECT * FROM look();
-- refused while there are others; they may end, and begin again in the same transaction
SELECT fence.renumber('users_by_email');
BEGIN;
SELECT fence.detach('users', 'users'), fence.detach('users', 'users_of_tenant');
SELECT fence.renumber('users_by_email');
SELECT fence.attach('users', domain => 'users'), fence.attach('users', key => '{tenant}', scope => 'group', domain => 'users_of_tenant');
COMMIT;
SELECT id, version FROM users ORDER BY id;
CALL wait_until($$(SELECT count(*) FROM look() WHERE status IN ('unarmed', 'unavailable')) = 0$$);
SELECT domain, status FROM look();

-- a column is renamed in all attachments; a key column gets another type, and so its keys get other texts
ALTER TABLE users RENAME COLUMN email TO mail;
ALTER TABLE users RENAME COLUMN mail TO email;
CREATE TEMPORARY TABLE ids AS SELECT name, id FROM fence.domain WHERE relation = 'users'::regclass;
ALTER TABLE users ALTER COLUMN email TYPE varchar(20);
SELECT d.name, d.id = i.id AS same FROM fence.domain d JOIN ids i USING (name) ORDER BY 1;
SELECT domain, key, relation FROM fence.domains WHERE relation = 'users'::regclass ORDER BY 1;
BEGIN;
ALTER TABLE users DROP CONSTRAINT users_email_key;
ROLLBACK;
BEGIN;
ALTER TABLE users DROP COLUMN tenant;
ROLLBACK;

-- detach ends one attachment and leaves the others; then it ends all
SELECT fence.detach('users');
SELECT fence.detach('users', domain => 'nosuch');
SELECT fence.detach('users', 'users');
SELECT tgname FROM pg_trigger WHERE tgrelid = 'users'::regclass ORDER BY tgname COLLATE "C";
SELECT fence.detach_domain('users_by_email');
SELECT tgname FROM pg_trigger WHERE tgrelid = 'users'::regclass ORDER BY tgname COLLATE "C";
ALTER TABLE users DROP CONSTRAINT users_email_key;
UPDATE users SET name = 'in a group' WHERE id = 1;
SELECT fence.read('users_of_tenant', 1)->0->>'name' AS name;
SELECT fence.attach('users', domain => 'users');
SELECT tgname FROM pg_trigger WHERE tgrelid = 'users'::regclass ORDER BY tgname COLLATE "C";
SELECT fence.detach('users', all_domains => true);
SELECT tgname FROM pg_trigger WHERE tgrelid = 'users'::regclass ORDER BY tgname COLLATE "C";
SELECT fence.detach('users');
-- DROP TABLE ends all attachments
SELECT fence.attach('users', domain => 'users'), fence.attach('users', key => '{tenant}', scope => 'group', domain => 'users_of_tenant');
DROP TABLE users;
SELECT domain FROM fence.domains WHERE domain LIKE 'users%';

-- ---------------------------------------------------------------------------------------------------------------------
-- The whole table is one key
-- ---------------------------------------------------------------------------------------------------------------------
CREATE TABLE settings (name text PRIMARY KEY, value text);
SELECT fence.attach('settings', key => '{}', domain => 'settings');
SELECT fence.attach('own', key => '{}', scope => 'manual', domain => 'x');
SELECT fence.attach('own', key => '{}', cache => 'row', domain => 'x');
SELECT scope, key FROM fence.domains WHERE domain = 'settings';
SELECT split_part(fence.fence_key('settings'), ':', 4), split_part(fence.value_key('settings'), ':', 4);
SELECT fence.read('settings');
INSERT INTO settings VALUES ('theme', 'dark');
SELECT fence.read('settings'), fence.group_version('settings');
SELECT status, version, payload FROM fence.get('settings');
SELECT version, value, source FROM fence.read_many(ARRAY[fence.fence_key('settings')]);
SELECT fence.read('settings', 'theme');
SELECT fence.read('own_by_name');
SELECT fence.detach('settings');

-- ---------------------------------------------------------------------------------------------------------------------
-- only_columns
-- ---------------------------------------------------------------------------------------------------------------------
CREATE TABLE profile (id int PRIMARY KEY, handle text UNIQUE, name text, bio text, seen int DEFAULT 0,
	loud text GENERATED ALWAYS AS (upper(name)) STORED, team int, version int NOT NULL DEFAULT 0);
ALTER TABLE profile ALTER COLUMN bio SET STORAGE EXTERNAL;
SELECT fence.attach('profile', only_columns => true, domain => 'profile');
SELECT fence.attach('profile', only_columns => true, scope => 'manual', columns => '{name}', domain => 'profile');
SELECT fence.attach('profile', only_columns => true, columns => '{name,loud}', domain => 'profile');
SELECT fence.attach('profile', only_columns => true, columns => '{id,name,bio}', cache => 'row', domain => 'profile');
SELECT fence.attach('profile', key => '{team}', scope => 'group', only_columns => true, columns => '{handle}', domain => 'team');
INSERT INTO profile (id, handle, name, bio, team) VALUES (1, 'ann', 'Ann', repeat('x', 10000), 1), (2, 'bob', NULL, NULL, 1);
SELECT fence.wait_open('90 s');
CREATE FUNCTION versions() RETURNS TABLE (id int, version int, status text, team bigint, team_status text) LANGUAGE sql AS $$
	SELECT p.id, p.version, g.status, fence.group_version('team', p.team), t.status FROM profile p
	 CROSS JOIN LATERAL fence.get('profile', p.id) g CROSS JOIN LATERAL fence.get('team', p.team) t ORDER BY 1
$$;
CREATE PROCEDURE fill_profiles() LANGUAGE sql AS $$ SELECT fence.read('profile', 1), fence.read('profile', 2), fence.read('team', 1) $$;
DO $$
DECLARE
	deadline timestamptz := clock_timestamp() + '90 s';
BEGIN
	WHILE (SELECT count(*) FROM versions() WHERE status <> 'hit' OR team_status <> 'hit') > 0 LOOP
		IF clock_timestamp() > deadline THEN
			RAISE 'not served: %', (SELECT s FROM fence.state s);
		END IF;
		CALL fill_profiles();
	END LOOP;
END $$;
SELECT * FROM versions();
-- no cached column gets another value: nothing is reserved, the version stays and readers still hit, whatever columns the statement names
UPDATE profile SET seen = seen + 1, name = name, bio = bio WHERE id = 1 RETURNING version, seen;
UPDATE profile SET seen = seen + 1, bio = repeat('x', 10000);
SELECT * FROM versions();
BEGIN;
UPDATE profile SET seen = 0;
SELECT count(*) FROM fence.pending WHERE pid = pg_backend_pid();
COMMIT;
-- a cached column changes, also from null and to null; the other attachment has columns of its own
UPDATE profile SET name = 'Anna' WHERE id = 1;
SELECT * FROM versions();
CALL fill_profiles();
UPDATE profile SET name = 'Bob' WHERE id = 2;
SELECT * FROM versions();
CALL fill_profiles();
UPDATE profile SET handle = 'bobby' WHERE id = 2;
SELECT * FROM versions();
CALL fill_profiles();
UPDATE profile SET bio = repeat('x', 9999) || 'y' WHERE id = 1;
UPDATE profile SET team = 2 WHERE id = 2;
SELECT * FROM versions();
-- an UPDATE that raises the version itself counts as a change
UPDATE profile SET version = version + 1 WHERE id = 1 RETURNING version;
-- a row is deleted and inserted again
DELETE FROM profile WHERE id = 2;
INSERT INTO profile (id, handle, name, team) VALUES (2, 'bobby', 'Bob', 2);
CALL fill_profiles();
SELECT * FROM versions();
SELECT relation, count FROM fence.audit('profile') WHERE relation <> 'missing' AND count > 0;
-- another trigger changes a cached column: before ours this counts, after ours AFTER ROW finds it
CREATE FUNCTION rename_it() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.name := 'Hugo'; RETURN NEW; END $$;
CREATE TRIGGER zzzz BEFORE UPDATE ON profile FOR EACH ROW EXECUTE FUNCTION rename_it();
UPDATE profile SET seen = 7 WHERE id = 1;
DROP TRIGGER zzzz ON profile;
CREATE TRIGGER aaa BEFORE UPDATE ON profile FOR EACH ROW EXECUTE FUNCTION rename_it();
UPDATE profile SET seen = 7 WHERE id = 1;
DROP TRIGGER aaa ON profile;
CALL fill_profiles();
SELECT * FROM versions();
-- if another attachment has no only_columns, the version rises for both
SELECT fence.attach('profile', key => '{handle}', domain => 'profile_by_handle');
UPDATE profile SET seen = 8 WHERE id = 1;
SELECT * FROM versions();
CALL fill_profiles();
SELECT fence.detach('profile', 'profile_by_handle');
-- a column of only_columns becomes a generated one: from now on every change counts
ALTER TABLE profile DROP COLUMN bio;
ALTER TABLE profile ADD COLUMN bio text GENERATED ALWAYS AS (name || seen::text::char(3)) STORED;
UPDATE profile SET seen = 9 WHERE id = 1;
SELECT id, version FROM profile ORDER BY id;

-- the version column is among the columns of a group: what raises the version of its rows for another attachment changes the group
CREATE TABLE counted (id int PRIMARY KEY, team int, v text, w text, version int NOT NULL DEFAULT 0);
INSERT INTO counted VALUES (1, 1, 'a', 'x');
SELECT fence.attach('counted', only_columns => true, columns => '{id,w}', domain => 'counted_w'),
	   fence.attach('counted', key => '{team}', scope => 'group', only_columns => true, columns => '{id,v,version}', domain => 'counted_of_team'),
	   fence.attach('counted', key => '{team}', scope => 'group', only_columns => true, columns => '{id,v}', domain => 'counted_v');
CALL wait_for('counted_of_team', '1');
CALL wait_for('counted_v', '1');
SELECT fence.read('counted_of_team', 1), fence.read('counted_v', 1);
UPDATE counted SET w = 'y' WHERE id = 1 RETURNING version;
SELECT d, status FROM unnest('{counted_of_team,counted_v}'::text[]) d, fence.get(d, '1');
SELECT fence.read('counted_of_team', 1);
-- begun anew, the versions would change what the groups have; so that is refused, except for a domain that has none in the rows
SELECT fence.renumber('counted_w');
SELECT fence.renumber('counted_v'), fence.group_version('counted_v', 1);
CALL wait_for('counted_of_team', '1');
SELECT fence.detach('counted', 'counted_of_team'), fence.detach('counted', 'counted_v');
SELECT fence.renumber('counted_w');

-- ---------------------------------------------------------------------------------------------------------------------
-- Partitions, and rows that move between them
-- ---------------------------------------------------------------------------------------------------------------------
CREATE TABLE parted (id int, room int, email text, what text, version int NOT NULL DEFAULT 0, PRIMARY KEY (id), UNIQUE (id, email)) PARTITION BY RANGE (id);
CREATE TABLE low PARTITION OF parted FOR VALUES FROM (0) TO (10);
SELECT fence.attach('parted', domain => 'parted'), fence.attach('parted', key => '{room}', scope => 'group', domain => 'parted_of_room'),
	   fence.attach('parted', key => '{email,id}', domain => 'parted_by_email');
CREATE TABLE high (email text, version int NOT NULL DEFAULT 0, what text, room int, id int NOT NULL);
INSERT INTO high VALUES ('h', 5, 'high', 1, 11);
ALTER TABLE parted ATTACH PARTITION high FOR VALUES FROM (10) TO (20);
INSERT INTO parted VALUES (1, 1, 'l', 'low');
UPDATE parted SET id = id + 11, room = 2 WHERE id = 1;
UPDATE parted SET what = 'changed' WHERE email = 'h';
SELECT fence.read('parted', 11), fence.read('parted_by_email', 'l', 12);
DELETE FROM parted WHERE id = 11;
UPDATE parted SET id = 3 WHERE id = 12;
SELECT tableoid::regclass, id, room, email, version FROM parted ORDER BY 2;
SELECT d.name, t.key, t.version FROM fence.tombstone t JOIN fence.domain d ON d.id = t.domain_id WHERE d.name LIKE 'parted%' ORDER BY 1, 2;
SELECT fence.read('parted_of_room', 1), fence.read('parted_of_room', 2);
SELECT fence.detach('parted', 'parted'), fence.detach('parted', 'parted_by_email');
UPDATE parted SET what = 'in a group';
SELECT fence.group_version('parted_of_room', 1), fence.group_version('parted_of_room', 2);
SELECT tgrelid::regclass, tgname FROM pg_trigger WHERE tgrelid IN ('parted'::regclass, 'low'::regclass) ORDER BY 1, tgname COLLATE "C";

SELECT count(*) FROM fence.pending WHERE domain LIKE 'users%' OR domain LIKE 'pro%';
SELECT severity, finding FROM fence.doctor() WHERE severity IN ('error', 'warning') AND finding ~ 'trigger|index|fenced';
SET client_min_messages = warning;
DROP SCHEMA many_keys CASCADE;
SELECT count(*) FROM fence.domains WHERE domain ~ '^(users|profile|parted|team|own|counted)';
