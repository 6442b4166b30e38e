--
-- Detached reservations: reserve, commit and abort.
--
\set schema detached
\i test/lib/regress.sql
-- Until the patrol has settled what is over; and what get and status say then.
CREATE FUNCTION settled(domain text, VARIADIC key text[])
	RETURNS TABLE (fence bigint, "row" bigint, relation text, pending int, get text) LANGUAGE plpgsql AS $$
BEGIN
	CALL wait_until(format('(fence.status(%L, VARIADIC %L::text[])).pending = 0', domain, key));
	RETURN QUERY SELECT s.fence_version, s.row_version, s.relation, s.pending, g.status
	  FROM fence.get(domain, VARIADIC key) g CROSS JOIN fence.status(domain, VARIADIC key) s;
END $$;
CREATE FUNCTION look(domain text, VARIADIC key text[])
	RETURNS TABLE (fence bigint, "row" bigint, relation text, pending int, get text) LANGUAGE sql AS $$
	SELECT s.fence_version, s.row_version, s.relation, s.pending, g.status
	  FROM fence.get(domain, VARIADIC key) g CROSS JOIN fence.status(domain, VARIADIC key) s
$$;
CREATE VIEW pending AS SELECT domain, key, fences, fate, kind, lease_left > '30 min' AND lease_left <= '1 h' AS an_hour
  FROM fence.pending WHERE domain LIKE 'detached.%' ORDER BY key COLLATE "C", kind;

--
-- A table with triggers
--
CREATE TABLE item (id int PRIMARY KEY, v text, version bigint NOT NULL DEFAULT 0);
INSERT INTO item VALUES (1, 'a', 5), (2, 'b', 5), (3, 'c', 5);
SELECT fence.attach('item');
CALL wait_for('detached.item', '1');
SELECT fence.read('detached.item', id::text) FROM item;

-- it is there at once, and stays past the commit
BEGIN;
SELECT version, token FROM fence.reserve('detached.item', NULL, '1 hour', '1') \gset
SELECT :version, :'token' ~ '^[0-9a-f-]{36}$';
SELECT * FROM pending;
COMMIT;
SELECT * FROM pending;
SELECT * FROM look('detached.item', '1');
SELECT * FROM look('detached.item', '2');
SELECT fence.read('detached.item', '1');
SELECT topic, regexp_replace(finding, 'for .* by transaction [0-9a-f.]+', 'for ... by transaction ...')
  FROM fence.explain('detached.item', '1') WHERE topic = 'reservation';
-- nothing was written: the key is only cold
SELECT fence.abort(:'token');
SELECT * FROM settled('detached.item', '1');

-- committed without a write: the same
SELECT token FROM fence.reserve('detached.item', NULL, '1 hour', '1') \gset
SELECT fence.commit(:'token');
SELECT * FROM settled('detached.item', '1');

-- a write that it was made for is not its end: it stands until its token is used
SELECT version, token FROM fence.reserve('detached.item', 6, '1 hour', '1') \gset
SELECT :version;
UPDATE item SET v = 'A' WHERE id = 1;
SELECT * FROM look('detached.item', '1');
SELECT * FROM pending WHERE kind = 'detached';
UPDATE item SET v = 'AA' WHERE id = 1;
SELECT * FROM look('detached.item', '1');
SELECT fence.commit(:'token');
SELECT * FROM settled('detached.item', '1');
SELECT fence.commit(:'token');
SELECT fence.abort(:'token');

-- in the transaction that writes
SELECT token FROM fence.reserve('detached.item', NULL, '1 hour', '2') \gset
BEGIN;
UPDATE item SET v = 'B' WHERE id = 2;
SELECT fence.commit(:'token');
SELECT * FROM pending;
COMMIT;
SELECT * FROM settled('detached.item', '2');
SELECT fence.read('detached.item', '2');

