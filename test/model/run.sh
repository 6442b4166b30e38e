#!/bin/sh
# run.sh - checks the model of the protocol (fence.pml) with spin, and that it can fail. Output: TAP.
#
#   sh test/model/run.sh [NAME...]                all but the long configurations, or those of these names (shell patterns)
#   sh test/model/run.sh --all                    all
#   sh test/model/run.sh --list [--all|NAME...]   their names only
#
# Each line of `configurations` must hold in every reachable state; each line of `mutations` leaves out one rule, and must
# give a violation. Each is told when it is done. Needs spin and gcc. MODEL_JOBS: how many at once (2). MODEL_KEEP: a
# directory where the logs stay.

here=$(cd "$(dirname "$0")" && pwd) || exit 2
LC_ALL=C
export LC_ALL

# check KIND NAME WHAT MACROS: one run of spin; its result goes to the file `result` of its directory.
check() {
	dir=$work/$1-$2
	mkdir "$dir" && cd "$dir" || exit 2
	ln -s "$here"/*.pml . || exit 2
	macros=
	for macro in $4; do macros="$macros -D$macro"; done
	[ "$1" = configuration ] || macros="$macros -DMUTATION_$2"
	property=-DSAFETY
	optimize=-O2
	# most violations are found sooner than gcc would be done with the best code
	case "$1 $4" in configuration* | *LENGTHS*) ;; *) optimize=-O0 ;; esac
	fair=
	case " $4 " in *' LIVENESS '*) property=-DNFAIR=4 fair='-a -f' ;; esac
	# shellcheck disable=SC2086
	if ! spin -a $macros fence.pml >spin.log 2>&1 || ! gcc -w $optimize $property -DMEMLIM=2800 -o pan pan.c >gcc.log 2>&1; then
		echo "not ok - $2: the model does not compile"
		sed 's/^/# /' spin.log gcc.log
		return
	fi
	# shellcheck disable=SC2086
	./pan $fair -m500000 -w22 >pan.log 2>&1
	states=$(sed -n 's/^ *\([0-9]*\) states, stored.*/\1/p' pan.log)
	rm -f pan pan.[a-z]
	if [ "$1" = configuration ] && grep -q 'errors: 0$' pan.log && ! grep -qE 'out of memory|too small|truncated' pan.log; then
		echo "ok - $2: $3 ($states states)"
	elif [ "$1" = mutation ] && grep -qE 'assertion violated|acceptance cycle' pan.log; then
		echo "ok - without the rule, a violation is found: $2${3:+ [$3]}"
	else
		if [ "$1" = mutation ]; then
			echo "not ok - without the rule, no violation is found: $2${3:+ [$3]}"
		else
			echo "not ok - $2: $3"
		fi
		grep -E 'violated|acceptance|invalid end|errors:|memory|too small|truncated|states, stored' pan.log | sed 's/^/# /'
	fi
}

chosen() {
	[ -n "$names" ] || return 0
	set -f
	for pattern in $names; do
		# shellcheck disable=SC2254
		case $1 in $pattern) set +f; return 0 ;; esac
	done
	set +f
	return 1
}

# The chosen lines as "KIND|name|what|macros".
list() {
	sed -n 's/ *| */|/g; /^\(hold\|long\)|/p' "$here/configurations" | while IFS='|' read -r length name what macros; do
		if [ "$length" = long ] && [ -z "$names" ]; then continue; fi
		if chosen "$name"; then echo "configuration|$name|$what|$macros"; fi
	done
	sed '/^#/d; s/ *| */|/g' "$here/mutations" | while IFS='|' read -r name label macros; do
		if chosen "$name"; then echo "mutation|$name|$label|$macros"; fi
	done
}

if [ "${1:-}" = --one ]; then
	work=$2
	IFS='|' read -r kind name what macros <<-LINE
	$3
	LINE
	mkdir -p "$work"
	begun=$(date +%s)
	(check "$kind" "$name" "$what" "$macros") >"$work/$kind-$name.result"
	sed "1s/\$/ ($(($(date +%s) - begun)) s)/" "$work/$kind-$name.result"
	exit 0
fi

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
for program in spin gcc; do
	command -v $program >/dev/null || { echo "Bail out! $program is not installed"; exit 2; }
done
work=${MODEL_KEEP:-$(mktemp -d "${TMPDIR:-/tmp}/model.XXXXXX")} || exit 2
mkdir -p "$work"
[ -n "${MODEL_KEEP:-}" ] || trap 'rm -rf "$work"' EXIT
trap 'exit 143' INT TERM HUP

list >"$work/list"
[ -s "$work/list" ] || { echo 'Bail out! no such configuration or mutation'; exit 2; }
echo "# $(grep -c . "$work/list") configurations and mutations"
tr '\n' '\0' <"$work/list" | xargs -0 -n 1 -P "${MODEL_JOBS:-2}" sh "$0" --one "$work"

bad=0
while IFS='|' read -r kind name what macros; do
	result=$work/$kind-$name.result
	[ -s "$result" ] || echo "not ok - $name: nothing came out"
	grep -qs '^ok' "$result" || bad=$((bad + 1))
done <"$work/list"
echo "1..$(grep -c . "$work/list")"
[ $bad -eq 0 ]
