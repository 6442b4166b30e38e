# Effects: what Redis holds before, at and after the end of a transaction; queues; a Redis that is away; a cluster.
# What happens under kill -9 and lost messages is shown by test/history/test_effects.py.

use strict;
use warnings;

use FenceTest;
use FenceTest::Cluster;
use FenceTest::Session;
use Test::More;
use Time::HiRes qw(time);

my $redis = FenceTest::Redis->start;
my $node = new_postgres('main', $redis, max_prepared_transactions => 5);
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

sub held { return scalar grep { /^\Q$ns\E:h:/ } @{ left() }; }

sub counted
{
	my ($operation, $result) = @_;

	return $sql->run("SELECT sum(value) FROM fence.metrics WHERE name = 'cache_fence_effects_total' "
		  . "AND labels @> '{\"operation\": \"$operation\", \"result\": \"$result\"}'");
}

# Seconds that a statement takes in the session, and its error, if it has one.
sub timed
{
	my ($statement) = @_;
	my $started = time();
	my $error = $sql->error_of($statement);

	return (time() - $started, $error);
}

# What Redis is told of effects while the statements run, up to the end of their transaction: [ function, argument, ... ].
sub messages_of
{
	my (@statements) = @_;
	my $monitor = $redis->connect;
	my @messages;

	$monitor->call('MONITOR');
	$sql->run($_) foreach @statements;
	while (!@messages || $messages[-1][0] ne 'fence_effects_end')
	{
		my $line = $monitor->reply;
		my @words = map { s/\\(.)/$1/gr } $line =~ /"((?:[^"\\]++|\\.)*)"/g;

		push @messages, [ @words[ 1 .. $#words ] ] if lc($words[0]) eq 'fcall' && $words[1] =~ /^fence_effect(s_end|_piece)?$/;
	}
	return @messages;
}

subtest 'readers see nothing before COMMIT' => sub {
	$redis->call('SET', 'value', 'old', 'PX', 600_000);
	$redis->call('SET', 'page', 'old page', 'PX', 600_000);
	$sql->run($_) foreach 'BEGIN', "SELECT fence.counter_add('stock', 3)", "SELECT fence.take('value')",
	  "SELECT fence.publish('page', repeat('x', 600000))", "SELECT fence.append('log', 'entry')",
	  "SELECT fence.once('request')", "SELECT fence.enqueue('{q}', 'job')", 'SELECT fence.commit_marker()';
	is_deeply($redis->call('MGET', 'stock', 'value', 'page', 'request'), [ undef, 'old', 'old page', undef ], 'values are as before');
	is($redis->call('EXISTS', 'log', '{q}'), 0, 'logs and queues too');
	settles(sub { held() == 7 }, 'a hold for each key');
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
	$sql->run("SELECT fence.publish('page', 'z', expire_at => now() + '1 hour'), fence.take_and_set('until', 'x', expire_at => now() + '1 hour')");
	settles(sub { $redis->call('GET', 'page') eq 'z' && $redis->call('EXISTS', 'until') }, 'until a point in time');
	foreach my $key ('page', 'until')
	{
		cmp_ok(abs($redis->call('PEXPIRETIME', $key) - (time() + 3600) * 1000), '<', 10_000, "$key: it is kept until then");
	}
	$sql->run("SELECT fence.publish_hash('hash', (SELECT jsonb_object_agg('f' || g, g) FROM generate_series(1, 1000) g))");
	settles(sub { $redis->call('HLEN', 'hash') == 1000 }, 'a large hash');
};

subtest 'one message before the commit, one after it' => sub {
	my @all = (
		"SELECT fence.append('m log', 'x')", "SELECT fence.append('m set', 'x', 'zset')", "SELECT fence.append('m stream', 'x', 'stream')",
		"SELECT fence.enqueue('m queue', 'x')", "SELECT fence.publish('m page', repeat('x', 200000))",
		"SELECT fence.publish_hash('m hash', '{\"a\": 1}')", 'SELECT fence.commit_marker()',
		"SELECT fence.hash_set('{m}fields', 'f', 'x', '{m}fields log')",
		"SELECT fence.hash_add('{m}fields', 'n', 1, log_key => '{m}fields log')",
		"SELECT fence.counter_add('m count', 1, max => 100, on_bound => 'clamp')", "SELECT fence.transfer('{m}a', '{m}b', 1, NULL)",
		"SELECT fence.compare_and_set('m value', NULL, 'x')", "SELECT fence.take_and_set('m other', 'x')",
		"SELECT fence.take_and_extend('m value', '1 min')", "SELECT fence.take('m value')", "SELECT fence.once('m request')");

	foreach my $statement (@all)
	{
		is_deeply([ map { $_->[0] } messages_of($statement) ], [ 'fence_effect', 'fence_effects_end' ], $statement);
		nothing_left();
	}
	is_deeply([ map { $_->[0] } messages_of('BEGIN', @all[ 0 .. 7 ], 'COMMIT') ], [ ('fence_effect') x 8, 'fence_effects_end' ],
		'several: one each before, one for all after');
	is_deeply([ map { $_->[0] } messages_of('BEGIN', @all[ 0 .. 7 ], 'ROLLBACK') ], [ ('fence_effect') x 8, 'fence_effects_end' ],
		'also at ROLLBACK');
	nothing_left();
	is_deeply([ map { $_->[0] } messages_of("SELECT fence.publish('m page', repeat('x', 600000))") ],
		[ 'fence_effect', ('fence_effect_piece') x 3, 'fence_effects_end' ], 'a large value: one for each piece between');
	nothing_left();
};

