# Derived values: a client of Redis reads effective permissions as doc/clients.md says; nothing that is older than one of
# its sources is ever served, whoever writes meanwhile; definitions survive a dump.

use strict;
use warnings;

use FenceTest;
use FenceTest::Session;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $READS = 150;       # beside writers that run freely, at least
my $HITS = 10;         # and until so many of them were hits
my $PATIENCE = 150;    # seconds

my $redis = FenceTest::Redis->start;
my $node = new_postgres('derived', $redis);
my $sql = FenceTest::Session->open($node);

# Each source counts how often it was changed, and a permission is the list of what was found.
$sql->run(<<'SQL');
CREATE TABLE setting (name text COLLATE "C" PRIMARY KEY, n int DEFAULT 0, version bigint NOT NULL DEFAULT 0);
CREATE TABLE room (room_id int PRIMARY KEY, n int DEFAULT 0, version bigint NOT NULL DEFAULT 0);
CREATE TABLE member (room_id int, user_id int, n int DEFAULT 0, version bigint NOT NULL DEFAULT 0, PRIMARY KEY (room_id, user_id));
CREATE TABLE exception (room_id int NOT NULL, user_id int NOT NULL, n int DEFAULT 0);
CREATE INDEX ON exception (room_id, user_id);
INSERT INTO setting VALUES ('default');
INSERT INTO room SELECT g FROM generate_series(1, 2) g;
INSERT INTO member SELECT r, u FROM generate_series(1, 2) r, generate_series(1, 3) u;
SELECT fence.attach('setting'), fence.attach('room', tag => 'room/{room_id}'), fence.attach('member', tag => 'room/{room_id}'),
	fence.attach('exception', key => '{room_id,user_id}', scope => 'group', tag => 'room/{room_id}');
CREATE SEQUENCE computed;
CREATE FUNCTION permission(room int, usr int) RETURNS jsonb STABLE LANGUAGE plpgsql AS $$
BEGIN
	PERFORM nextval('public.computed');
	RETURN (SELECT jsonb_build_array(s.n, r.n, m.n, (SELECT coalesce(sum(n), 0) FROM public.exception e
													  WHERE e.room_id = m.room_id AND e.user_id = m.user_id))
			  FROM public.setting s, public.room r, public.member m
			 WHERE s.name = 'default' AND r.room_id = room AND m.room_id = room AND m.user_id = usr);
END $$;
SELECT fence.define_derived('permission', '{member,exception,room($1),setting(default)}', 'permission(int, int)');
SQL
foreach my $key ("'setting', 'default'", "'room', '1'", "'member', '1', '1'", "'exception', '1', '1'")
{
	poll(sub { $sql->run("SELECT status FROM fence.get($key)") ne 'unarmed' }, "the announcement of $key");
}

# ---------------------------------------------------------------------------------------------------------------------
# A client
# ---------------------------------------------------------------------------------------------------------------------

my $asked = 0;    # PostgreSQL was

# As doc/clients.md says: one call; else ask PostgreSQL.
sub cached_permission
{
	my $value = $sql->run("SELECT value FROM fence.derived_keys('permission', '$_[0]', '$_[1]')");
	my ($status, $payload) = @{ $redis->call('FCALL_RO', 'fence_get_derived', 1, $value) };

	return $status eq 'hit' ? $payload : undef;
}

sub permission
{
	my $cached = cached_permission(@_);
	return $cached if defined $cached;
	$asked++;
	return $sql->run("SELECT fence.read_derived('permission', '$_[0]', '$_[1]')");
}

my @members = map { my $r = $_; map { [ $r, $_ ] } 1 .. 3 } 1 .. 2;

# What all members have, and whose was not in the cache.
sub everybody
{
	my (@all, @missing);

	foreach my $member (@members)
	{
		my $before = $asked;
		push @all, permission(@$member);
		push @missing, "$member->[0]/$member->[1]" if $asked != $before;
	}
	return (join(' ', @all), join ' ', @missing);
}

my $all = '1/1 1/2 1/3 2/1 2/2 2/3';

