#!/bin/sh
# What becomes of the bytes that a server sends: src/redis/connection.c under the sanitizers, without PostgreSQL and Redis.
# Prints "N passed, N failed"; fails if anything failed.
#
#   replies.sh [ROUNDS [SEED]]    connections with random replies (50000), and what their random numbers begin with (1)
set -eu
top=$(cd "$(dirname "$0")/../.." && pwd)
. "$top/test/common.sh"
# shellcheck disable=SC2046
build_unit test_replies redis/connection.c redis/tls.c $(pkg-config --libs hiredis 2>/dev/null || echo -lhiredis)
ASAN_OPTIONS=quarantine_size_mb=16 "$unit" "$@"
