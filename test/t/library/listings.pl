# Many reservations in the library: what a process keeps of them, how they are listed and aged; and the counts.

use strict;
use warnings;

use FenceTest;
use FenceTest::Library;
use Test::More;

sub reserve_many { my ($stamp, $first, $n) = @_; return reserve($stamp, map { "many$_" } $first .. $first + $n - 1); }

subtest 'more reservations than a process keeps: the domain as a whole' => sub {
	fresh();
	announce('1.u', 1);
	fill('k', 5);
	my $before = function_memory();
	reserve_many('1.a', $_ * 1000, 1000) foreach 0 .. 99;
	like(read_fast('k'), qr/^hit/, 'so many are kept');
	like(reserve_many('2.a', 100_000, 999), qr/^[1-9]/, 'more are granted');
	like(reserve_many('3.a', 101_000, 2), qr/^[1-9]/, '... a few for each domain');
	is(read_fast('k'), 'closed', 'then the domain as a whole');
	is(pendings(), '1.a 100000, 2.a 999, 3.a 1, domain 1.t 3.a', 'one reservation of it');
	my $full = function_memory();
	reserve_many('4.a', 102_000 + $_ * 1000, 1000) foreach 0 .. 50;
	cmp_ok(function_memory(), '<', 1.2 * $full, 'memory is bounded');
	like(fcall('fence_write', 0, header(), '5.a', 1, 'n:f:1.u:{k}'), qr/^[1-9]/, 'a domain that has few keeps rows');
	unlike(pendings(), qr/domain 1\.u/, '... and is not reserved');
	my $permit = fcall('fence_status', 1, f('k'))->[1];
	ends('3.a');
	is(pendings(), '1.a 100000, 2.a 999, 5.a 1, domain 1.t 4.a', 'the end of a transaction ends both kinds');
	is(put('k', 9, permit => $permit), 'refused token', 'a commit draws a new token');
	my $token = token();
	ends('-4.a');
	is(token(), $token, 'a rollback does not');
	is(read_fast('k'), 'miss', 'readers are answered again');
	ends('1.a', '2.a', '5.a');
	is(pendings(), '', 'all are over');
	cmp_ok(function_memory(), '<', $before + 10_000, "memory is given back, of $full kB");
	reserve_many('6.a', 0, 1000);
	is(pendings(), '6.a 1000', 'rows are kept as before');
};

# The tables that held many reservations are made anew when most are gone, and every call is as fast as before.
subtest 'many reservations leave nothing behind' => sub {
	fresh();
	my $cost = sub {
		# more calls than one cycle of Lua's collector takes
		$redis->call('CONFIG', 'RESETSTAT');
		ends('7.none') foreach 1 .. 5000;
		return ($redis->info('commandstats', 'cmdstat_fcall') =~ /usec_per_call=([\d.]+)/)[0];
	};
	my ($before) = sort { $a <=> $b } map { $cost->() } 1 .. 4;
	reserve_many("$_.a", $_ * 100, 100) foreach 0 .. 999;
	is(pendings(), join(', ', sort map { "$_.a 100" } 0 .. 999), 'all are listed');
	ends(map { "-$_.a" } 0 .. 998);
	is(pendings(), '999.a 100', 'those that were not rolled back are still there');
	# the first ones pay for the collection; the machine may have other work
	my $after = $cost->();
	foreach (1 .. 20) { last if $after < 1.7 * $before; $after = $cost->(); }
	cmp_ok($after, '<', 1.7 * $before, "calls cost what they did: $after and $before us");
};

subtest 'pending: a listing in pages, by transaction' => sub {
	fresh();
	reserve("$_.a", map { "k$_.$_[0]" } 1 .. $_ % 3 + 1) foreach 1 .. 250;
	domain('reserve', '3.d');
	my $expected = join ', ', sort 'domain 1.t 3.d', map { "$_.a " . ($_ % 3 + 1) } 1 .. 250;
	is(pendings('n', $_), $expected, "everything once, limit $_") foreach 1, 7, 1000;
	my ($cursor, $in, @list) = @{ fcall('fence_pending', 0, 'n', 7, '') };
	is($in, $epoch, 'the epoch is told');
	is(@list / 5, 7, 'a page is as long as its limit');
	is(answer('fence_pending', 0, 'other', 10, ''), ' ', 'none in another namespace');

	# ending what a page listed, as the patrol does, misses nothing
	my $rounds = 0;
	$cursor = '';
	do
	{
		($cursor, undef, @list) = @{ fcall('fence_pending', 0, 'n', 9, $cursor) };
		while (my ($kind, undef, $stamp) = splice @list, 0, 5)
		{
			$kind eq 'row' ? ends($stamp) : domain('aborted', $stamp);
		}
	} while $cursor ne '' && $rounds++ < 1000;
	is(pendings(), '', 'all are ended in one listing');
};

subtest 'ages count from the first listing' => sub {
	fresh();
	my $age = sub { my %of = map { $_->[0] => $_->[1] } map { [ @$_[ 2, 4 ] ] } listed(); return $of{ $_[0] }; };
	reserve('1.a', 'k');
	domain('reserve', '2.a');
	my $start = clock();
	is($age->('1.a'), 0, 'first seen');
	poll(sub { clock() >= $start + 30 }, 'a moment');
	reserve('3.a', 'l');
	my $of_new = $age->('3.a');             # the first listing that has it
	cmp_ok($age->('1.a'), '>=', 30, 'older');
	cmp_ok($age->('2.a'), '>=', 30, '... that of the domain');
	is($of_new, 0, 'a new one');
	my (undef, undef, undef, @status) = @{ status('k') };
	is("@status[ 0, 1, 3, 4 ]", '1.a row 2.a domain', 'status tells the row, then the domain');
	cmp_ok($status[$_], '>=', 30, '... and ages') foreach 2, 5;
	ends('1.a');
	listed();
	reserve('1.a', 'k');
	is($age->('1.a'), 0, 'what has ended is forgotten');
};

sub listed
{
	my (undef, undef, @list) = @{ fcall('fence_pending', 0, 'n', 1000, '') };
	my @entries;

	while (@list) { push @entries, [ splice @list, 0, 5 ]; }
	return @entries;
}

subtest 'counts are told once' => sub {
	fresh();
	announce('1.u', 1);
	permit('k') foreach 1 .. 3;
	fill('k', 5);                                        # a fourth
	get('k');
	get('l');
	put('k', 5, permit => 'x');
	reserve('1.a', 'k');
	get('k');
	disarm();
	get('k');
	is(answer('fence_counts', 0, 'n'), '1.t 4 1 1 1 1 1 1', 'told, hit, miss, pending, unarmed, stored, refused; only where any');
	is(answer('fence_counts', 0, 'n'), '', 'again: nothing');
};

done_testing();
