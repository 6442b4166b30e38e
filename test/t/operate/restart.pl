# A restart of PostgreSQL after a clean shutdown: the epoch goes on, what is cached stays served, and writers wait for no
# lease. After anything else a new epoch begins.
#
# Watched: fence.state and the metrics, which say how the epoch began; reads straight from Redis.

use strict;
use warnings;

use FenceTest;
use FenceTest::Cluster;
use FenceTest::Session;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::RecursiveCopy;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

# So long that nothing here can be mistaken for a wait for its end.
my $lease = 15;
my $redis = FenceTest::Redis->start;
my $node  = new_postgres('main', $redis,
	init                      => { allows_streaming => 1 },
	lease                     => "${lease}s",
	watch_buckets             => 1024,
	max_prepared_transactions => 5,
	restart_after_crash       => 'on',
	autovacuum                => 'off');
my $file = $node->data_dir . '/pgcache_fence.resume';
my $sql;

sub connect_again { $sql = FenceTest::Session->open($node); return; }
sub state_of { my ($of) = @_; return ($of // $node)->safe_psql('postgres', 'SELECT epoch FROM fence.state'); }
sub fence_of { my ($key) = @_; return $sql->run("SELECT fence.fence_key('item', '$key')"); }
sub status   { my ($key) = @_; return $sql->run("SELECT status FROM fence.get('item', '$key')"); }

# Caches the row.
sub warm
{
	my ($key) = @_;

	poll(sub { $sql->run("SELECT fence.read('item', '$key')"); status($key) eq 'hit' }, "$key is cached", 120);
	return;
}

# How the present epoch began: 'resumed', or why it is a new one.
sub began
{
	my ($of) = @_;

	return ($of // $node)->safe_psql('postgres', "SELECT string_agg(CASE name WHEN 'cache_fence_epochs_resumed_total' THEN 'resumed' ELSE "
		  . "labels ->> 'reason' END, ' ') FROM fence.metrics WHERE name IN ('cache_fence_epochs_resumed_total', 'cache_fence_epoch_changes_total') AND value > 0");
}

# Waits until fences are OPEN, in an epoch that is new because the server was started.
sub starts_cold
{
	my ($what, $of) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	wait_state($of // $node, 'OPEN', 120);
	return is(began($of), 'start', "$what: a new epoch");
}

sub stop_and_start
{
	my ($how) = @_;

	$sql->close;
	$node->stop($how // 'fast');
	$node->start;
	wait_state($node, 'OPEN', 120);
	connect_again();
	return;
}

connect_again();
$sql->run('CREATE TABLE item (id int PRIMARY KEY, name text, version bigint NOT NULL DEFAULT 0)');
$sql->run("INSERT INTO item SELECT g, 'old' FROM generate_series(1, 100) g; SELECT fence.attach('item')");

subtest 'a clean restart' => sub {
	my $epoch = state_of();

	warm($_) foreach 1 .. 9;
	# what is under way at the shutdown
	$sql->run('BEGIN');
	$sql->run("UPDATE item SET name = 'prepared' WHERE id = 2");
	$sql->run("PREPARE TRANSACTION 'p'");
	my $token = $sql->run("SELECT token FROM fence.reserve('item', NULL, '1 hour', '3')");
	my $killed = FenceTest::Session->open($node);
	$killed->run('BEGIN');
	$killed->run("UPDATE item SET name = 'killed' WHERE id = 4");
	poll(sub { status(4) eq 'pending' }, 'the reservation');
	my $fence = fence_of(1);
	my $stored = $redis->call('GET', $fence);

	$sql->close;
	$node->stop('fast');
	ok(-f $file, 'the file is there while the server is down');
	my ($word) = strong_read($redis, $fence);
	is($word, 'hit', 'readers get hits while the server is down');
	my $start = time();
	$node->start;
	ok(!-f $file, 'the file is gone while the server runs');
	connect_again();
	$sql->run("UPDATE item SET name = 'new' WHERE id = 5");
	my $took = time() - $start;
	note sprintf 'a writer was done %.2f s after the start', $took;
	cmp_ok($took, '<', $lease, 'a writer does not wait for the end of a lease');
	wait_open($node);

	is(state_of(), $epoch, 'the same epoch');
	is(began(), 'resumed', 'the metrics say how it began');
	like($sql->run('SELECT reason FROM fence.state'), qr/shut down cleanly.*the epoch goes on/, 'and fence.state');
	ok(slurp_file($node->logfile) =~ /OPEN in epoch \d+: PostgreSQL was shut down cleanly/, 'and the log');
	is((strong_read($redis, $fence))[0], 'hit', 'what was cached is a hit');
	is($redis->call('GET', $fence), $stored, 'and nobody has stored it again');

	is($sql->run("SELECT fence.read('item', '5') ->> 'name'"), 'new', 'what was written after the start is read');
	is(status(2), 'pending', 'what is prepared is pending');
	is(status(3), 'pending', 'what is reserved detached is pending');
	poll(sub { status(4) ne 'pending' }, 'the reservation of the killed transaction to end');
	is($sql->run("SELECT fence.read('item', '4') ->> 'name'"), 'old', 'what was killed is not there');
	$sql->run("COMMIT PREPARED 'p'");
	$sql->run("SELECT fence.abort('$token')");
	poll(sub { status(2) ne 'pending' && status(3) ne 'pending' }, 'both to end');
	is($sql->run("SELECT fence.read('item', '2') ->> 'name'"), 'prepared', 'what was prepared is read');
	is((strong_read($redis, $fence))[0], 'hit', 'and what has nothing to do with it is still a hit');
	no_reservations($node);
	compare_fences($node, 'item');
};

subtest 'buckets' => sub {
	my $bits = "SELECT set_now, set_before, known, turn FROM fence.buckets";
	warm(6);
	my $before = $sql->run($bits);
	stop_and_start();
	is($sql->run($bits), $before, 'the bits are as they were');
	is(began(), 'resumed', 'and again');

	$sql->close;
	$node->stop('fast');
	$redis->pause;
	$node->start;
	connect_again();
	is($sql->run('SELECT known FROM fence.buckets'), 'f', 'until Redis has agreed, the bits do not count');
	$redis->resume;
	wait_open($node);
	is(began(), 'resumed', 'it agrees');
	is($sql->run($bits), $before, '... and they count');
	$sql->run("UPDATE item SET name = 'new' WHERE id = 6");
	is($sql->run("SELECT fence.read('item', '6') ->> 'name'"), 'new', 'a row whose bit was set before is reserved');
	no_reservations($node);
	compare_fences($node, 'item');
};

# ---------------------------------------------------------------------------------------------------------------------
# A new epoch
# ---------------------------------------------------------------------------------------------------------------------

# A lease that these wait for.
$sql->run($_) foreach q(ALTER SYSTEM SET pgcache_fence.lease = '1s'), 'SELECT pg_reload_conf()';
poll(sub { $sql->run("SELECT longest_lease FROM fence.cluster") eq '00:00:01' }, 'the lower lease to be durable', 120);

subtest 'an immediate shutdown' => sub {
	stop_and_start('immediate');
	starts_cold('immediate');
	ok(!-f $file, 'no file');
};

subtest 'a backend is killed: PostgreSQL crashes and comes back' => sub {
	stop_and_start();
	is(began(), 'resumed', 'at first the epoch goes on');
	my $victim = FenceTest::Session->open($node);
	my $from = -s $node->logfile;
	kill KILL => $victim->pid;
	poll(sub { substr(slurp_file($node->logfile), $from) =~ /database system is ready/ }, 'the recovery');
	starts_cold('crash');
	connect_again();
};

subtest 'a bypass' => sub {
	warm(7);
	$redis->pause;
	$sql->run("UPDATE item SET name = 'bypass' WHERE id = 7");
	$sql->close;
	$node->stop('fast');
	ok(!-f $file, 'no file');
	$redis->resume;
	$node->start;
	connect_again();
	starts_cold('bypass');
	is($sql->run("SELECT fence.read('item', '7') ->> 'name'"), 'bypass', 'what was written meanwhile is read');
};

subtest 'Redis was restarted' => sub {
	$sql->close;
	$node->stop('fast');
	$redis->restart;
	$node->start;
	connect_again();
	starts_cold('Redis');
};

subtest 'a session in single-user mode has written' => sub {
	my $input = "CREATE TABLE single ()\n";

	$sql->close;
	$node->stop('fast');
	ok(run_log([ 'postgres', '--single', '-D', $node->data_dir, '-c', 'shared_preload_libraries=', 'postgres' ], '<', \$input), 'without the library');
	ok(-f $file, 'it has left the file');
	$node->start;
	connect_again();
	starts_cold('single-user');
	ok(slurp_file($node->logfile) =~ /Something has run in this data directory since/, 'the log says why');
	is($sql->run("SELECT to_regclass('single')"), 'single', 'it has written');
};

subtest 'a cold copy' => sub {
	my $copy = $node->data_dir . '.copy';
	my $put = sub { rename $node->data_dir, "$_[0]" or die "rename: $!"; rename $_[1], $node->data_dir or die "rename: $!"; };

	warm(9);
	$sql->close;
	$node->stop('fast');
	PostgreSQL::Test::RecursiveCopy::copypath($node->data_dir, $copy);
	chmod 0700, $copy;
	$node->start;
	wait_open($node);
	is(began(), 'resumed', 'the original goes on');
	connect_again();
	$sql->run("UPDATE item SET name = 'lost' WHERE id = 9");
	warm(9);
	$sql->close;
	$node->stop('fast');

	$put->("$copy.original", $copy);
	$node->start;
	connect_again();
	starts_cold('the copy');
	ok(slurp_file($node->logfile) =~ /cannot go on: Redis refused: another server has gone on in this epoch/, 'the log says why');
	is($sql->run("SELECT fence.read('item', '9') ->> 'name'"), 'old', 'what only the original had is not read');
	$sql->close;
	$node->stop('fast');

	$put->($copy, "$copy.original");
	$node->start;
	connect_again();
	starts_cold('the original again');
	is($sql->run("SELECT fence.read('item', '9') ->> 'name'"), 'lost', 'what only the copy had is not read');
};

subtest 'another watch_buckets' => sub {
	$sql->close;
	$node->stop('fast');
	$node->append_conf('postgresql.conf', 'pgcache_fence.watch_buckets = 2048');
	$node->start;
	connect_again();
	starts_cold('settings');
	stop_and_start();
	is(began(), 'resumed', 'and after that the epoch goes on');
};

subtest 'a damaged file' => sub {
	$sql->close;
	$node->stop('fast');
	open my $f, '+<:raw', $file or die "$file: $!";
	seek $f, 500, 0;
	print $f 'x' x 10;
	close $f;
	$node->start;
	connect_again();
	starts_cold('damaged');
	ok(slurp_file($node->logfile) =~ /"pgcache_fence.resume" is damaged/, 'the log says why');
};

subtest 'the file cannot be written' => sub {
	my $from = -s $node->logfile;

	mkdir "$file.new" or die "$file.new: $!";
	$sql->close;
	$node->stop('fast');
	my $log = substr slurp_file($node->logfile), $from;
	like($log, qr/could not write file "pgcache_fence.resume.new": Is a directory/, 'the log says why');
	unlike($log, qr/FATAL:  could not write/, '... but the shutdown does not fail');
	rmdir "$file.new" or die "$file.new: $!";
	$node->start;
	connect_again();
	starts_cold('not written');
};

# A standby was promoted as a test, and its primary shall go on. It is refused until somebody does what doc/operations.md says.
sub forget_timeline
{
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$node->start;
	my $reason = "SELECT reason = 'timeline 2 of this cluster has replaced timeline 1' FROM fence.state";
	poll(sub { $node->safe_psql('postgres', $reason) eq 't' }, 'the primary to be refused');
	$redis->call(qw(FUNCTION DELETE pgcache_fence));
	poll(sub { $redis->call(qw(FUNCTION LIST))->[0] }, 'the keeper to load the library again');
	poll(sub { $node->safe_psql('postgres', $reason) eq 't' }, 'it to remember that it was replaced');
	$node->safe_psql('postgres', "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'pgcache_fence keeper'");
	wait_state($node, 'OPEN', 120);
	connect_again();
	return;
}

subtest 'a promoted standby that was made of a cold copy' => sub {
	$sql->close;
	$node->stop('fast');
	$node->backup_fs_cold('cold');
	my $standby = PostgreSQL::Test::Cluster->new('standby');
	$standby->init_from_backup($node, 'cold');
	$standby->set_standby_mode;
	$standby->append_conf('postgresql.conf', "port = " . $standby->port);
	ok(-f $standby->data_dir . '/pgcache_fence.resume', 'it has the file');
	$standby->start;
	$standby->promote;
	starts_cold('promotion', $standby);
	ok(slurp_file($standby->logfile) =~ /cannot go on: Redis refused: armed by another timeline/, 'the log says why');
	$standby->stop;
	forget_timeline();
};

# It cannot ask any process while nobody but the primary reaches Redis, and must not take that for their consent.
subtest 'such a standby does not reach Redis until it is promoted' => sub {
	my $standby = PostgreSQL::Test::Cluster->new('far');

	warm(8);
	$sql->close;
	$node->stop('fast');
	$node->backup_fs_cold('far');
	$node->start;
	wait_open($node);
	is(began(), 'resumed', 'the primary goes on');
	connect_again();
	$sql->run("UPDATE item SET name = 'lost' WHERE id = 8");
	warm(8);
	$sql->close;
	$node->stop('immediate');
	$redis->pause;
	$standby->init_from_backup($node, 'far');
	$standby->set_standby_mode;
	$standby->append_conf('postgresql.conf', "port = " . $standby->port);
	$standby->start;
	poll(sub { $standby->safe_psql('postgres', q(SELECT status FROM fence.get('item', '8'))) eq 'unavailable' }, 'the standby to miss Redis');
	$standby->promote;
	poll(sub { $standby->safe_psql('postgres', 'SELECT reason FROM fence.state') !~ /is a standby/ }, 'it to try as a primary');
	$redis->resume;
	starts_cold('promotion', $standby);
	is($standby->safe_psql('postgres', "SELECT fence.read('item', '8') ->> 'name'"), 'old', 'what only the primary had is not read');
	$standby->stop;
};

# ---------------------------------------------------------------------------------------------------------------------
# Several processes
# ---------------------------------------------------------------------------------------------------------------------

# A server with 30 cached rows, which goes on after a clean restart.
sub several
{
	my ($name, $url) = @_;
	my $several = new_postgres($name, undef, redis_url => $url, lease => '2s');
	my $count = "SELECT count(*) FROM item WHERE (fence.get('item', id::text)).status = 'hit'";

	$several->safe_psql('postgres', "CREATE TABLE item (id int PRIMARY KEY, version bigint NOT NULL DEFAULT 0); INSERT INTO item SELECT generate_series(1, 30)");
	$several->safe_psql('postgres', "SELECT fence.attach('item')");
	poll(sub { $several->safe_psql('postgres', "SELECT fence.read('item', id::text) FROM item; $count") =~ /^30$/m }, 'all are cached');
	$several->stop('fast');
	$several->start;
	wait_open($several);
	is(began($several), 'resumed', "$name: the epoch goes on");
	is($several->safe_psql('postgres', $count), '30', 'all are hits');
	return $several;
}

subtest 'shards' => sub {
	my @servers = map { FenceTest::Redis->start } 1 .. 2;
	my $several = several('shards', join ', ', map { $_->url } @servers);

	$several->stop('fast');
	$servers[1]->restart;
	$several->start;
	starts_cold('one of them was restarted', $several);
	$several->stop;
};

subtest 'a cluster' => sub {
	my $cluster = FenceTest::Cluster->start(3);

	several('cluster', $cluster->url)->stop;
};

done_testing();
