# What writers call in the library: reservations of rows and domains, their ends, stores, removals. (What the brackets mean:
# library/arming.pl.)

use strict;
use warnings;

use FenceTest;
use FenceTest::Library;
use Test::More;

subtest '[R1] a reservation deletes the fence, also a repeated one' => sub {
	fresh();
	fill($_, 5) foreach 'k', 'l';
	my $token = token();
	my $first = reserve('1.a', 'k', 'l');
	like($first, qr/^[1-9]\d*$/, 'granted, with a number');
	is(version_of($_), 'none', "$_ is deleted") foreach 'k', 'l';
	is(read_fast('k'), 'miss', 'the fast read finds nothing');
	# as if the first attempt had failed between the record and the deletion
	$redis->call('SET', f($_), "$token 5 \np5") foreach 'k', 'l';
	cmp_ok(reserve('1.a', 'k'), '>', $first, 'the same again: a number of its own');
	is(version_of('k'), 'none', '... deletes again');
	reserve('2.a', 'l');
	is(version_of('l'), 'none', 'so does another transaction');
	is(pendings(), '1.a 2, 2.a 1', 'each fence is recorded once for each');
	is(holders('l'), '1.a row, 2.a row', 'two have this one');
	is(ends(), ends() - 1, 'a message without fences or ends answers a number, too');
	ends('1.a');
	is(holders('l') . ' / ' . holders('k'), '2.a row / ', 'an end drops its own only');
	is(put('l', 5), 'refused pending', 'the other one still holds it');
	ends('2.a');
	is(pendings(), '', 'none is left');
	is(put('l', 5), 'stored', 'and a put is good again');
	reserve("$_.b", 'k') foreach 1 .. 5;
	is(holders('k'), join(', ', map { "$_.b row" } 1 .. 5), 'five at once');
	ends('3.b', '-1.b', '5.b');
	is(holders('k'), '2.b row, 4.b row', 'three end in one message');
	ends('2.b', '4.b');
	is(holders('k'), '', 'all');
	reserve($_, 'k') foreach 'n', 'm';
	ends('m');
	is(holders('k'), 'n row', 'any stamp is one');
	ends('n');
	is(pendings() . holders('k'), '', '... and ends');
};

subtest '[R2] ends may be late, repeated, lost, before their reservation' => sub {
	fresh();
	reserve('1.a', 'k');
	ends('1.a') foreach 1 .. 3;
	is(pendings(), '', 'repeated');
	my $permit = permit('k');
	ends('1.a', '-1.a', '=5 1.a', '2.a');
	is(put('k', 5, permit => $permit), 'stored', 'what has ended, or never was, ends nothing');
	ends('3.a');
	reserve('3.a', 'k');
	is(holders('k'), '3.a row', 'a reservation that comes after its end stays');
	is(put('k', 5), 'refused pending', '... a veto, until the patrol comes');
	ends('3.a');
	is(holders('k'), '', 'it has come');
	fcall('fence_write', 0, header(), '4.a', 1, f('k'), '4.a');
	is(holders('k'), '4.a row', 'in one message ends come before reservations');
	ends('=x 4.a', '=4.a', '=', '-', '', '=1 ');
	is(holders('k'), '4.a row', 'ends that are none');
	ends('=9999 4.a');
	is(holders('k'), '', 'a number from the future ends, too');
};

subtest 'what was known is forgotten when tables take turns: late, never a wrong store' => sub {
	# as many ends as the tables keep, and one more, twice
	my $library = FenceTest::Redis::library_source();
	$library =~ s/ENDS_KEPT = 10000/ENDS_KEPT = 10/ or die;
	local *FenceTest::Redis::library_source = sub { return $library; };
	fresh();
	my $permit = permit('k');
	my $since = reserve('1.a', 'k');
	ends('1.a');
	my $after = permit('k');
	foreach my $n (1 .. 30)
	{
		reserve("$n.b", "other$n");
		ends("$n.b");
		my ($early, $late) = map { put('k', 5, permit => $_) } $permit, $after;
		is($early, 'refused late', "after $n ends, a permit from before a write");
		is($late, $n < 20 ? 'stored' : 'refused late', '... one from after it, until it is too old to know') if $n < 10 || $n > 19;
	}
	is(put('k', 5), 'stored', 'a new one is good');
	$since = reserve('2.a', 'k');
	foreach my $n (1 .. 30) { reserve("$n.c", "other$n"); ends("$n.c"); }
	is(store('2.a', $since, 'k', 6), 0, 'nor is a row stored whose reservation is older than what is known');
	is(recent('k'), '', '... nor told as the newest');
	reserve('3.a', 'k');
	ends('=' . reserve('3.a', 'k') . ' 3.a');
	foreach my $n (1 .. 10) { reserve("$n.d", "other$n"); ends("$n.d"); }
	is(recent('k'), '3.a', 'who committed last is known for two turns');
	reserve('4.a', 'k');
	ends('4.a');
	is(recent('k'), '', '... but not what was before another commit');
};

