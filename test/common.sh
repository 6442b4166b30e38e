# common.sh - shared by the scripts of the tests: installs packages, makes a private working copy, starts private servers.
#
# Scripts that set $top, the project's directory, source this file. A script runs twice. First it runs as the calling user
# ("outside"): it installs packages and copies the project. Then it runs as an unprivileged user in that copy ("inside"), if
# possible in a process namespace of its own: it builds, starts servers and tests. All its files are below one temporary
# directory, $base, and all its processes are in one session. Both are gone when the script ends, however it ends.

# Inside, the first arguments are --inside BASE. This removes them. Outside, $base is empty.
base=
case ${1:-} in
--inside) base=$2; shift 2 ;;
esac

say() { printf '%s\n' "$*"; }
die() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; exit 2; }

# fits NAME PATTERNS: whether the name matches one of these shell patterns. Without patterns every name fits.
fits() {
	[ -n "$2" ] || return 0
	set -f
	for pattern in $2; do
		# shellcheck disable=SC2254
		case $1 in $pattern) set +f; return 0 ;; esac
	done
	set +f
	return 1
}

# names_of PATTERNS SUFFIX FILE...: prints the names of those files that fit, without the suffix. A pattern may also contain
# the file's folder: 'bulk*', 'write/*'.
names_of() {
	wanted=$1
	suffix=$2
	shift 2
	for file; do
		[ -e "$file" ] || continue
		name=$(basename "$file" "$suffix")
		folder=$(basename "$(dirname "$file")")
		if fits "$name" "$wanted" || fits "$folder/$name" "$wanted"; then printf '%s ' "$name"; fi
	done
}

