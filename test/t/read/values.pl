# What beside the version is told of a commit, and who fills in what is missing: write-through, fill leases, events.
# None of it may be needed for freshness.

use strict;
use warnings;

use FenceTest;
use FenceTest::Session;
use Test::More;
use Time::HiRes qw(time);

my $redis = FenceTest::Redis->start;
my $node = new_postgres('main', $redis, max_prepared_transactions => 10, fill_lease => '3s');
my $sql = FenceTest::Session->open($node);
my ($database) = $sql->run("SELECT fence.fence_prefix('x')") =~ /:f:(\w+)\.x$/;
my $ns = $sql->run('SHOW pgcache_fence.namespace');

# ---------------------------------------------------------------------------------------------------------------------
# Tools
# ---------------------------------------------------------------------------------------------------------------------

# A domain with rows 1 to 10, cached.
sub new_table
{
	my ($name, $attach) = @_;

	$sql->run("CREATE TABLE $name (id int PRIMARY KEY, name text DEFAULT 'old', version bigint NOT NULL DEFAULT 0)");
	$sql->run("INSERT INTO $name SELECT g FROM generate_series(1, 10) g");
	$sql->run("SELECT fence.attach('$name', $attach)");
	# of a row that is none: whoever gets a miss is asked to fill
	poll(sub { status($name, 0) eq 'miss' }, "$name is announced");
	$sql->run("SELECT fence.read('$name', id::text) FROM $name");
	is($sql->run("SELECT bool_and((fence.get('$name', id::text)).status = 'hit') FROM $name"), 't', "$name is cached");
	return;
}

sub status { my ($name, $key) = @_; return $sql->run("SELECT status FROM fence.get('$name', '$key')"); }
sub fence_of { my ($name, $key) = @_; return $sql->run("SELECT fence.fence_key('$name', '$key')"); }
sub get { my ($fence) = @_; return $redis->call(qw(FCALL_RO fence_get 1), $fence); }

# Nothing is cached, and whoever asks now is the first: he is asked to fill. The permit that he gets.
sub ask_to_fill
{
	my ($fence) = @_;

	$redis->call('DEL', $fence);
	$redis->call(qw(FCALL_RO fence_release 1), $fence);
	my ($status, $permit, @more) = @{ get($fence) };
	is("$status@more", 'miss', 'somebody is asked to fill');
	return $permit;
}

# Seconds that a statement takes in the session, and what it returns.
sub timed
{
	my ($session, $statement) = @_;
	my $started = time();
	my $result = $session->run($statement);

	return (time() - $started, $result);
}

# ---------------------------------------------------------------------------------------------------------------------
# Write-through
# ---------------------------------------------------------------------------------------------------------------------

subtest 'write-through and two-phase commit: settled without a value' => sub {
	new_table('two', "cache => 'row'");
	$sql->run("BEGIN; UPDATE two SET name = 'new' WHERE id = 1; PREPARE TRANSACTION 'p'");
	is(status('two', 1), 'pending', 'prepared');
	$sql->run("COMMIT PREPARED 'p'");
	no_reservations($node);
	is(status('two', 1), 'miss', 'a miss: nobody has the row any more');
	like($sql->run("SELECT fence.read('two', '1')"), qr/"new"/, 'read');
	$sql->run("BEGIN; UPDATE two SET name = 'never' WHERE id = 2; PREPARE TRANSACTION 'p'; ROLLBACK PREPARED 'p'");
	no_reservations($node);
	is(status('two', 2), 'miss', 'rolled back: a miss, too');
	compare_fences($node, 'two');
};

subtest 'a value that expires' => sub {
	new_table('brief', "cache => 'row', ttl => '1500 ms'");
	$sql->run("UPDATE brief SET name = 'new' WHERE id = 1");
	is(status('brief', 1), 'hit', 'written');
	poll(sub { status('brief', 1) eq 'miss' }, 'its end');
	like($sql->run("SELECT fence.read('brief', '1')"), qr/"new"/, 'read');
};

