#!/bin/sh
# Compares the calls of src/redis/calls.c with the signatures in the function library. Prints "N passed, N failed".
set -eu
top=$(cd "$(dirname "$0")/../.." && pwd)
. "$top/test/common.sh"
# shellcheck disable=SC2046
build_unit test_calls redis/calls.c $(pkg-config --libs hiredis 2>/dev/null || echo -lhiredis)
ASAN_OPTIONS=detect_leaks=0 "$unit" >"$work/calls"
/usr/bin/python3 "$top/test/unit/calls.py" <"$work/calls"
