--
-- Savepoints: what is left of a transaction's writes decides what is committed and what is aborted in Redis.
--
\set schema savepoints
\i test/lib/regress.sql

CREATE TABLE item (id int PRIMARY KEY, v text, version bigint NOT NULL DEFAULT 0);

-- Key by key: what PostgreSQL holds, what Redis holds, what a reader gets. A cached value must be the row as it is.
CREATE FUNCTION look() RETURNS TABLE (id int, stored bigint, fence bigint, relation text, cached text)
LANGUAGE sql AS $$
	SELECT k, s.row_version, s.fence_version, s.relation,
		   CASE WHEN g.status = 'hit' AND g.payload::jsonb IS DISTINCT FROM to_jsonb(t) THEN 'STALE ' || g.payload
				ELSE g.status END
	  FROM generate_series(1, 6) k
	 CROSS JOIN LATERAL fence.get('savepoints.item', k::text) g
	  LEFT JOIN item t ON t.id = k
	 CROSS JOIN LATERAL fence.status('savepoints.item', k::text) s
	 WHERE s.row_version IS NOT NULL OR g.status NOT IN ('miss') OR s.pending > 0
	 ORDER BY k
$$;

-- Within a transaction: keys that are reserved, and what its statements have stored. An answer on the connection on which
-- reservations are sent comes after they are made.
CREATE FUNCTION reserved() RETURNS TABLE (key int, stored bigint) LANGUAGE sql AS $$
	SELECT k, s.row_version
	  FROM generate_series(1, 6) k CROSS JOIN LATERAL fence.status('savepoints.item', k::text) s
	 WHERE s.pending > 0 ORDER BY k
$$;

-- Every row a hit
CREATE PROCEDURE seed() LANGUAGE plpgsql AS $$
DECLARE
	k text;
BEGIN
	FOR k IN SELECT item.id FROM item LOOP
		PERFORM fence.read('savepoints.item', k);
		IF (fence.get('savepoints.item', k)).status <> 'hit' THEN
			RAISE 'key % is not cached', k;
		END IF;
	END LOOP;
END $$;

INSERT INTO item VALUES (1, 'a'), (2, 'b'), (3, 'c');
SELECT fence.attach('item');
CALL wait_for('savepoints.item', '1');

-- nothing is left but a cold key
CALL seed();
BEGIN;
SAVEPOINT a;
UPDATE item SET v = 'never' WHERE id = 1 RETURNING version;
ROLLBACK TO a;
SELECT * FROM reserved();
COMMIT;
SELECT * FROM look();

-- a version that was given back is taken again
CALL seed();
BEGIN;
SAVEPOINT a;
UPDATE item SET v = 'never' WHERE id = 1 RETURNING version;
ROLLBACK TO a;
UPDATE item SET v = 'kept' WHERE id = 1 RETURNING version;
SELECT * FROM reserved();
COMMIT;
SELECT * FROM look();

-- the earlier of two writes is left: committed is 2, not the 3 that was asked for
CALL seed();
BEGIN;
UPDATE item SET v = 'kept' WHERE id = 1 RETURNING version;
SAVEPOINT a;
UPDATE item SET v = 'never' WHERE id = 1 RETURNING version;
ROLLBACK TO a;
SELECT * FROM reserved();
COMMIT;
SELECT * FROM look();
-- and 3 is the next
UPDATE item SET v = 'next' WHERE id = 1 RETURNING version;

-- several levels, released and rolled back, names used again
CALL seed();
BEGIN;
UPDATE item SET v = 'top' WHERE id = 1 RETURNING version;
SAVEPOINT a;
UPDATE item SET v = 'a' WHERE id = 1 RETURNING version;
UPDATE item SET v = 'a' WHERE id = 2 RETURNING version;
SAVEPOINT b;
UPDATE item SET v = 'b' WHERE id = 1 RETURNING version;
UPDATE item SET v = 'b' WHERE id = 3 RETURNING version;
RELEASE b;
SAVEPOINT a;
UPDATE item SET v = 'second a' WHERE id = 1 RETURNING version;
ROLLBACK TO a;
UPDATE item SET v = 'second a again' WHERE id = 1 RETURNING version;
RELEASE a;
ROLLBACK TO a;
UPDATE item SET v = 'after all' WHERE id = 1 RETURNING version;
SAVEPOINT c;
SAVEPOINT d;
SAVEPOINT e;
UPDATE item SET v = 'deep' WHERE id = 3 RETURNING version;
RELEASE c;
SELECT * FROM item ORDER BY id;
SELECT * FROM reserved();
COMMIT;
SELECT * FROM look();

