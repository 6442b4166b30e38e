# Other libraries in shared_preload_libraries, before ours and after it: pg_stat_statements, auto_explain with all that it measures,
# pg_cron, and one of our own that is worse (test/lib/executor_hooks.c). Rows, versions, reservations, answers and what logical
# decoding tells of the changes are those of a server that has none of them, whichever way pgcache_fence.capture says.

use strict;
use warnings;

use FenceTest;
use FenceTest::Session;
use PostgreSQL::Test::Utils qw(slurp_file);
use Test::More;

my $library = compile_library('executor_hooks');
my $contributed = qx(pg_config --pkglibdir);
chomp $contributed;
my @others = grep { -e "$contributed/$_.so" } qw(pg_stat_statements auto_explain);
plan skip_all => 'no contributed modules' if @others < 2;
my $has_cron = -e "$contributed/pg_cron.so";
push @others, 'pg_cron' if $has_cron;
diag('no package of pg_cron for this PostgreSQL: tested without it') if !$has_cron;

my $redis = FenceTest::Redis->start;

# Statements whose answers are compared. :r is what the transaction has reserved by then.
my @script = (
	"INSERT INTO item VALUES (7, 'new') RETURNING *", "UPDATE item SET v = 'a' WHERE id = 1 RETURNING *", "UPDATE item SET v = v || 'b' RETURNING id, version",
	'BEGIN', "UPDATE item SET v = 'c' WHERE id IN (2, 3)", ':r', 'SAVEPOINT s', 'DELETE FROM item WHERE id = 4 RETURNING version', ':r', 'ROLLBACK TO s', 'COMMIT',
	"WITH gone AS (DELETE FROM item WHERE id = 5 RETURNING *) INSERT INTO item SELECT 8, v FROM gone RETURNING *", 'UPDATE item SET id = 9 WHERE id = 8 RETURNING *',
	"INSERT INTO item VALUES (1, 'd') ON CONFLICT (id) DO UPDATE SET v = EXCLUDED.v RETURNING *", 'UPDATE item SET version = version - 1 WHERE id = 1 RETURNING *',
	"DO \$\$ BEGIN FOR i IN 1 .. 6 LOOP UPDATE item SET v = i WHERE id = i; UPDATE part SET v = i WHERE id = i; END LOOP; END \$\$",
	'PREPARE p (int) AS UPDATE item SET v = $1 WHERE id = $1 RETURNING version', (map { "EXECUTE p ($_)" } 1 .. 7), 'UPDATE part SET id = 11 WHERE id = 1 RETURNING *',
	"UPDATE part SET v = 'e' FROM item WHERE item.id = part.id AND part.id < 4", 'DELETE FROM part WHERE id = 2', "MERGE INTO item USING (VALUES (1), (20)) s (i) ON id = i "
	  . "WHEN MATCHED THEN UPDATE SET v = 'm' WHEN NOT MATCHED THEN INSERT VALUES (i, 'm')", "BEGIN", 'DECLARE c CURSOR FOR SELECT * FROM item WHERE id = 3 FOR UPDATE', 'FETCH c',
	"UPDATE item SET v = 'cursor' WHERE CURRENT OF c", 'COMMIT', "UPDATE bag SET v = 'f' WHERE room = 1", 'DELETE FROM parent WHERE id = 1', 'SELECT * FROM child ORDER BY id',
	'UPDATE parent SET id = 5 WHERE id = 2', 'SELECT * FROM child ORDER BY id', "UPDATE item_view SET v = 'view' WHERE id = 2", "UPDATE item_view SET id = 100 WHERE id = 3",
	'SELECT id, v, version FROM item ORDER BY id', 'SELECT id, v, version FROM part ORDER BY id');