-- a rollback undoes both: the reservation, and its end
BEGIN;
SELECT version FROM fence.reserve('detached.item', NULL, '1 hour', '3');
ROLLBACK;
SELECT * FROM settled('detached.item', '3');
SELECT count(*) FROM fence.reservation;
BEGIN;
SAVEPOINT s;
SELECT version FROM fence.reserve('detached.item', NULL, '1 hour', '3');
ROLLBACK TO s;
COMMIT;
SELECT * FROM settled('detached.item', '3');
SELECT token FROM fence.reserve('detached.item', NULL, '1 hour', '3') \gset
BEGIN;
UPDATE item SET v = 'C' WHERE id = 3;
SELECT fence.abort(:'token');
ROLLBACK;
SELECT * FROM pending;
BEGIN;
SAVEPOINT s;
SELECT fence.abort(:'token');
ROLLBACK TO s;
COMMIT;
SELECT * FROM pending;

-- several on one key ask for one version each
SELECT version, token AS second FROM fence.reserve('detached.item', NULL, '1 hour', '3') \gset
SELECT :version;
SELECT * FROM pending;
SELECT fence.abort(:'token');
SELECT get FROM look('detached.item', '3');
UPDATE item SET v = 'CC' WHERE id = 3;
SELECT get FROM look('detached.item', '3');
SELECT fence.abort(:'second');
SELECT * FROM settled('detached.item', '3');

-- a key without a row, and its end: nothing is known of it
SELECT version, token FROM fence.reserve('detached.item', NULL, '1 hour', '4') \gset
SELECT :version;
SELECT get FROM look('detached.item', '4');
SELECT fence.abort(:'token');
SELECT * FROM settled('detached.item', '4');
-- deleted meanwhile: its tombstone counts
SELECT fence.read('detached.item', '3');
SELECT token FROM fence.reserve('detached.item', NULL, '1 hour', '3') \gset
DELETE FROM item WHERE id = 3;
SELECT get FROM look('detached.item', '3');
SELECT fence.abort(:'token');
SELECT * FROM settled('detached.item', '3');

-- the lease
SELECT version FROM fence.reserve('detached.item', NULL, '100 ms', '2');
SELECT * FROM settled('detached.item', '2');
SELECT token FROM fence.reserve('detached.item', NULL, '1 ms', '2') \gset
SELECT clock_timestamp() + '1 ms' AS over \gset
CALL wait_until(format('clock_timestamp() > %L', :'over'));
SELECT fence.commit(:'token');
SELECT * FROM settled('detached.item', '2');

--
-- Versions that the caller stores
--
SELECT fence.attach(NULL, scope => 'manual', domain => 'detached.free');
CALL wait_for('detached.free', 'a');
SELECT fence.put('detached.free', permit, 7, 'seven', NULL, 'a') FROM fence.get('detached.free', 'a');
SELECT * FROM look('detached.free', 'a');
SELECT version, token FROM fence.reserve('detached.free', 7, '1 hour', 'a') \gset
SELECT :version;
SELECT get FROM look('detached.free', 'a');
SELECT fence.commit(:'token');
SELECT get FROM settled('detached.free', 'a');
-- above what Redis knows
SELECT fence.put('detached.free', permit, 8, 'eight', NULL, 'a') FROM fence.get('detached.free', 'a');
SELECT version, token FROM fence.reserve('detached.free', 3, '1 hour', 'a') \gset
SELECT :version, version = :version FROM fence.reservation;
-- somebody else was faster: a version above his
BEGIN;
SELECT fence.begin_write('detached.free', 8, 'a');
COMMIT;
BEGIN;
SELECT fence.commit(:'token');
COMMIT;
SELECT get FROM settled('detached.free', 'a');

-- with a table: the version is stored where the reservation is ended, and not without a reservation of the transaction's own
CREATE TABLE doc (id int PRIMARY KEY, v text, version bigint NOT NULL DEFAULT 0);
INSERT INTO doc VALUES (1, 'a', 5);
SELECT fence.attach('doc', scope => 'manual');
CALL wait_for('detached.doc', '1');
SELECT fence.read('detached.doc', '1');
SELECT * FROM look('detached.doc', '1');
SELECT version, token FROM fence.reserve('detached.doc', 9, '1 hour', '1') \gset
SELECT :version;
UPDATE doc SET v = 'b', version = :version;
SELECT get FROM look('detached.doc', '1');
UPDATE doc SET v = 'b', version = fence.commit(:'token');
SELECT * FROM settled('detached.doc', '1');
SELECT fence.read('detached.doc', '1');
-- another transaction has written the row meanwhile
SELECT version, token FROM fence.reserve('detached.doc', NULL, '1 hour', '1') \gset
UPDATE doc SET v = 'c', version = fence.begin_write('detached.doc', version, id);
SELECT get FROM look('detached.doc', '1');
SELECT fence.abort(:'token');
SELECT * FROM settled('detached.doc', '1');
SELECT fence.read('detached.doc', '1');

