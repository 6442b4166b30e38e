# A domain reserved as a whole (bulk.pl), while Redis, PostgreSQL or the backend fails before or in COMMIT; two-phase commit.

use strict;
use warnings;

use FenceTest;
use FenceTest::Bulk;
use FenceTest::Session;
use Test::More;

setup();

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
			# after a clean restart the same epoch goes on
			wait_new_epoch($fault eq 'PostgreSQL is restarted' ? $epoch - 1 : $epoch, $table) if $fault;
			is(reads($table), "pending $rows", 'it stays pending') if $fault;
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

finish();
