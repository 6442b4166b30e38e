--
-- Scope group: one fence for all rows with the same key.
--
\set schema groups
\i test/lib/regress.sql

CREATE TABLE member (room int, usr text, role text, PRIMARY KEY (room, usr));
INSERT INTO member SELECT r, 'u' || u, 'guest' FROM generate_series(1, 3) r, generate_series(1, 3) u;
SELECT fence.attach('member', scope => 'group');
SELECT fence.attach('member', key => '{nosuch}', scope => 'group');
SELECT fence.attach('member', key => '{room}', scope => 'group');
SELECT * FROM fence.domains WHERE domain = 'groups.member';
CALL wait_for('groups.member', '1');

-- Group by group: its version, its fence, and what a reader gets, which must be the rows as they are.
CREATE FUNCTION look() RETURNS TABLE (room int, version bigint, fence bigint, relation text, cached text) LANGUAGE sql AS $$
	SELECT k, fence.group_version('groups.member', k::text), s.fence_version, s.relation,
		   CASE WHEN g.status = 'hit' AND
					 (SELECT coalesce(jsonb_agg(x ORDER BY x), '[]') FROM jsonb_array_elements(g.payload::jsonb) x) IS DISTINCT FROM
					 (SELECT coalesce(jsonb_agg(to_jsonb(m) ORDER BY to_jsonb(m)), '[]') FROM member m WHERE m.room = k)
				THEN 'STALE ' || g.payload ELSE g.status END
	  FROM generate_series(1, 4) k
	 CROSS JOIN LATERAL fence.get('groups.member', k::text) g
	 CROSS JOIN LATERAL fence.status('groups.member', k::text) s ORDER BY 1
$$;
CREATE PROCEDURE seed() LANGUAGE sql AS $$ SELECT fence.read('groups.member', k::text) FROM generate_series(1, 4) k $$;
CREATE FUNCTION anomalies() RETURNS SETOF record LANGUAGE sql AS $$
	SELECT relation, count FROM fence.audit('groups.member')
	 WHERE relation IN ('fence_behind_db', 'fence_ahead_db', 'payload_differs', 'pending') AND count > 0
$$;

-- a group that never changed has version 0, an empty one is an empty array
SELECT fence.read('groups.member', '1');
SELECT fence.read('groups.member', '4');
CALL seed();
SELECT * FROM look();

-- a change of any row, once per transaction
UPDATE member SET role = 'admin' WHERE room = 1;
SELECT * FROM look();
CALL seed();
SELECT * FROM look();
BEGIN;
UPDATE member SET role = 'x' WHERE room = 1 AND usr = 'u1';
DELETE FROM member WHERE room = 1 AND usr = 'u2';
INSERT INTO member VALUES (1, 'u4', 'new'), (4, 'first', 'owner');
SELECT (fence.status('groups.member', '1')).pending, (fence.status('groups.member', '1')).row_version;
SELECT sum(fences) AS fences FROM fence.pending WHERE domain = 'groups.member' AND pid = pg_backend_pid();
SELECT fence.read('groups.member', '1');
COMMIT;
SELECT * FROM look();
CALL seed();
SELECT * FROM look();

-- a row that moves to another group changes both
UPDATE member SET room = 3 WHERE room = 2 AND usr = 'u1' RETURNING *;
UPDATE member SET room = 2, usr = 'u9' WHERE room = 3 AND usr = 'u1' AND role = 'guest';
SELECT * FROM look();
SELECT * FROM anomalies() AS (relation text, count bigint);

-- rolled back, with the version; in a savepoint too. What was reserved for it is cold
CALL seed();
BEGIN;
UPDATE member SET role = 'never';
ROLLBACK;
SELECT * FROM look();
BEGIN;
SAVEPOINT a;
UPDATE member SET role = 'never' WHERE room = 1;
ROLLBACK TO a;
UPDATE member SET role = 'ever' WHERE room = 2;
SAVEPOINT b;
UPDATE member SET role = 'ever more' WHERE room = 2;
RELEASE b;
COMMIT;
SELECT * FROM look();
SELECT * FROM anomalies() AS (relation text, count bigint);

-- the last row goes, the group's version goes on
DELETE FROM member WHERE room = 4;
CALL seed();
SELECT fence.read('groups.member', '4');
INSERT INTO member VALUES (4, 'again', 'guest');
SELECT * FROM look();

-- many groups in one transaction
SET pgcache_fence.bulk_threshold = 2;
CALL seed();
UPDATE member SET role = 'all';
SELECT * FROM look();
CALL seed();
SELECT * FROM look();
RESET pgcache_fence.bulk_threshold;
TRUNCATE member;
SELECT * FROM look();
CALL seed();
SELECT * FROM look();
SELECT * FROM anomalies() AS (relation text, count bigint);

-- more new groups in one transaction than there are locks in the server
CREATE TABLE wide (id int PRIMARY KEY, part int);
SELECT fence.attach('wide', key => '{part}', scope => 'group');
INSERT INTO wide SELECT i, i FROM generate_series(1, 20000) i;
SELECT count(*), min(version), max(version) FROM fence.tombstone t JOIN fence.domain d ON d.id = t.domain_id WHERE d.name = 'groups.wide';
SELECT fence.detach('wide');

-- rows without a key belong to no group
CREATE TABLE item (id int PRIMARY KEY, orders int, what text);
SELECT fence.attach('item', key => '{orders}', scope => 'group', columns => '{id,what}');
CALL wait_for('groups.item', '1');
INSERT INTO item VALUES (1, NULL, 'free'), (2, 7, 'taken');
UPDATE item SET orders = 7 WHERE id = 1;
SELECT fence.read('groups.item', '7'), fence.group_version('groups.item', '7');
UPDATE item SET orders = NULL WHERE id = 2;
SELECT fence.read('groups.item', '7'), fence.group_version('groups.item', '7');
SELECT fence.group_version('groups.nosuch', '7');

-- a trigger that comes before ours, and RETURNING, read the group before it is reserved: nothing of that may reach the cache
CREATE FUNCTION read_early() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	RAISE NOTICE 'read %, put %', fence.read('groups.item', '7'),
		fence.put('groups.item', coalesce((g).permit, ''), coalesce((g).version, 0), '["early"]', NULL, '7') FROM fence.get('groups.item', '7') g;
	RETURN NULL;
END $$;
CREATE TRIGGER aaa AFTER INSERT OR UPDATE OR DELETE ON item FOR EACH ROW EXECUTE FUNCTION read_early();
BEGIN;
INSERT INTO item VALUES (3, 7, 'never');
ROLLBACK;
SELECT status, version FROM fence.get('groups.item', '7');
SELECT fence.read('groups.item', '7');
BEGIN;
UPDATE item SET what = 'never' WHERE id = 1 RETURNING fence.read('groups.item', '7');
ROLLBACK;
SELECT status, version, payload FROM fence.get('groups.item', '7');
UPDATE item SET what = 'read early' WHERE id = 1;
SELECT fence.read('groups.item', '7');
DROP TRIGGER aaa ON item;

SELECT count(*) FROM fence.pending WHERE domain LIKE 'groups.%';
SELECT fence.detach('member');
SELECT count(*) FROM fence.tombstone t LEFT JOIN fence.domain d ON d.id = t.domain_id WHERE d.id IS NULL;
SELECT fence.detach_domain('groups.item');
SET client_min_messages = warning;
DROP SCHEMA groups CASCADE;
