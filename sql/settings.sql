--
-- The parameters: defaults, bounds, units, and what is said about values that cannot be.
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS pgcache_fence;
RESET client_min_messages;

SELECT name, vartype, unit, min_val, max_val, enumvals, boot_val, context
  FROM pg_settings WHERE name LIKE 'pgcache_fence.%' ORDER BY name COLLATE "C";
-- each has a sentence, and a paragraph
SELECT count(*), bool_and(short_desc LIKE '%.'), bool_and(extra_desc LIKE '%.'), max(length(extra_desc)) < 500
  FROM pg_settings WHERE name LIKE 'pgcache_fence.%';

-- no others
SET pgcache_fence.no_such_parameter = 1;

-- most are for the whole cluster
SET pgcache_fence.lease = '4s';
SET pgcache_fence.namespace = 'other';
SET pgcache_fence.redis_url = 'redis://127.0.0.1';

-- one is for a session or a database, if a superuser wants that
SET pgcache_fence.on_redis_failure = error;
SHOW pgcache_fence.on_redis_failure;
SET pgcache_fence.on_redis_failure = 'ignore';
\echo :LAST_ERROR_SQLSTATE
RESET pgcache_fence.on_redis_failure;

-- and those for everybody
SELECT name FROM pg_settings WHERE name LIKE 'pgcache_fence.%' AND context = 'user' ORDER BY name COLLATE "C";

-- bounds and units. Nothing of this is read before a reload, and there is none.
ALTER SYSTEM SET pgcache_fence.lease = '3 apples';
ALTER SYSTEM SET pgcache_fence.lease = '1kB';
-- PostgreSQL's own message differs between its versions
\set VERBOSITY sqlstate
ALTER SYSTEM SET pgcache_fence.lease = 499;
ALTER SYSTEM SET pgcache_fence.lease = '61s';
ALTER SYSTEM SET pgcache_fence.clock_margin = 9;
ALTER SYSTEM SET pgcache_fence.clock_margin = '11s';
ALTER SYSTEM SET pgcache_fence.timeout = 0;
ALTER SYSTEM SET pgcache_fence.timeout = '2min';
ALTER SYSTEM SET pgcache_fence.patrol_interval = 49;
ALTER SYSTEM SET pgcache_fence.patrol_interval = '61min';
ALTER SYSTEM SET pgcache_fence.patrol_grace = -1;
ALTER SYSTEM SET pgcache_fence.audit_rate = -1;
ALTER SYSTEM SET pgcache_fence.audit_rate = 1e7;
ALTER SYSTEM SET pgcache_fence.value_limit = '513kB';
ALTER SYSTEM SET pgcache_fence.fill_lease = '11s';
ALTER SYSTEM SET pgcache_fence.warm_rate = -1;
ALTER SYSTEM SET pgcache_fence.stream_limit = 0;
ALTER SYSTEM SET pgcache_fence.default_ttl = '59s';
ALTER SYSTEM SET pgcache_fence.tombstone_retention = '11000d';
\set VERBOSITY default

ALTER SYSTEM SET pgcache_fence.lease = '0.05min';
ALTER SYSTEM SET pgcache_fence.clock_margin = '0.25s';
ALTER SYSTEM SET pgcache_fence.timeout = '1s';
ALTER SYSTEM SET pgcache_fence.patrol_interval = '1h';
ALTER SYSTEM SET pgcache_fence.patrol_grace = 0;
ALTER SYSTEM SET pgcache_fence.audit_rate = 0.5;
ALTER SYSTEM SET pgcache_fence.default_ttl = '365d';
ALTER SYSTEM SET pgcache_fence.tombstone_retention = 0;
SELECT name, setting, error FROM pg_file_settings
 WHERE name LIKE 'pgcache_fence.%' AND sourcefile LIKE '%postgresql.auto.conf' ORDER BY name COLLATE "C";
ALTER SYSTEM RESET pgcache_fence.lease;
ALTER SYSTEM RESET pgcache_fence.clock_margin;
ALTER SYSTEM RESET pgcache_fence.timeout;
ALTER SYSTEM RESET pgcache_fence.patrol_interval;
ALTER SYSTEM RESET pgcache_fence.patrol_grace;
ALTER SYSTEM RESET pgcache_fence.audit_rate;
ALTER SYSTEM RESET pgcache_fence.default_ttl;
ALTER SYSTEM RESET pgcache_fence.tombstone_retention;

-- a namespace is part of key names
ALTER SYSTEM SET pgcache_fence.namespace = '';
ALTER SYSTEM SET pgcache_fence.namespace = 'a b';
ALTER SYSTEM SET pgcache_fence.namespace = 'a:b';
ALTER SYSTEM SET pgcache_fence.namespace = '{a}';
ALTER SYSTEM SET pgcache_fence.namespace = 'ü';
ALTER SYSTEM SET pgcache_fence.namespace = '123456789012345678901234567890123';
ALTER SYSTEM SET pgcache_fence.namespace = 'A-z_0.9';
ALTER SYSTEM RESET pgcache_fence.namespace;

-- databases are named as in SQL
ALTER SYSTEM SET pgcache_fence.databases = 'a b';
ALTER SYSTEM SET pgcache_fence.databases = 'a,,b';
ALTER SYSTEM SET pgcache_fence.databases = '"a';
ALTER SYSTEM SET pgcache_fence.databases = 'a, "B c", *';
ALTER SYSTEM RESET pgcache_fence.databases;

-- the URL is never repeated: it may hold a password
ALTER SYSTEM SET pgcache_fence.redis_url = '';
ALTER SYSTEM SET pgcache_fence.redis_url = 'localhost:6379';
ALTER SYSTEM SET pgcache_fence.redis_url = 'http://user:hunter2@localhost';
ALTER SYSTEM SET pgcache_fence.redis_url = 'redis://user:hunter2@localhost:0';
ALTER SYSTEM SET pgcache_fence.redis_url = 'redis://user:hunter2@localhost:65536';
ALTER SYSTEM SET pgcache_fence.redis_url = 'redis://user:hunter2@';
ALTER SYSTEM SET pgcache_fence.redis_url = 'redis://user:hunter%2@localhost';
ALTER SYSTEM SET pgcache_fence.redis_url = 'redis://user:hunter2@localhost/1';
ALTER SYSTEM SET pgcache_fence.redis_url = 'unix://';
ALTER SYSTEM SET pgcache_fence.redis_url = 'unix://relative/path';
ALTER SYSTEM SET pgcache_fence.redis_url = 'redis+sentinel://:hunter2@a,b/master';
ALTER SYSTEM SET pgcache_fence.redis_url = 'redis+cluster://:hunter2@a,b';
ALTER SYSTEM SET pgcache_fence.redis_url = 'redis://a, redis://b';
ALTER SYSTEM SET pgcache_fence.redis_url = 'redis://user:p%40ss%3Aword@[::1]:7000/0';
ALTER SYSTEM SET pgcache_fence.redis_url = 'redis://localhost';
ALTER SYSTEM SET pgcache_fence.redis_url = 'unix://:secret@/run/redis/redis.sock';
ALTER SYSTEM RESET pgcache_fence.redis_url;

SELECT count(*) FROM pg_file_settings WHERE name LIKE 'pgcache_fence.%' AND sourcefile LIKE '%postgresql.auto.conf';
