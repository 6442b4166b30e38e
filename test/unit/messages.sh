#!/bin/sh
# Checks that doc/messages.md explains exactly the messages in src/. Prints "N passed, N failed"; fails if anything failed.
exec /usr/bin/python3 "$(dirname "$0")/messages.py" "$@"
