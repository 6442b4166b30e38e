#!/bin/sh
# fuzz.sh - calls all SQL functions and all functions in Redis with fuzzed arguments, on private servers, for a given time.
# Installs what it needs (apt), changes nothing else on the machine.

top=$(cd "$(dirname "$0")/.." && pwd) || exit 2
. "$top/test/common.sh"

usage() {
	cat <<-TEXT
	usage: sh test/fuzz.sh [--seconds N] [--seed N]

	  --seconds N   for how long to make calls (100)
	  --seed N      the seed of an earlier run, to repeat its calls (default: drawn, and printed)
	TEXT
}

case ${1:-} in
--help | -h) usage; exit 0 ;;
esac

go_inside "$history_packages" fuzz.sh "$@"
build || exit 1
FENCE_PLACE=$base/place.conf PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 test/fuzz/fuzz.py --directory "$base/fuzz" "$@"
