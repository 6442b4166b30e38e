#!/bin/sh
# Tests of single source files, without a server. Prints "N passed, N failed"; fails if anything failed.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
top=$here/../..
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

server_headers=$("${PG_CONFIG:-pg_config}" --includedir-server)
"${CC:-cc}" -O1 -g -Wall -Wextra -Werror -fsanitize=address,undefined -fno-sanitize-recover=all \
	-I "$top/src" -isystem "$server_headers" "$here/test_url.c" "$top/src/base/url.c" \
	-L "$("${PG_CONFIG:-pg_config}" --pkglibdir)" -L "$("${PG_CONFIG:-pg_config}" --libdir)" -lpgport -o "$work/test_url"
"$work/test_url"
