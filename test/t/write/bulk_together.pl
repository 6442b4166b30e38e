# A domain reserved as a whole (bulk.pl) by several transactions at once, beside writers of single rows, and beside readers
# that fill the cache.

use strict;
use warnings;

use FenceTest;
use FenceTest::Bulk;
use Test::More;

setup();

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
	my $turn = 0;

	foreach my $order ([qw(row bulk row bulk)], [qw(row bulk bulk row)], [qw(bulk row row bulk)], [qw(bulk row bulk row)])
	{
		foreach my $ends ([qw(COMMIT COMMIT)], [qw(COMMIT ROLLBACK)], [qw(ROLLBACK COMMIT)])
		{
			my $table = new_table($kinds[ $turn++ % @kinds ]);
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
				is(stale($table), '0', "$table: @$order, @$ends: nothing stale after the step of $who");
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

	return $redis->call(qw(FCALL fence_put 1), fence_of($table, $key), $answer->[1], row_version($answer->[1], $version), $payload, 0);
}

subtest 'what was read before is put during and after' => sub {
	foreach my $statement ($update, 'TRUNCATE :t')
	{
		foreach my $end (qw(COMMIT ROLLBACK))
		{
			my $table = new_table();
			my $old = $sql->run("SELECT to_jsonb(t) FROM $table t WHERE id = 1");
			my %answer;

			$redis->call('DEL', fence_of($table, $_)) foreach 1 .. 4;
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

finish();
