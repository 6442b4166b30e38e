#!/bin/sh
# core.sh - PostgreSQL's own regression suite, without and with pgcache_fence: the results must be the same.
#
# Takes the suite from the source package of the installed server (apt-get source, with a private configuration of apt;
# /etc/apt stays as it is) and runs it twice, each time on a new private server. The two differ in this only: one
# preloads the library, has a Redis, and has the extension and a fenced table in the database of the tests. A test that
# fails on both must print the same on both. Afterwards writes to that table must still be fenced: told of by the executor,
# or by triggers with FENCE_CAPTURE=triggers.
#
# The last line says "N passed, N failed" for the run with the extension. The exit status is 0 if both runs agree,
# 1 if not, 2 if they could not be made. Not part of run.sh: it needs a mirror that has source packages.

top=$(cd "$(dirname "$0")/.." && pwd) || exit 2
. "$top/test/common.sh"
. "$top/test/source.sh"

usage() {
	cat <<-TEXT
	usage: sh test/core.sh [--quick] [--source DIR] [--keep DIR]

	  --quick        only the tests of what the extension's hooks see: DDL, triggers, transactions, workers
	  --source DIR   take the suite from this unpacked source of PostgreSQL instead of the source package
	  --keep DIR     make this directory and leave there what both runs printed
	TEXT
}

quick=
source_dir=
keep=

parse_arguments() {
	while [ $# -gt 0 ]; do
		case $1 in
		--quick) quick=1 ;;
		--source)
			[ -d "${2:-}/src/test/regress" ] || { usage >&2; exit 2; }
			source_dir=$2
			shift
			;;
		--keep)
			mkdir "${2:-}" || exit 2
			keep=$2
			shift
			;;
		--help | -h) usage; exit 0 ;;
		*) usage >&2; exit 2 ;;
		esac
		shift
	done
}

# ----------------------------------------------------------------------------------------------------------------------
# The suite (outside)
# ----------------------------------------------------------------------------------------------------------------------

# Leaves the suite in $outside/regress and its version in $outside/version.
take_suite() {
	[ -n "$source_dir" ] || fetch_source "$(postgres_here)"
	cp -R "$source_dir/src/test/regress" "$outside/regress" || exit 2
	sed -n "s/^PACKAGE_VERSION='\(.*\)'$/\1/p" "$source_dir/configure" >"$outside/version"
	rm -rf "$outside/source" "$outside/apt"
}

