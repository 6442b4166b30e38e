# Long calls can be watched and cancelled: attach, audit, repair_domain. And repair_domain repairs.

use strict;
use warnings;

use FenceTest;
use FenceTest::Session;
use Test::More;

my $redis = FenceTest::Redis->start;
my $node = new_postgres('main', $redis);
my $sql = FenceTest::Session->open($node);
my $other = FenceTest::Session->open($node);

# Waits until pg_stat_activity shows that the other session waits for a lock.
sub waits_for_lock
{
	my ($name) = @_;
	my $query = 'SELECT wait_event_type, wait_event FROM pg_stat_activity WHERE pid = ' . $other->pid;

	return poll(sub { $sql->run($query) eq 'Lock|relation' }, $name);
}

sub cancelled
{
	my ($name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$sql->run('SELECT pg_cancel_backend(' . $other->pid . ')');
	$other->wait;
	return like($other->take, qr/57014/, $name);
}

sub compared { return $sql->run("SELECT coalesce(sum(value), 0) FROM fence.metrics WHERE name = 'cache_fence_db_compare'"); }

$sql->run("CREATE TABLE item (id int PRIMARY KEY, v text)");
$sql->run("INSERT INTO item SELECT g, 'x' FROM generate_series(1, 3000) g");

subtest 'attach' => sub {
	my $holder = FenceTest::Session->open($node);

	$holder->run('BEGIN; LOCK TABLE item IN ACCESS SHARE MODE');
	$other->begin("SELECT fence.attach('item', add_version => true)");
	waits_for_lock('where it changes the table');
	cancelled('and is cancelled');
	is($sql->run("SELECT count(*) FROM pg_attribute WHERE attrelid = 'item'::regclass AND attname = 'version'"), 0, 'nothing is left');
	$holder->run('ROLLBACK; BEGIN; LOCK TABLE item IN ROW EXCLUSIVE MODE');
	$other->begin("SELECT fence.attach('item', add_version => true)");
	waits_for_lock('where it waits for writers');
	cancelled('and is cancelled');
	$holder->run('ROLLBACK');
	$holder->close;
	is($sql->run("SELECT fence.attach('item', add_version => true)"), 'item', 'then it is attached');
	poll(sub { $sql->run("SELECT status FROM fence.get('item', '1')") ne 'unarmed' }, 'the domain');
};

foreach my $call ("audit('item', CASE WHEN g > 0 THEN 1 END)", "repair_domain(CASE WHEN g > 0 THEN 'item' END)")
{
	my ($command) = $call =~ /^(\w+)/;

	subtest $command => sub {
		my $before = compared();

		# again and again, so that it goes on when somebody looks
		$other->begin("SELECT count(*) FROM generate_series(1, 100000) g, LATERAL fence.$call");
		# the patrol compares some rows, too
		poll(sub { compared() > $before + 1000 }, "metrics count the comparisons of $command");
		cancelled('and is cancelled');
	};
}

subtest 'repair_domain' => sub {
	my $count = sub { $sql->run("SELECT count FROM fence.repair_domain('item') WHERE relation = 'fence_ahead_db'") };

	$sql->run("SELECT count(fence.read('item', id::text)) FROM item WHERE id <= 10");
	is($count->(), 0, 'nothing to repair');
	# lower versions past the triggers, as a restored table would have
	$sql->run('UPDATE item SET v = 1 WHERE id <= 10');
	no_reservations($node);
	$sql->run("SELECT count(fence.read('item', id::text)) FROM item WHERE id <= 10");
	$sql->run(<<'SQL');
SET allow_system_table_mods = on;
BEGIN;
UPDATE pg_trigger SET tgenabled = 'D' WHERE tgrelid = 'item'::regclass AND tgname LIKE 'zzz%';
UPDATE pg_class SET relname = relname WHERE oid = 'item'::regclass;
UPDATE item SET version = 0 WHERE id <= 10;
UPDATE pg_trigger SET tgenabled = 'A' WHERE tgrelid = 'item'::regclass AND tgname LIKE 'zzz%';
UPDATE pg_class SET relname = relname WHERE oid = 'item'::regclass;
COMMIT
SQL
	cmp_ok($count->(), '<=', 10, 'found, unless the patrol was first');
	is($count->(), 0, 'and repaired');
	is($sql->run("SELECT value FROM fence.metrics WHERE name = 'cache_fence_repair_total' AND labels @> '{\"result\": \"repaired\"}'"), 10,
		'ten');
	like($sql->run("SELECT finding FROM fence.explain('item', '1') WHERE topic = 'repair'"), qr/repaired/, 'explain tells');
	compare_fences($node, 'item');
};

$_->close foreach $sql, $other;
$node->stop('fast');
done_testing();
