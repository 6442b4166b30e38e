# The rate at which the library lets readers fill in what is missing (src/redis/fills.lua, pgcache_fence.warm_rate). Fill leases
# without a rate are in library/reads.

use strict;
use warnings;

use FenceTest;
use FenceTest::Library;
use Test::More;

# The milliseconds that the answer of fence_get tells the reader to wait; 0: it may fill the fence in.
sub wait_of { my $answer = get($_[0]); return $answer =~ /^miss \S+ \d+(?: busy (\d+))?$/ ? $1 // 0 : $answer; }

subtest 'misses stand in line' => sub {
	fresh();
	renew(fill => 60_000, rate => 100);
	my $begin = clock();
	my @waits = map { wait_of("k$_") } 1 .. 300;
	my $spent = clock() - $begin;
	my @filling = grep { $waits[$_] == 0 } 0 .. $#waits;
	# what was not used in a tenth of a second, one that ends the line, and what came in during the loop
	cmp_ok(scalar @filling, '>=', 10, 'the first may fill');
	cmp_ok(scalar @filling, '<=', 12 + $spent / 10, '... as many as the rate allows: ' . @filling . " in $spent ms");
	my @placed = grep { $_ > 0 && $_ < 1000 } @waits;
	cmp_ok(scalar @placed, '>=', 90, 'then the line, of a second');
	is(join(' ', @placed), join(' ', sort { $a <=> $b } @placed), '... in which each waits longer than the one before') if $spent < 10;
	is((grep { $_ > 1000 } @waits), 0, 'nobody is told to wait for more than a second');
	cmp_ok(scalar(grep { $_ == 1000 } @waits), '>', 100, 'who finds the line full asks again in a second');
	like(get('k1'), qr/ busy /, 'the fill lease of one that may fill is as always');
	fill('k150', 5);
	like(get('k150'), qr/^hit /, 'who waits gets a value that somebody has put meanwhile');
	is(get('k1') =~ s/ .*//r, 'miss', 'the state of the key is told as always');
	reserve('1.a', 'k2');
	is(get('k2'), 'pending', '... so is a write');
	ends('1.a');
};

subtest 'turns come' => sub {
	fresh();
	renew(fill => 60_000, rate => 20);
	my %wait = map { $_ => wait_of("k$_") } 1 .. 12;
	my ($last) = grep { $wait{$_} > 100 } sort { $b <=> $a } keys %wait;
	ok($last, 'one waits') or return;
	my $before = clock();
	my ($asked, $told) = (0, 0);
	poll(sub { $asked++; $told = wait_of("k$last"); $told == 0 }, 'its turn');
	my $waited = clock() - $before;
	cmp_ok($waited, '>=', $wait{$last} - 60, "not before its time: $waited of $wait{$last} ms, although it asks $asked times");
	cmp_ok($waited, '<=', $wait{$last} + 500, '... and it does not stand in line again');
	cmp_ok(wait_of("k$last"), '>', 1000, 'now it has a fill lease like any other');
	reserve('1.a', "k$last");
	ends('1.a');
	cmp_ok(wait_of("k$last"), '<=', 1000, 'a write voids that');
};

# Readers of many keys ask again and again; as many as the rate allows may fill, in each second.
subtest 'the rate' => sub {
	fresh();
	renew(fill => 60_000, rate => 200);
	my ($begin, $n, %filled) = (clock(), 0);
	poll(
		sub {
			foreach (1 .. 100) { my $k = 'r' . $n++ % 2000; $filled{$k}++ if wait_of($k) eq '0'; }
			return clock() > $begin + 2500;
		},
		'some time');
	my $spent = clock() - $begin;
	my $fills = 0;
	$fills += $_ foreach values %filled;
	cmp_ok($fills, '<=', 200 * ($spent + 100) / 1000 + 2, "no faster: $fills in $spent ms");
	# places of readers that come too late, or not at all, are lost
	cmp_ok($fills, '>=', 0.5 * 200 * $spent / 1000, '... and not much slower');
	renew(fill => 60_000, rate => 0);
	is(wait_of("new$_"), 0, 'turned off') foreach 1 .. 30;
	renew(fill => 0, rate => 1);
	is(wait_of("off$_"), 0, 'without fill leases nobody waits') foreach 1 .. 5;
};

subtest 'closed buckets' => sub {
	fresh();
	$epoch = next_epoch();
	arm(settings => "$hour 60000 1000 0 64 20");
	announce('1.t', 1);
	my @waits = map { wait_of("k$_") } 1 .. 40;
	cmp_ok(scalar(grep { $_ > 0 } @waits), '>=', 30, 'misses stand in line there too, although no put is possible yet');
	my ($placed) = grep { $waits[ $_ - 1 ] > 0 && $waits[ $_ - 1 ] < 1000 } reverse 1 .. 40;
	cmp_ok(wait_of("k$placed"), '<=', $waits[ $placed - 1 ], '... and keep their place') foreach 1 .. 3;

	# Without a rate: one reader goes on, which has the bucket opened.
	renew(fill => 60_000, rate => 0);
	my ($n, $first, $wait) = (0, 0, 0);
	# on a busy machine the second call may come too late
	poll(sub { $first = wait_of('first' . ++$n); $wait = wait_of("first$n"); return $first > 0 || $wait > 0 }, 'a reader that waits');
	is($first, 0, 'the first reader waits for nobody');
	cmp_ok($wait, '<=', 20, 'the others wait for the opening of the bucket');
	poll(sub { wait_of("first$n") == 0 }, 'the wait to end');
	is(wait_of("first$n"), 0, '... once: if it does not open, they read PostgreSQL') foreach 1 .. 3;
	is(wait_of('second'), 0, 'another fence');
	my $open = sub { return $redis->call(qw(FCALL fence_open 0), "n $epoch", 0, 0, $_[0]); };
	$open->('');
	is($open->('')->[3], '', 'what is wanted is told once');
	fcall('fence_newest', 1, f('second'));
	isnt($open->('')->[3], '', 'a standby wants the bucket, too');
	is($open->(join ',', 0 .. 63)->[0], 'opened', 'the buckets open');
	is(wait_of('second'), 0, 'then a reader can put at once');
	cmp_ok(wait_of('second'), '>', 1000, 'and others wait for that');
};

subtest 'settings' => sub {
	fresh();
	like(refuses('fence_arm', 1, 'n:heartbeat:{h}', $identity, next_epoch(), clock() + $hour, '', 'cluster', 3, 'run', "$hour 0 1000 0 0 $_"),
		qr/malformed/, "rate '$_'") foreach 'x', '-1', '1.5', '99999999999999999';
	$epoch = next_epoch();
	like(arm(settings => "$hour 0 1000 0"), qr/^armed/, 'none');
	announce('1.t', 1);
	my $before = function_memory();
	renew(fill => 100, rate => 10);
	wait_of("m$_") foreach 1 .. 20_000;
	my $most = function_memory();
	cmp_ok($most, '>', $before + 1000, 'who waits is remembered');
	poll(sub { renew(fill => 100, rate => 10); function_memory() < $before + ($most - $before) / 4 + 200 }, 'heartbeats to forget who has waited');
	pass('memory is given back');
};

done_testing();
