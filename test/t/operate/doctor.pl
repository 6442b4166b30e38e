# fence.doctor: what it finds in a server and in Redis, each caused once. What it finds in tables is in sql/doctor.sql.
# And fence.explain where fences are not open.

use strict;
use warnings;

use FenceTest;
use FenceTest::Session;
use Test::More;

my $redis = FenceTest::Redis->start(config => [ 'maxmemory 100mb', 'maxmemory-policy allkeys-lru' ]);
my $node = new_postgres('main', $redis, lease => '4s', timeout => '1900ms', max_worker_processes => 16);
my $sql = FenceTest::Session->open($node);

# Findings of that severity (a pattern), one a line.
sub findings
{
	my ($severity) = @_;

	return $sql->run("SELECT severity || ': ' || finding FROM fence.doctor() WHERE severity ~ '$severity'");
}

# Waits for the finding; it must have a hint.
sub finds
{
	my ($severity, $pattern, $name) = @_;
	my $seen = '';

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $found = eval { poll(sub { $seen = findings('.'); $seen =~ /^$severity: .*$pattern/m }, $name); };
	return ok($found, "found: $name") || diag($seen);
}

# Waits until nothing is wrong. What was counted before is forgotten; on a loaded machine a heartbeat may be slow again.
sub well
{
	my ($name) = @_;
	my $seen = '';

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $well = eval { poll(sub { $sql->run('SELECT fence.reset_metrics()'); ($seen = findings('warning|error')) eq '' }, 'nothing to find'); };
	return ok($well, $name) || diag($seen);
}

sub set { my (@settings) = @_; $sql->run("ALTER SYSTEM $_") foreach @settings; $sql->run('SELECT pg_reload_conf()'); return; }

# ---------------------------------------------------------------------------------------------------------------------

well('a new installation has nothing wrong');
ok(
	eval {
		poll(
			sub {
				$sql->run('SELECT fence.reset_metrics()');
				return $sql->run("SELECT count(*) FROM fence.doctor() WHERE severity = 'ok'") == 22;
			},
			'22 checks');
	},
	'every check says that it found nothing');
is($sql->run('SELECT count(*) FROM fence.doctor() WHERE (hint IS NULL) <> (severity = $$ok$$)'), 0, 'nothing has a hint but findings');

subtest 'settings' => sub {
	set('SET pgcache_fence.timeout = 2500');
	finds('warning', 'timeout.*more than half of', 'a timeout too long for the lease');
	set('RESET pgcache_fence.timeout', 'SET pgcache_fence.audit_rate = 0');
	finds('warning', 'audit_rate is 0', 'no audit');
	set('RESET pgcache_fence.audit_rate', 'SET pgcache_fence.tombstone_retention = 10');
	finds('info', 'tombstone_retention', 'tombstones that hardly stay');
	set('RESET pgcache_fence.tombstone_retention', "SET pgcache_fence.databases = 'another'");
	finds('error', 'database "postgres" is not served', 'a database that is not served');
	set('RESET pgcache_fence.databases');
	wait_open($node);
	well('all set right');
};

subtest 'Redis' => sub {
	$redis->call('CONFIG', 'SET', 'maxmemory-policy', 'noeviction');
	finds('warning', 'noeviction', 'a policy that refuses writes');
	$redis->call('CONFIG', 'SET', 'maxmemory', '0');
	finds('info', 'has no maxmemory', 'no limit of memory');
	$redis->call('CONFIG', 'SET', 'maxmemory', '100mb');
	$redis->call('CONFIG', 'SET', 'maxmemory-policy', 'allkeys-lru');
	$redis->call('CONFIG', 'SET', 'requirepass', 'secret');
	finds('error', 'cannot be reached from this backend.*NOAUTH|does not answer INFO.*NOAUTH', 'a password that we do not know');
	unlike($sql->run('SELECT string_agg(finding || hint, $$ $$) FROM fence.doctor()'), qr/secret/, 'which is not told');
	$redis->disconnect;
	$redis->{password} = 'secret';
	$redis->call('CONFIG', 'SET', 'requirepass', '');
	$redis->{password} = undef;
	$redis->disconnect;
	wait_open($node);
	well('Redis is set up well');
};

subtest 'the keeper' => sub {
	my $keeper = sub { $sql->run("SELECT pid FROM pg_stat_activity WHERE backend_type = 'pgcache_fence keeper'") };
	my $source = FenceTest::Redis->library_source;

	# with the keeper stopped nobody puts the library right
	my $pid = $keeper->();
	kill 'STOP', $pid;
	$source =~ s/LIBRARY_VERSION = '\d+'/LIBRARY_VERSION = '0'/ or die;
	$redis->call('FUNCTION', 'LOAD', 'REPLACE', $source);
	finds('warning', 'has version 0 of the function library', 'an old library');
	$redis->call('FUNCTION', 'FLUSH');
	finds('error', 'does not have the function library', 'no library');
	kill 'CONT', $pid;
	wait_open($node);

	foreach my $worker (qw(keeper patrol courier))
	{
		$sql->run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'pgcache_fence $worker'");
		finds('error', "the $worker is not running", "no $worker");
	}
	wait_open($node);
	well('everybody is back');
};

