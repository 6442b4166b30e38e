# Detached reservations: rows of fence.reservation that Redis is told of. What survives restarts of either side and new
# epochs, whom they belong to, how they end: by token or by lease, with the row changed or not.

use strict;
use warnings;

use FenceTest;
use FenceTest::Session;
use Test::More;
use Time::HiRes qw(time);

my $redis = FenceTest::Redis->start;
my $node = new_postgres('main', $redis,
	lease                     => '1500ms',
	max_prepared_transactions => 5,
	autovacuum                => 'off');
my ($sql, $other);

sub connect_all { ($sql, $other) = map { FenceTest::Session->open($node) } 1 .. 2; return; }
connect_all();

$sql->run("CREATE TABLE item (id int PRIMARY KEY, name text DEFAULT 'old', version bigint NOT NULL DEFAULT 0); "
	  . 'INSERT INTO item (id, version) SELECT g, 5 FROM generate_series(1, 30) g; '
	  . "SELECT fence.attach('item'); "
	  . 'CREATE TABLE doc (LIKE item INCLUDING ALL); INSERT INTO doc SELECT * FROM item; '
	  . "SELECT fence.attach('doc', scope => 'manual'); "
	  . "CREATE TABLE strict (LIKE item INCLUDING ALL); SELECT fence.attach('strict', on_redis_failure => 'error')");

# ---------------------------------------------------------------------------------------------------------------------
# Tools
# ---------------------------------------------------------------------------------------------------------------------