my $tables = <<'SQL';
CREATE TABLE item (id int PRIMARY KEY, v text, version bigint NOT NULL DEFAULT 0, long text GENERATED ALWAYS AS (v || version) STORED);
CREATE VIEW item_view AS SELECT * FROM item WHERE id < 50 WITH CHECK OPTION;
CREATE TABLE part (id int PRIMARY KEY, v text, version bigint NOT NULL DEFAULT 0) PARTITION BY RANGE (id);
CREATE TABLE part_1 PARTITION OF part FOR VALUES FROM (0) TO (10);
CREATE TABLE part_2 PARTITION OF part DEFAULT;
CREATE TABLE bag (id int PRIMARY KEY, room int, v text);
CREATE TABLE parent (id int PRIMARY KEY, version bigint NOT NULL DEFAULT 0);
CREATE TABLE child (id int PRIMARY KEY, up int REFERENCES parent ON UPDATE CASCADE ON DELETE SET NULL, version bigint NOT NULL DEFAULT 0);
CREATE TABLE log (n int);
INSERT INTO item SELECT g, 'old' FROM generate_series(1, 6) g;
INSERT INTO part SELECT g, 'old' FROM generate_series(1, 6) g;
INSERT INTO bag SELECT g, g % 3, 'old' FROM generate_series(1, 6) g;
INSERT INTO parent SELECT g FROM generate_series(1, 3) g;
INSERT INTO child SELECT g, g FROM generate_series(1, 3) g;
SELECT fence.attach('item'), fence.attach('part', cache => 'row'), fence.attach('bag', scope => 'group', key => '{room}'), fence.attach('parent'), fence.attach('child');
SQL

# What the transaction has reserved. An answer on the connection on which reservations are sent comes after they are made.
my $reserved = "SELECT coalesce(string_agg(k::text, ' ' ORDER BY k), 'nothing') FROM generate_series(1, 20) k CROSS JOIN LATERAL fence.status('item', k::text) s WHERE s.pending > 0";

# Its output, notices and errors, without the lines of the server's source.
sub said
{
	my ($sql, $statement) = @_;

	$sql->begin($statement);
	return join ' / ', grep { !/^(?:LOCATION|CONTEXT|LINE)/ } split /\n/, $sql->take;
}

# The changes of the script's tables since the last call, by test_decoding; and that pgoutput, too, has some.
sub decoded
{
	my ($node) = @_;

	cmp_ok($node->safe_psql('postgres', q(SELECT count(*) FROM pg_logical_slot_get_binary_changes('output', NULL, NULL, 'proto_version', '1', 'publication_names', 'all'))),
		'>', @script, 'pgoutput decodes the changes');
	return $node->safe_psql('postgres', q(SELECT data FROM pg_logical_slot_get_changes('test', NULL, NULL, 'include-xids', '0')
		WHERE data ~ '^table public.(item|part|part_1|part_2|bag|parent|child):'));
}

# The script in a new session, on tables that are made anew.
sub run_script
{
	my ($node, $capture, $hooked) = @_;
	my $sql = FenceTest::Session->open($node);

	$sql->run("DROP TABLE IF EXISTS item, part, bag, parent, child, log CASCADE; $tables");
	$sql->run("SELECT pg_create_logical_replication_slot('test', 'test_decoding'), pg_create_logical_replication_slot('output', 'pgoutput')");
	$sql->run('CREATE PUBLICATION "all" FOR ALL TABLES');
	poll(sub { $sql->run("SELECT bool_and(status <> 'unarmed') FROM unnest('{item,part,bag,parent,child}'::text[]) d CROSS JOIN fence.get(d, '1') g") eq 't' }, 'announcements');
	$sql->run("SET pgcache_fence.capture = '$capture'; SET enable_hashjoin = off");
	poll(sub { $sql->run('SELECT capture FROM fence.state') eq ($capture eq 'auto' ? 'executor' : 'triggers') }, "what tells of changed rows: $capture");
	$sql->run("SELECT fence.read('item', id::text), fence.read('part', id::text) FROM generate_series(1, 6) id");
	$sql->run("SET executor_hooks.statement = 'INSERT INTO log VALUES (1)'") if $hooked;
	my @said = map { "$_: " . said($sql, $_ eq ':r' ? $reserved : $_) } @script;
	$sql->run("SET executor_hooks.statement = ''") if $hooked;
	no_reservations($node);
	compare_fences($node, $_) foreach qw(item part bag parent child);
	my $decoded = decoded($node);
	$sql->run(q(SELECT pg_drop_replication_slot('test'), pg_drop_replication_slot('output'); DROP PUBLICATION "all"));
	return ($sql, join("\n", @said), $decoded);
}

