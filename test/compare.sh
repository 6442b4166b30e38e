#!/bin/sh
# compare.sh - random statements on random tables, in two databases that see changed rows in different ways: the results must be
# the same. On private servers, for as long as asked. Installs what it needs (apt), changes nothing else on the machine.

top=$(cd "$(dirname "$0")/.." && pwd) || exit 2
. "$top/test/common.sh"

usage() {
	cat <<-TEXT
	usage: sh test/compare.sh [--seconds N] [--seed N] [--worlds N] [--first MODE] [--other MODE] [--verbose]

	  --seconds N   how long it makes new tables, with a stream of transactions for each (60)
	  --seed N      of an earlier run, to have its tables and statements again (drawn, and printed)
	  --worlds N    so many sets of tables, however long that takes; what failed is repeated by --worlds 1 --seed <its number>
	  --first MODE  pgcache_fence.capture of the one database (auto)
	  --other MODE  and of the other (triggers)
	  --verbose     tells every statement and its answer
	TEXT
}

case ${1:-} in
--help | -h) usage; exit 0 ;;
esac

go_inside "$history_packages" compare.sh "$@"
build || exit 1
FENCE_PLACE=$base/place.conf PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 test/compare/compare.py --directory "$base/compare" "$@"
