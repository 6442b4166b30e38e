# A domain reserved as a whole: past bulk_threshold rows in one transaction, and by TRUNCATE.
#
# Whatever happens to the transaction, its backend, PostgreSQL or Redis: reads are pending while it may commit, nothing
# cached before is served after it, everything can be cached again, nothing stays pending. What is rolled back costs the rows
# that were reserved one by one before the whole domain was. Reads go straight to Redis
# wherever a lock could make SQL wait.

use strict;
use warnings;

use FenceTest;
use FenceTest::Session;
use PostgreSQL::Test::Utils;
use Test::More;

my $threshold = 10;
my $rows = 60;
my $redis = FenceTest::Redis->start;
my $node = new_postgres('main', $redis,
	timeout                   => '5s',
	bulk_threshold            => $threshold,
	audit_rate                => 0,
	wal_level                 => 'replica',
	max_wal_senders           => 1,
	synchronous_commit        => 'local',
	synchronous_standby_names => 'nobody',
	restart_after_crash       => 'on',
	autovacuum                => 'off',
	max_prepared_transactions => 5);
my ($sql, $writer, $other, $blocker);

# Writers are connected to Redis, so that they reserve while a statement runs.
sub connect_all
{
	($sql, $writer, $other, $blocker) = map { FenceTest::Session->open($node) } 1 .. 4;
	flush($_) foreach $writer, $other;
	return;
}

# The answer comes after all that the session's connection has gathered.
sub flush { $_[0]->run("SELECT 1 FROM fence.get('beside', '1')"); return; }

# ---------------------------------------------------------------------------------------------------------------------
# Tools
# ---------------------------------------------------------------------------------------------------------------------

# Kinds of tables; each has the keys 1 to 60, a column id that says which, and a column name.
my %kind = (
	plain => {
		make => ['CREATE TABLE :t (id int PRIMARY KEY, n int DEFAULT 1, name text, version bigint NOT NULL DEFAULT 0)'],
		fill => "INSERT INTO :t (id, name, version) SELECT g, 'old', 5 FROM generate_series(1, 60) g",
	},
	partitioned => {
		make => [
			'CREATE TABLE :t (id int PRIMARY KEY, n int DEFAULT 1, name text, version bigint NOT NULL DEFAULT 0) '
			  . 'PARTITION BY RANGE (id)',
			'CREATE TABLE :t_1 PARTITION OF :t FOR VALUES FROM (1) TO (31)',
			'CREATE TABLE :t_2 PARTITION OF :t DEFAULT PARTITION BY HASH (id)',
			'CREATE TABLE :t_2a PARTITION OF :t_2 FOR VALUES WITH (MODULUS 2, REMAINDER 0)',
			'CREATE TABLE :t_2b PARTITION OF :t_2 FOR VALUES WITH (MODULUS 2, REMAINDER 1)',
		],
		fill => "INSERT INTO :t (id, name, version) SELECT g, 'old', 5 FROM generate_series(1, 60) g",
	},
	group => {
		make => ['CREATE TABLE :t (id int, n int DEFAULT 1, name text, PRIMARY KEY (id, n))'],
		fill => "INSERT INTO :t SELECT g, n, 'old' FROM generate_series(1, 60) g, generate_series(1, 2) n",
		attach => ", key => '{id}', scope => 'group'",
	});
my @kinds = qw(plain partitioned group);

my $tables = 0;
my %kind_of;     # table -> kind
my %fence;       # table -> [key -> fence]

