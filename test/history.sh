#!/bin/sh
# history.sh - searches for stale reads: runs a workload on private servers, injects faults, and checks all reads. Installs
# what it needs (apt), changes nothing else on the machine.

top=$(cd "$(dirname "$0")/.." && pwd) || exit 2
. "$top/test/common.sh"

usage() {
	cat <<-TEXT
	usage: sh test/history.sh run [OPTION]...     one run; --help lists the options, --list strategies and faults
	       sh test/history.sh table [OPTION]...   every strategy under every fault, for the tables of doc/reliability.md
	       sh test/history.sh soak --minutes N    runs with random faults, one after the other
	       sh test/history.sh ci                  the short set of runs of test/run.sh
	       sh test/history.sh test_faults [OPTION]... [NAME]...    what each fault does, and how soon all is well again
	       sh test/history.sh test_effects [OPTION]... [NAME]...   effects under crashes

	The options --keep, --results and --output must name places where the unprivileged user of the run may write.
	TEXT
}

case ${1:-} in
run | table | soak | ci | test_faults | test_effects) ;;
--help | -h) usage; exit 0 ;;
*) usage >&2; exit 2 ;;
esac

if [ -z "$base" ]; then
	begin_outside
	# readers in Node.js are among those of ci, and may be named by run --program
	node=
	case "$*" in ci | *'node '*) node=1 ;; esac
	# shellcheck disable=SC2046,SC2086
	install_packages $history_packages $([ -z "$node" ] || node_packages)
	[ -z "$node" ] || install_modules clients/node node || exit 2
	run_inside history.sh "$@"
	exit $?
fi

begin_inside "$base"
program=$1
shift
say 'building ...'
build TEST_HOOKS=1 || exit 1
export FENCE_PLACE="$base/place.conf" NODE_PATH="$base/node/node_modules" PYTHONDONTWRITEBYTECODE=1
exec /usr/bin/python3 "test/history/$program.py" "$@"
