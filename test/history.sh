#!/bin/sh
# history.sh - hunts stale reads: a workload on private servers, faults, and a checker of what was read. Installs what
# it needs (apt), changes nothing else on the machine.

top=$(cd "$(dirname "$0")/.." && pwd) || exit 2
. "$top/test/common.sh"

usage() {
	cat <<-TEXT
	usage: sh test/history.sh run [OPTION]...     one run; --help tells the options, --list strategies and faults
	       sh test/history.sh table [OPTION]...   every strategy under every fault: the tables of doc/reliability.md
	       sh test/history.sh soak --minutes N    runs with random faults, one after the other
	       sh test/history.sh ci                  the bounded run of test/run.sh

	Files named by options (--keep, --results, --output) must be in places that the unprivileged user of the run may
	write to.
	TEXT
}

case ${1:-} in
run | table | soak | ci) ;;
--help | -h) usage; exit 0 ;;
*) usage >&2; exit 2 ;;
esac

go_inside "$history_packages" history.sh "$@"
program=$1
shift
say 'building ...'
build TEST_HOOKS=1 || exit 1
export FENCE_PLACE="$base/place.conf" PYTHONDONTWRITEBYTECODE=1
exec /usr/bin/python3 "test/history/$program.py" "$@"