# A cached domain.
sub new_table
{
	my ($kind) = @_;
	my $table = ($kind // 'plain') . ++$tables;

	$kind_of{$table} = $kind //= 'plain';
	my $how = $kind{$kind};
	$sql->run(s/:t/$table/gr) foreach @{ $how->{make} }, $how->{fill};
	$sql->run("SELECT fence.attach('$table'" . ($how->{attach} // '') . ')');
	find_fences($table);
	warm($table);
	return $table;
}

sub find_fences
{
	my ($table) = @_;

	$fence{$table} = [ undef, split /\n/, $sql->run("SELECT fence.fence_key('$table', k::text) FROM generate_series(1, $rows) k ORDER BY k") ];
	return;
}

# Caches whatever there is to cache.
sub warm
{
	my ($table) = @_;

	poll(
		sub {
			$sql->run("SELECT fence.read('$table', id::text) FROM (SELECT DISTINCT id FROM $table) k");
			return $sql->run("SELECT count(*) FROM (SELECT DISTINCT id FROM $table) k "
				  . "WHERE (fence.get('$table', id::text)).status <> 'hit'") eq '0';
		},
		"$table is cached");
	return;
}

sub get { my ($table, $key) = @_; return $redis->call(qw(FCALL_RO fence_get 1), $fence{$table}[$key]); }

# What reads of these keys (all) are told: "hit 59, pending 1".
sub reads
{
	my ($table, @keys) = @_;
	my %count;

	$count{ get($table, $_)->[0] }++ foreach @keys ? @keys : 1 .. $rows;
	return join ', ', map { @keys == 1 ? $_ : "$_ $count{$_}" } sort keys %count;
}

# Reads of all keys find at most so many hits, and at most so many fewer: by default as many as may have been reserved row by row.
sub hits_are
{
	my ($table, $most, $title, $fewer) = @_;
	my $reads = reads($table);
	my ($hits) = $reads =~ /hit (\d+)/;

	$hits //= 0;
	$fewer //= $threshold + 1;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return ok($reads !~ /pending|unarmed/ && $hits <= $most && $hits >= $most - $fewer, "$title: $reads")
	  || diag("expected: at most $most hits, at most $fewer fewer");
}

# Hits whose value is not what PostgreSQL holds.
sub stale
{
	my ($table) = @_;
	my ($now, $cached) = $kind_of{$table} eq 'group'
	  ? ("(SELECT coalesce(jsonb_agg(to_jsonb(t) ORDER BY to_jsonb(t)), '[]') FROM $table t WHERE t.id = k)",
		"(SELECT coalesce(jsonb_agg(x ORDER BY x), '[]') FROM jsonb_array_elements(g.payload::jsonb) x)")
	  : ("(SELECT to_jsonb(t) FROM $table t WHERE t.id = k)", 'g.payload::jsonb');

	return $sql->run("SELECT count(*) FROM generate_series(1, 200) k CROSS JOIN LATERAL fence.get('$table', k::text) g "
		  . "WHERE g.status = 'hit' AND $cached IS DISTINCT FROM $now");
}

# After the end of everything.
sub all_is_well
{
	my ($table) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	no_reservations($node);
	is(stale($table), '0', 'nothing stale is served');
	compare_fences($node, $table);
	warm($table);
	is(stale($table), '0', 'everything can be cached again');
	compare_fences($node, $table);
	return;
}

# What a session has reserved in a domain: "domain 1, row 10".
sub pending_of
{
	my ($table, $session) = @_;

	return $sql->run("SELECT string_agg(kind || ' ' || n, ', ' ORDER BY kind) FROM (SELECT kind, coalesce(sum(fences), count(*)) AS n "
		  . "FROM fence.pending WHERE domain = '$table' AND fate = 'in progress' AND pid = " . $session->pid
		  . ' GROUP BY kind) p');
}

sub ended
{
	my ($table) = @_;

	poll(sub { $sql->run("SELECT count(*) FROM fence.pending WHERE domain = '$table' AND fate <> 'in progress'") eq '0' },
		'what has ended to be settled');
	return;
}

sub waits_for
{
	my ($session, $event) = @_;

	my $seen = 'SELECT wait_event_type, wait_event FROM pg_stat_activity WHERE pid = ' . $session->pid;

	poll(sub { grep { $_ eq $event } split /\|/, $sql->run($seen) }, "a session to wait for $event");
	return;
}

sub set
{
	$sql->run("ALTER SYSTEM SET $_") foreach @_;
	$node->reload;
	return;
}

sub epoch { return (split /-/, $sql->run('SELECT epoch FROM fence.state'))[0]; }

# Redis has lost everything: a new epoch, in which the domain is served again.
sub wait_new_epoch
{
	my ($before, $table) = @_;

	poll(sub { my $e = eval { epoch() }; defined $e && $e > $before }, 'a new epoch');
	wait_open($node);
	poll(sub { reads($table, $rows) ne 'unarmed' }, "$table is served") if $table;
	return;
}

$sql = FenceTest::Session->open($node);
$sql->run('CREATE TABLE beside (id int PRIMARY KEY, version bigint NOT NULL DEFAULT 0)');
$sql->run('INSERT INTO beside VALUES (1, 1)');
$sql->run("SELECT fence.attach('beside')");
$sql->run('CREATE TABLE scratch (id int)');
connect_all();

# ---------------------------------------------------------------------------------------------------------------------
# Commit and rollback
# ---------------------------------------------------------------------------------------------------------------------

my $update = "UPDATE :t SET name = 'new'";
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

# ---------------------------------------------------------------------------------------------------------------------
# Savepoints
# ---------------------------------------------------------------------------------------------------------------------

sub savepoint_for
{
	my ($key, $end) = @_;

	return ("SAVEPOINT s$key", "UPDATE :t SET name = 'new' WHERE id = $key", "$end s$key");
}

# [title, statements, what reads are told after COMMIT, name => count in the table]
my $one = "UPDATE :t SET name = 'one' WHERE id = 1";
my $refill = "INSERT INTO :t (id, name) SELECT g, 'back' FROM generate_series(1, 60) g";
my @savepoints = (
	[ 'bulk rolled back, row kept', [ $one, 'SAVEPOINT a', $update, 'ROLLBACK TO a' ], 'miss 1, hit 59', 'old 59, one 1' ],
	[ 'bulk rolled back, a row before and after',
		[ $one, 'SAVEPOINT a', $update, 'ROLLBACK TO a', "UPDATE :t SET name = 'two' WHERE id = 2" ],
		'miss 60', 'old 58, one 1, two 1' ],
	[ 'row rolled back, bulk kept', [ $update, 'SAVEPOINT a', $one, 'ROLLBACK TO a' ], 'miss 60', 'new 60' ],
	[ 'row rolled back before the bulk', [ 'SAVEPOINT a', $one, 'ROLLBACK TO a', $update ], 'miss 60', 'new 60' ],
	[ 'crossed twice',
		[ 'SAVEPOINT a', $update, 'ROLLBACK TO a', "UPDATE :t SET name = 'again'" ], 'miss 60', 'again 60' ],
	[ 'crossed twice, rolled back twice',
		[ 'SAVEPOINT a', $update, 'ROLLBACK TO a', $update, 'ROLLBACK TO a' ], 'hit 60', 'old 60' ],
	[ 'crossed in a nested savepoint, released, rolled back',
		[ 'SAVEPOINT a', 'SAVEPOINT b', $update, 'RELEASE b', 'ROLLBACK TO a' ], 'hit 60', 'old 60' ],
	[ 'crossed in a nested savepoint, released twice', [ 'SAVEPOINT a', 'SAVEPOINT b', $update, 'RELEASE b', 'RELEASE a' ],
		'miss 60', 'new 60' ],
	[ 'crossed by two savepoints together',
		[ 'SAVEPOINT a', "UPDATE :t SET name = 'new' WHERE id <= 8", 'RELEASE a', 'SAVEPOINT b',
			"UPDATE :t SET name = 'new' WHERE id BETWEEN 9 AND 12", 'ROLLBACK TO b' ], 'hit 52, miss 8', 'new 8, old 52' ],
	[ 'TRUNCATE rolled back, row kept',
		[ $one, 'SAVEPOINT a', 'TRUNCATE :t', 'ROLLBACK TO a' ], 'hit 59, miss 1', 'old 59, one 1' ],
	[ 'TRUNCATE, filled again, row rolled back',
		[ 'TRUNCATE :t', $refill, 'SAVEPOINT a', $one, 'ROLLBACK TO a' ], 'miss 60', 'back 60' ],
	[ 'TRUNCATE in a savepoint that is kept, bulk in one that is not',
		[ 'SAVEPOINT a', 'TRUNCATE :t', 'RELEASE a', 'SAVEPOINT b', $refill, 'ROLLBACK TO b' ], 'miss 60', '' ],
	[ 'a savepoint for each row, half rolled back',
		[ map { savepoint_for($_, $_ % 2 ? 'ROLLBACK TO' : 'RELEASE') } 1 .. 30 ], 'miss 60', 'new 15, old 45' ],
	[ 'a savepoint for each row, all rolled back',
		[ map { savepoint_for($_, 'ROLLBACK TO') } 1 .. 30 ], 'hit 60', 'old 60' ],
	[ 'exception blocks in a loop', [ <<'SQL' ], 'miss 60', 'new 20, old 40' ],
DO $$ BEGIN
	FOR i IN 1 .. 40 LOOP
		BEGIN
			UPDATE :t SET name = 'new' WHERE id = i;
			IF i % 2 = 0 THEN RAISE division_by_zero; END IF;
		EXCEPTION WHEN division_by_zero THEN NULL;
		END;
	END LOOP;
END $$
SQL
	[ 'an exception undoes the bulk in the middle of another statement', [ <<'SQL', $one ], 'miss 60', 'old 59, one 1' ],
DO $$ BEGIN
	UPDATE :t SET name = 'new'; RAISE division_by_zero;
EXCEPTION WHEN division_by_zero THEN NULL;
END $$
SQL
);

sub names_in
{
	my ($table) = @_;

	return $sql->run("SELECT string_agg(name || ' ' || n, ', ' ORDER BY name) FROM (SELECT name, count(DISTINCT id) AS n "
		  . "FROM $table GROUP BY name) t");
}

foreach my $kind (@kinds)
{
	subtest "$kind: savepoints" => sub {
		foreach my $case (@savepoints)
		{
			my ($title, $statements, $reads, $stored) = @$case;
			my $table = new_table($kind);

			$writer->run('BEGIN');
			$writer->run(s/:t/$table/gr) foreach @$statements;
			flush($writer);
			is(stale($table), '0', "$title: nothing stale while it is open") unless $title =~ /TRUNCATE/;
			$writer->run('COMMIT');
			no_reservations($node);
			my ($hits) = $reads =~ /hit (\d+)/;
			hits_are($table, $hits // 0, "$title: reads", 2 * $threshold);
			is(names_in($table), $stored, 'stored');
			all_is_well($table);
			$sql->run("SELECT fence.detach('$table'); DROP TABLE $table");
		}
	};
}

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

	$redis->call('SET', $fence{$table}[1], "$token 50 ");
	is($writer->error_of("BEGIN; UPDATE $table SET name = 'one' WHERE id = 1; UPDATE $table SET name = 'new' WHERE id > 1; COMMIT"),
		undef, 'that was reserved by itself: no error');
	no_reservations($node);
	is(reads($table), "miss $rows", 'it is written');
	all_is_well($table);

	$token = $sql->run("SELECT token FROM fence.status('$table', '1')");
	$redis->call('SET', $fence{$table}[$rows], "$token 90 ");
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
# Two at once
# ---------------------------------------------------------------------------------------------------------------------

subtest 'two bulk writers in one domain' => sub {
	foreach my $ends ([qw(COMMIT COMMIT)], [qw(COMMIT ROLLBACK)], [qw(ROLLBACK COMMIT)], [qw(ROLLBACK ROLLBACK)])
	{
		foreach my $kind (@kinds)
		{
			my $table = new_table($kind);
			my $cold = 0;

			$writer->run("BEGIN; UPDATE $table SET name = 'low' WHERE id <= 30");
			$other->run("BEGIN; UPDATE $table SET name = 'high' WHERE id > 30");
			flush($_) foreach $writer, $other;
			is($sql->run("SELECT count(*) FROM fence.pending WHERE domain = '$table' AND kind = 'domain'"), '2',
				'both have reserved it');
			is(reads($table), "pending $rows", "$kind, @$ends: pending");
			my ($first, $second) = @$ends;
			$other->run($first);
			ended($table);
			is(reads($table), "pending $rows", 'still, for the second');
			is(stale($table), '0', 'nothing stale');
			$writer->run($second);
			no_reservations($node);
			$cold = grep { $_ eq 'COMMIT' } @$ends;
			hits_are($table, $cold ? 0 : $rows, 'reads after both', 2 * $threshold);
			all_is_well($table);
		}
	}
};

# A row writer (row 60) and a bulk writer (rows 1 to 40), each began and ended in either order, with either end.
subtest 'a bulk writer beside a row writer' => sub {
	foreach my $order ([qw(row bulk row bulk)], [qw(row bulk bulk row)], [qw(bulk row row bulk)], [qw(bulk row bulk row)])
	{
		foreach my $ends ([qw(COMMIT COMMIT)], [qw(COMMIT ROLLBACK)], [qw(ROLLBACK COMMIT)])
		{
			my $table = new_table($kinds[ $tables % @kinds ]);
			my %session = (row => $writer, bulk => $other);
			my %work = (
				row => "UPDATE $table SET name = 'row' WHERE id = 60",
				bulk => "UPDATE $table SET name = 'bulk' WHERE id <= 40");
			my @ends = @$ends;
			my (%state, %end);

			foreach my $who (@$order)
			{
				if (!$state{$who})
				{
					$session{$who}->run("BEGIN; $work{$who}");
					flush($session{$who});
					$state{$who} = 'open';
				}
				else
				{
					$session{$who}->run($end{$who} = $state{$who} = shift @ends);
					ended($table);
				}
				is(stale($table), '0', "$kind_of{$table}: @$order, @$ends: nothing stale after the step of $who");
				is(reads($table), "pending $rows", 'all pending') if ($state{bulk} // '') eq 'open';
				is(reads($table, 60), 'pending', 'the row is pending') if ($state{row} // '') eq 'open';
				$sql->run("SELECT fence.read('$table', k::text) FROM generate_series(30, 60) k");
			}
			no_reservations($node);
			is($sql->run("SELECT coalesce(bool_or(name = 'row'), false), coalesce(bool_or(name = 'bulk'), false) FROM $table"),
				join('|', map { $end{$_} eq 'COMMIT' ? 't' : 'f' } qw(row bulk)), 'stored');
			all_is_well($table);
		}
	}
};

subtest 'a row writer that waits for the bulk writer\'s row' => sub {
	foreach my $case ([ COMMIT => 7 ], [ ROLLBACK => 6 ])
	{
		my ($end, $version) = @$case;
		my $table = new_table();

		$other->run("BEGIN; UPDATE $table SET name = 'bulk'");
		$writer->begin("UPDATE $table SET name = 'row' WHERE id = 60");
		waits_for($writer, 'Lock');
		$other->run($end);
		is($writer->take, '', "it goes on after $end");
		no_reservations($node);
		is($sql->run("SELECT version FROM $table WHERE id = 60"), $version, 'its version');
		all_is_well($table);
	}
};

# ---------------------------------------------------------------------------------------------------------------------
# Readers that put
# ---------------------------------------------------------------------------------------------------------------------

sub put
{
	my ($table, $key, $answer, $version, $payload) = @_;

	return $redis->call(qw(FCALL fence_put 1), $fence{$table}[$key], $answer->[1], $version, $payload, 0);
}

subtest 'what was read before is put during and after' => sub {
	foreach my $statement ($update, 'TRUNCATE :t')
	{
		foreach my $end (qw(COMMIT ROLLBACK))
		{
			my $table = new_table();
			my $old = $sql->run("SELECT to_jsonb(t) FROM $table t WHERE id = 1");
			my %answer;

			$redis->call('DEL', $fence{$table}[$_]) foreach 1 .. 4;
			$answer{$_} = get($table, $_) foreach 1 .. 4;
			is($answer{$_}[0], 'miss', "$_: before") foreach 1 .. 4;

			$writer->run('BEGIN; ' . $statement =~ s/:t/$table/r);
			flush($writer);
			like(put($table, $_, $answer{$_}, 5, $old =~ s/"id": 1/"id": $_/r), qr/^(?:stored|refused )/, "$_: put during")
			  foreach 1, 2;
			is(reads($table), "pending $rows", 'not served');
			$writer->run($end);
			no_reservations($node);
			my $after = put($table, 3, $answer{3}, 5, $old =~ s/"id": 1/"id": 3/r);
			if ($end eq 'COMMIT')
			{
				is($after, 'refused token', '3: put after');
				is(put($table, 1, $answer{1}, 5, $old), 'refused token', '1: again');
				is(reads($table), "miss $rows", 'nothing is served');
				$writer->run("INSERT INTO $table (id, name, version) SELECT g, 'back', 1 FROM generate_series(1, 20) g "
					  . "ON CONFLICT (id) DO UPDATE SET name = 'back'");
				# the permit of this read, after another change of the whole domain
				my $second = get($table, 4);
				$writer->run("UPDATE $table SET name = 'again'");
				no_reservations($node);
				is(put($table, 4, $second, 5, $old), 'refused token', '4: a permit of between two bulk changes');
			}
			else
			{
				# if it was reserved by itself, that has ended since
				like($after, qr/^(?:stored|refused late)$/, '3: put after');
			}
			all_is_well($table);
		}
	}
};

# ---------------------------------------------------------------------------------------------------------------------
# Between the last reservation and the last message. NOTIFY takes a lock right after PRE_COMMIT: who waits for it has
# reserved everything and has no commit record. Who waits for a standby that does not exist has one, and has told
# nobody; canceling ends that wait, not the commit.
# ---------------------------------------------------------------------------------------------------------------------

# Makes the transaction of $writer stop there, its COMMIT begun.
sub commit_stops
{
	my ($where) = @_;

	if ($where eq 'before')
	{
		$blocker->run('SET synchronous_commit = on');
		$blocker->run('BEGIN; INSERT INTO scratch DEFAULT VALUES; NOTIFY nobody');
		$blocker->begin('COMMIT');
		waits_for($blocker, 'SyncRep');
		$writer->run('NOTIFY nobody');
		$writer->begin('COMMIT');
		waits_for($writer, 'Lock');
	}
	else
	{
		$writer->run('SET LOCAL synchronous_commit = on');
		$writer->begin('COMMIT');
		waits_for($writer, 'SyncRep');
	}
	return;
}

# What the transaction does, where its COMMIT stops, what happens there: each ends well.
my %fault = (
	nothing => sub { return; },
	'the backend is terminated' => sub { $sql->run('SELECT pg_terminate_backend(' . $writer->pid . ')'); return; },
	'its connection to Redis is cut' => sub { $redis->call(qw(CLIENT KILL TYPE normal SKIPME yes)); return; },
	'Redis is restarted' => sub { $redis->restart; return; },
	'the backend is killed' => sub { kill 'KILL', $writer->pid; return; });

foreach my $where (qw(before after))
{
	foreach my $fault (sort keys %fault)
	{
		subtest "$where the commit record: $fault" => sub {
			my @works = ($update, 'TRUNCATE :t', "$one; SAVEPOINT a; $update; ROLLBACK TO a", "$one; $update");
			pop @works if $fault =~ /restarted|killed/;    # a new epoch for each takes its time
			foreach my $work (@works)
			{
				my $table = new_table();
				my $whole = $work !~ /ROLLBACK TO/;
				my $epoch = epoch();
				my $crash = $fault =~ /killed/;
				my $restart = $fault =~ /Redis is restarted/;

				flush($writer);
				$writer->run('BEGIN');
				$writer->run($_ =~ s/:t/$table/gr) foreach split /; /, $work;
				flush($writer);
				commit_stops($where);
				is(reads($table), "pending $rows", "$work: pending at that moment");
				$fault{$fault}->();
				if ($crash)
				{
					# it is not asked while it has not noticed yet
					poll(sub { !kill 0, $writer->pid }, 'the postmaster to notice');
					# no writer is left that could change the old epoch's fences: what they may serve is what is stored, or nothing
					# psql may be gone before it is told what to ask: a broken pipe
					poll(sub { my ($rc) = eval { $node->psql('postgres', 'SELECT 1') }; defined $rc && $rc == 0 }, 'the recovery');
					$sql = FenceTest::Session->open($node);
				}
				elsif ($fault !~ /terminated|restarted/)
				{
					is(reads($table), "pending $rows", 'still pending');
				}
				if ($crash)
				{
					connect_all();
				}
				else
				{
					my $waits = $where eq 'before' ? $blocker : $writer;
					$sql->run('SELECT pg_cancel_backend(' . $waits->pid . ')');
					$_->take foreach $writer, $where eq 'before' ? $blocker : ();
				}
				wait_new_epoch($epoch, $table) if $crash || $restart;
				if ($fault =~ /terminated/)
				{
					$writer = FenceTest::Session->open($node);
					flush($writer);
				}
				no_reservations($node);
				my $committed = $where eq 'after' || $fault !~ /backend/;
				is($sql->run("SELECT count(*) FROM $table WHERE name = 'old'"), !$committed ? $rows : $whole ? 0 : $rows - 1,
					$committed ? 'committed' : 'rolled back');
				my $hits = $crash || $restart ? 0 : !$committed ? $rows : $whole ? 0 : $rows - 1;
				# what a savepoint took back, settled by the fate of the transaction alone: only costs misses
				hits_are($table, $hits, 'reads', !$whole && $committed ? $rows : undef);
				all_is_well($table);
			}
		};
	}
}

# ---------------------------------------------------------------------------------------------------------------------
# Before COMMIT: Redis, backends, two-phase commit
# ---------------------------------------------------------------------------------------------------------------------

subtest 'Redis is restarted in the middle of the transaction' => sub {
	foreach my $work ($update, 'TRUNCATE :t', "$one; SAVEPOINT a; $update; ROLLBACK TO a; $one")
	{
		foreach my $end (qw(COMMIT ROLLBACK))
		{
			my $table = new_table();
			my $epoch = epoch();

			flush($writer);
			$writer->run('BEGIN');
			$writer->run($_ =~ s/:t/$table/gr) foreach split /; /, $work;
			flush($writer);
			$redis->restart;
			wait_new_epoch($epoch, $table);
			if ($work =~ /TRUNCATE/) { is(reads($table), "miss $rows", 'the new epoch knows nothing cached'); }
			else { warm($table); is(reads($table), "hit $rows", "$work: cached again in the new epoch, before the end"); }
			$writer->run($end);
			no_reservations($node);
			isnt(reads($table), "hit $rows", "after $end: not all are hits") if $end eq 'COMMIT';
			is(stale($table), '0', "after $end: nothing stale");
			all_is_well($table);
		}
	}
};

subtest 'Redis is away: bypass, error' => sub {
	my $table = new_table();
	my $strict = new_table();
	my $epoch = epoch();

	$sql->run("SELECT fence.detach('$strict')");
	$sql->run("SELECT fence.attach('$strict', on_redis_failure => 'error')");
	$writer->run('BEGIN; ' . $update =~ s/:t/$table/r);
	$other->run('BEGIN; ' . $update =~ s/:t/$strict/r);
	$redis->stop;
	wait_state($node, 'CLOSED');    # until then what is acknowledged may still commit
	is($writer->error_of('COMMIT'), undef, 'bypass: it commits when no lease can run any more');
	like($other->error_of('COMMIT'), qr/^08006/, 'error: it fails');
	$redis->restart;
	wait_new_epoch($epoch, $table);
	poll(sub { $sql->run("SELECT status FROM fence.get('$strict', '1')") ne 'unarmed' }, 'it is served');
	is($sql->run("SELECT DISTINCT name FROM $table"), 'new', 'stored');
	is($sql->run("SELECT DISTINCT name FROM $strict"), 'old', 'not stored');
	all_is_well($_) foreach $table, $strict;
};

subtest 'a backend that ends before COMMIT, and whose abort is lost' => sub {
	foreach my $work ($update, 'TRUNCATE :t')
	{
		my $table = new_table();
		my $victim = FenceTest::Session->open($node);

		flush($victim);
		$victim->run('BEGIN; ' . $work =~ s/:t/$table/r);
		flush($victim) unless $work =~ /TRUNCATE/;
		poll(sub { reads($table) eq "pending $rows" }, 'the reservation');
		$redis->call(qw(CLIENT KILL TYPE normal SKIPME yes));
		$sql->run('SELECT pg_terminate_backend(' . $victim->pid . ', 5000)');
		no_reservations($node);
		poll(sub { reads($table) !~ /pending/ }, 'the patrol to settle it', 20);
		hits_are($table, $rows, 'the patrol settles it as aborted');
		all_is_well($table);
	}
};

subtest 'two-phase commit' => sub {
	my @works = ([ bulk => $update ], [ 'row and bulk' => $one, $update ],
		[ 'bulk rolled back' => $one, 'SAVEPOINT a', $update, 'ROLLBACK TO a' ],
		[ 'bulk again' => 'SAVEPOINT a', $update, 'ROLLBACK TO a', $update ]);
	my $turn = 0;

	foreach my $work (@works)
	{
		foreach my $fault ('', '', 'Redis is restarted', 'PostgreSQL is restarted', 'PostgreSQL crashes')
		{
			my ($title, @parts) = @$work;
			my $end = ++$turn % 2 ? 'COMMIT' : 'ROLLBACK';
			my $table = new_table();
			my $epoch = epoch();
			my $whole = $title !~ /rolled back/;

			flush($writer);
			$writer->run('BEGIN');
			$writer->run(s/:t/$table/r) foreach @parts;
			flush($writer);
			$writer->run("PREPARE TRANSACTION 'p'");
			# what a savepoint took back may stay reserved
			my $pending = $whole ? "pending $rows" : "(?:pending $rows|hit \\d+, pending \\d+)";
			like(reads($table), qr/^$pending$/, "$title, $fault, $end PREPARED: pending");
			is($sql->run("SELECT DISTINCT fate, gid FROM fence.pending WHERE domain = '$table'"), 'prepared|p',
				'fence.pending says so');
			if ($fault =~ /Redis/) { $redis->restart; }
			elsif ($fault)
			{
				$node->stop($fault =~ /crash/ ? 'immediate' : 'fast');
				$node->start;
				connect_all();
			}
			wait_new_epoch($epoch, $table) if $fault;
			is(reads($table), "pending $rows", 'in the new epoch too') if $fault;
			$sql->run("$end PREPARED 'p'");
			no_reservations($node);
			is(stale($table), '0', 'nothing stale after it');
			is(names_in($table), $end eq 'ROLLBACK' ? 'old 60' : $whole ? 'new 60' : 'old 59, one 1', 'stored');
			# what a savepoint took back may be settled by the fate of the transaction alone
			hits_are($table, $end eq 'ROLLBACK' ? $rows : $whole ? 0 : 59, 'reads', $end eq 'ROLLBACK' ? 2 * $threshold : $rows) if !$fault;
			all_is_well($table);
		}
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

# ---------------------------------------------------------------------------------------------------------------------
# All at once
# ---------------------------------------------------------------------------------------------------------------------

subtest 'readers, row writers and bulk writers at the same time' => sub {
	my $table = new_table();
	my $dir = PostgreSQL::Test::Utils::tempdir();
	my %script = (
		bulk => "\\set a random(1, 40)\n\\set n random(12, 20)\n"
		  . "WITH l AS MATERIALIZED (SELECT id FROM $table WHERE id BETWEEN :a AND :a + :n ORDER BY id FOR UPDATE) "
		  . "UPDATE $table t SET name = 'bulk' FROM l WHERE t.id = l.id;\n",
		undo => "\\set a random(1, 40)\nBEGIN;\nUPDATE $table SET name = 'row' WHERE id = :a;\nSAVEPOINT a;\n"
		  . "WITH l AS MATERIALIZED (SELECT id FROM $table WHERE id > :a ORDER BY id FOR UPDATE) "
		  . "UPDATE $table t SET name = 'undone' FROM l WHERE t.id = l.id;\nROLLBACK TO a;\nCOMMIT;\n",
		row => "\\set a random(1, 60)\nUPDATE $table SET name = 'row' WHERE id = :a;\n",
		read => "\\set a random(1, 60)\nSELECT read_fresh(:a);\n");

	# versions only rise, so a hit must not be below what was committed before the read began
	$sql->run(<<"SQL");
CREATE TABLE outcome (status text);
CREATE FUNCTION read_fresh(k int) RETURNS void LANGUAGE plpgsql AS \$\$
DECLARE
	committed bigint; g record;
BEGIN
	SELECT version INTO committed FROM $table WHERE id = k;
	g := fence.get('$table', k::text);
	IF g.status = 'hit' AND (g.version < committed OR (g.payload::jsonb ->> 'version')::bigint <> g.version) THEN
		RAISE 'stale: row % had version %, the cache served %', k, committed, g;
	END IF;
	INSERT INTO outcome VALUES (g.status);
	PERFORM fence.read('$table', k::text);
END \$\$
SQL
	foreach my $name (keys %script) { PostgreSQL::Test::Utils::append_to_file("$dir/$name.sql", $script{$name}); }
	my @command = (qw(pgbench -n -c 8 -j 2 -t 300 --max-tries 100 -h), $node->host, '-p', $node->port,
		"-f", "$dir/read.sql\@12", "-f", "$dir/row.sql\@3", "-f", "$dir/bulk.sql\@1", "-f", "$dir/undo.sql\@1", 'postgres');
	my ($out, $err);
	IPC::Run::run(\@command, '<', \undef, '>', \$out, '2>', \$err);
	is($?, 0, 'pgbench') or diag($err);
	unlike($err, qr/stale|ERROR/, 'nothing stale, no error') or diag($err);
	note $out =~ /(number of transactions actually.*?)$/m;
	note $sql->run("SELECT string_agg(status || ' ' || n, ', ') "
		  . 'FROM (SELECT status, count(*) AS n FROM outcome GROUP BY 1) o');
	cmp_ok($sql->run("SELECT count(*) FROM outcome WHERE status = 'hit'"), '>', 0, 'some were hits');
	cmp_ok($sql->run("SELECT count(*) FROM outcome WHERE status = 'pending'"), '>', 0, 'some were pending');
	all_is_well($table);
};

is($sql->run("SELECT count(*) FROM fence.pending"), '0', 'nothing is pending in the end');
$_->close foreach $sql, $writer, $other, $blocker;
$node->stop('fast');
my $log = slurp_file($node->logfile);
unlike($log, qr/PANIC|TRAP|segfault|was terminated by signal (?!9)/, 'no crash but those that were meant');
unlike($log, qr/fence_behind_db|behind its row/, 'no broken promise');
done_testing();
