# Several plain URLs: independent servers that divide the slots. One that is away takes only its own part with it.

use strict;
use warnings;

use FenceTest;
use FenceTest::Router;
use FenceTest::Session;
use Test::More;
use Time::HiRes qw(time);

my $KEYS = 300;
my @servers = map { FenceTest::Redis->start } 1 .. 3;
my $router = FenceTest::Router->new(sub { return $servers[ int($_[0] * @servers / 16384) ]; });
my $node = new_postgres('shards', undef, redis_url => join(', ', map { $_->url } @servers), timeout => '500ms');
my $sql = FenceTest::Session->open($node);

sub state_of { my ($field) = @_; return $sql->run("SELECT $field FROM fence.state"); }
sub epoch_number { return (split /-/, state_of('epoch'))[0]; }
sub bypassed { return state_of('bypassed_transactions'); }

# How many slots each server was granted, in the order of the URL.
sub granted { return $sql->run("SELECT string_agg(slots::text, ' ' ORDER BY n) FROM (SELECT row_number() OVER () AS n, slots FROM fence.nodes) x"); }

# Which shard holds a key of item, from 0.
sub shard { return "fence.key_slot(fence.fence_key('item', id::text)) * 3 / 16384"; }

sub wait_granted
{
	my ($wanted, $what) = @_;
	my $begin = time();
	my $reached = eval {
		poll(sub { granted() eq $wanted && state_of('state') eq 'OPEN' }, $what, 60);
		poll(sub { $sql->run("SELECT count(*) FROM item WHERE (fence.get('item', id::text)).status IN ('unarmed', 'unavailable')") ==
					($wanted =~ /\b0\b/ ? $sql->run('SELECT count(*) FROM item WHERE ' . shard() . ' = 1') : 0) }, 'the announcement');
	};

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok($reached, $what) or diag(granted() . ': ' . state_of('state, reason'));
	return time() - $begin;
}

sub compare { return FenceTest::Comparison->new($node, redis => $router); }

# Whether every key of shards is a hit once it has been read. A heartbeat that is late on a loaded machine explains a miss.
sub all_hits
{
	my ($where) = @_;

	return eval {
		poll(sub {
			$sql->run("SELECT count(fence.read('item', id::text)) FROM item WHERE $where");
			return $sql->run("SELECT bool_and((fence.get('item', id::text)).status = 'hit') FROM item WHERE $where") eq 't';
		}, 'hits', 30);
	};
}

my $all = '5462 5461 5461';
$sql->run("CREATE TABLE item (id int PRIMARY KEY, n int NOT NULL DEFAULT 0, version bigint NOT NULL DEFAULT 0)");
$sql->run("INSERT INTO item SELECT g FROM generate_series(1, $KEYS) g; SELECT fence.attach('item')");
wait_granted($all, 'every shard was granted its part');
is($sql->run('SELECT count(DISTINCT ' . shard() . ') FROM item'), 3, 'there are keys in each');

subtest 'statements over all shards' => sub {
	my $compare = compare();

	$compare->holds($_, $_) foreach 'UPDATE item SET n = n + 1', 'DELETE FROM item WHERE id % 7 = 0',
	  'INSERT INTO item SELECT g FROM generate_series(7, 70, 7) g', 'BEGIN; UPDATE item SET n = 2; ROLLBACK',
	  'SET pgcache_fence.bulk_threshold = 10; UPDATE item SET n = 4; RESET pgcache_fence.bulk_threshold', 'TRUNCATE item';
	$sql->run("INSERT INTO item SELECT g FROM generate_series(1, $KEYS) g");
	ok(all_hits('true'), 'all are hits again');
	is(bypassed(), 0, 'nothing was committed without a reservation');
};

# Which shard answers is each server's own arithmetic (fence.lua): it has to agree with ours.
subtest 'each answers in its slots and in no others' => sub {
	my ($wrong, $ns) = (0, $sql->run("SELECT current_setting('pgcache_fence.namespace')"));
	my %answers;

	foreach my $line (split /\n/,
		$sql->run("SELECT fence.fence_key('item', id::text), " . shard() . ' FROM item'))
	{
		my ($fence, $shard) = split /\|/, $line;
		foreach my $i (0 .. 2)
		{
			my $answer = $servers[$i]->call(qw(FCALL_RO fence_get 1), $fence)->[0];
			$answers{$answer}++;
			$wrong++ if ($i == $shard) != ($answer eq 'hit');
			$wrong++ if (strong_read($servers[$i], $fence))[0] ne ($i == $shard ? 'hit' : 'unarmed');
			my ($status, $permit) = @{ $servers[$i]->call(qw(FCALL_RO fence_status 1), $fence) };
			my ($token) = split / /, $permit;
			$wrong++ if $i != $shard && ($status ne 'unarmed'
				|| $servers[$i]->call(qw(FCALL_RO fence_check 1), $fence, $token, 1) ne '0'
				|| $servers[$i]->call(qw(FCALL fence_put 1), $fence, $permit, row_version($permit, 9), 'x', 0) ne 'refused unarmed'
				|| $servers[$i]->call(qw(FCALL fence_write 0), "$ns " . state_of('epoch'), '1.a', 1, $fence) ne '0');
		}
	}
	is($wrong, 0, join ', ', map { "$_ $answers{$_}" } sort keys %answers);
	no_reservations($node);
};

