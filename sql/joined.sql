--
-- Several tables in one domain: an order and its lines make one value.
--
\set schema joined
\i test/lib/regress.sql
SELECT fence.wait_open('90 s');
\pset null '(null)'

CREATE TABLE orders (id int PRIMARY KEY, customer text, note text);
CREATE TABLE lines (id int PRIMARY KEY, order_id int REFERENCES orders, what text, amount int);
INSERT INTO orders VALUES (1, 'ann', NULL), (2, 'bob', NULL);
INSERT INTO lines VALUES (1, 1, 'tea', 2), (2, 1, 'cup', 1), (3, 2, 'pot', 1);
SELECT fence.attach('orders', key => '{id}', scope => 'group', domain => 'order', columns => '{id,customer}', only_columns => true);

-- tables that cannot join
SELECT fence.attach('orders', key => '{customer}', scope => 'group', domain => 'order');
SELECT fence.attach('lines', key => '{id}', domain => 'order', version => NULL);
SELECT fence.attach('lines', key => '{what}', scope => 'group', domain => 'order');
SELECT fence.attach('lines', key => '{order_id,id}', scope => 'group', domain => 'order');
SELECT fence.attach('lines', key => '{order_id}', scope => 'group', domain => 'order', publish => 'notify');
SELECT fence.attach('lines', key => '{order_id}', scope => 'group', domain => 'order', tag => 'o/{order_id}');
SELECT fence.attach(NULL, scope => 'manual', domain => 'order');

CREATE FUNCTION look() RETURNS TABLE (key int, version bigint, status text, cached text) LANGUAGE sql AS $$
	SELECT k, fence.group_version('order', k), g.status, g.payload FROM unnest('{1,2}'::int[]) k CROSS JOIN LATERAL fence.get('order', k) g ORDER BY 1
$$;
CREATE PROCEDURE fill() LANGUAGE sql AS $$ SELECT fence.read('order', 1), fence.read('order', 2) $$;
CREATE PROCEDURE served() LANGUAGE plpgsql AS $$
DECLARE
	deadline timestamptz := clock_timestamp() + '90 s';
BEGIN
	WHILE (SELECT count(*) FROM look() WHERE status <> 'hit') > 0 LOOP
		IF clock_timestamp() > deadline THEN
			RAISE 'not served: %', (SELECT s FROM fence.state s);
		END IF;
		CALL fill();
	END LOOP;
END $$;
CALL served();
UPDATE orders SET customer = 'anna' WHERE id = 1;
CALL served();
SELECT * FROM look();
-- the second table joins: readers do not get what was cached without it
SELECT fence.attach('lines', key => '{order_id}', scope => 'group', domain => 'order', columns => '{what,amount}');
SELECT domain, relation, key FROM fence.domains WHERE domain = 'order' ORDER BY relation::text;
SELECT count(DISTINCT id), count(*) FROM fence.domain WHERE name = 'order';
SELECT status FROM look();
CALL served();
SELECT * FROM look();
-- a change of either table ends the cached value, and the version rises once for both
UPDATE lines SET amount = 3 WHERE id = 1;
SELECT key, version, status FROM look();
CALL served();
BEGIN;
UPDATE orders SET customer = 'ann' WHERE id = 1;
INSERT INTO lines VALUES (4, 1, 'milk', 1);
SELECT sum(fences) FROM fence.pending WHERE domain = 'order' AND pid = pg_backend_pid();
SELECT fence.read('order', 1);
COMMIT;
SELECT key, version, status FROM look();
CALL served();
UPDATE orders SET note = 'not cached';
UPDATE lines SET order_id = 2 WHERE id = 4;
SELECT key, version, status FROM look();
CALL served();
SELECT * FROM look();
SELECT version, value FROM fence.read_many(fence.fence_keys('order', '{1,3}'));
-- a reader without SELECT on one of the tables
CREATE ROLE joined_reader;
GRANT USAGE ON SCHEMA joined TO joined_reader;
GRANT SELECT ON orders TO joined_reader;
SET ROLE joined_reader;
SELECT fence.read('order', 1);
RESET ROLE;
GRANT SELECT ON lines TO joined_reader;
SET ROLE joined_reader;
SELECT fence.read('order', 1) -> 'joined.orders';
RESET ROLE;
-- TRUNCATE, other types
TRUNCATE lines;
SELECT status FROM look();
CALL served();
SELECT * FROM look();
ALTER TABLE lines ALTER COLUMN order_id TYPE bigint;
BEGIN;
ALTER TABLE lines DROP CONSTRAINT lines_order_id_fkey, ALTER COLUMN order_id TYPE numeric;
ROLLBACK;
-- one table leaves: the domain goes on without what was cached of both. The last one ends the domain
CALL served();
SELECT fence.detach('orders');
SELECT status FROM look();
SELECT domain, relation FROM fence.domains WHERE domain = 'order';
SELECT count(*) > 0 AS versions_stay FROM fence.tombstone t JOIN fence.domain d ON d.id = t.domain_id WHERE d.name = 'order';
SELECT fence.read('order', 1);
CREATE TEMPORARY TABLE former AS SELECT id FROM fence.domain WHERE name = 'order';
SELECT fence.attach('orders', key => '{id}', scope => 'group', domain => 'order');
ALTER TABLE lines ALTER COLUMN order_id TYPE int;
DROP TABLE lines;
SELECT domain, relation FROM fence.domains WHERE domain = 'order';
CREATE TABLE lines (id int PRIMARY KEY, order_id int, what text);
SELECT fence.attach('lines', key => '{order_id}', scope => 'group', domain => 'order');
SELECT fence.detach_domain('order');
SELECT fence.detach_domain('order');
SELECT count(*) FROM fence.tombstone t JOIN former f ON f.id = t.domain_id;
SELECT severity, finding FROM fence.doctor() WHERE severity IN ('error', 'warning') AND finding ~ 'trigger|index|fenced';
SET client_min_messages = warning;
DROP SCHEMA joined CASCADE;
DROP ROLE joined_reader;
