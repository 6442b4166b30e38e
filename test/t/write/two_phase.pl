# Two-phase commit: what a prepared transaction may still commit is pending until its fate is known, whatever happens
# to PostgreSQL or Redis meanwhile.
#
# Watched in two places: fence.pending and strong reads while the transaction is prepared; rows, fences and the values
# that were cached before, after its end.

use strict;
use warnings;

use FenceTest;
use FenceTest::Session;
use Test::More;
use Time::HiRes qw(time);

my $lease = 0.5;
my $redis = FenceTest::Redis->start;
my $node = new_postgres('main', $redis,
	lease                     => '1500ms',
	bulk_threshold            => 20,
	max_prepared_transactions => 20,
	autovacuum                => 'off');
my ($sql, $writer, $other);
my $tables = 0;

sub connect_all { ($sql, $writer, $other) = map { FenceTest::Session->open($node) } 1 .. 3; return; }
connect_all();

# ---------------------------------------------------------------------------------------------------------------------
# Tools
# ---------------------------------------------------------------------------------------------------------------------

# A domain with rows 1 to 30 at version 5 that are cached. Without columns: an ordinary table.
sub new_table
{
	my ($columns, $attach) = @_;
	my $name = 'item' . ++$tables;

	$sql->run("CREATE TABLE $name " . ($columns // "(id int PRIMARY KEY, name text DEFAULT 'old', version bigint NOT NULL DEFAULT 0)"));
	$sql->run("CREATE TABLE ${name}_$_ PARTITION OF $name FOR VALUES FROM (" . (10 * $_ - 9) . ') TO (' . (10 * $_ + 1) . ')')
	  foreach $columns ? 1 .. 4 : ();
	$sql->run("INSERT INTO $name (id, version) SELECT g, 5 FROM generate_series(1, 30) g");
	$sql->run("SELECT fence.attach('$name'" . ($attach ? ", $attach" : '') . ')');
	warm($name);
	return $name;
}

sub new_partitioned
{
	return new_table("(id int PRIMARY KEY, name text DEFAULT 'old', version bigint NOT NULL DEFAULT 0) PARTITION BY RANGE (id)");
}

# Caches all rows.
sub warm
{
	my ($name) = @_;

	poll(
		sub {
			$sql->run("SELECT fence.read('$name', id::text) FROM $name");
			return $sql->run("SELECT bool_and((fence.get('$name', id::text)).status = 'hit') FROM $name") eq 't';
		},
		"$name is cached");
	return;
}

# In the writer: a transaction with these statements, prepared under that name.
sub prepare
{
	my ($gid, @statements) = @_;

	$writer->run($_) foreach 'BEGIN', @statements, "PREPARE TRANSACTION '$gid'";
	return;
}

# What is pending in a domain: "fences kind fate gid" of each transaction, sorted; '*' is the whole domain.
sub pending_of
{
	my ($domain) = @_;

	return $sql->run("SELECT string_agg(concat_ws(' ', coalesce(fences::text, '*'), kind, fate, gid), ', ' "
		  . "ORDER BY kind, gid) FROM fence.pending WHERE domain = '$domain'");
}

sub get_status { my ($domain, $key) = @_; return $sql->run("SELECT status FROM fence.get('$domain', '$key')"); }

# [key => status that a read must have]...
sub reads_say
{
	my ($domain, %expected) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is(join(', ', map { "$_ " . get_status($domain, $_) } sort keys %expected),
		join(', ', map { "$_ $expected{$_}" } sort keys %expected), "reads of $domain");
}

sub all_pending { my ($domain, @keys) = @_; return reads_say($domain, map { $_ => 'pending' } @keys); }

# Waits until the patrol has begun that many rounds more: each lists what is pending.
sub patrol_rounds
{
	my ($count) = @_;
	my $monitor = $redis->connect;

	$monitor->call('MONITOR');
	while ($count > 0) { $count-- if $monitor->reply =~ /"fence_pending"/; }
	return;
}

sub set
{
	$sql->run("ALTER SYSTEM SET $_") foreach @_;
	$node->reload;
	return;
}

# Ends a prepared transaction from a session that has nothing to do with it. Must be settled at once: here the patrol
# sleeps for a minute, if nobody wakes it.
sub end_prepared
{
	my ($how, $gid, $domain) = @_;
	my $start = time();

	$other->run("$how PREPARED '$gid'");
	my $gone = eval {
		poll(sub { $sql->run("SELECT count(*) FROM fence.pending WHERE gid = '$gid' OR (domain = '$domain' AND fate <> 'prepared')") eq '0' },
			'the end', 20);
	};
	my $took = time() - $start;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok($gone, sprintf '%s PREPARED %s from another session: settled', $how, $gid) or diag(pending_of($domain));
	cmp_ok($took, '<', 5, sprintf 'at once (%.3f s)', $took);
	return;
}

# After the end: no cached copy but that of the row as it is, fences and rows agree, and all can be cached again.
sub nothing_stale
{
	my ($domain) = @_;
	my $keys = { $domain => [ map { [$_] } 1 .. 40 ] };
	my @wrong = FenceTest::Comparison->new($node, domains => [$domain], keys => $keys)->settled;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is(join("\n", @wrong), '', "fences of $domain agree with its rows, nothing stale is served");
}

sub versions
{
	my ($table) = @_;

	return $sql->run("SELECT string_agg(id || ':' || version, ' ' ORDER BY id) FROM $table WHERE version <> 5 OR name <> 'old' OR id > 30");
}

# The name of the fence, for a read through Redis.
sub fence_of { my ($domain, $key) = @_; return $sql->run("SELECT fence.fence_key('$domain', '$key')"); }

sub epoch_number { return $sql->run("SELECT split_part(epoch, '-', 1) FROM fence.state"); }

# Two rows that are reserved, and one that is not, for it is new.
my $three_changes = "UPDATE :t SET name = 'new' WHERE id = 1; DELETE FROM :t WHERE id = 2; INSERT INTO :t (id) VALUES (31)";
sub three_changes { my ($table) = @_; return $three_changes =~ s/:t\b/$table/gr; }

# ---------------------------------------------------------------------------------------------------------------------
# While it is prepared
# ---------------------------------------------------------------------------------------------------------------------

subtest 'PREPARE keeps reservations pending, whatever the time; the end settles them' => sub {
	foreach my $how (qw(COMMIT ROLLBACK))
	{
		my $table = new_table();
		my $gid = "gid of a $how, 1.2 % \"x\"";
		prepare($gid, three_changes($table));
		my $expected = "2 row prepared $gid";
		is(pending_of($table), $expected, 'pending, with the gid');
		reads_say($table, 1 => 'pending', 2 => 'pending', 31 => 'miss');
		is(get_status($table, 3), 'hit', 'a row that it did not touch is a hit');
		is($sql->run("SELECT fence.read('$table', '1') ->> 'version'"), '5', 'who reads gets the row as it is now');

		patrol_rounds(5);
		poll(sub { $sql->run("SELECT min(extract(epoch FROM age)) FROM fence.pending WHERE domain = '$table'") > 3 * $lease },
			'three leases');
		is(pending_of($table), $expected, 'after rounds of the patrol and three leases it is all there');
		all_pending($table, 1, 2);
		is(get_status($table, 3), 'hit', 'and the others are hits');

		end_prepared($how, $gid, $table);
		no_reservations($node);
		is(versions($table), $how eq 'COMMIT' ? '1:6 31:0' : '', 'stored');
		is($sql->run("SELECT relation, fence_version, row_version FROM fence.status('$table', '$_')"),
			$how eq 'COMMIT' ? 'missing||6' : 'missing||5', "$_: the fence has gone")
		  foreach 1, 2;
		reads_say($table, 1 => 'miss', 3 => 'hit');
		nothing_stale($table);
	}
};

# From here on the patrol does nothing unless it is told to.
set("pgcache_fence.patrol_interval = '60s'", "pgcache_fence.patrol_grace = '60s'");

subtest 'savepoints, a name that is taken, nothing to store' => sub {
	my $table = new_table();

	prepare('taken', "UPDATE $table SET name = 'new' WHERE id = 1", 'SAVEPOINT a', "UPDATE $table SET name = 'x' WHERE id IN (1, 3)",
		'ROLLBACK TO a', "UPDATE $table SET name = 'new' WHERE id = 4");
	is(pending_of($table), '3 row prepared taken', 'prepared after a savepoint');

	$writer->run("BEGIN; UPDATE $table SET name = 'new' WHERE id = 5");
	like($writer->error_of("PREPARE TRANSACTION 'taken'"), qr/^42710/, 'the gid is taken: an error,');
	poll(sub { pending_of($table) eq '3 row prepared taken' }, 'the abort');
	pass('and nothing is left of that transaction');
	is(get_status($table, 5), 'miss', 'its row can be cached again');

	end_prepared('COMMIT', 'taken', $table);
	is(versions($table), '1:6 4:6', 'stored');
	nothing_stale($table);

	# all was rolled back: prepared all the same
	prepare('empty', 'SAVEPOINT a', "UPDATE $table SET name = 'x' WHERE id = 6", 'ROLLBACK TO a');
	end_prepared('COMMIT', 'empty', $table);
	is(versions($table), '1:6 4:6', 'nothing stored');
	nothing_stale($table);
};

subtest 'a second writer of the row waits for the prepared one' => sub {
	foreach my $end ([ COMMIT => 7 ], [ ROLLBACK => 6 ])
	{
		my ($how, $version) = @$end;
		my $table = new_table();

		prepare('first', "UPDATE $table SET name = 'first' WHERE id = 1");
		$writer->begin("UPDATE $table SET name = 'second' WHERE id = 1");
		poll(sub { $sql->run('SELECT wait_event_type FROM pg_stat_activity WHERE pid = ' . $writer->pid) eq 'Lock' }, 'the lock');
		$other->run("$how PREPARED 'first'");
		is($writer->take, '', "it goes on after $how PREPARED");
		no_reservations($node);
		is(versions($table), "1:$version", 'its version');
		nothing_stale($table);
	}
};

subtest 'two at once, in one domain' => sub {
	my $table = new_table();

	prepare('a', "UPDATE $table SET name = 'a' WHERE id = 1");
	prepare('b', "UPDATE $table SET name = 'b' WHERE id = 2");
	is(pending_of($table), '1 row prepared a, 1 row prepared b', 'both are pending');
	end_prepared('COMMIT', 'a', $table);
	is(pending_of($table), '1 row prepared b', 'the end of one leaves the other');
	reads_say($table, 1 => 'miss', 2 => 'pending');
	end_prepared('ROLLBACK', 'b', $table);
	is(versions($table), '1:6', 'stored');
	reads_say($table, 2 => 'miss');
	nothing_stale($table);
};

subtest 'bulk' => sub {
	foreach my $statement ("UPDATE :t SET name = 'new'", 'TRUNCATE :t', 'ALTER TABLE :t ALTER name TYPE varchar(20)', 'ALTER TABLE :t RENAME name TO name2')
	{
		foreach my $how (qw(ROLLBACK COMMIT))
		{
			my $table = new_table();
			my $fence = fence_of($table, 30);    # SQL would wait for a lock

			prepare('bulk', $statement =~ s/:t\b/$table/gr);
			like(pending_of($table), qr/^\* domain prepared bulk(?:, \d+ row prepared bulk)?$/, "$statement: the domain is reserved");
			is($redis->call(qw(FCALL_RO fence_get 1), $fence)->[0], 'pending', 'a read says so');
			is($redis->call(qw(FCALL_RO fence_token 1), $fence), '', 'the fast one, too');
			end_prepared($how, 'bulk', $table);
			if ($how eq 'ROLLBACK')
			{
				reads_say($table, 30 => 'hit');
				is(versions($table), '', 'nothing has changed');
			}
			elsif ($statement =~ /UPDATE/)
			{
				is($sql->run("SELECT count(*), min(version), max(version) FROM $table"), '30|6|6', 'stored');
			}
			isnt(get_status($table, 1), 'hit', 'what was cached is not served') if $how eq 'COMMIT';
			nothing_stale($table);
		}
	}
};


subtest 'a partition, written directly and through the root' => sub {
	foreach my $how (qw(COMMIT ROLLBACK))
	{
		my $table = new_partitioned();

		# one row moves to another partition, one partition is emptied
		prepare('part', "UPDATE ${table}_1 SET name = 'new' WHERE id = 1", "UPDATE $table SET id = 35 WHERE id = 11");
		is(pending_of($table), '2 row prepared part', 'pending in the root\'s domain');
		reads_say($table, 1 => 'pending', 11 => 'pending', 35 => 'miss');
		end_prepared($how, 'part', $table);
		is(versions($table), $how eq 'COMMIT' ? '1:6 35:5' : '', 'stored');
		nothing_stale($table);

		my $fence = fence_of($table, 5);
		prepare('part', "TRUNCATE ${table}_1");
		is(pending_of($table), '* domain prepared part', 'TRUNCATE of a partition: the root\'s domain is reserved');
		is($redis->call(qw(FCALL_RO fence_get 1), $fence)->[0], 'pending', 'a read says so');
		end_prepared($how, 'part', $table);
		nothing_stale($table);
	}
};

# ---------------------------------------------------------------------------------------------------------------------
# What cannot be prepared, and what is not ours
# ---------------------------------------------------------------------------------------------------------------------

subtest 'what ends an attachment, and explicit reservations, cannot be prepared' => sub {
	my $table = new_table();
	my $manual = new_table(undef, "scope => 'manual'");

	foreach my $case (
		[ $table, "SELECT fence.detach('$table')" ],
		[ $table, "DROP TABLE $table" ],
		[ $table, "DROP TRIGGER zzz_pgcache_fence_after ON $table" ],
		[ $table, "ALTER TABLE $table DROP id CASCADE" ],
		[ $manual, "SELECT fence.begin_write('$manual', 5, '1')" ])
	{
		my ($domain, $statement) = @$case;

		$writer->run("BEGIN; $statement");
		like($writer->error_of("PREPARE TRANSACTION 'no'"), qr/^0A000: cannot PREPARE .*\n(?:HINT|DETAIL): /, "$statement: refused");
		is($sql->run('SELECT count(*) FROM pg_prepared_xacts'), '0', 'nothing is prepared');
		poll(sub { pending_of($domain) eq '' }, 'the abort');
		isnt(get_status($domain, 1), 'unarmed', 'the table is fenced as before');
		warm($domain);
	}
	# given up again, it is no obstacle
	prepare('yes', "SELECT fence.begin_write('$manual', 5, '1')", "SELECT fence.abort_write('$manual', '1')",
		"UPDATE $table SET name = 'new' WHERE id = 1");
	all_pending($table, 1);
	is($sql->run("SELECT fences FROM fence.pending WHERE gid = 'yes'"), '2', 'after abort_write the transaction can be prepared');
	end_prepared('COMMIT', 'yes', $table);
	no_reservations($node);
	is($sql->run("SELECT relation, fence_version FROM fence.status('$manual', '1')"), 'missing|', 'of the other domain the key goes, too');
	nothing_stale($table);
};

subtest 'unfenced tables only' => sub {
	my $table = new_table();

	$sql->run('CREATE TABLE plain (id int PRIMARY KEY)');
	# reads and row locks of a fenced table change nothing
	prepare('plain', 'INSERT INTO plain VALUES (1)', "SELECT count(*) FROM $table", "SELECT 1 FROM $table WHERE id = 1 FOR UPDATE");
	is($sql->run('SELECT count(*) FROM fence.pending'), '0', 'nothing is reserved');
	is(get_status($table, 1), 'hit', 'reads are hits');
	$redis->restart;
	warm($table);
	is($sql->run('SELECT count(*) FROM fence.pending'), '0', 'nor in a new epoch');
	$other->run("COMMIT PREPARED 'plain'");
};

# ---------------------------------------------------------------------------------------------------------------------
# New epochs: Redis, or PostgreSQL, has forgotten the reservations
# ---------------------------------------------------------------------------------------------------------------------

# Reads through Redis until it says pending; what it said before that: never anything that could be cached or used.
sub until_pending
{
	my ($domain, $fence) = @_;
	my %before;

	poll(
		sub {
			my $answer = eval { $redis->call(qw(FCALL_RO fence_get 1), $fence) } // ['error'];
			return 1 if $answer->[0] eq 'pending';
			$before{ $answer->[0] } = 1;
			return exists $before{hit} || exists $before{miss};
		},
		"$domain is pending");
	delete @before{qw(error unarmed)};

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is(join(' ', sort keys %before), '', "reads of $domain say unarmed, then pending");
}

# Prepares transactions of every kind, lets $forget make a new epoch, ends them.
sub new_epoch
{
	my ($forget) = @_;
	my %table = map { $_ => new_table() } qw(commit rollback bulk two truncate idle);
	$table{part} = new_partitioned();
	# a fenced table that has become a partition of one that is not
	$table{child} = new_table();
	$sql->run("CREATE TABLE $table{child}_root (LIKE $table{child}) PARTITION BY RANGE (id); "
		  . "ALTER TABLE $table{child}_root ATTACH PARTITION $table{child} DEFAULT");
	warm($table{child});
	# a group's version is in a row of its own
	$table{group} = 'item' . ++$tables;
	$sql->run("CREATE TABLE $table{group} (id int PRIMARY KEY, room int, name text DEFAULT 'old'); "
		  . "INSERT INTO $table{group} SELECT g, g % 3 FROM generate_series(1, 9) g; SELECT fence.attach('$table{group}', scope => 'group', key => '{room}')");
	my %names = map { $_ => fence_of($table{$_}, 1) } keys %table;
	my @domains = grep { $_ ne 'idle' } sort keys %table;

	prepare('commit', three_changes($table{commit}));
	prepare('rollback', three_changes($table{rollback}));
	prepare('bulk', "UPDATE $table{bulk} SET name = 'new'");
	prepare('truncate', "TRUNCATE $table{truncate}");
	prepare('part', "UPDATE $table{part}_1 SET name = 'new' WHERE id = 1");
	prepare('child', "UPDATE $table{child}_root SET name = 'new' WHERE id = 1");
	prepare('group', "UPDATE $table{group} SET name = 'new' WHERE id = 1");
	prepare('two', "UPDATE $table{two} SET name = 'new' WHERE id = 1");
	prepare('two more', "SAVEPOINT a", "UPDATE $table{two} SET name = 'new' WHERE id = 2", 'RELEASE a');
	my $epoch = epoch_number();

	$forget->();
	until_pending($_, $names{$_}) foreach @domains;
	cmp_ok(epoch_number(), '>', $epoch, 'a new epoch');
	is(pending_of($table{$_}), "* domain prepared $_", "$_: the domain is reserved, with the gid") foreach grep { $_ ne 'two' } @domains;
	is(pending_of($table{two}), '* domain prepared two, * domain prepared two more', 'two prepared transactions: two reservations');
	is($sql->run("SELECT count(*) FROM fence.pending WHERE domain = '$table{idle}'"), '0', 'and none of a table that nobody changed');
	warm($table{idle});
	patrol_rounds(3);
	is($redis->call(qw(FCALL_RO fence_get 1), $names{$_})->[0], 'pending', "$_: it stays") foreach @domains;
	all_pending($table{commit}, 1, 2, 3, 31);
	is($sql->run("SELECT fence.read('$table{commit}', '1') ->> 'version'"), '5', 'who reads gets the row as it is now');

	# not prepared, in the same domain, before the end of the others
	$writer->run("UPDATE $table{commit} SET name = 'between' WHERE id = 5");
	all_pending($table{commit}, 5);

	end_prepared('COMMIT', $_, $table{$_}) foreach qw(commit bulk truncate part child group two);
	all_pending($table{two}, 1, 2, 3);
	end_prepared('ROLLBACK', 'rollback', $table{rollback});
	end_prepared('ROLLBACK', 'two more', $table{two});
	no_reservations($node);
	is(versions($table{commit}), '1:6 5:6 31:0', 'stored: commit');
	is(versions($table{rollback}), '', 'stored: rollback');
	is(versions($table{two}), '1:6', 'stored: two');
	is($sql->run("SELECT fence.group_version('$table{group}', '1')"), '1', 'stored: group');
	like($sql->run("SELECT fence.read('$table{group}', '1')"), qr/"new"/, 'the group as it is now');
	nothing_stale($table{$_}) foreach sort keys %table;
	return;
}

set("pgcache_fence.patrol_interval = '100ms'", "pgcache_fence.patrol_grace = '100ms'");

subtest 'PostgreSQL crashes' => sub {
	new_epoch(
		sub {
			$node->stop('immediate');
			$node->start;
			wait_open($node);
			connect_all();
		});
};

subtest 'Redis is restarted' => sub { new_epoch(sub { $redis->restart }); };

subtest 'both' => sub {
	new_epoch(
		sub {
			$redis->kill9;
			$node->stop('immediate');
			$redis->restart;
			$node->start;
			wait_open($node);
			connect_all();
		});
};

# ---------------------------------------------------------------------------------------------------------------------
# Without Redis
# ---------------------------------------------------------------------------------------------------------------------

subtest 'PREPARE while Redis is gone' => sub {
	my $bypass = new_table();
	my $late = new_table();
	my $error = new_table(undef, "on_redis_failure => 'error'");
	my $fence = fence_of($bypass, 1);

	prepare('late', "UPDATE $late SET name = 'new' WHERE id = 1");
	$redis->kill9;
	$writer->run("BEGIN; UPDATE $error SET name = 'new' WHERE id = 1");
	like($writer->error_of("PREPARE TRANSACTION 'error'"), qr/^08006: .*\nDETAIL: .*\nHINT: /, 'policy error: refused');
	is($sql->run("SELECT count(*) FROM pg_prepared_xacts WHERE gid = 'error'"), '0', 'nothing is prepared');

	my $start = time();
	prepare('bypass', "UPDATE $bypass SET name = 'new' WHERE id = 1");
	note sprintf 'policy bypass: prepared after %.2f s', time() - $start;
	is($sql->run("SELECT count(*) FROM pg_prepared_xacts WHERE gid = 'bypass'"), '1', 'policy bypass: prepared');
	$other->run("COMMIT PREPARED 'late'");
	is(versions($late), '1:6', 'COMMIT PREPARED does not need Redis');

	$redis->restart;
	until_pending($bypass, $fence);
	is(pending_of($bypass), '* domain prepared bypass', 'after it is back the domain is reserved');
	is(pending_of($late), '', 'what ended meanwhile is not');
	end_prepared('COMMIT', 'bypass', $bypass);
	no_reservations($node);
	is(versions($bypass), '1:6', 'stored');
	is(versions($error), '', 'not stored');
	nothing_stale($_) foreach $bypass, $late, $error;
};

done_testing();