subtest 'one is killed' => sub {
	my $epoch = epoch_number();
	my $before = bypassed();

	$servers[1]->kill9;
	my $begin = time();
	$sql->run('UPDATE item SET n = n + 1');
	note(sprintf 'the first write took %.1f s', time() - $begin);
	note(sprintf 'the others were open again after %.1f s more', wait_granted('5462 0 5461', 'the others go on'));
	like(state_of('reason'), qr/without a process for some slots: .*(?:refused|closed the connection)/, 'and the state tells why');
	cmp_ok(epoch_number(), '>', $epoch, 'in a new epoch');
	is($sql->run('SELECT error IS NOT NULL, slots FROM fence.nodes OFFSET 1 LIMIT 1'), 't|0', 'so do the nodes');
	$before = bypassed();
	$sql->run("UPDATE item SET n = n + 1 WHERE id = $_") foreach 1 .. 50;
	$sql->run('UPDATE item SET n = n + 1');
	$sql->run('SET pgcache_fence.bulk_threshold = 10; UPDATE item SET n = n + 1; RESET pgcache_fence.bulk_threshold');
	is(bypassed(), $before, 'writes to all parts need no bypass');
	ok(all_hits(shard() . ' <> 1'), 'what the others hold is served');
	is($sql->run("SELECT count(*) FROM item WHERE fence.read('item', id::text) ->> 'n' <> n::text"), 0, 'all is read right');
	is($sql->run("SELECT string_agg(relation || ' ' || (count > 0), ', ') FROM fence.audit('item') WHERE count > 0"),
		'equal true, missing true', 'the audit passes over what nobody holds');
	is($sql->run("SELECT fence.repair('item', id::text) FROM item WHERE " . shard() . ' = 1 LIMIT 1'), 'unchanged', 'and so does repair');
	no_reservations($node);
};

subtest 'it is back' => sub {
	my $kept = 0;

	# on a machine that is too busy for a heartbeat another epoch may begin
	for (1 .. 3)
	{
		my $epoch = epoch_number();

		ok(all_hits(shard() . ' <> 1'), 'what the others hold is cached');
		$servers[1]->restart;
		note(sprintf 'it was granted its part after %.1f s', wait_granted($all, 'every shard is granted its part'));
		$kept = epoch_number() == $epoch;
		last if $kept;
		$servers[1]->kill9;
		wait_granted('5462 0 5461', 'once more: the others go on');
	}
	ok($kept, 'in the same epoch');
	is($sql->run('SELECT count(*) FROM item WHERE ' . shard() . " <> 1 AND (fence.get('item', id::text)).status <> 'hit'"), 0,
		'what the others hold has stayed cached');
	ok(all_hits('true'), 'all are served');
	is(join("\n", compare()->anomalies), '', 'fences agree with their rows');
};

subtest 'one hangs' => sub {
	my @others = map { FenceTest::Session->open($node) } 1 .. 3;
	my @slowest = (0) x 3;

	$servers[2]->pause;
	# each writes to one shard only
	my $end = time() + 8;
	while (time() < $end)
	{
		foreach my $i (0 .. 2)
		{
			my $begin = time();
			$others[$i]->run("UPDATE item SET n = n + 1 WHERE id = (SELECT min(id) FROM item WHERE " . shard() . " = $i)");
			$slowest[$i] = time() - $begin if time() - $begin > $slowest[$i];
		}
	}
	note(sprintf 'the slowest writes, by shard: %.1f %.1f %.1f s', @slowest);
	is(granted(), '5462 5461 0', 'it has no part in the epoch');
	is(state_of('state'), 'OPEN', 'and the others go on');
	ok(all_hits(shard() . ' <> 2'), 'and are served');
	$sql->run('UPDATE item SET n = n + 1');
	$servers[2]->resume;
	wait_granted($all, 'it is back');
	is($sql->run("SELECT count(*) FROM item WHERE fence.read('item', id::text) ->> 'n' <> n::text"), 0, 'nothing stale');
	no_reservations($node);
	is(join("\n", compare()->anomalies), '', 'fences agree with their rows');
};

subtest 'all are away' => sub {
	$_->kill9 foreach @servers;
	poll(sub { state_of('state') eq 'CLOSED' }, 'CLOSED');
	$sql->run('UPDATE item SET n = n + 1');
	is($sql->run("SELECT status FROM fence.get('item', '1')"), 'unavailable', 'readers are told');
	$_->restart foreach @servers;
	wait_granted($all, 'all are back');
};

subtest 'a reservation is listed and settled where it is' => sub {
	my $writer = FenceTest::Session->open($node);

	$writer->run('BEGIN; UPDATE item SET n = n + 1 WHERE id <= 100');
	poll(sub { $sql->run('SELECT sum(fences) FROM fence.pending') eq '100' }, 'every reservation is listed');
	$sql->run('SELECT pg_terminate_backend(' . $writer->pid . ')');
	no_reservations($node);
	is(join("\n", compare()->anomalies), '', 'fences agree with their rows');
};

# It would be granted the slots of one of them only.
subtest 'one server under two names' => sub {
	my $port = $servers[0]->port;

	$node->append_conf('postgresql.conf', "pgcache_fence.redis_url = 'redis://127.0.0.1:$port, redis://127.1:$port'");
	$node->reload;
	poll(sub { state_of('reason') eq 'two addresses of pgcache_fence.redis_url are one Redis process' }, 'the reason');
	is(state_of('state'), 'CLOSED', 'CLOSED');
	$node->append_conf('postgresql.conf', "pgcache_fence.redis_url = '" . join(', ', map { $_->url } @servers) . "'");
	$node->reload;
	wait_granted($all, 'the URL is right again');
};

done_testing();
