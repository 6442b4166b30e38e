# Filling a cold cache: fence.warm, and readers that keep to pgcache_fence.warm_rate after a new epoch.

use strict;
use warnings;

use FenceTest;
use FenceTest::Session;
use IPC::Run;
use Test::More;
use Time::HiRes qw(time);

use constant ROWS => 3000;

my $redis = FenceTest::Redis->start;
my $node = new_postgres('warm', $redis, audit_rate => 0);
my $sql = FenceTest::Session->open($node);

$sql->run('CREATE TABLE item (id int PRIMARY KEY, n int NOT NULL DEFAULT 0, version bigint NOT NULL DEFAULT 0);
	CREATE TABLE part (item int, place int, PRIMARY KEY (item, place)); CREATE TABLE other (id int PRIMARY KEY, item int);
	CREATE TABLE setting (name text PRIMARY KEY); INSERT INTO item SELECT g FROM generate_series(1, ' . ROWS . ") g;
	INSERT INTO part SELECT g % 10, g FROM generate_series(1, 100) g; INSERT INTO setting VALUES ('a'), ('b');
	SELECT fence.attach('item'); SELECT fence.attach('part', key => '{item}', scope => 'group');
	SELECT fence.attach('setting', key => '{}', scope => 'group');
	SELECT fence.attach('other', domain => 'pair', key => '{id}', scope => 'group'); CREATE TABLE another (id int PRIMARY KEY, item int);
	SELECT fence.attach('another', domain => 'pair', key => '{item}', scope => 'group')");

sub hits { my ($domain) = @_; return scalar @{ $redis->call('KEYS', '*:f:*.' . ($domain // 'item') . ':*') }; }

sub new_epoch
{
	my $before = $sql->run('SELECT epoch FROM fence.state');

	$redis->call('FLUSHALL');
	$redis->call('FUNCTION', 'FLUSH');
	poll(sub { $sql->run("SELECT state = 'OPEN' AND epoch <> '$before' FROM fence.state") eq 't' }, 'a new epoch');
	poll(sub { $sql->run("SELECT (fence.get('item', 1)).status") eq 'miss' }, 'the announcement');
	return;
}

subtest 'the whole table' => sub {
	is($sql->run("CALL fence.warm('item')"), ROWS . '|' . ROWS, 'all keys');
	is($sql->run("SELECT count(*) FROM item WHERE (fence.get('item', id)).status = 'hit'"), ROWS, '... are hits');
	is($sql->run("CALL fence.warm('item', batch => 7)"), ROWS . '|0', 'again: nothing to do');
	$sql->run('UPDATE item SET n = 1 WHERE id <= 10');
	is($sql->run("CALL fence.warm('item', batch => 100)"), ROWS . '|10', 'what was written');
	is($sql->run("SELECT fence.read('item', 5)->>'n'"), 1, '... as it is now');
	compare_fences($node, 'item');
};

subtest 'some keys' => sub {
	new_epoch();
	is($sql->run("CALL fence.warm('item', 'SELECT id FROM item WHERE id % 10 = 0 ORDER BY id DESC')"), '300|300', 'those of a query');
	is(hits(), 300, '... and no others');
	is($sql->run(q{CALL fence.warm('item', $$VALUES ('1'), ('2'), (NULL), ('99999')$$)}), '3|2', 'a row that is not there, and a null');
	is($sql->run("BEGIN; CALL fence.warm('item', 'SELECT id::bigint FROM item WHERE id BETWEEN 11 AND 15', batch => 2); COMMIT"), '5|5',
		'in a transaction block');
	is($sql->run("CALL fence.warm('part')"), '10|10', 'groups');
	is($sql->run("CALL fence.warm('setting')"), '1|1', 'a whole table as one value');
	is($sql->run("CALL fence.warm('pair', 'SELECT 1 UNION SELECT 2')"), '2|2', 'a domain of several tables');
};

subtest 'errors' => sub {
	my %error = (
		"CALL fence.warm('nosuch')" => qr/does not exist/,
		'CALL fence.warm(NULL)' => qr/must not be null/,
		"CALL fence.warm('item', batch => 0)" => qr/must be between 1 and/,
		"CALL fence.warm('item', 'SELECT 1, 2')" => qr/key/,
		"CALL fence.warm('item', 'UPDATE item SET n = 2 RETURNING id')" => qr/UPDATE/,
		"CALL fence.warm('item', 'SELECT 1/0')" => qr/division by zero/,
		"CALL fence.warm('pair')" => qr/has several tables: pass a query/,
		"BEGIN; UPDATE item SET n = 3 WHERE id = 1; CALL fence.warm('item')" => qr/cannot fill in values of domain "item"/,
		"BEGIN ISOLATION LEVEL REPEATABLE READ; CALL fence.warm('item')" => qr/cannot fill in values of domain "item"/,
	);
	foreach my $statement (sort keys %error)
	{
		my ($rc, undef, $stderr) = $node->psql('postgres', $statement);
		like($stderr, $error{$statement}, $statement);
	}
	$sql->run('CREATE ROLE reader; GRANT SELECT ON item TO reader');
	my (undef, undef, $stderr) = $node->psql('postgres', "SET ROLE reader; CALL fence.warm('item')");
	like($stderr, qr/permission denied for procedure warm/, 'not for everybody');
	$sql->run('GRANT EXECUTE ON PROCEDURE fence.warm TO reader; REVOKE SELECT ON item FROM reader');
	(undef, undef, $stderr) = $node->psql('postgres', "SET ROLE reader; CALL fence.warm('item')");
	like($stderr, qr/permission denied for table item/, 'who may call it needs the right to read');
	$redis->pause;
	poll(sub { $sql->run('SELECT state FROM fence.state') ne 'OPEN' }, 'CLOSED');
	(undef, undef, $stderr) = $node->psql('postgres', "CALL fence.warm('item')");
	like($stderr, qr/fences are not OPEN/, 'while Redis is away');
	$redis->resume;
	wait_open($node);
};

# Another session sees how far it is, and that it is in a new transaction again and again.
subtest 'progress' => sub {
	my ($stdout, $stderr, $seen, $transactions) = ('', '', 0, 0);
	for (1 .. 20)
	{
		my %began;
		new_epoch();
		my $call = IPC::Run::start([ 'psql', '-XAtq', '-h', $node->host, '-p', $node->port, '-c', "CALL fence.warm('item', batch => 20)", 'postgres' ],
			'>', \$stdout, '2>', \$stderr);
		while ($call->pumpable)
		{
			my ($keys, $began) = split /\|/,
			  $sql->run("SELECT substring(query, '^fence.warm: (\\d+) keys of domain \"item\" done, \\d+ values filled in'), xact_start
				FROM pg_stat_activity WHERE query LIKE 'fence.warm:%' AND pid <> pg_backend_pid() AND state = 'active'");
			if ($keys) { $seen++ if $keys < ROWS; $began{$began}++; }
			$call->pump_nb;
		}
		$call->finish;
		$transactions = keys %began if keys %began > $transactions;
		last if $transactions >= 2;
	}
	cmp_ok($seen, '>', 0, 'pg_stat_activity tells how far it is');
	cmp_ok($transactions, '>=', 2, '... in one transaction after another');
	is($stdout =~ s/\n.*//sr, ROWS . '|' . ROWS, 'and all is done');
};

# A closed bucket refuses the first put; fence.warm waits until it is open.
subtest 'with watch_buckets' => sub {
	$node->append_conf('postgresql.conf', "pgcache_fence.watch_buckets = 65536");
	$node->restart;
	$sql = FenceTest::Session->open($node);
	wait_open($node);
	poll(sub { $sql->run("SELECT (fence.get('item', 1)).status") =~ /^(?:miss|hit)$/ }, 'the announcement');
	my ($keys, $filled) = split /\|/, $sql->run("CALL fence.warm('item')");
	is($keys, ROWS, 'all keys');
	cmp_ok($filled, '>=', ROWS - 10, '... are filled in');
	cmp_ok($sql->run("SELECT count(*) FROM item WHERE (fence.get('item', id)).status = 'hit'"), '>=', ROWS - 10, '... and hits');
};

# Readers who miss are let through at the rate. Those that are held back for too long read PostgreSQL all the same.
foreach my $buckets (65536, 0)
{
	subtest "the rate, with $buckets buckets" => sub {
		my ($rate, $clients, $seconds) = (50, 8, 6);
		$node->append_conf('postgresql.conf', "pgcache_fence.watch_buckets = $buckets\npgcache_fence.warm_rate = $rate");
		$node->restart;
		$sql = FenceTest::Session->open($node);
		wait_open($node);
		new_epoch();
		my $script = $node->basedir . '/read.sql';
		open my $fh, '>', $script or die $!;
		print $fh '\set id random(1, ' . ROWS . ")\nSELECT 1 / (fence.read('item', :id)->>'id' = :id::text)::int;\n";
		close $fh;
		my $before = hits();
		my ($out, $err) = ('', '');
		my $log = $node->basedir . "/latency$buckets";
		IPC::Run::run([ 'pgbench', '-n', '-T', $seconds, '-c', $clients, '-f', $script, '-l', '--log-prefix', $log, '-h', $node->host, '-p', $node->port, 'postgres' ],
			'>', \$out, '2>', \$err);
		my $filled = hits() - $before;
		# a client that has waited for its turn twice goes on: at most one of each client in a second
		cmp_ok($filled, '<=', $rate * ($seconds + 1) + $clients * $seconds, "no faster: $filled rows in $seconds s");
		cmp_ok($filled, '>=', $rate * $seconds / 4, '... and not much slower');
		unlike($err, qr/ERROR|aborted/, 'every read is answered, and right') or diag($err);
		my ($slowest) = sort { $b <=> $a } map { open my $in, '<', $_ or die; map { (split)[2] / 1000 } <$in> } glob "$log.*";
		cmp_ok($slowest, '<', 4000, "in bounded time: $slowest ms");
		compare_fences($node, 'item');
	};
}

subtest 'without a rate' => sub {
	$node->append_conf('postgresql.conf', 'pgcache_fence.warm_rate = 0');
	$node->reload;
	poll(sub { $redis->call('FCALL_RO', 'fence_get', 1, 'nosuch:f:1.x:{1}'); $sql->run('SHOW pgcache_fence.warm_rate') eq '0' }, 'the setting');
	new_epoch();
	my $begin = time();
	$sql->run("SELECT count(fence.read('item', id)) FROM item WHERE id <= 500");
	cmp_ok(time() - $begin, '<', 5, 'nobody waits');
};

done_testing();