subtest '[R3] [S5] a commit with the row is stored if its reservation proves it' => sub {
	my $begin = sub { fresh(); fill('k', 5); return reserve('1.a', 'k'); };
	my $since = $begin->();
	my $token = token();
	is(store('1.a', $since, 'k', 6, '1.a'), 1, 'stored');
	is($redis->call('GET', f('k')), "$token 6 1.a\np6", 'with its stamp');
	is(read_fast('k'), "hit 6 1.a\np6", 'a hit at once');
	ok(abs($redis->call('PTTL', f('k')) - $hour) < 60_000, 'ttl 0: the default');
	is(holders('k'), '', 'the reservation is over');
	is(recent('k'), '1.a', 'it is known who committed it');
	is(store('1.a', $since, 'k', 7), 0, 'again: its reservation is over');
	is(read_fast('k'), "hit 6 1.a\np6", '... changes nothing');
	is(fcall('fence_store', 0, header(), '2.a', 2, f('l'), reserve('2.a', 'l', 'm'), 1, 5000, 'l', f('m'), 1, 2, '', '', '2.a'),
		2, 'two rows, the second without its content');
	is(get('l') . ' ' . get('m') =~ s/ .*//r, "hit $token 1 2.a\nl miss", 'the first is there');
	cmp_ok($redis->call('PTTL', f('l')), '<=', 5000, '... with its ttl');
	is(pendings(), '', 'both are over');

	my %not = (
		'(a) the patrol has ended it' => sub { ends('1.a'); },
		'(b) the domain has another token' => sub { domain('reserve', '9.a'); domain('committed', '9.a'); },
		'(c) another one is pending' => sub { reserve('2.a', 'k'); },
		'another one has ended since' => sub { reserve('2.a', 'k'); ends('2.a'); },
		'... by a rollback' => sub { reserve('2.a', 'k'); ends('-2.a'); },
		'its fence was removed by the audit' => sub { $redis->call('SET', f('k'), 'x'); fcall('fence_remove', 1, f('k'), header(), 'x'); },
		'the process was armed anew' => sub { $epoch = next_epoch(); arm(); announce('1.t', 1); },
		'the attachment is over' => sub { domain('reserve', '9.a', 1); domain('committed', '9.a'); announce('1.t', 2); });
	foreach my $why (sort keys %not)
	{
		$since = $begin->();
		$not{$why}->();
		is(store('1.a', $since, 'k', 6), 0, "not stored: $why");
		is(version_of('k'), 'none', '... there is nothing');
		is(recent('k'), '', '... told');
		unlike(holders('k'), qr/1\.a/, '... and the reservation is over');
	}
	$begin->();
	is(store('1.a', 0, 'k', 6), 0, 'a number that proves nothing');
	$since = $begin->();
	domain('reserve', '9.a');
	is(store('1.a', $since, 'k', 6), 1, 'a pending reservation of the domain is no obstacle');
	is(read_fast('k'), 'closed', '... for nobody is told');
	# a row that comes when a reader has put in between, which nobody can while it is reserved
	$since = $begin->();
	is(put('k', 5), 'refused pending', 'readers cannot come between');
};

subtest '[R13] who committed what is newest is told only with proof' => sub {
	fresh();
	my $told = sub { my ($end) = @_; my $since = reserve('1.a', 'k'); ends($end =~ s/N/$since/r); return recent('k'); };
	is($told->('=N 1.a'), '1.a', 'a commit that names its number');
	is(read_fast('k'), 'miss', '... without its row');
	reserve('2.a', 'k');
	is(recent('k'), '', 'forgotten with the next reservation');
	ends('-2.a');
	is(recent('k'), '', '... also if that is rolled back');
	is($told->('1.a'), '', 'a commit without a number');
	is($told->('=0 1.a'), '', '... or with none');
	is($told->('-1.a'), '', 'a rollback');
	my $since = reserve('3.a', 'k');
	reserve('4.a', 'k');
	ends("=$since 3.a");
	is(recent('k'), '', 'another one was pending');
	ends("=$since 4.a");
	is(recent('k'), '', '... and has committed in between');
	is($told->('=N 1.a'), '1.a', 'one alone');
	domain('reserve', '5.a');
	is(recent('k'), '', 'not while the domain is pending');
	domain('aborted', '5.a');
	is(recent('k'), '1.a', '... which was rolled back');
	domain('reserve', '5.a');
	domain('committed', '5.a');
	is(recent('k'), '', 'forgotten with the token');
	$since = reserve('6.a', 'k', 'l');
	ends("=$since 6.a");
	is(recent($_), '6.a', "of several: $_") foreach 'k', 'l';
	$redis->call('SET', f('k'), token() . ' 9 ');
	fcall('fence_remove', 1, f('k'), header(), token());
	is(recent('k'), '', 'forgotten when the audit finds it wrong');
};

subtest 'remove: only what begins so, and what was read before is refused' => sub {
	fresh();
	fill('k', 5);
	my $permit = permit('k');
	my $remove = sub { return fcall('fence_remove', 1, f('k'), header(), $_[0]); };
	is($remove->(token() . ' 4 '), 0, 'another version');
	like(read_fast('k'), qr/^hit/, '... is left');
	is($remove->(token() . ' 5 '), 1, 'this one');
	is(read_fast('k'), 'miss', '... is removed');
	is(put('k', 5, permit => $permit), 'refused late', 'a reader of before');
	is(put('k', 5), 'stored', 'a reader of after');
	$redis->call('DEL', f('k'));
	is($remove->('x'), 0, 'nothing there');
};

subtest '[R7] reservations of domains' => sub {
	fresh();
	fill('k', 5);
	my $token = token();
	is(domain('reserve', $_), 1, "reserved by $_") foreach '1.a', '1.a', '2.a';
	is(pendings(), 'domain 1.t 1.a, domain 1.t 2.a', 'listed once each');
	is(read_fast('k'), 'closed', 'no token');
	is(get($_), 'pending', "holds every reader: $_") foreach 'k', 'never seen';
	domain('aborted', '1.a');
	is(get('k'), 'pending', 'one is rolled back, the other holds');
	domain('aborted', '2.a');
	is(read_fast('k'), "hit 5 \np5", 'nothing changed: the fence is served again');
	my %seen = ($token => 1);
	domain('committed', '1.a');
	is(token(), $token, '[6b] the end of what is not pending changes nothing');
	foreach my $round (1 .. 3)
	{
		my $permit = permit('k');
		domain('reserve', '1.a');
		is(token(), (split / /, $permit)[0], 'the reservation draws no token');
		domain('committed', '1.a') foreach 1, 2;
		ok(!$seen{ token() }++, "round $round: its end does, once");
		is(read_fast('k'), 'miss', 'nothing cached before is trusted');
		is(put('k', 5, permit => $permit), 'refused token', '[6c] nor what was read before');
		fill('k', 5 + $round);
	}
	reserve('3.a', 'k');
	domain('reserve', '4.a');
	domain('committed', '4.a');
	is(holders('k'), '3.a row', '[6a] reservations of rows live on');
	ends('3.a');
};

subtest 'reservations are no keys, and fences may go' => sub {
	fresh();
	fill('k', 5);
	reserve('1.a', 'k');
	foreach my $loss ([ 'DEL', f('k') ], ['FLUSHALL'], ['FLUSHDB'], [ 'SCRIPT', 'FLUSH' ])
	{
		$redis->call(@$loss);
		is(get('k'), 'pending', "after $loss->[0]");
	}
	ends('1.a');
	fill('k', 5);
	$redis->call('FLUSHALL');
	is(read_fast('k'), 'miss', 'a fence that is lost is a miss');
	is(get('k') =~ s/ .*//r, 'miss', '... also of the slow path');
};

done_testing();
