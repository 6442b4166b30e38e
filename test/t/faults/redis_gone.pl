# Redis hangs, dies, forgets, is full: writers are not held hostage, nothing stale is served, everything recovers.

use strict;
use warnings;

use FenceTest;
use FenceTest::Session;
use Test::More;
use Time::HiRes qw(time);

# ---------------------------------------------------------------------------------------------------------------------
# Tools. $redis, $node and $sql are those of the section at hand.
# ---------------------------------------------------------------------------------------------------------------------

my ($redis, $node, $sql);
my $tables = 0;

# A domain with rows 1 to 5 at version 5 that are cached. The rest are arguments of attach.
sub new_table
{
	my ($arguments) = @_;
	my $name = 'item' . ++$tables;

	$sql->run("CREATE TABLE $name (id int PRIMARY KEY, name text DEFAULT 'x', version bigint NOT NULL DEFAULT 0)");
	$sql->run("INSERT INTO $name (id, version) SELECT g, 5 FROM generate_series(1, 5) g");
	$sql->run("SELECT fence.attach('$name'" . ($arguments ? ", $arguments" : '') . ')');
	poll(sub { $sql->run("SELECT status FROM fence.get('$name', '1')") ne 'unarmed' }, "$name is announced");
	foreach my $key (1 .. 5)
	{
		$sql->run("SELECT fence.read('$name', '$key')");
		is($sql->run("SELECT status, version FROM fence.get('$name', '$key')"), 'hit|5', "$name: $key is cached");
	}
	return $name;
}

sub status_of
{
	my ($domain, $key) = @_;

	return $sql->run("SELECT relation, fence_version, row_version, pending FROM fence.status('$domain', '$key')");
}

sub fence_of { my ($domain, $key) = @_; return $sql->run("SELECT fence.fence_key('$domain', '$key')"); }

# (status, permit) or (hit, version), as Redis answers it; none if it does not
sub get
{
	my ($fence) = @_;
	my $reply = eval { $redis->attempt(qw(FCALL_RO fence_get 1), $fence) };

	return '' if ref $reply ne 'ARRAY';
	return $reply->[0] eq 'hit' ? ('hit', (split / /, $reply->[1])[1]) : @$reply;
}

# The row is at version 5, and can be cached.
sub is_as_it_was
{
	my ($domain, $key, $title) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	like(status_of($domain, $key), qr/^(?:equal\|5|missing\|)\|5\|0$/, $title);
	$sql->run("SELECT fence.read('$domain', '$key')");
	is(status_of($domain, $key), 'equal|5|5|0', 'and can be cached');
	return;
}

sub state_of { my ($field) = @_; return $sql->run("SELECT $field FROM fence.state"); }
sub lease_left { return state_of('extract(epoch FROM lease_left)'); }
sub epoch_number { return (split /-/, state_of('epoch'))[0]; }

# A session with a transaction that has changed a row (1) of the table, and whose reservation Redis has granted.
sub writer_of
{
	my ($table, $setting, $key) = @_;
	my $writer = FenceTest::Session->open($node);

	$key //= 1;
	$writer->run("SELECT 1 FROM fence.get('$table', '1')");
	$writer->run($setting) if $setting;
	$writer->run("BEGIN; UPDATE $table SET name = 'new' WHERE id = $key");
	poll(sub { $sql->run("SELECT count(*) FROM fence.pending WHERE pid = " . $writer->pid) == 1 }, 'the reservation');
	return $writer;
}

# The same, without its reservation: Redis hangs when it is sent.
sub writer_into_the_hang
{
	my ($table, $setting) = @_;
	my $writer = FenceTest::Session->open($node);

	$writer->run("SELECT 1 FROM fence.get('$table', '1')");
	$writer->run($setting) if $setting;
	$redis->pause;
	$writer->run("BEGIN; UPDATE $table SET name = 'new' WHERE id = 1; UPDATE $table SET name = 'new' WHERE id = 2");
	return $writer;
}

# Sends COMMIT and waits until it waits.
sub commit_waits
{
	my ($writer) = @_;

	$writer->begin('COMMIT');
	poll(
		sub {
			return 1 if $writer->ready;
			return $sql->run("SELECT wait_event_type FROM pg_stat_activity WHERE state = 'active' AND pid = " . $writer->pid)
			  eq 'Extension';
		},
		'COMMIT to wait');
	ok(!$writer->ready, 'COMMIT waits');
	return;
}

