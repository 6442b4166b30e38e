#!/bin/sh
# compare.sh - runs random statements on random tables in two databases that capture changed rows in different ways. The results
# must be the same. Uses private servers. Installs what it needs (apt), changes nothing else on the machine.

top=$(cd "$(dirname "$0")/.." && pwd) || exit 2
. "$top/test/common.sh"

usage() {
	cat <<-TEXT
	usage: sh test/compare.sh [--seconds N] [--seed N] [--worlds N] [--first MODE] [--other MODE] [--verbose]

	  --seconds N   for how long to make sets of tables, with a stream of transactions for each (60)
	  --seed N      the seed of an earlier run, to repeat its tables and statements (default: drawn, and printed)
	  --worlds N    number of sets of tables, instead of --seconds; --worlds 1 --seed <number> repeats a failed one
	  --first MODE  pgcache_fence.capture in the first database (auto)
	  --other MODE  pgcache_fence.capture in the other database (triggers)
	  --verbose     print every statement and its answer
	TEXT
}

case ${1:-} in
--help | -h) usage; exit 0 ;;
esac

go_inside "$history_packages" compare.sh "$@"
build || exit 1
FENCE_PLACE=$base/place.conf PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 test/compare/compare.py --directory "$base/compare" "$@"