# A job of pg_cron writes to a row that is cached. Jobs for '@reboot' begin with the server; this one waits until table go has a row.
sub cron_writes
{
	my ($node) = @_;
	my $row = q(SELECT to_jsonb(i) FROM item i WHERE id = 2);

	$node->safe_psql('postgres', <<'SQL');
CREATE EXTENSION pg_cron;
CREATE TABLE go (n int);
SELECT cron.schedule('write', '@reboot', $job$DO $$
BEGIN
	FOR i IN 1 .. 6000 LOOP
		EXIT WHEN EXISTS (SELECT FROM go);
		PERFORM pg_sleep(0.01);
	END LOOP;
	UPDATE item SET v = 'cron' WHERE id = 2;
END $$$job$)
SQL
	$node->safe_psql('postgres', "UPDATE cron.job SET nodename = '" . $node->host . "'");
	$node->restart;
	wait_open($node);
	my $sql = FenceTest::Session->open($node);
	poll(sub { $sql->run("SELECT fence.read('item', '2'); SELECT status FROM fence.get('item', '2')") =~ /^hit$/m }, 'a hit');
	$sql->run('INSERT INTO go VALUES (1)');
	poll(sub { $sql->run($row) =~ /"v": "cron"/ }, 'the job to commit');
	is($sql->run("SELECT fence.read('item', '2')"), $sql->run($row), 'a job of pg_cron writes to a cached row, and nobody reads the old one');
	poll(sub { $sql->run("SELECT status FROM cron.job_run_details WHERE command LIKE 'DO%'") eq 'succeeded' }, 'the job to end');
	$sql->run(q(SELECT cron.unschedule('write')));
	no_reservations($node);
	compare_fences($node, 'item');
	return;
}