# tell_newest DIRECTORY: prints the end of the log that was written last, and the number of finished tests in it.
tell_newest() {
	# shellcheck disable=SC2010,SC2012
	newest=$(ls -t "$1"/*.log 2>/dev/null | grep -vE '/(postgres|redis)[.]log$' | head -n 1)
	[ -n "$newest" ] || { say "... at $(date +%T)"; return; }
	finished=$(grep -cE '^(not )?ok |[.][.][.] (ok|FAILED) |[.]pl [.]+ ' "$newest")
	say "... at $(date +%T): $(basename "$newest" .log), $finished done; $(tail -n 1 "$newest" | cut -c 1-110)"
}

# pulse COMMAND...: runs the command every half minute in the background, so that no long step is silent. stop_pulse ends it, or
# the end of the script.
pulse() {
	(while sleep 30 >/dev/null 2>&1 && kill -0 $$ 2>/dev/null; do "$@"; done) &
	pulse=$!
}

stop_pulse() {
	# a shell that has just started may ignore other signals
	[ -z "${pulse:-}" ] || kill -KILL "$pulse" 2>/dev/null
	pulse=
}

# ----------------------------------------------------------------------------------------------------------------------
# Packages (outside)
# ----------------------------------------------------------------------------------------------------------------------

etc=/etc						# test/unit/services.sh has another

as_root() {
	if [ "$(id -u)" -eq 0 ]; then
		"$@"
	elif command -v sudo >/dev/null; then
		sudo "$@"
	else
		die "must be root, or have sudo, to run: $*"
	fi
}

installed() {
	case $(dpkg-query -W -f '${Status}' "$1" 2>/dev/null) in
	*' installed') return 0 ;;
	esac
	return 1
}

available() { apt-cache show --no-all-versions "$1" 2>/dev/null | grep -q '^Package:'; }

# Packages for building the extension.
extension_packages='make gcc libc6-dev libhiredis-dev pkgconf|pkg-config'

# Packages for the history checker (run.sh, history.sh).
history_packages='make gcc libc6-dev libhiredis-dev libpq-dev pkgconf|pkg-config python3 python3-psycopg2 python3-redis
	python3-psycopg python3-asyncpg'

# Packages for run.sh (run.sh, and matrix.sh for its chroots).
test_packages="$history_packages g++ lua5.1 lua-check libipc-run-perl sysbench libssl-dev openssl \
	shellcheck pyflakes3 python3-editorconfig python3-yaml yamllint \
	prometheus prometheus-postgres-exporter"

# Packages for the tests of clients/python (run.sh).
python_packages='python3-pytest python3-asyncpg python3-psycopg python3-prometheus-client python3-sqlalchemy python3-django python3-pip
	python3-setuptools python3-wheel mypy'

# Prints the newest major version of PostgreSQL whose server and headers are both installed, or nothing.
postgres_here() {
	for dir in /usr/lib/postgresql/*/; do
		major=$(basename "$dir")
		if [ -x "$dir/bin/postgres" ] && [ -e "$("$dir/bin/pg_config" --includedir-server 2>/dev/null)/postgres.h" ]; then
			echo "$major"
		fi
	done | sort -n | tail -n 1
}

# Prints the major version on which the suite's package "postgresql" depends.
postgres_of_suite() { apt-cache depends postgresql 2>/dev/null | sed -n 's/.*Depends: postgresql-\([0-9]*\)$/\1/p' | head -n 1; }

# install_packages NAME...: installs these packages, a PostgreSQL with its headers, and a Redis or Valkey, if they are missing.
# A name may be "a|b", which means the first of these that the suite has. Services in the packages do not start.
install_packages() {
	command -v dpkg-query >/dev/null || die 'this script installs packages with apt; it needs Debian or a derivative'
	[ -n "$(postgres_here)" ] || set -- "$@" postgresql-SUITE postgresql-server-dev-SUITE
	missing=
	for wanted in "$@" mount 'redis-server|valkey-server'; do
		found=
		for name in $(echo "$wanted" | tr '|' ' '); do
			if installed "$name"; then found=1; fi
		done
		[ -n "$found" ] || missing="$missing $wanted"
	done
	[ -n "$missing" ] || return 0

	if [ -z "$(postgres_of_suite)" ] || ! apt_simulate "$missing"; then
		say 'reading package lists ...'
		as_root apt-get -qq update || say 'apt-get update failed; going on with the present lists'
	fi
	say "installing:$(package_names "$missing")"
	boot_services >"$outside/services"
	guard_services
	# shellcheck disable=SC2046
	as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends -o Dpkg::Use-Pty=0 \
		install $(package_names "$missing") >"$outside/apt.log" 2>&1 </dev/null
	status=$?
	unguard_services
	if [ $status -ne 0 ]; then
		tail -n 30 "$outside/apt.log" >&2
		die 'could not install the packages'
	fi
	tell_services "$(boot_services | grep -vxF -f "$outside/services" | paste -sd ' ' -)"
}

# Prints the services that start when the machine boots.
boot_services() {
	ls "$etc"/rc2.d/S* "$etc"/systemd/system/*.wants/*.service 2>/dev/null | sed -e 's|.*/||' -e 's/^S[0-9][0-9]//' -e 's/[.]service$//' | sort -u
}

# tell_services "NAME ...": says that Debian has enabled these services. We do not disable them, because whoever wants them later, and
# installs the package that is there already, counts on it that they start.
tell_services() {
	[ -n "$1" ] || return 0
	say "Debian starts these services of the new packages when this machine boots next: $1"
	say "To prevent that: systemctl disable $1"
	case " $1 " in *' postgresql '*) say 'The cluster that Debian has made: pg_lsclusters; pg_dropcluster VERSION NAME removes it' ;; esac
}

# install_if_any NAME WHAT: installs this package if the suite has it. Otherwise says what is not tested.
install_if_any() {
	installed "$1" || available "$1" || as_root apt-get -qq update
	if installed "$1" || available "$1"; then install_packages "$1"; else say "there is no package $1: $2"; fi
}

# Prints the packages for Node.js and npm, unless these are installed, perhaps not as packages.
node_packages() {
	command -v node >/dev/null || echo nodejs
	command -v npm >/dev/null || echo npm
}

# install_modules DIRECTORY NAME: installs the npm modules of that directory's package.json into $outside/NAME. Runs as the user who
# called the script, with that user's settings of npm.
install_modules() {
	mkdir "$outside/$2"
	cp "$top/$1/package.json" "$top/$1/package-lock.json" "$outside/$2"
	(cd "$outside/$2" && npm ci --ignore-scripts --no-audit --no-fund) >"$outside/npm.log" 2>&1 </dev/null ||
		{ tail -n 20 "$outside/npm.log" >&2; return 1; }
}

