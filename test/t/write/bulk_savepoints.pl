# A domain reserved as a whole (bulk.pl), and savepoints: what of it is rolled back, in which order, how often.

use strict;
use warnings;

use FenceTest;
use FenceTest::Bulk;
use Test::More;

setup();

sub savepoint_for
{
	my ($key, $end) = @_;

	return ("SAVEPOINT s$key", "UPDATE :t SET name = 'new' WHERE id = $key", "$end s$key");
}

my $refill = "INSERT INTO :t (id, name) SELECT g, 'back' FROM generate_series(1, 60) g";

# [title, statements, what reads are told after COMMIT, name => count in the table]
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

finish();
