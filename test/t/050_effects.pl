# 050_effects.pl
#    Effects: what Redis holds before, at and after the end of a transaction; queues; a Redis that is away; a cluster.
#    What happens under kill -9 and lost messages is shown by test/history/test_effects.py.

use strict;
use warnings;

use FenceTest;
use FenceTest::Cluster;
use FenceTest::Session;
use Test::More;

my $redis = FenceTest::Redis->start;
my $node = new_postgres('main', $redis, max_prepared_transactions => 5, timeout => '500ms');
my $sql = FenceTest::Session->open($node);
my $ns = $sql->run('SHOW pgcache_fence.namespace');

# Keys of the namespace that are left: holds and shadows.
sub left { return [ sort grep { /^\Q$ns\E:[hs]:/ } @{ $redis->call('KEYS', '*') } ]; }

sub settles
{
	my ($condition, $what) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return ok(eval { poll($condition, $what, 60) }, $what);
}

sub nothing_left
{
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return settles(sub { !@{ left() } }, 'nothing is left') || diag("@{ left() }");
}

subtest 'readers see nothing before COMMIT' => sub {
	$redis->call('SET', 'value', 'old', 'PX', 600_000);
	$redis->call('SET', 'page', 'old page', 'PX', 600_000);
	$sql->run($_) foreach 'BEGIN', "SELECT fence.counter_add('stock', 3)", "SELECT fence.take('value')",
	  "SELECT fence.publish('page', repeat('x', 600000))", "SELECT fence.append('log', 'entry')",
	  "SELECT fence.once('request')", "SELECT fence.enqueue('{q}', 'job')", 'SELECT fence.commit_marker()';
	is_deeply($redis->call('MGET', 'stock', 'value', 'page', 'request'), [ undef, 'old', 'old page', undef ], 'values are as before');
	is($redis->call('EXISTS', 'log', '{q}'), 0, 'logs and queues too');
	is(scalar(grep { /:h:/ } @{ left() }), 7, 'a hold for each key');
	$sql->run('COMMIT');
	settles(sub { $redis->call('EXISTS', 'log', '{q}') == 2 }, 'they are there after COMMIT');
	is_deeply($redis->call('MGET', 'stock', 'value', 'request'), [ 3, undef, 'null' ], 'values');
	is($redis->call('STRLEN', 'page'), 600000, 'the page');
	cmp_ok($redis->call('PTTL', 'page'), '>', 500_000, 'it keeps its time to live');
	like($redis->call('LINDEX', 'log', 0), qr/^\d+\.[0-9a-f]{8} \d+ entry$/, 'an entry has the stamp');
	nothing_left();
	$sql->run("SELECT fence.publish('page', 'x', '1 min')");
	settles(sub { $redis->call('GET', 'page') eq 'x' }, 'published again');
	cmp_ok($redis->call('PTTL', 'page'), '<=', 60_000, 'with another time to live');
	$sql->run("SELECT fence.publish('page', 'y', '0')");
	settles(sub { $redis->call('GET', 'page') eq 'y' }, 'and again');
	is($redis->call('PTTL', 'page'), -1, 'with none');
	$sql->run("SELECT fence.publish_hash('hash', (SELECT jsonb_object_agg('f' || g, g) FROM generate_series(1, 1000) g))");
	settles(sub { $redis->call('HLEN', 'hash') == 1000 }, 'a large hash');
};

subtest 'durable: its row and its message apply it once' => sub {
	foreach my $try (1 .. 5)
	{
		$sql->run("SELECT fence.append('durable', 'x', durable => true), fence.counter_add('durable count', 2, durable => true)");
		settles(sub { $sql->run('SELECT count(*) FROM fence.outbox') == 0 }, 'the row goes');
		is_deeply([ $redis->call('LLEN', 'durable'), $redis->call('GET', 'durable count') ], [ $try, 2 * $try ], 'once');
	}
	nothing_left();
};