parse_arguments "$@"
if [ -z "$base" ]; then
	begin_outside
	# shellcheck disable=SC2086
	install_packages $extension_packages dpkg-dev
	take_suite
	run_inside core.sh ${quick:+--quick}
	status=$?
	[ -z "$keep" ] || cp -R "$outside"/*.log "$outside"/*.results "$outside/without" "$outside/with" "$keep" 2>/dev/null
	exit $status
fi

# ----------------------------------------------------------------------------------------------------------------------
# The two runs (inside)
# ----------------------------------------------------------------------------------------------------------------------

# The suite's C functions, and the contributed modules that its tests load from the same directory.
build_suite() {
	printf '%s\n' 'MODULES = regress' 'override with_llvm = no' "PGXS := $("$PG_CONFIG" --pgxs)" 'include $(PGXS)' \
		>"$base/regress/pgxs.mk"
	make -C "$base/regress" -f pgxs.mk "PG_CONFIG=$PG_CONFIG" regress.so >"$base/suite.log" 2>&1 ||
		{ tail -n 30 "$base/suite.log"; return 1; }
	for module in refint autoinc; do
		file=$("$PG_CONFIG" --pkglibdir)/$module.so
		[ ! -e "$file" ] || ln -sf "$file" "$base/regress/"
	done
}

# What the hooks and callbacks see, with the tests whose tables these need. In the order and groups of the suite.
quick_tests='test_setup tablespace copy insert insert_conflict create_function_c create_misc create_operator create_am
	create_procedure create_table create_type create_schema create_index create_view create_aggregate constraints
	triggers inherit typed_table vacuum drop_if_exists updatable_views sanity_check transactions portals namespace
	prepared_xacts privileges init_privs replica_identity object_address identity generated create_table_like
	alter_generic merge sysviews select_parallel write_parallel vacuum_parallel publication subscription foreign_key
	dependency guc plancache plpgsql temp truncate alter_table sequence with partition_join partition_prune
	indexing partition_info event_trigger oidjoins fast_default'

# No function that is built in is SECURITY DEFINER, says opr_sanity, and looks at all that there are. Ours may be: those of an
# extension are left out, of both runs.
leave_out_functions_of_extensions() {
	sed -i "s/^WHERE prosecdef\$/WHERE prosecdef AND pronamespace = 'pg_catalog'::regnamespace/" \
		"$base/regress/sql/opr_sanity.sql" "$base/regress/expected/opr_sanity.out"
}

# The schedule of the run without the extension, and the one with it, which begins with a test of ours: it makes the
# fenced table, so that the hooks have something to look for. The results leave it out.
write_schedules() {
	write_schedule >"$base/without.schedule"
	{ echo 'test: fenced_table'; cat "$base/without.schedule"; } >"$base/with.schedule"
	echo '\set ECHO none' >"$base/regress/expected/fenced_table.out"
	cat "$base/regress/expected/fenced_table.out" - >"$base/regress/sql/fenced_table.sql" <<-'SQL'
	\o /dev/null
	CREATE SCHEMA fenced;
	CREATE TABLE fenced.rows (id integer PRIMARY KEY, version bigint NOT NULL DEFAULT 1);
	INSERT INTO fenced.rows VALUES (1);
	SELECT fence.attach('fenced.rows');
	SQL
}

write_schedule() {
	if [ -z "$quick" ]; then
		cat "$base/regress/parallel_schedule"
		return
	fi
	awk -v names="$quick_tests" '
		BEGIN { split(names, list); for (i in list) wanted[list[i]] = 1 }
		$1 == "test:" {
			line = ""
			for (i = 2; i <= NF; i++) if ($i in wanted) line = line " " $i
			if (line != "") print "test:" line
		}' "$base/regress/parallel_schedule"
}

# Settings of both servers; the suite skips what it cannot do without them.
write_settings() {
	printf 'fsync = off\nmax_prepared_transactions = 2\nmax_worker_processes = 16\n' >"$base/core.conf"
	echo "shared_preload_libraries = ''" >"$base/without.conf"
}

# results LOG: "name ok" or "name failed" for each test. The formats are those up to 15 and since 16; a failure that
# the schedule says to ignore is none.
results() {
	sed -nE -e 's/^(test|    ) +([^ ]+) +\.\.\. (ok|failed \(ignored\)).*/\2 ok/p' \
		-e 's/^(test|    ) +([^ ]+) +\.\.\. FAILED.*/\2 failed/p' \
		-e 's/^ok [0-9]+ +[-+] ([^ ]+) .*/\1 ok/p' \
		-e 's/^not ok [0-9]+ +[-+] ([^ ]+) .*/\1 failed/p' "$1" | grep -v '^fenced_table ' | sort
}

count() { grep -c " $2\$" "$base/$1.results"; }

# run_suite NAME OPTION...: leaves what the tests printed in $base/NAME, how they ended in $base/NAME.results.
run_suite() {
	name=$1
	shift
	mkdir "$base/$name"
	started=$(date +%s)
	"$("$PG_CONFIG" --pkglibdir)/pgxs/src/test/regress/pg_regress" --bindir="$bindir" --host="$base" --port=5432 \
		--user=postgres --inputdir="$base/regress" --outputdir="$base/$name" --dlpath="$base/regress" \
		--schedule="$base/$name.schedule" "$@" >"$base/$name.log" 2>&1
	status=$?
	results "$base/$name.log" >"$base/$name.results"
	say "$name the extension: $(count "$name" ok) passed, $(count "$name" failed) failed, $(($(date +%s) - started)) s"
	if [ $status -gt 1 ] || [ ! -s "$base/$name.results" ]; then
		tail -n 30 "$base/$name.log" "$base/postgres.log"
		exit 2
	fi
	if grep -E 'was terminated by signal|PANIC:|TRAP:' "$base/postgres.log"; then
		say "the server $name the extension crashed"
		different=1
	fi
}

query() { "$bindir/psql" -X -A -t -q -v ON_ERROR_STOP=1 -d regression "$@"; }
is_open() { [ "$(query -c 'SELECT state FROM fence.state')" = OPEN ]; }
fence_of_row() { query -c "SELECT * FROM fence.status('fenced.rows', '1')" 2>&1 | cut -d '|' -f 1-4; }
row_is() { [ "$(fence_of_row)" = "$1" ]; }
is_read() { query -c "SELECT fence.read('fenced.rows', '1')" && row_is "$1"; }

