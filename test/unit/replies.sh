#!/bin/sh
# What becomes of the bytes that a server sends: src/redis/connection.c under the sanitizers, without PostgreSQL and Redis.
# Prints "N passed, N failed"; fails if anything failed.
#
#   replies.sh [ROUNDS [SEED]]    connections with random replies (50000), and what their random numbers begin with (1)
set -eu
here=$(cd "$(dirname "$0")" && pwd)
top=$here/../..
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

config=${PG_CONFIG:-pg_config}
# shellcheck disable=SC2046
"${CC:-cc}" -O1 -g -Wall -Wextra -Werror -fsanitize=address,undefined -fno-sanitize-recover=all \
	-I "$top/src" -isystem "$("$config" --includedir-server)" "$here/test_replies.c" "$top/src/redis/connection.c" \
	"$top/src/redis/tls.c" -L "$("$config" --pkglibdir)" -L "$("$config" --libdir)" \
	$(pkg-config --libs hiredis 2>/dev/null || echo -lhiredis) -lpgport -o "$work/test_replies"
ASAN_OPTIONS=quarantine_size_mb=16 "$work/test_replies" "$@"
