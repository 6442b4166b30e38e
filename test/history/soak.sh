#!/bin/sh
# soak.sh --minutes N [--seed N]: random faults for a long time; see soak.py.
exec sh "$(dirname "$0")/../history.sh" soak "$@"
