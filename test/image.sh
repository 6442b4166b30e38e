#!/bin/sh
# image.sh - builds the images of deploy/Containerfile with buildah, without a registry: the base image is a chroot of Debian with
# PostgreSQL. Then uses both: the server as it is, and the extension as CloudNativePG mounts it. Needs root, or sudo. Installs
# buildah, crun and mmdebstrap, changes nothing else on the machine.
#
# The exit status is 0 if all steps succeeded, 1 if one failed, 77 if no chroot or image can be made here, 2 for misuse.

top=$(cd "$(dirname "$0")/.." && pwd) || exit 2
. "$top/test/common.sh"
. "$top/test/chroot.sh"

usage() {
	cat <<-TEXT
	usage: sh test/image.sh [--suite NAME]

	  --suite NAME   of Debian (sid, which has PostgreSQL 18; an older PostgreSQL cannot load the extension from an image of its own)

	  MIRROR         of Debian (default: the one in the machine's own list of sources)
	TEXT
}

suite=sid
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

passed=0
finish() {
	say "$passed passed, $1 failed"
	exit "$1"
}

# step TEXT COMMAND...: runs the command. Prints whether it succeeded, and after a failure its output.
step() {
	text=$1
	shift
	if "$@" >"$outside/step.log" 2>&1; then
		say "ok - $text"
		passed=$((passed + 1))
		return 0
	fi
	say "not ok - $text"
	tail -n 60 "$outside/step.log"
	finish 1
}

# images COMMAND [ARG...]: buildah with all its files below the temporary directory
images() {
	as_root buildah --storage-driver overlay --root "$outside/images" --runroot "$outside/run" "$@"
}

make_base() {
	make_chroot "$outside/base" "$suite" postgresql,ca-certificates &&
		container=$(images from scratch) && images add --quiet "$container" "$outside/base" / &&
		images commit --quiet "$container" base && images rm "$container"
}

# build_image TARGET
build_image() {
	images build --layers --isolation chroot --pull-never --build-arg BASE=localhost/base --build-arg "PG_MAJOR=$major" \
		--file "$top/deploy/Containerfile" --target "$1" --tag "$1" "$top"
}

# Prints the files of an image.
files_of() {
	container=$(images from --pull-never "localhost/$1") && at=$(images mount "$container") && (cd "$at" && as_root find . ! -type d | sort)
}

# The files of the extension's image; versions are left out.
has_its_files() {
	files_of extension >"$outside/files"
	cat "$outside/files"
	found=$(sed -E 's/(--|[.]so)[0-9.]*/\1/' "$outside/files" | sort -u | tr '\n' ' ')
	[ "$found" = "./lib/pgcache_fence.so ./licenses/pgcache_fence/LICENSE ./share/extension/pgcache_fence--sql \
./share/extension/pgcache_fence.control ./system/libhiredis.so ./system/libhiredis_ssl.so " ]
}

preloads() {
	images inspect --type image --format '{{.OCIv1.Config.Cmd}}' localhost/server | grep -x '.postgres -c shared_preload_libraries=pgcache_fence.'
}

# use_image IMAGE [VARIABLE=VALUE]...: a new cluster in that image has a fenced table, whose cached row follows an UPDATE.
use_image() {
	image=$1
	shift
	container=$(images from --pull-never "localhost/$image") || return 1
	if [ "$image" = base ]; then
		images add --quiet "$container" "$(images mount "$(images from --pull-never localhost/extension)")" /extensions/pgcache-fence || return 1
	fi
	images add --quiet "$container" "$top/test/lib/use_image.sh" "$top/deploy/initdb.sql" / || return 1
	images run --isolation chroot "$container" -- env "REDIS_PORT=$REDIS_PORT" "$@" \
		su postgres -s /bin/sh -c "PATH=/usr/lib/postgresql/$major/bin:\$PATH sh /use_image.sh"
}

begin_outside
# root owns the files of images and of the chroot
end_outside() {
	stop_pulse
	unguard_services
	stop_redis
	{ images umount --all; as_root umount "$outside/images/overlay"; } >/dev/null 2>&1
	as_root rm -rf --one-file-system "$outside"
}
if [ "$(id -u)" -ne 0 ] && ! command -v sudo >/dev/null; then
	say 'no image can be made here: that needs root or sudo'
	exit 77
fi
install_packages buildah crun mmdebstrap
if ! can_enter || ! images info >/dev/null; then
	say 'no image can be made here: namespaces, mounts or overlay file systems are not allowed'
	exit 77
fi
pulse tell_newest "$outside"

base=$outside
REDIS_SERVER=$(command -v redis-server || command -v valkey-server)
REDIS_CLI=${REDIS_SERVER%-server}-cli
step 'a Redis' start_redis
step "a base image, of $suite" make_base
major=$(ls "$outside/base/usr/lib/postgresql")
# the check below that the image brings hiredis along would say nothing
step 'it has no hiredis' sh -c '[ -z "$(find "$1" -name "libhiredis*")" ]' sh "$outside/base/usr"
step "the image of the extension, for PostgreSQL $major" build_image extension
step 'it has the files of the extension and of hiredis, and no others' has_its_files
step 'the image of the server' build_image server
step 'it preloads the library' preloads
step 'the server keeps a cached row fresh' use_image server
if [ "$major" -ge 18 ]; then
	step 'so does one that has the extension mounted' use_image base LD_LIBRARY_PATH=/extensions/pgcache-fence/system \
		"PLACE=extension_control_path = '\$system:/extensions/pgcache-fence/share'
			dynamic_library_path = '\$libdir:/extensions/pgcache-fence/lib'"
else
	say "PostgreSQL $major cannot load the extension from an image of its own: not tried"
fi
finish 0