-- release does not outlive the rollback of what is around it
CALL seed();
BEGIN;
SAVEPOINT a;
SAVEPOINT b;
UPDATE item SET v = 'never' WHERE id = 2;
RELEASE b;
SAVEPOINT c;
UPDATE item SET v = 'never' WHERE id = 2;
RELEASE c;
ROLLBACK TO a;
UPDATE item SET v = 'kept' WHERE id = 3 RETURNING version;
COMMIT;
SELECT * FROM look();
BEGIN;
SAVEPOINT a;
UPDATE item SET v = 'never' WHERE id = 2;
RELEASE a;
ROLLBACK;
SELECT * FROM look() WHERE id = 2;

-- keys that appear and vanish in savepoints
CALL seed();
BEGIN;
SAVEPOINT a;
INSERT INTO item VALUES (4, 'never', 40);
DELETE FROM item WHERE id = 1;
UPDATE item SET id = 5 WHERE id = 2;
ROLLBACK TO a;
SELECT * FROM reserved();
COMMIT;
SELECT * FROM look();
SELECT count(*) FROM fence.tombstone JOIN fence.domain d ON d.id = domain_id WHERE d.name = 'savepoints.item';
CALL seed();
BEGIN;
DELETE FROM item WHERE id = 1;
SAVEPOINT a;
INSERT INTO item VALUES (1, 'never', 1000) RETURNING version;
ROLLBACK TO a;
SAVEPOINT b;
INSERT INTO item VALUES (1, 'back') RETURNING version;
RELEASE b;
INSERT INTO item VALUES (4, 'new');
SAVEPOINT c;
DELETE FROM item WHERE id = 4;
INSERT INTO item VALUES (4, 'newer') RETURNING version;
ROLLBACK TO c;
SELECT * FROM reserved();
COMMIT;
SELECT * FROM look();

-- an error that is caught takes its statement back, with what other rows of it had taken
CALL seed();
DO $$
BEGIN
	UPDATE item SET v = 'kept' WHERE id = 1;
	BEGIN
		UPDATE item SET v = (1 / (id - 3))::text;
	EXCEPTION WHEN division_by_zero THEN
		RAISE NOTICE 'caught %', SQLERRM;
	END;
END $$;
SELECT * FROM look();

-- a thousand savepoints in a loop, every other one rolled back
CALL seed();
SELECT version AS before FROM item WHERE id = 1 \gset
DO $$
BEGIN
	FOR i IN 1..1000 LOOP
		BEGIN
			UPDATE item SET v = i WHERE id = 1;
			IF i % 2 = 0 THEN
				UPDATE item SET v = i WHERE id = 2;
				RAISE 'back';
			END IF;
		EXCEPTION WHEN raise_exception THEN
			NULL;
		END;
	END LOOP;
END $$;
SELECT v, version - :before AS versions FROM item WHERE id = 1;
SELECT id, stored = fence AS same, relation, cached FROM look() WHERE id <= 2;

-- a hundred levels deep; the fifty innermost are rolled back at once
CALL seed();
CREATE FUNCTION nest(level int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	UPDATE item SET v = level WHERE id = 2;
	IF level = 100 THEN
		RAISE 'bottom';
	END IF;
	BEGIN
		PERFORM nest(level + 1);
	EXCEPTION WHEN raise_exception THEN
		IF level > 50 THEN
			RAISE;
		END IF;
	END;
END $$;
SELECT version AS before FROM item WHERE id = 2 \gset
SELECT nest(1);
SELECT v, version - :before AS versions FROM item WHERE id = 2;
SELECT id, stored = fence AS same, relation, cached FROM look() WHERE id = 2;

-- transactions in a procedure
CALL seed();
CREATE PROCEDURE several() LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1..4 LOOP
		UPDATE item SET v = i WHERE id = 3;
		IF i % 2 = 0 THEN
			ROLLBACK;
		ELSE
			COMMIT;
		END IF;
	END LOOP;
END $$;
SELECT version AS before FROM item WHERE id = 3 \gset
CALL several();
SELECT v, version - :before AS versions FROM item WHERE id = 3;
SELECT id, stored = fence AS same, relation, cached FROM look() WHERE id = 3;
BEGIN;
UPDATE item SET v = 'chained' WHERE id = 3;
COMMIT AND CHAIN;
UPDATE item SET v = 'never' WHERE id = 3;
ROLLBACK AND CHAIN;
UPDATE item SET v = 'chained again' WHERE id = 3;
COMMIT;
SELECT v, version - :before AS versions FROM item WHERE id = 3;
SELECT id, stored = fence AS same, relation, cached FROM look() WHERE id = 3;

SELECT relation, count FROM fence.audit('savepoints.item') WHERE count > 0;
SELECT count(*) FROM fence.pending WHERE domain = 'savepoints.item';

SET client_min_messages = warning;
DROP SCHEMA savepoints CASCADE;
