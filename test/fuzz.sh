#!/bin/sh
# fuzz.sh - calls all SQL functions and all functions in Redis with fuzzed arguments, on private servers, for as long as
# asked. Installs what it needs (apt), changes nothing else on the machine.

top=$(cd "$(dirname "$0")/.." && pwd) || exit 2
. "$top/test/common.sh"

usage() {
	cat <<-TEXT
	usage: sh test/fuzz.sh [--seconds N] [--seed N]

	  --seconds N   how long it makes calls (100)
	  --seed N      of an earlier run, to have its calls again (drawn, and printed)
	TEXT
}

case ${1:-} in
--help | -h) usage; exit 0 ;;
esac

go_inside "$history_packages" fuzz.sh "$@"
build || exit 1
FENCE_PLACE=$base/place.conf PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 test/fuzz/fuzz.py --directory "$base/fuzz" "$@"
