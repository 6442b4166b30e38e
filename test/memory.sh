#!/bin/sh
# memory.sh - tests for memory errors and undefined behaviour with leak checks, assertions, sanitizers and memcheck. Installs
# what it needs (apt), changes nothing else on the machine.
#
# All parts but "leaks" build a PostgreSQL with assertions, from the unchanged source of the installed version or of the nearest
# version that the mirror has. The unprivileged user of the run builds it. The last line is "N passed, N failed".

top=$(cd "$(dirname "$0")/.." && pwd) || exit 2
. "$top/test/common.sh"
. "$top/test/source.sh"

usage() {
	cat <<-TEXT
	usage: sh test/memory.sh leaks                 a million transactions in one session, a hundred thousand reconnects of the
	                                               processes: memory and open files hold steady
	       sh test/memory.sh assert [ARG]...       test/run.sh with these arguments, on a PostgreSQL with assertions
	       sh test/memory.sh sanitizers [ARG]...   tests under AddressSanitizer and UndefinedBehaviorSanitizer
	       sh test/memory.sh valgrind [NAME]...    tests of pg_regress under memcheck
	       sh test/memory.sh all                   all of these, one after the other
	       sh test/memory.sh build                 only builds what these need, into FENCE_BUILDS

	  FENCE_BUILDS         a directory in which built servers are kept and found again; the run's user must own it
	  FENCE_SOURCE         an unpacked source of PostgreSQL, instead of the source package
	  FENCE_TRANSACTIONS   for leaks (1000000)
	  FENCE_RECONNECTS     for leaks, in each of five ways (20000)
	TEXT
}

case ${1:-} in
leaks | assert | sanitizers | valgrind | all | build) ;;
--help | -h) usage; exit 0 ;;
*) usage >&2; exit 2 ;;
esac

build_packages='dpkg-dev libicu-dev zlib1g-dev bison flex perl bzip2 valgrind'

if [ -z "$base" ]; then
	begin_outside
	# shellcheck disable=SC2086
	case $1 in
	leaks) install_packages $history_packages libipc-run-perl ;;
	*)
		install_packages $test_packages $build_packages
		if [ -n "${FENCE_SOURCE:-}" ]; then
			cp -R "$FENCE_SOURCE" "$outside/postgres" || exit 2
		elif [ ! -e "${FENCE_BUILDS:-}/source" ]; then
			fetch_source "$(postgres_here)" pristine
			mv "$source_dir" "$outside/postgres" || exit 2
		fi
		rm -rf "$outside/source" "$outside/apt"
		;;
	esac
	run_inside memory.sh "$@"
	exit $?
fi

# ----------------------------------------------------------------------------------------------------------------------
# Inside
# ----------------------------------------------------------------------------------------------------------------------

passed=0
failed=0

# add_up LOG: adds the counts in the last line of a run of test/run.sh
add_up() {
	good=$(sed -n 's/^\([0-9]*\) passed, [0-9]* failed$/\1/p' "$1" | tail -n 1)
	bad=$(sed -n 's/^[0-9]* passed, \([0-9]*\) failed$/\1/p' "$1" | tail -n 1)
	passed=$((passed + ${good:-0}))
	failed=$((failed + ${bad:-1}))
}

# check WHAT COUNT FILE...: counts one test, which fails unless COUNT is 0. After a failure prints the files.
check() {
	say "$1: $2"
	if [ "$2" -eq 0 ]; then
		passed=$((passed + 1))
		return
	fi
	failed=$((failed + 1))
	shift 2
	head -n 200 "$@"
}

# An assertion of PostgreSQL 15.18 that also fails without any extension. It fails if a transaction locks a row FOR NO KEY UPDATE,
# updates the row after a savepoint, rolls back to the savepoint, and then updates the row again to a version on another page.
own_failure='Assert(HEAP_XMAX_IS_LOCKED_ONLY(infomask_lock_old_tuple));'

