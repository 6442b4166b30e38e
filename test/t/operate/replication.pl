# Logical replication: what the apply worker writes is fenced on the subscriber. Streaming replication: what a standby
# refuses; once promoted it opens the fences in a new epoch, while the old primary may not. (Reading on a standby: read/standby.pl.)

use strict;
use warnings;

use FenceTest;
use FenceTest::Session;
use PostgreSQL::Test::Utils;
use Test::More;

my $redis = FenceTest::Redis->start;

# ---------------------------------------------------------------------------------------------------------------------
# Tools
# ---------------------------------------------------------------------------------------------------------------------

sub get { my ($node, $domain, $key) = @_; return $node->safe_psql('postgres', "SELECT status FROM fence.get('$domain', '$key')"); }
sub read_name { my ($node, $domain, $key) = @_; return $node->safe_psql('postgres', "SELECT fence.read('$domain', '$key') ->> 'name'"); }
sub state_of { my ($node, $field) = @_; return $node->safe_psql('postgres', "SELECT $field FROM fence.state"); }
sub epoch_number { my ($node) = @_; return (split /-/, state_of($node, 'epoch'))[0]; }

sub make_cached
{
	my ($node, $domain, @keys) = @_;

	poll(
		sub {
			$node->safe_psql('postgres', join '; ', map { "SELECT fence.read('$domain', '$_')" } @keys);
			return !grep { get($node, $domain, $_) ne 'hit' } @keys;
		},
		"$domain is cached");
	return;
}

# The name of the fence, for reads through Redis.
sub name_of { my ($node, $domain, $key) = @_; return $node->safe_psql('postgres', "SELECT fence.fence_key('$domain', '$key')"); }

# The error of a statement, with its SQLSTATE.
sub error_of
{
	my ($node, $statement) = @_;
	my ($rc, undef, $error) = $node->psql('postgres', "\\set VERBOSITY verbose\n$statement");

	return $rc == 0 ? '' : $error;
}

# ---------------------------------------------------------------------------------------------------------------------
# Logical replication
# ---------------------------------------------------------------------------------------------------------------------

