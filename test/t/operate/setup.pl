# What people get wrong when they set it up: each gives a clear message, never a crash or a hang, and heals by itself
# once it is put right.
use strict;
use warnings;
use FenceTest;
use FenceTest::Session;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $redis = FenceTest::Redis->start;

# Sets the URL, and waits until the keeper gives a reason that matches.
sub closed_because
{
	my ($node, $url, $reason, $name) = @_;
	my $seen = '';

	$node->append_conf('postgresql.conf', "pgcache_fence.redis_url = '$url'") if defined $url;
	$node->reload;
	my $matches = eval {
		poll(
			sub {
				$seen = $node->safe_psql('postgres', 'SELECT state, reason FROM fence.state');
				return $seen =~ /^CLOSED\|.*$reason/;
			},
			$name, 30);
	};
	ok($matches, $name) or diag("seen: $seen");
	return;
}

subtest 'not preloaded' => sub {
	my $node = new_postgres('bare', $redis, preload => 0, extension => 0);
	my ($rc, undef, $error) = $node->psql('postgres', '\set VERBOSITY verbose' . "\nCREATE EXTENSION pgcache_fence;");

	isnt($rc, 0, 'CREATE EXTENSION fails');
	like($error, qr/55000: pgcache_fence is not loaded/, 'it says why');
	like($error, qr/HINT:  Add pgcache_fence to shared_preload_libraries/, '... and what to do');
	is($node->safe_psql('postgres', 'SELECT 1'), 1, 'the server lives');

	# a database that has the extension, on a server that lost the setting
	$node->append_conf('postgresql.conf', "shared_preload_libraries = 'pgcache_fence'");
	$node->restart;
	$node->safe_psql('postgres',
		'CREATE EXTENSION pgcache_fence; CREATE TABLE t (id int PRIMARY KEY, version int); SELECT fence.attach(\'t\')');
	$node->append_conf('postgresql.conf', "shared_preload_libraries = ''");
	$node->restart;
	foreach my $statement ('INSERT INTO t VALUES (1)', 'SELECT * FROM fence.state', 'SELECT * FROM fence.pending',
		'SELECT * FROM fence.nodes', "SELECT fence.detach('t')", "SELECT fence.attach('t')", "SELECT fence.fence_key('t', '1')",
		"SELECT fence.read('t', '1')", "SELECT fence.audit('t')", "SELECT fence.put('t', '', 1, '', NULL, '1')")
	{
		($rc, undef, $error) = $node->psql('postgres', $statement);
		like($error, qr/pgcache_fence is not loaded/, $statement);
	}
	is($node->safe_psql('postgres', 'SELECT count(*) FROM t'), 0, 'reading the table itself works');
	$node->stop;
};

