# source.sh - fetches the source of the installed PostgreSQL, from the source packages of the mirror that the machine uses.
#
# Sourced by scripts after common.sh, and used outside (see there). It needs dpkg-dev. It keeps all of apt's files in
# $outside/apt, and does not change /etc/apt.

private_apt() { apt-get -qq -c "$outside/apt/apt.conf" "$@"; }

# Configures apt to use the machine's package sources for source packages, with lists and downloads in our directory.
configure_apt() {
	mkdir -p "$outside/apt/parts" "$outside/apt/lists/partial" "$outside/apt/cache/archives/partial"
	cp /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources "$outside/apt/parts" 2>/dev/null
	cp /etc/apt/sources.list "$outside/apt/parts/machine.list" 2>/dev/null
	sed -i -e 's/^deb[[:space:]]/deb-src /' -e 's/^[Tt]ypes:.*/Types: deb-src/' "$outside"/apt/parts/*
	cat >"$outside/apt/apt.conf" <<-CONF
	Dir::Etc::sourcelist "/dev/null";
	Dir::Etc::sourceparts "$outside/apt/parts";
	Dir::State::lists "$outside/apt/lists";
	Dir::Cache "$outside/apt/cache";
	Acquire::Languages "none";
	CONF
	[ "$(id -u)" -ne 0 ] || echo 'APT::Sandbox::User "root";' >>"$outside/apt/apt.conf"
}

# Prints the versions to try, in this order: that of the binary package, others of the same minor version, all others.
source_versions() {
	echo "$2"
	apt-cache -c "$outside/apt/apt.conf" showsrc "$1" 2>/dev/null | sed -n 's/^Version: //p' | sort -Vr |
		awk -v own="$2" -v minor="${2%-*}-" '
			$0 == own { next }
			index($0, minor) == 1 { print; next }
			{ others = others $0 "\n" }
			END { printf "%s", others }'
}

# fetch_source MAJOR [pristine]: unpacks the source package below $outside/source and sets source_dir. pristine: without
# Debian's patches, which hard-code directories of the installation.
fetch_source() {
	package=$(dpkg-query -W -f '${source:Package}' "postgresql-$1")
	own=$(dpkg-query -W -f '${source:Version}' "postgresql-$1")
	say "fetching the source of $package $own ..."
	configure_apt
	mkdir "$outside/source"
	private_apt update >"$outside/apt.log" 2>&1 || say 'apt-get update failed for some of the source lists'
	for version in $(source_versions "$package" "$own"); do
		(cd "$outside/source" && private_apt source ${2:+--download-only} --only-source "$package=$version") >>"$outside/apt.log" 2>&1 &&
			break
		version=
	done
	if [ -z "$version" ]; then
		tail -n 20 "$outside/apt.log" >&2
		die "found no source of $package; name a directory that has it with --source"
	fi
	[ "$version" = "$own" ] || say "the source of $own is not available, using $version"
	[ -z "${2:-}" ] || tar -C "$outside/source" -xf "$outside/source/"*.orig.tar.* || exit 2
	set -- "$outside"/source/*/
	source_dir=${1%/}
}
