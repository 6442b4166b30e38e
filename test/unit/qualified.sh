#!/bin/sh
# Checks that all SQL of the extension names the schemas of the objects that it uses. Prints "N passed, N failed"; fails if anything failed.
exec /usr/bin/python3 "$(dirname "$0")/qualified.py" "$@"
