#!/bin/sh
# deb.sh - builds the Debian package in a clean chroot, checks it with lintian, and installs and tries it in another chroot
# without the build dependencies. Needs root, or sudo. Installs mmdebstrap, changes nothing else on the machine.
#
# The exit status is 0 if all steps succeeded, 1 if one failed, 77 if no chroot can be made here, 2 for misuse.

top=$(cd "$(dirname "$0")/.." && pwd) || exit 2
. "$top/test/common.sh"
. "$top/test/chroot.sh"

usage() {
	cat <<-TEXT
	usage: sh test/deb.sh [--suite NAME] [--keep DIR]

	  --suite NAME   of Debian (bookworm)
	  --keep DIR     make this directory and leave there what was built

	  MIRROR         of Debian (default: the one in the machine's own list of sources)
	TEXT
}

suite=bookworm
keep=
while [ $# -gt 0 ]; do
	case $1 in
	--suite)
		case ${2:-} in
		'' | *[!a-z]*) usage >&2; exit 2 ;;
		esac
		suite=$2
		shift
		;;
	--keep)
		mkdir "${2:-}" || exit 2
		keep=$2
		shift
		;;
	--help | -h) usage; exit 0 ;;
	*) usage >&2; exit 2 ;;
	esac
	shift
done

# step TEXT COMMAND...: runs the command. Prints whether it succeeded, and after a failure its output.
step() {
	text=$1
	shift
	if "$@" >"$outside/step.log" 2>&1; then
		say "ok - $text"
		return 0
	fi
	say "not ok - $text"
	tail -n 60 "$outside/step.log"
	exit 1
}

# Removes the chroots. They belong to root, so an ordinary user needs sudo for that.
end_chroots() {
	as_root rm -rf "$outside/build" "$outside/use"
	end_outside
}

# Builds without root, as package builders do.
as_nobody='cd /tmp/source && exec setpriv --reuid=65534 --regid=65534 --clear-groups env HOME=/tmp'

begin_outside
trap end_chroots EXIT
install_packages mmdebstrap
if ! can_enter; then
	say 'no chroot can be made here: no mounts in a namespace'
	exit 77
fi

build_needs=build-essential,debhelper,lintian,libhiredis-dev,libssl-dev,pkg-config,postgresql-server-dev-all
step "a clean $suite to build in" make_chroot "$outside/build" "$suite" "$build_needs"
as_root mkdir "$outside/build/tmp/source"
tar -C "$top" --exclude=./.git --exclude='*.o' --exclude='*.so' --exclude=fence_lua.h --exclude=exports.map -cf - . |
	as_root tar --no-same-owner -C "$outside/build/tmp/source" -xf - || exit 2
as_root chown -R 65534:65534 "$outside/build/tmp/source"
step 'make deb' enter "$outside/build" sh -c "$as_nobody make deb"
packages=$outside/build/tmp/source/build-deb
[ -z "$keep" ] || cp "$packages"/*.* "$keep"
# The project has no mail address of its own.
step 'lintian' enter "$outside/build" sh -c "$as_nobody lintian --info --fail-on error,warning \
	--suppress-tags bogus-mail-host,bogus-mail-host-in-debian-changelog build-deb/*.changes"
cat "$outside/step.log"

step "a clean $suite to use it in" make_chroot "$outside/use" "$suite" redis-server
as_root mkdir "$outside/use/tmp/packages"
as_root cp "$packages"/*.deb "$top/debian/tests/smoke" "$outside/use/tmp/packages"
step 'apt-get install' enter "$outside/use" sh -c 'DEBIAN_FRONTEND=noninteractive
	export DEBIAN_FRONTEND
	rm -f /tmp/packages/*-dbgsym_*
	apt-get -q update && exec apt-get -q -y --no-install-recommends install /tmp/packages/*.deb'
step 'a server with the package' enter "$outside/use" sh /tmp/packages/smoke
cat "$outside/step.log"
