#!/bin/sh
# src/base/slot.c without a server. Prints "N passed, N failed"; fails if anything failed.
set -eu
top=$(cd "$(dirname "$0")/../.." && pwd)
. "$top/test/common.sh"
build_unit test_slot base/slot.c
"$unit"
