# Changed rows that the executor tells of, beside other libraries that have hooks in it; and what happens where it does not tell as it
# should: triggers do, and the server says so.

use strict;
use warnings;

use FenceTest;
use FenceTest::Session;
use PostgreSQL::Test::Utils;
use Test::More;

my $library = compile_library('executor_hooks');

my $redis = FenceTest::Redis->start;
my $node = new_postgres('main', $redis, shared_preload_libraries => "pgcache_fence,pg_stat_statements,auto_explain,$library", 'pgcache_fence.capture' => 'auto');
my $sql;

sub connect_anew
{
	$sql->close if $sql;
	$sql = FenceTest::Session->open($node);
	return poll(sub { $sql->run("SELECT status FROM fence.get('item', '1')") ne 'unarmed' }, 'the announcement');
}

sub restart_with
{
	$node->append_conf('postgresql.conf', join "\n", @_, '');
	$node->restart;
	wait_open($node);
	return connect_anew();
}

sub captures { return $sql->run('SELECT capture FROM fence.state'); }
sub told
{
	return $sql->run(q(SELECT coalesce(string_agg(labels->>'way' || ' ' || value, ', ' ORDER BY 1), '')
		FROM fence.metrics WHERE name = 'cache_fence_changed_rows_total' AND value > 0));
}

sub change
{
	my ($way, $what) = @_;
	$sql->run('SELECT fence.reset_metrics()');
	$sql->run("SELECT fence.read('item', '$_')") foreach 1 .. 3;
	$sql->run('UPDATE item SET n = n + 1 WHERE id = 1');
	$sql->run('WITH w AS (UPDATE item SET n = n + 1 WHERE id = 2 RETURNING *) SELECT n FROM w');
	$sql->run('DELETE FROM item WHERE id = 3');
	$sql->run('INSERT INTO item VALUES (3)');
	is(told(), "$way 4", "$what: $way");
	is($sql->run("SELECT bool_and(fence.read('item', id::text) = to_jsonb(i)) FROM item i"), 't', '... and nothing stale is read');
	return;
}

$node->safe_psql('postgres', <<'SQL');
CREATE EXTENSION pg_stat_statements;
CREATE TABLE item (id int PRIMARY KEY, n int NOT NULL DEFAULT 0, version bigint NOT NULL DEFAULT 0);
INSERT INTO item SELECT g FROM generate_series(1, 3) g;
SELECT fence.attach('item');
SQL
my @explained = ('auto_explain.log_min_duration = 0', 'auto_explain.log_analyze = on', 'auto_explain.log_triggers = on', 'auto_explain.log_nested_statements = on');

subtest 'other libraries' => sub {
	restart_with(@explained);
	poll(sub { captures() eq 'executor' }, 'the executor tells');
	change('executor', 'others come after ours');
	is($sql->run(q(SELECT rows FROM pg_stat_statements WHERE query LIKE 'DELETE FROM item%')), '1', 'pg_stat_statements counts the row');
	restart_with("shared_preload_libraries = '$library,auto_explain,pg_stat_statements,pgcache_fence'");
	poll(sub { captures() eq 'executor' }, 'the executor tells');
	change('executor', 'others come before ours');
	unlike(slurp_file($node->logfile), qr/Trigger zzz_pgcache_fence.*calls=/, 'no trigger of ours was called');
	$sql->run("SET pgcache_fence.capture = 'triggers'");
	is(captures(), 'triggers', 'a session may leave it to triggers');
	change('triggers', 'such a session');
	like(slurp_file($node->logfile), qr/Trigger zzz_pgcache_fence_after.*calls=/, '... whose triggers are called');
};

subtest 'the trial fails' => sub {
	restart_with("shared_preload_libraries = 'pgcache_fence,$library'", 'executor_hooks.takes = returning');
	my $why = 'The executor changed 2 rows and reported 0.';
	poll(sub { captures() eq "triggers: $why" }, 'fence.state says why');
	like(slurp_file($node->logfile), qr/WARNING:  pgcache_fence: row triggers, not the executor, capture changed rows: \Q$why/, 'so does the log');
	like($sql->run(q(SELECT severity || ' ' || finding FROM fence.doctor() WHERE finding LIKE '%capture changed rows%')), qr/^warning row triggers, not the executor, capture changed rows/,
		'and fence.doctor');
	change('triggers', 'until it works');
	is($sql->run('SELECT count(*) FROM fence.floor'), '0', 'the trial leaves nothing');
	restart_with('executor_hooks.takes = projection');
	poll(sub { captures() eq 'triggers: The executor stored a row that did not get a version.' }, 'no versions were given');
};

subtest 'the trial crashes the server' => sub {
	my $why = 'The server crashed, or was killed, during the trial of the executor.';

	$node->append_conf('postgresql.conf', "restart_after_crash = on\nexecutor_hooks.takes = life");
	$node->restart(fail_ok => 1);
	poll(sub { my (undef, $said) = eval { $node->psql('postgres', 'SELECT capture FROM fence.state') }; ($said // '') eq "triggers: $why" }, 'the server is up, and says why', 60);
	wait_open($node);
	connect_anew();
	change('triggers', 'after a crash');
	restart_with('executor_hooks.takes = none');
	poll(sub { captures() eq 'executor' }, 'the next start tries again');
	change('executor', 'after the next start');
};

# A library that comes into one session, after the trial.
foreach my $case (
	[ returning => 'UPDATE item SET n = 100 WHERE id = 1', 'The executor changed 1 rows and reported 0.' ],
	[ projection => 'UPDATE item SET n = 100 WHERE id = 1', 'The executor stored a row that did not get a version.' ],
	[ returning => 'DELETE FROM item WHERE id = 2', 'The executor changed 1 rows and reported 0.' ],
	[ returning => 'DELETE FROM item WHERE id = 2 RETURNING id', 'The executor changed 1 rows and reported 0.' ])
{
	my ($takes, $statement, $why) = @$case;
	subtest "a statement is told wrongly: $takes" => sub {
		restart_with("shared_preload_libraries = 'pgcache_fence'", "executor_hooks.takes = ''");
		poll(sub { captures() eq 'executor' }, 'the executor tells');
		$sql->run("LOAD '$library'");
		$sql->run("SET executor_hooks.takes = '$takes'");
		like($sql->error_of($statement), qr/^XX000: the executor did not report all changed rows of a fenced table/, 'the statement fails');
		is($sql->run('SELECT string_agg(n::text, $$,$$ ORDER BY id) FROM item WHERE n < 100'), $sql->run('SELECT string_agg(n::text, $$,$$ ORDER BY id) FROM item'), 'nothing of it is there');
		is(captures(), "triggers: $why", 'fence.state says why');
		like(slurp_file($node->logfile), qr/WARNING:  pgcache_fence: row triggers capture all changed rows until the server is restarted: \Q$why/, 'so does the log');
		change('triggers', 'from then on');
		$sql->run('SELECT pg_reload_conf()');
		connect_anew();
		change('triggers', 'in other sessions too');
	};
}

$sql->close;
done_testing();
