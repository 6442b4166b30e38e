# Reads of many keys, and fence.warm, ask Redis about many keys in one round trip, and not about one. Redis counts how often it has
# read from its connections: once for each round trip, and once more for every 16 kB. In a cluster the keys are in as many slots.

use strict;
use warnings;

use FenceTest;
use FenceTest::Cluster;
use FenceTest::Session;
use Test::More;

my $KEYS = 1000;
my $MOST = 150;    # reads of Redis for one of these calls; workers that keep the lease have their part

sub check
{
	my ($node, $clear, @servers) = @_;
	my $sql = FenceTest::Session->open($node);
	my $reads = sub { my $n = 0; $n += $_->info('stats', 'total_reads_processed') foreach @servers; return $n; };
	my $counts = sub {
		my ($what, $expected, $statement) = @_;
		my $before = $reads->();
		is($sql->run($statement), $expected, $what);
		my $n = $reads->() - $before;
		cmp_ok($n, '<', $MOST, "... in few round trips: $n reads");
	};
	my $sources = "SELECT string_agg(DISTINCT source, ' '), count(value) FROM fence.read_many(fence.fence_keys('item', (SELECT array_agg(id::text) FROM item)), 0)";

	$sql->run("CREATE TABLE item (id int PRIMARY KEY, n int NOT NULL DEFAULT 0, version bigint NOT NULL DEFAULT 0);
		INSERT INTO item SELECT g FROM generate_series(1, $KEYS) g; SELECT fence.attach('item')");
	poll(sub { $sql->run("SELECT bool_and(status = 'miss') FROM item, fence.get('item', id)") eq 't' }, 'the announcement');
	# leases to fill in run out, so that nobody has to wait
	poll(sub { $sql->run("SELECT bool_and(permit <> '') FROM item, fence.get('item', id)") eq 't' }, 'permits');
	$counts->('misses are read', "database|$KEYS", $sources);
	$counts->('... and put, so these are hits', "cache|$KEYS", $sources);
	$clear->($sql);
	$counts->('fence.warm reads and puts', "$KEYS|$KEYS", "CALL fence.warm('item', batch => $KEYS)");
	$counts->('... and these are hits', "cache|$KEYS", $sources);
	compare_fences($node, 'item') if @servers == 1;
	$sql->close;
	return;
}

sub clear { my ($sql) = @_; $sql->run('UPDATE item SET n = n + 1'); return; }

subtest 'one Redis' => sub {
	my $redis = FenceTest::Redis->start;
	my $node = new_postgres('one', $redis, audit_rate => 0, bulk_threshold => 1_000_000);
	check($node, \&clear, $redis);

	# Values that are put by two calls each, of more bytes than one round trip takes; the first of them is too large.
	my $sql = FenceTest::Session->open($node);
	$sql->run("CREATE TABLE large (id int PRIMARY KEY, body text, version bigint NOT NULL DEFAULT 0);
		INSERT INTO large SELECT g, repeat('x', CASE g WHEN 1 THEN 5000000 ELSE 20000 END) FROM generate_series(1, 60) g; SELECT fence.attach('large')");
	poll(sub { $sql->run("SELECT status FROM fence.get('large', 1)") eq 'miss' }, 'the announcement');
	$sql->run("SELECT count(*) FROM fence.read_many(fence.fence_keys('large', (SELECT array_agg(id::text) FROM large)), 0)");
	is($sql->run("SELECT string_agg(id::text, ' ') FROM large WHERE (fence.get('large', id)).status <> 'hit'"), 1, 'large values are put, but the one that is too large');
	is($sql->run("SELECT count(*) FROM large t WHERE id > 1 AND fence.read('large', id) = to_jsonb(t)"), 59, '... each under its key');
	is(scalar @{ $redis->call('KEYS', '*:v:*') }, 0, '... and nothing is left beside them');
	$node->stop;
};

subtest 'a cluster' => sub {
	my $cluster = FenceTest::Cluster->start(3);
	my $node = new_postgres('cluster', undef, redis_url => $cluster->url, audit_rate => 0, bulk_threshold => 1_000_000);
	check($node, \&clear, $cluster->members);
	$node->stop;
};

done_testing();
