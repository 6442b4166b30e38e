#!/bin/sh
# src/base/send_queue.c with several processes and no server. Prints "N passed, N failed"; fails if anything failed.
#
#   send_queue.sh [MESSAGES]    how many each of four processes posts (20000)
set -eu
here=$(cd "$(dirname "$0")" && pwd)
top=$here/../..
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

config=${PG_CONFIG:-pg_config}
"${CC:-cc}" -O1 -g -Wall -Wextra -Werror -fsanitize=address,undefined -fno-sanitize-recover=all \
	-I "$top/src" -isystem "$("$config" --includedir-server)" "$here/test_send_queue.c" "$top/src/base/send_queue.c" \
	-L "$("$config" --pkglibdir)" -L "$("$config" --libdir)" -lpgport -o "$work/test_send_queue"
"$work/test_send_queue" "$@"
