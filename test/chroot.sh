# chroot.sh - makes chroots of Debian's suites with mmdebstrap, from the mirror that the machine uses.
#
# Sourced by scripts after common.sh. It needs root, or sudo, and changes nothing outside the directories that it is given.
# Each command in a chroot has its own process and mount namespaces, which end with the command; it uses the machine's network.

# Prints the mirror that the machine uses, if it is one of Debian. MIRROR overrides it.
find_mirror() {
	[ -n "${MIRROR:-}" ] && { printf '%s\n' "$MIRROR"; return; }
	# shellcheck disable=SC2016
	found=$(apt-get indextargets --format '$(ORIGIN) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' 2>/dev/null |
		awk '$1 == "Debian" && $2 == "main" && $3 !~ /security/ { print $3; exit }')
	printf '%s\n' "${found:-http://deb.debian.org/debian}"
}

# Keeps services of packages from starting, and postgresql-common from making a cluster.
# shellcheck disable=SC2016
chroot_hook='mkdir -p "$1/usr/sbin" "$1/etc/postgresql-common" &&
	printf "#!/bin/sh\nexit 101\n" >"$1/usr/sbin/policy-rc.d" && chmod 755 "$1/usr/sbin/policy-rc.d" &&
	echo "create_main_cluster = false" >"$1/etc/postgresql-common/createcluster.conf"'

# make_chroot DIR SUITE PACKAGE,... [OPTION...]: makes a chroot with the suite's essential packages, apt and these packages.
# OPTIONs are mmdebstrap's. Prints errors.
make_chroot() {
	chroot_at=$1
	chroot_suite=$2
	chroot_packages=$3
	shift 3
	as_root mmdebstrap --variant=apt --components=main --aptopt='Acquire::Languages "none"' \
		--aptopt='Acquire::Check-Valid-Until "false"' --aptopt='Acquire::Retries "3"' \
		--dpkgopt=force-unsafe-io --setup-hook="$chroot_hook" "$@" --include="$chroot_packages" \
		"$chroot_suite" "$chroot_at" "$(find_mirror)" </dev/null
}

# enter DIR [VARIABLE=VALUE...] COMMAND...: runs the command in the chroot, as root.
# shellcheck disable=SC2016
enter_script='
	mount --make-rprivate / && mount --bind "$1" "$1" && mount -t proc proc "$1/proc" && mount -t sysfs sysfs "$1/sys" &&
	mkdir -p "$1/dev/shm" "$1/dev/pts" && mount -t tmpfs tmpfs "$1/dev/shm" && mount -t devpts devpts "$1/dev/pts" || exit 77
	root=$1
	shift
	chroot "$root" "$@"
	exit $?'

enter() {
	entered=$1
	shift
	as_root unshare --mount --pid --fork --kill-child sh -c "$enter_script" sh "$entered" \
		/usr/bin/env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 \
		"$@" </dev/null
}

# Whether this machine allows namespaces and mounts.
can_enter() {
	command -v mmdebstrap >/dev/null &&
		as_root unshare --mount --pid --fork --kill-child sh -c 'mount --make-rprivate / && mount -t tmpfs tmpfs /mnt' 2>/dev/null
}
