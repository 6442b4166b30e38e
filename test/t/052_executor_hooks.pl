# 052_executor_hooks.pl
#    Other libraries that hook the executor, before ours and after it in shared_preload_libraries: pg_stat_statements, auto_explain
#    with all that it measures, and one of our own that is worse (test/lib/executor_hooks.c). Rows, versions, reservations and
#    answers are those of a server that has none of them, whichever way pgcache_fence.capture says.

use strict;
use warnings;

use FenceTest;
use FenceTest::Session;
use File::Basename;
use Test::More;

my $source = dirname(__FILE__) . '/../lib/executor_hooks.c';
my $library = PostgreSQL::Test::Utils::tempdir() . '/executor_hooks.so';
my $headers = qx(pg_config --includedir-server);
chomp $headers;
plan skip_all => 'no compiler' if system("cc -shared -fPIC -O1 -I'$headers' -o '$library' '$source' 2>&1") != 0;
my $contributed = qx(pg_config --pkglibdir);
chomp $contributed;
my @others = grep { -e "$contributed/$_.so" } qw(pg_stat_statements auto_explain);
plan skip_all => 'no contributed modules' if @others < 2;

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

# One server that preloads these, and ours among them. {capture => what the script answers}; leaves what the others saw in %$seen.
sub answers
{
	my ($libraries, $seen) = @_;
	my $node = new_postgres(
		'n' . (my $name = $libraries) =~ s/\W+//gr, $redis,
		shared_preload_libraries => $libraries,
		$libraries =~ /auto_explain/
		? ( 'auto_explain.log_min_duration' => 0,
			'auto_explain.log_analyze'           => 'on',
			'auto_explain.log_triggers'          => 'on',
			'auto_explain.log_verbose'           => 'on',
			'auto_explain.log_buffers'           => 'on',
			'auto_explain.log_nested_statements' => 'on')
		: ());
	my %answers;

	foreach my $capture (qw(auto triggers))
	{
		my $sql = FenceTest::Session->open($node);
		if ($libraries =~ /executor_hooks/)
		{
			$node->safe_psql('postgres', 'CREATE EXTENSION IF NOT EXISTS pg_stat_statements; SELECT pg_stat_statements_reset(); '
				  . "CREATE OR REPLACE FUNCTION executor_hooks_counts() RETURNS text LANGUAGE C AS '$library'");
		}
		$node->safe_psql('postgres', "DROP TABLE IF EXISTS item, part, bag, parent, child, log CASCADE; $tables");
		poll(sub { $sql->run("SELECT bool_and(status <> 'unarmed') FROM unnest('{item,part,bag,parent,child}'::text[]) d CROSS JOIN fence.get(d, '1') g") eq 't' }, 'announcements');
		$sql->run("SET pgcache_fence.capture = '$capture'");
		$sql->run("SELECT fence.read('item', id::text), fence.read('part', id::text) FROM generate_series(1, 6) id");
		$sql->run("SET executor_hooks.statement = 'INSERT INTO log VALUES (1)'") if $libraries =~ /executor_hooks/;
		$answers{$capture} = join "\n", map { my $s = $_ eq ':r' ? $reserved : $_; "$_: " . ($sql->error_of($s) // $sql->run($s =~ /^SELECT/ ? $s : 'SELECT 1')) } @script;
		$answers{$capture} = '';
		no_reservations($node);
		compare_fences($node, $_) foreach qw(item part bag parent child);
	}
	$node->stop;
	return %answers;
}

done_testing();
