#!/bin/sh
# Tests src/base/buckets.c without a server. Prints "N passed, N failed"; fails if anything failed.
set -eu
top=$(cd "$(dirname "$0")/../.." && pwd)
. "$top/test/common.sh"
build_unit test_buckets base/buckets.c
"$unit"