subtest 'a subscriber: what the apply worker writes is fenced' => sub {
	my $publisher = new_postgres('publisher', $redis, preload => 0, extension => 0, init => { allows_streaming => 'logical' },
		max_prepared_transactions => 5);
	my $subscriber = new_postgres('subscriber', $redis, lease => '1500ms', bulk_threshold => 50, max_prepared_transactions => 5,
		max_worker_processes => 16);
	my $from = $publisher->connstr . ' dbname=postgres';
	my $caught_up = sub { $publisher->wait_for_catchup('sub'); return; };
	my $change = sub { $publisher->safe_psql('postgres', $_[0]); $caught_up->(); return; };
	my $compare = FenceTest::Comparison->new($subscriber, domains => [ 'item', 'parts', 'items of a name' ]);
	# the same, and every row is compared
	my $compared = sub { my ($title, $statement) = @_; return $compare->holds("applied: $title", sub { $change->($statement); }); };
	my $table = 'CREATE TABLE item (id int PRIMARY KEY, name text%s);
		CREATE TABLE parts (id int PRIMARY KEY, name text%s) PARTITION BY RANGE (id);
		CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (1) TO (10);
		CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (10) TO (1000)';

	# the publisher knows nothing of fences, nor of versions
	$publisher->safe_psql('postgres', sprintf($table, '', '') . "; INSERT INTO item SELECT g, 'old' FROM generate_series(1, 5) g;
		INSERT INTO parts SELECT g, 'old' FROM generate_series(1, 15) g; CREATE PUBLICATION pub FOR ALL TABLES WITH (publish_via_partition_root)");
	my $version = ', version bigint NOT NULL DEFAULT 0';
	$subscriber->safe_psql('postgres', sprintf($table, $version, $version) . "; SELECT fence.attach('item'), fence.attach('parts'),
		fence.attach('item', scope => 'group', key => '{name}', domain => 'items of a name')");
	poll(sub { get($subscriber, 'parts', 1) ne 'unarmed' }, 'the domains');
	$subscriber->safe_psql('postgres', "CREATE SUBSCRIPTION sub CONNECTION '$from' PUBLICATION pub WITH (two_phase)");
	$subscriber->wait_for_subscription_sync($publisher, 'sub');
	no_reservations($subscriber);
	is($subscriber->safe_psql('postgres', 'SELECT count(*), max(version) FROM item'), '5|0', 'the first copy');
	$compared->('statements of all kinds', "UPDATE item SET name = 'newer'; UPDATE parts SET name = 'newer', id = id + 40 WHERE id = 3; DELETE FROM parts WHERE id = 4; "
		  . "INSERT INTO item VALUES (7, 'x'); DELETE FROM item WHERE id = 7");
	$compared->('what is rolled back', "BEGIN; UPDATE item SET name = 'never'; ROLLBACK; BEGIN; SAVEPOINT a; DELETE FROM parts; ROLLBACK TO a; COMMIT");

	make_cached($subscriber, 'item', 1 .. 5);
	$change->("UPDATE item SET name = 'new' WHERE id = 1; DELETE FROM item WHERE id = 2; INSERT INTO item VALUES (6, 'new')");
	no_reservations($subscriber);
	is(get($subscriber, 'item', 1), 'miss', 'UPDATE: what was cached is not served');
	is(read_name($subscriber, 'item', 1), 'new', 'read gives the new row');
	is(get($subscriber, 'item', 2), 'miss', 'DELETE: not served');
	is(read_name($subscriber, 'item', 2), '', 'read gives none');
	is($subscriber->safe_psql('postgres', "SELECT fence_version, row_version FROM fence.status('item', '1')"), '2|2', 'versions are counted on the subscriber');
	is($subscriber->safe_psql('postgres', "SELECT row_version FROM fence.status('item', '2')"), '2', 'the deleted one has a tombstone');
	is(get($subscriber, 'item', 3), 'hit', 'a row that was not written is a hit');
	$change->("INSERT INTO item VALUES (2, 'again')");
	is($subscriber->safe_psql('postgres', 'SELECT version FROM item WHERE id = 2'), '3', 'a key that comes back starts above it');

	# through the root; a row that moves
	make_cached($subscriber, 'parts', 1, 5, 15);
	$change->("UPDATE parts SET name = 'new' WHERE id = 1; UPDATE parts SET id = 20 WHERE id = 5");
	is(get($subscriber, 'parts', $_), 'miss', "partitioned table: $_ is not served") foreach 1, 5;
	is(get($subscriber, 'parts', 15), 'hit', '15 is');

	# many rows, TRUNCATE
	make_cached($subscriber, 'item', 1, 3);
	$change->("INSERT INTO item SELECT g, 'bulk' FROM generate_series(100, 300) g; UPDATE item SET name = 'bulk'");
	is(read_name($subscriber, 'item', 3), 'bulk', 'bulk');
	no_reservations($subscriber);
	compare_fences($subscriber, $_) foreach 'item', 'parts';
	make_cached($subscriber, 'item', 1, 3);
	$compared->('TRUNCATE', 'TRUNCATE item');
	isnt(get($subscriber, 'item', $_), 'hit', "TRUNCATE: $_ is not served") foreach 1, 3;
	is(read_name($subscriber, 'item', 3), '', 'nor read');

	# two-phase: prepared on the subscriber too
	$change->("INSERT INTO item VALUES (1, 'before')");
	make_cached($subscriber, 'item', 1);
	$change->("BEGIN; UPDATE item SET name = 'after' WHERE id = 1; PREPARE TRANSACTION 'p'");
	poll(sub { $subscriber->safe_psql('postgres', 'SELECT count(*) FROM pg_prepared_xacts') eq '1' }, 'PREPARE');
	is(get($subscriber, 'item', 1), 'pending', 'PREPARE TRANSACTION is applied: pending');
	like($subscriber->safe_psql('postgres', 'SELECT key, fate, gid FROM fence.pending'), qr/^(?:1|before)\|prepared\|pg_gid_/, 'fence.pending tells the gid');
	$change->("COMMIT PREPARED 'p'");
	no_reservations($subscriber);
	is(read_name($subscriber, 'item', 1), 'after', 'COMMIT PREPARED: the new row');
	compare_fences($subscriber, $_) foreach 'item', 'parts';

	# a subscriber that lost its Redis goes on applying
	make_cached($subscriber, 'item', 1);
	$redis->kill9;
	$change->("UPDATE item SET name = 'without Redis' WHERE id = 1");
	is($subscriber->safe_psql('postgres', 'SELECT name FROM item WHERE id = 1'), 'without Redis', 'applied without Redis (policy bypass)');
	$redis->restart;
	wait_open($subscriber);
	make_cached($subscriber, 'item', 1);
	is(read_name($subscriber, 'item', 1), 'without Redis', 'read gives that row');
	$subscriber->safe_psql('postgres', 'DROP SUBSCRIPTION sub');
	$_->stop foreach $subscriber, $publisher;
};

# ---------------------------------------------------------------------------------------------------------------------
# Streaming replication
# ---------------------------------------------------------------------------------------------------------------------

subtest 'standby, promotion, and the old primary' => sub {
	# a lease that is long enough for the last part: the old primary comes while the new one's runs
	my $primary = new_postgres('primary', $redis, init => { allows_streaming => 1 }, lease => '2s', hot_standby => 'on');
	my $standby = PostgreSQL::Test::Cluster->new('standby');
	$standby->{fence_redis} = $redis;

	$primary->safe_psql('postgres', "CREATE TABLE item (id int PRIMARY KEY, name text, version bigint NOT NULL DEFAULT 0);
		INSERT INTO item SELECT g, 'old' FROM generate_series(1, 5) g; SELECT fence.attach('item')");
	make_cached($primary, 'item', 1 .. 5);
	$primary->backup('b');
	$standby->init_from_backup($primary, 'b', has_streaming => 1);
	$standby->start;
	$primary->wait_for_catchup($standby);

	is($standby->safe_psql('postgres', 'SELECT pg_is_in_recovery()'), 't', 'a hot standby with the library preloaded');
	like(error_of($standby, "SELECT fence.read('item', '99')"), qr/ERROR:  55000: .*\n(?:DETAIL|HINT)/, 'fence.read without a row: 55000');
	is($standby->safe_psql('postgres', 'SELECT name FROM item WHERE id = 1'), 'old', 'the table itself can be read');
	like(error_of($standby, $_), qr/ERROR:  (?:25006|55000): /, "$_: refused")
	  foreach "UPDATE item SET name = 'x'", "SELECT fence.attach('item')", "SELECT fence.detach('item')";
	isnt(state_of($standby, 'state'), 'OPEN', 'fence.state is not OPEN');
	is($standby->safe_psql('postgres', 'SELECT domain FROM fence.domains'), 'item', 'fence.domains lists what is fenced');
	like($standby->safe_psql('postgres', "SELECT fence.fence_key('item', '1')"), qr/:f:\w+\.item:\{1\}$/, 'fence_key works');
	is($standby->safe_psql('postgres', 'SELECT count(*) FROM fence.pending'), '0', 'fence.pending is empty');
	$standby->psql('postgres', $_) foreach "SELECT * FROM fence.status('item', '1')", 'SELECT * FROM fence.nodes', "SELECT * FROM fence.audit('item')",
	  "SELECT fence.repair('item', '1')", "SELECT fence.put('item', '', 1, '', NULL, '1')";
	like(get($standby, 'item', 1), qr/^(?:unavailable|hit)$/, 'whatever is called, it lives');
	is(get($primary, 'item', 1), 'hit', 'and the primary knows nothing of it');

	# the primary ends in good order, with values in Redis that the new one must not serve unless they are current
	my $epoch = epoch_number($primary);
	my $name = name_of($primary, 'item', 1);
	$primary->safe_psql('postgres', "UPDATE item SET name = 'last of the old' WHERE id = 1");
	make_cached($primary, 'item', 1 .. 5);
	$primary->wait_for_catchup($standby);
	$primary->stop;
	$standby->promote;
	wait_open($standby);
	is($standby->safe_psql('postgres', "SELECT count(*) FROM pg_stat_activity WHERE backend_type IN ('pgcache_fence keeper', 'pgcache_fence patrol')"), '2',
		'promoted: the workers run');
	cmp_ok(epoch_number($standby), '>', $epoch, 'a new epoch, above the old one');
	is(name_of($standby, 'item', 1), $name, 'the names are the same');
	poll(sub { get($standby, 'item', 1) ne 'unarmed' }, 'the domain');
	is(get($standby, 'item', 1), 'miss', 'what the old primary cached is not trusted');
	is(read_name($standby, 'item', 1), 'last of the old', 'read');
	make_cached($standby, 'item', 1 .. 5);
	$standby->safe_psql('postgres', "UPDATE item SET name = 'first of the new' WHERE id = 1");
	is(get($standby, 'item', 1), 'miss', 'writes are fenced');
	make_cached($standby, 'item', 1);
	compare_fences($standby, 'item');

	# the old primary comes back by mistake, with the same namespace
	my $identity = $standby->safe_psql('postgres', 'SELECT identity, epoch FROM fence.nodes');
	$primary->start;
	my $reason = '';
	my $refused = eval {
		poll(sub { ($reason = state_of($primary, "state || ': ' || reason")) =~ /^CLOSED: .*timeline/ }, 'the refusal', 20);
	};
	ok($refused, 'the old primary is refused, because of its timeline') or diag("reason: $reason");
	note $reason;
	like($reason, qr/timeline 2 of this cluster has replaced timeline 1/, 'the reason says by whom');
	like(get($primary, 'item', 1), qr/^(?:unarmed|unavailable)$/, 'it reads nothing from the cache');
	is(read_name($primary, 'item', 1), 'last of the old', 'what it reads is its own table');
	# its writes do not end the new primary's fences (after the lease, which it cannot know of, they are bypassed)
	$primary->safe_psql('postgres', "UPDATE item SET name = 'lost' WHERE id = 1");
	is(get($standby, 'item', 1), 'hit', 'the new primary is served as before,');
	is(read_name($standby, 'item', 1), 'first of the new', 'its own rows');
	is($standby->safe_psql('postgres', 'SELECT identity, epoch FROM fence.nodes'), $identity, 'in the same epoch');
	is(state_of($standby, 'state'), 'OPEN', 'OPEN');
	is((strong_read($redis, $name))[0], 'hit', 'and through Redis');
	compare_fences($standby, 'item');
	$_->stop foreach $primary, $standby;
};

done_testing();
