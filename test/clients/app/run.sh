#!/bin/sh
# run.sh - the service of this directory to look at, with a private PostgreSQL and Redis. Installs what it needs (apt; npm
# into a temporary directory), changes nothing else on the machine. Ends with Ctrl-C.

top=$(cd "$(dirname "$0")/../../.." && pwd) || exit 2
. "$top/test/common.sh"

port=8080

case ${1:-} in
--port) port=${2:-} ;;
'') ;;
*) port= ;;
esac
case $port in
'' | *[!0-9]*) say 'usage: sh test/clients/app/run.sh [--port N]' >&2; exit 2 ;;
esac

if [ -z "$base" ]; then
	begin_outside
	# shellcheck disable=SC2046,SC2086
	install_packages $extension_packages python3 $(node_packages)
	install_modules test/clients modules || exit 2
	run_inside clients/app/run.sh --port "$port"
	exit $?
fi

opened() { [ "$("$bindir/psql" -XAt -c "SELECT state FROM fence.state")" = OPEN ]; }

begin_inside "$base"
say 'building ...'
build || exit 1
start_redis && start_postgres || exit 1
export PGDATABASE=postgres PORT="$port"
"$bindir/psql" -Xq -v ON_ERROR_STOP=1 -c 'CREATE EXTENSION pgcache_fence' -f test/clients/app/schema.sql >/dev/null || exit 1
wait_until 20 opened || { tail -n 20 "$base/postgres.log"; exit 1; }

mkdir "$base/modules/app" && cp test/clients/app/*.js test/clients/app/*.html "$base/modules/app" || exit 1
cp -R clients/node "$base/modules/node_modules/pgcache-fence" || exit 1
say "psql -h $PGHOST -U $PGUSER $PGDATABASE    # changes made there are shown too"
node "$base/modules/app/server.js"
