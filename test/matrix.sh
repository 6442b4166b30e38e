#!/bin/sh
# matrix.sh - runs the tests on other versions of PostgreSQL, hiredis, Redis and Valkey: those of Debian's suites.
#
# Makes one chroot per suite below a temporary directory (about 40 s and 1.5 GB each, packages only from the mirror that the
# machine uses) and runs test/run.sh in it, once for each combination. Needs root, or sudo, to make and to enter the chroots.
# Installs mmdebstrap, changes nothing else on the machine.
#
# Prints a table at the end, which a run of all combinations also writes into doc/versions.md. The exit status is 0 if every
# chosen combination was built and nothing failed, 1 if something failed, 77 if no chroot can be made here, 2 for misuse.

top=$(cd "$(dirname "$0")/.." && pwd) || exit 2
. "$top/test/common.sh"
. "$top/test/chroot.sh"

# name, suite, server program
combinations='
bookworm-redis  bookworm  redis-server
trixie-redis    trixie    redis-server
trixie-valkey   trixie    valkey-server
sid-redis       sid       redis-server
sid-valkey      sid       valkey-server
'

# The TAP tests of --quick, of things that differ between versions: memory of functions in Redis, the library, malformed calls
# of it, transactions, a Redis that goes away, two-phase commit, replication, TLS, Sentinel.
quick_tap='redis_memory arming reads writes transactions redis_gone courier two_phase replication standby tls sentinel tls_sentinel'
# The smallest selection, which each run of test/run.sh includes.
short_tap='redis_memory transactions courier replication tls'

usage() {
	cat <<-TEXT
	usage: sh test/matrix.sh [--quick | --short] [--only NAME]... [--jobs N] [--keep DIR] [--list] [-- ARG...]

	  --quick       build, regress, isolation and some of the TAP tests; without it everything but the model
	  --short       the same with fewer TAP tests: what test/run.sh does with one combination
	  --only NAME   this combination; shell patterns are allowed; may be repeated
	  --jobs N      combinations at the same time (default: as processors and memory allow)
	  --keep DIR    keep chroots and logs there, and use the chroots that are there
	  --list        only tell the combinations' names
	  -- ARG...     arguments for test/run.sh instead of what --quick and --short choose

	  MIRROR        of Debian (default: the one in the machine's own list of sources)
	TEXT
}

list_names() { printf '%s' "$combinations" | awk 'NF == 3 { print $1 }'; }
field() { printf '%s' "$combinations" | awk -v name="$1" -v n="$2" '$1 == name { print $n }'; }

# ----------------------------------------------------------------------------------------------------------------------
# Chroots. Each function works in the directory $place: SUITE (the chroot), SUITE.log, NAME.log, NAME.row.
# ----------------------------------------------------------------------------------------------------------------------

# Makes the chroot with the suite's PostgreSQL, the packages that run.sh installs, and both Redis and Valkey. bookworm has no
# Valkey.
make_suite() {
	wanted=$(printf '%s\n' build-essential mount postgresql postgresql-server-dev-all redis-server $test_packages |
		sed 's/|.*//' | paste -sd, -)
	[ "$1" = bookworm ] || wanted=$wanted,valkey-server
	if ! make_chroot "$place/$1.new" "$1" "$wanted" --dpkgopt='path-exclude=/usr/share/doc/*' \
		--dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' >"$place/$1.log" 2>&1; then
		as_root rm -rf "$place/$1.new"
		return 1
	fi
	as_root mv "$place/$1.new" "$place/$1"
}

# version_of NAME WHAT: prints the version in the chroot.
version_of() {
	suite=$(field "$1" 2)
	case $2 in
	postgres) enter "$place/$suite" sh -c '/usr/lib/postgresql/*/bin/postgres --version' | awk '{ print $3 }' ;;
	server)
		program=$(field "$1" 3)
		enter "$place/$suite" "$program" --version | awk -v name="${program%-server}" '
			{ for (i = 1; i <= NF; i++) if ($i ~ /^v=/) print (name == "redis" ? "Redis " : "Valkey ") substr($i, 3) }' ;;
	*) enter "$place/$suite" dpkg-query -W -f '${Version}' "$2" | sed -e 's/^[0-9]*://' -e 's/[-+~].*//' ;;
	esac
}

