# The background workers: every reservation ends as its transaction did, fences that are wrong are put right, and
# nothing that happens to a server or a database stops them.
#
# Reservations are forged with the library's own fence_write, wrong fences with SET.

use strict;
use warnings;

use FenceTest;
use FenceTest::Session;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $redis = FenceTest::Redis->start;
my $node = new_postgres('main', $redis,
	lease               => '2s',
	patrol_grace        => '300ms',
	audit_rate          => 0,
	restart_after_crash => 'on',
	autovacuum          => 'off',
	max_prepared_transactions => 5);
my $sql = FenceTest::Session->open($node);
my $tables = 0;

# ---------------------------------------------------------------------------------------------------------------------
# Tools
# ---------------------------------------------------------------------------------------------------------------------

# A domain with rows 1 to 20 at version 5 that are cached.
sub new_table
{
	my ($session) = @_;
	my $name = 'item' . ++$tables;

	$session //= $sql;
	$session->run("CREATE TABLE $name (id int PRIMARY KEY, name text DEFAULT 'x', version bigint NOT NULL DEFAULT 0)");
	$session->run("INSERT INTO $name (id, version) SELECT g, 5 FROM generate_series(1, 20) g");
	$session->run("SELECT fence.attach('$name')");
	announced($session, $name);
	$session->run("SELECT fence.read('$name', g::text) FROM generate_series(1, 20) g");
	return $name;
}

sub announced
{
	my ($session, $name) = @_;

	poll(sub { $session->run("SELECT status FROM fence.get('$name', '1')") =~ /^(?:hit|miss)$/ }, "$name is announced");
	return;
}

sub status_of
{
	my ($domain, $key) = @_;

	return $sql->run("SELECT relation, fence_version, row_version, pending FROM fence.status('$domain', '$key')");
}

sub fence_of { my ($domain, $key) = @_; return $sql->run("SELECT fence.fence_key('$domain', '$key')"); }
sub state_of { my ($field) = @_; return $sql->run("SELECT $field FROM fence.state"); }
sub epoch_number { return (split /-/, state_of('epoch'))[0]; }

