# The courier, which carries what backends leave in the ring, and the backends' own connections: ended, stopped, cut,
# hanging, another process behind the same address. Nothing hangs for longer than promised, nothing is left over.

use strict;
use warnings;

use FenceTest;
use FenceTest::Session;
use File::Temp;
use Test::More;
use Time::HiRes qw(time);

my ($redis, $node, $sql);
my $nodes = 0;

# ---------------------------------------------------------------------------------------------------------------------
# Tools
# ---------------------------------------------------------------------------------------------------------------------

sub begin_with
{
	my (%settings) = @_;

	$redis = FenceTest::Redis->start unless $settings{redis_url};
	$node = new_postgres('main' . ++$nodes, $settings{redis_url} ? undef : $redis, %settings);
	$sql = FenceTest::Session->open($node);
	$sql->run("CREATE TABLE item (id int PRIMARY KEY, name text DEFAULT 'x', version bigint NOT NULL DEFAULT 0)");
	$sql->run('INSERT INTO item (id) SELECT g FROM generate_series(1, 1000) g');
	$sql->run("SELECT fence.attach('item')");
	poll(sub { $sql->run("SELECT status FROM fence.get('item', '1')") ne 'unarmed' }, 'the domain');
	return;
}

sub finish { no_reservations($node); compare_fences($node, 'item'); $node->stop('fast'); return; }
sub state_of { my ($field) = @_; return $sql->run("SELECT $field FROM fence.state"); }
sub courier { return $sql->run("SELECT pid FROM pg_stat_activity WHERE backend_type = 'pgcache_fence courier'"); }
sub status { my ($key) = @_; return $sql->run("SELECT status FROM fence.get('item', '$key')"); }

# Seconds that a statement takes in the session.
sub seconds
{
	my ($session, $statement) = @_;
	my $started = time();

	$session->run($statement);
	return time() - $started;
}

# ---------------------------------------------------------------------------------------------------------------------

subtest 'ended: the next one carries on' => sub {
	begin_with(lease => '10s', timeout => '5s');
	my $epoch = state_of('epoch');
	my $writer = FenceTest::Session->open($node);
	my $old = courier();

	$sql->run("SELECT fence.read('item', '1')");
	is(status(1), 'hit', 'cached');
	$writer->run("BEGIN; UPDATE item SET name = 'new' WHERE id = 1");
	$sql->run("SELECT pg_terminate_backend($old)");
	# the reservation went out before, or is sent again; either way the commit waits for its answer
	$writer->run('COMMIT');
	isnt(status(1), 'hit', 'what was cached is not served');
	poll(sub { my $new = courier(); return $new ne '' && $new ne $old }, 'the next courier');
	$writer->run("UPDATE item SET name = 'newer' WHERE id = 1");
	is(state_of('epoch'), $epoch, 'no new epoch was needed');
	is(state_of('bypassed_transactions'), 0, 'nothing was committed without a reservation');
	finish();
};

subtest 'stopped: writes go on' => sub {
	begin_with(lease => '2s', timeout => '500ms', patrol_interval => '200ms', patrol_grace => '200ms');
	my $writer = FenceTest::Session->open($node);
	my $reader = FenceTest::Session->open($node);
	my $courier = courier();

	$sql->run("SELECT fence.read('item', '1')");
	is(status(1), 'hit', 'cached');
	kill 'STOP', $courier;
	$writer->run("BEGIN; UPDATE item SET name = 'many' WHERE id <= 400");
	my $asked = seconds($writer, "SELECT fence.get('item', '900')");
	cmp_ok($asked, '<', 10, "a question waits once, not for each of 400 messages: $asked s");
	my $committed = seconds($writer, 'COMMIT');
	cmp_ok($committed, '<', 40, "nor does a commit: $committed s");
	isnt(status(1), 'hit', 'and nothing old is served');
	is($reader->run("SELECT fence.read('item', '1') ->> 'name'"), 'many', 'the row itself is');
	kill 'CONT', $courier;
	poll(sub { state_of('state') eq 'OPEN' }, 'OPEN');
	finish();
};

subtest 'TRUNCATE, then INSERT, which overtakes the end of the other' => sub {
	begin_with(lease => '60s', timeout => '20s');
	my @writers = map { FenceTest::Session->open($node) } 1 .. 2;

	foreach my $writer (@writers)
	{
		my $courier = courier();

		$sql->run("UPDATE item SET name = 'new'; SELECT count(fence.read('item', id::text)) FROM item");
		is(status(1), 'hit', 'cached, above version 0');
		$writers[0]->run('BEGIN; TRUNCATE item');
		poll(sub { $sql->run("SELECT count(*) FROM fence.pending WHERE key IS NULL") eq '1' }, 'the table to be reserved');
		poll(sub { status(1) eq 'pending' }, 'no reader to be answered') for 1 .. 20;    # time for the courier to hear of it
		kill 'STOP', $courier;
		$writers[0]->run('COMMIT');
		is($writer->error_of('INSERT INTO item (id) SELECT g FROM generate_series(1, 300) g'), undef, 'the INSERT does not wait for it');
		kill 'CONT', $courier;
		is($sql->run('SELECT count(*), max(version) FROM item'), '300|0', 'inserted, versions begin anew');
	}
	finish();
};

