# Buckets: an UPDATE of most of a large table leaves the cached rows outside it hits, and reserves those inside it one by one. Rows
# that nobody reads take no memory of Redis, and the maps in PostgreSQL have the size that they were given.
#
# FENCE_ROWS tells how many rows the UPDATE changes, and FENCE_READS how many keys are missed.

use strict;
use warnings;

use FenceTest;
use FenceTest::Session;
use Test::More;
use Time::HiRes qw(time);

my $rows = $ENV{FENCE_ROWS} || 60_000;
my $reads = $ENV{FENCE_READS} || 100_000;
my $cached = 300;    # inside the UPDATE, and as many outside
my $buckets = 1 << 20;
my $outside = "id > $rows";
my $redis = FenceTest::Redis->start;
my $node = new_postgres('bulk', $redis,
	watch_buckets => $buckets,
	lease         => '20s',
	audit_rate    => 0,
	autovacuum    => 'off',
	max_wal_size  => '4GB');
my ($sql, $writer) = (FenceTest::Session->open($node), FenceTest::Session->open($node, timeout => 600));

my $chosen = "(id % ($rows / $cached) = 0 AND id <= $rows OR $outside)";

sub hits { my ($where) = @_; return $sql->run("SELECT count(*) FROM item WHERE $chosen AND $where AND (fence.get('item', id::text)).status = 'hit'"); }
sub warm_all
{
	return poll(sub {
		$sql->run("SELECT count(fence.read('item', id::text)) FROM item WHERE $chosen");
		return hits('true') == 2 * $cached;
	}, 'the chosen rows are cached');
}

sub granted
{
	return $sql->run(q(SELECT sum(value) FROM fence.metrics WHERE name = 'cache_fence_operations_total'
		AND labels->>'operation' IN ('reserve', 'domain_reserve') AND labels->>'result' = 'granted'));
}

# What the functions in Redis keep, not what they have left for the collector.
sub kilobytes
{
	$redis->call('FUNCTION', 'LOAD', 'REPLACE', "#!lua name=collect\nredis.register_function('collect_all', function() collectgarbage() end)");
	$redis->call('FCALL', 'collect_all', 0);
	return $redis->info('memory', 'used_memory_vm_functions') / 1024;
}

sub token { return (strong_read($redis, $sql->run("SELECT fence.fence_key('item', '0')")))[1] =~ /^(\S+) /; }

$sql->run(q(CREATE TABLE item (id int PRIMARY KEY, name text DEFAULT 'old', version bigint NOT NULL DEFAULT 0)));
$sql->run("INSERT INTO item SELECT g FROM generate_series(1, $rows + $cached) g; SELECT fence.attach('item')");
poll(sub { $sql->run(q(SELECT status FROM fence.get('item', '0'))) eq 'miss' }, 'item is announced');
warm_all();
is(hits($outside), $cached, 'as many rows outside as inside are cached');

my ($token) = token();
my $before = kilobytes();
my $begun = time();
$writer->run("UPDATE item SET name = 'new' WHERE NOT $outside");
diag(sprintf '%d rows changed in %.1f s, %d reserved', $rows, time() - $begun, granted());
is(hits($outside), $cached, 'the rows outside are still hits');
is(hits("NOT $outside"), 0, 'none inside is');
is((token())[0], $token, 'nobody has reserved the whole domain');
# some of the other rows share the bucket of one that is cached
cmp_ok(granted(), '<', 1.2 * ($cached + $rows * 2 * $cached / $buckets), 'only rows whose buckets are open were reserved');
warm_all();
is($sql->run("SELECT count(*) FROM item WHERE $chosen AND fence.read('item', id::text)->>'name' <> name"), 0, 'all that is cached then is as the rows are');

# What Redis remembers is bounded by the number of buckets, not of keys: two numbers for each word of bits, and a hash table.
cmp_ok(kilobytes() - $before, '<', 1024, 'rows that nobody reads take no memory of the functions in Redis');
my $fence = $sql->run(q(SELECT fence.fence_key('item', '0')));
my $permit = (strong_read($redis, $fence))[1];
my $connection = $redis->connection;
foreach my $part (1 .. $reads / 1000)
{
	(my $name = $fence) =~ s/0}$/-$part-%d}/;
	$connection->send_raw(join '', map { FenceTest::Redis::Connection::encoded(qw(FCALL_RO fence_get 1), sprintf $name, $_) } 1 .. 1000);
	$connection->reply foreach 1 .. 1000;
}
my $open = $sql->run('SELECT set_now + set_before FROM fence.buckets');
diag(sprintf '%d keys read, %d buckets set: %d kB more in the functions of Redis', $reads, $open, kilobytes() - $before);
cmp_ok($open, '<=', $buckets / 8, 'however many keys are read, few buckets are set');
cmp_ok(kilobytes() - $before, '<', 8192, 'and what they take in Redis is bounded');

my ($size) = $sql->run(q(SELECT sum(allocated_size) FROM pg_shmem_allocations WHERE name LIKE 'pgcache_fence%'));
$node->append_conf('postgresql.conf', 'pgcache_fence.watch_buckets = 0');
$node->restart;
$sql = FenceTest::Session->open($node);
my $maps = $size - $sql->run(q(SELECT sum(allocated_size) FROM pg_shmem_allocations WHERE name LIKE 'pgcache_fence%'));
cmp_ok($maps, '<=', 5 * $buckets / 8 + 128, 'the maps take five bits for each bucket; with more buckets four');

done_testing();
