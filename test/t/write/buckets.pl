# Buckets: a row of which nothing can be cached is written without a message to Redis, and whoever misses it can cache it
# soon after (pgcache_fence.watch_buckets).

use strict;
use warnings;

use FenceTest;
use FenceTest::Session;
use Test::More;
use Time::HiRes qw(time usleep);

my $buckets = 1 << 20;
my $redis = FenceTest::Redis->start;
my $node = new_postgres('main', $redis,
	watch_buckets             => $buckets,
	lease                     => '4s',	# on a busy machine too the epoch lasts while counts are compared
	bulk_threshold            => 20,
	fill_lease                => 0,
	max_prepared_transactions => 10,
	wal_level                 => 'replica',
	max_wal_senders           => 2,
	autovacuum                => 'off');
my ($sql, $writer, $other) = map { FenceTest::Session->open($node) } 1 .. 3;

# ---------------------------------------------------------------------------------------------------------------------
# Tools
# ---------------------------------------------------------------------------------------------------------------------

# A domain with rows 1 to n that is announced. Row 0 does not exist: who reads that opens a bucket of its own.
sub new_table
{
	my ($name, $n, $attach) = @_;

	$sql->run("CREATE TABLE $name (id int PRIMARY KEY, name text DEFAULT 'old', version bigint NOT NULL DEFAULT 0)");
	$sql->run("INSERT INTO $name SELECT g FROM generate_series(1, $n) g");
	$sql->run("SELECT fence.attach('$name'" . ($attach ? ", $attach" : '') . ')');
	poll(sub { status($name, 0) eq 'miss' }, "$name is announced");
	return;
}

sub status { my ($name, $key) = @_; return $sql->run("SELECT status FROM fence.get('$name', '$key')"); }
sub name_of { my ($name, $key) = @_; return $sql->run("SELECT fence.read('$name', '$key')->>'name'"); }

# Reads the row until it is a hit; returns the seconds from the first miss.
sub warm
{
	my ($name, $key) = @_;
	my $started = time();

	name_of($name, $key);
	until (status($name, $key) eq 'hit')
	{
		die "$name $key is not cached" if time() > $started + 30;
		usleep(500);
		name_of($name, $key);
	}
	return time() - $started;
}

sub granted
{
	my ($name) = @_;

	return $sql->run("SELECT coalesce(sum(value), 0) FROM fence.metrics WHERE name = 'cache_fence_operations_total' "
		  . "AND labels->>'operation' IN ('reserve', 'domain_reserve') AND labels->>'domain' LIKE '%$name'");
}

# How many reservations the statements make.
sub costs
{
	my ($name, $session, @statements) = @_;
	my $before = granted($name);

	$session->run($_) foreach @statements;
	return granted($name) - $before;
}

# ---------------------------------------------------------------------------------------------------------------------
# Rows
# ---------------------------------------------------------------------------------------------------------------------

new_table('item', 100);
is(costs('item', $writer, q(UPDATE item SET name = 'a' WHERE id = 1), 'DELETE FROM item WHERE id = 2'), 0,
	'a row that nobody has read is written without a message');
is($sql->run('SELECT count(*) FROM fence.pending'), 0, 'and nothing is pending');

my $seconds = (sort { $a <=> $b } map { warm('item', 10 + $_) } 1 .. 9)[4];
diag(sprintf 'a cold key is cached %.1f ms after its first miss (median of 9)', $seconds * 1000);
cmp_ok($seconds, '<', 1, 'a cold key is cached soon after its first miss');

# fence.read waits a moment for the opening; on a busy machine that may take longer.
my $first = 40;
poll(sub { name_of('item', $first); return $first < 90 && status('item', $first++) eq 'hit' }, 'a row that is a hit after its first read', 10);
pass('fence.read caches what it reads first');

warm('item', 3);
is(costs('item', $writer, q(UPDATE item SET name = 'b' WHERE id = 3)), 1, 'a cached row is reserved');
is(name_of('item', 3), 'b', 'and its new value is read');

# fence.explain says why a key is not cached yet.
my $explain = sub { return $sql->run("SELECT finding FROM fence.explain('item', '$_[0]') WHERE topic IN ('answer', 'bucket')"); };
like($explain->(98), qr/^miss: .* bucket is closed; .*\n\d+ of $buckets is closed: /, 'the bucket of a key that nobody has read');
like($explain->(3), qr/^hit: .*\n\d+ of $buckets was opened: /, 'that of one that is cached');

# The reader comes between the UPDATE and the COMMIT: the bit is set by then, and the commit looks again.
$writer->run($_) foreach 'BEGIN', q(UPDATE item SET name = 'c' WHERE id = 4);
warm('item', 4);
is(costs('item', $writer, 'COMMIT'), 1, 'a row that was cached before the commit is reserved by the commit');
is(name_of('item', 4), 'c', 'no reader gets the old one');
compare_fences($node, 'item');

