# The audit on a server with many fenced tables: it has one number of rows for the whole server, all tables have their turn,
# Redis is asked about many fences at once, and nothing that somebody waits for waits behind it.

use strict;
use warnings;

use FenceTest;
use FenceTest::Session;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $redis = FenceTest::Redis->start;

# Fences that many tables of 20 rows, and caches all rows. Some at a time, because a loaded machine takes a while for each.
sub fence_tables
{
	my ($sql, $n) = @_;

	for (my $first = 1; $first <= $n; $first += 30)
	{
		my $last = $first + 29 < $n ? $first + 29 : $n;
		my $some = $last - $first + 1;

		$sql->run("DO \$\$ BEGIN FOR i IN $first .. $last LOOP "
			  . "EXECUTE format('CREATE TABLE t%s (id int PRIMARY KEY, version bigint NOT NULL DEFAULT 0)', i); "
			  . "EXECUTE format('INSERT INTO t%s SELECT g, 5 FROM generate_series(1, 20) g', i); "
			  . "PERFORM fence.attach('t' || i); END LOOP; END \$\$");
		poll(sub { $sql->run("SELECT count(*) FROM generate_series($first, $last) i, fence.get('t' || i, '1') WHERE status = 'miss'") eq $some },
			'the tables to be announced');
		$sql->run("SELECT count(fence.read('t' || i, g::text)) FROM generate_series($first, $last) i, generate_series(1, 20) g");
	}
	return;
}

sub compared
{
	my ($sql) = @_;

	return map { $_ eq '' ? 0 : $_ } split /\|/, $sql->run("SELECT sum(n), min(n), max(n), count(*) FROM (SELECT sum(value) AS n "
		  . "FROM fence.metrics WHERE name = 'cache_fence_db_compare' GROUP BY labels->>'domain') d");
}

sub fatals { my ($node) = @_; return grep { /FATAL|gives up/ } split /\n/, slurp_file($node->logfile); }

subtest 'one number of rows for the whole server, and each table in turn' => sub {
	my $tables = 30;
	my $rate = 10;
	my $node = new_postgres('budget', $redis, audit_rate => 0);
	my $sql = FenceTest::Session->open($node);
	my ($sum, $least, $most, $domains) = (0, 0, 0, 0);

	fence_tables($sql, $tables);
	$sql->run("ALTER SYSTEM SET pgcache_fence.audit_rate = $rate");
	my $start = time();
	$node->reload;
	poll(sub {
			($sum, $least, $most, $domains) = compared($sql);
			return $domains == $tables && $least > 0;
		}, 'each table to be audited', 180);
	my $allowed = $rate * (time() - $start + 10);
	cmp_ok($sum, '<=', $allowed, sprintf '%d rows in %d s', $sum, time() - $start);
	cmp_ok($most, '<=', 2 * $least, 'no table was audited twice more often than another') or diag("$least to $most");
	$sql->close;
	$node->stop;
};

subtest 'many fences in one round trip' => sub {
	my $node = new_postgres('trips', $redis, audit_rate => 0);
	my $sql = FenceTest::Session->open($node);
	my $rows = 5000;
	my $reads = sub { return $redis->info('stats', 'total_reads_processed'); };

	fence_tables($sql, 1);
	$sql->run("INSERT INTO t1 SELECT g, 5 FROM generate_series(21, $rows) g");
	no_reservations($node);
	$sql->run("CALL fence.warm('t1')");
	my $before = $reads->();
	is($sql->run("SELECT string_agg(relation || ' ' || count, ', ') FROM fence.audit('t1') WHERE count > 0"), "equal $rows", 'all rows are compared');
	my $trips = $reads->() - $before;
	cmp_ok($trips, '<', $rows / 3, "$trips round trips, with those of the workers");
	$sql->close;
	$node->stop;
};

# The audit waits 20 ms for each table that somebody has locked. So it takes longer than a round may.
subtest 'an audit that takes long ends by itself, and makes room' => sub {
	my $tables = 600;
	my $node = new_postgres('long', $redis, audit_rate => 0, max_locks_per_transaction => 200);
	my $sql = FenceTest::Session->open($node);
	my $holder = FenceTest::Session->open($node);
	my $skipped = sub { return scalar grep { /the patrol skips \S*\bt\d+:/ } split /\n/, slurp_file($node->logfile); };
	my $before;

	fence_tables($sql, $tables);
	$sql->run('CREATE TABLE free (id int PRIMARY KEY, version bigint NOT NULL DEFAULT 0); INSERT INTO free SELECT 1, 5');
	$sql->run("SELECT fence.attach('free')");
	poll(sub { $sql->run("SELECT status FROM fence.get('free', '1')") eq 'miss' }, 'the table to be announced');
	$holder->run('BEGIN; LOCK TABLE ' . join(', ', map { "t$_" } 1 .. $tables) . ' IN ACCESS EXCLUSIVE MODE');
	$sql->run('ALTER SYSTEM SET pgcache_fence.audit_rate = 1000000');
	$node->reload;
	poll(sub { $skipped->() > 10 }, 'the audit to begin');
	$sql->run("SELECT fence.reserve('free', NULL, '1 ms', '1')");
	$before = $skipped->();
	poll(sub { $sql->run('SELECT count(*) FROM fence.pending') eq '0' }, 'the detached reservation to end');
	cmp_ok($skipped->() - $before, '<', $tables / 2, 'it did not wait for the audit') or diag($skipped->() - $before);
	poll(sub { $skipped->() >= $tables }, 'the audit to be through all tables', 120);
	is(join("\n", fatals($node)), '', 'no round was given up');
	$holder->run('ROLLBACK');
	poll(sub { (compared($sql))[1] > 0 && (compared($sql))[3] > $tables }, 'each table to be compared', 120);
	is(join("\n", fatals($node)), '', 'none, still');
	$sql->close;
	$holder->close;
	$node->stop;
};

done_testing();
