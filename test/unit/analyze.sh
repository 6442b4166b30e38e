#!/bin/sh
# gcc's static analyser over the C files: "make analyze". Prints "N passed, N failed"; fails if anything failed.
cd "$(dirname "$0")/../.." || exit 2
if make -s analyze; then
	echo '1 passed, 0 failed'
else
	echo '0 passed, 1 failed'
	exit 1
fi