subtest 'nothing is cached for ever' => sub {
	# milliseconds that are left, with the setting and with the table's own
	my %left = (
		default => sub { my $n = shift; return $n > 0 && $n <= 7_200_000; },
		own => sub { my $n = shift; return $n > 7_200_000 && $n <= 10_800_000; });
	my $left_of = sub { return $redis->call('PTTL', $_[0]); };

	new_table('mortal', "cache => 'row', cache_absent => true");
	new_table('lasting', "cache => 'row', ttl => '3 hours'");
	my $fence = fence_of('mortal', 1);
	my $value = $fence =~ s/:f:/:v:/r;
	$node->append_conf('postgresql.conf', "pgcache_fence.default_ttl = '2h'");
	$node->reload;
	poll(
		sub {
			$redis->call('DEL', $fence);
			$sql->run("SELECT fence.read('mortal', '1')");
			return $left{default}->($left_of->($fence));
		},
		'the setting, of what a reader stores');

	foreach my $name (qw(mortal lasting))
	{
		my $is = $left{ $name eq 'mortal' ? 'default' : 'own' };
		my $stored = sub { my ($key, $who) = @_; ok($is->($left_of->(fence_of($name, $key))), "$name: $who"); };

		# a commit stores its row a moment later, and not while Redis is not armed, as it may be on a busy machine
		my $written = sub {
			my ($key, $who, $statement) = @_;
			my $there = sub { return $is->($left_of->(fence_of($name, $key))) };

			poll(sub { return $there->() || ($sql->run($statement) // 1) && $there->(); }, "$name: $who");
		};

		$redis->call('DEL', fence_of($name, 2));
		$sql->run("SELECT fence.read('$name', '2')");
		$stored->(2, 'read');
		$redis->call('DEL', fence_of($name, 3));
		$sql->run("SELECT count(*) FROM fence.read_many(fence.fence_keys('$name', '{3}'))");
		$stored->(3, 'read of many');
		$written->(4, 'written', "UPDATE $name SET name = 'new' WHERE id = 4");
		$written->(11, 'new', "DELETE FROM $name WHERE id = 11; INSERT INTO $name VALUES (11)");
		$redis->call('DEL', fence_of($name, 5));
		$sql->run("SELECT fence.put('$name', permit, 0, 'put', NULL, '5') FROM fence.get('$name', '5')");
		$stored->(5, 'put');
	}
	$sql->run("DELETE FROM mortal WHERE id = 6; SELECT fence.read('mortal', '12')");
	ok($left{default}->($left_of->(fence_of('mortal', $_))), "no row $_") foreach (6, 12);
	# of a client, beside the fence that it marks
	$redis->call('DEL', $fence);
	my $permit = $redis->call('FCALL_RO', 'fence_token', 1, $fence);
	is($redis->call('FCALL', 'fence_put', 2, $fence, "$value:xml", $permit, row_version($permit, 0), '<row/>', 0), 'stored', 'beside the fence');
	ok($left{default}->($left_of->($_)), "$_") foreach ($fence, "$value:xml");
	is($redis->call('FCALL', 'fence_put', 1, $fence, $permit, row_version($permit, 0), 'payload', 500), 'stored', 'for half a second');
	cmp_ok($left_of->($fence), '<=', 500, 'no longer');
	my @immortal = grep { $left_of->($_) == -1 } map { @{ $redis->call('KEYS', "$ns:$_:*") } } qw(f v);
	is("@immortal", '', 'no fence and no value is without an end');
};

subtest 'a client puts any bytes' => sub {
	new_table('bytes', "cache => 'none', cache_absent => true");
	my $fence = fence_of('bytes', 1);
	my $put = sub {
		my $permit = $redis->call('FCALL_RO', 'fence_token', 1, $fence);

		is($redis->call('FCALL', 'fence_put', 1, $fence, $permit, row_version($permit, 0), @_, 0), 'stored', 'put');
	};

	foreach my $payload ("\0" x 4_000_000, "null\0" . 'x' x 4_000_000, "\xff" x 20)
	{
		$put->($payload);
		like($sql->error_of("SELECT fence.get('bytes', '1')"), qr/^22021: the cached value is not valid text/, 'get: no text');
		is($sql->run("SELECT fence_version, relation FROM fence.status('bytes', '1')"), '0|equal', 'the audit does not judge it');
		is($sql->run("SELECT fence.read('bytes', '1')->>'name'"), 'old', 'read: the row');
	}
};

subtest 'values give way to commits where there is no room for both' => sub {
	# nobody settles: what a commit could not say stays pending
	my $other = new_postgres('room', $redis, patrol_interval => '1h', patrol_grace => '1h', lease => '10s', timeout => '10s');
	my $writer = FenceTest::Session->open($other);
	$writer->run("CREATE TABLE wide (id int PRIMARY KEY, body text, version bigint NOT NULL DEFAULT 0)");
	$writer->run("INSERT INTO wide SELECT g FROM generate_series(1, 12) g");
	$writer->run("SELECT fence.attach('wide', cache => 'row')");
	poll(sub { $writer->run("SELECT status FROM fence.get('wide', '0')") eq 'miss' }, 'wide is announced');
	$writer->run("SELECT fence.read('wide', id::text) FROM wide");
	$writer->run("SET pgcache_fence.value_limit = '512kB'");
	my $count = sub { return $writer->run("SELECT count(*) FROM wide WHERE (fence.get('wide', id::text)).status = '$_[0]'"); };

	# answered before the courier stops, so the commit waits for nothing: all that it says stays in the ring
	my $courier = $writer->run("SELECT pid FROM pg_stat_activity WHERE backend_type = 'pgcache_fence courier'");
	$writer->run("BEGIN; UPDATE wide SET body = repeat('w', 300000)");
	$writer->run("SELECT * FROM fence.status('wide', '1')");
	kill 'STOP', $courier;
	$writer->begin('COMMIT');
	my $done = eval { poll(sub { $writer->ready }, 'the commit', 8) };
	kill 'CONT', $courier;
	ok($done, 'a commit does not wait for room') or diag($@);
	$writer->take;
	is($count->('pending'), 0, 'every commit was told');
	cmp_ok($count->('hit'), '>', 0, 'some values too');
	cmp_ok($count->('miss'), '>', 0, '... but not all');
	# the next ones have all the room again
	$writer->run("UPDATE wide SET body = repeat('v', 40000)");
	is($count->('hit'), 12, 'and later all');
	$writer->run('UPDATE wide SET body = NULL');
	compare_fences($other, 'wide');
	$other->stop('fast');
};

# ---------------------------------------------------------------------------------------------------------------------
# Fill leases
# ---------------------------------------------------------------------------------------------------------------------

subtest 'read waits for who was asked to fill, no longer than told' => sub {
	new_table('hot', "cache => 'none'");
	my $fence = fence_of('hot', 1);
	my $reader = FenceTest::Session->open($node);

	ask_to_fill($fence);
	my ($took, $got) = timed($reader, "SELECT fence.read('hot', '1')");
	like($got, qr/"old"/, 'he does not: another reads the row');
	cmp_ok($took, '>=', 1, "after a while: $took s");
	is(status('hot', 1), 'hit', '... and fills');

	my $permit = ask_to_fill($fence);
	$reader->begin("SELECT fence.read('hot', '1')");
	is($redis->call(qw(FCALL fence_put 1), $fence, $permit, row_version($permit, 0), '"filled"', 0), 'stored', 'he does');
	is($reader->take, '"filled"', 'the other has what he put');

	ask_to_fill($fence);
	$reader->run("SET statement_timeout = '100ms'");
	like($reader->error_of("SELECT fence.read('hot', '1')"), qr/^57014/, 'the wait can be interrupted');
	$reader->run('RESET statement_timeout');

	($took) = timed($reader, "SELECT fence.read('hot', (1000 + g)::text), fence.read('hot', (1000 + g)::text), "
		  . "fence.read('hot', (1000 + g)::text) FROM generate_series(1, 5) g");
	cmp_ok($took, '<', 3, "no reader waits for a row that does not exist: $took s");
};

subtest 'a reload changes the fill lease' => sub {
	my $fence = fence_of('hot', 2);
	# the second one that asks
	my $second = sub { $redis->call(qw(FCALL_RO fence_release 1), $fence); get($fence); return get($fence); };

	$redis->call('DEL', $fence);

	$node->append_conf('postgresql.conf', 'pgcache_fence.fill_lease = 0');
	$node->reload;
	poll(sub { @{ $second->() } == 2 }, 'nobody is told to wait');
	$node->append_conf('postgresql.conf', 'pgcache_fence.fill_lease = 2s');
	$node->reload;
	poll(sub { my (undef, undef, undef, $busy) = @{ $second->() }; ($busy // 0) > 600 }, 'the longer lease');
	ok(1, 'both reached Redis');
};

subtest '200 readers of one missing key' => sub {
	my $fence = fence_of('hot', 3);
	my $readers = 200;
	my %run;

	$sql->run('CREATE SEQUENCE reads');
	# takes its time, as a read of a busy server does
	my $query = "SELECT fence.row_version(version), CASE WHEN nextval('reads') > 0 AND pg_sleep(0.02) IS NOT NULL THEN 'right' END FROM hot WHERE id = 3";
	foreach my $mode (qw(ignore wait dead))
	{
		$redis->call('DEL', $fence);
		$redis->call(qw(FCALL_RO fence_release 1), $fence);
		$sql->run("SELECT setval('reads', 1, false)");
		my ($reads, $hits, $longest) = split ' ', readpipe(join ' ', map { "'" . s/'/'\\''/gr . "'" }
			  '/usr/bin/python3', "$TOP/test/lib/herd.py", $redis->socket, $node->connstr('postgres'), $readers, $mode, $fence, $query);
		is($?, 0, "$mode: the readers ended well") or next;
		is($sql->run("SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM reads"), $reads, "$mode: PostgreSQL has counted the same");
		note("$mode: $readers readers, $reads reads of PostgreSQL, $hits hits, the slowest had its answer after $longest ms");
		$run{$mode} = { reads => $reads, hits => $hits, longest => $longest };
	}
	# on a machine that is too busy to fill within the lease others fill as well
	my $most = $run{wait}{longest} < 2_500 ? 3 : $readers - 1;
	cmp_ok($run{wait}{reads}, '<=', $most, 'who honours busy spares PostgreSQL the herd');
	cmp_ok($run{ignore}{reads}, '>', $run{wait}{reads}, 'and who does not sends it there');
	cmp_ok($run{dead}{reads}, '<=', 20, 'a filler that dies costs a wait, and a few reads');
	cmp_ok($run{dead}{longest}, '<', 20_000, '... that ends');
};

# ---------------------------------------------------------------------------------------------------------------------
# Events
# ---------------------------------------------------------------------------------------------------------------------

subtest 'pubsub' => sub {
	new_table('pub', "cache => 'row', publish => 'pubsub'");
	my $listener = $redis->connect;
	$listener->call('SUBSCRIBE', "$ns:e:$database.pub");
	my $fence = sub { return fence_of('pub', $_[0]); };
	my $next = sub { return (split / /, $listener->reply->[2])[ 0 .. 2 ]; };

	$sql->run("UPDATE pub SET name = 'new' WHERE id = 1");
	is(join(' ', $next->()), "$database.pub " . $fence->(1) . ' 1', 'an UPDATE');
	$sql->run("BEGIN; UPDATE pub SET name = 'never' WHERE id = 2; ROLLBACK");
	$sql->run("BEGIN; SAVEPOINT a; UPDATE pub SET name = 'never' WHERE id = 3; ROLLBACK TO a; DELETE FROM pub WHERE id = 4; COMMIT");
	is(join(' ', $next->()), "$database.pub " . $fence->(4) . ' 1', 'a DELETE; nothing of the transaction that was rolled back');
	is(join(' ', $next->()), "$database.pub " . $fence->(3) . ' -', 'of a savepoint that was: the row was reserved, a version is not told');
	$sql->run("BEGIN; UPDATE pub SET name = 'new' WHERE id = 5; PREPARE TRANSACTION 'p'");
	$sql->run("COMMIT PREPARED 'p'");
	is(join(' ', $next->()), "$database.pub " . $fence->(5) . ' -', 'COMMIT PREPARED, by the patrol');
	$sql->run("SET pgcache_fence.bulk_threshold = 1; UPDATE pub SET name = 'all'; RESET pgcache_fence.bulk_threshold");
	is(join(' ', $next->()), "$database.pub - -", 'many rows: one event for all');
	like(join(' ', $next->()), qr/^\Q$database\E\.pub \S+\{\d+\} -$/, 'and one for the row that was reserved before the table was');
	$sql->run('TRUNCATE pub');
	is(join(' ', $next->()), "$database.pub - -", 'TRUNCATE');
	is($sql->run("SELECT publish FROM fence.domains WHERE domain = 'pub'"), 'pubsub', 'as the view tells');
};

subtest 'stream' => sub {
	new_table('flow', "publish => 'stream'");
	$sql->run("UPDATE flow SET name = 'new' WHERE id < 4");
	status('flow', 1);
	is($redis->call('XLEN', "$ns:e:$database.flow"), 3, 'an entry for each row');
};

subtest 'notify' => sub {
	new_table('word', "publish => 'notify'");
	my $listener = FenceTest::Session->open($node);
	my $heard = sub { return [ map { /payload "(.*?)"/ ? (split / /, $1)[ 0 .. 2 ] : () } split /\n/, $listener->run('SELECT 1') ]; };
	my $fence = fence_of('word', 1);

	$listener->run('LISTEN pgcache_fence');
	$sql->run("BEGIN; UPDATE word SET name = 'new' WHERE id = 1; UPDATE word SET name = 'newer' WHERE id = 1; COMMIT");
	is_deeply($heard->(), [ "$database.word", $fence, 2 ], 'the version that is committed');
	$sql->run("BEGIN; UPDATE word SET name = 'never' WHERE id = 2; ROLLBACK");
	$sql->run("BEGIN; SAVEPOINT a; UPDATE word SET name = 'never' WHERE id = 2; ROLLBACK TO a; COMMIT");
	is_deeply($heard->(), [], 'nothing of what is rolled back');
	$sql->run("BEGIN; UPDATE word SET name = 'row' WHERE id = 1; TRUNCATE word; COMMIT");
	is_deeply($heard->(), [ "$database.word", '-', '-' ], 'one word for the whole table');
	$sql->run('INSERT INTO word (id) VALUES (1)');
	$heard->();

	$sql->run("BEGIN; UPDATE word SET name = 'new' WHERE id = 1");
	my $error = $sql->error_of("PREPARE TRANSACTION 'p'");
	like($error, qr/^0A000: cannot PREPARE a transaction that has changed a table with publish => 'notify'/, 'PREPARE is refused');
	like($error, qr/publish => 'pubsub'/, 'with a hint');
	is($sql->run('SELECT count(*) FROM pg_prepared_xacts'), 0, 'nothing is prepared');
	no_reservations($node);
	$sql->run("BEGIN; SAVEPOINT a; UPDATE word SET name = 'never' WHERE id = 1; ROLLBACK TO a; PREPARE TRANSACTION 'p'");
	$sql->run("ROLLBACK PREPARED 'p'");
	ok(1, 'but not of a transaction that would tell nothing');
};

subtest 'with every event lost strong reads are right' => sub {
	new_table("deaf_$_", "cache => 'row', publish => '$_'") foreach qw(pubsub stream notify);
	# Redis refuses to publish; nobody listens to NOTIFY
	$redis->call('ACL', 'SETUSER', 'default', '-publish', '-spublish', '-xadd', 'resetchannels');
	foreach my $kind (qw(pubsub stream notify))
	{
		my $name = "deaf_$kind";
		my $stale = 0;
		foreach my $i (1 .. 20)
		{
			$sql->run("UPDATE $name SET name = 'round $i' WHERE id = 1");
			$stale++ if $sql->run("SELECT fence.read('$name', '1')") !~ /"round $i"/;
		}
		$sql->run("DELETE FROM $name WHERE id = 2");
		$stale++ if $sql->run("SELECT fence.read('$name', '2')") ne '';
		$sql->run("SET pgcache_fence.bulk_threshold = 1; UPDATE $name SET name = 'all'; RESET pgcache_fence.bulk_threshold");
		$stale++ if $sql->run("SELECT count(*) FROM $name WHERE fence.read('$name', id::text) ->> 'name' = 'all'") != 9;
		$sql->run("TRUNCATE $name");
		$stale++ if $sql->run("SELECT fence.read('$name', '1')") ne '';
		is($stale, 0, "$kind: no stale read");
		is(status($name, 1), 'miss', '... and still served');
		compare_fences($node, $name);
	}
	is($redis->call('EXISTS', "$ns:e:$database.deaf_stream"), 0, 'none was sent');
	$redis->call('ACL', 'SETUSER', 'default', 'allcommands', 'allchannels');
	no_reservations($node);
};

done_testing();
