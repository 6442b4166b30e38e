# A server that answers what it likes: an error, a retry or CLOSED; never a crash, a hang past the timeout, or memory
# without bounds. And the errors that a real Redis gives when something is wrong with it.

use strict;
use warnings;

use FenceTest;
use FenceTest::Impostor;
use FenceTest::Session;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $redis = FenceTest::Redis->start(config => ['busy-reply-threshold 100']);
my $impostor = FenceTest::Impostor->start($redis);
my $node = new_postgres('hostile', undef, redis_url => $impostor->url, lease => '500ms', timeout => '500ms', max_worker_processes => 20);
$node->{fence_redis} = $redis;
my $sql = FenceTest::Session->open($node);

# Seconds: one transaction waits no longer than its lease, what it asks no longer than the timeout.
my $WAIT = 0.5 + 0.5;
# The rest is for the machine: so long may what takes a second of a processor take, if nobody else wants one.
my $WORK = 10;
my $MEMORY = 400;    # megabytes of one process, and far from what is sent without end

$sql->run(<<'SQL');
CREATE TABLE item (id int PRIMARY KEY, n int NOT NULL DEFAULT 0, version bigint NOT NULL DEFAULT 0);
INSERT INTO item SELECT g FROM generate_series(1, 20) g;
SELECT fence.attach('item');
SQL

# Whether a statement that took these seconds has waited no longer than it may, so many times over. A machine that is busy with
# something else is given as much more time as it then needs for work of a known length.
sub in_time
{
	my ($seconds, $times, $what) = @_;
	my $allowed = $times * ($WAIT + $WORK);

	if ($seconds >= $allowed)
	{
		my $begin = time();
		my $used  = (times)[0];
		1 while (times)[0] - $used < 0.2;
		$allowed = $times * ($WAIT + $WORK * (time() - $begin) / 0.2);
	}
	cmp_ok($seconds, '<', $allowed, $what);
	return;
}

sub state_of { my ($field) = @_; return $sql->run("SELECT $field FROM fence.state"); }

# The largest memory of any of the server's processes, beyond what is shared; in megabytes.
sub memory
{
	my $most = 0;

	foreach my $pid (split /\n/, $sql->run('SELECT pid FROM pg_stat_activity'))
	{
		my $text = eval { slurp_file("/proc/$pid/status") } // next;
		$most = $1 if $text =~ /^RssAnon:\s+(\d+) kB/m && $1 > $most;
	}
	return $most / 1024;
}

# Open again, and everything is as it should be.
sub recovers
{
	my ($what) = @_;

	$impostor->honest;
	wait_open($node, 90);
	my $status = '';
	eval { poll(sub { ($status = $sql->run("SELECT status FROM fence.get('item', '1')")) =~ /hit|miss/ }, 'a reader', 30) };
	like($status, qr/hit|miss/, "$what: readers have hits again") or diag($sql->run('SELECT * FROM fence.state'), $sql->error_of("SELECT fence.status('item', '1')"));
	my $pending = eval {
		poll(
			sub {
				$sql->begin('SELECT count(*) FROM fence.pending');
				return $sql->take eq '0';
			},
			'no reservations', 30);
	};
	ok($pending, "$what: nothing stays reserved");
	return;
}