--
-- Groups
--
CREATE TABLE member (room int, name text, PRIMARY KEY (room, name));
SELECT fence.attach('member', key => '{room}', scope => 'group');
CALL wait_for('detached.member', '1');
SELECT version, token FROM fence.reserve('detached.member', NULL, '1 hour', '1') \gset
SELECT :version;
SELECT get FROM look('detached.member', '1');
INSERT INTO member VALUES (1, 'x');
SELECT get FROM look('detached.member', '1');
SELECT fence.commit(:'token');
SELECT * FROM settled('detached.member', '1');

-- the end of the attachment is its end
SELECT token FROM fence.reserve('detached.member', NULL, '1 hour', '2') \gset
SELECT fence.detach('member');
SELECT fence.commit(:'token');

--
-- What does not work
--
SELECT fence.reserve('detached.free', NULL, '1 s', 'a');
SELECT fence.reserve('detached.free', -1, '1 s', 'a');
SELECT fence.reserve('detached.free', 0, '0', 'a');
SELECT fence.reserve('detached.free', 0, '-1 s', 'a');
SELECT fence.reserve('detached.free', 0, '25 hours', 'a');
SELECT fence.reserve('detached.free', 0, '1 mon -1 day', 'a');
SELECT fence.reserve('detached.free', 0, NULL, 'a');
SELECT fence.reserve('detached.free', 0, '1 s', NULL);
SELECT fence.reserve(NULL, 0, '1 s', 'a');
SELECT fence.reserve('detached.nothing', 0, '1 s', 'a');
SELECT fence.commit('00000000-0000-0000-0000-000000000000');
SELECT fence.abort('00000000-0000-0000-0000-000000000000');
SELECT fence.commit(NULL) IS NULL;
BEGIN READ ONLY;
SELECT fence.reserve('detached.free', 0, '1 s', 'a');
ROLLBACK;
BEGIN READ ONLY;
SELECT fence.commit('00000000-0000-0000-0000-000000000000');
ROLLBACK;
BEGIN;
SELECT version FROM fence.reserve('detached.free', 0, '1 s', 'b');
PREPARE TRANSACTION 'detached';

--
-- One key has a bounded number of them
--
SELECT count(fence.reserve('detached.free', 0, '1 hour', 'many')) FROM generate_series(1, 100);
SELECT fence.reserve('detached.free', 0, '1 hour', 'many');
SELECT count(fence.reserve('detached.free', 0, '1 hour', 'another'));

--
-- Who may
--
CREATE ROLE regress_fence_detached;
GRANT USAGE ON SCHEMA detached TO regress_fence_detached;
SET ROLE regress_fence_detached;
SELECT fence.reserve('detached.item', 0, '1 s', '1');
SELECT fence.commit('00000000-0000-0000-0000-000000000000');
SELECT fence.abort('00000000-0000-0000-0000-000000000000');
SELECT * FROM fence.reservation;
RESET ROLE;
GRANT EXECUTE ON FUNCTION fence.reserve(text, bigint, interval, text[]), fence.commit, fence.abort TO regress_fence_detached;
SET ROLE regress_fence_detached;
SELECT version, token FROM fence.reserve('detached.item', 1, '1 hour', '1') \gset
SELECT fence.abort(:'token');
SELECT * FROM fence.reservation;
RESET ROLE;
SELECT pending FROM settled('detached.item', '1');
SELECT count(*) FROM fence.reservation WHERE token = :'token';
REVOKE EXECUTE ON FUNCTION fence.reserve(text, bigint, interval, text[]), fence.commit, fence.abort FROM regress_fence_detached;
REVOKE USAGE ON SCHEMA detached FROM regress_fence_detached;
DROP ROLE regress_fence_detached;

SET client_min_messages = warning;
DROP SCHEMA detached CASCADE;
SELECT fence.detach_domain('detached.free');
