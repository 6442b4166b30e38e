# rediss+sentinel://: sentinels and the master that they name, all over TLS, each with a certificate for what it is called.

use strict;
use warnings;

use FenceTest;
use FenceTest::Certificates;
use FenceTest::Sentinel;
use FenceTest::Session;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_postgres('tls_sentinel', undef, redis_url => 'redis://127.0.0.1:1', wait => 0);
{
	my ($rc, undef, $error) = $node->psql('postgres', "ALTER SYSTEM SET pgcache_fence.redis_url = 'rediss+sentinel://localhost/main'");
	plan skip_all => 'this hiredis has no TLS' if $rc != 0 && $error =~ /needs hiredis 1\.0 or later/;
	$node->safe_psql('postgres', 'ALTER SYSTEM RESET pgcache_fence.redis_url');
}
plan skip_all => 'the program openssl is not here' unless FenceTest::Certificates::available();
my $program = $ENV{REDIS_SERVER} || 'redis-server';
plan skip_all => 'this Redis has no TLS' unless `ldd "\$(command -v $program)"` =~ /libssl/;

my $authority = FenceTest::Certificates->new;
my @certificate = $authority->issue('address', 'IP:127.0.0.1');
my @misnamed = $authority->issue('misnamed', 'DNS:elsewhere.invalid');

# A server (of the class, with these lines of configuration) that has only a TLS port; server and port.
sub over_tls
{
	my ($start, @cert) = @_;

	for (my $try = 1;; $try++)
	{
		my $port = FenceTest::Redis::_free_port();
		my $server = eval { $start->('port 0', 'tls-replication yes', $authority->redis_config($port, @cert)) };
		return ($server, $port) if $server;
		die $@ if $try == 3;
	}
}

my ($first, $first_port) = over_tls(sub { FenceTest::Redis->start(config => [@_]) }, @certificate);
my ($second, $second_port) =
  over_tls(sub { FenceTest::Redis->start(config => [ @_, "replicaof 127.0.0.1 $first_port" ]) }, @certificate);
poll(sub { ($second->info('replication', 'master_link_status') // '') eq 'up' }, 'the replica to follow');
my $monitored = { port => $first_port };
bless $monitored, 'FenceTest::Redis';
my $sentinel_with = sub { my @cert = @_; return over_tls(sub { (FenceTest::Sentinel->start($monitored, 1, quorum => 1, config => [@_]))[0] }, @cert); };
my ($sentinel, $sentinel_port) = $sentinel_with->(@certificate);
my ($liar, $liar_port) = $sentinel_with->(@misnamed);

# Sets the URL, and waits for what the state looks like.
sub settle
{
	my ($url, $expected, $what) = @_;
	my $seen = '';

	$node->append_conf('postgresql.conf',
		"pgcache_fence.redis_url = '$url'\npgcache_fence.tls_ca_file = '" . $authority->file . "'");
	$node->reload;
	my $reached = eval {
		poll(sub { ($seen = $node->safe_psql('postgres', 'SELECT state, reason FROM fence.state')) =~ $expected }, $what, 60);
	};
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok($reached, $what) or diag("seen: $seen");
	return;
}
sub addresses { return $node->safe_psql('postgres', "SELECT string_agg(address || ' ' || role, ',') FROM fence.nodes"); }

settle("rediss+sentinel://127.0.0.1:$liar_port/main", qr/^CLOSED\|.*certificate of the server is not accepted: IP address mismatch/,
	'a sentinel whose certificate is for another name is not believed');
settle("redis+sentinel://127.0.0.1:$sentinel_port/main", qr/^CLOSED\|.*(is for TLS|closed the connection|reset)/,
	'without TLS a sentinel that wants it');
settle("rediss+sentinel://127.0.0.1:$liar_port,127.0.0.1:$sentinel_port/main", qr/^OPEN\|/, 'one of two sentinels is enough');
is(addresses(), "127.0.0.1:$first_port master", 'the master');

$node->safe_psql('postgres', <<'SQL');
CREATE TABLE item (id int PRIMARY KEY, name text, version bigint NOT NULL DEFAULT 0);
INSERT INTO item SELECT g, 'x' FROM generate_series(1, 20) g;
SELECT fence.attach('item');
SQL
my $session = FenceTest::Session->open($node);
my $announced = sub { poll(sub { $session->run("SELECT status FROM fence.get('item', '1')") ne 'unarmed' }, 'the announcement'); return; };
$announced->();
$session->run("SELECT fence.read('item', '1')") foreach 1 .. 2;
is($session->run("SELECT status FROM fence.get('item', '1')"), 'hit', 'a hit');
$session->run("UPDATE item SET name = 'y' WHERE id = 1");
is($session->run("SELECT fence.read('item', '1')->>'name'"), 'y', 'a write');
no_reservations($node);

# a failover: the new master is known by its address, for which its certificate is
$first->kill9;
my $reached = eval { poll(sub { addresses() eq "127.0.0.1:$second_port master" && $session->run('SELECT state FROM fence.state') eq 'OPEN' }, 'it', 90) };
ok($reached, 'the promoted replica is taken') or diag(addresses() . ' ' . $session->run('SELECT state, reason FROM fence.state'));
$announced->();
$session->run("UPDATE item SET name = 'z' WHERE id = 1");
is($session->run("SELECT fence.read('item', '1')->>'name'"), 'z', 'a write');
$node->{fence_redis} = $second;
$second->disconnect;    # sentinels cut off the clients of those whom they promote
compare_fences($node, 'item');

# a master whose certificate is for another name: the sentinel is right, the master is not believed
$second->call('CONFIG', 'SET', 'tls-cert-file', $misnamed[0], 'tls-key-file', $misnamed[1]);
$second->call('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes');
settle("rediss+sentinel://127.0.0.1:$sentinel_port/main", qr/^CLOSED\|.*not accepted: IP address mismatch/, 'nor is a master');

$node->stop;
done_testing();
