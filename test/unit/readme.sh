#!/bin/sh
# Checks that README.md agrees with the pages that it refers to. Prints "N passed, N failed"; fails if anything failed.
exec /usr/bin/python3 "$(dirname "$0")/readme.py" "$@"
