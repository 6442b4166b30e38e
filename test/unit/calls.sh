#!/bin/sh
# The wire format: what src/redis/calls.c calls, against the signatures in the function library. Prints "N passed, N failed".
set -eu
here=$(cd "$(dirname "$0")" && pwd)
top=$here/../..
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

config=${PG_CONFIG:-pg_config}
"${CC:-cc}" -O1 -g -Wall -Wextra -Werror -I "$top/src" -isystem "$("$config" --includedir-server)" \
	"$here/test_calls.c" "$top/src/redis/calls.c" -L "$("$config" --pkglibdir)" -L "$("$config" --libdir)" -lpgport \
	-o "$work/test_calls"
"$work/test_calls" >"$work/calls"
/usr/bin/python3 "$here/calls.py" <"$work/calls"
