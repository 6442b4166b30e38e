# FenceTest.pm
#    What the TAP tests share: private Redis servers, and PostgreSQL nodes that use them.
#
# Owns: the Redis processes that it starts (FenceTest::Redis) and everything below their temporary directories. They
# end with the test, also if the test dies. PostgreSQL::Test::Cluster owns the PostgreSQL nodes, and ends them likewise.
# Must never: signal a process that it did not start, or wait for anything without a deadline.
#
#    use FenceTest;
#    my $redis = FenceTest::Redis->start;
#    my $node = new_postgres('main', $redis, on_redis_failure => 'error');
#    my $reply = $redis->call('FCALL_RO', 'fence_get', 1, $fence);
package FenceTest;

use strict;
use warnings;

# PostgreSQL::Test::Utils keeps logs and data below TESTDIR (15) or TESTDATADIR and TESTLOGDIR (16 and later). Without them
# it uses the current directory, which may belong to another user. They must be set before that module is loaded.
BEGIN
{
	require File::Temp;
	if (!$ENV{TESTDIR} && !-w '.')
	{
		$ENV{TESTDIR} = File::Temp::tempdir('fence_test_XXXXXX', TMPDIR => 1, CLEANUP => 1);
		$ENV{TESTDATADIR} //= "$ENV{TESTDIR}/tmp_check";
		$ENV{TESTLOGDIR}  //= "$ENV{TESTDIR}/tmp_check/log";
		mkdir "$ENV{TESTDIR}/tmp_check";
	}
}

use Carp;
use Cwd qw(abs_path);
use Exporter 'import';
use File::Basename;
use Test::More;
use Time::HiRes qw(time usleep);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FenceTest::Comparison;
use FenceTest::Redis;

our @EXPORT = qw(
  $TOP
  poll
  row_version
  compile_library
  new_postgres
  wait_open
  wait_state
  no_reservations
  compare_fences
  strong_read
  strong_send
  strong_take
  strong_word
);

# The project's directory.
our $TOP = abs_path(dirname(__FILE__) . '/../..');

# Settings of the extension, which new_postgres takes without their prefix. It treats all others as settings of PostgreSQL.
my %own_setting = map { $_ => 1 } qw(redis_url namespace databases lease clock_margin timeout on_redis_failure
  patrol_interval patrol_grace audit_rate bulk_threshold value_limit fill_lease warm_rate stream_limit default_ttl
  tombstone_retention reserve watch_buckets);

my $nodes_made = 0;

# PostgreSQL::Test::Utils sends standard error to a log. The error that a test dies of must be in its output too.
$SIG{__DIE__} = sub { diag(@_) unless $^S };

{
	no warnings 'once';
	*row_version = \&FenceTest::Redis::row_version;
}