subtest 'a slow heartbeat' => sub {
	$redis->pause;
	poll(sub { $sql->run("SELECT lease_left < interval '1.5 s' FROM fence.state") eq 't' }, 'a heartbeat that hangs');
	$redis->resume;
	finds('warning|error', 'the slowest heartbeat took', 'a heartbeat that took long for its lease');
	wait_open($node);
	well('forgotten after a reset');
};

subtest 'Redis gone' => sub {
	$sql->run('CREATE TABLE item (id int PRIMARY KEY, version bigint NOT NULL DEFAULT 0)');
	$sql->run('INSERT INTO item VALUES (1)');
	$sql->run("SELECT fence.attach('item')");
	$redis->stop;
	$sql->run('UPDATE item SET id = 1');
	finds('error', 'fences are CLOSED: ', 'closed fences with their reason');
	finds('error', 'cannot be reached from this backend', 'no Redis');
	finds('warning', '1 transaction\(s\) committed without reservations', 'a transaction that went without');
	my $explained = $sql->run("SELECT topic || ': ' || finding FROM fence.explain('item', '1')");
	like($explained, qr/^answer: unarmed: fences are CLOSED; readers go to PostgreSQL$/m, 'explain says so');
	like($explained, qr/^state: CLOSED since .*: .*\w/m, 'and why');
	$redis->restart;
	wait_open($node);
	poll(sub { $sql->run("SELECT finding FROM fence.explain('item', '1') WHERE topic = 'answer'") =~ /^miss/ }, 'a miss');
	well('Redis is back');
};

subtest 'effects' => sub {
	my $ns = $sql->run('SHOW pgcache_fence.namespace');
	my @theirs = ('12345.700.0000abcd.1', '12345.700.0000abcd');

	$redis->call('FCALL', 'fence_effect', 1, 'theirs', $ns, @theirs, '', '', 'counter', 1, 5, '', '', '');
	finds('warning', '1 effect\(s\) in Redis are of another PostgreSQL cluster', 'another cluster');
	$redis->call('FCALL', 'fence_effects_end', 0, $ns, 'undo', 'theirs', $theirs[0]);
	$sql->run($_) foreach 'BEGIN', "SELECT fence.counter_add('turned', 1, durable => true)";
	$redis->call('RPUSH', 'turned', 'x');
	$sql->run('COMMIT');
	finds('warning', '1 effect\(s\) of kind counter \(committed\) have not been settled', 'a key that changed its type');
	finds('warning', '1 durable effect\(s\) have waited in fence.outbox', 'and its row');
	finds('warning', 'may evict the holds of effects', 'a policy that evicts what has no time to live');
	$redis->call('DEL', 'turned');
	well('all applied');
};

subtest 'a replica' => sub {
	$redis->call('REPLICAOF', '127.0.0.1', '1');
	finds('error', 'is a replica', 'a replica');
	$redis->call('REPLICAOF', 'NO', 'ONE');
	wait_open($node);
	well('a master again');
};

