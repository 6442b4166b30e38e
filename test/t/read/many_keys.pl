# Several keys that agree, under concurrent writers: all keys of a transaction change together, and whoever reads
# several of them must see one transaction's versions.
#
# The first part shows a client of Redis that the second look is what finds a torn set. The second stops a reading
# backend again and again, so that writes fall between its calls; the third lets writers and readers run freely.

use strict;
use warnings;

use FenceTest;
use FenceTest::Session;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my $STOPS = 20;        # how often the reading backend is stopped, at least
my $FOUND = 5;         # and until it has found so many torn sets
my $SETS = 150;        # how many sets are read beside writers that run freely, at least
my $HITS = 10;         # and until so many of them were hits
my $PATIENCE = 150;    # seconds for each of the two

my $redis = FenceTest::Redis->start;
my $node = new_postgres('many', $redis);
my $sql = FenceTest::Session->open($node);

$sql->run(<<'SQL');
CREATE TABLE part (id int PRIMARY KEY, n int NOT NULL DEFAULT 0, version bigint NOT NULL DEFAULT 0);
INSERT INTO part SELECT g FROM generate_series(1, 300) g;
SELECT fence.attach('part');
CREATE FUNCTION names(first int, last int) RETURNS text[] LANGUAGE sql
	RETURN fence.fence_keys('part', (SELECT array_agg(g::text) FROM generate_series(first, last) g));
SQL
poll(sub { $sql->run("SELECT status FROM fence.get('part', '1')") ne 'unarmed' }, 'the announcement');

sub fill { my ($first, $last) = @_; return $sql->run("SELECT count(*) FROM fence.read_many(names($first, $last))"); }

sub fences { my ($first, $last) = @_; return split /\n/, $sql->run("SELECT unnest(names($first, $last))"); }