# Waits until the condition is true and returns its value. Dies after timeout seconds, with $what in the message.
sub poll
{
	my ($condition, $what, $timeout) = @_;
	my $deadline = time() + ($timeout // 60);

	while (1)
	{
		my $result = $condition->();
		return $result if $result;
		croak 'timed out waiting for ' . ($what // 'a condition') if time() > $deadline;
		usleep(10_000);
	}
}

# Compiles the C source of that name in test/lib. Returns the library, for shared_preload_libraries. Skips the test if there is no compiler.
sub compile_library
{
	my ($name) = @_;
	my $library = PostgreSQL::Test::Utils::tempdir() . "/$name.so";
	my $headers = qx(pg_config --includedir-server);

	chomp $headers;
	plan skip_all => 'no compiler' if system("cc -shared -fPIC -O1 -I'$headers' -o '$library' '$TOP/test/lib/$name.c' 2>&1") != 0;
	return $library;
}

# Sets the variables that prove_installcheck sets, for a test that prove runs.
sub _find_installation
{
	my $bindir = $ENV{PG_BINDIR} // `pg_config --bindir`;
	my $pgxs   = `pg_config --pgxs`;

	chomp($bindir, $pgxs);
	$ENV{PATH} = "$bindir:$ENV{PATH}" unless grep { -x "$_/initdb" } split /:/, $ENV{PATH};
	$ENV{PG_REGRESS} //= dirname($pgxs) . '/../test/regress/pg_regress';
}

# Starts a node whose fences are OPEN in $redis (if undef, redis_url must be among the settings). Settings are the
# extension's (without prefix) or PostgreSQL's. These names are options, not settings:
#   init => {...}     options of PostgreSQL::Test::Cluster->init
#   new => [...]      options of PostgreSQL::Test::Cluster->new
#   preload => 0      does not load the library
#   start => 0        configures only
#   extension => 0    starts, without CREATE EXTENSION
#   wait => 0         does not wait for OPEN
sub new_postgres
{
	my ($name, $redis, %settings) = @_;
	my %option = map { $_ => delete $settings{$_} } qw(init new preload start extension wait);
	# watch_buckets: tests whose subject are not buckets count on it that what is read first is cached, and what is written reserved.
	# patrol_grace: on a loaded machine the messages of a commit may take this long, and the patrol must not be faster
	my %default = (
		namespace       => sprintf('t%d.%d', $$, ++$nodes_made),
		watch_buckets   => $ENV{FENCE_BUCKETS} // 0,
		lease           => '2s',
		clock_margin    => '50ms',
		timeout         => '2s',
		patrol_interval => '100ms',
		patrol_grace    => '500ms');

	_find_installation();
	$default{redis_url} = $redis->url if $redis;
	my $node = PostgreSQL::Test::Cluster->new($name, @{ $option{new} // [] });
	$node->{fence_redis} = $redis;
	$node->init(%{ $option{init} // {} });
	my %all = (%default, %settings);
	my $conf = ($option{preload} // 1) ? "shared_preload_libraries = 'pgcache_fence'\n" : '';
	foreach my $key (sort keys %all)
	{
		(my $quoted = $all{$key}) =~ s/'/''/g;
		$conf .= ($own_setting{$key} ? "pgcache_fence.$key" : $key) . " = '$quoted'\n";
	}
	$node->append_conf('postgresql.conf', $conf);
	return $node unless $option{start} // 1;
	$node->start;
	return $node unless $option{extension} // 1;
	$node->safe_psql('postgres', 'CREATE EXTENSION pgcache_fence');
	wait_open($node) if $option{wait} // 1;
	return $node;
}

# Waits until fence.state shows that state.
sub wait_state
{
	my ($node, $state, $timeout) = @_;
	my ($seen, $reason) = ('', '');

	my $reached = eval {
		poll(
			sub {
				my ($rc, $out) = $node->psql('postgres', 'SELECT state, reason FROM fence.state');
				($seen, $reason) = split /\|/, $out // '', 2 if $rc == 0;
				return $rc == 0 && $seen eq $state;
			},
			"state $state", $timeout);
	};
	croak sprintf("%sseen last: %s (%s)", $@, $seen // '', $reason // '') unless $reached;
	return;
}

sub wait_open
{
	my ($node, $timeout) = @_;

	return wait_state($node, 'OPEN', $timeout);
}

# Waits until no reservation is left. If one stays, fails the test and prints it.
sub no_reservations
{
	my ($node, $timeout, $dbname) = @_;
	my $left = '';

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $none = eval {
		poll(
			sub {
				my ($rc, $out, $err) = $node->psql($dbname // 'postgres', 'SELECT * FROM fence.pending');
				$left = $rc == 0 ? $out : $err;
				return $rc == 0 && $out eq '';
			},
			'no reservations', $timeout // 30);
	};
	ok($none, 'no reservation is left') or diag($left);
	return $none;
}

# Compares all rows, deleted keys and groups of the domain with their fences. None may differ, and each hit must be the
# row as it is now.
sub compare_fences
{
	my ($node, $domain, $dbname) = @_;
	my @wrong = FenceTest::Comparison->new($node, domains => [$domain], dbname => $dbname // 'postgres')->anomalies;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is(join("\n", @wrong), '', "fences of $domain agree with its rows");
}

# The fast read of doc/clients.md, through a server or one of its connections: ('hit', version, payload, token),
# ('miss', permit), 'unarmed', or Redis' error.
sub strong_read
{
	my ($client, $fence) = @_;
	my $connection = $client->can('connection') ? $client->connection : $client;

	strong_send($connection, $fence);
	return strong_take($connection);
}

# The two halves of strong_read on a connection, for tests that do other things between request and reply. more: commands
# to send with the request.
sub strong_send
{
	my ($connection, $fence, @more) = @_;

	return $connection->send_raw(join '', map { FenceTest::Redis::Connection::encoded(@$_) } ['MULTI'], [ 'GET', $fence ],
		[ qw(FCALL_RO fence_token 1), $fence ], ['EXEC'], @more);
}

sub strong_take
{
	my ($connection) = @_;
	my $block = (map { $connection->reply } 1 .. 4)[3];

	return "$block" unless ref $block eq 'ARRAY';
	my ($record, $permit) = @$block;
	return "$permit" if ref $permit;
	return 'unarmed' if $permit eq '';
	my ($head, $payload) = split /\n/, $record // '', 2;
	my ($token, $version) = split / /, $head // '';
	return ('miss', $permit) unless defined $payload && $token eq (split / /, $permit)[0];
	return ('hit', $version, $payload, $token);
}

# The result of a read in one word, which may be from an error: 'hit' if the fast read or the slow read is a hit.
sub strong_word
{
	my ($client, $fence) = @_;
	my ($fast) = strong_read($client, $fence);
	my $slow = $client->attempt(qw(FCALL_RO fence_get 1), $fence);

	return $fast eq 'hit' ? $fast : ref $slow eq 'ARRAY' ? $slow->[0] : "$slow";
}

1;
