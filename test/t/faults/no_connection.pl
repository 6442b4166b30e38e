# Backends that get no connection to Redis (maxclients): what they reserve goes through the courier, whose connection
# stands. Fences stay OPEN for all, nothing stale is served, transactions commit.

use strict;
use warnings;

use FenceTest;
use FenceTest::Session;
use Test::More;
use Time::HiRes qw(time);

my $writers = 30;
my $redis = FenceTest::Redis->start;
my $node = new_postgres('main', $redis, lease => '3s', autovacuum => 'off');
my $sql = FenceTest::Session->open($node);
my $reader = FenceTest::Session->open($node);

$sql->run("CREATE TABLE item (id int PRIMARY KEY, name text DEFAULT 'old', version bigint NOT NULL DEFAULT 0); "
	  . 'INSERT INTO item (id) SELECT g FROM generate_series(1, 200) g; '
	  . "SELECT fence.attach('item', cache => 'row')");
poll(sub { $reader->run("SELECT (fence.get('item', '1')).status") eq 'miss' }, 'the domain');

sub state_of { my ($field) = @_; return $sql->run("SELECT $field FROM fence.state"); }

# What pgbench does with that script; transactions in a second.
sub bench
{
	my ($script, $transactions) = @_;
	my $file = $node->basedir . '/script.sql';

	open my $out, '>', $file or die "$file: $!";
	print $out $script;
	close $out;
	my ($stdout, $stderr) = ('', '');
	my $ok = IPC::Run::run([ 'pgbench', '-n', '-c', $writers, '-t', $transactions, '-f', $file, '-d', $node->connstr('postgres') ],
		'>', \$stdout, '2>', \$stderr, IPC::Run::timeout(180));
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok($ok && $stderr !~ /error/i, 'all transactions commit') or diag($stderr);
	return $stdout =~ /tps = ([\d.]+)/ ? $1 : 0;
}