# Who tells of changed rows now, and who has told of how many in that table.
teller() { query -c 'SELECT capture FROM fence.state'; }
is_told_by() { [ "$(teller)" = "$1" ]; }
told() {
	query -c "SELECT string_agg(concat_ws(' ', labels->>'way', value), ', ') FROM fence.metrics
		WHERE name = 'cache_fence_changed_rows_total' AND labels->>'domain' = 'fenced.rows' AND value > 0"
}

# expect STATUS COMMAND...: the command succeeds in time, or it is told that the row's status is not that one.
expect() {
	wanted=$1
	shift
	wait_until 10 "$@" && return
	say "after the tests: $*: the row's fence is $(fence_of_row), not $wanted"
	different=1
}

# check_read STATUS: a reader puts the row. Its fence then has the row's version.
check_read() { expect "$1" is_read "$1"; }

# check_write STATUS STATEMENT: the row has its next version, and the fence that a reader has put is deleted.
check_write() {
	expect "$1" query -c "$2"
	expect "$1" row_is "$1"
}

# That the run with the extension was one: the keeper serves this database, and each write to the table deletes the row's
# fence, whoever tells of changed rows: the executor, or triggers if FENCE_CAPTURE says so.
check_at_work() {
	case ${FENCE_CAPTURE:-auto} in
	auto) way=executor ;;
	*) way=triggers ;;
	esac
	say "preloaded: $(query -c 'SHOW shared_preload_libraries')"
	if ! wait_until 10 is_open || ! wait_until 60 is_told_by $way; then
		say "after the tests the table is not served, or not told of by $way:"
		query -c 'SELECT state, reason, capture FROM fence.state' 2>&1
		different=1
		return
	fi
	check_read '1|1|equal|0'
	check_write '|2|missing|0' 'UPDATE fenced.rows SET id = id'
	check_read '2|2|equal|0'
	check_write '|3|missing|0' 'DELETE FROM fenced.rows'
	check_write '|4|missing|0' 'INSERT INTO fenced.rows VALUES (1)'
	check_read '4|4|equal|0'
	say "after the tests three writes were told of: $(told); in the epoch that began $(seconds_to_open) s after the server's start"
	[ "$(told)" = "$way 3" ] || different=1
}

seconds_to_open() {
	query -c "SELECT round(EXTRACT(epoch FROM since - pg_postmaster_start_time())::numeric, 1) FROM fence.state"
}

# compare: the outcome of each test, and for those that failed on both servers what they printed.
compare() {
	diff "$base/without.results" "$base/with.results" >"$base/difference" || different=1
	if [ -s "$base/difference" ]; then
		say '--- tests that ended differently (< without, > with the extension)'
		grep '^[<>]' "$base/difference"
	fi
	both=$(comm -12 "$base/without.results" "$base/with.results" | sed -n 's/ failed$//p')
	[ -z "$both" ] || say "failed on both: $(echo "$both" | tr '\n' ' ')"
	for test in $both $(sed -n 's/^> \(.*\) failed$/\1/p' "$base/difference"); do
		cmp -s "$base/without/results/$test.out" "$base/with/results/$test.out" && continue
		different=1
		say "--- output of $test (- without, + with the extension)"
		diff -u "$base/without/results/$test.out" "$base/with/results/$test.out"
	done
}

begin_inside "$base"
different=
server=$("$bindir/postgres" --version | sed 's/.*) //; s/ .*//')
suite=$(cat "$base/version")
say "PostgreSQL $server, the suite of $suite, $("$REDIS_SERVER" --version | cut -d' ' -f1-3)"
if [ "$server" != "$suite" ]; then
	say 'other minor versions: some tests fail for that reason; what counts is that they fail alike'
fi

build || exit 2
build_suite || exit 2
leave_out_functions_of_extensions
write_schedules
write_settings

start_redis || exit 2
start_postgres "$base/core.conf" "$base/without.conf" || exit 2
run_suite without
stop_postgres
rm -rf "$base/data" "$base/postgres.log"
start_postgres "$base/core.conf" || exit 2
run_suite with --load-extension=pgcache_fence
check_at_work
stop_servers

compare
say
[ -n "$different" ] || say 'the same with and without the extension'
say "$(count with ok) passed, $(count with failed) failed"
[ -z "$different" ]
