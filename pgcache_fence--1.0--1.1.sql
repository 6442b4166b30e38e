/* pgcache_fence--1.0--1.1.sql */
\echo Use "ALTER EXTENSION pgcache_fence UPDATE TO '1.1'" to load this file. \quit

-- pgcache_fence--1.0.sql is never changed any more. CREATE EXTENSION runs it and then this file, ALTER EXTENSION UPDATE this
-- file alone, so both ways lead to the same objects. What is new in 1.1 is declared here, under the headings of that file.

-- Files that were installed while the server runs do not change the library that it has loaded.
DO $$
BEGIN
    CREATE FUNCTION fence._of_this_version(OUT name text, OUT labels jsonb, OUT value double precision)
        RETURNS SETOF record LANGUAGE C AS 'MODULE_PATHNAME', 'fence_metrics_view';
    DROP FUNCTION fence._of_this_version();
EXCEPTION WHEN undefined_function THEN
    RAISE EXCEPTION 'the server has loaded a library of pgcache_fence that is older than version 1.1 of the extension'
        USING ERRCODE = 'object_not_in_prerequisite_state',
              HINT = 'Install the new library, restart PostgreSQL, then try again. Until then the extension stays as it is.';
END $$;

-- ---------------------------------------------------------------------------------------------------------------------
-- Durable state
-- ---------------------------------------------------------------------------------------------------------------------

ALTER TABLE fence.domain
    DROP CONSTRAINT domain_cache_check,
    ADD CONSTRAINT domain_cache_check CHECK (cache IN ('none', 'row')),
    DROP CONSTRAINT domain_publish_check,
    ADD CONSTRAINT domain_publish_check CHECK (publish IN ('none', 'pubsub', 'stream', 'notify'));

-- ---------------------------------------------------------------------------------------------------------------------
-- Seeing and repairing
-- ---------------------------------------------------------------------------------------------------------------------

-- A function's columns cannot be changed, so this one takes the place of fence._state. The view is replaced and not made
-- anew, because views of users may rest on it: columns can only be added at its end.
CREATE FUNCTION fence._server_state(OUT state text, OUT epoch text, OUT reason text, OUT since timestamptz,
                                    OUT lease_left interval, OUT bypassed_transactions bigint, OUT values_too_large bigint)
    RETURNS record LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'fence_state_view';
CREATE OR REPLACE VIEW fence.state AS SELECT * FROM fence._server_state();
DROP FUNCTION fence._state();

-- Compares all rows of a domain with their fences and repairs what is ahead or behind; tells what was found.
CREATE FUNCTION fence.repair_domain(domain text, OUT relation text, OUT count bigint)
    RETURNS SETOF record LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'fence_repair_domain';

-- How far calls of attach, audit and repair_domain have come, in all databases. total: of the phase, null if not known.
CREATE FUNCTION fence._progress(OUT pid integer, OUT datname text, OUT command text, OUT domain text, OUT phase text,
                                OUT done bigint, OUT total bigint, OUT started timestamptz)
    RETURNS SETOF record LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'fence_progress_view';
CREATE VIEW fence.progress AS SELECT * FROM fence._progress();

-- Looks over the whole installation: one row for each finding (severity ok, info, warning or error), and what to do.
CREATE FUNCTION fence.doctor(OUT severity text, OUT finding text, OUT hint text)
    RETURNS SETOF record LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp AS 'MODULE_PATHNAME', 'fence_doctor';

-- In words, why the key is a hit, a miss, pending or unarmed right now.
CREATE FUNCTION fence.explain(domain text, VARIADIC key text[], OUT topic text, OUT finding text)
    RETURNS SETOF record LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'fence_explain';

-- Counters since the server start or the last reset, and gauges: of this database's domains, and of the whole server. For
-- those who watch servers (pg_monitor).
CREATE FUNCTION fence._metrics(OUT name text, OUT labels jsonb, OUT value double precision)
    RETURNS SETOF record LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'fence_metrics_view';
CREATE VIEW fence.metrics AS
    SELECT m.* FROM fence._metrics() m
     WHERE NOT m.labels ? 'domain' OR m.labels->>'domain' = '(other)'
        OR EXISTS (SELECT FROM fence.domain d WHERE d.name = m.labels->>'domain');
CREATE FUNCTION fence.reset_metrics() RETURNS void
    LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'fence_reset_metrics';

REVOKE ALL ON FUNCTION fence.repair_domain, fence._metrics, fence.reset_metrics, fence.doctor FROM PUBLIC;
GRANT EXECUTE ON FUNCTION fence._metrics, fence.doctor TO pg_monitor;
GRANT SELECT ON fence.metrics TO pg_monitor;
GRANT SELECT ON fence.progress TO PUBLIC;