# Prints the missing names, with alternatives chosen and with the suite's PostgreSQL.
package_names() {
	suite=$(postgres_of_suite)
	for wanted in $1; do
		chosen=
		for name in $(echo "$wanted" | tr '|' ' '); do
			name=$(echo "$name" | sed "s/SUITE/$suite/")
			if [ -z "$chosen" ] && available "$name"; then chosen=$name; fi
		done
		printf ' %s' "${chosen:-$wanted}"
	done
}

apt_simulate() {
	# shellcheck disable=SC2046
	apt-get -qq -s --no-install-recommends install $(package_names "$1") >/dev/null 2>&1
}

# Keeps servers in packages from starting, because the machine may be in use for other work. Never replaces an existing policy.
guard_services() {
	guarded=
	[ ! -e /usr/sbin/policy-rc.d ] || return 0
	guarded=1
	printf '#!/bin/sh\nexit 101\n' >"$outside/policy-rc.d"
	as_root install -m 755 "$outside/policy-rc.d" /usr/sbin/policy-rc.d
}

unguard_services() {
	[ -z "${guarded:-}" ] || as_root rm -f /usr/sbin/policy-rc.d
	guarded=
}

# ----------------------------------------------------------------------------------------------------------------------
# From outside to inside
# ----------------------------------------------------------------------------------------------------------------------

# Makes $outside, the temporary directory, and sets traps that remove it.
begin_outside() {
	outside=$(mktemp -d "${TMPDIR:-/tmp}/fence.XXXXXX") || exit 2
	inside=
	beside=
	trap 'end_outside' EXIT
	trap 'stop_session "$inside"; exit 130' INT
	trap 'stop_session "$inside"; exit 143' TERM HUP
}

end_outside() {
	stop_pulse
	stop_session "$beside"
	unguard_services
	rm -rf "$outside"
}

# stop_session PID: terminates this session, and kills it if it does not end. PID may be empty.
stop_session() {
	[ -n "$1" ] || return 0
	kill -TERM "-$1" 2>/dev/null
	patience=100
	while grep -q '^State:[[:space:]]*[^Z]' "/proc/$1/status" 2>/dev/null && [ $patience -gt 0 ]; do
		patience=$((patience - 1))
		sleep 0.1
	done
	kill -KILL "-$1" 2>/dev/null
}

# go_inside PACKAGES SCRIPT ARG...: for scripts that need nothing outside but these packages. Outside, it installs the packages,
# runs the script inside with these arguments, and exits. Inside, it calls begin_inside and returns.
go_inside() {
	if [ -n "$base" ]; then
		begin_inside "$base"
		return
	fi
	needed=$1
	shift
	begin_outside
	# shellcheck disable=SC2086
	install_packages $needed
	run_inside "$@"
	exit $?
}

# check_numbers "OPTION ..." ARG...: ends with the script's usage if an ARG is neither a number nor one of the options. --help prints it.
check_numbers() {
	options=$1
	shift
	for argument; do
		case " $options --help -h " in *" $argument "*) ;; *)
			case $argument in '' | *[!0-9.]*) usage >&2; exit 2 ;; esac ;;
		esac
	done
	case ${1:-} in --help | -h) usage; exit 0 ;; esac
}

# Command for a new process namespace. Its process 1 is a shell that waits. It reaps the children of a killed postmaster at once,
# and no process outlives it. The shell keeps its privileges, because --kill-child does not kill a process that has changed its
# user. (Not --mount-proc, which fails in a chroot that is no mount point.)
namespace='unshare --mount --propagation unchanged --pid --fork --kill-child'
# shellcheck disable=SC2016
process_1='mount --make-private /proc && mount -t proc proc /proc || exit 125; "$@"; exit $?'