# What is refused first, and then stored.
my $fence = $sql->run(q(SELECT fence.fence_key('item', '101')));
my ($told, $permit) = strong_read($redis, $fence);
is($redis->call(qw(FCALL fence_put 1), $fence, $permit, row_version($permit, 1), '{}', 0), 'refused closed', 'nothing is put in a closed bucket');
poll(sub { $redis->call(qw(FCALL fence_put 1), $fence, $permit, row_version($permit, 1), '{}', 0) eq 'refused late' }, 'the bucket opens');
pass('a permit of before the opening stores nothing');
($told, $permit) = strong_read($redis, $fence);
is($redis->call(qw(FCALL fence_put 1), $fence, $permit, row_version($permit, 1), '{}', 0), 'stored', 'one of after it does');
$redis->call('DEL', $fence);

# ---------------------------------------------------------------------------------------------------------------------
# Who commits while a bucket opens
# ---------------------------------------------------------------------------------------------------------------------

# A commit that waits for a standby is logged and not visible. It has looked at the bits before they were set.
$node->append_conf('postgresql.conf', "synchronous_standby_names = 'nobody'");
$node->reload;
$sql->run('SET synchronous_commit = local');
$writer->run('SET synchronous_commit = on');
poll(sub { $writer->run('SHOW synchronous_standby_names') eq 'nobody' }, 'the setting is read');
my $waiting = sub { $sql->run(q(SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep')) };
# the checkpointer reads the setting, too: until then no commit waits
my $row = 200;
$sql->run(q(INSERT INTO item SELECT g FROM generate_series(200, 1000) g));
my $pid = poll(
	sub {
		$writer->begin("UPDATE item SET name = 'waits' WHERE id = " . ++$row);
		poll(sub { $writer->ready || $waiting->() }, 'it commits, or waits');
		$writer->take if $writer->ready;
		return $waiting->();
	},
	'a commit that waits for a standby');
my $until = time() + 0.5;
my @hits = ();
while (time() < $until) { push @hits, name_of('item', $row); push @hits, 'hit' if status('item', $row) eq 'hit'; }
is(join(' ', grep { $_ ne 'old' } @hits), '', 'nothing is cached while a commit is logged and not visible');

# Whoever asks is told.
like($sql->run("SELECT finding FROM fence.explain('item', '$row') WHERE topic = 'bucket'"),
	qr/^\d+ of $buckets was wanted: .* has waited for \d+\.\d s for transactions that commit$/, 'fence.explain says so');
my $stuck = q(SELECT severity FROM fence.doctor() WHERE finding LIKE 'no bucket has opened for % ms, because %');
poll(sub { $sql->run($stuck) eq 'warning' }, 'fence.doctor finds that no bucket opens');

# It has no reservation, so the keeper does not wait for it either.
my $epoch = $sql->run('SELECT epoch FROM fence.state');
$redis->restart;
poll(sub { $sql->run("SELECT state = 'OPEN' AND epoch <> '$epoch' FROM fence.state") eq 't' }, 'a new epoch', 20);
pass('a new epoch begins beside it');
$until = time() + 0.5;
while (time() < $until) { push @hits, name_of('item', $row); push @hits, 'hit' if status('item', $row) eq 'hit'; }
is(join(' ', grep { $_ ne 'old' } @hits), '', 'nor is anything cached in the new epoch');
$node->safe_psql('postgres', "SELECT pg_cancel_backend($pid)");
$writer->take;
warm('item', $row);
is(name_of('item', $row), 'waits', 'then the new row is');
$node->append_conf('postgresql.conf', "synchronous_standby_names = ''");
$node->reload;
poll(sub { $writer->run('SHOW synchronous_standby_names') eq '' }, 'the setting is read');

# ---------------------------------------------------------------------------------------------------------------------
# What is always reserved
# ---------------------------------------------------------------------------------------------------------------------

is(costs('item', $writer, 'BEGIN', q(UPDATE item SET name = 'p' WHERE id = 7), q(PREPARE TRANSACTION 'p')), 1,
	'what is prepared is reserved');
is(status('item', 7), 'pending', 'and pending');
$writer->run(q(COMMIT PREPARED 'p'));
warm('item', 7);
is(name_of('item', 7), 'p', 'its new value is read');

new_table('told', 10, q(publish => 'pubsub'));
is(costs('told', $writer, q(UPDATE told SET name = 'a' WHERE id = 1)), 1, 'a row whose domain publishes is reserved');

new_table('through', 10, q(cache => 'row'));
is(costs('through', $writer, q(UPDATE through SET name = 'a' WHERE id = 1)), 0, 'write-through of a row that nobody reads costs nothing');
warm('through', 2);
is(costs('through', $writer, q(UPDATE through SET name = 'a' WHERE id = 2)), 1, 'of one that is read, a reservation');
poll(sub { status('through', 2) eq 'hit' }, 'the row of the commit');
is(name_of('through', 2), 'a', 'and its row is stored');

new_table('absent', 10, q(cache_absent => true));
is(costs('absent', $writer, q(INSERT INTO absent VALUES (11))), 0, 'an INSERT of a key that nobody has missed');
warm('absent', 12);
is(costs('absent', $writer, q(INSERT INTO absent VALUES (12))), 1, 'one whose absence is cached is reserved');
is(name_of('absent', 12), 'old', 'the row is read');

# ---------------------------------------------------------------------------------------------------------------------
# Many rows
# ---------------------------------------------------------------------------------------------------------------------

new_table('many', 1000);
warm('many', $_) foreach 1, 500, 1000;
my $token = (strong_read($redis, $sql->run(q(SELECT fence.fence_key('many', '1000')))))[3];
cmp_ok(costs('many', $writer, q(UPDATE many SET name = 'm' WHERE id < 1000)), '<=', 4, 'a large UPDATE reserves the rows that are cached');
is(status('many', 1000), 'hit', 'a cached row outside it stays a hit');
is((strong_read($redis, $sql->run(q(SELECT fence.fence_key('many', '1000')))))[3], $token, 'the domain was not reserved');
is(join(' ', map { name_of('many', $_) } 1, 2, 500, 999), 'm m m m', 'those inside it are new');
compare_fences($node, 'many');
my $closed = q(SELECT value FROM fence.metrics WHERE name = 'cache_fence_operations_total' AND labels @> '{"domain": "many", "operation": "commit", "result": "closed"}');
cmp_ok($sql->run($closed), '>=', 990, 'the others are counted');

# Nobody opens a bucket that is held, until its holder is visible.
new_table('held', 200);
$writer->run($_) foreach 'BEGIN', q(UPDATE held SET name = 'new');
is($sql->run('SELECT holders FROM fence.buckets'), 1, 'a large transaction holds buckets');
like($sql->run("SELECT finding FROM fence.explain('held', '150') WHERE topic = 'bucket'"), qr/^\d+ of $buckets is kept closed by a large/,
	'fence.explain says so');
$until = time() + 0.3;
@hits = ();
while (time() < $until) { name_of('held', 150); push @hits, status('held', 150); }
is(join(' ', grep { $_ eq 'hit' } @hits), '', 'no row that a large transaction has changed is cached');
# some of its first 20 rows may share the bucket of a row that was read before; the replies come with the COMMIT
cmp_ok(costs('held', $writer, 'COMMIT'), '<=', 2, 'it reserves none, or as good as none');
warm('held', 150);
is(name_of('held', 150), 'new', 'after it, the new one is');

$writer->run($_) foreach 'BEGIN', q(UPDATE held SET name = 'twice');
cmp_ok(costs('held', $writer, q(PREPARE TRANSACTION 'q')), '>', 0, 'a large transaction that is prepared reserves the domain');
is(status('held', 180), 'pending', 'which is pending');
$writer->run(q(COMMIT PREPARED 'q'));
warm('held', 180);
is(name_of('held', 180), 'twice', 'and new afterwards');

$writer->run(q(UPDATE held SET name = 'free'));
is($sql->run('SELECT holders FROM fence.buckets'), 0, 'nobody holds buckets in the end');

new_table('rolled', 100);
$writer->run($_) foreach 'BEGIN', q(UPDATE rolled SET name = 'x'), 'ROLLBACK';
warm('rolled', 50);
is(name_of('rolled', 50), 'old', 'what is rolled back is cached soon');

# ---------------------------------------------------------------------------------------------------------------------
# Epochs
# ---------------------------------------------------------------------------------------------------------------------

# Without Redis: what nobody can have cached commits at once.
is($sql->run('SELECT buckets, set_now > 100, set_before, known, turn, holders FROM fence.buckets'), "$buckets|t|0|t|0|0", 'fence.buckets');
$sql->run(q(ALTER SYSTEM SET pgcache_fence.on_redis_failure = 'error'));
$sql->run('SELECT pg_reload_conf()');
poll(sub { $writer->run('SHOW pgcache_fence.on_redis_failure') eq 'error' }, 'the setting is read');
warm('item', 20);
$redis->stop;
wait_state($node, 'CLOSED');
$writer->run(q(UPDATE item SET name = 'alone' WHERE id = 999));
pass('a row that nobody can have cached is written without Redis');
my ($rc) = $node->psql('postgres', q(UPDATE item SET name = 'alone' WHERE id = 20));
isnt($rc, 0, 'a row that may be cached is not');
$redis->restart;
wait_open($node);
poll(sub { $sql->run('SELECT set_now < 50 FROM fence.buckets') eq 't' }, 'the bits are cleared');
poll(sub { status('item', 0) eq 'miss' }, 'announced');
is(costs('item', $writer, q(UPDATE item SET name = 'again' WHERE id = 20)), 0, 'in a new epoch nothing is open');
warm('item', 20);
warm('item', 999);
is(join(' ', map { name_of('item', $_) } 20, 999), 'again alone', 'what is cached then is new');

# A crash of the server loses the bits: all count as set until the fences are OPEN again.
$node->stop('immediate');
$node->start;
wait_open($node);
($sql, $writer) = map { FenceTest::Session->open($node) } 1 .. 2;
poll(sub { status('item', 0) eq 'miss' }, 'announced');
warm('item', 21);
is(costs('item', $writer, q(UPDATE item SET name = 'after' WHERE id = 21)), 1, 'a row that is cached after a crash is reserved');
is(name_of('item', 21), 'after', 'and new');
no_reservations($node);
compare_fences($node, $_) foreach qw(item many through absent);

# ---------------------------------------------------------------------------------------------------------------------
# Rows that COMMIT would send to Redis
# ---------------------------------------------------------------------------------------------------------------------

new_table('whole', 3, q(cache => 'row'));
is(costs('whole', $writer, 'DELETE FROM whole WHERE id = 1', 'INSERT INTO whole VALUES (1)'), 0, 'nothing is sent of a closed bucket, though values come with commits');
warm('whole', 2);
$writer->run($_) foreach 'BEGIN', 'SAVEPOINT s', 'UPDATE whole SET name = name WHERE id = 2', 'ROLLBACK TO s', 'COMMIT';
poll(sub { $sql->run("SELECT count(*) FROM fence.pending WHERE domain = 'whole'") eq '0' }, 'what the session reserves next to end');
is($sql->run("SELECT coalesce(sum(value), 0) FROM fence.metrics WHERE labels->>'domain' = 'whole' AND labels->>'operation' = 'settle'"), 0,
	'what the session reserves next ends with its transaction, not by the patrol');

# ---------------------------------------------------------------------------------------------------------------------
# Turns
# ---------------------------------------------------------------------------------------------------------------------

# So few buckets that all are set soon. What is stored lives for a second, then the bits of before are forgotten.
sub reopen
{
	$node->append_conf('postgresql.conf', 'pgcache_fence.watch_buckets = 64');
	$node->restart;
	wait_open($node);
	($sql, $writer) = map { FenceTest::Session->open($node) } 1 .. 2;
	return;
}

# Whether a row can be written without a message: its bit is clear again.
sub is_free { my ($key) = @_; return costs('brief', $writer, "UPDATE brief SET name = name || 'x' WHERE id = $key") == 0; }

reopen();
new_table('brief', 100, q(ttl => '1 second'));
warm('brief', $_) foreach 1 .. 20;
is($sql->run(q(SELECT severity FROM fence.doctor() WHERE finding LIKE '% of 64 buckets may have something in Redis%')), 'warning',
	'fence.doctor finds too few buckets');
ok(!is_free(1), 'the bit of a cached row is set');
poll(sub { usleep(100_000); is_free(1) }, 'the bit of before is forgotten');
pass('once nothing is left of what was stored, its bit is clear');
warm('brief', $_) foreach 1 .. 100;
my $expected = $sql->run('SELECT string_agg(name, chr(32) ORDER BY id) FROM brief');
is(join(' ', map { name_of('brief', $_) } 1 .. 100), $expected, 'what is cached in another turn is what the rows say');
compare_fences($node, 'brief');

# What lives long keeps the map of its turn, while the maps of other turns come and go.
sub turn { return $sql->run('SELECT turn FROM fence.buckets'); }
new_table('lasting', 3);
warm('lasting', $_) foreach 1 .. 3;
my $end = turn() + 4;
poll(sub { warm('brief', 1 + int rand 100) foreach 1 .. 5; turn() >= $end }, 'four more turns, for which three maps are forgotten');
$writer->run(q(UPDATE lasting SET name = 'new'));
is(join(' ', map { name_of('lasting', $_) } 1 .. 3), 'new new new', 'what was stored four turns ago is not served after a write');
is($sql->run(q(SELECT value FROM fence.metrics WHERE name = 'cache_fence_swept_total')), '0', '... nor did the sweep find it in a bucket that was forgotten');

done_testing();
