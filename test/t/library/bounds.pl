# What one caller can cost all others: bounds of the time to live, of the work of one call, of what ended domains leave behind.

use strict;
use warnings;

use FenceTest;
use FenceTest::Library;
use Test::More;
use Time::HiRes qw(time);

my $month = 30 * 86_400_000;
my $forever = 999_999_999_999_999;
my @all = (0 .. 63);

sub with_buckets
{
	fresh();
	$epoch = next_epoch();
	like(arm(settings => ($_[0] // $hour) . ' 0 1000 0 64 0'), qr/^armed/, 'armed with buckets');
	announce('1.t', 1);
	is(turn(0, @all)->[0], 'opened', 'all buckets are open');
	return;
}

sub turn { my ($turn, @open) = @_; return $redis->call(qw(FCALL fence_open 0), "n $epoch", $turn, 0, join ',', @open); }
sub lives { my ($name) = @_; return $redis->call('PTTL', $name); }

subtest 'the time to live' => sub {
	with_buckets();
	put('a', 5, ttl => $forever);
	put('b', 5, ttl => $forever, suffix => 'x');
	$redis->call('SET', v('c', 'side'), token() . " 5 {c}\nside");
	is(put_from('c', 5, ttl => $forever), 'stored', 'a large one');
	my $since = reserve('1.a', 'd');
	fcall('fence_store', 0, header(), '1.a', 1, f('d'), $since, 6, $forever, 'p', '1.a');
	foreach my $name (f('a'), f('b'), v('b', 'x'), f('c'), f('d'))
	{
		cmp_ok(lives($name), '<=', $month, "$name is cut");
		cmp_ok(lives($name), '>', $month - 600_000, '... and no shorter than need be');
	}
	put('e', 5, ttl => $month - 1);
	cmp_ok(lives(f('e')), '>', $hour, 'what is shorter is not');
	with_buckets(2 * $month);
	put('a', 5);
	put('b', 5, ttl => $forever);
	cmp_ok(lives(f($_)), '>', 2 * $month - 600_000, 'nor what is no longer than the default') foreach 'a', 'b';
	cmp_ok(lives(f('b')), '<=', 2 * $month, '... which is the bound then');
};

subtest 'one long life keeps one turn' => sub {
	my $left = sub { return join ' ', sort split /,/, turn($_[0])->[1]; };
	with_buckets();
	put('a', 5, ttl => 400);
	is(turn(0)->[2], 400, 'the longest life of the turn');
	put('b', 5, ttl => $forever);
	is(turn(0)->[2], $month, '... is cut, too');
	is($left->(1), '0', 'something of the former turn is left');
	is(turn(1, @all)->[2], 0, 'nothing of the present one');
	put('a', 5, ttl => 400);
	is($left->(2), '0 1', 'something of both is left');
	poll(sub { $left->(2) eq '0' }, 'the end of the second');
	turn(2, @all);
	put('c', 5, ttl => 1);
	poll(sub { $left->(3) eq '0' }, 'the end of the third');
	is(answer('fence_get', 1, f('b')), 'hit ' . token() . " 5 {b}\np5", 'the long one is still there');
	$redis->call('PEXPIRE', f('b'), 1);
	is($left->(3), '0', 'Redis goes by what it has promised');
};

subtest 'the work of one call' => sub {
	fresh();
	fill('k', 5);
	like(refuses('fence_token', 1001, map { f($_) } 1 .. 1001), qr/expected 1 to 1000/, 'tokens');
	is(scalar @{ fcall('fence_token', 1000, map { f($_) } 1 .. 1000) }, 1000, '... of a thousand');
	my $name = derived('result', 'k');
	is(answer('fence_get_derived', 1, $name), 'hit result', 'a derived value');
	my $large = 8_000_000;
	foreach my $record ("\n\n" . ' ' x $large, 'x' x $large, ('x' x $large) . "\n\nx", ('x' x $large) . " y 1\n\nx",
		join('', map { f('k') . " $_ 5\n" } 1 .. 10_000) . "\nx", ('xyz ' x ($large / 4)) . "\n\nx", "\n\nx", "\nx", "\n", '')
	{
		$redis->call('SET', $name, $record);
		$redis->call(qw(CONFIG RESETSTAT));
		is(answer('fence_get_derived', 1, $name), 'miss', substr($record, 0, 10) =~ s/\n/~/gr . '...: a miss');
		my ($usec) = $redis->call('INFO', 'commandstats') =~ /cmdstat_fcall:calls=1,usec=(\d+)/;
		cmp_ok($usec, '<', 50_000, "... in $usec microseconds");
	}
};

subtest 'the sweep' => sub {
	with_buckets();
	my $sweep = sub { return answer('fence_sweep', 0, header(), map { f($_) } @_); };
	fill($_, 5) foreach 'a', 'b';
	is($sweep->('a', 'b', 'c'), '0 ', 'removes nothing in open buckets');
	turn(1);
	$redis->call('SET', f('c'), 'dead 5 ' . "\nx");
	$redis->call('RPUSH', f('d'), 'x');
	is($sweep->('c', 'd', 'e'), '0 ', 'nor what is under no live token');
	is($redis->call('EXISTS', f('c'), f('d')), 2, '... which stays');
	is($sweep->('a', 'c', 'b'), '2 ' . f('b'), 'but what is in closed ones under a live token');
	is($redis->call('EXISTS', f('a'), f('b')), 0, '... is gone');
	is(answer('fence_sweep', 0, 'n 9-1', f('a')), '0 ', 'nothing in another epoch');
	is(answer('fence_sweep', 0, header(), 'x', '', 'n:f:no:{k}', "\0", 'm:f:1.t:{k}'), '0 ', 'nor what is no fence');
	like(refuses('fence_sweep', 0, @$_), qr/expected header and 1 to 1000 fences/, 'malformed') foreach [], [ header() ],
	  [ header(), map { f($_) } 1 .. 1001 ];
	fresh();
	fill('a', 5);
	is($sweep->('a'), '0 ', 'nor without buckets');
};

subtest 'domains that have ended' => sub {
	fresh();
	my $come_and_go = sub {
		my ($id) = @_;
		fcall('fence_domain_reserve', 0, header(), "1.d$id", 's', 0);
		fcall('fence_domain_end', 0, header(), "1.d$id", 's', 'committed');
		announce("1.d$id", $id);
		fcall('fence_domain_reserve', 0, header(), "1.d$id", 's', $id);
		fcall('fence_domain_end', 0, header(), "1.d$id", 's', 'committed');
	};

	announce('2.other', 5);
	$come_and_go->($_) foreach 10 .. 3000;
	$redis->call('FCALL', 'fence_renew', 0, 'n:heartbeat:{h}', $identity, $epoch, clock() + $hour, settings()) foreach 1 .. 20;
	my $before = function_memory();
	$come_and_go->($_) foreach 3001 .. 9000;
	$redis->call('FCALL', 'fence_renew', 0, 'n:heartbeat:{h}', $identity, $epoch, clock() + $hour, settings()) foreach 1 .. 20;
	cmp_ok(function_memory() - $before, '<', 1000, 'leave nothing behind');
	is(announce("1.d$_", $_), 'announced 1', "a late announcement of $_ has no effect") foreach 10, 5000, 8500, 9000;
	is(fcall('fence_token', 1, "n:f:1.d$_:{k}"), '', '... nobody reads it') foreach 10, 9000;
	is(announce('1.d9000', 9001), 'announced 0', 'a new attachment of that name');
	isnt(fcall('fence_token', 1, 'n:f:1.d9000:{k}'), '', '... is served');
	is(announce('1.d10', 9002), 'announced 0', 'one of a name that was forgotten');
	isnt(fcall('fence_token', 1, 'n:f:1.d10:{k}'), '', '... is served');
	is(announce('2.late', 3), 'announced 0', 'other databases have numbers of their own');
	isnt(fcall('fence_token', 1, 'n:f:2.other:{k}'), '', '... and their domains are served');
	fcall('fence_domain_end', 0, header(), '1.never', 's', 'committed');
	$redis->call('FCALL', 'fence_announce', 0, 'n', $epoch, '1.d10', 9002, 'withdrawn', 0);
	is(fcall('fence_token', 1, 'n:f:1.d10:{k}'), '', 'one that is withdrawn is not served');
	is(announce('1.d10', 9002), 'announced 0', '... until it is announced again');
	isnt(fcall('fence_token', 1, 'n:f:1.d10:{k}'), '', '... which counts');
	put($_, 5) foreach 'k';
	domain('reserve', 's', 1);
	my $token = token();
	domain('committed', 's');
	is(read_fast('k'), 'closed', 'what ends is not served');
	announce('1.t', 9100);
	is(read_fast('k'), 'miss', 'nor is a fence of before, when its name is attached again');
};

# Redis' own figure, with garbage.
sub memory_in_use { return $redis->info('memory', 'used_memory_vm_functions') / 1024; }

sub heartbeats
{
	my ($n, $settings) = @_;

	$redis->call('FCALL', 'fence_renew', 0, 'n:heartbeat:{h}', $identity, $epoch, clock() + $hour, $settings) foreach 1 .. $n;
	return;
}

# Writers, readers and the opening of buckets, each with names of its own.
sub mixed_load
{
	my ($from, $to, $name, $settings) = @_;
	my ($connection, $before) = ($redis->connection, '');

	foreach my $i ($from .. $to)
	{
		my $fence = f("$name$i");
		$connection->send('FCALL', 'fence_write', 0, header(), "$i.a", 1, $fence, $before ? ("=1 $before") : ());
		$connection->send('FCALL', 'fence_get', 1, $fence);
		$connection->send('FCALL_RO', 'fence_token', 1, $fence);
		$connection->send('FCALL', 'fence_open', 0, "n $epoch", 0, 0, $i * 31 % 65536);
		$before = "$i.a";
		next if $i % 25;
		$connection->reply foreach 1 .. 100;
		heartbeats(1, $settings) if $i % 5000 == 0;
	}
	return;
}

subtest 'a mixed load of ever new keys' => sub {
	my $settings = "$hour 100 1000 0 65536 0";
	# the tables that are kept of 20,000 rows are full after as many; of long names, much earlier
	foreach my $case ([ 'usual names', 'k' x 20, 30_000, 8_000 ], [ 'long names', 'k' x 3_900, 6_000, 15_000 ])
	{
		my ($what, $name, $n, $most) = @$case;
		fresh();
		$epoch = next_epoch();
		like(arm(settings => $settings), qr/^armed/, 'armed');
		announce('1.t', 1);
		mixed_load(1, $n, $name, $settings);
		my $full = function_memory();
		mixed_load($n + 1, 2 * $n, $name, $settings);
		my $kept = function_memory();
		note("$what: $full kB after $n keys, $kept kB after twice as many");
		cmp_ok($kept, '<', $full + 1_000, "$what: what is kept levels off");
		cmp_ok($kept, '<', $most, '... and is little');
	}
};

subtest 'garbage' => sub {
	my $settings = "$hour 100 1000 0 65536 0";

	fresh();
	$epoch = next_epoch();
	arm(settings => $settings);
	announce('1.t', 1);
	foreach my $i (1 .. 40)
	{
		fcall('fence_write', 0, header(), '1.a', 1000, map { f("a_key_of_usual_length_$i.$_") } 1 .. 1000);
	}
	ends('1.a');
	heartbeats(60, $settings);
	my $with = memory_in_use();
	my $without = function_memory();
	note("$with kB with garbage, $without kB without");
	cmp_ok($with, '<', 1.5 * $without + 2_000, 'what a large transaction leaves behind is collected by heartbeats');
};

done_testing();
