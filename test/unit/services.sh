#!/bin/sh
# What install_packages (test/common.sh) says of services that its packages have enabled. Installs nothing. Prints "N passed, N failed";
# fails if anything failed.
top=$(cd "$(dirname "$0")/../.." && pwd) || exit 2
. "$top/test/common.sh"

outside=$(mktemp -d) || exit 2
trap 'rm -rf "$outside"' EXIT
etc=$outside/etc
mkdir -p "$etc/rc2.d" "$etc/systemd/system/multi-user.target.wants"
touch "$etc/rc2.d/S01cron" "$etc/systemd/system/multi-user.target.wants/cron.service"

# instead of apt and dpkg
installed() { [ "$1" = mount ]; }
available() { :; }
apt_simulate() { :; }
postgres_here() { :; }
postgres_of_suite() { echo 15; }
guard_services() { :; }
as_root() {
	case $* in *redis-server*) touch "$etc/rc2.d/S01redis-server" "$etc/systemd/system/multi-user.target.wants/redis-server.service" ;; esac
	case $* in *postgresql-15*) touch "$etc/rc2.d/S01postgresql" ;; esac
}

passed=0
failed=0
check() {
	if "$@"; then passed=$((passed + 1)); else echo "not ok - $*, in: $told"; failed=$((failed + 1)); fi
}
says() { case $told in *"$1"*) return 0 ;; esac; return 1; }
says_nothing_of() { ! says "$1"; }

told=$(install_packages)
check says 'when this machine boots next: postgresql redis-server'
check says 'systemctl disable postgresql redis-server'
check says 'pg_dropcluster'
check says_nothing_of cron
told=$(install_packages)
check says_nothing_of 'boots next'

echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