subtest 'who needs no answer does not wait for it before the commit' => sub {
	my @pipelined = ("SELECT fence.append('w log', 'x')", "SELECT fence.enqueue('w queue', 'x')", "SELECT fence.publish('w page', 'x')",
		"SELECT fence.publish_hash('w hash', '{\"a\": 1}')", "SELECT fence.hash_set('w fields', 'f', 'x')", 'SELECT fence.commit_marker()', "SELECT fence.once_result('w request', '1')");

	$sql->run('CREATE TABLE waited (x int)');
	$sql->run('BEGIN; SELECT fence.once($$w request$$)');
	$redis->pause;
	foreach my $statement (@pipelined)
	{
		my ($seconds, $error) = timed($statement);
		is($error, undef, "$statement: $seconds s");
	}
	$sql->run('INSERT INTO waited VALUES (1)');
	my ($seconds, $error) = timed('COMMIT');
	like($error, qr/^08006: could not hold an effect in Redis/, 'what is not acknowledged is not committed');
	cmp_ok($seconds, '>=', 0.4, "the commit waits for it: $seconds s");
	is($sql->run('SELECT count(*) FROM waited'), 0, 'nor is the rest of the transaction');
	$redis->resume;
	wait_open($node);
	nothing_left();
	is($redis->call('EXISTS', 'w log', 'w queue', 'w page', 'w hash', 'w request'), 0, 'and nothing of it happens');

	$sql->run('BEGIN; INSERT INTO waited VALUES (2)');
	$redis->pause;
	$sql->run("SELECT fence.append('w log', 'x', durable => true)");
	($seconds, $error) = timed('COMMIT');
	is($error, undef, 'a durable one has its row');
	$redis->resume;
	wait_open($node);
	settles(sub { $sql->run('SELECT count(*) FROM fence.outbox') == 0 }, 'which is applied');
	is($redis->call('LLEN', 'w log'), 1, 'once, though the hold arrives too');
	nothing_left();
	is($redis->call('LLEN', 'w log'), 1, 'and stays once');
};

subtest 'a refusal is an error of the commit' => sub {
	$redis->call('SET', 'text', 'x');
	$sql->run($_) foreach 'BEGIN', 'INSERT INTO waited VALUES (3)', "SELECT fence.append('text', 'x')";
	like($sql->error_of('COMMIT'), qr/^42809: key "text" has a value of another type/, 'a wrong type');
	$sql->run($_) foreach 'BEGIN', 'INSERT INTO waited VALUES (3)', "SELECT fence.append('text', 'x')";
	like($sql->error_of("PREPARE TRANSACTION 'refused'"), qr/^42809/, 'or of PREPARE TRANSACTION');
	is($sql->run('SELECT count(*) FROM waited WHERE x = 3'), 0, 'rolls back all');
	$sql->run($_) foreach 'BEGIN', 'SAVEPOINT s', "SELECT fence.append('text', 'x')", 'ROLLBACK TO s', "SELECT fence.append('list', 'x')", 'COMMIT';
	settles(sub { $redis->call('LLEN', 'list') == 1 }, 'not if a savepoint took it back');
	$redis->call('CONFIG', 'SET', 'maxmemory', '1');
	like($sql->error_of("SELECT fence.append('list', 'x')"), qr/^(58000|08006): could not hold an effect in Redis/, 'no memory');
	$redis->call('CONFIG', 'SET', 'maxmemory', '0');
	wait_open($node);
	nothing_left();

	my $other = FenceTest::Session->open($node);
	$other->run($_) foreach 'BEGIN', "SELECT fence.publish('page', 'theirs')";
	settles(sub { held() == 1 }, 'another transaction publishes');
	$sql->run($_) foreach 'BEGIN', "SELECT fence.publish('page', 'ours')";
	like($sql->error_of('COMMIT'), qr/^55P03: another transaction is about to change key "page"/, 'two at a time');
	$other->run('COMMIT');
	$sql->run("SELECT fence.publish('page', 'ours')");
	settles(sub { $redis->call('GET', 'page') eq 'ours' }, 'one after the other, however fast');
	nothing_left();
};

