#!/bin/sh
# scaling.sh - the measured costs that doc/scaling.md counts with: bytes and processor time per fence, reservation and
# message, and what the keeper says to each Redis. Installs what it needs (apt), changes nothing else on the machine.

top=$(cd "$(dirname "$0")/../.." && pwd) || exit 2
. "$top/test/common.sh"

usage() {
	cat <<-TEXT
	usage: sh test/bench/scaling.sh [--fences N] [--seconds S] [--nodes N]

	  --fences N    how many fences and values are stored (200000)
	  --seconds S   of each measurement of messages (5)
	  --nodes N     also with that many Redis servers as shards: keeper, connections, writes (0: not)
	TEXT
}

base=
case ${1:-} in
--inside) base=$2; shift 2 ;;
--help | -h) usage; exit 0 ;;
esac

if [ -z "$base" ]; then
	for argument; do
		case $argument in
		--fences | --seconds | --nodes) ;;
		'' | *[!0-9.]*) usage >&2; exit 2 ;;
		esac
	done
	begin_outside
	install_packages make gcc libc6-dev libhiredis-dev 'pkgconf|pkg-config' python3 python3-psycopg2 python3-redis
	run_inside bench/scaling.sh "$@"
	exit $?
fi

begin_inside "$base"
build || exit 1
export base bindir
exec /usr/bin/python3 test/bench/scaling.py "$@"
