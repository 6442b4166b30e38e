# A domain reserved as a whole: past bulk_threshold rows in one transaction, and by TRUNCATE.
#
# Whatever happens to the transaction, its backend, PostgreSQL or Redis: reads are pending while it may commit, nothing
# cached before is served after it, everything can be cached again, nothing stays pending. What is rolled back costs the rows
# that were reserved one by one before the whole domain was.
#
# Here: every statement and end, versions, errors, and how many messages it takes. bulk_savepoints has savepoints,
# bulk_together several transactions and readers at once, bulk_faults what happens to servers and backends meanwhile.

use strict;
use warnings;

use FenceTest;
use FenceTest::Bulk;
use Test::More;

setup();

my @statements = ($update, 'DELETE FROM :t WHERE id > 1', 'TRUNCATE :t',
	'UPDATE :t SET id = id + 100', "INSERT INTO :t (id, n) SELECT g, 3 FROM generate_series(61, 99) g",
	"COPY :t (id, n) FROM PROGRAM 'seq -f %g,4 100 130' (FORMAT csv)",
	"INSERT INTO :t SELECT * FROM :t WHERE n = 1 ON CONFLICT (:key) DO UPDATE SET name = 'new'");

foreach my $kind (@kinds)
{
	my @all = (@statements, $kind eq 'partitioned' ? ('TRUNCATE :t_1', 'UPDATE :t SET id = 200 - id') : ());
	subtest "$kind: pending while it runs, cold after COMMIT, cached still after ROLLBACK" => sub {
		foreach my $statement (@all)
		{
			my $table = new_table($kind);
			my $key = $kind eq 'group' ? 'id, n' : 'id';
			(my $text = $statement) =~ s/:key/$key/g;
			$text =~ s/:t/$table/g;

			# nobody has cached a new row: nothing is reserved, all is served on
			my $inserts = $kind ne 'group' && $text =~ /^(?:INSERT|COPY)/ && $text !~ /CONFLICT/;

			foreach my $end (qw(ROLLBACK COMMIT))
			{
				$writer->run("BEGIN; $text");
				flush($writer);
				if ($inserts)
				{
					is(pending_of($table, $writer), '', "$text: nothing is reserved");
					is(reads($table), "hit $rows", 'reads are hits');
				}
				# of a partition it is reserved before the commit, not at once
				elsif ($text !~ /TRUNCATE \w+_1/)
				{
					like(pending_of($table, $writer), qr/^domain 1(?:, row (?:$threshold|9))?$/, "$text: reserved");
					is(reads($table), "pending $rows", 'reads are pending');
					is(reads($table, $rows), 'pending', 'each time');
				}
				$writer->run($end);
				no_reservations($node);
				hits_are($table, $end eq 'COMMIT' && !$inserts ? 0 : $rows, "reads after $end", $inserts ? 0 : undef);
				warm($table) if $end eq 'ROLLBACK';
			}
			all_is_well($table);
		}
	};
}

subtest 'fence.pending shows it' => sub {
	my $table = new_table();

	$writer->run('BEGIN; ' . $update =~ s/:t/$table/r);
	flush($writer);
	my $xid = $writer->run('SELECT pg_current_xact_id()');
	like($sql->run("SELECT domain, key, fences, split_part(stamp, '.', 1), age BETWEEN '0' AND '60 s', pid, fate, kind, "
			  . "gid FROM fence.pending WHERE kind = 'domain'"),
		qr/^$table\|\|\|$xid\|t\|${\ $writer->pid}\|in progress\|domain\|$/, 'domain, owner, fate, kind');
	like($sql->run("SELECT relation, pending FROM fence.status('$table', '60')"), qr/\|1$/, 'and fence.status counts it');
	$writer->run('ROLLBACK');
	all_is_well($table);
};

subtest 'a transaction that wrote many rows fills no cache' => sub {
	my $table = new_table();

	$writer->run('BEGIN; ' . $update =~ s/:t/$table/r);
	is($writer->run("SELECT fence.read('$table', '1') ->> 'name'"), 'new', 'it reads what it wrote');
	$writer->run('ROLLBACK');
	no_reservations($node);
	is(stale($table), '0', 'nobody else does');
	warm($table);
	my $permit = $writer->run("SELECT permit FROM fence.get('$table', '61')");
	like($permit, qr/^\S+ \d+$/, 'it has a permit');
	$writer->run('BEGIN; ' . $update =~ s/:t/$table/r);
	is($writer->run("SELECT fence.put('$table', '$permit', 99, '\"x\"', NULL, '61')"),
		'refused this transaction has written in the domain', 'a put is refused');
	$writer->run('ROLLBACK');
	all_is_well($table);
};

