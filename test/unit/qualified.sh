#!/bin/sh
# Whether all SQL of ours names the schema of what it uses. Prints "N passed, N failed"; fails if anything failed.
exec /usr/bin/python3 "$(dirname "$0")/qualified.py" "$@"