# test_combination NAME: builds and tests in the suite's chroot. Writes NAME.log, and NAME.row with the line of the table.
test_combination() {
	name=$1
	suite=$(field "$name" 2)
	program=$(field "$name" 3)
	shift
	begun=$(date +%s)
	directory=/var/tmp/$name
	as_root rm -rf "$place/$suite$directory"
	as_root mkdir -p "$place/$suite$directory" &&
		tar -C "$top" --exclude=./.git --exclude='*.o' --exclude='*.so' --exclude=fence_lua.h --exclude=exports.map -cf - . |
		as_root tar --no-same-owner -C "$place/$suite$directory" -xf - || return 1
	say "--- $name: begins"
	# npm in the chroot uses the same registry or proxy as outside
	authorities=${NODE_EXTRA_CA_CERTS:+/etc/ssl/machine.crt}
	[ -z "$authorities" ] || as_root cp "$NODE_EXTRA_CA_CERTS" "$place/$suite$authorities" || return 1
	enter "$place/$suite" PROVE_JOBS="${PROVE_JOBS:-4}" REDIS_PROGRAM="$program" NODE_EXTRA_CA_CERTS="$authorities" \
		sh "$directory/test/run.sh" "$@" >"$place/$name.log" 2>&1
	status=$?
	took=$(($(date +%s) - begun))
	as_root rm -rf "$place/$suite$directory"
	counts=$(grep -E '^[0-9]+ passed, [0-9]+ failed$' "$place/$name.log" | tail -n 1)
	[ -n "$counts" ] || counts='did not end'
	[ $status -eq 0 ] || case $counts in *' 0 failed' | 'did not end') counts="$counts, exit status $status" ;; esac
	printf '| %s | %s | %s | %s | %s | %s | %s |\n' "$name" "$(version_of "$name" postgres)" "$(version_of "$name" libhiredis-dev)" \
		"$(version_of "$name" server)" "$(version_of "$name" gcc)" "$counts" "$((took / 60)) min $((took % 60)) s" >"$place/$name.row"
	say "--- $name: $counts ($took s)"
	[ $status -eq 0 ]
}

# ----------------------------------------------------------------------------------------------------------------------
# One step of the work, for which xargs runs this script: --step DIRECTORY (chroot SUITE | test NAME ARG...)
# ----------------------------------------------------------------------------------------------------------------------

if [ "${1:-}" = --step ]; then
	place=$2
	what=$3
	shift 3
	case $what in
	chroot)
		[ ! -d "$place/$1" ] || exit 0
		say "--- $1: making the chroot"
		make_suite "$1" && exit 0
		say "--- $1: no chroot can be made; the end of the log:"
		tail -n 15 "$place/$1.log"
		exit 1
		;;
	test)
		[ -d "$place/$(field "$1" 2)" ] || exit 1
		test_combination "$@"
		exit $?
		;;
	esac
fi

# ----------------------------------------------------------------------------------------------------------------------

mode=full
only=
jobs=
keep=

while [ $# -gt 0 ]; do
	case $1 in
	--quick) mode=quick ;;
	--short) mode=short ;;
	--only) only="$only ${2:?--only needs a name}"; shift ;;
	--jobs) jobs=${2:?--jobs needs a number}; shift ;;
	--keep) keep=${2:?--keep needs a directory}; shift ;;
	--list) list_names; exit 0 ;;
	--help | -h) usage; exit 0 ;;
	--) mode=own; shift; break ;;
	*) usage >&2; exit 2 ;;
	esac
	shift
done

names=
for name in $(list_names); do
	if fits "$name" "$only"; then names="$names $name"; fi
