#!/bin/sh
# src/base/outbox.c with several processes and no server. Prints "N passed, N failed"; fails if anything failed.
#
#   outbox.sh [LETTERS]    how many each of four processes posts (20000)
set -eu
top=$(cd "$(dirname "$0")/../.." && pwd)
. "$top/test/common.sh"
build_unit test_outbox base/outbox.c
"$unit" "$@"