# run_inside SCRIPT ARG...: runs sh test/SCRIPT --inside BASE ARG... in a copy of the project, as an unprivileged user, and
# returns its exit status. The terminal does not interrupt it, but the traps above pass interrupts on.
run_inside() {
	script=$1
	shift
	mkdir "$outside/tree" "$outside/tmp"
	tar -C "$top" --exclude=./.git --exclude=fence_lua.h --exclude=exports.map --exclude='*.o' --exclude='*.so' --exclude='*.bc' --exclude=./results \
		--exclude=./output_iso --exclude=./tmp_check --exclude='./regression.*' --exclude=node_modules -cf - . | tar -C "$outside/tree" -xf - || exit 2

	set -- sh "$outside/tree/test/$script" --inside "$outside" "$@"
	if [ "$(id -u)" -eq 0 ]; then
		chown -R postgres: "$outside"
		set -- setpriv --reuid=postgres "--regid=$(id -g postgres)" --init-groups -- "$@"
	else
		namespace="$namespace --user --map-current-user --keep-caps"
		set -- setpriv --inh-caps=-all --ambient-caps=-all -- "$@"
	fi
	# shellcheck disable=SC2086
	if $namespace sh -c "$process_1" sh true 2>/dev/null; then
		set -- $namespace sh -c "$process_1" sh "$@"
	fi
	# shellcheck disable=SC2046
	unset $(env | sed -n 's/^\(PG[A-Z_]*\)=.*/\1/p') MAKEFLAGS MAKELEVEL MFLAGS TEMP_CONFIG PROVE_FLAGS
	# A background job of a shell ignores interrupts, and its children would inherit that.
	env --default-signal=INT,QUIT HOME="$outside" TMPDIR="$outside/tmp" LC_ALL=C.UTF-8 setsid "$@" </dev/null &
	inside=$!
	wait "$inside"
	status=$?
	inside=
	return $status
}

# ----------------------------------------------------------------------------------------------------------------------
# Inside
# ----------------------------------------------------------------------------------------------------------------------

# begin_inside BASE: finds the programs, and sets traps that stop the servers. Sets base, PG_CONFIG, bindir, major.
# FENCE_PG_CONFIG names the pg_config of another PostgreSQL whose directories this user may write.
begin_inside() {
	base=$1
	cd "$base/tree" || exit 2
	PG_CONFIG=${FENCE_PG_CONFIG:-/usr/lib/postgresql/$(postgres_here)/bin/pg_config}
	major=$("$PG_CONFIG" --version | sed 's/[^0-9]*\([0-9]*\).*/\1/')
	bindir=$("$PG_CONFIG" --bindir) || exit 2
	for redis in ${REDIS_PROGRAM:-redis-server valkey-server}; do
		if command -v $redis >/dev/null; then REDIS_SERVER=$(command -v $redis); break; fi
	done
	REDIS_CLI=${REDIS_SERVER%-server}-cli
	redis_pid=
	postgres_data=
	export PG_CONFIG REDIS_SERVER REDIS_CLI
	trap 'stop_servers' EXIT
	trap 'exit 143' INT TERM HUP
}

# use_capture MODE: sets pgcache_fence.capture = MODE (empty: the default) for servers that start from now on. It writes to
# $base/place.conf, which every server of every test reads.
use_capture() {
	sed -i '/^pgcache_fence[.]capture /d' "$base/place.conf"
	[ -z "$1" ] || echo "pgcache_fence.capture = '$1'" >>"$base/place.conf"
}

# build [VARIABLE=VALUE]...: runs make with these variables and installs below $base/root, not in the system's directories. A warning
# is an error here. Writes $base/place.conf, with which a server finds the extension there. With FENCE_PG_CONFIG the extension is
# installed into that PostgreSQL, and the file has no path. The file also sets what FENCE_CAPTURE says (see use_capture). After an
# error prints it and returns false.
build() {
	place=${FENCE_PG_CONFIG:+/}
	if ! make -j2 WERROR=-Werror "$@" >"$base/build.log" 2>&1 ||
		! make install "$@" "DESTDIR=${place:-$base/root}" >>"$base/build.log" 2>&1; then
		grep -E -A4 'error|warning|\*\*\*' "$base/build.log" || tail -n 30 "$base/build.log"
		return 1
	fi
	{
		[ -n "$place" ] || write_place
	} >"$base/place.conf"
	use_capture "${FENCE_CAPTURE:-}"
}

write_place() {
	if [ "$major" -ge 18 ]; then
		echo "extension_control_path = '$base/root$("$PG_CONFIG" --sharedir):\$system'"
	else
		echo "extension_destdir = '$base/root'"
	fi
	echo "dynamic_library_path = '$base/root$("$PG_CONFIG" --pkglibdir):\$libdir'"
}