sub get_status { my ($key, $domain) = @_; return $sql->run('SELECT status FROM fence.get(\'' . ($domain // 'item') . "', '$key')"); }
sub epoch_number { return $sql->run("SELECT split_part(epoch, '-', 1) FROM fence.state"); }

# What is pending of item: "key kind fate".
sub pending_of
{
	my ($domain) = @_;

	return $sql->run("SELECT string_agg(concat(coalesce(key, '*'), ' ', kind, ' ', fate), ', ' "
		  . "ORDER BY key COLLATE \"C\", kind, stamp) FROM fence.pending WHERE domain = '" . ($domain // 'item') . "'");
}

# Caches a row, so that it is a hit.
sub warm
{
	my ($key, $domain) = @_;

	$domain //= 'item';
	poll(sub { $sql->run("SELECT fence.read('$domain', '$key')"); get_status($key, $domain) eq 'hit' }, "$domain $key is cached");
	return;
}

# (version, token)
sub reserve
{
	my ($key, $lease, $domain, $session) = @_;

	return split /\|/, ($session // $sql)->run("SELECT * FROM fence.reserve('" . ($domain // 'item') . "', NULL, '$lease', '$key')");
}

# Waits until the key is not pending any more, and says what it is.
sub ended
{
	my ($key, $domain) = @_;
	my $status;

	poll(sub { ($status = get_status($key, $domain)) ne 'pending' }, "$key is settled");
	return $status;
}

# Waits until the patrol has begun that many rounds more: each lists what is pending.
sub patrol_rounds
{
	my ($count) = @_;
	my $monitor = $redis->connect;

	$monitor->call('MONITOR');
	while ($count > 0) { $count-- if $monitor->reply =~ /"fence_pending"/; }
	return;
}

# Reads a key through Redis until it says pending; never anything that could be used or cached before.
sub until_pending
{
	my ($key) = @_;
	my $fence = $sql->run("SELECT fence.fence_key('item', '$key')");
	my %before;

	poll(
		sub {
			my $answer = eval { $redis->call(qw(FCALL_RO fence_get 1), $fence) } // ['error'];
			return 1 if $answer->[0] eq 'pending';
			$before{ $answer->[0] } = 1;
			return exists $before{hit} || exists $before{miss};
		},
		"$key is pending");
	delete @before{qw(error unarmed)};
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is(join(' ', sort keys %before), '', "reads of $key say unarmed, then pending");
}

# ---------------------------------------------------------------------------------------------------------------------

subtest 'it stands through rounds of the patrol, whoever made it; ends at once by token from another session' => sub {
	warm($_) foreach 1, 2, 3;
	my $maker = FenceTest::Session->open($node);
	my @tokens = map { (reserve($_, '1 hour', 'item', $maker))[1] } 1, 2;
	my $gone = $maker->run("BEGIN; SELECT version FROM fence.reserve('item', NULL, '1 hour', '3')");

	is(pending_of(), '1 detached stands, 2 detached stands, 3 detached in progress', 'pending');
	$maker->kill9;
	is(ended(3), 'miss', 'what was not committed went with its session; the row is cold');
	patrol_rounds(5);
	is(pending_of(), '1 detached stands, 2 detached stands', 'the others stay');
	is($sql->run("SELECT fence.read('item', '1') ->> 'version'"), '5', 'who reads gets the row');
	is($sql->run('SELECT bool_and(lease_left > \'59 min\' AND lease_left < \'1 h\') FROM fence.pending'), 't', 'lease_left');
	like($sql->run("SELECT count(*) FROM fence.doctor() WHERE finding LIKE '%not been settled%'"), qr/^0$/, 'the doctor finds nothing wrong');

	# from here on the patrol does nothing unless it is told to
	$sql->run($_) foreach "ALTER SYSTEM SET pgcache_fence.patrol_interval = '60s'", "ALTER SYSTEM SET pgcache_fence.patrol_grace = '60s'";
	$node->reload;
	my $start = time();
	$other->run("SELECT fence.commit('$tokens[0]')");
	is(ended(1), 'miss', 'commit: who reads next fills it');
	$other->run("SELECT fence.abort('$tokens[1]')");
	is(ended(2), 'miss', 'abort: likewise');
	cmp_ok(time() - $start, '<', 20, 'at once');
	warm($_) foreach 1, 2;
	is($sql->run('SELECT count(*) FROM fence.reservation'), '0', 'no row is left');
	$sql->run($_) foreach 'ALTER SYSTEM RESET pgcache_fence.patrol_interval', 'ALTER SYSTEM RESET pgcache_fence.patrol_grace';
	$node->reload;
};

subtest 'the lease is over: the row changed or not' => sub {
	warm($_) foreach 1, 2;
	warm($_, 'doc') foreach 1, 2, 3;
	reserve(1, '300 ms');
	is(get_status(1), 'pending', 'pending');
	is(ended(1), 'miss', 'not changed: it is over');

	# two writes are reserved, one is done
	$sql->run("SELECT fence.reserve('item', 6, '1 s', '2'); UPDATE item SET name = 'new' WHERE id = 2");
	is(get_status(2), 'pending', 'pending after the first write');
	is(ended(2), 'miss', 'changed: nothing old is served');
	is($sql->run("SELECT fence.read('item', '2') ->> 'name'"), 'new', 'who reads gets the row');
	is($sql->run("SELECT relation, fence_version FROM fence.status('item', '2')"), 'equal|6', '... and fills it');

	# a manual domain: writes have reservations of their own
	$sql->run("SELECT fence.reserve('doc', 8, '1 s', '1')");
	like($sql->error_of("UPDATE doc SET name = 'new', version = 7 WHERE id = 1"), qr/^55000: .* was written without a reservation\nDETAIL: .*\nHINT: /,
		'a detached one is none of the writer');
	$sql->run("UPDATE doc SET name = 'new', version = fence.begin_write('doc', version, id) WHERE id = 1");
	is(get_status(1, 'doc'), 'pending', 'written in a manual domain: pending');
	is(ended(1, 'doc'), 'miss', 'written below the version reserved: nothing old is served');
	is($sql->run("SELECT fence.read('doc', '1') ->> 'name'"), 'new', 'who reads gets the row');
	is($sql->run("SELECT relation, fence_version FROM fence.status('doc', '1')"), 'equal|6', '... and fills it');
	my (undef, $done) = reserve(2, '1 hour', 'doc');
	$sql->run("UPDATE doc SET name = 'new', version = fence.begin_write('doc', version, id) WHERE id = 2");
	patrol_rounds(3);
	is(get_status(2, 'doc'), 'pending', 'the version reserved is written: it stands all the same');
	$sql->run("SELECT fence.abort('$done')");
	is(ended(2, 'doc'), 'miss', '... until it is ended');
	$sql->run("SELECT fence.reserve('doc', 8, '1 s', '3')");
	$sql->run("BEGIN; SELECT fence.begin_write('doc', 0, 3)");
	$sql->run($_) foreach 'DELETE FROM doc WHERE id = 3', 'COMMIT';
	is(ended(3, 'doc'), 'miss', 'removed');
	is($sql->run("SELECT fence_version IS NULL, fence.read('doc', '3') IS NULL FROM fence.status('doc', '3')"), 't|t', 'nothing is known of it');
	poll(sub { $sql->run("SELECT count(*) FROM fence.reservation WHERE until < now()") eq '0' }, 'rows whose lease is over are deleted');

	# a transaction that is just ending it has it
	my (undef, $token) = reserve(1, '500 ms');
	warm(4);
	$other->run("BEGIN; UPDATE item SET name = 'late' WHERE id = 1; SELECT fence.commit('$token')");
	poll(sub { $sql->run("SELECT until < now() FROM fence.reservation WHERE token = '$token'") eq 't' }, 'the end of the lease');
	patrol_rounds(4);
	is(pending_of(), '1 detached stands, 1 row in progress', 'the lease is over, but its end is on its way: it stands');
	$other->run('COMMIT');
	is(ended(1), 'miss', 'then it is over');
	like($other->error_of("SELECT fence.commit('$token')"), qr/^55000: no reservation has this token\nDETAIL: .*\nHINT: /, 'a token is good once');
	no_reservations($node);
	compare_fences($node, $_) foreach qw(item doc);
};

subtest 'two on one key, and a prepared end' => sub {
	warm(5);
	my ($first, $token) = reserve(5, '1 hour');
	my ($second, $token2) = reserve(5, '1 hour');
	is("$first $second", '6 7', 'each is for a version of its own');
	$other->run("SELECT fence.abort('$token')");
	poll(sub { pending_of() eq '5 detached stands' }, 'the end of the first');
	is(get_status(5), 'pending', 'the other one keeps readers off');
	$other->run($_) foreach 'BEGIN', "SELECT fence.commit('$token2')", "UPDATE item SET name = 'new' WHERE id = 5", "PREPARE TRANSACTION 'end'";
	patrol_rounds(3);
	is(pending_of(), '5 detached stands, 5 row prepared', 'an end that is prepared is none');
	$sql->run("ROLLBACK PREPARED 'end'");
	poll(sub { pending_of() eq '5 detached stands' }, 'the rollback');
	$other->run($_) foreach 'BEGIN', "SELECT fence.commit('$token2')", "UPDATE item SET name = 'new' WHERE id = 5", "PREPARE TRANSACTION 'end'";
	$sql->run("COMMIT PREPARED 'end'");
	is(ended(5), 'miss', 'committed');
	no_reservations($node);
	compare_fences($node, 'item');
};

# Reserves, lets $forget make a new epoch, ends.
sub new_epoch
{
	my ($forget) = @_;

	warm($_) foreach 10 .. 14;
	my %token = map { $_ => (reserve($_, '1 hour'))[1] } 10 .. 12;
	my (undef, $short) = reserve(13, '1 s');
	my $epoch = epoch_number();

	$forget->();
	until_pending(10);
	cmp_ok(epoch_number(), '>', $epoch, 'a new epoch');
	warm(14);
	patrol_rounds(3);
	poll(sub { pending_of() !~ /\b13 / }, 'the short lease');
	like(pending_of(), qr/^10 detached stands, 11 detached stands, 12 detached stands$/, 'they stand in the new epoch');
	isnt(get_status(13), 'pending', 'what is over has ended');
	like($sql->error_of("SELECT fence.commit('$short')"), qr/^55000:/, 'its token is void');

	# before the end, a write
	$sql->run("UPDATE item SET name = 'new' WHERE id = 12");
	is(get_status(12), 'pending', 'written, and it stands');
	$sql->run("SELECT fence.commit('$token{10}')");
	$other->run("BEGIN; UPDATE item SET name = 'new' WHERE id = 11; SELECT fence.commit('$token{11}'); COMMIT");
	isnt(ended($_), 'pending', "$_ is over") foreach 10, 11;
	$sql->run("SELECT fence.abort('$token{12}')");
	isnt(ended(12), 'pending', '12 too');
	no_reservations($node);
	is($sql->run('SELECT count(*) FROM fence.reservation'), '0', 'no row is left');
	compare_fences($node, 'item');
	return;
}

subtest 'Redis is restarted' => sub { new_epoch(sub { $redis->restart }); };

subtest 'PostgreSQL crashes' => sub {
	new_epoch(sub { $node->stop('immediate'); $node->start; wait_open($node); connect_all(); });
};

subtest 'PostgreSQL crashes, and Redis' => sub {
	$other->run('BEGIN');
	$other->run("SELECT fence.reserve('item', NULL, '1 hour', '20')");
	new_epoch(
		sub {
			$redis->kill9;
			$node->stop('immediate');
			$redis->restart;
			$node->start;
			wait_open($node);
			connect_all();
		});
	warm(20);
	is(get_status(20), 'hit', 'what was not committed when it crashed is not there');
};

subtest 'without Redis' => sub {
	$redis->kill9;
	like($sql->error_of("SELECT fence.reserve('strict', 0, '1 hour', '1')"), qr/^08006: .*\nDETAIL: .*\nHINT: /, 'policy error: refused');
	is($sql->run('SELECT count(*) FROM fence.reservation'), '0', 'nothing is left of it');
	my ($version, $token) = reserve(21, '1 hour');
	is($version, 6, 'policy bypass: reserved');
	my (undef, $ended) = reserve(22, '1 hour');
	$other->run("SELECT fence.commit('$ended')");
	$redis->restart;
	until_pending(21);
	warm(22);
	is(pending_of(), '21 detached stands', 'when Redis is back it stands; what ended meanwhile does not');
	$sql->run("SELECT fence.abort('$token')");
	isnt(ended(21), 'pending', 'ended');
	no_reservations($node);
};

subtest 'many' => sub {
	$sql->run("SELECT count(fence.reserve('item', 0, '1 hour', g::text)) FROM generate_series(1001, 2000) g");
	my $start = time();
	patrol_rounds(3);
	is($sql->run('SELECT count(*) FROM fence.pending WHERE fate = \'stands\''), '1000', 'a thousand stand');
	note sprintf '3 patrol rounds took %.2f s', time() - $start;
	$redis->restart;
	poll(sub { get_status(2000) eq 'pending' }, 'a new epoch');
	is($sql->run('SELECT count(*) FROM fence.pending WHERE fate = \'stands\''), '1000', 'and in a new epoch');
	$sql->run('SELECT count(fence.abort(token)) FROM fence.reservation');
	no_reservations($node);
};

$node->stop('fast');
done_testing();
