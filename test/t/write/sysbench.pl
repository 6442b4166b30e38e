# sysbench's OLTP workloads run unmodified on fenced tables, while readers do strong gets.
#
# Two readers watch. One, in SQL, looks at the row and then asks the cache: a hit older than what was committed before it
# asked is stale. It also fills the cache. The other asks Redis only: the version of a key never goes back.

use strict;
use warnings;

use FenceTest;
use FenceTest::Session;
use IPC::Run;
use List::Util qw(sum0);
use Test::More;

my $sysbench = (grep { -x } map { "$_/sysbench" } split /:/, $ENV{PATH})[0]
  or plan skip_all => 'sysbench is not installed (Debian: apt-get install sysbench)';

my ($threads, $size, $seconds) = (2, 1000, 3);
my $redis = FenceTest::Redis->start;
my $node = new_postgres('main', $redis, lease => '3s', log_statement => 'none', deadlock_timeout => '100ms');
my $sql = FenceTest::Session->open($node);
my $reader = FenceTest::Session->open($node);
my @tables = map { "sbtest$_" } 1 .. $threads;

sub sysbench_command
{
	my ($workload, $step) = @_;

	return [ $sysbench, $workload, '--db-driver=pgsql', '--pgsql-host=' . $node->host, '--pgsql-port=' . $node->port,
		'--pgsql-user=' . $sql->run('SELECT current_user'), '--pgsql-db=postgres', "--threads=$threads", "--time=$seconds",
		$workload eq 'bulk_insert' ? '--events=60000' : ("--tables=$threads", "--table-size=$size", '--rand-type=pareto'), $step ];
}

sub sysbench
{
	my ($workload, $step) = @_;
	my $out = '';

	IPC::Run::run(sysbench_command($workload, $step), '<', '/dev/null', '>&', \$out) or die "sysbench $workload $step failed:\n$out";
	return;
}

# The reader in SQL. READ COMMITTED: each statement has a snapshot of its own, taken when it begins.
$sql->run(<<'SQL');
CREATE TABLE stop (yes bool);
CREATE TABLE seen (what text PRIMARY KEY, times bigint NOT NULL DEFAULT 0);
CREATE PROCEDURE read_all(tables text[], size int) LANGUAGE plpgsql AS $$
DECLARE
	t text;
	k text;
	committed bigint;
	g record;
	hits bigint := 0; misses bigint := 0; others bigint := 0; stale bigint := 0; broken bigint := 0;
BEGIN
	WHILE NOT EXISTS (SELECT FROM stop) LOOP
		FOR i IN 1 .. 20 LOOP
			t := tables[1 + floor(random() * cardinality(tables))];
			-- more often the keys that are written most often
			k := 1 + floor(size * power(random(), 3));
			EXECUTE format('SELECT version FROM %I WHERE id = $1::int', t) INTO committed USING k;
			g := fence.get(t, k);
			CASE g.status
				WHEN 'hit' THEN
					hits := hits + 1;
					IF g.version < committed THEN stale := stale + 1; END IF;
					IF g.payload::jsonb ->> 'version' <> g.version::text OR g.payload::jsonb ->> 'id' <> k THEN broken := broken + 1; END IF;
				WHEN 'miss' THEN
					misses := misses + 1;
					COMMIT;
					PERFORM fence.read(t, k);
				ELSE others := others + 1;
			END CASE;
			COMMIT;
		END LOOP;
	END LOOP;
	INSERT INTO seen VALUES ('hits', hits), ('misses', misses), ('others', others), ('stale', stale), ('broken', broken);
END $$;
SQL

# Reads through Redis until the program has ended; how many hits, and the keys whose version went back.
sub watch
{
	my ($program) = @_;
	my $prefix = $sql->run("SELECT fence.fence_key('sbtest1', '1')") =~ s/\{1\}$//r;
	my (%last, %back, $hits);

	while ($program->pumpable)
	{
		foreach (1 .. 50)
		{
			my $key = 1 + int($size * rand() ** 3);
			my ($status, $version) = strong_read($redis, "$prefix\{$key}");
			next if $status ne 'hit';
			$hits++;
			$back{$key} = "$last{$key} > $version" if defined $last{$key} && $version < $last{$key};
			$last{$key} = $version;
		}
		eval { $program->pump_nb; 1 } or last;	# it has just ended
	}
	$program->finish;
	return ($hits // 0, join ', ', map { "$_: $back{$_}" } sort keys %back);
}

sub workload
{
	my ($name) = @_;
	my $out = '';

	sysbench($name, 'prepare');
	$sql->run("SELECT fence.attach('$_', add_version => true)") foreach @tables;
	$sql->run('TRUNCATE stop, seen');
	foreach my $table (@tables)
	{
		poll(sub { $sql->run("SELECT status FROM fence.get('$table', '1')") ne 'unarmed' }, "$table is announced");
		$sql->run("SELECT fence.read('$table', id::text) FROM $table");
	}
	my $before = $sql->run(join ' UNION ALL ', map { "SELECT '$_', count(*), sum(version), sum(id) FROM $_" } @tables);

	# some of the keys do not exist yet, if there will be more
	$reader->begin("CALL read_all('{" . join(',', @tables) . "}', $size * " . ($name =~ /insert/ ? 2 : 1) . ')');
	my $program = IPC::Run::start(sysbench_command($name, 'run'), '<', '/dev/null', '>&', \$out);
	my ($hits, $back) = watch($program);
	my $result = $program->full_result(0);
	$sql->run('INSERT INTO stop VALUES (true)');
	is($reader->take, '', 'the reader has read to the end');

	is($result, 0, 'sysbench ran to its end') or diag($out);
	my ($done) = $out =~ /(?:transactions|total number of events):\s+(\d+)/;
	my ($ignored) = $out =~ /ignored errors:\s+(\d+)/;
	my %seen = split /[|\n]/, $sql->run('SELECT what, times FROM seen');
	cmp_ok($done // 0, '>', 0, 'transactions');
	note sprintf '%d transactions, %d errors that sysbench ignored; reader in SQL: %s; in Redis: %d hits', $done // 0, $ignored // 0,
	  join(', ', map { "$seen{$_} $_" } sort keys %seen), $hits;
	isnt($sql->run(join ' UNION ALL ', map { "SELECT '$_', count(*), sum(version), sum(id) FROM $_" } @tables), $before, 'they changed the tables');
	is($seen{stale}, 0, 'no hit was older than what was committed before it was asked for');
	is($seen{broken}, 0, 'no hit was of another row or version');
	is($back, '', 'no version went back');
	cmp_ok($seen{misses}, '>', 0, 'misses');
	if ($name ne 'bulk_insert')
	{
		cmp_ok($seen{hits}, '>', 0, 'hits');
		cmp_ok($hits, '>', 0, 'hits, through Redis');
	}

	no_reservations($node);
	foreach my $table (@tables)
	{
		# of a bulk_insert's rows the first ones
		my @wrong = FenceTest::Comparison->new($node, domains => [$table], where => { $table => 'id <= 5000' })->settled;
		is(join("\n", @wrong), '', "each fence, and each cached row, of $table is the row");
	}
	is($sql->run('SELECT state, bypassed_transactions FROM fence.state'), 'OPEN|0', 'fences were OPEN all the time');
	sysbench($name, 'cleanup');
	is($sql->run('SELECT count(*) FROM fence.domains'), '0', 'cleanup drops the tables, and their domains');
	return;
}

foreach my $name (qw(oltp_read_write oltp_insert oltp_delete oltp_update_index bulk_insert))
{
	subtest $name => sub { workload($name); };
}

done_testing();
