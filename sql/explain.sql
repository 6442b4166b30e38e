--
-- fence.explain: in words, why a key is a hit, a miss, pending or unarmed.
--
\set schema explain
\i test/lib/regress.sql

-- Without what differs from run to run.
CREATE FUNCTION explain(VARIADIC key text[]) RETURNS TABLE (topic text, finding text) LANGUAGE sql AS $$
	SELECT e.topic,
		   regexp_replace(regexp_replace(regexp_replace(regexp_replace(regexp_replace(e.finding,
			   '\d+-[0-9a-f]{6}\.[0-9a-f]{16}', 'TOKEN', 'g'), '\d+\.[0-9a-f]{8}', 'STAMP', 'g'), '\d+\.\d s', 'N s', 'g'),
			   'process \d+', 'process PID'), 'fence:f:\d+\w{6}', 'fence:f:OID')
	  FROM fence.explain('explain.item', VARIADIC key) e
	 WHERE e.topic NOT IN ('state', 'epoch', 'lease', 'repair')
$$;
CREATE PROCEDURE settled() LANGUAGE sql AS $$
	CALL wait_until('NOT EXISTS (SELECT FROM fence.pending WHERE domain = ''explain.item'')')
$$;

CREATE TABLE item (id int PRIMARY KEY, v text, version bigint NOT NULL DEFAULT 0);
INSERT INTO item VALUES (1, 'a', 3), (2, 'b', 0);
SELECT fence.attach('item');
CALL wait_for('explain.item', '0');

-- nobody has read it yet
SELECT * FROM explain('1');
-- asking changes nothing
SELECT * FROM explain('1');
-- a reader has a permit
SELECT status, permit <> '' AS permit FROM fence.get('explain.item', '1');
SELECT * FROM explain('1');
-- a hit
SELECT fence.read('explain.item', '1');
SELECT * FROM explain('1');
-- written, and nobody has read it since
UPDATE item SET v = 'A' WHERE id = 1;
CALL settled();
SELECT * FROM explain('1');
-- being written, by this transaction
BEGIN;
UPDATE item SET v = 'B' WHERE id = 1;
SELECT topic, replace(finding, E'\n', ' ') FROM explain('1');
ROLLBACK;
CALL settled();
-- prepared
BEGIN;
UPDATE item SET v = 'C' WHERE id = 1;
PREPARE TRANSACTION 'explain';
SELECT * FROM explain('1');
COMMIT PREPARED 'explain';
CALL settled();
-- the whole table
BEGIN;
SET LOCAL pgcache_fence.bulk_threshold = 1;
UPDATE item SET v = 'D';
SELECT topic, finding FROM explain('2') WHERE topic IN ('answer', 'reservation');
COMMIT;
CALL settled();
-- what was cached before is of another token
SELECT fence.read('explain.item', '1');
BEGIN;
SET LOCAL pgcache_fence.bulk_threshold = 1;
UPDATE item SET v = 'E';
COMMIT;
CALL settled();
SELECT * FROM explain('1');
-- deleted, and never there
DELETE FROM item WHERE id = 2;
CALL settled();
SELECT status FROM fence.get('explain.item', '2');
SELECT * FROM explain('2');
SELECT * FROM explain('99');
-- all topics
SELECT topic FROM fence.explain('explain.item', '1');
-- the last repair
SELECT fence.repair('explain.item', '1');
SELECT topic, regexp_replace(finding, 'at .*: ', 'at TIME: ') FROM fence.explain('explain.item', '1') WHERE topic = 'repair';
SELECT topic, finding FROM fence.explain('explain.item', '99') WHERE topic = 'repair';

-- a group
CREATE TABLE member (id int PRIMARY KEY, room int NOT NULL, version int);
CREATE INDEX ON member (room);
SELECT fence.attach('member', key => '{room}', scope => 'group', version => NULL);
INSERT INTO member VALUES (1, 7);
CALL wait_for('explain.member', '7');
SELECT topic, finding FROM fence.explain('explain.member', '7') WHERE topic = 'row';
-- no table
SELECT fence.attach(NULL, scope => 'manual', domain => 'explain.free');
CALL wait_for('explain.free', 'k');
SELECT topic, finding FROM fence.explain('explain.free', 'k') WHERE topic = 'row';
SELECT fence.detach_domain('explain.free');

-- who may not read the row is told nothing of it
SET client_min_messages = warning;
DROP ROLE IF EXISTS regress_fence_nobody;
RESET client_min_messages;
CREATE ROLE regress_fence_nobody;
GRANT USAGE ON SCHEMA explain TO regress_fence_nobody;
SET ROLE regress_fence_nobody;
SELECT * FROM fence.explain('explain.item', '1');
RESET ROLE;
-- who may, is not told the statement of another role
GRANT SELECT ON item TO regress_fence_nobody;
BEGIN;
UPDATE item SET v = 'secret' WHERE id = 1;
SET LOCAL ROLE regress_fence_nobody;
SELECT topic, regexp_replace(finding, '.*process \d+', 'process PID') FROM fence.explain('explain.item', '1') WHERE topic = 'reservation';
ROLLBACK;
DROP OWNED BY regress_fence_nobody;
DROP ROLE regress_fence_nobody;
SELECT fence.explain('no such domain', '1');

SET client_min_messages = warning;
DROP SCHEMA explain CASCADE;
