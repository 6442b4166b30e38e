#!/bin/sh
# Checks that META.json follows the PGXN Meta Spec and agrees with the other files. Prints "N passed, N failed"; fails if anything failed.
exec /usr/bin/python3 "$(dirname "$0")/meta.py" "$@"