# What is logged: one line for a state and its reason, not one for each try; the same of what the patrol cannot do.
subtest 'no storm in the log' => sub {
	my $offset = -s $node->logfile;

	$redis->stop;
	wait_state($node, 'CLOSED');
	my ($tries, $started) = (0, time());
	poll(sub { $sql->run('SELECT reason FROM fence.state'); ++$tries >= 300 }, 'a while');
	my @lines = grep { /pgcache_fence: CLOSED/ } split /\n/, PostgreSQL::Test::Utils::slurp_file($node->logfile, $offset);
	cmp_ok(scalar @lines, '>=', 1, 'a line');
	my %of;
	$of{ s/.*pgcache_fence: //r }++ foreach @lines;
	my $most = 1 + (time() - $started) / 10;
	is(join(', ', grep { $of{$_} > $most } sort keys %of), '', 'none again within ten seconds');
	$redis->restart;
	wait_open($node);

	# the table of detached reservations is locked: nobody can tell whether they stand
	my $locker = FenceTest::Session->open($node);
	my ($epoch, $fence, $xid) = split /\|/, $sql->run("SELECT epoch, fence.fence_key('item', '1'), pg_current_xact_id() FROM fence.state");
	$locker->run('BEGIN; LOCK TABLE fence.reservation');
	$offset = -s $node->logfile;
	$started = time();
	cmp_ok($redis->call('FCALL', 'fence_write', 0, $sql->run('SHOW pgcache_fence.namespace') . " $epoch", sprintf('%s.%08x.1', $xid, $_), 1, $fence), '>', 0,
		'planted')
	  foreach 1 .. 20;
	my $passed_over = sub { grep { s/.*the patrol skips (.*?): .*/$1/ } split /\n/, PostgreSQL::Test::Utils::slurp_file($node->logfile, $offset) };
	poll(sub { grep { $_ eq $fence } $passed_over->() }, 'a line about what the patrol passes over');
	my $monitor = $redis->connect;
	$monitor->call('MONITOR');
	for (my $rounds = 0; $rounds < 20; $rounds++) { 1 until $monitor->reply =~ /"fence_pending"/; }
	%of = ();
	$of{$_}++ foreach $passed_over->();
	$most = 1 + (time() - $started) / 10;
	is(join(', ', grep { $of{$_} > $most } sort keys %of), '', 'none again within ten seconds, however many there are');
	is($redis->call('FCALL_RO', 'fence_get', 1, $fence)->[0], 'pending', 'what cannot be asked keeps its reservation');
	$locker->run('ROLLBACK');
	$locker->close;
	no_reservations($node);
};

# In a Redis whose clock steps; the library of test/history stands between it and the clock.
subtest 'a clock that steps' => sub {
	my $dir = PostgreSQL::Test::Utils::tempdir;
	my $source = "$TOP/test/history/step_clock.c";

	plan skip_all => 'no compiler' if system("cc -shared -fPIC -O1 -o '$dir/clock.so' '$source' -ldl >/dev/null 2>&1") != 0;
	open my $offset, '+>', "$dir/offset" or die $!;
	syswrite $offset, pack('q', 0);
	local $ENV{STEP_CLOCK_FILE} = "$dir/offset";
	my $stepping = do { local $ENV{LD_PRELOAD} = "$dir/clock.so"; FenceTest::Redis->start; };
	set("SET pgcache_fence.redis_url = '" . $stepping->url . "'");
	poll(sub { $sql->run('SELECT address FROM fence.nodes') =~ /:@{[$stepping->port]}$/ }, 'the other Redis');
	wait_open($node);
	$sql->run('SELECT fence.reset_metrics()');
	is(findings('error'), '', 'nothing before');
	my $renewed = sub {
		my $left = -1;
		# it falls until the next answer is here
		poll(sub { my $former = $left; $left = $sql->run('SELECT extract(epoch FROM lease_left) FROM fence.nodes'); return $former >= 0 && $left > $former },
			'an answer');
	};
	# the keeper asks every second: next while nobody answers, and then it does not listen for a while
	my $keeper = $sql->run("SELECT pid FROM pg_stat_activity WHERE backend_type = 'pgcache_fence keeper'");
	poll(sub {
			$renewed->();
			$stepping->pause;
			select undef, undef, undef, 1.15;
			kill STOP => $keeper;
			$stepping->resume;
			select undef, undef, undef, 0.25;
			kill CONT => $keeper;
			$renewed->();
			return $sql->run("SELECT value > 0.25 FROM fence.metrics WHERE name = 'cache_fence_heartbeat_worst_seconds'") eq 't';
		}, 'a slow answer');
	$renewed->();
	is(findings('error'), '', 'a slow answer is no step');
	sysseek $offset, 0, 0;
	syswrite $offset, pack('q', 1_000_000);
	finds('error', 'clock of a Redis node has stepped by (9[0-9][0-9]|10[0-9][0-9])', 'a step of a second');
	like(PostgreSQL::Test::Utils::slurp_file($node->logfile), qr/the clock of Redis at \S+ stepped by (9\d\d|10\d\d) ms/, 'and a line in the log');
	set('RESET pgcache_fence.redis_url');
};

$sql->close;
$node->stop('fast');

subtest 'not preloaded' => sub {
	$node->append_conf('postgresql.conf', "shared_preload_libraries = ''\n");
	$node->start;
	$sql = FenceTest::Session->open($node);
	is(findings('error'), 'error: the library was not loaded at server start: nothing is fenced, and writes to fenced tables fail', 'found');
	$sql->close;
	$node->stop('fast');
};

# What stays has its slot from the start. Parallel queries may take 8 of what is left.
subtest 'few background workers' => sub {
	foreach my $case ([ 4, 'warning', 'max_worker_processes is 4' ], [ 8, 'info', 'parallel queries may take every free background worker slot' ],
		[ 15, 'ok', 'there are enough background workers' ])
	{
		$node->append_conf('postgresql.conf', "shared_preload_libraries = 'pgcache_fence'\nmax_worker_processes = $case->[0]\n");
		$node->start;
		$sql = FenceTest::Session->open($node);
		my $seen = '';
		ok(eval { poll(sub { $seen = findings('.'); $seen =~ /^$case->[1]: $case->[2]/m }, 'it'); }, "$case->[0]: $case->[1]") || diag($seen);
		$sql->close;
		$node->stop('fast');
	}
};

done_testing();
