\set ECHO none
--
-- How the tests in sql/ begin: with the extension, and a schema of their own named :schema, which also has the procedures that
-- wait. psql shows nothing of this file but its first line.
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS pgcache_fence;
RESET client_min_messages;
CREATE SCHEMA :"schema";
SET search_path = :"schema";

-- Waits until the condition, an expression in SQL, is true.
CREATE PROCEDURE wait_until(condition text) LANGUAGE plpgsql AS $$
DECLARE
	deadline timestamptz := clock_timestamp() + '90 s';
	met boolean;
BEGIN
	LOOP
		EXECUTE 'SELECT ' || condition INTO met;
		EXIT WHEN met;
		IF clock_timestamp() > deadline THEN
			RAISE 'waited in vain for %, fences are %', condition, (SELECT s FROM fence.state s);
		END IF;
		PERFORM pg_sleep(0.01);
	END LOOP;
END $$;

-- A domain that was attached just now is announced to Redis a moment later: waits until reads of that key are answered.
CREATE PROCEDURE wait_for(domain text, VARIADIC key text[]) LANGUAGE plpgsql AS $$
BEGIN
	CALL wait_until(format('(fence.get(%L, VARIADIC %L::text[])).status NOT IN ($a$unarmed$a$, $a$unavailable$a$)', domain, key));
END $$;
\set ECHO all