# Calls of every kind in this session: each answer is for the question that was asked, and agrees with PostgreSQL.
sub answers_rightly
{
	my ($session, $table) = @_;
	my $all = 1;

	foreach my $key (1 .. 4, 1 .. 4)
	{
		my ($row, $name) = split /\|/, $sql->run("SELECT version, name FROM $table WHERE id = $key");
		$all &&= is($session->run("SELECT fence.read('$table', '$key')->>'version'"), $row, "read $key");
		$all &&= is($session->run("SELECT status, version, payload::jsonb->>'name' FROM fence.get('$table', '$key')"),
			"hit|$row|$name", "get $key");
		$session->run("UPDATE $table SET name = 'by' WHERE id = $key");
		my ($status, $permit) = split /\|/, $session->run("SELECT status, permit FROM fence.get('$table', '$key')");
		$all &&= is($status, 'miss', "get $key after UPDATE");
		$session->run("UPDATE $table SET name = 'by $key' WHERE id = $key");
		$all &&= is($session->run("SELECT fence.put('$table', '$permit', $row + 1, '{}', NULL, '$key')"), 'refused late',
			"put $key of a version that is over");
		$all &&= is($session->run("SELECT relation, row_version - $row FROM fence.status('$table', '$key')"), 'missing|2',
			"status $key");
		$all &&= is($session->run("SELECT fence.read('$table', '$key')->>'name'"), "by $key", "read $key after UPDATE");
	}
	return $all;
}

# ---------------------------------------------------------------------------------------------------------------------
# Redis hangs, and nobody has noticed yet (a long timeout): whoever waits for its answer can be interrupted
# ---------------------------------------------------------------------------------------------------------------------

$redis = FenceTest::Redis->start;
$node = new_postgres('patient', $redis, lease => '30s', timeout => '20s');
$sql = FenceTest::Session->open($node);

foreach my $what ([ cancel => qr/^57014: / ], [ terminate => qr/^57P01: / ])
{
	my ($how, $error) = @$what;
	subtest "pg_${how}_backend while COMMIT waits for Redis" => sub {
		my $table = new_table();
		my $writer = writer_into_the_hang($table);

		commit_waits($writer);
		$sql->run("SELECT pg_${how}_backend(" . $writer->pid . ')');
		like($writer->error_of, $error, 'it ends at once');
		is($sql->run("SELECT version, name FROM $table WHERE id = 1"), '5|x', 'and is rolled back');
		$redis->resume;
		no_reservations($node);
		is_as_it_was($table, $_, "$_ is as it was") foreach 1, 2;
		is(state_of('state, bypassed_transactions'), 'OPEN|0', 'fences were OPEN all the time');
		answers_rightly($writer, $table) if $how eq 'cancel';
		no_reservations($node);
		compare_fences($node, $table);
	};
}

subtest 'pg_cancel_backend while a get waits for Redis' => sub {
	my $table = new_table();
	my $reader = FenceTest::Session->open($node);

	$reader->run("SELECT * FROM fence.get('$table', '1')");
	$redis->pause;
	$reader->begin("SELECT * FROM fence.get('$table', '2')");
	poll(sub { $sql->run("SELECT wait_event_type FROM pg_stat_activity WHERE pid = " . $reader->pid) eq 'Extension' },
		'the wait');
	$sql->run('SELECT pg_cancel_backend(' . $reader->pid . ')');
	like($reader->error_of, qr/^57014: /, 'it ends at once');
	$redis->resume;
	answers_rightly($reader, $table);
};

subtest 'the client is lost while its transaction is open' => sub {
	my $table = new_table();
	my $writer = writer_of($table);

	$writer->kill9;
	no_reservations($node);
	is_as_it_was($table, 1, 'rolled back');
};

subtest 'the client is lost while COMMIT waits for Redis' => sub {
	my $table = new_table();
	my $writer = writer_into_the_hang($table, "SET client_connection_check_interval = '50ms'");

	commit_waits($writer);
	$writer->kill9;
	poll(sub { $sql->run('SELECT count(*) FROM pg_stat_activity WHERE pid = ' . $writer->pid) eq '0' },
		'the end of the backend');
	$redis->resume;
	no_reservations($node);
	is_as_it_was($table, 1, 'rolled back');
};