# From now on nobody gets a connection who has none.
sub fill
{
	$redis->call(qw(CONFIG SET maxclients), $redis->info('clients', 'connected_clients'));
	isnt(eval { $redis->connect->call('PING') } // 'refused', 'PONG', 'who has no connection gets none');
	return;
}

my $one = "\\set id random(1, 200)\nUPDATE item SET name = 'new' WHERE id = :id;\n";
my $many = "\\set id 1 + 10 * (:client_id % 19)\nBEGIN;\n" . join('', map { "UPDATE item SET name = 'x' WHERE id = :id + $_;\n" } 0 .. 9) . "COMMIT;\n";

bench($one, 20);
my %direct = (one => bench($one, 100), many => bench($many, 20));
my $epoch = state_of('epoch');

# The reader has its connection; keeper, patrol and courier too.
$reader->run("SELECT fence.read('item', '1')");
poll(sub { $sql->run("SELECT count(*) FROM fence.pending") eq '0' }, 'quiet');
$sql->close;
$sql = FenceTest::Session->open($node);
sleep_until_alone();
fill();

# Connections of ended backends are gone from Redis' list.
sub sleep_until_alone
{
	my $before = -1;

	poll(
		sub {
			my $now = $redis->info('clients', 'connected_clients');
			my $same = $now == $before;
			$before = $now;
			return $same;
		},
		'the end of connections');
	return;
}

subtest 'one transaction after the other' => sub {
	$sql->run("UPDATE item SET name = 'a' WHERE id = 1");
	is($reader->run("SELECT fence.read('item', '1') ->> 'name'"), 'a', 'written, and read');
	my $version = $sql->run('SELECT version FROM item WHERE id = 1');
	$sql->run("BEGIN; UPDATE item SET name = 'b' WHERE id = 1; SAVEPOINT s; UPDATE item SET name = 'c' WHERE id = 1; ROLLBACK TO s; "
		  . 'UPDATE item SET name = \'d\' WHERE id = 2; COMMIT');
	is($reader->run("SELECT fence.read('item', '1') ->> 'name'"), 'b', 'with a savepoint');
	is($sql->run("SELECT version - $version FROM item WHERE id = 1"), '1', 'and its version');
	$sql->run("INSERT INTO item VALUES (1000, 'n'); DELETE FROM item WHERE id = 1000");
	is($reader->run("SELECT fence.read('item', '1000')"), '', 'a row that came and went');
	$sql->run("BEGIN; UPDATE item SET name = name; ROLLBACK; BEGIN; UPDATE item SET name = 'all'; COMMIT");
	is($reader->run("SELECT count(*) FROM item WHERE fence.read('item', id::text) ->> 'name' <> 'all'"), '0', '200 rows at once');
	is(state_of('state'), 'OPEN', 'OPEN');
};

subtest "$writers writers, and a reader who compares" => sub {
	my $stale = 0;
	my $hits = 0;

	my $file = $node->basedir . '/beside.sql';
	open my $out, '>', $file or die "$file: $!";
	print $out $one;
	close $out;
	my ($stdout, $stderr) = ('', '');
	# slow enough for a row to stay as it is for a while
	my $run = IPC::Run::start([ 'pgbench', '-n', '-c', $writers, '-R', 400, '-T', 6, '-f', $file, '-d', $node->connstr('postgres') ],
		'>', \$stdout, '2>', \$stderr, IPC::Run::timeout(180));
	my $reads = 0;
	while ($run->pumpable)
	{
		# a row several times in turn: also a slow reader finds what it has put
		my $id = 1 + int($reads / 4) % 200;

		# the row first, then the cache: a hit below the row is stale
		my $answer = $reader->run("SELECT i.version, g.status, g.version FROM (SELECT version, id FROM item WHERE id = $id) i, "
			  . "LATERAL fence.get('item', i.id::text) g");
		my ($row, $status, $version) = split /\|/, $answer;
		$hits++ if $status eq 'hit';
		$stale++ if $status eq 'hit' && $version < $row;
		$reader->run("SELECT fence.read('item', '$id')") if $status eq 'miss';
		$reads++;
		$run->pump_nb;
	}
	ok($run->finish && $stdout =~ /number of failed transactions: 0 /, 'all transactions commit') or diag($stdout, $stderr);
	is($stale, 0, "no stale read among $reads, of which $hits were hits");
	cmp_ok($hits, '>', 0, 'the cache serves meanwhile');
	is(state_of('state'), 'OPEN', 'OPEN');
	is(state_of('epoch'), $epoch, 'the same epoch all the time');
	is(state_of('bypassed_transactions'), '0', 'no transaction went without reservations');
	is($sql->run("SELECT sum(value) FROM fence.metrics WHERE name = 'cache_fence_operations_total' AND labels->>'operation' = 'commit' "
			  . "AND labels->>'result' IN ('failed', 'timeout')") || '0', '0', 'no commit was lost on a connection that was none');
};

subtest 'how much slower' => sub {
	my %courier = (one => bench($one, 100), many => bench($many, 20));
	diag sprintf '%s: %.0f/s with connections, %.0f/s through the courier (%.2f)', $_, $direct{$_}, $courier{$_}, $courier{$_} / $direct{$_}
	  foreach sort keys %direct;
	is(state_of('state'), 'OPEN', 'OPEN');
};

subtest 'explicit, detached and whole domains' => sub {
	my $token = (split /\|/, $sql->run("SELECT * FROM fence.reserve('item', NULL, '1 hour', '5')"))[1];
	is($reader->run("SELECT status FROM fence.get('item', '5')"), 'pending', 'a detached reservation');
	$sql->run("SELECT fence.abort('$token')");
	$sql->run('BEGIN; TRUNCATE item; ROLLBACK');
	$sql->run("SET pgcache_fence.bulk_threshold = 10; UPDATE item SET name = 'bulk'");
	is($reader->run("SELECT fence.read('item', '7') ->> 'name'"), 'bulk', 'a bulk change');
	is(state_of('epoch'), $epoch, 'the same epoch');
};

subtest 'the courier does not get through either: closed as ever, nothing stale' => sub {
	my $courier = $sql->run("SELECT pid FROM pg_stat_activity WHERE backend_type = 'pgcache_fence courier'");

	$reader->run("SELECT fence.read('item', '9')");
	kill 'STOP', $courier;
	$sql->run("UPDATE item SET name = 'late' WHERE id = 9");
	isnt($reader->run("SELECT status FROM fence.get('item', '9')"), 'hit', 'what was cached is not served');
	is($reader->run("SELECT fence.read('item', '9') ->> 'name'"), 'late', 'who reads gets the row');
	cmp_ok(state_of('bypassed_transactions'), '>', 0, 'it went without reservations, after the lease');
	kill 'CONT', $courier;
	$redis->call(qw(CONFIG SET maxclients 1000));
	wait_open($node);
	no_reservations($node);
	compare_fences($node, 'item');
};

$node->stop('fast');
done_testing();