# Works on while commands that match are answered like this. truthful: no reply is made up, so reads must be right.
sub survives
{
	my ($way, $which, %option) = @_;
	my $what = "$way" . ($option{text} ? " ($option{text})" : '') . " to $which";
	my $begin = time();
	my ($slowest, $wrong, $most) = (0, 0, 0);

	$impostor->act($way, $which, %option);
	foreach my $round (1 .. $option{rounds} // 3)
	{
		foreach my $statement ("UPDATE item SET n = n + 1 WHERE id = 1 + $round % 20", "SELECT fence.read('item', '2')",
			"SELECT * FROM fence.get('item', '3')", "BEGIN; UPDATE item SET n = -1 WHERE id = 4; ROLLBACK",
			'SELECT * FROM fence.pending', "SELECT fence.read('item', '1')->>'version' = version::text FROM item WHERE id = 1")
		{
			my $started = time();
			$sql->begin($statement);
			my $out = $sql->take;
			$slowest = time() - $started if time() - $started > $slowest;
			$wrong++ if $out eq 'f';
			$sql->error_of('ROLLBACK') if $out =~ /ERROR/;
		}
		my $now = memory();
		$most = $now if $now > $most;
	}
	in_time($slowest, 1, "$what: no statement hangs");
	is($wrong, 0, "$what: no read is wrong") unless $option{lies};
	cmp_ok($most, '<', $MEMORY, "$what: memory");
	return;
}

# One process of the extension at a time, told apart by what it asks.
my %asks = (
	'the courier'  => 'fence_write|fence_domain',
	'the keeper'   => 'fence_hello|fence_renew|fence_arm|fence_resume|fence_disarm|FUNCTION|INFO|heartbeat',
	'the patrol'   => 'fence_pending|fence_counts',
	'the announcer' => 'fence_announce',
	'backends'     => 'MULTI|MGET|EXEC|fence_token|fence_get|fence_put|fence_release|fence_check|fence_status',
	'all of them'  => '.');

# The processes that must not end.
sub workers
{
	return $sql->run("SELECT string_agg(pid || ' ' || backend_type, ', ' ORDER BY backend_type) FROM pg_stat_activity "
		  . "WHERE backend_type IN ('pgcache_fence keeper', 'pgcache_fence courier', 'pgcache_fence patrol')");
}

# A new start for each: the keeper opens later and later when it fails again and again.
sub attack
{
	my ($who, $with, $code) = @_;

	subtest "$with to $who" => sub {
		$node->restart;
		$sql = FenceTest::Session->open($node);
		wait_open($node);
		my $workers = workers();
		$code->($asks{$who});
		recovers($who);
		is(workers(), $workers, 'no worker has ended');
	};
	return;
}

foreach my $who ($ENV{FENCE_HOSTILE_TO} // sort keys %asks)
{
	attack($who, 'garbage', sub { my ($which) = @_; survives($_, $which) foreach qw(garbage cut unasked) });
	attack($who, 'endless replies',
		sub { my ($which) = @_; survives($_, $which, rounds => 1) foreach qw(huge line many deep flood silent) });
	attack($who, 'replies of other shapes',
		sub { my ($which) = @_; survives($_, $which, rounds => 10, lies => 1) foreach qw(shapes flip) });
	attack($who, 'errors', sub {
		my ($which) = @_;
		survives('error', $which, rounds => 1, text => $_)
		  foreach ('ERR', '', 'LOADING Redis is loading the dataset in memory', "OOM command not allowed when used memory > 'maxmemory'.",
			"READONLY You can't write against a read only replica.", 'BUSY Redis is busy running a script.',
			'NOPERM this user has no permissions', 'NOAUTH Authentication required.', 'ERR Function not found',
			'MOVED 1 127.0.0.1:1', 'ASK 1 127.0.0.1:1', 'CLUSTERDOWN The cluster is down', 'MISCONF Errors writing to disk',
			'%s%n%s%n' . 'x' x 20000);
	});
}
compare_fences($node, 'item');

# What a real Redis says. Without the impostor: nothing between.
$node->append_conf('postgresql.conf', "pgcache_fence.redis_url = '" . $redis->url . "'\npgcache_fence.timeout = '1s'");
$node->restart;
$sql = FenceTest::Session->open($node);
recovers('the real one');

# Breaks it, sees writes and reads go on, mends it.
sub real
{
	my ($what, $break, $mend) = @_;

	subtest $what => sub {
		$node->restart;
		$sql = FenceTest::Session->open($node);
		wait_open($node);
		my $n = $sql->run('SELECT n FROM item WHERE id = 5');

		$break->();
		foreach my $round (1 .. 5)
		{
			my $started = time();
			is($sql->error_of('UPDATE item SET n = n + 1 WHERE id = 5'), undef, 'a write');
			is($sql->run("SELECT fence.read('item', '5')->>'n'"), ++$n, 'a read');
			in_time(time() - $started, 2, 'in time');
		}
		$mend->();
		recovers($what);
		compare_fences($node, 'item');
	};
	return;
}

my $script = $redis->connect;
real('a script that does not end', sub {
		$script->send('EVAL', 'while true do end', 0);
		poll(sub { ($redis->error_of('GET', 'x') // '') =~ /^BUSY/ }, 'BUSY');
	}, sub {
		poll(sub { !defined $redis->error_of('SCRIPT', 'KILL') || !defined $redis->error_of('GET', 'x') }, 'SCRIPT KILL');
	});
real('FUNCTION FLUSH', sub { $redis->call('FUNCTION', 'FLUSH') }, sub { });
real('FUNCTION FLUSH, again and again', sub { $redis->call('FUNCTION', 'FLUSH') foreach 1 .. 3 }, sub { $redis->call('FUNCTION', 'FLUSH') });
real('no memory', sub { $redis->call('CONFIG', 'SET', 'maxmemory-policy', 'noeviction', 'maxmemory', 1) },
	sub { $redis->call('CONFIG', 'SET', 'maxmemory', 0) });
real('no rights', sub { $redis->call('ACL', 'SETUSER', 'default', '-fcall') }, sub { $redis->call('ACL', 'SETUSER', 'default', '+fcall') });
real('a replica of nobody', sub { $redis->call('REPLICAOF', '127.0.0.1', 1) }, sub { $redis->call('REPLICAOF', 'NO', 'ONE') });
real('all clients are thrown out', sub { $redis->call('CLIENT', 'KILL', 'TYPE', 'normal') },
	sub { $redis->call('CLIENT', 'KILL', 'TYPE', 'normal') });
real('no room for clients', sub {
		$redis->call('CONFIG', 'SET', 'maxclients', 1);
		$redis->call('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes');
	}, sub { $redis->call('CONFIG', 'SET', 'maxclients', 1000) });

my $log = slurp_file($node->logfile);
unlike($log, qr/terminated by signal|PANIC:|TRAP:|AddressSanitizer|runtime error/, 'no process has crashed');
$node->stop;
done_testing();