done
[ -n "$names" ] || { say "no such combination; there are: $(list_names | tr '\n' ' ')" >&2; exit 2; }

set -f
# shellcheck disable=SC2086
case $mode in
full) set -- --only unit --only regress --only isolation --only tap --only history --only clients ;;
quick) set -- --only regress --only isolation --only tap 'sql/*' 'specs/*' $quick_tap ;;
short) set -- --only regress --only isolation --only tap 'sql/*' 'specs/*' $short_tap ;;
esac
set +f

begin_outside
if [ "$(id -u)" -ne 0 ] && ! command -v sudo >/dev/null; then
	say 'no chroot can be made here: that needs root or sudo'
	exit 77
fi
# root owns the files of a chroot
end_outside() { stop_pulse; unguard_services; as_root rm -rf "$outside"; }
installed mmdebstrap || available mmdebstrap && install_packages mmdebstrap
if ! can_enter; then
	say 'no chroot can be made here: mmdebstrap is missing, or namespaces and mounts are not allowed'
	exit 77
fi

if [ -z "$jobs" ]; then
	jobs=$(awk -v processors="$(nproc)" '$1 == "MemAvailable:" {
		n = int($2 / 3000000); if (n > processors / 2) n = int(processors / 2); print n < 1 ? 1 : n }' /proc/meminfo)
fi
place=$outside
if [ -n "$keep" ]; then
	mkdir -p "$keep" || exit 2
	place=$(cd "$keep" && pwd)
fi
rm -f "$place"/*.row
pulse tell_newest "$place"

# in_parallel WHAT NAME... [-- ARG...]: runs the steps in a session of their own, which the traps of begin_outside end.
in_parallel() {
	step=$1
	shift
	# shellcheck disable=SC2016
	printf '%s\n' $of | setsid xargs -P "$jobs" -I '{}' sh "$top/test/matrix.sh" --step "$place" "$step" '{}' "$@" &
	inside=$!
	wait "$inside"
	status=$?
	inside=
	return $status
}

of=$(for name in $names; do field "$name" 2; done | sort -u)
in_parallel chroot
chroots=$?
made=
for suite in $of; do [ ! -d "$place/$suite" ] || made=1; done
if [ -z "$made" ]; then
	say 'no chroot can be made here: mmdebstrap failed, see above'
	exit 77
fi
of=$names
in_parallel test "$@"
tests=$?
stop_pulse

table=$(
	say '| combination | PostgreSQL | hiredis | server | gcc | result | time |'
	say '| --- | --- | --- | --- | --- | --- | --- |'
	for name in $names; do
		if [ -e "$place/$name.row" ]; then cat "$place/$name.row"; else say "| $name | | | | | not run | |"; fi
	done)
for name in $names; do
	[ -e "$place/$name.log" ] || continue
	case $(tail -n 1 "$place/$name.row") in
	*' 0 failed |'*) ;;
	*) say "--- what failed in $name"; grep -E '^not ok|^[-+]|FAILED|^#   |Dubious|^test/t/.*Wstat|crashed|rror:' "$place/$name.log" | head -n 60 ;;
	esac
done
say
say "$table"

# Only a run of all combinations updates the page.
page=$top/doc/versions.md
if [ -z "$only" ] && [ $mode != own ] && [ -w "$page" ]; then
	awk -v table="$table" -v when="$(date -u +%Y-%m-%d)" -v mode="$mode" '
		/^<!-- written by test\/matrix.sh: begin -->/ {
			print
			print ""
			print (mode == "full" ? "Everything but the model" : "`--" mode "`") ", " when ":"
			print ""
			print table
			print ""
			skip = 1
		}
		/^<!-- written by test\/matrix.sh: end -->/ { skip = 0 }
		!skip { print }' "$page" >"$place/versions.md" && cat "$place/versions.md" >"$page"
fi
[ $chroots -eq 0 ] && [ $tests -eq 0 ]
