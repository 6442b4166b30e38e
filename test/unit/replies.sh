#!/bin/sh
# Tests how src/redis/connection.c and reply_parser.c treat the bytes that a server sends, under the sanitizers, without PostgreSQL and Redis.
# Prints "N passed, N failed"; fails if anything failed.
#
#   replies.sh [ROUNDS [SEED]]    number of connections with random replies (50000), and the seed of their random numbers (1)
set -eu
top=$(cd "$(dirname "$0")/../.." && pwd)
. "$top/test/common.sh"
# shellcheck disable=SC2046
build_unit test_replies redis/connection.c redis/reply_parser.c redis/byte_queue.c redis/tls.c $(pkg-config --libs hiredis 2>/dev/null || echo -lhiredis)
ASAN_OPTIONS=quarantine_size_mb=16 "$unit" "$@"