subtest 'Redis comes back while COMMIT waits: it commits with its reservations' => sub {
	my $table = new_table();
	my $writer = writer_into_the_hang($table);

	commit_waits($writer);
	$redis->resume;
	is($writer->error_of, undef, 'committed');
	no_reservations($node);
	is(status_of($table, 1), 'missing||6|0', 'fenced');
	is(state_of('state, bypassed_transactions'), 'OPEN|0', 'nobody went without fences');
};

subtest 'Redis closes the connections in the middle of a transaction: it commits with its reservations' => sub {
	my $table = new_table();
	my $writer = writer_of($table);
	my $epoch = state_of('epoch');

	cmp_ok($redis->call(qw(CLIENT KILL TYPE normal SKIPME yes)), '>', 0, 'connections closed');
	$writer->run("UPDATE $table SET name = 'new' WHERE id = 2");
	$writer->run('COMMIT');
	no_reservations($node);
	is(status_of($table, $_), 'missing||6|0', "$_: fenced") foreach 1, 2;
	is(state_of('state, epoch, bypassed_transactions'), "OPEN|$epoch|0", 'fences were OPEN all the time');
	answers_rightly($writer, $table);
};

subtest 'Redis closes the connection after the reservation was granted, before the commit is told' => sub {
	my $table = new_table();
	my $writer = writer_of($table);

	cmp_ok($redis->call(qw(CLIENT KILL TYPE normal SKIPME yes)), '>', 0, 'connections closed');
	$writer->run('COMMIT');
	no_reservations($node);
	is(status_of($table, 1), 'missing||6|0', 'fenced');
};

subtest 'FLUSHALL in the middle of a transaction' => sub {
	my $table = new_table();
	my $writer = writer_of($table);
	my $fence = fence_of($table, 1);

	$redis->call('FLUSHALL');
	is((get($fence))[0], 'pending', 'the reservation is no key: it is still there');
	is($sql->run("SELECT fence.read('$table', '1')->>'version'"), '5', 'a read goes to PostgreSQL');
	is($redis->call('EXISTS', $fence), 0, 'and caches nothing');
	$writer->run("UPDATE $table SET name = 'new' WHERE id = 2");
	$writer->run('COMMIT');
	no_reservations($node);
	is((get(fence_of($table, $_)))[0], 'miss', "$_: a miss") foreach 1 .. 4;
	is($sql->run("SELECT fence.read('$table', '1')->>'version'"), '6', 'the new row is read,');
	is($sql->run("SELECT status, version FROM fence.get('$table', '1')"), 'hit|6', 'and cached');
	compare_fences($node, $table);
};

subtest 'a permit from before a write, and FLUSHALL, does not cache the old row' => sub {
	my $table = new_table();
	my $fence = fence_of($table, 1);

	$redis->call('FLUSHALL');
	my (undef, $permit) = get($fence);
	my $put = sub { return $redis->call(qw(FCALL fence_put 1), $fence, $permit, row_version($permit, 5), 'old', 0); };
	$sql->run("UPDATE $table SET name = 'new' WHERE id = 1");
	no_reservations($node);
	is($put->(), 'refused late', 'refused');
	$redis->call('FLUSHALL');
	is((get($fence))[0], 'miss', 'nothing is left of the write,');
	is($put->(), 'refused late', 'and it is refused again');
};