subtest 'the wrong address, the wrong password, no master' => sub {
	my $node = new_postgres('wrong', $redis, wait => 0, redis_url => 'redis://no-such-host.invalid:6379',
		lease => '500ms', timeout => '500ms');

	closed_because($node, undef, 'could not resolve "no-such-host.invalid"', 'a host that does not exist');
	closed_because($node, 'redis://127.0.0.1:1', '127.0.0.1:1: .*refused', 'a port where nobody listens');
	closed_because($node, 'unix:///no/such/socket', '/no/such/socket: .*No such file', 'a socket that does not exist');

	my $locked = FenceTest::Redis->start(password => 'right');
	closed_because($node, 'redis://127.0.0.1:' . $locked->port, 'NOAUTH', 'a password is needed');
	closed_because($node, 'redis://:mistaken@127.0.0.1:' . $locked->port, 'WRONGPASS|invalid.*password', 'the wrong password');
	my $log = slurp_file($node->logfile);
	unlike($log, qr/LOG: .*pgcache_fence:.*mistaken/, 'our log lines do not tell the password');

	my $old = FenceTest::Redis->start(config => ['rename-command FUNCTION ""']);
	closed_because($node, $old->url, 'has no functions', 'a Redis without functions');

	my $master = FenceTest::Redis->start;
	my $replica = FenceTest::Redis->start(config => [ 'replicaof 127.0.0.1 ' . $master->port ]);
	closed_because($node, $replica->url, 'is a replica', 'a replica');
	like($master->error_of('FCALL', 'fence_hello', 0, 'x', 'a'), qr/not found/, 'nothing was loaded into its master');

	my $newer = FenceTest::Redis->start;
	(my $library = FenceTest::Redis::library_source()) =~ s/LIBRARY_VERSION = '\d+'/LIBRARY_VERSION = '999'/;
	$newer->load_library($library);
	closed_because($node, $newer->url, 'version 999 of the function library', 'a newer library is left alone');

	# with none of these were writes lost or kept
	$node->safe_psql('postgres', 'CREATE TABLE t (id int PRIMARY KEY, version int NOT NULL DEFAULT 0)');
	$node->safe_psql('postgres', "SELECT fence.attach('t')");
	$node->safe_psql('postgres', 'INSERT INTO t VALUES (1); UPDATE t SET version = 1');
	is($node->safe_psql('postgres', "SELECT fence.read('t', '1')"), '{"id": 1, "version": 1}', 'writes and reads go on');
	is($node->safe_psql('postgres', "SELECT (fence.get('t', '1')).status"), 'unarmed', 'get says that fences are closed');

	# an older library is replaced
	my $older = FenceTest::Redis->start;
	($library = FenceTest::Redis::library_source()) =~ s/LIBRARY_VERSION = '\d+'/LIBRARY_VERSION = '0'/;
	$older->load_library($library);
	$node->append_conf('postgresql.conf', "pgcache_fence.redis_url = '" . $older->url . "'");
	$node->reload;
	wait_open($node);
	my $hello = $older->call('FCALL', 'fence_hello', 0, 'x', 'a');
	isnt($hello->[3], '0', 'an older library is replaced');
	poll(sub { $node->safe_psql('postgres', "SELECT (fence.get('t', '1')).status") eq 'miss' }, 'the domain is announced');

	# and back to the first Redis while all is well: closed, and open with another epoch
	my $epoch = $node->safe_psql('postgres', 'SELECT epoch FROM fence.state');
	$node->append_conf('postgresql.conf', "pgcache_fence.redis_url = '" . $redis->url . "'");
	$node->reload;
	poll(sub { $node->safe_psql('postgres', "SELECT state = 'OPEN' AND epoch <> '$epoch' FROM fence.state") eq 't' },
		'another epoch');
	pass('another Redis, another epoch');
	$node->stop;
};