# All orders of these.
sub orders
{
	my (@of) = @_;

	return [] unless @of;
	return map { my $first = $_; map { [ $of[$first], @$_ ] } orders(@of[ grep { $_ != $first } 0 .. $#of ]) } 0 .. $#of;
}

# What pg_stat_statements has of the statements whose text begins so: calls and rows.
sub counted { my ($sql, $begin) = @_; return $sql->run("SELECT sum(calls), sum(rows) FROM pg_stat_statements WHERE starts_with(query, '$begin')"); }

my $plain = new_postgres('plain', $redis, wal_level => 'logical');
my (undef, $wanted, $changes) = run_script($plain, 'triggers');
like($wanted, qr/^UPDATE item SET v = 'c' WHERE id IN \(2, 3\): \n:r: 2 3$/m, 'the script reserves');
like($wanted, qr/^EXECUTE p \(3\): 4$/m, 'and raises versions');
$plain->stop;

my $others = join ',', @others, $library;
my %settings = (
	log_statement => 'none', wal_level => 'logical', max_worker_processes => 20,
	map { ("auto_explain.log_$_" => $_ eq 'min_duration' ? 0 : 'on') } qw(min_duration analyze triggers verbose buffers nested_statements));
my %preload = ('before ours' => "$others,pgcache_fence", 'after ours' => "pgcache_fence,$others", 'around ours' => join(q{,}, $others[0], $library, q{pgcache_fence}, @others[ 1 .. $#others ]));
foreach my $order (sort keys %preload)
{
	subtest "preloaded $order" => sub {
		my $node = new_postgres(
			$order =~ s/ .*//r, $redis,
			shared_preload_libraries => $preload{$order}, %settings,
			# jobs are background workers in one server, and connections in the others
			$has_cron ? ('cron.use_background_workers' => $order =~ /before/ ? 'on' : 'off') : ());

		$node->safe_psql('postgres', "CREATE EXTENSION pg_stat_statements; CREATE FUNCTION executor_hooks_counts() RETURNS text LANGUAGE C AS '$library'");
		foreach my $capture (qw(auto triggers))
		{
			$node->safe_psql('postgres', 'SELECT pg_stat_statements_reset()');
			my $before = -s $node->logfile;
			my ($sql, $answers, $decoded) = run_script($node, $capture, 1);
			is($answers, $wanted, "$capture: the answers, versions and reservations of a server without them");
			is($decoded, $changes, 'and the decoded changes,');
			is(counted($sql, 'UPDATE item SET v = v ||'), '1|7', 'pg_stat_statements counts an UPDATE and its rows,');
			is(counted($sql, 'DELETE FROM part'), '1|1', 'a DELETE without RETURNING,');
			is(counted($sql, 'PREPARE p'), '7|6', 'and what was prepared');
			my ($explained) = slurp_file($node->logfile, $before) =~ /(Query Text: UPDATE item SET v = v \|\| .*?)duration:/s;
			like($explained, qr/Update on public.item .* rows=7(?:\.00)? loops=1/, 'auto_explain explains it,');
			is($explained =~ /Trigger zzz_pgcache_fence_before\b.* calls=7/ ? 'triggers' : 'auto', $capture, 'and what fired');
			cmp_ok($sql->run('SELECT count(*) FROM log'), '>', @script, 'the statements of the other library ran in between');
			my ($starts, $ends, $asked) = $sql->run('SELECT executor_hooks_counts()') =~ /starts (\d+),.*ends (\d+), asked (\d+)/;
			cmp_ok($asked, '>', @script, 'and it has seen rows');
		}
		cron_writes($node) if $has_cron;
		ok(slurp_file($node->logfile) !~ /PANIC|TRAP|terminated by signal/, 'nothing crashed');
		$node->stop;
	};
}

subtest 'in every order' => sub {
	my @orders = map { join ',', @$_ } orders('pgcache_fence', @others);
	my $node = new_postgres('every', $redis, shared_preload_libraries => $orders[0], lease => '500ms', %settings);
	my $row = 'SELECT to_jsonb(i) FROM item i WHERE id = 1';

	$node->safe_psql('postgres', "CREATE EXTENSION pg_stat_statements; CREATE TABLE item (id int PRIMARY KEY, n int, version bigint NOT NULL DEFAULT 0);
		INSERT INTO item VALUES (1, 0); SELECT fence.attach('item')");
	foreach my $order (@orders)
	{
		$node->adjust_conf('postgresql.conf', 'shared_preload_libraries', "'$order'");
		$node->restart;
		wait_open($node);
		my $sql = FenceTest::Session->open($node);
		my $before = -s $node->logfile;
		my @fresh = map {
			$sql->run("SET pgcache_fence.capture = '$_'");
			poll(sub { $sql->run("SELECT fence.read('item', '1'); SELECT status FROM fence.get('item', '1')") =~ /^hit$/m }, 'a hit');
			$sql->run('UPDATE item SET n = n + 1 WHERE id = 1');
			$sql->run("SELECT fence.read('item', '1')") eq $sql->run($row)
		} qw(auto triggers);
		my ($told) = $sql->run(q(SELECT string_agg(labels->>'way' || ' ' || value, ' ' ORDER BY labels->>'way') FROM fence.metrics WHERE name = 'cache_fence_changed_rows_total'));
		my $explained = () = slurp_file($node->logfile, $before) =~ /Query Text: UPDATE item/g;
		is("@fresh, $told, $explained", '1 1, executor 1 triggers 1, 2', $order);
		$sql->close;
	}
	is($node->safe_psql('postgres', 'SELECT n, version FROM item'), join('|', (2 * @orders) x 2), 'each write has raised the version once');
	$node->stop;
};

done_testing();
