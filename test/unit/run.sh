#!/bin/sh
# Tests of single source files, without a server. Prints "N passed, N failed"; fails if anything failed.
set -eu
top=$(cd "$(dirname "$0")/../.." && pwd)
. "$top/test/common.sh"
build_unit test_url base/url.c
"$unit"
