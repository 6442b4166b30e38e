#!/bin/sh
# readme.sh - does what README.md says as a newcomer would: pastes its blocks, one after the other, as root into a fresh Debian, and compares
# what the readers print. Needs root, or sudo, and what README.md needs: Debian's packages and npm's. Installs mmdebstrap, changes
# nothing else on the machine.
#
# The exit status is 0 if all steps succeeded, 1 if one failed, 77 if no chroot can be made here, 2 for misuse.

top=$(cd "$(dirname "$0")/.." && pwd) || exit 2
. "$top/test/common.sh"
. "$top/test/chroot.sh"

usage() {
	cat <<-TEXT
	usage: sh test/readme.sh [--suite NAME]

	  --suite NAME   of Debian (bookworm, of which README.md speaks)

	  MIRROR         of Debian (default: the one in the machine's own list of sources)
	TEXT
}

suite=bookworm
while [ $# -gt 0 ]; do
	case $1 in
	--suite)
		case ${2:-} in
		'' | *[!a-z]*) usage >&2; exit 2 ;;
		esac
		suite=$2
		shift
		;;
	--help | -h) usage; exit 0 ;;
	*) usage >&2; exit 2 ;;
	esac
	shift
done

# Prints a script of the blocks before the heading "Documentation". A block for a file is appended to it, or makes it: the text before
# the block names the file. A block of SQL goes to the psql that was started before it, and each "#--> " or "//--> " is what the next
# command must print.
script_of_readme() {
	awk '
		BEGIN { print "set -e" }
		/^## Documentation/ { exit }
		/^```$/ && kind { if (kind != "sh") print "FENCE_END"; kind = ""; next }
		/^```/ {
			kind = substr($0, 4)
			if (kind == "sql") print "psql -v ON_ERROR_STOP=1 postgres <<\"FENCE_END\""
			else if (kind != "sh") print "cat >>" file " <<\"FENCE_END\""
			next
		}
		kind == "sh" {
			line = $0
			sub(/ +#.*/, "", line)
			if (line ~ /^psql /) next
			if (wanted != "" && line ~ / reader[.]/) {
				printf "told=$(%s)\necho \"+ %s: $told\"\n[ \"$told\" = \"%s\" ]\n", line, line, wanted
				wanted = ""
			} else printf "echo \"+ %s\"\n%s </dev/null\n", line, line
			next
		}
		kind { if (match($0, /^(#|[\/][\/])--> /)) wanted = substr($0, RLENGTH + 1); print; next }
		match($0, /`(\/etc\/[^`]*|reader[.][a-z]*)`/) { file = substr($0, RSTART + 1, RLENGTH - 2) }
	' "$top/README.md"
}

# Removes the chroot, which belongs to root.
end_chroot() {
	as_root rm -rf "$outside/root"
	end_outside
}

begin_outside
trap end_chroot EXIT
install_packages mmdebstrap
if ! can_enter; then
	say 'no chroot can be made here: no mounts in a namespace'
	exit 77
fi

say "making a fresh $suite ..."
if ! make_chroot "$outside/root" "$suite" ca-certificates >"$outside/step.log" 2>&1; then
	tail -n 30 "$outside/step.log"
	exit 1
fi
# on a reader's machine services start and PostgreSQL gets a cluster
as_root rm -f "$outside/root/usr/sbin/policy-rc.d" "$outside/root/etc/postgresql-common/createcluster.conf"
as_root mkdir "$outside/root/root/pgcache_fence"
tar -C "$top" --exclude=./.git --exclude=./build --exclude='*.o' --exclude=fence_lua.h --exclude=exports.map --exclude=node_modules -cf - . |
	as_root tar --no-same-owner -C "$outside/root/root/pgcache_fence" -xf - || exit 2
script_of_readme >"$outside/pasted"
as_root cp "$outside/pasted" "$outside/root/tmp/pasted"
# npm in the chroot uses the same registry or proxy as outside
authorities=${NODE_EXTRA_CA_CERTS:+/etc/ssl/machine.crt}
[ -z "$authorities" ] || as_root cp "$NODE_EXTRA_CA_CERTS" "$outside/root$authorities" || exit 2
pulse tell_newest "$outside"
enter "$outside/root" NODE_EXTRA_CA_CERTS="$authorities" sh -c 'cd /root/pgcache_fence && exec sh /tmp/pasted' \
	>"$outside/pasted.log" 2>&1
status=$?
stop_pulse
grep '^+ ' "$outside/pasted.log"
if [ $status -ne 0 ]; then
	tail -n 40 "$outside/pasted.log"
	say 'not ok - what README.md says'
	exit 1
fi
say 'ok - what README.md says'
