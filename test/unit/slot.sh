#!/bin/sh
# src/base/slot.c without a server. Prints "N passed, N failed"; fails if anything failed.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
top=$here/../..
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

config=${PG_CONFIG:-pg_config}
"${CC:-cc}" -O1 -g -Wall -Wextra -Werror -fsanitize=address,undefined -fno-sanitize-recover=all \
	-I "$top/src" -isystem "$("$config" --includedir-server)" "$here/test_slot.c" "$top/src/base/slot.c" \
	-L "$("$config" --pkglibdir)" -L "$("$config" --libdir)" -lpgport -o "$work/test_slot"
"$work/test_slot"
