-- One table for each way to keep a cache honest; all alike but for their triggers.
CREATE TABLE unfenced (id int8 PRIMARY KEY, version int8 NOT NULL DEFAULT 0, data text NOT NULL) WITH (autovacuum_enabled = off);
INSERT INTO unfenced SELECT i, 0, repeat('x', 100) FROM generate_series(1, {rows}) i;
CREATE TABLE fenced (LIKE unfenced INCLUDING ALL) WITH (autovacuum_enabled = off);
CREATE TABLE by_triggers (LIKE unfenced INCLUDING ALL) WITH (autovacuum_enabled = off);
CREATE TABLE plpython (LIKE unfenced INCLUDING ALL) WITH (autovacuum_enabled = off);
CREATE TABLE notify (LIKE unfenced INCLUDING ALL) WITH (autovacuum_enabled = off);
CREATE TABLE app (LIKE unfenced INCLUDING ALL) WITH (autovacuum_enabled = off);
INSERT INTO fenced SELECT * FROM unfenced;
INSERT INTO by_triggers SELECT * FROM unfenced;
INSERT INTO plpython SELECT * FROM unfenced;
INSERT INTO notify SELECT * FROM unfenced;
INSERT INTO app SELECT * FROM unfenced;

CREATE EXTENSION plpython3u;

-- Delete on commit, from a trigger that fires as late as a trigger can: it still fires before the commit, so this way is
-- not correct, only common.
CREATE FUNCTION plpython_delete() RETURNS trigger LANGUAGE plpython3u AS $$
if 'redis' not in GD:
    import redis
    GD['redis'] = redis.Redis(unix_socket_path='{socket}')
GD['redis'].delete('plpython:' + str(TD['new']['id']))
$$;
CREATE CONSTRAINT TRIGGER plpython_delete AFTER UPDATE ON plpython DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION plpython_delete();

CREATE FUNCTION notify_delete() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('rows', NEW.id::text);
    RETURN NULL;
END $$;
CREATE TRIGGER notify_delete AFTER UPDATE ON notify FOR EACH ROW EXECUTE FUNCTION notify_delete();

CREATE EXTENSION pgcache_fence;
SELECT fence.attach('fenced');
-- Fenced, but row triggers alone tell of its rows: see load() in compare.py
SELECT fence.attach('by_triggers');
VACUUM ANALYZE;