subtest 'a message that has just come is not one that nobody carries' => sub {
	begin_with(lease => '60s', timeout => '1500ms');
	my $courier = courier();
	my $keeper_looks = sub {
		$sql->run('SELECT pg_reload_conf()');
		poll(sub { $sql->run("SELECT lease_left > '59s' FROM fence.nodes") eq 't' || state_of('state') ne 'OPEN' },
			'the keeper to look');
	};

	$keeper_looks->();
	my $looked = time();
	# longer than a message may lie: the timeout and what a restart of the courier takes
	poll(sub { time() - $looked > 5 }, 'a while without messages');
	kill 'STOP', $courier;
	$sql->run("UPDATE item SET name = 'new' WHERE id = 1");
	$keeper_looks->();
	kill 'CONT', $courier;
	is(state_of('state'), 'OPEN', 'fences stay OPEN');
	finish();
};

subtest 'taken along by a transaction that then stays open' => sub {
	begin_with(lease => '60s', timeout => '5s');
	my $idle = FenceTest::Session->open($node);
	my $courier = courier();

	$idle->run("UPDATE item SET name = 'connected' WHERE id = 2");
	poll(sub { status(1) ne 'pending' }, 'the first connection');
	kill 'STOP', $courier;
	$sql->run("UPDATE item SET name = 'new' WHERE id = 1");
	$idle->run("BEGIN; UPDATE item SET name = 'open' WHERE id = 2");
	kill 'CONT', $courier;
	my $asked = seconds($sql, "SELECT fence.get('item', '1')");
	cmp_ok($asked, '<', 4, "who asks does not wait for it: $asked s");
	$idle->run('ROLLBACK');
	finish();
};

subtest 'a call of one row takes one end along, one of many rows all that there are' => sub {
	begin_with(lease => '60s', timeout => '5s');
	my @writers = map { FenceTest::Session->open($node) } 1 .. 7;
	my $courier = courier();
	my $monitor = $redis->connect;
	my @calls;

	$_->run("UPDATE item SET name = 'connected' WHERE id = 2") foreach @writers;
	poll(sub { status(2) ne 'pending' }, 'no end to be left');
	kill 'STOP', $courier;
	$monitor->call('MONITOR');
	$writers[$_]->run("BEGIN; UPDATE item SET name = 'new' WHERE id = 10 + $_") foreach 0 .. 4;
	$_->run('COMMIT') foreach @writers[ 0 .. 4 ];
	$writers[5]->run("BEGIN; UPDATE item SET name = 'new' WHERE id = 20");
	$writers[6]->run("BEGIN; UPDATE item SET name = 'new' WHERE id BETWEEN 30 AND 60");
	while (@calls < 8)
	{
		my ($rows, $rest) = $monitor->reply =~ /"fence_write" "0" "[^"]*" "[^"]*" "(\d+)(?:#\d\d)?"((?: "[^"]*")*)/ or next;
		push @calls, "$rows, " . (($rest =~ tr/"//) / 2 - $rows);
	}
	kill 'CONT', $courier;
	is_deeply(\@calls, [ ('1, 0') x 5, '1, 1', '1, 1', '16, 3' ], 'rows and ends of each call') or diag explain \@calls;
	$_->run('ROLLBACK') foreach @writers[ 5, 6 ];
	finish();
};

subtest 'its connection is cut, again and again' => sub {
	begin_with(lease => '10s', timeout => '5s');
	my $writer = FenceTest::Session->open($node);

	# all connections, the keeper's too
	foreach my $round (1 .. 20)
	{
		$writer->run("BEGIN; UPDATE item SET name = 'round $round' WHERE id BETWEEN 1 AND 5");
		$redis->call('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes');
		$writer->run('COMMIT');
	}
	is($sql->run('SELECT count(*) FROM item WHERE id <= 5 AND version = 20'), 5, 'all were committed');
	finish();
};

subtest 'another process behind the same address' => sub {
	my $second = FenceTest::Redis->start;
	$redis = FenceTest::Redis->start;
	my $dir = File::Temp::tempdir(CLEANUP => 1);
	chmod 0755, $dir;
	symlink $redis->socket, "$dir/redis";
	begin_with(redis_url => "unix://$dir/redis", lease => '1s', timeout => '500ms');
	my $writer = FenceTest::Session->open($node);

	$writer->run("UPDATE item SET name = 'before' WHERE id = 1");
	$redis->pause;
	poll(sub { state_of('state') ne 'OPEN' }, 'CLOSED');
	unlink "$dir/redis";
	symlink $second->socket, "$dir/redis";
	poll(sub { state_of('state') eq 'OPEN' }, 'OPEN, in the second one');
	$redis->resume;
	my $bypassed = state_of('bypassed_transactions');
	$writer->run("UPDATE item SET name = 'after $_' WHERE id = $_") foreach 1 .. 20;
	is(state_of('bypassed_transactions'), $bypassed, 'writers talk to the process that is armed');
	is(state_of('state'), 'OPEN', 'and fences stay OPEN');
	no_reservations($node);
	$node->stop('fast');
};

subtest 'a connection takes long to make: rows do not wait for it one after the other' => sub {
	$redis = FenceTest::Redis->start(password => 'secret');
	begin_with(redis_url => $redis->url, lease => '60s', timeout => '1s');
	my $writer = FenceTest::Session->open($node);

	# it hangs: the system accepts a connection, nobody answers AUTH; the keeper's next heartbeat is far
	$redis->pause;
	my $written = seconds($writer, "BEGIN; UPDATE item SET name = 'new' WHERE id <= 12");
	$redis->resume;
	cmp_ok($written, '<', 9, "12 rows: $written s");
	$writer->run('COMMIT');
	is($sql->run("SELECT count(*) FROM item WHERE name = 'new'"), 12, 'committed');
	no_reservations($node);
	$node->stop('fast');
};

done_testing();