# The version in the fence, whatever else there is; '' if there is none.
sub fence_version
{
	my ($domain, $key) = @_;

	return (split / /, $redis->call('GET', fence_of($domain, $key)) // ' ', 3)[1];
}

# Makes Redis believe that this is the version.
sub forge_version
{
	my ($domain, $key, $version) = @_;
	my $token = $sql->run("SELECT token FROM fence.status('$domain', '$key')");

	$redis->call('SET', fence_of($domain, $key), "$token $version ");
	return;
}

# As writers say who they are
sub header { return $sql->run('SHOW pgcache_fence.namespace') . ' ' . state_of('epoch'); }

sub forge_reservation
{
	my ($fence, $stamp) = @_;

	cmp_ok($redis->call(qw(FCALL fence_write 0), header(), $stamp, 1, $fence), '>', 0, "forged: $stamp");
	return;
}

sub get { my ($fence) = @_; return $redis->call(qw(FCALL_RO fence_get 1), $fence)->[0]; }
sub token { my ($domain) = @_; return $sql->run("SELECT token FROM fence.status('$domain', '1')"); }

# The name of the whole domain in Redis: <database>.<name>
sub redis_name { my ($domain) = @_; return fence_of($domain, 1) =~ /:f:([^:]+):/ ? $1 : die; }

# ended: the id of the attachment that the transaction ends
sub forge_domain_reservation
{
	my ($redis_name, $stamp, $ended) = @_;

	is($redis->call(qw(FCALL fence_domain_reserve 0), header(), $redis_name, $stamp, $ended // 0), 1, "forged: $stamp");
	return;
}

# Stamps of what is still there, sorted; how many fences they have.
sub stamps { return split /\n/, $sql->run('SELECT stamp FROM fence.pending ORDER BY stamp COLLATE "C"'); }

sub fences { return $sql->run('SELECT sum(fences) FROM fence.pending'); }

# Waits until the patrol has begun that many rounds more: each lists what is pending.
sub patrol_rounds
{
	my ($count) = @_;
	my $monitor = $redis->connect;

	$monitor->call('MONITOR');
	while ($count > 0) { $count-- if $monitor->reply =~ /"fence_pending"/; }
	return;
}

sub log_has { my ($text, $from) = @_; return index(slurp_file($node->logfile, $from), $text) >= 0; }
sub log_end { return -s $node->logfile; }

sub set
{
	$sql->run("ALTER SYSTEM SET $_") foreach @_;
	$node->reload;
	return;
}

sub worker_pid
{
	my ($name) = @_;

	return $sql->run("SELECT pid FROM pg_stat_activity WHERE backend_type = 'pgcache_fence $name'");
}

# ---------------------------------------------------------------------------------------------------------------------
# Settling
# ---------------------------------------------------------------------------------------------------------------------

my $nonce;    # of this server start

subtest 'each reservation ends as its transaction did' => sub {
	my $table = new_table();
	my $open = FenceTest::Session->open($node);

	# a real one, for the nonce
	$open->run("SELECT 1 FROM fence.get('$table', '1'); BEGIN; UPDATE $table SET name = 'y' WHERE id = 20");
	poll(sub { scalar stamps() }, 'the reservation');
	my ($stamp) = stamps();
	($nonce) = $stamp =~ /^\d+\.([0-9a-f]{8})$/ or die $stamp;
	$open->run('ROLLBACK');
	no_reservations($node);
	$sql->run("DELETE FROM $table WHERE id = 4");
	$sql->run("INSERT INTO $table (id, version) VALUES (21, 5), (22, 5)");
	no_reservations($node);

	my $committed = $sql->run('SELECT pg_current_xact_id()');
	my $aborted = $sql->run('BEGIN; SELECT pg_current_xact_id(); ROLLBACK');
	my $prepared = $sql->run("BEGIN; SELECT pg_current_xact_id(); PREPARE TRANSACTION 'p'");
	my $running = $open->run('BEGIN; SELECT pg_current_xact_id()');
	my $future = $running + 1_000_000_000;
	my $other = sprintf '%08x', hex($nonce) ^ 1;

	# [key, stamp, what it is]: all of these end
	my @cases = (
		[ 1, "$committed.$nonce", 'committed' ],
		[ 4, "$committed.$nonce", 'committed, and deleted since' ],
		[ 99, "$committed.$nonce", 'committed, neither row nor tombstone' ],
		[ 2, "$aborted.$nonce", 'aborted' ],
		[ 3, "$future.$nonce", 'an xid that was not issued yet: aborted' ],
		[ 5, "$aborted.$other", 'of an earlier server start, aborted' ],
		[ 6, "$committed.$other", 'of an earlier server start, committed' ],
		[ 7, "$running.$other", 'of an earlier server start, its xid was issued again: aborted' ],
		[ 8, 'nonsense', 'malformed: aborted' ],
		[ 9, "$committed", 'malformed: aborted' ],
		[ 10, "$committed.", 'malformed: aborted' ],
		[ 11, "-$committed.$nonce", 'malformed: aborted' ],
		[ 12, "$committed.$nonce.1x", 'malformed: aborted' ],
		[ 21, "$committed.$nonce.1", 'detached, and there is no row of it' ],
		[ 22, "$aborted.$other.1", 'the same, whoever made it' ],
		[ 13, "99999999999999999999999.$nonce", 'malformed: aborted' ],
		[ 14, "0.$nonce", 'malformed: aborted' ],
		[ 15, "$committed.xyz", 'malformed: aborted' ]);
	# readers that have a permit from before
	my %permit = map { $_->[0] => $redis->call(qw(FCALL_RO fence_token 1), fence_of($table, $_->[0])) } @cases;
	foreach my $case (@cases)
	{
		my ($key, $stamp) = @$case;
		forge_reservation(fence_of($table, $key), $stamp);
		is(fence_version($table, $key) // '', '', 'the fence has gone');
	}
	forge_reservation(fence_of($table, 16), "$running.$nonce");
	forge_reservation(fence_of($table, 18), "$prepared.$nonce");
	forge_reservation(fence_of($table, 19), "$prepared.$other");
	my $kept = join ',', sort "$prepared.$nonce", "$prepared.$other", "$running.$nonce";
	is($sql->run("SELECT status FROM fence.get('$table', '16')"), 'pending', 'a read says pending');

	my $start = time();
	my $alone = eval { poll(sub { join(',', stamps()) eq $kept }, 'the patrol', 20); };
	ok($alone, 'all end but those whose transactions run or are prepared') or diag(join "\n", 'left:', stamps());
	note sprintf 'settled %.2f s after the last was made', time() - $start;
	foreach my $case (@cases)
	{
		my ($key, undef, $title) = @$case;
		is(get(fence_of($table, $key)), 'miss', "$title: a miss");
		is($redis->call(qw(FCALL fence_put 1), fence_of($table, $key), $permit{$key}, row_version($permit{$key}, 3), '"old"', 0), 'refused late',
			'what was read before is refused');
	}
	is(fence_version($table, 17), '5', 'another fence is left alone');

	patrol_rounds(5);
	is(join(',', stamps()), $kept, 'those are kept, round after round');
	is($sql->run("SELECT fate, pid = " . $open->pid . " FROM fence.pending WHERE key = '16'"), 'in progress|t',
		'fence.pending names the owner,');
	is($sql->run("SELECT fate, gid FROM fence.pending WHERE key = '18'"), 'prepared|p', 'or the prepared transaction');
	$open->run('COMMIT');
	$sql->run("COMMIT PREPARED 'p'");
	no_reservations($node);
	is(get(fence_of($table, $_)), 'miss', "$_: after its commit it is settled too") foreach 16, 18, 19;
	is($sql->run("SELECT status FROM fence.get('$table', '17')"), 'hit', 'reads go on');
};

subtest 'reservations of a whole domain' => sub {
	my ($table, $other) = (new_table(), new_table());
	my ($name, $other_name) = (redis_name($table), redis_name($other));
	my ($token, $other_token) = (token($table), token($other));

	my $committed = $sql->run('SELECT pg_current_xact_id()');
	my $aborted = $sql->run('BEGIN; SELECT pg_current_xact_id(); ROLLBACK');
	forge_domain_reservation($name, "$committed.$nonce");
	forge_domain_reservation($other_name, "$aborted.$nonce");
	is($sql->run("SELECT status FROM fence.get('$table', '1')"), 'pending', 'a read says pending');
	no_reservations($node, 10);
	is($sql->run("SELECT status FROM fence.get('$table', '1')"), 'miss',
		'committed: what was cached is not trusted any more');
	isnt(token($table), $token, 'another token');
	is($sql->run("SELECT status FROM fence.get('$other', '1')") . ' ' . token($other), "hit $other_token", 'aborted: nothing changes');

	# a transaction that ended the attachment, and could not tell Redis
	my $fence = fence_of($table, 1);
	my $id = $sql->run("SELECT id FROM fence.domain WHERE name = '$table'");
	my $xid = $sql->run("BEGIN; SELECT pg_current_xact_id()");
	forge_domain_reservation($name, "$xid.$nonce", $id);
	$sql->run("SET LOCAL session_replication_role = replica; DELETE FROM fence.domain WHERE name = '$table'; COMMIT");
	poll(sub { !stamps() }, 'the patrol', 10);
	is(get($fence), 'unarmed',
		'a detach that was never told: readers are not answered');
};

subtest 'a backend that is terminated, and whose abort is lost' => sub {
	my $table = new_table();
	my $victim = FenceTest::Session->open($node);
	my $age = 0;

	$victim->run("SELECT 1 FROM fence.get('$table', '1'); BEGIN; UPDATE $table SET name = 'y'");
	$victim->run("SELECT 1 FROM fence.get('$table', '1')");
	is(fences(), 20, 'its reservations');
	$redis->call(qw(CLIENT KILL TYPE normal SKIPME yes));
	$sql->run('SELECT pg_terminate_backend(' . $victim->pid . ', 5000)');
	my $start = time();
	poll(
		sub {
			my $oldest = $sql->run('SELECT max(extract(epoch FROM age)) FROM fence.pending');
			$age = $oldest if $oldest ne '';
			return $oldest eq '';
		},
		'the patrol');
	note sprintf 'settled %.2f s after its end, %.2f s old when last seen', time() - $start, $age;
	cmp_ok(time() - $start, '<', 5, 'settled within the grace period and a round');
	is(status_of($table, 1), 'missing||5|0', 'the rows can be cached again');
};

subtest 'a backend that is killed crashes PostgreSQL: a new epoch, nothing pending, nothing stale' => sub {
	my $table = new_table();
	my $epoch = epoch_number();
	my $victim = FenceTest::Session->open($node);

	$victim->run("SELECT 1 FROM fence.get('$table', '1'); BEGIN; UPDATE $table SET name = 'y'");
	$victim->run("SELECT 1 FROM fence.get('$table', '1')");
	is(fences(), 20, 'its reservations');
	my $fence = fence_of($table, 1);
	kill 'KILL', $victim->pid;
	like(get($fence), qr/^(?:pending|unarmed|miss)$/, 'no hit');
	poll(
		sub {
			my ($rc, $out) = $node->psql('postgres', 'SELECT state FROM fence.state');
			return $rc == 0 && $out eq 'OPEN';
		},
		'the recovery');
	$sql = FenceTest::Session->open($node);
	cmp_ok(epoch_number(), '>', $epoch, 'a new epoch');
	is($sql->run('SELECT count(*) FROM fence.pending'), '0', 'no reservation is left');
	announced($sql, $table);
	is($sql->run("SELECT status FROM fence.get('$table', '2')"), 'miss', 'what was cached is not trusted');
	is($sql->run("SELECT fence.read('$table', '2')->>'version'"), '5', 'the row is as it was');
	is($sql->run("SELECT status, version FROM fence.get('$table', '2')"), 'hit|5', 'and is cached again');
	compare_fences($node, $table);
};

# ---------------------------------------------------------------------------------------------------------------------
# Wrong fences, audit, tombstones
# ---------------------------------------------------------------------------------------------------------------------

subtest 'a fence ahead of its row' => sub {
	my $table = new_table();
	my $writer = FenceTest::Session->open($node);

	forge_version($table, 1, 50);
	is(status_of($table, 1), 'fence_ahead_db|50|5|0', 'forged');
	is($sql->run("SELECT count(*) FROM fence.get('$table', '1') WHERE status = 'hit'"), '0', 'the cached value is no hit');
	set('pgcache_fence.patrol_interval = 3600000');    # nobody repairs it
	foreach my $case (
		[ 1, "UPDATE $table SET name = 'y' WHERE id = 1", 6 ],
		[ 3, "DELETE FROM $table WHERE id = 3", 6 ],
		[ 99, "INSERT INTO $table (id) VALUES (99)", 0 ])
	{
		my ($key, $statement, $version) = @$case;
		forge_version($table, $key, 50);
		is($writer->error_of($statement), undef, "$key: a write takes no notice");
		is($sql->run("SELECT row_version FROM fence.status('$table', '$key')"), $version, '... and goes on from the row');
	}
	set('pgcache_fence.patrol_interval = 100');
	$sql->run('SELECT pg_terminate_backend(' . worker_pid('patrol') . ', 5000)');    # it may sleep for that hour
	no_reservations($node);
	# an INSERT sends nothing
	is($sql->run("SELECT fence.repair('$table', '99')"), 'repaired', 'of a new row it is repaired, by hand');
	is($sql->run("SELECT fence.read('$table', '1')->>'name'"), 'y', 'readers get the row');
	is(status_of($table, 1), 'equal|6|6|0', 'row and fence agree');
	compare_fences($node, $table);
};

subtest 'the audit counts, and the patrol repairs; old tombstones become a floor' => sub {
	my $table = new_table();
	my $open = FenceTest::Session->open($node);

	$sql->run("DELETE FROM $table WHERE id = 20");
	$sql->run("UPDATE $table SET name = 'y' WHERE id IN (18, 19)");
	$sql->run("UPDATE $table SET name = 'z' WHERE id = 19; DELETE FROM $table WHERE id = 19");
	no_reservations($node);
	forge_version($table, 1, 3);
	forge_version($table, 2, 50);
	forge_version($table, 3, 50);
	$redis->call('DEL', fence_of($table, 4));
	$redis->call('SET', fence_of($table, 6), token($table) . qq( 5 {6}\n{"id": 6, "name": "forged", "version": 5}));
	$open->run("SELECT 1 FROM fence.get('$table', '1'); BEGIN; UPDATE $table SET name = 'y' WHERE id = 5");
	$open->run("SELECT 1 FROM fence.get('$table', '1')");
	is($sql->run("SELECT string_agg(relation || ' ' || count, ', ') FROM fence.audit('$table', 1.0)"),
		'equal 11, fence_behind_db 1, fence_ahead_db 2, payload_differs 1, pending 1, missing 4', 'counts');
	$open->run('ROLLBACK');
	is($sql->run("SELECT fence.repair('$table', '3')"), 'repaired', 'repair on demand');
	is(status_of($table, 3), 'missing||5|0', 'removes a version that is ahead');
	is( $sql->run('SELECT count(*), max(version) FROM fence.tombstone '
			  . "JOIN fence.domain d ON d.id = domain_id WHERE name = '$table'"),
		'2|8', 'two tombstones');

	my $from = log_end();
	set('pgcache_fence.audit_rate = 1000', 'pgcache_fence.tombstone_retention = 0');
	poll(sub { !grep { status_of($table, $_) !~ /^missing\|/ } 1, 2, 6 }, 'the audit', 30);
	pass('the patrol removes fences that are behind, or ahead, or differ');
	my $warning = "the fence of key \"1\" in domain \"$table\" was older than its row, although no reservation was pending";
	poll(sub { log_has("WARNING:  $warning", $from) }, 'the warning', 10);
	pass('a promise that was broken is logged as such');
	poll(
		sub {
			return $sql->run("SELECT (SELECT count(*) FROM fence.tombstone), (SELECT version FROM fence.floor f "
				  . "JOIN fence.domain d ON d.id = f.domain_id WHERE name = '$table')") eq '0|8';
		},
		'the tombstones to be pruned', 30);
	pass('the floor is the highest of them');
	set('pgcache_fence.audit_rate = 0', 'pgcache_fence.tombstone_retention = 1000');
	$sql->run("INSERT INTO $table (id) VALUES ($_)") foreach 19, 20, 21;
	is($sql->run("SELECT string_agg(version::text, ' ' ORDER BY id) FROM $table WHERE id >= 19"), '9 9 9',
		'new rows start above it');
	$sql->run("UPDATE $table SET name = 'y' WHERE id = 17");
	is($sql->run("SELECT version FROM $table WHERE id = 17"), '6', 'rows that were there go on below it');
	no_reservations($node);
	compare_fences($node, $table);
};

# ---------------------------------------------------------------------------------------------------------------------
# The workers themselves
# ---------------------------------------------------------------------------------------------------------------------

subtest 'keeper and patrol are terminated' => sub {
	my $table = new_table();
	my ($keeper, $patrol, $epoch) = (worker_pid('keeper'), worker_pid('patrol'), state_of('epoch'));

	$sql->run("SELECT pg_terminate_backend($keeper, 5000), pg_terminate_backend($patrol, 5000)");
	foreach my $i (1 .. 20)
	{
		$sql->run("UPDATE $table SET name = 'y' WHERE id = $i");
		$sql->run("SELECT fence.read('$table', '$i')");
	}
	is(state_of('state, epoch, bypassed_transactions'), "OPEN|$epoch|0", 'fences stay usable');
	is($sql->run("SELECT status, version FROM fence.get('$table', '7')"), 'hit|6', 'reads too');
	poll(sub { worker_pid('keeper') ne '' && worker_pid('patrol') ne '' }, 'both to come back');
	isnt(worker_pid('keeper'), $keeper, 'the keeper is another');
	forge_reservation(fence_of($table, 1), "5.$nonce");
	no_reservations($node);
	is(state_of('epoch, bypassed_transactions'), "$epoch|0", 'the same epoch');
	wait_open($node);
	compare_fences($node, $table);
};

subtest 'SIGHUP with a longer lease' => sub {
	my $epoch = state_of('epoch');

	is($sql->run('SELECT longest_lease FROM fence.cluster'), '00:00:02', 'before');
	set("pgcache_fence.lease = '6s'");
	poll(sub { $sql->run('SELECT longest_lease FROM fence.cluster') eq '00:00:06' }, 'the longest lease to be durable');
	poll(sub { $sql->run("SELECT lease_left > interval '4 s' FROM fence.nodes") eq 't' },
		'the longer lease to be granted');
	is(state_of('state, epoch'), "OPEN|$epoch", 'fences stay OPEN');
	set("pgcache_fence.lease = '2s'", 'pgcache_fence.audit_rate = 1000');
};

# The longest time for which a lease may run, seen from the restart of the server until fences are OPEN.
sub longest_wait_after_restart
{
	my ($how) = @_;
	my ($longest, $state) = (0, '');

	$sql->close;
	$node->stop($how);
	$node->start;
	$sql = FenceTest::Session->open($node);
	poll(sub {
			($state, my $left) = split /\|/, state_of('state, coalesce(extract(epoch FROM lease_left), 0)');
			$longest = $left if $state ne 'OPEN' && $left > $longest;
			return $state eq 'OPEN';
		}, 'OPEN after a restart');
	return $longest;
}

# A record that is too short would let writers go on while Redis still answers; one that stays makes each restart a long wait.
subtest 'the longest lease is forgotten when it is over, and not before' => sub {
	my $durable = sub { $sql->run('SELECT longest_lease FROM fence.cluster') };
	my $aside;
	my $lengthen = sub {
		set("pgcache_fence.lease = '8s'");
		poll(sub { $sql->run("SELECT lease_left > interval '6 s' FROM fence.nodes") eq 't' }, 'a longer lease to be granted');
		is($durable->(), '00:00:08', 'it is durable');
	};
	my $shorten = sub {
		set("pgcache_fence.lease = '2s'");
		poll(sub { $sql->run("SELECT lease_left BETWEEN '0' AND interval '2.1 s' FROM fence.nodes") eq 't' }, 'a shorter lease to be granted');
		is($durable->(), '00:00:08', 'and longer ones may run');
	};

	$lengthen->();
	$sql->run('CREATE DATABASE aside');
	$aside = FenceTest::Session->open($node, dbname => 'aside');
	$aside->run('CREATE EXTENSION pgcache_fence');
	is($aside->run('SELECT longest_lease FROM fence.cluster'), '00:00:08', 'another database knows it, too');
	$aside->close;
	set("pgcache_fence.databases = 'postgres'");
	$shorten->();
	# it is not over: whoever was granted it cannot be asked after a crash
	cmp_ok(longest_wait_after_restart('immediate'), '>', 4, 'after a crash it is waited for');
	poll(sub { $durable->() eq '00:00:02' }, 'the longest lease to fall');
	pass('then it is forgotten');
	cmp_ok(longest_wait_after_restart('immediate'), '<', 2.1, 'and the next start is quick') if
		poll(sub { $node->safe_psql('aside', 'SELECT longest_lease FROM fence.cluster') eq '00:00:02' }, 'also where nothing is served');

	$lengthen->();
	my $epoch = state_of('epoch');
	$shorten->();
	my $start = time();
	poll(sub { $durable->() eq '00:00:02' }, 'the longest lease to fall');
	cmp_ok(time() - $start, '>', 3, 'without a restart it falls when it is over');
	$lengthen->();
	is(state_of('state, epoch'), "OPEN|$epoch", 'and rises again: OPEN all the time');
	set("pgcache_fence.lease = '2s'", "pgcache_fence.databases = '*'");
	$sql->run('DROP DATABASE aside');
};

# What one role can hold, and what another database waits for.
subtest 'nobody who holds a lock holds the patrol' => sub {
	my ($locked, $table) = (new_table(), new_table());
	my ($holder, $other) = map { FenceTest::Session->open($node) } 1, 2;

	$sql->run("INSERT INTO $locked (id, version) SELECT g, 5 FROM generate_series(100, 2099) g");
	no_reservations($node);
	$sql->run("SELECT count(*) FROM generate_series(1, 20) g, LATERAL fence.reserve('$locked', NULL, '1 hour', g::text)");
	my $committed = $sql->run('SELECT pg_current_xact_id()');
	my ($lock_it, $catalogue) = ("LOCK TABLE $locked IN ACCESS EXCLUSIVE MODE", 'LOCK TABLE fence.tombstone, fence.floor IN ACCESS EXCLUSIVE MODE');
	foreach my $lock ($lock_it, "$lock_it; $catalogue")
	{
		my @names = map { fence_of($locked, $_) } 100 .. 399;
		$holder->run("BEGIN; $lock");
		$redis->call(qw(FCALL fence_write 0), header(), "$committed.$nonce", scalar(@names), @names);
		forge_reservation(fence_of($table, 1), "$committed.$nonce");
		my $start = time();
		poll(sub { !grep { $_ eq "$committed.$nonce" } stamps() }, 'the patrol', 15);
		note sprintf '%d reservations of a locked table, and another: %.2f s', scalar @names, time() - $start;
		pass("settled: $lock");
		# those that stand are asked for their rows, one wait in a round: another table's is over soon
		$other->run("SELECT fence.reserve('$table', NULL, '1 ms', '2')");
		$start = time();
		poll(sub { $sql->run("SELECT count(*) FROM fence.pending WHERE domain = '$table'") eq '0' }, 'a detached one', 15);
		note sprintf 'a detached one: %.2f s', time() - $start;
		is($sql->run("SELECT count(*) FROM fence.pending WHERE domain = '$locked'"), '20', 'those that stand do');
		$holder->run('ROLLBACK');
	}
	$sql->run("DELETE FROM fence.reservation");
	no_reservations($node);
	compare_fences($node, $table);
};

subtest 'a database that nobody can connect to holds no other' => sub {
	my $table = new_table();
	my $renamer = FenceTest::Session->open($node);

	$sql->run('CREATE DATABASE hung');
	my $hung = FenceTest::Session->open($node, dbname => 'hung');
	$hung->run('CREATE EXTENSION pgcache_fence');
	new_table($hung);
	my $fence = $hung->run("SELECT fence.fence_key('item$tables', '1')");
	$hung->close;
	my $committed = $sql->run('SELECT pg_current_xact_id()');
	# who comes now waits for the end of this transaction
	poll(sub { !defined $renamer->error_of('BEGIN; ALTER DATABASE hung RENAME TO hanging') || !$renamer->run('ROLLBACK') && 0 }, 'the lock');
	forge_reservation($fence, "$committed.$nonce");
	$sql->run("SELECT fence.reserve('$table', NULL, '1 ms', '2')");
	no_reservations($node, 40);
	my $new = new_table();
	pass('a table is attached, and announced');
	is($sql->run("SELECT status FROM fence.get('$new', '1')"), 'hit', 'and cached');
	is(state_of('state'), 'OPEN', 'OPEN');
	$renamer->run('ROLLBACK');
	$renamer->close;
	poll(sub { !defined $sql->error_of('DROP DATABASE hung') }, 'the database to go');
};

subtest 'databases come and go' => sub {
	foreach my $turn (1 .. 3)
	{
		$sql->run('CREATE DATABASE app');
		my $app = FenceTest::Session->open($node, dbname => 'app');
		$app->run('CREATE EXTENSION pgcache_fence');
		my $table = new_table($app);
		my $fence = $app->run("SELECT fence.fence_key('$table', '1')");
		my ($wire) = $fence =~ /:f:([^:]+):/;
		$app->run("UPDATE $table SET name = 'y'");
		my $committed = $app->run('SELECT pg_current_xact_id()');
		my $running = FenceTest::Session->open($node);
		my $xid = $running->run('BEGIN; SELECT pg_current_xact_id()');
		$app->close;
		# the patrol has something to do there all the time
		forge_reservation($fence, "$committed.$nonce");
		poll(
			sub {
				return $sql->run("SELECT count(*) FROM pg_stat_activity WHERE datname = 'app' "
					  . "AND backend_type = 'client backend'") eq '0';
			},
			'the session to end');
		is($sql->error_of('DROP DATABASE app'), undef, "$turn: DROP DATABASE of a served database");
		forge_reservation($fence, "$committed.$nonce");
		forge_reservation($fence, "$xid.$nonce");
		forge_domain_reservation($wire, "$committed.$nonce");
		$running->run('ROLLBACK');
		no_reservations($node);
		is($redis->call('EXISTS', $fence), 0, 'reservations of a database that is gone end, their fences go');
		is(state_of('state'), 'OPEN', 'fences stay OPEN');
	}
};

subtest 'the extension comes and goes' => sub {
	my $table = new_table();
	my $fence = fence_of($table, 1);
	my $epoch = epoch_number();

	is(get($fence), 'hit', 'a plain client hits');
	$sql->run('SET client_min_messages = error');
	is($sql->error_of('DROP EXTENSION pgcache_fence CASCADE'), undef, 'DROP EXTENSION while everything runs');
	poll(sub { get($fence) eq 'unarmed' },
		'readers not to be answered any more', 10);
	$sql->run("UPDATE $table SET name = 'unfenced'");
	is(get($fence), 'unarmed', 'still not');
	is($sql->error_of('CREATE EXTENSION pgcache_fence'), undef, 'CREATE EXTENSION again');
	wait_open($node);
	$sql->run("SELECT fence.attach('$table')");
	announced($sql, $table);
	is($sql->run("SELECT status FROM fence.get('$table', '1')"), 'miss', 'what was cached before is not trusted');
	$sql->run("UPDATE $table SET name = 'fenced'");
	no_reservations($node);
	is($sql->run("SELECT fence.read('$table', '1')->>'name'"), 'fenced', 'the table is served again');
	is($sql->run("SELECT status FROM fence.get('$table', '1')"), 'hit', 'from the cache');
	cmp_ok(epoch_number(), '>=', $epoch, 'epochs do not go back');
	wait_open($node);
};

subtest 'fast shutdown' => sub {
	foreach my $how (qw(answers hangs))
	{
		my $table = new_table();
		my $writer = FenceTest::Session->open($node);

		$writer->run("BEGIN; UPDATE $table SET name = 'y'");
		$redis->pause if $how eq 'hangs';
		$writer->begin('COMMIT') if $how eq 'hangs';
		my $start = time();
		$node->stop('fast');
		my $took = time() - $start;
		$redis->resume if $how eq 'hangs';
		note sprintf 'Redis %s: %.2f s', $how, $took;
		cmp_ok($took, '<', 10, "Redis $how: fast shutdown");
		$node->start;
		$sql = FenceTest::Session->open($node);
		wait_open($node);
		no_reservations($node);
		announced($sql, $table);
		compare_fences($node, $table);
	}
};

subtest 'PostgreSQL starts while Redis is absent' => sub {
	my $table = new_table();
	my $epoch = epoch_number();

	$node->stop('fast');
	$redis->stop;
	$node->start;
	$sql = FenceTest::Session->open($node);
	poll(sub { state_of('reason') =~ /refused/i }, 'the reason');
	is(state_of('state'), 'CLOSED', 'CLOSED, for that reason');
	is($sql->run("SELECT fence.read('$table', '1')->>'version'"), '5', 'reads go to PostgreSQL');
	is($sql->error_of("UPDATE $table SET name = 'y' WHERE id = 1"), undef,
		'a write goes on when no lease can run any more');
	is(state_of('lease_left'), '00:00:00', 'not before');
	$redis->restart;
	wait_open($node);
	cmp_ok(epoch_number(), '>', $epoch, 'then Redis is here: a new epoch');
	announced($sql, $table);
	is($sql->run("SELECT fence.read('$table', '1')->>'version'"), '6', 'and strong reads');
	is($sql->run("SELECT status, version FROM fence.get('$table', '1')"), 'hit|6', 'from the cache');
};

$sql->close;
$node->stop('fast');
my $complaints = slurp_file($node->logfile);
unlike($complaints, qr/PANIC|TRAP|segfault|was terminated by signal (?!9)/, 'no crash but the one that was meant');
done_testing();