# wait_until SECONDS COMMAND...: repeats the command until it succeeds. Returns false if it does not in that time.
wait_until() {
	tries=$(($1 * 20))
	shift
	until "$@" >/dev/null 2>&1; do
		tries=$((tries - 1))
		[ $tries -gt 0 ] || return 1
		sleep 0.05
	done
}

# build_unit FILE SOURCE... [OPTION...]: builds the program $unit from test/unit/FILE.c, these files of src/ and libpgport, with the
# sanitizers. Needs no server. The end of the script removes the program.
build_unit() {
	source=$top/test/unit/$1.c
	shift
	work=$(mktemp -d) || exit 2
	trap 'rm -rf "$work"' EXIT
	unit=$work/program
	config=${PG_CONFIG:-pg_config}
	(cd "$top/src" && "${CC:-cc}" -O1 -g -Wall -Wextra -Werror -fsanitize=address,undefined -fno-sanitize-recover=all \
		-I . -isystem "$("$config" --includedir-server)" "$source" "$@" -L "$("$config" --pkglibdir)" -L "$("$config" --libdir)" \
		-lpgport -o "$unit")
}

# start_redis: starts Redis on the socket $base/redis.sock and on a loopback port. Sets redis_pid, REDIS_PORT, REDIS_SOCKET. After
# an error prints it and returns false, as start_postgres does.
start_redis() {
	REDIS_SOCKET=$base/redis.sock
	export REDIS_SOCKET REDIS_PORT
	REDIS_PORT=$((20000 + $(date +%s) % 10000))
	attempts=20
	while [ $attempts -gt 0 ]; do
		"$REDIS_SERVER" --port $REDIS_PORT --bind 127.0.0.1 --unixsocket "$REDIS_SOCKET" --dir "$base" \
			--save '' --appendonly no >"$base/redis.log" 2>&1 &
		redis_pid=$!
		wait_until 10 redis_decided
		if redis_answers; then return 0; fi
		REDIS_PORT=$((REDIS_PORT + 7))		# another program has the port
		attempts=$((attempts - 1))
	done
	cat "$base/redis.log"
	return 1
}

redis_answers() { [ "$("$REDIS_CLI" -s "$REDIS_SOCKET" ping 2>/dev/null)" = PONG ]; }
redis_decided() { redis_answers || ! kill -0 "$redis_pid" 2>/dev/null; }

# start_postgres CONF...: starts a new cluster with these files of settings, which listens only in the socket directory $base.
# Sets the environment variables with which psql and other programs find it.
start_postgres() {
	postgres_data=$base/data
	"$bindir/initdb" -D "$postgres_data" -A trust -U postgres -N -E UTF8 --no-locale >"$base/initdb.log" 2>&1 ||
		{ cat "$base/initdb.log"; return 1; }
	{
		echo "listen_addresses = ''"
		echo "unix_socket_directories = '$base'"
		echo "shared_preload_libraries = 'pgcache_fence'"
		echo "pgcache_fence.redis_url = 'unix://$REDIS_SOCKET'"
		cat "$base/place.conf" "$@"
	} >>"$postgres_data/postgresql.conf"
	"$bindir/pg_ctl" -D "$postgres_data" -l "$base/postgres.log" -w -t 30 start >"$base/start.log" 2>&1 ||
		{ cat "$base/start.log" "$base/postgres.log"; return 1; }
	PGHOST=$base PGPORT=5432 PGUSER=postgres
	export PGHOST PGPORT PGUSER
}

stop_postgres() {
	[ -n "$postgres_data" ] || return 0
	if [ -e "$postgres_data/postmaster.pid" ]; then
		"$bindir/pg_ctl" -D "$postgres_data" -m "${1:-fast}" -w -t 30 stop >/dev/null 2>&1
	fi
	postgres_data=
}

stop_redis() {
	[ -n "$redis_pid" ] || return 0
	kill "$redis_pid" 2>/dev/null
	wait "$redis_pid" 2>/dev/null
	redis_pid=
}

stop_servers() {
	stop_postgres immediate
	stop_redis
}
