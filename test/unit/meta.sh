#!/bin/sh
# Whether META.json follows the PGXN Meta Spec and agrees with the rest. Prints "N passed, N failed"; fails if anything failed.
exec /usr/bin/python3 "$(dirname "$0")/meta.py" "$@"
