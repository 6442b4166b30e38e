# source.sh - the source of the installed PostgreSQL, from the source packages of the machine's mirror.
#
# Sourced after common.sh by scripts that work with it, outside. Needs dpkg-dev; keeps all of apt's files in $outside/apt,
# /etc/apt stays as it is.

private_apt() { apt-get -qq -c "$outside/apt/apt.conf" "$@"; }

# The machine's own sources of packages, as sources of source packages; lists and downloads in a directory of ours.
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

# The versions to try: the binary's own, others of its minor version, any other.
source_versions() {
	echo "$2"
	apt-cache -c "$outside/apt/apt.conf" showsrc "$1" 2>/dev/null | sed -n 's/^Version: //p' | sort -Vr |
		awk -v own="$2" -v minor="${2%-*}-" '
			$0 == own { next }
			index($0, minor) == 1 { print; next }
			{ others = others $0 "\n" }
			END { printf "%s", others }'
}

# fetch_source MAJOR [pristine]: unpacks the source package below $outside/source and sets source_dir; pristine: without
# Debian's changes, which fix directories of the installation.
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
		die "no source of $package can be had here; --source takes one that you have"
	fi
	[ "$version" = "$own" ] || say "not available: the source of $own; taking $version"
	[ -z "${2:-}" ] || tar -C "$outside/source" -xf "$outside/source/"*.orig.tar.* || exit 2
	set -- "$outside"/source/*/
	source_dir=${1%/}
}
