# redis+sentinel://: the master is found, lost and found again; nothing stale is read meanwhile.

use strict;
use warnings;

use FenceTest;
use FenceTest::Sentinel;
use FenceTest::Session;
use Test::More;
use Time::HiRes qw(time usleep);

my $LEASE = 1.0;    # seconds, as new_postgres sets it

my $first = FenceTest::Redis->start;
my $second = FenceTest::Redis->start(config => [ 'replicaof 127.0.0.1 ' . $first->port ]);
my @sentinels = FenceTest::Sentinel->start($first, 3);
my @servers = ($first, $second);

# Sentinels cut off the clients of those whom they promote or demote, and so the test's.
sub info { my ($redis, $field) = @_; $redis->disconnect; return eval { $redis->info('replication', $field) } // ''; }

sub url { my ($name, @hosts) = @_; return 'redis+sentinel://' . join(',', @hosts) . "/$name"; }
sub hosts { return map { '127.0.0.1:' . $_->port } @_; }

# Every sentinel knows the others, and the replica as one that can be promoted: before that there is no failover.
sub wait_ready
{
	my ($replica, @of) = @_;

	poll(sub { info($replica, 'master_link_status') eq 'up' }, 'the replica to follow');
	foreach my $sentinel (@of)
	{
		poll(
			sub {
				my %master = @{ $sentinel->call('SENTINEL', 'MASTER', 'main') };
				my @good = grep {
					my %slave = @$_;
					$slave{flags} eq 'slave' && $slave{'master-link-status'} eq 'ok' && $slave{port} == $replica->port
				} @{ $sentinel->call('SENTINEL', 'REPLICAS', 'main') };
				return $master{flags} eq 'master' && $master{'num-other-sentinels'} >= 2 && @good;
			},
			'the sentinels to know one another');
	}
	return;
}

my $node = new_postgres('sentinel', undef, redis_url => url('main', '127.0.0.1:1', hosts(@sentinels)), max_prepared_transactions => 0);
my $sql = FenceTest::Session->open($node);
sub state_of { my ($field) = @_; return $sql->run("SELECT $field FROM fence.state"); }
sub epoch_number { return (split /-/, state_of('epoch'))[0]; }
sub master { return $sql->run("SELECT string_agg(address || ' ' || coalesce(role, '-'), ',') FROM fence.nodes"); }
sub address { my ($redis) = @_; return '127.0.0.1:' . $redis->port; }

# Waits until fences are open with that master; how long it took.
sub wait_master
{
	my ($redis, $what) = @_;
	my $begin = time();
	my $reached = eval {
		poll(sub { master() eq address($redis) . ' master' && state_of('state') eq 'OPEN' }, $what, 90);
		poll(sub { $sql->run("SELECT status FROM fence.get('item', '1')") ne 'unarmed' }, 'the announcement');
	};
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok($reached, $what) or diag(master() . ': ' . state_of('state, reason'));
	return time() - $begin;
}

is(master(), address($first) . ' master', 'the master is found, though the first of the sentinels is down');
$sql->run(<<'SQL');
CREATE TABLE item (id int PRIMARY KEY, n int NOT NULL DEFAULT 0, version bigint NOT NULL DEFAULT 0);
INSERT INTO item SELECT g FROM generate_series(1, 50) g;
SELECT fence.attach('item');
CREATE TABLE stop ();
CREATE TABLE done (what text, n bigint, bad bigint, slowest interval);

-- Each writes or reads until somebody drops the table stop.
CREATE PROCEDURE write_on() LANGUAGE plpgsql AS $$
DECLARE
	n bigint := 0;
	started timestamptz;
	slowest interval := '0';
BEGIN
	WHILE to_regclass('stop') IS NOT NULL LOOP
		started := clock_timestamp();
		UPDATE item SET n = item.n + 1 WHERE id = 1 + (random() * 49)::int;
		COMMIT;
		n := n + 1;
		slowest := greatest(slowest, clock_timestamp() - started);
		PERFORM pg_sleep(0.002);
	END LOOP;
	INSERT INTO done VALUES ('write', n, 0, slowest);
END $$;
CREATE PROCEDURE read_on() LANGUAGE plpgsql AS $$
DECLARE
	n bigint := 0;
	bad bigint := 0;
	k int;
	before bigint;
	started timestamptz;
	slowest interval := '0';
BEGIN
	WHILE to_regclass('stop') IS NOT NULL LOOP
		k := 1 + (random() * 49)::int;
		SELECT version INTO before FROM item WHERE id = k;
		COMMIT;
		started := clock_timestamp();
		IF (fence.read('item', k::text)->>'version')::bigint < before THEN
			bad := bad + 1;
		END IF;
		COMMIT;
		n := n + 1;
		slowest := greatest(slowest, clock_timestamp() - started);
	END LOOP;
	INSERT INTO done VALUES ('read', n, bad, slowest);
END $$;
SQL
poll(sub { $sql->run("SELECT status FROM fence.get('item', '1')") ne 'unarmed' }, 'the announcement');

# Runs the code while others write and read; none may read what is older than what it saw committed before.
sub under_load
{
	my ($code) = @_;
	my @load = map { FenceTest::Session->open($node) } 1 .. 4;

	$sql->run('CREATE TABLE IF NOT EXISTS stop (); DELETE FROM done');
	$load[$_]->begin($_ % 2 ? 'CALL write_on()' : 'CALL read_on()') foreach 0 .. 3;
	$code->();
	$sql->run('DROP TABLE stop');
	is($_->error_of, undef, 'no error') foreach @load;
	is($sql->run("SELECT sum(bad) FROM done WHERE what = 'read'"), 0, 'nothing stale was read');
	cmp_ok($sql->run("SELECT min(n) FROM done"), '>', 0, 'all were at work');
	note($sql->run("SELECT what, n, slowest FROM done ORDER BY what"));
	no_reservations($node);
	($node->{fence_redis}) = grep { master() eq address($_) . ' master' } @servers;
	$node->{fence_redis}->disconnect;
	compare_fences($node, 'item');
	return;
}

# What a reader that talks to that Redis is told.
sub told_by
{
	my ($redis, $key) = @_;
	my $fence = $sql->run("SELECT fence.fence_key('item', '$key')");

	$redis->disconnect;
	return strong_word($redis, $fence);
}

subtest 'sentinels that do not help' => sub {
	my $other = new_postgres('other', undef, redis_url => url('nobody', hosts(@sentinels)), wait => 0);
	my $seen = sub {
		my ($reason, $what, $url) = @_;
		$other->append_conf('postgresql.conf', "pgcache_fence.redis_url = '$url'") if $url;
		$other->reload;
		my $text = '';
		ok(eval { poll(sub { ($text = $other->safe_psql('postgres', 'SELECT state, reason FROM fence.state')) =~ /^CLOSED\|.*$reason/ },
				$what, 30) }, $what) or diag($text);
	};
	$seen->('knows no master of that name', 'a name that they do not know');
	$seen->('Redis answered: ERR unknown command', 'a Redis that is no sentinel', url('main', hosts($first)));
	$seen->('Connection refused', 'none is there', url('main', '127.0.0.1:1'));
	$other->append_conf('postgresql.conf', "pgcache_fence.redis_url = '" . url('main', hosts(@sentinels)) . "'");
	$other->reload;
	wait_open($other);
	pass('and at last the right ones');
	$other->stop;
};

subtest 'the answer changes, the old master lives' => sub {
	# the sentinels are told of another master; the one before knows nothing of it
	my $third = FenceTest::Redis->start;
	push @servers, $third;
	my $epoch = epoch_number();
	my $since = state_of('since');

	# one that is no master is not believed
	$sentinels[0]->call('SENTINEL', 'REMOVE', 'main');
	$sentinels[0]->call('SENTINEL', 'MONITOR', 'main', '127.0.0.1', $second->port, 2);
	my $until = time() + 2 * $LEASE;
	poll(sub { time() > $until }, 'several heartbeats');
	is(state_of('since'), $since, 'a sentinel that names a replica changes nothing');

	$sql->run("SELECT fence.read('item', '2')") foreach 1 .. 2;
	is(told_by($first, 2), 'hit', 'readers of the old master have hits');
	under_load(
		sub {
			foreach my $sentinel (@sentinels)
			{
				$sentinel->call('SENTINEL', 'REMOVE', 'main');
				$sentinel->call('SENTINEL', 'MONITOR', 'main', '127.0.0.1', $third->port, 2);
			}
			wait_master($third, 'the other master is taken');
		});
	cmp_ok(epoch_number(), '>', $epoch, 'in a new epoch');
	is(info($first, 'role'), 'master', 'the old master lives');
	is(told_by($first, 2), 'unarmed', '... and vouches for nothing any more');

	# and back
	foreach my $sentinel (@sentinels)
	{
		$sentinel->call('SENTINEL', 'REMOVE', 'main');
		$sentinel->call('SENTINEL', 'MONITOR', 'main', '127.0.0.1', $first->port, 2);
		$sentinel->call('SENTINEL', 'SET', 'main', 'down-after-milliseconds', 1000, 'failover-timeout', 5000);
	}
	wait_master($first, 'back to the first');
	pop @servers;
	$third->stop;
};

subtest 'a lagging replica is promoted, one sentinel is down' => sub {
	my $epoch = epoch_number();

	wait_ready($second, @sentinels);
	$sentinels[2]->kill9;
	under_load(
		sub {
			# the replica does not get the newest writes: it is cut off and cannot log in again
			$second->call('CONFIG', 'SET', 'masteruser', 'nobody', 'masterauth', 'x');
			$first->call('CLIENT', 'KILL', 'TYPE', 'replica');
			poll(sub { info($second, 'master_link_status') eq 'down' }, 'the replica to be cut off');
			$first->call('SET', 'lost', 1);
			my $n = $sql->run('SELECT sum(n) FROM item');
			poll(sub { $sql->run('SELECT sum(n) FROM item') > $n + 20 }, 'some more writes');
			my $died = time();
			$first->kill9;
			wait_master($second, 'the replica is the master');
			note(sprintf 'open again %.1f s after the master was killed', time() - $died);
		});
	$second->call('CONFIG', 'SET', 'masteruser', '', 'masterauth', '');
	is($second->call('EXISTS', 'lost'), 0, 'it lacks what the master had acknowledged');
	cmp_ok(epoch_number(), '>', $epoch, 'a new epoch');
	cmp_ok($sql->run("SELECT extract(epoch FROM max(slowest)) FROM done WHERE what = 'write'"), '<', 15,
		'no write waited for the failover');
};

subtest 'the old master hangs, is replaced, and comes back' => sub {
	my $epoch = epoch_number();

	$sentinels[2]->_launch;
	$first->_launch;
	poll(sub { info($first, 'role') eq 'slave' }, 'the first to follow');
	wait_ready($first, @sentinels[ 0, 1 ]);
	$sql->run("SELECT fence.read('item', '3')") foreach 1 .. 2;
	is(told_by($second, 3), 'hit', 'a hit before');
	under_load(
		sub {
			$second->pause;
			wait_master($first, 'the other one is the master');
			$second->resume;
			is(told_by($second, 3), 'unarmed', 'a reader of the old master is told that it cannot vouch for anything');
		});
	cmp_ok(epoch_number(), '>', $epoch, 'a new epoch');
};

subtest 'a failover that somebody asks for' => sub {
	my $epoch = epoch_number();

	poll(sub { info($second, 'role') eq 'slave' }, 'the second to follow');
	wait_ready($second, @sentinels[ 0, 1 ]);
	under_load(
		sub {
			# refused while the last one is not long ago
			poll(sub { !defined $sentinels[0]->error_of('SENTINEL', 'FAILOVER', 'main') }, 'SENTINEL FAILOVER');
			wait_master($second, 'the master has changed');
		});
	cmp_ok(epoch_number(), '>', $epoch, 'a new epoch');
};
# the last one: sentinels that were stopped take no decisions for half a minute
subtest 'all sentinels are silent' => sub {
	my $since = state_of('since');

	$_->pause foreach @sentinels;
	# several heartbeats, each of which asks one that does not answer
	my $lease = $sql->run('SELECT clock_timestamp() + interval \'4 s\'');
	poll(sub { $sql->run("SELECT clock_timestamp() > '$lease'") eq 't' }, 'time to pass');
	is(state_of('since'), $since, 'what is open stays open');
	$sql->run('UPDATE item SET n = n + 1 WHERE id = 1');
	# what ends a reservation follows the commit
	ok(eval { poll(sub { told_by($second, 1) eq 'miss' }, 'the commit', 30) }, 'writes go on with reservations');
	$_->resume foreach @sentinels;
};

$node->stop;
$_->stop foreach @sentinels, $second, $first;

subtest 'passwords' => sub {
	my $master = FenceTest::Redis->start(password => 'master-secret');
	my ($open) = FenceTest::Sentinel->start($master, 1, config => ['sentinel auth-pass main master-secret']);
	my ($locked) = FenceTest::Sentinel->start($master, 1,
		config => [ 'sentinel auth-pass main master-secret', 'requirepass master-secret' ], password => undef);
	$locked->{password} = 'master-secret';
	my $with = sub { my ($sentinel, $secret) = @_; return "redis+sentinel://:$secret\@127.0.0.1:" . $sentinel->port . '/main'; };
	my $locked_node = new_postgres('password', undef, redis_url => $with->($open, 'master-secret'));

	pass('the master wants a password, the sentinel none');
	$locked_node->append_conf('postgresql.conf', "pgcache_fence.redis_url = '" . $with->($locked, 'master-secret') . "'");
	$locked_node->reload;
	poll(sub { $locked_node->safe_psql('postgres', 'SELECT state, since > pg_conf_load_time() FROM fence.state') eq 'OPEN|t' }, 'OPEN');
	pass('the sentinel wants it too');
	$locked_node->append_conf('postgresql.conf', "pgcache_fence.redis_url = '" . $with->($locked, 'mistake') . "'");
	$locked_node->reload;
	my $reason = '';
	poll(sub { ($reason = $locked_node->safe_psql('postgres', 'SELECT reason FROM fence.state')) =~ /WRONGPASS|invalid/ }, 'the reason');
	unlike($reason, qr/mistake/, 'a wrong password is not repeated');
	$locked_node->stop;
};

done_testing();
