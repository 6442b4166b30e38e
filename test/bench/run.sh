#!/bin/sh
# run.sh - measures what a fence costs, with all variants side by side in one run on private servers. Installs what it needs
# (apt), changes nothing else on the machine. The results go to doc/measured.md, doc/measured.json and doc/performance-*.svg of
# this tree, and from there into the tables of the pages.

top=$(cd "$(dirname "$0")/../.." && pwd) || exit 2
. "$top/test/common.sh"

usage() {
	cat <<-TEXT
	usage: sh test/bench/run.sh [--publish | --quick] [--capture] [--only NAME]... [--out DIR] [--rounds N] [--seconds S]

	  --publish    everything that the pages show, within 50 minutes: 6 rounds of a second each
	  --quick      the same with less rounds: 20 minutes; without either: larger tables, more clients, an hour and a half
	  --capture    also with pgcache_fence.capture = triggers, where the server knows that setting
	  --only NAME  only this part, may be repeated; prints and writes no documentation (unless --out says where to):
	               library  instructions of Redis per call of the function library, also after much of everything
	               hits     strong reads against GET and a prepared SELECT
	               memory   bytes of Redis per cached row, and per row that is written and not read
	               single   UPDATE of one row by 8 clients, against the same table unfenced
	               buckets  the same with default settings, where none, few or many of the rows are cached
	               rows     rows per transaction, 1 to a million
	               bulk     DELETE and COPY of many rows
	               against  UPDATE against what services do today
	               cold     single, rows, bulk and against with default settings, where nobody has cached the rows
	               calls    messages, system calls and instructions per transaction; where time goes
	               attachments  instructions and messages that a second and a third attachment add
	               window   time from commit to the end of the reservation
	               patrol   reservations settled per second
	               growth   many fences, tables, backends
	               bounds   what no fence kept by row triggers and a function of Redis can do better than
	               effects  what an effect adds to a transaction
	               warm     PostgreSQL's load after Redis has lost 100,000 rows, with and without warm_rate
	               scaling  the costs that doc/scaling.md counts with; one Redis, and 30
	  --out DIR    write measured.md, measured.json and the plots there; no page is changed
	  --rounds N, --seconds S   rounds of each comparison, and seconds of each measurement in a round
	TEXT
}

out=$top/doc
publish=1

parse_arguments() {
	while [ $# -gt 0 ]; do
		case $1 in
		--quick | --publish | --capture) ;;
		--only)
			case ${2:-} in
			library | hits | memory | single | buckets | rows | bulk | against | cold | calls | attachments | window | patrol | growth | \
				bounds | effects | scaling | warm) publish=${named_out:-} ;;
			*) usage >&2; exit 2 ;;
			esac
			shift
			;;
		--rounds | --seconds) shift ;;
		--out) out=$2; named_out=1; publish=1; shift ;;
		--help | -h) usage; exit 0 ;;
		*) usage >&2; exit 2 ;;
		esac
		shift
	done
}

parse_arguments "$@"
if [ -z "$base" ]; then
	begin_outside
	# shellcheck disable=SC2086
	install_packages $history_packages gnuplot-nox valgrind strace
	major=$(postgres_here)
	install_packages "postgresql-plpython3-$major"
	run_inside bench/run.sh "$@"
	status=$?
	if [ -e "$outside/results/measured.md" ] && [ -n "$publish" ]; then
		mkdir -p "$out" && cp "$outside"/results/* "$out"/ && say "written to $out"
		[ "$out" != "$top/doc" ] || sh "$top/test/unit/readme.sh" --write
	fi
	exit $status
fi

begin_inside "$base"
say 'building ...'
build || exit 1
mkdir "$base/bin" "$base/results" || exit 1
for tool in load listener window fill; do
	# shellcheck disable=SC2046
	gcc -O2 -Wall -Wextra -Werror -I"$("$PG_CONFIG" --includedir)" "test/bench/$tool.c" -o "$base/bin/$tool" \
		$(pkg-config --cflags-only-I --libs hiredis) -L"$("$PG_CONFIG" --libdir)" -lpq -lm -lpthread || exit 1
done
gcc -O2 -Wall -Wextra -Werror -fPIC -shared -isystem "$("$PG_CONFIG" --includedir-server)" test/bench/nothing.c \
	-o "$base/bin/nothing.so" || exit 1
export base bindir major PYTHONDONTWRITEBYTECODE=1
# This program owns the servers. It stops them at its end, also after a signal.
/usr/bin/python3 test/bench/bench.py "$@" &
bench=$!
trap 'kill $bench 2>/dev/null; wait $bench 2>/dev/null' EXIT
wait $bench