subtest 'two-phase commit' => sub {
	$redis->call('FLUSHALL');
	$sql->run($_) foreach 'BEGIN', "SELECT fence.counter_add('stock', 3)", "PREPARE TRANSACTION 'a'";
	$sql->run($_) foreach 'BEGIN', "SELECT fence.counter_add('stock', 4)", "PREPARE TRANSACTION 'b'";
	$sql->error_of("SELECT fence.counter_add('stock', 1, max => 7)");
	like($sql->error_of("SELECT fence.counter_add('stock', 1, max => 7)"), qr/^23514/, 'what is prepared counts');
	$sql->run("COMMIT PREPARED 'a'");
	$sql->run("ROLLBACK PREPARED 'b'");
	settles(sub { ($redis->call('GET', 'stock') // 0) == 3 }, 'the one is applied');
	nothing_left();
};

subtest 'a hold of another cluster' => sub {
	my $hold = '12345.700.0000abcd.1';

	is_deeply($redis->call('FCALL', 'fence_effect', 1, 'theirs', $ns, $hold, '12345.700.0000abcd', '', 'counter', 1, 5, '', ''),
		[ 'held', 5 ], 'is made');
	my $monitor = $redis->connect;
	$monitor->call('MONITOR');
	for (my $rounds = 0; $rounds < 3;) { $rounds++ if $monitor->reply =~ /"fence_effects"/; }
	is(scalar @{ left() }, 1, 'the patrol leaves it alone');
	is_deeply($redis->call('FCALL', 'fence_effects_end', 0, $ns, 'undo', 'theirs', $hold), ['ended'], 'undone');
	nothing_left();
};

subtest 'hostile callers' => sub {
	my $hold = '12345.700.0000abcd.1';
	my $top  = '12345.700.0000abcd';

	$redis->call('SET', "$ns:x", 'ours');
	foreach my $key ('', "$ns:x", "$ns:f:1.t:{k}", 'a}b', 'x' x 1025)
	{
		like($redis->error_of('FCALL', @$_), qr/no effect may touch|malformed/, "$_->[0]: " . substr $key, 0, 30)
		  foreach [ 'fence_effect', 1, $key, $ns, $hold, $top, '', 'set', 3, 'set', 'x', '', '', '' ],
		  [ 'fence_effect', 2, '{a}', $key, $ns, $hold, $top, '', 'transfer', 2, $key, 1, '', '' ],
		  [ 'fence_effect_piece', 1, $key, $ns, $hold, 0, 'x' ],
		  [ 'fence_effects_end', 0, $ns, 'apply', $key, $hold ],
		  [ 'fence_effect_redo', 1, $key, $ns, $hold, 5, 'set', 'set', 'x', '' ],
		  [ 'fence_effects_forget', 0, $ns, $key, $hold ];
	}
	like($redis->error_of('FCALL', @$_), qr/expected|gone/, "$_->[0] without what it needs")
	  foreach ['fence_effect', 0], [ 'fence_effect', 1, 'k', $ns, 'hold', $top, '', 'set', 0 ],
	  [ 'fence_effect', 1, 'k', $ns, $hold, $top, '', 'nonsense', 0 ], [ 'fence_effect', 1, 'k', $ns, $hold, $top, '', 'received', 0 ],
	  [ 'fence_effect_piece', 1, 'k', $ns, $hold, 0, 'x' ], [ 'fence_effect_piece', 1, 'k', $ns, $hold, -1, 'x' ],
	  ['fence_effects_end', 0], [ 'fence_effects_end', 0, $ns, 'maybe', 'k', $hold ], [ 'fence_effect_redo', 1, 'k' ],
	  [ 'fence_effects', 0, $ns, 'x', 1, '' ], [ 'fence_effects', 0, 'a b', 0, 1, '' ], [ 'fence_queues', 0, '*' ],
	  ['fence_effect_read', 0], [ 'fence_log_stamps', 1, 'k', 0 ];
	is_deeply($redis->call('FCALL', 'fence_effects_end', 0, $ns, 'apply', 'k', $hold), ['ended'], 'a hold that never was');
	is($redis->call('GET', "$ns:x"), 'ours', 'nothing was touched');
	is($redis->call('EXISTS', 'k', '{a}'), 0, 'nothing was made');
	$redis->call('DEL', "$ns:x");
	nothing_left();
};

subtest 'a key that changed its type' => sub {
	$sql->run($_) foreach 'BEGIN', "SELECT fence.counter_add('turned', 3)", "SELECT fence.counter_add('other', 3)";
	$redis->call('RPUSH', 'turned', 'x');
	$sql->run('COMMIT');
	settles(sub { ($redis->call('GET', 'other') // 0) == 3 }, 'other effects of the transaction are applied');
	is(scalar @{ left() }, 1, 'its own waits');
	$redis->call('DEL', 'turned');
	settles(sub { ($redis->call('GET', 'turned') // 0) == 3 }, 'until it can be applied');
	nothing_left();
};

subtest 'queues' => sub {
	$sql->run("SELECT fence.enqueue('jobs', 'job $_', '300 ms')") foreach 1 .. 3;
	settles(sub { $redis->call('LLEN', 'jobs') == 3 }, 'jobs are there');
	my @taken = map { $redis->call('LMOVE', 'jobs', '{jobs}:processing', 'RIGHT', 'LEFT') } 1 .. 2;
	like($taken[0], qr/ job 1$/, 'the oldest first');
	is($redis->call('LREM', '{jobs}:processing', 1, $taken[0]), 1, 'one is done');
	settles(sub { $redis->call('LLEN', 'jobs') == 2 }, 'the other one comes back');
	is($redis->call('LINDEX', 'jobs', -1), $taken[1], 'and is the next');
	is($redis->call('LREM', '{jobs}:processing', 1, $taken[1]), 0, 'who had it learns that he has it no more');
	$redis->call('LREM', '{jobs}:processing', 1, $redis->call('LMOVE', 'jobs', '{jobs}:processing', 'RIGHT', 'LEFT')) foreach 1 .. 2;
	settles(sub { !grep { /:q:\{jobs/ } @{ $redis->call('KEYS', "$ns:q:*") } }, 'an empty queue is forgotten');
};

subtest 'a process that does not remember' => sub {
	my $other = FenceTest::Session->open($node);

	$sql->run("SELECT fence.enqueue('again', 'job', '200 ms')");
	$other->run($_) foreach 'BEGIN', "SELECT fence.counter_add('again stock', -1)", "PREPARE TRANSACTION 'c'";
	settles(sub { $redis->call('LLEN', 'again') == 1 }, 'a job');
	$redis->call('LMOVE', 'again', '{again}:processing', 'RIGHT', 'LEFT');
	$redis->load_library;
	wait_open($node);
	$sql->run("COMMIT PREPARED 'c'");
	settles(sub { ($redis->call('GET', 'again stock') // 0) == -1 }, 'holds are found again');
	settles(sub { $redis->call('LLEN', 'again') == 1 }, 'and queues');
	nothing_left();
};

subtest 'Redis is away' => sub {
	$redis->stop;
	like($sql->error_of("SELECT fence.counter_add('away', 1)"), qr/^08006: could not hold an effect in Redis/, 'an error, at once');
	like($sql->error_of("SELECT fence.once('away', durable => true)"), qr/^08006/, 'also for what has to be checked');
	$sql->run($_) foreach 'BEGIN', "SELECT fence.append('away log', 'x', durable => true)",
	  "SELECT fence.publish('away page', repeat('x', 600000), durable => true)",
	  "SELECT fence.enqueue('away queue', 'x', durable => true)", 'COMMIT';
	$sql->run($_) foreach 'BEGIN', "SELECT fence.append('away log', 'y', durable => true)", 'ROLLBACK';
	is($sql->run('SELECT count(*) FROM fence.outbox'), 3, 'what is durable waits');
	$redis->restart;
	settles(sub { $sql->run('SELECT count(*) FROM fence.outbox') == 0 }, 'until Redis is back');
	is_deeply([ $redis->call('LLEN', 'away log'), $redis->call('STRLEN', 'away page'), $redis->call('LLEN', 'away queue') ],
		[ 1, 600000, 1 ], 'once each');
	nothing_left();
};

subtest 'an earlier xid that is issued again' => sub {
	my $xid = $sql->run('SELECT pg_current_xact_id()');
	my $system = $sql->run('SELECT system_identifier FROM pg_control_system()');

	# committed now, but another start's transaction had the number: it never reached the disk
	is_deeply($redis->call('FCALL', 'fence_effect', 1, 'reissued', $ns, "$system.$xid.0000abcd.1", "$system.$xid.0000abcd", '', 'counter',
			1, 5, '', ''), [ 'held', 5 ], 'a hold of a lost transaction');
	nothing_left();
	is($redis->call('GET', 'reissued'), undef, 'is not applied');
};

subtest 'a hold that arrives after its subtransaction was rolled back' => sub {
	my $system = $sql->run('SELECT system_identifier FROM pg_control_system()');

	$sql->run('CREATE TABLE xid (x text)');
	foreach my $end ('ROLLBACK TO s', 'RELEASE s')
	{
		$sql->run($_) foreach 'BEGIN', 'SAVEPOINT s', "INSERT INTO xid VALUES ('x')";
		my $sub = $sql->run("SELECT xmin FROM xid WHERE x = 'x'");
		$sql->run($end);
		my $top = $sql->run("SELECT fence.append('late log', 'x')");
		$sql->run('COMMIT');
		is_deeply($redis->call('FCALL', 'fence_effect', 1, 'late', $ns, "$system.$sub." . ($top =~ s/.*\.//r) . '.9', "$system.$top", '',
				'counter', 1, 5, '', ''), [ 'held', 5 ], 'it is held');
		nothing_left();
		is($redis->call('GET', 'late'), $end =~ /^ROLLBACK/ ? undef : 5, "after $end");
	}
};

subtest 'cluster' => sub {
	my $cluster = FenceTest::Cluster->start(3);
	my $there = new_postgres('cluster', undef, redis_url => $cluster->url);
	my $session = FenceTest::Session->open($there);
	my $space = $session->run('SHOW pgcache_fence.namespace');
	my $router = $cluster->router;
	my $many = 60;
	my $left = sub { return scalar map { @{ $_->call('KEYS', "$space:[hs]:*") } } $cluster->masters; };
	my $sum = sub { my $n = 0; $n += $router->call('GET', "c$_") // 0 foreach 1 .. $many; return $n; };

	$session->run("SELECT fence.counter_add('c' || g, 1) FROM generate_series(1, $many) g");
	settles(sub { $sum->() == $many }, 'effects in many slots');
	$session->run($_) foreach 'BEGIN', "SELECT fence.counter_add('c' || g, 1) FROM generate_series(1, $many) g", 'ROLLBACK';
	$session->run($_) foreach 'BEGIN', 'SAVEPOINT s', "SELECT fence.counter_add('c' || g, 1) FROM generate_series(1, $many) g",
	  'ROLLBACK TO s', "SELECT fence.append(ARRAY['l1', 'l2', 'l3', 'l4', 'l5'], 'x')", 'COMMIT';
	settles(sub { 5 == grep { $router->call('LLEN', "l$_") == 1 } 1 .. 5 }, 'logs in several slots');
	is($session->run("SELECT fence.latest_common(ARRAY['l1', 'l2', 'l3', 'l4', 'l5']) IS NOT NULL"), 't', 'agree');
	like($session->error_of("SELECT fence.transfer('c1', 'c2', 1)"), qr/^22023: counters .* are not in one slot/, 'transfers need a slot');
	$session->run("SELECT fence.transfer('{t}1', '{t}2', 1, NULL)");
	settles(sub { ($router->call('GET', '{t}2') // 0) == 1 }, 'transfer');
	settles(sub { $left->() == 0 }, 'nothing is left');
	is($sum->(), $many, 'the sum');

	# the slot moves away while an effect is held: the letter meets the wrong process, the patrol finds it at the right one
	my ($to) = grep { $_ != $router->server('c1') } $cluster->masters;
	$session->run($_) foreach 'BEGIN', "SELECT fence.counter_add('c1', 10)";
	$cluster->move_slots($to, $session->run("SELECT fence.key_slot('c1')"));
	$session->run('COMMIT');
	$router = $cluster->router;
	settles(sub { ($router->call('GET', 'c1') // 0) == 11 }, 'a slot that moved meanwhile');
	settles(sub { $left->() == 0 }, 'nothing is left there');
};

done_testing();
