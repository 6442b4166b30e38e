# use_image.sh - runs inside an image of the server (test/image.sh): makes a cluster, and checks that a cached row follows an UPDATE.
# The Redis is outside, at $REDIS_PORT. $PLACE has settings that say where the extension is.
set -e
data=$(mktemp -d)
export PGHOST="$data" PGUSER=postgres
initdb --pgdata "$data/cluster" --auth trust --username postgres >/dev/null
cat >>"$data/cluster/postgresql.conf" <<-CONF
	listen_addresses = ''
	unix_socket_directories = '$data'
	shared_preload_libraries = 'pgcache_fence'
	pgcache_fence.redis_url = 'redis://127.0.0.1:$REDIS_PORT'
	pgcache_fence.namespace = 'image$$'
	${PLACE:-}
CONF
pg_ctl --pgdata "$data/cluster" --wait --log "$data/log" start || { cat "$data/log"; exit 1; }
trap 'pg_ctl --pgdata "$data/cluster" --mode immediate stop' EXIT
run() { psql --no-psqlrc --quiet --no-align --tuples-only --set ON_ERROR_STOP=1 "$@"; }
run --file /initdb.sql
[ "$(run --command "SELECT fence.wait_open('60 s')")" = OPEN ]
run --command "CREATE TABLE item (id int PRIMARY KEY, n int, version bigint NOT NULL DEFAULT 0)" \
	--command "INSERT INTO item VALUES (1, 1)" --command "SELECT fence.attach('item')"
tries=600
until run --command "SELECT fence.read('item', '1')" >/dev/null && [ "$(run --command "SELECT status FROM fence.get('item', '1')")" = hit ]; do
	tries=$((tries - 1))
	[ $tries -gt 0 ]
	sleep 0.1
done
run --command 'UPDATE item SET n = 2'
run --command "SELECT fence.read('item', '1') ->> 'n'" | grep -x 2