# Strong reads while $writers are busy, until all are ready; before each, $trouble is called. A hit is right if its
# version was the newest at some time between the beginning of the read and its end.
sub reads_while
{
	my ($table, $trouble, @writers) = @_;
	my (%seen, @wrong);
	my %fence = map { $_ => fence_of($table, $_) } 1 .. 4;

	while (grep { !$_->ready } @writers)
	{
		$trouble->();
		my $key = 1 + int rand 4;
		my $before = $sql->run("SELECT version FROM $table WHERE id = $key");
		my ($status, $version) = get($fence{$key});
		my $after = $sql->run("SELECT version FROM $table WHERE id = $key");
		$seen{$status}++;
		push @wrong, "$key: $before <= $version <= $after" if $status eq 'hit' && ($version < $before || $version > $after);
		$sql->run("SELECT fence.read('$table', '$key')") if $status eq 'miss';
	}
	note join ', ', map { "$seen{$_} $_" } sort keys %seen;
	is_deeply(\@wrong, [], 'every hit is the row');
	cmp_ok($seen{hit} // 0, '>', 10, 'there were hits');
	cmp_ok($seen{miss} // 0, '>', 20, 'and misses');
	return;
}

# Sessions that update the rows one by one, each in a transaction of its own.
sub busy_writers
{
	my ($table, $count) = @_;

	return map {
		my $writer = FenceTest::Session->open($node);
		$writer->begin("DO \$\$ BEGIN FOR i IN 1 .. $count LOOP "
			  . "UPDATE $table SET name = i::text WHERE id = 1 + (random() * 3)::int; COMMIT; "
			  . 'PERFORM pg_sleep(0.02); END LOOP; END $$');
		$writer
	} 1 .. 2;
}

subtest 'allkeys-lru under pressure' => sub {
	my $table = new_table();
	my ($evicted, $junk) = ($redis->info('stats', 'evicted_keys'), 'j' x 2000);
	my $n = 0;

	$redis->call(qw(CONFIG SET maxmemory-policy allkeys-lru));
	$redis->call(qw(CONFIG SET maxmemory), $redis->info('memory', 'used_memory') + 500_000);
	my @writers = busy_writers($table, 600);
	reads_while($table, sub { $redis->call('SET', 'junk' . ++$n, $junk) foreach 1 .. 20 }, @writers);
	is($_->error_of, undef, 'a writer ended well') foreach @writers;
	cmp_ok($redis->info('stats', 'evicted_keys') - $evicted, '>', 1000, 'keys were evicted');
	$redis->call(qw(CONFIG SET maxmemory 0));
	$redis->call('DEL', map { "junk$_" } 1 .. $n);
	no_reservations($node);
	compare_fences($node, $table);
};

subtest 'FLUSHALL again and again' => sub {
	my $table = new_table();
	my @writers = busy_writers($table, 400);
	my $n = 0;

	reads_while($table, sub { $redis->call('FLUSHALL') if ++$n % 15 == 0 }, @writers);
	is($_->error_of, undef, 'a writer ended well') foreach @writers;
	no_reservations($node);
	compare_fences($node, $table);
	is(state_of('state, bypassed_transactions'), 'OPEN|0', 'fences were OPEN all the time');
};

$sql->close;
$node->stop('immediate');
$redis->stop;

# ---------------------------------------------------------------------------------------------------------------------
# Redis hangs or dies, and that is noticed. This one keeps its keys on disk: old fences and values come back with it.
# ---------------------------------------------------------------------------------------------------------------------

$redis = FenceTest::Redis->start(config => [ 'appendonly yes', 'appendfsync always' ]);
$node = new_postgres('hasty', $redis, lease => '1500ms', timeout => '300ms');
$sql = FenceTest::Session->open($node);

# What every failure must bring about. fail: makes Redis go away; back: the opposite.
sub failure
{
	my ($fail, $back) = @_;
	my $free = new_table();
	my $strict = new_table("on_redis_failure => 'error'");
	my $untouched = new_table();
	my ($epoch, $bypassed) = (epoch_number(), state_of('bypassed_transactions'));
	my %writer = (
		granted    => writer_of($untouched, 'SET pgcache_fence.on_redis_failure = bypass'),
		free       => writer_of($free),
		late       => FenceTest::Session->open($node),
		timed      => FenceTest::Session->open($node),
		strict     => writer_of($strict),
		session    => writer_of($untouched, 'SET pgcache_fence.on_redis_failure = error', 2),
		mixed      => FenceTest::Session->open($node),
		overridden => FenceTest::Session->open($node));
	my $fence = fence_of($free, 1);

	$writer{timed}->run("SET statement_timeout = '100ms'");
	$writer{$_}->run('BEGIN') foreach qw(late timed mixed);
	$fail->();
	# a reservation is for the row, whatever its version
	$writer{granted}->run("UPDATE $untouched SET name = 'newer' WHERE id = 1");
	# what follows, no reservation was granted for
	$writer{free}->run("UPDATE $free SET name = 'newer' WHERE id IN (1, 5)");
	$writer{strict}->run("UPDATE $strict SET name = 'newer' WHERE id IN (1, 2)");
	$writer{session}->run("UPDATE $untouched SET name = 'newer' WHERE id IN (2, 3)");
	$writer{late}->run("UPDATE $free SET name = 'new' WHERE id = 2");
	$writer{timed}->run("UPDATE $free SET name = 'new' WHERE id = 3");
	$writer{mixed}->run("UPDATE $free SET name = 'new' WHERE id = 4; UPDATE $strict SET name = 'new' WHERE id = 4");
	my ($start, $left) = (time(), lease_left());
	$_->begin('COMMIT') foreach @writer{qw(free late timed strict session mixed granted)};

	# fences are noticed to be gone; from then on no lease is granted, and what is left of it is what bypass waits for
	foreach my $who (qw(strict session mixed))
	{
		my $error = $writer{$who}->error_of;
		like($error, qr/^08006: .*\nDETAIL:  .*\nHINT:  /, "policy error ($who): 08006 with detail and hint");
		note sprintf "after %.2f s: %s", time() - $start, $error // '';
	}
	foreach my $who (qw(free late timed))
	{
		$writer{$who}->wait;
		my $took = time() - $start;
		my $left_now = lease_left();
		is($writer{$who}->error_of, undef, "policy bypass ($who): committed"
			  . ($who eq 'timed' ? ', whatever statement_timeout says' : ''));
		is($left_now + 0, 0, 'not before the lease was over');
		note sprintf 'lease left %.2f s, committed after %.2f s', $left, $took;
		cmp_ok($took, '>', $left - 0.01, 'not before the lease was over');
		cmp_ok($took, '<', $left + 5, 'and soon after');
	}
	is($writer{granted}->error_of, undef, 'who had its reservations all granted commits');
	is($sql->run("SELECT id, version FROM $free ORDER BY id"), "1|7\n2|6\n3|6\n4|5\n5|6", 'stored: what was bypassed');
	is($sql->run("SELECT max(version) FROM $strict"), '5', 'not stored: what was refused');
	is($sql->run("SELECT id, version FROM $untouched ORDER BY id LIMIT 2"), "1|7\n2|5", 'not here either');
	like(state_of('state, reason'), qr/^(?:CLOSED|ARMING)\|./, 'the state tells');
	# one more where Redis died so fast that its answers were lost
	like(state_of('bypassed_transactions') - $bypassed, qr/^[34]$/, 'bypassed transactions are counted');

	# a table's own policy comes before the session's
	my $lenient = 'lenient' . ++$tables;
	$writer{overridden}->run("CREATE TABLE $lenient (id int PRIMARY KEY, version int NOT NULL); "
		  . "INSERT INTO $lenient VALUES (1, 1); SELECT fence.attach('$lenient', on_redis_failure => 'bypass'); "
		  . "SET pgcache_fence.on_redis_failure = 'error'");
	is($writer{overridden}->error_of("UPDATE $lenient SET id = id"), undef,
		'bypass of the table, error of the session: bypass');
	like($writer{overridden}->error_of("UPDATE $free SET name = name"), qr/^08006: /, 'error of the session');

	# while it comes back, and after: what was cached before is never a hit again where it was written
	$back->();
	my @seen;
	poll(
		sub {
			my @answer = get($fence);
			push @seen, "@answer" if $answer[0] eq 'hit';
			return $sql->run("SELECT status, version FROM fence.get('$free', '1')") eq 'hit|7'
			  || ($sql->run("SELECT fence.read('$free', '1')") && 0);
		},
		'reads to recover');
	is_deeply([ grep { $_ ne 'hit 7' } @seen ], [], 'no read hit what was cached before');
	wait_open($node);
	cmp_ok(epoch_number(), '>', $epoch, 'a new epoch');
	no_reservations($node);
	foreach my $table ($free, $strict, $untouched)
	{
		foreach my $key (1 .. 4)
		{
			poll(sub { $sql->run("SELECT status FROM fence.get('$table', '$key')") =~ /^(?:hit|miss)$/ },
				"$table is announced again");
			my $row = $sql->run("SELECT version FROM $table WHERE id = $key");
			like($sql->run("SELECT coalesce(version, $row) FROM fence.get('$table', '$key')"), qr/^$row$/,
				"$table $key: nothing stale");
		}
		answers_rightly($writer{$_}, $table) foreach 'free', 'strict';
		compare_fences($node, $table);
	}
	return;
}

subtest 'Redis hangs (SIGSTOP)' => sub { failure(sub { $redis->pause }, sub { $redis->resume }); };
subtest 'Redis is killed' => sub { failure(sub { $redis->kill9 }, sub { $redis->restart }); };

subtest 'a reservation of the last epoch is none: a transaction that outlives it reserves again' => sub {
	my $table = new_table();
	my $writer = writer_of($table);
	my $epoch = epoch_number();

	$redis->kill9;
	$redis->restart;
	poll(sub { state_of('state') eq 'OPEN' && epoch_number() > $epoch }, 'a new epoch');
	poll(sub { $sql->run("SELECT status FROM fence.get('$table', '1')") eq 'miss' }, 'the table to be announced');
	is($sql->run("SELECT fence.read('$table', '1')->>'version'"), '5', 'a reader finds the old row, still the newest,');
	is($sql->run("SELECT status, version FROM fence.get('$table', '1')"), 'hit|5', 'and caches it');
	is($writer->error_of('COMMIT'), undef, 'then the transaction commits');
	no_reservations($node);
	is(status_of($table, 1), 'missing||6|0', 'fenced');
	is($sql->run("SELECT status FROM fence.get('$table', '1')"), 'miss', 'what was cached is over');
};

subtest 'Redis hangs for less than a lease, nobody bypasses: the epoch goes on' => sub {
	my $table = new_table();
	my $reader = FenceTest::Session->open($node);
	my $epoch = state_of('epoch');

	is($reader->run("SELECT status FROM fence.get('$table', '1')"), 'hit', 'a get before');
	$redis->pause;
	is($reader->run("SELECT status FROM fence.get('$table', '1')"), 'unavailable', 'after the timeout a get says so');
	is($reader->run("SELECT fence.read('$table', '2')->>'version'"), '5', 'a read goes to PostgreSQL');
	wait_state($node, 'CLOSED');
	$redis->resume;
	wait_open($node);
	is(state_of('epoch'), $epoch, 'the same epoch');
	is($reader->run("SELECT status, version FROM fence.get('$table', '1')"), 'hit|5', 'what was cached is a hit again');
	answers_rightly($reader, $table);
	no_reservations($node);
	compare_fences($node, $table);
};

subtest 'Redis is out of memory and evicts nothing: writers and hits go on, nothing new is cached' => sub {
	my $table = new_table("cache => 'none'");
	my $through = new_table("cache => 'row'");
	my $writer = writer_of($table);
	my $before = state_of('epoch, bypassed_transactions');
	my $monitor = $redis->connect;

	$redis->call(qw(CONFIG SET maxmemory-policy noeviction));
	$redis->call(qw(CONFIG SET maxmemory 1));
	# each quarter of the lease: it runs on
	$monitor->call('MONITOR');
	for (my $renewals = 0; $renewals < 6;) { $renewals++ if $monitor->reply =~ /"fence_renew"/; }
	is($writer->error_of('COMMIT'), undef, 'what was reserved before commits');
	is($writer->error_of("UPDATE $table SET name = 'new' WHERE id = 2"), undef, 'so does what is reserved now: that frees memory');
	is($writer->error_of("UPDATE $through SET name = 'new' WHERE id = 1"), undef, 'and what brings its row');
	no_reservations($node);
	is($sql->run("SELECT status, version FROM fence.get('$table', '3')"), 'hit|5', 'what was cached is a hit');
	foreach my $case ([ $table, 1 ], [ $table, 2 ], [ $through, 1 ])
	{
		is($sql->run("SELECT fence.read('$case->[0]', '$case->[1]') ->> 'version'"), '6', "@$case: a read goes to PostgreSQL");
		is($sql->run("SELECT status FROM fence.get('$case->[0]', '$case->[1]')"), 'miss', 'and caches nothing');
	}
	my $fence = fence_of($table, 1);
	my (undef, $permit) = get($fence);
	like($redis->error_of(qw(FCALL fence_put 1), $fence, $permit, row_version($permit, 6), '{}', 0), qr/OOM/, 'a plain client is told why');
	is(state_of('state'), 'OPEN', 'fences are OPEN');
	is(state_of('epoch, bypassed_transactions'), $before, 'in the same epoch, and nobody went without');
	$redis->call(qw(CONFIG SET maxmemory 0));
	foreach ($table, $through)
	{
		answers_rightly($writer, $_) if $_ eq $table;
		no_reservations($node);
		compare_fences($node, $_);
	}
};

$node->stop('fast');

# ---------------------------------------------------------------------------------------------------------------------
# Somebody's parallel queries hold every background worker
# ---------------------------------------------------------------------------------------------------------------------

subtest 'no background worker is free: Redis comes back, fences are opened, announced, settled' => sub {
	$node = new_postgres('slots', $redis, lease => '1500ms', max_worker_processes => 8, max_parallel_workers => 8);
	$sql = FenceTest::Session->open($node);
	my $table = new_table();

	$sql->run('CREATE DATABASE second');
	my $second = FenceTest::Session->open($node, dbname => 'second');
	$second->run('CREATE EXTENSION pgcache_fence; CREATE TABLE other (id int PRIMARY KEY, version bigint NOT NULL DEFAULT 0)');
	$second->run("INSERT INTO other VALUES (1); SELECT fence.attach('other')");
	my $answer_of_second = sub { $second->run("SELECT status FROM fence.get('other', '1')") };
	poll(sub { $answer_of_second->() ne 'unarmed' }, 'the second database');

	$sql->run('CREATE ROLE greedy LOGIN; GRANT CREATE ON SCHEMA public TO greedy');
	my $greedy = FenceTest::Session->open($node, user => 'greedy', timeout => 180);
	$greedy->run('CREATE TABLE mine (g int, wide char(1000)) WITH (parallel_workers = 8); '
		  . 'INSERT INTO mine SELECT g, g FROM generate_series(1, 200) g; '
		  . 'CREATE FUNCTION hold(int) RETURNS bool PARALLEL SAFE COST 1000000 LANGUAGE plpgsql AS '
		  . q{$$BEGIN PERFORM pg_sleep(0.1) FROM generate_series(1, 6000); RETURN true; END$$;}
		  . 'SET max_parallel_workers_per_gather = 8; SET min_parallel_table_scan_size = 0; '
		  . 'SET parallel_leader_participation = off');
	my $held = sub { $sql->run("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'parallel worker'") };
	my $all = 8 - 5 - 1;    # the five that stay, and that of logical replication
	# a job may have one when the query begins
	poll(sub {
			$greedy->begin('SELECT count(*) FROM mine WHERE hold(g)');
			my $begun = time();
			poll(sub { $held->() == $all || time() > $begun + 2 }, 'its workers');
			return 1 if $held->() == $all;
			$sql->run('SELECT pg_cancel_backend(' . $greedy->pid . ')');
			$greedy->error_of;
			poll(sub { $held->() == 0 }, 'their end');
			return 0;
		}, 'every free background worker');
	is($held->(), $all, 'one role has all that are free');

	my $epoch = epoch_number();
	$redis->kill9;
	$redis->restart;
	my $start = time();
	poll(sub { state_of('state') eq 'OPEN' && epoch_number() > $epoch }, 'a new epoch');
	note sprintf 'OPEN after %.2f s', time() - $start;
	poll(sub { $sql->run("SELECT status FROM fence.get('$table', '1')") ne 'unarmed' }, 'the first database to be announced', 20);
	note sprintf 'the first database is announced after %.2f s', time() - $start;
	poll(sub { $answer_of_second->() ne 'unarmed' }, 'the second database to be announced', 20);
	note sprintf 'the second database is announced after %.2f s', time() - $start;
	is($held->(), $all, 'it has them still');

	my $fence = fence_of($table, 2);
	my $namespace = $sql->run('SHOW pgcache_fence.namespace');
	my $xid = $sql->run('SELECT pg_current_xact_id()');
	cmp_ok($redis->call(qw(FCALL fence_write 0), "$namespace " . state_of('epoch'), "$xid.0000abcd", 1, $fence), '>', 0, 'an orphan,');
	$sql->run("SELECT fence.reserve('$table', NULL, '1 ms', '3')");
	$start = time();
	no_reservations($node, 20);
	note sprintf 'it, and a detached one, are settled after %.2f s', time() - $start;
	is($held->(), $all, 'and has them still');
	$sql->run("UPDATE $table SET name = 'new'");
	is($sql->run("SELECT fence.read('$table', '1') ->> 'name'"), 'new', 'written, and read');
	no_reservations($node);
	compare_fences($node, $table);
	$sql->run('SELECT pg_cancel_backend(' . $greedy->pid . ')');
	$greedy->error_of;
	$_->close foreach $greedy, $second;
	$node->stop('fast');
};

done_testing();