# What a strong read in one block finds, as doc/clients.md says: for each fence [token, version, payload], or undef if it is no hit.
sub block
{
	my ($server, @names) = @_;
	my $connection = $server->connection;
	my @words = ([ 'MULTI' ], [ 'MGET', @names ], [ 'FCALL_RO', 'fence_token', 1, $names[0] ], [ 'EXEC' ]);

	$connection->send(@$_) foreach @words;
	my ($records, $permit) = @{ (map { $connection->reply } @words)[-1] };
	return map { undef } @names if $permit eq '';
	my ($token) = split / /, $permit;
	return map { ($_ // '') =~ /^(\S+) (\d+) [^\n]*\n(.*)$/s && $1 eq $token ? [ $1, $2, $3 ] : undef } @$records;
}

# n of a payload.
sub n_of { return $_[0] =~ /"n": (\d+)/ ? $1 : die "no n in '$_[0]'"; }

subtest 'get all, then check all' => sub {
	my @names = fences(1, 2);

	fill(1, 2);
	my ($first) = block($redis, $names[0]);
	$sql->run('UPDATE part SET n = n + 1 WHERE id <= 2');
	is(join(' ', map { defined } block($redis, @names)), ' ', 'a write makes both cold');
	fill(1, 2);
	my ($second) = block($redis, $names[1]);
	ok($first && $second, 'both were hits');
	isnt(n_of($first->[2]), n_of($second->[2]), 'and yet they are of two transactions');
	is($redis->call('FCALL_RO', 'fence_check', 2, @names, map { @$_[ 0, 1 ] } $first, $second), '01', 'the second look tells which has changed');
	my @both = block($redis, @names);
	is(join(' ', map { $_->[1] } @both), "$second->[1] $second->[1]", 'one block is one moment');
	is(n_of($both[0][2]), n_of($both[1][2]), 'both are of the one transaction');
};

# As if a proxy had given the answer to another question. Each of these returned row 2 for key 1 before records named their keys.
subtest 'a record of another key is believed by nobody' => sub {
	my ($own, $other) = fences(1, 2);
	poll(sub { fill(1, 2); $redis->call('EXISTS', $own, $other) == 2 }, 'both to be cached');
	$redis->call('SET', $own, $redis->call('GET', $other));
	is($sql->run("SELECT fence.read('part', '1')->>'id'"), 1, 'read');
	is($sql->run("SELECT value->>'id', source FROM fence.try_read('part', '1')"), '1|database', 'try_read');
	is($sql->run("SELECT string_agg(value->>'id', ' ' ORDER BY fence) FROM fence.read_many(names(1, 2))"), '1 2', 'read_many');
	is($sql->run("SELECT status FROM fence.get('part', '1')"), 'unavailable', 'get');
	is($sql->run("SELECT freshness FROM fence.peek('part', '1')"), 'unavailable', 'peek');
	$redis->call('DEL', $own);
	poll(sub { fill(1, 2); $sql->run("SELECT status FROM fence.get('part', '1')") eq 'hit' }, 'the right one to be cached again');
};

subtest 'a backend that is stopped between its calls' => sub {
	my $reader = FenceTest::Session->open($node);
	my $control = FenceTest::Session->open($node);

	$sql->run('UPDATE part SET n = 0');
	fill(1, 300);
	# Rows 1 and 300 are read in different calls. It reads until the table stop has a row.
	$sql->run('CREATE TABLE stop (); CREATE SEQUENCE cached');
	$reader->run(<<'SQL');
CREATE PROCEDURE read_on(OUT sets int, OUT torn int, OUT cached int) LANGUAGE plpgsql AS $$
DECLARE
	found record;
	fences text[] := names(1, 300);
BEGIN
	sets := 0; torn := 0; cached := 0;
	WHILE NOT EXISTS (SELECT FROM stop) LOOP
		SELECT count(DISTINCT value->'n') FILTER (WHERE value->>'id' IN ('1', '300')) AS different, min(source) AS source
		  INTO found FROM fence.read_many(fences, 0);
		sets := sets + 1;
		torn := torn + (found.different <> 1)::int;
		cached := cached + (found.source = 'cache')::int;
		PERFORM nextval('cached') WHERE found.source = 'cache';
		COMMIT;
	END LOOP;
END $$;
SQL
	$reader->begin('CALL read_on(NULL, NULL, NULL)');
	my ($i, $found) = (0, 0);
	my $end = time() + $PATIENCE;
	while (($i++ < $STOPS || $found < $FOUND) && time() < $end)
	{
		# somewhere after a set that it found in the cache
		my $before = $control->run('SELECT last_value, is_called FROM cached');
		poll(sub { $control->run('SELECT last_value, is_called FROM cached') ne $before }, 'the reader');
		usleep(int rand 8000);
		kill 'STOP', $reader->pid;
		$control->begin("UPDATE part SET n = $i WHERE id IN (1, 300)");
		# it may have been stopped with a lock that the others need
		my $deadline = time() + 2;
		usleep(200) until $control->ready || time() > $deadline;
		kill 'CONT', $reader->pid if !$control->ready;
		$control->take;
		$control->run("SELECT fence.read('part', '1'), fence.read('part', '300')") if time() < $deadline;
		kill 'CONT', $reader->pid;
		$found = $control->run("SELECT value FROM fence.metrics WHERE name = 'cache_fence_torn_reads_total'");
	}
	$sql->run('INSERT INTO stop DEFAULT VALUES');
	my ($sets, $torn, $cached) = split /\|/, $reader->take;
	note("$sets sets, $cached of them from the cache; $found torn ones were found");
	is($torn, 0, 'no set is torn');
	cmp_ok($found, '>', 0, 'torn ones were found on the way');
	cmp_ok($cached, '>', 0, 'sets come from the cache, too');
	$_->close foreach $reader, $control;
};

subtest 'writers and readers that run freely' => sub {
	my @writers = map { FenceTest::Session->open($node) } 1 .. 2;
	my $patient = FenceTest::Session->open($node);
	my @names = fences(1, 20);
	my ($sets, $hits, $torn, %seen) = (0, 0, 0);

	$sql->run('UPDATE part SET n = 0; TRUNCATE stop; CREATE TABLE pace AS SELECT 0.03::float8 AS seconds');
	$sql->run(<<'SQL');
CREATE PROCEDURE write_on() LANGUAGE plpgsql AS $$
BEGIN
	WHILE NOT EXISTS (SELECT FROM stop) LOOP
		UPDATE part SET n = n + 1 FROM (SELECT id FROM part WHERE id <= 20 ORDER BY id FOR UPDATE) x WHERE part.id = x.id;
		COMMIT;
		PERFORM pg_sleep(random() * seconds) FROM pace;
	END LOOP;
END $$;
SQL
	$_->begin('CALL write_on()') foreach @writers;
	my $started = time();
	while (($sets < $SETS || $hits < $HITS) && time() < $started + $PATIENCE)
	{
		# as fast as this machine lets the readers be
		$sql->run('UPDATE pace SET seconds = ' . 4 * (time() - $started) / $sets) if $sets % 20 == 19;
		# SQL, with patience or without
		my $retries = $sets % 3;
		my ($different, $source) = split /\|/,
		  $patient->run("SELECT count(DISTINCT value->'n'), min(source) FROM fence.read_many(names(1, 20), $retries)");
		$seen{$source}++;
		$torn++ if $different != 1;
		# Redis
		my @answers = block($redis, @names);
		$sets++;
		next if grep { !$_ } @answers;
		$hits++;
		my %n = map { n_of($_->[2]) => 1 } @answers;
		$torn++ if keys %n != 1;
	}
	$sql->run('INSERT INTO stop DEFAULT VALUES');
	$_->take foreach @writers;
	note("$sets sets; $hits hits in Redis; SQL: " . join ', ', map { "$seen{$_} $_" } sort keys %seen);
	is($torn, 0, 'no set is torn');
	cmp_ok($hits, '>=', $HITS, 'hits, too');
	no_reservations($node);
	compare_fences($node, 'part');
};

subtest 'a replica of Redis' => sub {
	my $replica = FenceTest::Redis->start(config => [ 'replicaof 127.0.0.1 ' . $redis->port, 'repl-diskless-sync-delay 0' ]);
	my ($fence) = fences(7, 7);

	fill(7, 7);
	ok((block($redis, $fence))[0], 'at the master it is a hit');
	poll(sub { $replica->info('replication', 'master_link_status') eq 'up' }, 'the replica');
	$redis->call('WAIT', 1, 10_000);	# what the link had not carried yet
	is($replica->call('GET', $fence), $redis->call('GET', $fence), 'the replica has it');
	is((block($replica, $fence))[0], undef, '... and knows no token, so it is no hit');
	is($replica->call('FCALL_RO', 'fence_get', 1, $fence)->[0], 'unarmed', 'it answers no strong read');
	is($replica->call('FCALL_RO', 'fence_check', 1, $fence, split / /, $redis->call('GET', $fence) =~ s/^(\S+ \d+).*/$1/sr), '0', '... and confirms nothing');
	$replica->stop;
};

$node->stop;
done_testing();