# Builds a PostgreSQL with assertions in $builds/assert, which the tests use from here on. Under valgrind it reports to valgrind
# what palloc does.
assert_postgres() {
	FENCE_PG_CONFIG=$builds/assert/bin/pg_config
	export FENCE_PG_CONFIG
	[ ! -e "$builds/assert/whole" ] || return 0
	say 'building PostgreSQL with assertions ...'
	started=$(date +%s)
	[ -e "$builds/source" ] || mv "$base/postgres" "$builds/source" || exit 2
	sed -i "s/$own_failure//" "$builds/source/src/backend/access/heap/heapam.c"
	mkdir "$base/objects"
	if ! (
		cd "$base/objects" || exit 1
		"$builds/source/configure" --prefix="$builds/assert" --enable-cassert --enable-debug --enable-tap-tests --with-icu \
			--without-readline CFLAGS='-O1 -g -fno-omit-frame-pointer' CPPFLAGS=-DUSE_VALGRIND &&
			make -s -j"${MAKE_JOBS:-2}" && make -s install &&
			make -s -C contrib/citext install && make -s -C contrib/hstore install
	) >"$base/postgres.log" 2>&1; then
		tail -n 30 "$base/postgres.log"
		exit 2
	fi
	rm -rf "$base/objects"
	touch "$builds/assert/whole"
	say "built in $(($(date +%s) - started)) s"
}

# postgres_under EXPORTS [COMMAND]: makes a copy of that PostgreSQL whose servers have these variables and run under that command.
# A script named postgres starts them. The server keeps the script's name, because pg_ctl restarts the program of that name.
postgres_under() {
	assert_postgres
	rm -rf "$base/under"			# left by an earlier part
	cp -R "$builds/assert" "$base/under"
	FENCE_PG_CONFIG=$base/under/bin/pg_config
	mv "$base/under/bin/postgres" "$base/under/bin/postgres.real"
	cat >"$base/under/bin/postgres" <<-SCRIPT
	#!/bin/bash
	[ "\$1" = -D ] || exec -a "\$0" "$base/under/bin/postgres.real" "\$@"
	${1:+export} $1
	exec ${2:--a "\$0"} "$base/under/bin/postgres.real" "\$@"
	SCRIPT
	chmod +x "$base/under/bin/postgres"
}

# run_tests ARG...: runs test/run.sh on that PostgreSQL.
run_tests() {
	sh test/run.sh --inside "$base" "$@" >"$base/tests.log" 2>&1
	cat "$base/tests.log"
	add_up "$base/tests.log"
}

run_leaks() {
	unset FENCE_PG_CONFIG
	begin_inside "$base"
	build || exit 1
	FENCE_TRANSACTIONS=${FENCE_TRANSACTIONS:-1000000} FENCE_RECONNECTS=${FENCE_RECONNECTS:-20000} TEMP_CONFIG=$base/place.conf \
		make -s installcheck REGRESS= ISOLATION= PROVE_TESTS=test/t/operate/memory.pl PROVE_FLAGS='-v --nocolor' >"$base/leaks.log" 2>&1
	status=$?
	grep -vE '^(\+\+\+|make)' "$base/leaks.log"
	bad=$(grep -c '^not ok [0-9]' "$base/leaks.log")
	passed=$((passed + $(grep -c '^ok [0-9]' "$base/leaks.log")))
	[ $status -eq 0 ] || [ "$bad" -gt 0 ] || bad=1
	failed=$((failed + bad))
	make -s clean
}

run_assert() {
	cc -shared -fPIC -O1 -o "$base/aborts.so" test/memory/aborts.c || exit 2
	: >"$base/aborts"
	postgres_under "FENCE_ABORTS=$base/aborts LD_PRELOAD=$base/aborts.so"
	run_tests "$@"
	grep -rhs 'TRAP:' "$base/postgres.log" "$base/tree/tmp_check/log"
	check 'processes that aborted' "$(grep -c '^process ' "$base/aborts")" "$base/aborts"
}