subtest 'messages that come twice' => sub {
	my %once = (
		"SELECT fence.append('t list', 'x')" => sub { $redis->call('LLEN', 't list') == 1 },
		"SELECT fence.append('t zset', 'x', 'zset')" => sub { $redis->call('ZCARD', 't zset') == 1 },
		"SELECT fence.append('t stream', 'x', 'stream')" => sub { $redis->call('XLEN', 't stream') == 1 },
		"SELECT fence.enqueue('t queue', 'x')" => sub { $redis->call('LLEN', 't queue') == 1 },
		"SELECT fence.counter_add('t count', 2)" => sub { ($redis->call('GET', 't count') // 0) == 2 },
		"SELECT fence.transfer('{t}a', '{t}b', 3, NULL)" => sub { ($redis->call('GET', '{t}a') // 0) == -3 && $redis->call('GET', '{t}b') == 3 },
		"SELECT fence.publish('t page', repeat('x', 600000))" => sub { $redis->call('STRLEN', 't page') == 600000 },
		"SELECT fence.publish_hash('t hash', '{\"a\": 1}')" => sub { $redis->call('HLEN', 't hash') == 1 },
		"SELECT fence.counter_add('t clamp', 9, max => 2, on_bound => 'clamp')" => sub { ($redis->call('GET', 't clamp') // 0) == 2 },
		"SELECT fence.hash_set('{t}fields', 'f', 'x', '{t}log of f')" => sub {
			($redis->call('HGET', '{t}fields', 'f') // '') eq 'x' && $redis->call('LLEN', '{t}log of f') == 1
		},
		"SELECT fence.hash_add('{t}fields', 'n', 3, log_key => '{t}log of n')" => sub {
			($redis->call('HGET', '{t}fields', 'n') // 0) == 3 && $redis->call('LLEN', '{t}log of n') == 1
		},
		"SELECT fence.compare_and_set('t value', NULL, 'x')" => sub { ($redis->call('GET', 't value') // '') eq 'x' },
		"SELECT fence.once('t request')" => sub { ($redis->call('GET', 't request') // '') eq 'null' });

	foreach my $statement (sort keys %once)
	{
		my @messages = messages_of('BEGIN', $statement, 'ROLLBACK');

		pop @messages;
		# again in a transaction that commits, each of whose messages is heard twice
		my $monitor = $redis->connect;
		$monitor->call('MONITOR');
		$sql->run($_) foreach 'BEGIN', $statement;
		my @again;
		while (@again < @messages)
		{
			my @words = map { s/\\(.)/$1/gr } $monitor->reply =~ /"((?:[^"\\]++|\\.)*)"/g;
			push @again, [ @words[ 1 .. $#words ] ] if lc($words[0]) eq 'fcall' && $words[1] =~ /^fence_effect(_piece)?$/;
		}
		$redis->call('FCALL', @$_) foreach @again;
		$sql->run('COMMIT');
		settles($once{$statement}, $statement);
		$redis->call('FCALL', 'fence_effects_end', 0, $ns, $_, $again[0][2], $again[0][ 3 + $again[0][1] ]) foreach 'apply', 'undo', 'apply';
		ok($once{$statement}->(), 'stays so');
		nothing_left();
	}
};

# The answer was given: nothing may count more, or less, than that.
subtest 'a clamped amount stays what the first answer said' => sub {
	my $other = FenceTest::Session->open($node);
	my %statement = (
		counter => "SELECT fence.counter_add('again', 9, max => 10, durable => true, on_bound => 'clamp')",
		hash_add => "SELECT fence.hash_add('again hash', 'n', 9, max => 10, durable => true, on_bound => 'clamp')",
		transfer => "SELECT fence.transfer('{again}a', '{again}b', 9, NULL, 10, true, 'clamp')");
	my %room = (
		counter => "SELECT fence.counter_add('again', 6)",
		hash_add => "SELECT fence.hash_add('again hash', 'n', 6)",
		transfer => "SELECT fence.transfer('{again}a', '{again}b', 6, NULL)");

	foreach my $kind (sort keys %statement)
	{
		$other->run($_) foreach 'BEGIN', $room{$kind};
		my $monitor = $redis->connect;
		$monitor->call('MONITOR');
		$sql->run('BEGIN');
		is($sql->run($statement{$kind}), $kind eq 'transfer' ? -10 : 10, "$kind: as much as there is room");
		my @words = ('');
		# it is refused first, without the word
		until (lc($words[0]) eq 'fcall' && $words[-1] eq 'clamp')
		{
			@words = map { s/\\(.)/$1/gr } $monitor->reply =~ /"((?:[^"\\]++|\\.)*)"/g;
		}
		# the other gives its part back, and the message comes once more
		$other->run('ROLLBACK');
		settles(sub { held() == ($kind eq 'transfer' ? 2 : 1) }, 'there is more room');
		$redis->call('FCALL', @words[ 1 .. $#words ]);
		$sql->run('COMMIT');
		settles(sub { $sql->run('SELECT count(*) FROM fence.outbox') == 0 }, 'applied');
		nothing_left();
	}
	is_deeply([ $redis->call('GET', 'again'), $redis->call('HGET', 'again hash', 'n'), @{ $redis->call('MGET', '{again}a', '{again}b') } ],
		[ 4, 4, -4, 4 ], 'what was answered');
};

subtest 'what is in the way and over is settled before anything is clamped' => sub {
	my $system = $sql->run('SELECT system_identifier FROM pg_control_system()');

	$sql->run('BEGIN');
	my $stamp = $sql->run("SELECT fence.append('over log', 'x')");
	$sql->run('ROLLBACK');
	nothing_left();
	is_deeply($redis->call('FCALL', 'fence_effect', 1, 'over', $ns, "$system.$stamp.77", "$system.$stamp", '', '', 'counter', 1, 8, '', '', ''),
		[ 'held', 8, 8 ], 'a part of it is held by a transaction that was rolled back');
	is($sql->run("SELECT fence.counter_add('over', 9, max => 10, on_bound => 'clamp')"), 9, 'it is none');
	nothing_left();
	is($redis->call('GET', 'over'), 9, 'all was counted');
};

subtest 'a hold of nothing beside others' => sub {
	my $failed = counted('apply', 'failed');

	$sql->run($_) foreach 'BEGIN', "SELECT fence.counter_add('zero', 0)", "SELECT fence.counter_add('zero', 1)", 'COMMIT';
	settles(sub { ($redis->call('GET', 'zero') // 0) == 1 }, 'is applied');
	$sql->run('SELECT count(*) FROM fence.effects');
	is(counted('apply', 'failed'), $failed, 'without an error');
	nothing_left();
};

# Microseconds that Redis has had the processor.
sub cpu_of_redis
{
	my $sum = 0;

	$sum += 1e6 * $_ foreach $redis->call('INFO', 'cpu') =~ /^used_cpu_(?:user|sys)_main_thread:(\S+)/mg;
	return $sum;
}

# What Redis does for effects meanwhile: commands that were called, functions' commands among them, microseconds that it has had
# the processor, and by the clock the longest call of a function.
sub cost_of
{
	my ($what) = @_;
	my %all = (commands => 0, longest => 0);

	nothing_left();
	$redis->call('CONFIG', 'RESETSTAT');
	$redis->call('CONFIG', 'SET', 'slowlog-log-slower-than', 0, 'slowlog-max-len', 100_000);
	$redis->call('SLOWLOG', 'RESET');
	my $before = cpu_of_redis();
	$what->();
	# answered when what the session has said before is done; who looks with KEYS instead costs Redis more than the effects
	$sql->run("SELECT fence._log_stamps('nothing', 1)");
	$all{cpu} = cpu_of_redis() - $before;
	foreach (split /\r\n/, $redis->call('INFO', 'commandstats'))
	{
		my ($command, $calls) = /^cmdstat_([^:]+):calls=(\d+)/ or next;
		$all{commands} += $calls unless $command =~ /^(keys|info|ping|time|select|scan|hello|config|slowlog|client|get|set|mget|function)/;
	}
	foreach (@{ $redis->call('SLOWLOG', 'GET', -1) })
	{
		$all{longest} = $_->[2] if lc $_->[3][0] eq 'fcall' && $_->[3][1] =~ /effect|queue/ && $_->[2] > $all{longest};
	}
	$redis->call('CONFIG', 'SET', 'slowlog-log-slower-than', 10_000, 'slowlog-max-len', 128);
	$redis->call('SLOWLOG', 'RESET');
	nothing_left();
	return \%all;
}

# Four times as much may take ten times as long: what is quadratic takes sixteen times as long. Commands are counted; of
# the time, the least of a few attempts counts.
sub grows_linearly
{
	my ($what, $n, $do) = @_;
	my (%few, %many);

	foreach (1 .. 3)
	{
		foreach ([ \%few, $n ], [ \%many, 4 * $n ])
		{
			my ($least, $size) = @$_;
			my $cost = cost_of(sub { $do->($size) });
			foreach (keys %$cost) { $least->{$_} = $cost->{$_} if !defined $least->{$_} || $cost->{$_} < $least->{$_}; }
		}
		last if $many{cpu} < 6 * $few{cpu};
	}
	note sprintf '%-40s %5d: %6d commands, %7d us, longest call %5d us; %5d: %6d commands, %7d us, longest call %5d us', $what, $n,
	  @few{qw(commands cpu longest)}, 4 * $n, @many{qw(commands cpu longest)};
	cmp_ok($many{commands}, '<', 8 * $few{commands}, "$what: commands");
	cmp_ok($many{cpu}, '<', 10 * $few{cpu}, "$what: time");
	return;
}

subtest 'four times as many effects cost four times as much' => sub {
	my %statement = (
		'appends to one key' => "fence.append('g', 'x')",
		'appends that are trimmed' => "fence.append('g trimmed', 'x', 'zset', 10)",
		'appends to many keys' => "fence.append('g' || g, 'x')",
		'a field' => "fence.hash_add('{g}hash', 'n', 1, log_key => '{g}hash log')",
		'many fields' => "fence.hash_add('g hash', 'n' || g, 1)",
		'fields that are set' => "fence.hash_set('g set', 'f' || g, 'x')",
		'a counter' => "fence.counter_add('g count', 1)",
		'many counters' => "fence.counter_add('g count' || g, 1)",
		'transfers' => "fence.transfer('{g}a', '{g}b', 1, NULL)",
		'publishes of one key' => "fence.publish('g page', 'x')",
		'publishes of many keys' => "fence.publish('g page' || g, 'x')",
		'a value that is taken and set' => "fence.take_and_set('g value', 'x', '1 hour')",
		'a value that is extended' => "fence.take_and_extend('g value', '1 hour')",
		'idempotency keys' => "fence.once('g once' || g)",
		'durable appends' => "fence.append('g durable', 'x', durable => true)");

	foreach my $what (sort keys %statement)
	{
		foreach my $end ('COMMIT', 'ROLLBACK')
		{
			grows_linearly("$what, $end", $ENV{FENCE_EFFECTS} || 300, sub {
				$sql->run($_) foreach 'BEGIN', "SELECT count($statement{$what}) FROM generate_series(1, $_[0]) g", $end;
			});
		}
	}
	grows_linearly('results of one once', 250, sub {
		$sql->run($_) foreach 'BEGIN', "SELECT fence.once('g result')", "SELECT count(fence.once_result('g result', '1')::text) "
		  . "FROM generate_series(1, $_[0])", 'ROLLBACK';
	});
	grows_linearly('savepoints that are taken back', 250, sub {
		$sql->run('BEGIN');
		$sql->run("DO \$\$ BEGIN FOR i IN 1 .. $_[0] LOOP BEGIN PERFORM fence.append('g', 'x'); RAISE division_by_zero; "
			  . "EXCEPTION WHEN division_by_zero THEN NULL; END; END LOOP; END \$\$");
		$sql->run('COMMIT');
	});
};

# Makes holds of a transaction whose end Redis has not heard of, as a lost message leaves them.
sub hold_by_hand
{
	my ($key, $system, $stamp, $first, $n) = @_;
	my $before = '';

	foreach my $i ($first .. $first + $n - 1)
	{
		my $hold = "$system.$stamp.$i";
		$redis->connection->send('FCALL', 'fence_effect', 1, $key, $ns, $hold, "$system.$stamp", $before, '', 'append', 4, 'list', "e$i", $stamp, '');
		$before = $hold;
	}
	$redis->connection->reply foreach 1 .. $n;
	return;
}

subtest 'what the patrol settles' => sub {
	my $system = $sql->run('SELECT system_identifier FROM pg_control_system()');

	# a key may have many holds, which Redis lists in no order
	my $stamp = $sql->run("SELECT fence.append('ordered', 'e1')");
	settles(sub { $redis->call('LLEN', 'ordered') == 1 }, 'a transaction');
	hold_by_hand('ordered', $system, $stamp, 2, 1500);
	nothing_left();
	is_deeply([ map { (split / /)[2] } @{ $redis->call('LRANGE', 'ordered', 0, -1) } ], [ map { "e$_" } 1 .. 1501 ], 'in their order');

	$sql->run('BEGIN');
	my $aborted = $sql->run("SELECT fence.append('other', 'x')");
	$sql->run('ROLLBACK');
	grows_linearly('holds that the patrol settles', 500, sub {
		hold_by_hand('unordered', $system, $aborted, 2, $_[0]);
		nothing_left();
	});
	is($redis->call('EXISTS', 'unordered'), 0, 'and undoes');

	# a page is a bounded piece of work
	hold_by_hand('paged', '12345', '700.0000abcd', 1, 3000);
	my ($cursor, %seen) = ('');
	my $pages = 0;
	do
	{
		my ($next, @lines) = @{ $redis->call('FCALL', 'fence_effects', 0, $ns, 0, 100, $cursor) };
		die "a page of @{[ @lines / 5 ]} holds\n" if @lines > 5 * 200;
		while (my ($key, $hold) = splice @lines, 0, 5) { $seen{$hold}++ if $key eq 'paged'; }
		($cursor, $pages) = ($next, $pages + 1);
	} while ($cursor ne '');
	cmp_ok($pages, '>=', 10, "$pages pages");
	is(scalar keys %seen, 3000, 'and nothing is left out');
	$redis->call('DEL', "$ns:h:{paged}");
};

subtest 'durable: its row and its message apply it once' => sub {
	foreach my $try (1 .. 5)
	{
		$sql->run("SELECT fence.append('durable', 'x', durable => true), fence.counter_add('durable count', 2, durable => true)");
		settles(sub { $sql->run('SELECT count(*) FROM fence.outbox') == 0 }, 'the row goes');
		is_deeply([ $redis->call('LLEN', 'durable'), $redis->call('GET', 'durable count') ], [ $try, 2 * $try ], 'once');
	}
	nothing_left();

	# the hold that was on its way for long: its row was faster
	my $hold = '12345.700.0000abcd.1';
	my @late = ('fence_effect', 1, 'late', $ns, $hold, '12345.700.0000abcd', '', 5, 'append', 4, 'list', 'x', 's', '');
	is_deeply($redis->call('FCALL', 'fence_effect_redo', 1, 'late', $ns, $hold, 5, 'append', 'list', 'x', 's', ''), ['done'], 'from its row');
	is_deeply($redis->call('FCALL', @late), ['held'], 'its hold arrives');
	is_deeply($redis->call('FCALL', 'fence_effects_end', 0, $ns, 'apply', 'late', $hold), ['ended'], 'and is settled');
	is($redis->call('LLEN', 'late'), 1, 'once');
	nothing_left();
};

subtest 'durable: a large value of which only the row is left comes in pieces' => sub {
	my %statement = (
		'row page' => "SELECT fence.publish('row page', repeat('x', 600000), '0', durable => true)",
		'row hash' => "SELECT fence.publish_hash('row hash', (SELECT jsonb_object_agg('f' || g, g) FROM generate_series(1, 1000) g), durable => true)");

	foreach my $key (sort keys %statement)
	{
		$sql->run($_) foreach 'BEGIN', $statement{$key};
		settles(sub { @{ left() } == 2 }, 'the hold and what is built');
		$redis->call('DEL', @{ left() });
		$redis->call('CONFIG', 'SET', 'slowlog-log-slower-than', 0, 'slowlog-max-len', 100_000);
		$redis->call('SLOWLOG', 'RESET');
		$sql->run('COMMIT');
		settles(sub { $sql->run('SELECT count(*) FROM fence.outbox') == 0 }, 'the row goes');
		is($redis->call($key =~ /page/ ? 'STRLEN' : 'HLEN', $key), $key =~ /page/ ? 600000 : 1000, "$key: all of it");
		is($redis->call('PTTL', $key), -1, 'with the time to live that it should have');
		my $pieces = grep { lc $_->[3][0] eq 'fcall' && $_->[3][1] eq 'fence_effect_piece' } @{ $redis->call('SLOWLOG', 'GET', -1) };
		cmp_ok($pieces, '>=', 3, "in $pieces pieces");
		$redis->call('CONFIG', 'SET', 'slowlog-log-slower-than', 10_000, 'slowlog-max-len', 128);
		$redis->call('SLOWLOG', 'RESET');
		nothing_left();
	}
};

subtest 'marks of durable effects whose outbox is gone' => sub {
	my $system = $sql->run('SELECT system_identifier FROM pg_control_system()');
	my $marks = sub { return scalar grep { /^\Q$ns\E:d:/ } @{ $redis->call('KEYS', '*') } };
	my $database = sub { return $sql->run("SELECT oid FROM pg_database WHERE datname = '$_[0]'"); };
	my $mark = sub { $redis->call('HSET', "$ns:d:{$_[0]}", "$system.700.0000abcd.1", "$_[1] 0"); };

	$redis->call('DEL', @{ $redis->call('KEYS', "$ns:d:*") });
	$sql->run("CREATE DATABASE $_") foreach 'without', 'closed', 'dropped';
	my $dropped = $database->('dropped');
	$sql->run('ALTER DATABASE closed ALLOW_CONNECTIONS false');
	$sql->run('DROP DATABASE dropped');
	$mark->('without', $database->('without'));
	$mark->('dropped', $dropped);
	$mark->('closed', $database->('closed'));
	settles(sub { $marks->() == 1 }, 'are forgotten');
	is($redis->call('EXISTS', "$ns:d:{closed}"), 1, 'but not while the database may come back');
	$sql->run('ALTER DATABASE closed ALLOW_CONNECTIONS true');
	settles(sub { $marks->() == 0 }, 'and has none');
	$sql->run("DROP DATABASE $_") foreach 'without', 'closed';
};

subtest 'two-phase commit' => sub {
	$redis->call('FLUSHALL');
	$sql->run($_) foreach 'BEGIN', "SELECT fence.counter_add('stock', 3)", "PREPARE TRANSACTION 'a'";
	$sql->run($_) foreach 'BEGIN', "SELECT fence.counter_add('stock', 4)", "PREPARE TRANSACTION 'b'";
	$sql->error_of("SELECT fence.counter_add('stock', 1, max => 7)");
	like($sql->error_of("SELECT fence.counter_add('stock', 1, max => 7)"), qr/^23514/, 'what is prepared counts');
	is($sql->run('SELECT key, kind, fate, gid, pid IS NULL, age > interval $$0$$ FROM fence.effects ORDER BY gid'),
		"stock|counter|prepared|a|t|t\nstock|counter|prepared|b|t|t", 'fence.effects shows it');
	$sql->run("COMMIT PREPARED 'a'");
	$sql->run("ROLLBACK PREPARED 'b'");
	settles(sub { ($redis->call('GET', 'stock') // 0) == 3 }, 'the one is applied');
	nothing_left();
};

subtest 'logs of a bounded length' => sub {
	foreach my $most ('3', '100000000000000', '9007199254740991')
	{
		foreach my $form ('list', 'zset', 'stream')
		{
			$sql->run("SELECT fence.append('bounded $form $most', g::text, '$form', $most) FROM generate_series(1, 5) g");
			settles(sub { $redis->call('EXISTS', "bounded $form $most") }, "at most $most, $form");
		}
	}
	nothing_left();
	is_deeply([ map { s/.* //r } @{ $redis->call('LRANGE', 'bounded list 3', 0, -1) } ], [ 3, 4, 5 ], 'a list');
	is_deeply([ map { s/.* //r } @{ $redis->call('ZRANGE', 'bounded zset 3', 0, -1) } ], [ 3, 4, 5 ], 'a sorted set');
	is($redis->call('LLEN', 'bounded list 9007199254740991'), 5, 'one that is never full');

	# what is much too long gets shorter with each append
	$redis->call('RPUSH', 'long', map { "s $_ old" } 1 .. 2500);
	$sql->run("SELECT fence.append('long', 'new', 'list', 1)");
	settles(sub { $redis->call('LLEN', 'long') == 1501 }, 'by a thousand');
	$sql->run("SELECT fence.append('long', 'new', 'list', 1)") foreach 1 .. 2;
	settles(sub { $redis->call('LLEN', 'long') == 1 }, 'until it is short');

	# the stamps of a long log come in pages
	foreach my $form ('list', 'zset', 'stream')
	{
		my $first = $sql->run("SELECT fence.append('paged $form', 'x', '$form')");
		$sql->run("SELECT count(fence.append('paged $form', 'x', '$form')) FROM generate_series(1, 1500)");
		nothing_left();
		is($sql->run("SELECT cardinality(s), s[1501] = '$first', s[1] <> '$first' FROM fence._log_stamps('paged $form', 5000) s"),
			'1501|t|t', "all of a $form");
		is($sql->run("SELECT cardinality(fence._log_stamps('paged $form', 7))"), 7, 'no more than were asked for');
	}
};

subtest 'a transfer that is tried again' => sub {
	$sql->run($_) foreach 'BEGIN', "SELECT fence.transfer('{u}a', '{u}b', 3, NULL)";
	$redis->call('RPUSH', '{u}a', 'x');
	my $before = counted('settle', 'failed');
	$sql->run('COMMIT');
	settles(sub { counted('settle', 'failed') > $before + 1 }, 'while it cannot be applied');
	is($redis->call('GET', '{u}b') // 0, 0, 'neither half happens');
	$redis->call('DEL', '{u}a');
	nothing_left();
	is_deeply($redis->call('MGET', '{u}a', '{u}b'), [ -3, 3 ], 'then both, once');
};

# Redis says what a field had.
subtest 'a field and its log' => sub {
	my $log = sub { return [ map { s/^\d+\.[0-9a-f]{8} \d+ //r } @{ $redis->call('LRANGE', '{v}log', 0, -1) } ]; };

	$redis->call('HSET', '{v}h', 'large', 'x' x 8193, 'small', 'y' x 8192);
	$sql->run($_) foreach 'BEGIN', map { "SELECT fence.hash_set('{v}h', $_, '{v}log')" } "'large', 'z'", "'small', NULL", "'none \"é', 'z'",
	  "'none \"é', 'zz'";
	$sql->run("SELECT fence.hash_add('{v}h', 'n', 5, log_key => '{v}log')") foreach 1 .. 2;
	is_deeply($log->(), [], 'nothing before the commit');
	$sql->run('COMMIT');
	settles(sub { @{ $log->() } == 6 }, 'with the commit');
	is_deeply($log->(), [ '{"field":"large","bytes":8193}', '{"field":"small","old":"' . 'y' x 8192 . '"}', "{\"field\":\"none \\\"\xc3\xa9\",\"old\":null}",
		"{\"field\":\"none \\\"\xc3\xa9\",\"old\":\"z\"}", '{"field":"n","old":null}', '{"field":"n","old":"5"}' ], 'each tells the one before');
	is_deeply($redis->call('HMGET', '{v}h', 'large', 'small', "none \"\xc3\xa9", 'n'), [ 'z', undef, 'zz', 10 ], 'fields');

	# both or none: it is tried again
	foreach my $break ([ '{v}broken', 'RPUSH', 'x' ], [ '{v}broken', 'HSET', 'n', 'x' ], [ '{v}broken log', 'SET', 'x' ])
	{
		my ($broken, $command, @arguments) = @$break;

		$sql->run($_) foreach 'BEGIN', "SELECT fence.hash_add('{v}broken', 'n', 3, log_key => '{v}broken log', durable => true)";
		$redis->call($command, $broken, @arguments);
		my $before = counted('settle', 'failed') + counted('outbox', 'failed');
		$sql->run('COMMIT');
		settles(sub { counted('settle', 'failed') + counted('outbox', 'failed') > $before + 1 }, "while $broken is wrong: $command");
		is($redis->call('EXISTS', grep { $_ ne $broken } '{v}broken', '{v}broken log'), 0, 'neither half happens');
		$redis->call('DEL', $broken);
		settles(sub { $sql->run('SELECT count(*) FROM fence.outbox') == 0 }, 'then it is applied');
		nothing_left();
		is_deeply([ $redis->call('HGET', '{v}broken', 'n'), $redis->call('LLEN', '{v}broken log') ], [ 3, 1 ], 'both, once');
		$redis->call('DEL', '{v}broken', '{v}broken log');
	}
};

subtest 'a hold of another cluster' => sub {
	my $hold = '12345.700.0000abcd.1';

	is_deeply($redis->call('FCALL', 'fence_effect', 1, 'theirs', $ns, $hold, '12345.700.0000abcd', '', '', 'counter', 1, 5, '', '', ''),
		[ 'held', 5, 5 ], 'is made');
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
		  foreach [ 'fence_effect', 1, $key, $ns, $hold, $top, '', '', 'set', 3, 'set', 'x', '', '', '' ],
		  [ 'fence_effect', 2, '{a}', $key, $ns, $hold, $top, '', '', 'transfer', 2, $key, 1, '', '', '' ],
		  [ 'fence_effect', 1, '{a}', $ns, $hold, $top, '', '', 'hash_set', 5, 'f', $key eq '' ? "$ns:x" : $key, 's', 'set', 'x' ],
		  [ 'fence_effect_redo', 1, '{a}', $ns, $hold, 5, 'hash_add', 'f', $key eq '' ? "$ns:x" : $key, 's', '1' ],
		  [ 'fence_effect_piece', 1, $key, $ns, $hold, 0, 'string', 'x' ],
		  [ 'fence_effects_end', 0, $ns, 'apply', $key, $hold ],
		  [ 'fence_effect_redo', 1, $key, $ns, $hold, 5, 'set', 'set', 'x', '' ],
		  [ 'fence_effects_forget', 0, $ns, $key, $hold ];
	}
	like($redis->error_of('FCALL', @$_), qr/expected|gone|malformed/, "$_->[0] without what it needs")
	  foreach ['fence_effect', 0], [ 'fence_effect', 1, 'k', $ns, 'hold', $top, '', '', 'set', 0 ],
	  [ 'fence_effect', 1, 'k', $ns, $hold, $top, '', '', 'set', 3, 'set', 'x', '@', '', '' ],
	  [ 'fence_effect', 1, 'k', $ns, $hold, $top, '', '', 'counter', 1, 1, '', '' ],
	  [ 'fence_effect', 1, 'k', $ns, $hold, $top, '', '', 'nonsense', 0 ], [ 'fence_effect', 1, 'k', $ns, $hold, $top, '', '', 'received', 0 ],
	  [ 'fence_effect_piece', 1, 'k', $ns, $hold, 0, '', 'x' ], [ 'fence_effect_piece', 1, 'k', $ns, $hold, -1, '', 'x' ],
	  ['fence_effects_end', 0], [ 'fence_effects_end', 0, $ns, 'maybe', 'k', $hold ], [ 'fence_effect_redo', 1, 'k' ],
	  [ 'fence_effects', 0, $ns, 'x', 1, '' ], [ 'fence_effects', 0, 'a b', 0, 1, '' ], [ 'fence_queues', 0, '*', '' ], [ 'fence_queues', 0, $ns ],
	  ['fence_effect_read', 0], [ 'fence_log_stamps', 1, 'k', 0, '0' ], [ 'fence_log_stamps', 1, 'k', 1, '-' ];
	like($redis->error_of('FCALL', @$_), qr/malformed|expected/, "$_->[0]: what is counted there is the second key")
	  foreach [ 'fence_effect', 2, '{a}', '{a}b', $ns, $hold, $top, '', '', 'transfer', 2, '{a}c', 1, '', '', '' ],
	  [ 'fence_effect', 2, '{a}', '{a}b', $ns, $hold, $top, '', '', 'transfer', 2, 'a}b', 1, '', '', '' ],
	  [ 'fence_effect', 1, '{a}', $ns, $hold, $top, '', '', 'transfer', 2, '{a}c', 1, '', '', '' ],
	  [ 'fence_effect', 2, '{a}', '{a}b', $ns, $hold, $top, '', '', 'counter', 1, 1, '', '', '' ],
	  [ 'fence_effect_redo', 2, '{a}', '{a}b', $ns, $hold, 5, 'transfer', "$ns:x", 1 ];
	is_deeply($redis->call('FCALL', 'fence_effects_end', 0, $ns, 'apply', 'k', $hold), ['ended'], 'a hold that never was');
	is($redis->call('GET', "$ns:x"), 'ours', 'nothing was touched');
	is($redis->call('EXISTS', 'k', '{a}', '{a}b', '{a}c'), 0, 'nothing was made');
	$redis->call('DEL', "$ns:x");
	nothing_left();
};

subtest 'a value of any bytes' => sub {
	foreach my $value ("\0" x 4_000_000, "text\0" . 'x' x 4_000_000, "\xff" x 20)
	{
		$redis->call('SET', 'bytes', $value);
		like($sql->error_of(q(SELECT fence.take('bytes'))), qr/^22021: the cached value is not valid text/, 'no text');
		ok($redis->call('GET', 'bytes') eq $value, 'it stays');
	}
	$redis->call('DEL', 'bytes');
	nothing_left();
};

subtest 'a key that changed its type' => sub {
	$sql->run($_) foreach 'BEGIN', "SELECT fence.counter_add('turned', 3, durable => true)", "SELECT fence.counter_add('other', 3)";
	$redis->call('RPUSH', 'turned', 'x');
	$sql->run('COMMIT');
	settles(sub { ($redis->call('GET', 'other') // 0) == 3 }, 'other effects of the transaction are applied');
	settles(sub { counted('settle', 'failed') > 0 && counted('outbox', 'failed') > 0 }, 'the patrol tries');
	is(scalar @{ left() }, 1, 'its own waits');
	$redis->call('DEL', 'turned');
	settles(sub { ($redis->call('GET', 'turned') // 0) == 3 }, 'until it can be applied');
	settles(sub { $sql->run('SELECT count(*) FROM fence.outbox') == 0 }, 'its row goes then');
	nothing_left();
	is($redis->call('GET', 'turned'), 3, 'once');
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
	  "SELECT fence.enqueue('away queue', 'x', durable => true)", 'SELECT fence.commit_marker(durable => true)',
	  "SELECT fence.publish_hash('away hash', (SELECT jsonb_object_agg('f' || g, g) FROM generate_series(1, 20000) g), durable => true)",
	  'COMMIT';
	$sql->run($_) foreach 'BEGIN', "SELECT fence.append('away log', 'y', durable => true)", 'ROLLBACK';
	is($sql->run('SELECT count(*) FROM fence.outbox'), 5, 'what is durable waits');
	$redis->restart;
	settles(sub { $sql->run('SELECT count(*) FROM fence.outbox') == 0 }, 'until Redis is back');
	is_deeply([ $redis->call('LLEN', 'away log'), $redis->call('STRLEN', 'away page'), $redis->call('LLEN', 'away queue'),
			$redis->call('HLEN', 'away hash'), scalar @{ $redis->call('KEYS', "$ns:m:*") } ],
		[ 1, 600000, 1, 20000, 1 ], 'once each');
	nothing_left();
};

subtest 'an earlier xid that is issued again' => sub {
	my $xid = $sql->run('SELECT pg_current_xact_id()');
	my $system = $sql->run('SELECT system_identifier FROM pg_control_system()');

	# committed now, but another start's transaction had the number: it never reached the disk
	is_deeply($redis->call('FCALL', 'fence_effect', 1, 'reissued', $ns, "$system.$xid.0000abcd.1", "$system.$xid.0000abcd", '', '', 'counter',
			1, 5, '', '', ''), [ 'held', 5, 5 ], 'a hold of a lost transaction');
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
		is_deeply($redis->call('FCALL', 'fence_effect', 1, 'late', $ns, "$system.$sub." . ($top =~ s/.*\.//r) . '.9', "$system.$top", '', '',
				'counter', 1, 5, '', '', ''), [ 'held', 5, 5 ], 'it is held');
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
	like($session->error_of("SELECT fence.transfer('c1', 'c2', 1)"), qr/^22023: keys .* are not in the same hash slot/, 'transfers need a slot');
	like($session->error_of("SELECT fence.hash_set('c1', 'f', 'x', 'c2')"), qr/^22023: keys .* are not in the same hash slot/, 'and so do logs of hashes');
	$session->run("SELECT fence.hash_set('{t}h', 'f', 'x', '{t}log'), fence.hash_add('{t}h', 'n', 1, log_key => '{t}log')");
	settles(sub { $router->call('LLEN', '{t}log') == 2 && $router->call('HGET', '{t}h', 'n') == 1 }, 'fields and their log');
	$session->run("SELECT fence.transfer('{t}1', '{t}2', 1, NULL)");
	settles(sub { ($router->call('GET', '{t}2') // 0) == 1 }, 'transfer');
	settles(sub { $left->() == 0 }, 'nothing is left');
	is($sum->(), $many, 'the sum');

	# the slot moves away while an effect is held: the message meets the wrong process, the patrol finds it at the right one
	my ($to) = grep { $_ != $router->server('c1') } $cluster->masters;
	$session->run($_) foreach 'BEGIN', "SELECT fence.counter_add('c1', 10)";
	$cluster->move_slots($to, $session->run("SELECT fence.key_slot('c1')"));
	$session->run('COMMIT');
	$router = $cluster->router;
	settles(sub { ($router->call('GET', 'c1') // 0) == 11 }, 'a slot that moved meanwhile');
	settles(sub { $left->() == 0 }, 'nothing is left there');
};

subtest 'what was counted' => sub {
	cmp_ok(counted(@$_), '>', 0, "@$_")
	  foreach [ 'hold', 'held' ], [ 'hold', 'refused' ], [ 'hold', 'failed' ], [ 'apply', 'done' ], [ 'apply', 'failed' ], [ 'undo', 'done' ],
	  [ 'settle', 'applied' ], [ 'settle', 'undone' ], [ 'settle', 'failed' ], [ 'outbox', 'done' ], [ 'outbox', 'failed' ];
	# what was answered is counted before
	$sql->run('SELECT count(*) FROM fence.effects');
	$sql->run('SELECT fence.reset_metrics()');
	$sql->run($_) foreach 'BEGIN', "SELECT fence.append('counted', 'x')", 'SAVEPOINT s', "SELECT fence.append('counted', 'y')",
	  'ROLLBACK TO s', "SELECT fence.append('counted', 'z')", 'COMMIT';
	settles(sub { $sql->run('SELECT count(*) FROM fence.effects') == 0 }, 'applied, and the session has heard of it');
	is(join(' ', counted('apply', 'done'), counted('undo', 'done'), counted('hold', 'held')), '2 1 3', 'each once');
	$sql->run($_) foreach 'BEGIN', "SELECT fence.counter_add('counted number', 1)", "PREPARE TRANSACTION 'counted'";
	settles(sub { $sql->run("SELECT value FROM fence.metrics WHERE name = 'cache_fence_held_effects'") == 1 }, 'what is held');
	$sql->run("ROLLBACK PREPARED 'counted'");
	settles(sub { $sql->run("SELECT value FROM fence.metrics WHERE name = 'cache_fence_held_effects'") == 0 }, 'and is no more');
};

done_testing();