subtest 'settings that are changed again and again' => sub {
	my $node = new_postgres('changed', $redis);
	my $epoch = $node->safe_psql('postgres', 'SELECT epoch FROM fence.state');
	my $begin = time();

	# closings that nobody wanted would wait 0.1 s, 0.2 s, 0.4 s ...: more than 50 s in all
	# the default user takes any password: the same process at the same address, known by another URL
	(my $other = $redis->url) =~ s{//}{//default:any\@};
	foreach my $url (($other, $redis->url) x 4, $other)
	{
		$node->append_conf('postgresql.conf', "pgcache_fence.redis_url = '$url'");
		$node->reload;
		poll(sub { $node->safe_psql('postgres', 'SELECT state, since > pg_conf_load_time() FROM fence.state') eq 'OPEN|t' }, "OPEN with $url");
	}
	cmp_ok(time() - $begin, '<', 45, 'nine changes: each opens at once');
	is($node->safe_psql('postgres', 'SELECT epoch FROM fence.state'), $epoch, 'in the same epoch, as it is the same process');
	$node->stop;
};

subtest 'two clusters, one namespace' => sub {
	my $first = new_postgres('first', $redis, namespace => 'shared');
	my $second = new_postgres('second', $redis, namespace => 'shared', wait => 0);
	my $key = "SELECT fence.fence_key('item', '1')";

	closed_because($second, undef, 'armed by cluster \d+, whose lease runs: two clusters use namespace "shared"', 'the second is refused, and says why');
	like($second->safe_psql('postgres', q(SELECT hint FROM fence.doctor() WHERE finding ~ 'two clusters')),
		qr/pgcache_fence\.namespace of its own/, '... and the doctor what to do');
	is($first->safe_psql('postgres', 'SELECT state FROM fence.state'), 'OPEN', 'the first goes on');

	# the same database, table and key, and the same version: only the rows differ
	foreach my $node ($first, $second)
	{
		$node->safe_psql('postgres', 'CREATE TABLE item (id int PRIMARY KEY, name text, version bigint NOT NULL DEFAULT 0);'
			  . "SELECT fence.attach('item', on_redis_failure => 'bypass'); INSERT INTO item VALUES (1, '" . $node->name . "')");
	}
	isnt($second->safe_psql('postgres', $key), $first->safe_psql('postgres', $key), 'their fences have different names');
	$first->safe_psql('postgres', "SELECT fence.read('item', '1')");
	is($redis->call('FCALL_RO', 'fence_get', 1, $first->safe_psql('postgres', $key))->[0], 'hit', 'the first has cached its row');
	is($redis->call('FCALL_RO', 'fence_get', 1, $second->safe_psql('postgres', $key))->[0], 'unarmed', '... which readers of the second do not get');

	my $name = $first->safe_psql('postgres', $key);
	$first->stop;
	wait_open($second);
	pass('when the first is gone, the second takes over');
	$second->safe_psql('postgres', "SELECT fence.read('item', '1')");
	is($redis->call('FCALL_RO', 'fence_get', 1, $second->safe_psql('postgres', $key))->[0], 'hit', 'it caches its row');
	is($redis->call('FCALL_RO', 'fence_get', 1, $name)->[0], 'unarmed', '... which readers of the first do not get');
	$second->stop;
};

subtest 'two clusters, one namespace: a writer of the second waits once' => sub {
	my $first = new_postgres('owner', $redis, namespace => 'held');
	my $second = new_postgres('refused', $redis, namespace => 'held', wait => 0, on_redis_failure => 'bypass');
	my @stalls;

	closed_because($second, undef, 'armed by cluster', 'the second is refused');
	$second->safe_psql('postgres', "CREATE TABLE item (id int PRIMARY KEY, n int, version bigint NOT NULL DEFAULT 0);
		SELECT fence.attach('item'); INSERT INTO item VALUES (1, 0)");
	my $writer = FenceTest::Session->open($second);
	my $update = 'UPDATE item SET n = n + 1 WHERE id = 1';
	$writer->run($update);				# this one may wait
	my $epoch = $second->safe_psql('postgres', 'SELECT epoch FROM fence.state');
	# four times as long as a lease: an attempt that raises the bound would be seen
	my $end = time() + 8;
	while (time() < $end)
	{
		my $start = time();
		$writer->run($update);
		my $took = time() - $start;
		push @stalls, $took if $took > 1;
	}
	is(scalar(@stalls), 0, 'no later commit waits for a lease') or diag("waits: @stalls");
	is($second->safe_psql('postgres', 'SELECT epoch FROM fence.state'), $epoch, 'no epoch is begun for nothing');
	is($first->safe_psql('postgres', 'SELECT state FROM fence.state'), 'OPEN', 'the first goes on');
	$writer->close;
	$first->stop;
	wait_open($second);
	pass('when the first is gone, the second takes over');
	$second->stop;
};

subtest 'a table is served as soon as fence.attach has committed' => sub {
	my $node = new_postgres('attaching', $redis);
	my @answers;

	foreach my $i (1 .. 20)
	{
		# at once, as somebody who pastes does
		push @answers, $node->safe_psql('postgres', "CREATE TABLE t$i (id int PRIMARY KEY, version int);"
			. "SELECT '-' FROM fence.attach('t$i'); SELECT status FROM fence.get('t$i', '1')") =~ s/-\n//r;
	}
	is("@answers", join(' ', ('miss') x 20), 'no read finds it unarmed');
	# taken back, it is not announced
	$node->safe_psql('postgres', <<'SQL');
CREATE TABLE u (id int PRIMARY KEY, version int);
BEGIN; SAVEPOINT s; SELECT fence.attach('u'); ROLLBACK TO s; CREATE TABLE v (id int PRIMARY KEY, version int);
SELECT fence.attach('v'); COMMIT;
SQL
	is($node->safe_psql('postgres', "SELECT status FROM fence.get('v', '1')"), 'miss', 'attached behind a savepoint that was rolled back');
	is($redis->call(qw(FCALL_RO fence_get 1), $node->safe_psql('postgres', "SELECT fence.fence_key('v', '1')") =~ s/\.v:/.u:/r)->[0],
		'unarmed', 'and what was rolled back is not announced');
};

subtest 'who pastes need not wait: wait_open, and what the doctor says of a start' => sub {
	my $node = new_postgres('pasted', $redis, extension => 0, lease => '3s');

	is($node->safe_psql('postgres', "CREATE EXTENSION pgcache_fence; SELECT fence.wait_open()"), 'OPEN', 'behind CREATE EXTENSION');
	$node->stop('immediate');
	$node->start;
	my $doctor = $node->safe_psql('postgres', "SELECT severity, finding FROM fence.doctor() WHERE finding ~ 'has just started|fences are'");
	like($doctor, qr/^info\|the server has just started/, 'while the keeper waits for the leases of the last run, doctor says so');
	is($node->safe_psql('postgres', "SELECT fence.wait_open('1 ms')"), 'CLOSED', 'wait_open waits for no longer than it is told');
	is($node->safe_psql('postgres', "SELECT fence.wait_open('1 min')"), 'OPEN', 'and no longer than it takes');
};

subtest 'tables that are attached and dropped again and again' => sub {
	my $node = new_postgres('again', $redis);
	my $epoch = $node->safe_psql('postgres', "CREATE TABLE stays (id int PRIMARY KEY, version int); SELECT fence.attach('stays'); SELECT epoch FROM fence.state") =~ s/.*\n//r;
	my %seen;

	my $once = "CREATE TABLE goes (id int PRIMARY KEY, version int); SELECT '-' FROM fence.attach('goes'); DROP TABLE goes;"
	  . "SELECT status FROM fence.get('stays', '1');";
	$seen{$_}++ foreach split /\n/, $node->safe_psql('postgres', $once x 500);
	is($seen{unarmed} // 0, 0, 'the other table is served all the time') or diag(explain(\%seen));
	is($node->safe_psql('postgres', 'SELECT epoch FROM fence.state'), $epoch, 'the epoch goes on');
};

subtest 'policy error in a database that was cloned' => sub {
	my $node = new_postgres('cloned', $redis, extension => 0, wait => 0);

	$node->safe_psql('postgres', 'CREATE DATABASE pattern');
	$node->safe_psql('pattern', 'CREATE EXTENSION pgcache_fence');
	poll(sub { $node->safe_psql('pattern', 'SELECT state FROM fence.state') eq 'OPEN' }, 'fences to open');
	$node->safe_psql('pattern', "CREATE TABLE t (id int PRIMARY KEY, version int); SELECT fence.attach('t', on_redis_failure => 'error')");
	$node->safe_psql('postgres', 'ALTER DATABASE pattern ALLOW_CONNECTIONS false IS_TEMPLATE true');
	$node->restart;
	$node->safe_psql('postgres', 'CREATE DATABASE clone TEMPLATE pattern');
	my ($rc, undef, $error) = $node->psql('clone', 'INSERT INTO t VALUES (1)');
	is($rc, 0, 'the first INSERT works') or diag($error);
};

done_testing();
