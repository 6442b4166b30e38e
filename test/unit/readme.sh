#!/bin/sh
# Whether the README says what the pages say that it refers to. Prints "N passed, N failed"; fails if anything failed.
exec /usr/bin/python3 "$(dirname "$0")/readme.py" "$@"
