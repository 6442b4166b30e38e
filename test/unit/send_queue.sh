#!/bin/sh
# src/base/send_queue.c with several processes and no server. Prints "N passed, N failed"; fails if anything failed.
#
#   send_queue.sh [MESSAGES]    how many each of four processes posts (20000)
set -eu
top=$(cd "$(dirname "$0")/../.." && pwd)
. "$top/test/common.sh"
build_unit test_send_queue base/send_queue.c
"$unit" "$@"