subtest 'a change makes stale what rests on it, and nothing else' => sub {
	is((everybody())[1], $all, 'nothing is cached at first');
	is((everybody())[1], '', 'then all is');
	foreach my $case (
		[ 'UPDATE member SET n = n + 1 WHERE room_id = 1 AND user_id = 2', '1/2', 'a member' ],
		[ 'INSERT INTO exception VALUES (2, 3, 5)', '2/3', 'a first exception' ],
		[ 'UPDATE exception SET n = 6', '2/3', 'an exception' ],
		[ 'DELETE FROM exception', '2/3', 'the last exception' ],
		[ 'UPDATE room SET n = n + 1 WHERE room_id = 1', '1/1 1/2 1/3', 'defaults of a room' ],
		[ 'UPDATE setting SET n = n + 1', $all, 'global defaults' ],
		[ 'BEGIN; UPDATE setting SET n = n + 1; ROLLBACK', '1/1', 'nothing: who reads first puts the fence back, and then all rests on it again' ])
	{
		my ($statement, $stale, $what) = @$case;
		$sql->run($statement);
		# commits are on their way to Redis: a session waits for its own
		$sql->run("SELECT fence.get('setting', 'default')");
		my ($got, $missing) = everybody();
		is($missing, $stale, $what);
		is($got, $sql->run("SELECT string_agg(permission(room_id, user_id)::text, ' ' ORDER BY room_id, user_id) FROM member"),
			'... and what they have is right');
	}
	is((everybody())[1], '', 'all is cached again');
};

subtest 'nothing is older than its sources were when the read began' => sub {
	my @writers = map { FenceTest::Session->open($node) } 1 .. 2;
	my ($reads, $hits, $wrong) = (0, 0, '');

	$sql->run(<<'SQL');
CREATE TABLE stop ();
CREATE TABLE pace AS SELECT 0.03::float8 AS seconds;
CREATE PROCEDURE write_on() LANGUAGE plpgsql AS $$
BEGIN
	WHILE NOT EXISTS (SELECT FROM stop) LOOP
		CASE (random() * 4)::int
			WHEN 0 THEN UPDATE setting SET n = n + 1;
			WHEN 1 THEN UPDATE room SET n = n + 1 WHERE room_id = 1;
			WHEN 2 THEN INSERT INTO exception VALUES (1, 1, 1);
			ELSE UPDATE member SET n = n + 1 WHERE room_id = 1 AND user_id = 1;
		END CASE;
		COMMIT;
		PERFORM pg_sleep(random() * seconds) FROM pace;
	END LOOP;
END $$;
SQL
	$_->begin('CALL write_on()') foreach @writers;
	my $started = time();
	while (($reads < $READS || $hits < $HITS) && time() < $started + $PATIENCE)
	{
		# as fast as this machine lets the reader be
		$sql->run('UPDATE pace SET seconds = ' . 4 * (time() - $started) / $reads) if $reads % 20 == 19;
		my @before = $sql->run('SELECT permission(1, 1)') =~ /(\d+)/g;
		my $cached = cached_permission(1, 1);
		my $text = $cached // $sql->run("SELECT fence.read_derived('permission', '1', '1')");
		my @found = $text =~ /(\d+)/g;
		my @after = $sql->run('SELECT permission(1, 1)') =~ /(\d+)/g;
		$reads++;
		$hits++ if defined $cached;
		foreach my $i (0 .. 3)
		{
			$wrong .= "source $i: $found[$i], which was $before[$i] before and $after[$i] afterwards\n"
			  if $found[$i] < $before[$i] || $found[$i] > $after[$i];
		}
	}
	$sql->run('INSERT INTO stop DEFAULT VALUES');
	$_->take foreach @writers;
	note("$reads reads, $hits of them from the cache");
	is($wrong, '', 'every one of them is of its time');
	cmp_ok($hits, '>=', $HITS, 'hits, too');
	no_reservations($node);
	compare_fences($node, $_) foreach qw(setting room member exception);
};

subtest 'without fences it is computed' => sub {
	my $right = $sql->run('SELECT permission(1, 1)');

	is($sql->run("SELECT fence.read_derived('permission', '1', '1')"), $right, 'cached or not');
	$redis->pause;
	wait_state($node, 'CLOSED');
	is($sql->run("SELECT fence.read_derived('permission', '1', '1')"), $right, 'Redis hangs');
	is($sql->run("SELECT freshness FROM fence.peek('room', '1')"), 'unavailable', 'peek does not wait for it');
	is($sql->run("SELECT min(source) FROM fence.read_many(fence.fence_keys('room', '{1,2}'))"), 'database', 'read_many neither');
	$redis->resume;
	wait_open($node);
};

$node->stop;
done_testing();