# Compiles the extension with the sanitizers. Servers preload the sanitizers' libraries, so that these allocate all memory. An
# error ends the process, which writes its report to a file of its own.
run_sanitizers() {
	COPT='-fsanitize=address,undefined -fno-sanitize-recover=all'
	ASAN_OPTIONS=detect_leaks=0:disable_coredump=1:abort_on_error=1:log_path=$base/reports/report
	UBSAN_OPTIONS=print_stacktrace=1:abort_on_error=1:log_path=$base/reports/report
	rm -rf "$base/reports"
	mkdir "$base/reports"
	preload="$(cc -print-file-name=libasan.so) $(cc -print-file-name=libubsan.so)"
	postgres_under "LD_PRELOAD='$preload' COPT= ASAN_OPTIONS=$ASAN_OPTIONS UBSAN_OPTIONS=$UBSAN_OPTIONS"
	export COPT
	if [ $# -gt 0 ]; then
		run_tests "$@"
	else
		run_tests --only unit --only regress --only isolation
		run_tests --only tap transactions 'bulk*' courier two_phase hostile_server
	fi
	unset COPT
	check 'reports of the sanitizers' "$(find "$base/reports" -type f | wc -l)" "$base"/reports/*
}

# ours LOG...: prints the errors in memcheck's reports that have the extension or hiredis in their stack, and the leaks of memory
# that these two have allocated with malloc. (Memory of palloc is freed with its context. PostgreSQL's catalogue caches leak a
# little after any lookup.) Writes the number of all others to $base/others.
ours() {
	awk -v others="$base/others" '
		/ BEGIN$/ { text = ""; frames = 0; mine = 0; leak = 0; palloc = 0 }
		/ lost in loss record / { leak = 1 }
		/==    (at|by) 0x/ {
			frames++
			if (frames <= 4 && /\/utils\/mmgr\//) palloc = 1
			if (/[( ]([^ ]*\/tree\/)?src\/|hiredis/ && (!leak || (frames <= 4 && !palloc))) mine = 1
		}
		{ text = text $0 "\n" }
		/ END$/ { if (mine) print text; else n++ }
		END { print n + 0 >others }' "$@"
}

run_valgrind() {
	rm -rf "$base/reports"
	mkdir "$base/reports"
	postgres_under '' "valgrind -q --leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=definite \
		--num-callers=30 --fullpath-after= --suppressions=$builds/source/src/tools/valgrind.supp \
		--error-markers=BEGIN,END --log-file=$base/reports/%p"
	begin_inside "$base"
	build || exit 1
	printf 'pgcache_fence.%s\n' 'lease = 60s' 'timeout = 30s' >"$base/slow.conf"
	start_redis || exit 2
	start_postgres test/regress.conf "$base/slow.conf" || exit 2
	make -s installcheck ISOLATION= TAP_TESTS= ${1:+"REGRESS=$*"} >"$base/valgrind.log" 2>&1
	grep -E '^(test |(not )?ok )|All .* tests passed|failed' "$base/valgrind.log"
	[ ! -s regression.diffs ] || cat regression.diffs
	stop_servers
	ours "$base"/reports/* >"$base/ours"
	say "$(find "$base/reports" -type f | wc -l) processes; $(cat "$base/others") errors and leaks are PostgreSQL's own"
	check 'errors and leaks of pgcache_fence' "$(grep -c ' END$' "$base/ours")" "$base/ours"
}

run_build() { assert_postgres; }

builds=${FENCE_BUILDS:-$base/builds}
mkdir -p "$builds" || exit 2
cd "$base/tree" || exit 2
what=$1
shift
if [ "$what" = all ]; then
	for what in leaks assert sanitizers valgrind; do
		"run_$what"
	done
else
	"run_$what" "$@"
fi
say
say "$passed passed, $failed failed"
[ $failed -eq 0 ]