subtest 'versions of rows that were reserved one by one' => sub {
	my $table = new_table();

	# a row of before, within and after
	$writer->run("BEGIN; UPDATE $table SET name = 'a' WHERE id <= 5");
	flush($writer);
	is(pending_of($table, $writer), 'row 5', 'row by row');
	$writer->run("UPDATE $table SET name = 'b'");
	flush($writer);
	is(pending_of($table, $writer), "domain 1, row $threshold", 'those stay, and the domain');
	$writer->run("UPDATE $table SET name = 'c' WHERE id = 1");
	$writer->run('SAVEPOINT a');
	$writer->run("UPDATE $table SET name = 'd' WHERE id = 1");
	$writer->run('ROLLBACK TO a');
	$writer->run('COMMIT');
	no_reservations($node);
	is($sql->run("SELECT string_agg(version || ' ' || n, ', ' ORDER BY version) "
			  . "FROM (SELECT version, count(*) AS n FROM $table GROUP BY 1) t"),
		'6 55, 7 4, 8 1', 'each version once');
	all_is_well($table);

	# the row's version falls back to the one that was reserved for it
	$writer->run("BEGIN; UPDATE $table SET name = 'a' WHERE id = 60; SAVEPOINT a; UPDATE $table SET name = 'b'; "
		  . 'ROLLBACK TO a; COMMIT');
	no_reservations($node);
	is($sql->run("SELECT relation, fence_version, row_version FROM fence.status('$table', '60')"), 'missing||7',
		'the row alone counts');
	hits_are($table, $rows - 1, 'the others are as they were');
	all_is_well($table);
};

# ---------------------------------------------------------------------------------------------------------------------
# Fences that are ahead; 40001
# ---------------------------------------------------------------------------------------------------------------------

subtest 'a fence that is ahead of a row' => sub {
	my $table = new_table();
	my $token = $sql->run("SELECT token FROM fence.status('$table', '1')");

	$redis->call('SET', fence_of($table, 1), "$token 50 ");
	is($writer->error_of("BEGIN; UPDATE $table SET name = 'one' WHERE id = 1; UPDATE $table SET name = 'new' WHERE id > 1; COMMIT"),
		undef, 'that was reserved by itself: no error');
	no_reservations($node);
	is(reads($table), "miss $rows", 'it is written');
	all_is_well($table);

	$token = $sql->run("SELECT token FROM fence.status('$table', '1')");
	$redis->call('SET', fence_of($table, $rows), "$token 90 ");
	is($writer->error_of("UPDATE $table SET name = 'new'"), undef, 'that the domain was reserved for: no error');
	all_is_well($table);
};

subtest 'serialization failure at the commit of a SERIALIZABLE transaction' => sub {
	foreach my $statement ($update, "$one; $update")
	{
		my ($table, $second) = (new_table(), new_table());
		$writer->run('BEGIN ISOLATION LEVEL SERIALIZABLE');
		$other->run('BEGIN ISOLATION LEVEL SERIALIZABLE');
		$writer->run("SELECT count(*) FROM $second");
		$other->run("SELECT count(*) FROM $table");
		$writer->run($statement =~ s/:t/$table/gr);
		$other->run($statement =~ s/:t/$second/gr);
		flush($writer);
		is(reads($table), "pending $rows", 'pending');
		$other->run('COMMIT');
		like($writer->error_of('COMMIT'), qr/^40001: could not serialize/, '40001 of PostgreSQL, after all was reserved');
		no_reservations($node);
		hits_are($table, $rows, 'as it was');
		is(reads($second), "miss $rows", 'the one that committed');
		$writer->run('BEGIN ISOLATION LEVEL SERIALIZABLE; ' . $statement =~ s/:t/$table/gr . '; COMMIT');
		all_is_well($_) foreach $table, $second;
	}
};

# ---------------------------------------------------------------------------------------------------------------------
# Messages
# ---------------------------------------------------------------------------------------------------------------------

# How often functions were called since Redis started, and how many bytes it got.
sub traffic
{
	my ($calls) = $redis->info('commandstats', 'cmdstat_fcall') =~ /calls=(\d+)/;

	return ($calls, $redis->info('stats', 'total_net_input_bytes'));
}

