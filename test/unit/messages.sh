#!/bin/sh
# Whether doc/messages.md explains exactly the messages that are in src/. Prints "N passed, N failed"; fails if anything failed.
exec /usr/bin/python3 "$(dirname "$0")/messages.py" "$@"
