#!/bin/sh
# The wire format: what src/redis/calls.c calls, against the signatures in the function library. Prints "N passed, N failed".
set -eu
top=$(cd "$(dirname "$0")/../.." && pwd)
. "$top/test/common.sh"
build_unit test_calls redis/calls.c
ASAN_OPTIONS=detect_leaks=0 "$unit" >"$work/calls"
/usr/bin/python3 "$top/test/unit/calls.py" <"$work/calls"