# Messages and bytes that Redis got for that statement of the writer, from BEGIN to the last answer; the least of a few
# times, because keeper and patrol talk too.
sub traffic_for
{
	my ($statement) = @_;
	my @least;

	foreach my $try (1 .. 5)
	{
		flush($writer);
		my @before = traffic();
		$writer->run("BEGIN; $statement; COMMIT");
		flush($writer);
		my @after = traffic();
		foreach my $i (0, 1)
		{
			my $count = $after[$i] - $before[$i];
			$least[$i] = $count if !defined $least[$i] || $count < $least[$i];
		}
	}
	return @least;
}

subtest 'what a statement changes is reserved at its end, and before its backend asks' => sub {
	foreach my $kind (@kinds)
	{
		my $table = new_table($kind);
		$sql->run("INSERT INTO $table (id, name) SELECT g, 'old' FROM generate_series(61, 200) g");
		my $pending = "SELECT count(*) FROM generate_series(1, 200) k WHERE (fence.get('$table', k::text)).status = 'pending'";
		$writer->run('BEGIN; SET LOCAL pgcache_fence.bulk_threshold = 1000');
		if ($kind ne 'group')
		{
			is($writer->run("WITH u AS (UPDATE $table SET name = 'all' RETURNING (fence.get('$table', id::text)).status) "
					  . 'SELECT string_agg(DISTINCT status, $$,$$) FROM u'),
				'pending', "$kind: the writer is not served a row that its statement has changed");
			$writer->run('ROLLBACK; BEGIN; SET LOCAL pgcache_fence.bulk_threshold = 1000');
		}
		# in the order of the table those come last that have a reservation already
		$writer->run("UPDATE $table SET name = 'first' WHERE id BETWEEN 40 AND 59");
		$writer->run("UPDATE $table SET name = 'all'");
		flush($writer) if $kind eq 'group';
		ok(eval { poll(sub { $other->run($pending) eq '200' }, 'all', 20) }, "$kind: all are pending at the end of the statement")
		  or diag($other->run($pending));
		is($writer->run($pending), 200, "$kind: also for the writer");
		$writer->run('ROLLBACK');
		no_reservations($node);
		compare_fences($node, $table);
	}
};

subtest 'the number of messages does not grow with the rows' => sub {
	set("pgcache_fence.lease = '60s'", "pgcache_fence.patrol_interval = '60s'");
	wait_open($node);
	foreach my $kind (@kinds)
	{
		my $table = new_table($kind);
		$sql->run("INSERT INTO $table (id, name) SELECT g, 'old' FROM generate_series(61, 2000) g");
		my $twice;
		foreach my $times (2, 20, 100)
		{
			my $n = $times * $threshold;
			my ($messages, $bytes) = traffic_for("UPDATE $table SET name = 'x' WHERE id <= $n");
			note "$kind: UPDATE of $n rows: $messages messages, $bytes bytes";
			# one by one up to the threshold, the domain, its commit, the others' end, and what counts here
			cmp_ok($messages, '<', $threshold + 15, "$kind, $times times the threshold: few messages");
			$twice //= $bytes;
			cmp_ok($bytes, '<', $twice + 1000, 'as few bytes as for twice the threshold') if $times > 2;
		}
		my ($messages, $bytes) = traffic_for(join '; ', map { "UPDATE $table SET name = 'y' WHERE id = $_" } 1 .. 200);
		note "$kind: 200 UPDATEs of a row: $messages messages, $bytes bytes";
		cmp_ok($messages, '<', $threshold + 15, 'nor with the statements');
		cmp_ok($bytes, '<', $twice + 4000, 'nor do the bytes');

		my $limit = 1000;
		($messages, $bytes) = traffic_for("SET LOCAL pgcache_fence.bulk_threshold = $limit; UPDATE $table SET name = 'z' WHERE id < 500");
		note "$kind: UPDATE of 499 rows that stays below the threshold: $messages messages, $bytes bytes";
		cmp_ok($messages, '<', 40, 'many rows share a message');
		($messages, $bytes) = traffic_for("SET LOCAL pgcache_fence.bulk_threshold = $limit; UPDATE $table SET name = 'z'");
		note "$kind: UPDATE of 2000 rows that crosses a threshold of $limit: $messages messages, $bytes bytes";
		cmp_ok($messages, '<', 40, 'the rows before the threshold share messages, and those after it need none');
		no_reservations($node);
		compare_fences($node, $table);
	}
	set("pgcache_fence.lease = '1s'", "pgcache_fence.patrol_interval = '100ms'");
	wait_open($node);
};

finish();
