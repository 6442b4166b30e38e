# Another library that writes in its own pre-commit callback: before ours it is like any writer, after ours it is refused,
# because nobody would wait for its reservation.

use strict;
use warnings;

use FenceTest;
use FenceTest::Session;
use Test::More;

my $library = compile_library('late_writer');

my $redis = FenceTest::Redis->start;
my $node = new_postgres('main', $redis, shared_preload_libraries => "$library,pgcache_fence");
my $sql = FenceTest::Session->open($node);

$sql->run('CREATE TABLE item (id int PRIMARY KEY, n int NOT NULL DEFAULT 0, version bigint NOT NULL DEFAULT 0)');
$sql->run('CREATE TABLE other (id int)');
$sql->run('INSERT INTO item SELECT g FROM generate_series(1, 3) g');
$sql->run("SELECT fence.attach('item')");
announced();

sub announced { return poll(sub { $sql->run("SELECT status FROM fence.get('item', '1')") ne 'unarmed' }, 'the announcement'); }
sub n_of { my ($id) = @_; return $sql->run("SELECT n FROM item WHERE id = $id"); }
sub late { my ($statement) = @_; return $sql->run("SET late_writer.statement = '$statement'"); }

my $refused = qr/^55000: cannot change a fenced table, or hold an effect, while the transaction commits/;

subtest 'after ours' => sub {
	$sql->run("SELECT fence.read('item', '1'), fence.read('item', '2')");
	late('UPDATE item SET n = n + 1 WHERE id = 1');
	like($sql->error_of('INSERT INTO other VALUES (1)'), $refused, 'a transaction that had written nothing fenced');
	like($sql->error_of('UPDATE item SET n = n + 1 WHERE id = 2'), $refused, 'one that had');
	like($sql->error_of('UPDATE item SET n = n + 1 WHERE id = 1'), $refused, 'one that had written the same row');
	late('SELECT fence.counter_add($$c$$, 1)');
	like($sql->error_of('INSERT INTO other VALUES (1)'), $refused, 'an effect');
	late('INSERT INTO other VALUES (2)');
	is($sql->error_of('UPDATE item SET n = 10 WHERE id = 3'), undef, 'what is not fenced may be written');
	late('');
	is(n_of(1) . n_of(2) . n_of(3), '0010', 'nothing else has happened');
	is($sql->error_of('UPDATE item SET n = 5 WHERE id = 1'), undef, 'the session goes on');
	no_reservations($node);
	is($sql->run("SELECT fence.read('item', '1') ->> 'n'"), '5', '... and is told of');
};

subtest 'before ours' => sub {
	$sql->close;
	$node->append_conf('postgresql.conf', "shared_preload_libraries = 'pgcache_fence,$library'");
	$node->restart;
	wait_open($node);
	$sql = FenceTest::Session->open($node);
	announced();
	$sql->run("SELECT fence.read('item', '$_')") foreach 1 .. 3;
	late('UPDATE item SET n = n + 1 WHERE id = 1');
	is($sql->error_of('INSERT INTO other VALUES (1)'), undef, 'a transaction that had written nothing fenced');
	is($sql->error_of('UPDATE item SET n = n + 1 WHERE id = 2'), undef, 'one that had');
	late('');
	no_reservations($node);
	is($sql->run("SELECT fence.read('item', '1') ->> 'n'"), '7', 'both writes of it are told of');
	is($sql->run("SELECT fence.read('item', '2') ->> 'n'"), '1', 'and the other one');
};

compare_fences($node, 'item');
$sql->close;
$node->stop;
done_testing();
