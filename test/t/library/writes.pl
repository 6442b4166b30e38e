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
	$redis->call('SET', f($_), "$token 5 {$_}\np5") foreach 'k', 'l';
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

subtest 'an echo names the call that a reply belongs to' => sub {
	fresh();
	my $number = fcall('fence_write', 0, header(), '1.a', '1#07', f('k'));
	is($number % 100, 7, 'a reservation');
	is(fcall('fence_write', 0, header(), '', '0#99', '1.a'), (int($number / 100) + 2) * 100 + 99, '... with its number; an end');
	is(holders('k'), '', '... which has ended it');
	is(fcall('fence_write', 0, header(), '5.a', 1, f('k'), '#08', '5.a') % 100, 8, 'behind the fences');
	is(holders('k'), '5.a row', '... a reservation');
	ends('5.a');
	is(fcall('fence_write', 0, 'n 1-none', '2.a', '1#42', f('k')), 42, 'one that is not granted');
	is(fcall('fence_store', 0, header(), '1.a', 1, f('k'), 1, 6, 0, 'p', '#00'), 100, 'a row that is not stored');
	is(fcall('fence_domain_reserve', 0, header(), '1.t', '3.a', 0, '#01'), 101, 'a domain');
	is(fcall('fence_domain_end', 0, header(), '1.t', '3.a', 'aborted', '#10'), 110, '... and its end');
	is(answer('fence_announce', 0, 'n', 'none', '1.t', 7, 'none', 0, '#33'), 'unarmed #33', 'an array ends with it');
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
	ends('=' . reserve('5.a', 'k') . ' 5.a');
	reserve('6.a', 'k');
	foreach my $n (1 .. 10) { reserve("$n.e", "other$n"); ends("$n.e"); }
	ends('6.a');
	is(recent('k'), '', '... even if the tables take turns while that one is pending');
	foreach my $turned (0, 1)
	{
		my $at = reserve('7.a', 'k');
		ends("=$at 7.a");
		if ($turned) { foreach my $n (1 .. 9) { reserve("$n.d", "other$n"); ends("$n.d"); } }
		is(recent('k'), '7.a', 'known again');
		reserve('8.a', 'l');
		fcall('fence_write', 0, header(), '9.a', 1, f('k'), '8.a');
		ends('9.a');
		is(recent('k'), '', '... but not what was before one that another transaction made room for');
	}
};

subtest 'one transaction ends in the message that reserves a row for another' => sub {
	fresh();
	my $permit = permit('k');
	reserve('1.a', 'k');
	is(fcall('fence_write', 0, header(), '2.a', '1#42', f('l'), '1.a') % 100, 42, 'granted, with the echo');
	is(holders('k') . '|' . holders('l'), '|2.a row', 'one for one');
	is(put('k', 5, permit => $permit), 'refused late', 'its end is noted');
	reserve('3.a', 'm');
	fcall('fence_write', 0, header(), '3.a', 1, f('n'), '2.a');
	ends('3.a');
	is(holders('m') . '|' . holders('n'), '|', 'the row was the second of its transaction: both have ended');
};

subtest '[R3] [S5] a commit with the row is stored if its reservation proves it' => sub {
	my $begin = sub { fresh(); fill('k', 5); return reserve('1.a', 'k'); };
	my $since = $begin->();
	my $token = token();
	is(store('1.a', $since, 'k', 6, '1.a'), 1, 'stored');
	is($redis->call('GET', f('k')), "$token 6 1.a {k}\np6", 'with its stamp');
	is(read_fast('k'), "hit 6 1.a {k}\np6", 'a hit at once');
	ok(abs($redis->call('PTTL', f('k')) - $hour) < 60_000, 'ttl 0: the default');
	is(holders('k'), '', 'the reservation is over');
	is(recent('k'), '1.a', 'it is known who committed it');
	is(store('1.a', $since, 'k', 7), 0, 'again: its reservation is over');
	is(read_fast('k'), "hit 6 1.a {k}\np6", '... changes nothing');
	is(fcall('fence_store', 0, header(), '2.a', 2, f('l'), reserve('2.a', 'l', 'm'), 1, 5000, 'l', f('m'), 1, 2, '', '', '2.a'),
		2, 'two rows, the second without its content');
	is(get('l') . ' ' . get('m') =~ s/ .*//r, "hit $token 1 2.a {l}\nl miss", 'the first is there');
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
	is(read_fast('k'), "hit 5 {k}\np5", 'nothing changed: the fence is served again');
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

# What a reader on a standby is told: the position, and who committed last
sub newest { my @told = @{ fcall('fence_newest', 1, f($_[0] // 'k')) }; return @told > 1 ? "$told[3]|$told[5]" : $told[0]; }
sub mark { return answer('fence_mark', 0, header(), $_[0] // 0, $_[1] // '', 7); }

subtest 'marks, for standbys' => sub {
	fresh();
	is(newest(), '|', 'no mark yet');
	my ($n) = mark() =~ /^marked (\d+)$/;
	is(mark($n, '0/A'), "marked $n", 'a mark');
	is(newest(), '0/A|', '... is told');
	is_deeply([ @{ fcall('fence_newest', 1, f('k')) }[ 0 .. 2 ] ], [ 'cluster', 3, permit('k') ], '... with owner, timeline and permit');

	reserve('1.a', 'k');
	is(newest(), 'nothing', 'not while the row is pending');
	is(newest('j'), '0/A|', '... of others');
	ends('1.a');
	is(newest(), '|', 'the mark is older than the end');
	my ($later) = mark() =~ /(\d+)/;
	mark($later, '0/B');
	is(newest(), '0/B|', 'the next is not');
	is(newest('j'), '0/A|', '... and the older one is good enough for others');
	mark($n, '0/C');
	is(newest('j'), '0/A|', 'a mark that is older than the last comes too late');
	mark($later + 1000, '0/D');
	is(newest(), '0/B|', 'a number that was not drawn yet counts for nothing');
	ends('=' . reserve('2.a', 'j') . ' 2.a');
	is(newest('j'), '|2.a', 'who committed last');

	domain('reserve', '3.a');
	is(newest('l'), 'nothing', 'not while the domain is pending');
	domain('committed', '3.a');
	is(newest('l'), '|', 'the token is younger than the marks');
	is(newest(), '|', '... of all rows');
	my ($new) = mark() =~ /(\d+)/;
	mark($new, '0/E');
	is(newest(), '0/E|', 'a mark under the new token');

	# one row is written between two marks: however many they are, the first of those after it stays
	foreach my $i (1 .. 1000)
	{
		reserve("4.$i", 'm');
		ends("4.$i");
		my ($number) = mark() =~ /(\d+)/;
		mark($number, "1/$i");
		reserve('5.a', 'q'), ends('5.a') if $i == 900;
	}
	like(newest(), qr{^1/\d\d\|$}, 'of the oldest of very many some are kept');
	is(newest('m'), '1/1000|', '... and the last');
	like(newest('q'), qr{^1/9[01]\d\|$}, '... and one soon after any');
	disarm();
	is(newest(), 'nothing', 'not without a lease');
	arm();
	like(newest(), qr{^1/\d\d\|$}, 'armed again in the same epoch');
	my $old = $epoch;
	$epoch = next_epoch();
	arm();
	announce('1.t', 1);
	is(newest(), '|', 'a new epoch has no mark');
	is(answer('fence_mark', 0, "n $old", 1, '0/F', 7), 'unarmed', '... and takes none of an old one');
};

done_testing();
