#!/bin/sh
# coverage.sh - which lines of the C files the tests reach: gcov counts, gcovr adds up. Installs what it needs (apt),
# changes nothing else on the machine.
#
# Runs regress, isolation and TAP files on a build without optimization. A process that is killed, or whose server is
# stopped at once, counts nothing; so the figure is a lower bound. Lines that the compiler was not given (TLS with a
# hiredis before 1.0, other versions of PostgreSQL) are not counted at all, nor is fence.lua.
#
# The exit status is 0 if the tests passed and the lines were counted, 1 if not, 2 for misuse.

top=$(cd "$(dirname "$0")/.." && pwd) || exit 2
. "$top/test/common.sh"

usage() {
	cat <<-TEXT
	usage: sh test/coverage.sh [--lines] [--keep DIR] [NAME...]

	  NAME         TAP files to run; shell patterns are allowed ('bulk*', 'write/*'). Default: $default_names
	  --lines      after the table, the numbers of the lines that were not reached
	  --keep DIR   make this directory and leave there an HTML page for each file
	TEXT
}

default_names='transactions redis_gone patrol setup bulk* courier two_phase sentinel'
lines=
keep=
names=

parse_arguments() {
	while [ $# -gt 0 ]; do
		case $1 in
		--lines) lines=1 ;;
		--keep)
			[ -n "$base" ] || mkdir "${2:-}" || exit 2
			keep=$2
			shift
			;;
		--help | -h) usage; exit 0 ;;
		-*) usage >&2; exit 2 ;;
		*) names="$names $1" ;;
		esac
		shift
	done
}

parse_arguments "$@"
if [ -z "$base" ]; then
	begin_outside
	# shellcheck disable=SC2086
	install_packages $history_packages libipc-run-perl libssl-dev openssl gcovr
	run_inside coverage.sh "$@"
	status=$?
	if [ -n "$keep" ]; then cp "$outside"/tree/coverage/* "$keep"; fi
	exit $status
fi

# check TEXT COMMAND...: says how it ended, and after a failure what it said.
failed=0
check() {
	text=$1
	shift
	if "$@" >"$base/check.log" 2>&1; then
		say "ok - $text"
	else
		say "not ok - $text"
		tail -n 40 "$base/check.log"
		failed=1
	fi
}

begin_inside "$base"
build 'PG_CFLAGS=-O0 --coverage' PG_LDFLAGS=--coverage || exit 1

start_redis && start_postgres test/regress.conf || exit 1
check regress make -s installcheck ISOLATION= TAP_TESTS=
check isolation make -s installcheck REGRESS= TAP_TESTS=
stop_postgres fast
stop_redis

PERL5OPT="-I$base/tree/test/lib -MFenceTest::StopFast" TEMP_CONFIG=$base/place.conf
export PERL5OPT TEMP_CONFIG
for name in $(names_of "${names:-$default_names}" .pl test/t/*/*.pl); do
	check "$name" make -s installcheck REGRESS= ISOLATION= "PROVE_TESTS=test/t/*/$name.pl"
done
unset PERL5OPT

mkdir coverage
gcovr --root . --filter src/ ${keep:+--html-details coverage/index.html} --txt coverage/table.txt 2>"$base/gcovr.log" ||
	{ tail -n 20 "$base/gcovr.log"; exit 1; }
# The last column names lines, for --lines only.
if [ -n "$lines" ]; then cat coverage/table.txt; else cut -c1-66 coverage/table.txt | grep -vE '^ +[0-9,-]+$'; fi
exit $failed
