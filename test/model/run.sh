#!/bin/sh
# run.sh - builds the checker and runs the lines of `checks`. Output: TAP.
#
#   sh run.sh [NAME...]		those that are done in seconds, or those of these names (shell patterns)
#   sh run.sh --all		all: an hour of one processor, 2 GB
#   sh run.sh --list [--all|NAME...]	their names only
#
# Needs g++. MODEL_JOBS: how many at once (2). MODEL_KEEP: a directory where what each run printed stays, with its trace.

here=$(cd "$(dirname "$0")" && pwd) || exit 2
top=$here/../..
. "$top/test/common.sh"

if [ "${1:-}" = --one ]; then
	work=$2
	IFS='|' read -r kind name what switches <<-LINE
	$3
	LINE
	# shellcheck disable=SC2086
	begun=$(date +%s)
	"$work/checker" $switches >"$work/$name.log" 2>&1
	status=$?
	case $kind$status in
	hold0 | long0) text="ok - $name: $what" ;;
	broken1) text="ok - without the rule, a violation is found: $name" ;;
	spare0) text="ok - not needed here: $name" ;;
	*) text="not ok - $kind $name" ;;
	esac
	echo "$text ($(head -n 1 "$work/$name.log")) ($(($(date +%s) - begun)) s)" | tee "$work/$name.result"
	exit 0
fi

# The chosen lines of checks without blanks around the bars.
list() {
	grep -v '^#' "$here/checks" | sed 's/ *| */|/g' | while IFS='|' read -r kind name what switches; do
		if [ "$kind" = long ] && [ -z "$names" ]; then continue; fi
		if fits "$name" "$names"; then echo "$kind|$name|$what|$switches"; fi
	done
}

list_only=
if [ "${1:-}" = --list ]; then
	list_only=1
	shift
fi
if [ "${1:-}" = --all ]; then set -- '*'; fi
names=$*
if [ -n "$list_only" ]; then
	list | cut -d '|' -f 2
	exit 0
fi
work=${MODEL_KEEP:-$(mktemp -d "${TMPDIR:-/tmp}/model.XXXXXX")} || exit 2
mkdir -p "$work"
[ -n "${MODEL_KEEP:-}" ] || trap 'rm -rf "$work"' EXIT
trap 'exit 143' INT TERM HUP
g++ -std=c++17 -O3 -Wall -Wextra -Wno-stringop-overflow -o "$work/checker" "$here"/*.cpp || { echo 'Bail out! the checker does not build'; exit 2; }
list >"$work/list"
[ -s "$work/list" ] || { echo 'Bail out! there is no such line in checks'; exit 2; }
echo "# $(grep -c . "$work/list") configurations and rules left out"
tr '\n' '\0' <"$work/list" | xargs -0 -n 1 -P "${MODEL_JOBS:-2}" sh "$0" --one "$work"

bad=0
while IFS='|' read -r kind name what switches; do
	[ -s "$work/$name.result" ] || echo "not ok - $name: nothing came out"
	grep -qs '^ok' "$work/$name.result" || bad=$((bad + 1))
done <"$work/list"
echo "1..$(grep -c . "$work/list")"
[ $bad -eq 0 ]
