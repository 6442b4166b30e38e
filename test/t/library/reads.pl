# What readers call in the library: the fast read, get, put, check, derived values, fill leases. (What the brackets
# mean: library/arming.pl.)

use strict;
use warnings;

use FenceTest;
use FenceTest::Library;
use FenceTest::Router ();
use Test::More;

subtest '[R6] the fast read: data, then token' => sub {
	fresh();
	like(permit('k'), qr/^\d+-[0-9a-f]{6}\.[0-9a-f]{16} \d+$/, 'a permit: token, blank, number');
	is(read_fast('k'), 'miss', 'nothing there');
	fill('k', 5, payload => "a\0b\nc \xff");
	is(read_fast('k'), "hit 5 {k}\na\0b\nc \xff", 'any bytes');
	announce('1.u', 1);
	my @permits = @{ $redis->call('FCALL_RO', 'fence_token', 3, f('k'), 'n:f:1.u:{k}', 'n:f:1.nosuch:{k}') };
	is($permits[0], permit('k'), 'one of each domain');
	is($permits[1], $redis->call('FCALL_RO', 'fence_token', 1, 'n:f:1.u:{k}'), '... its own');
	is($permits[2], '', '... nothing of one that is not known');
	isnt($permits[0] =~ s/ .*//r, $permits[1] =~ s/ .*//r, 'tokens differ');
	is($redis->call('FCALL_RO', 'fence_token', 0), '', 'no fence');
	is($redis->call('FCALL_RO', 'fence_token', 1, f('k'), '#7'), permit('k') . ' #7', 'a nonce comes back');
	is_deeply($redis->call('FCALL_RO', 'fence_token', 2, f('k'), 'n:f:1.nosuch:{k}', '#8'), [ permit('k'), '', '#8' ], '... behind all permits');
	my @counts = @{ fcall('fence_counts', 0, 'n') };    # eight of each domain, in any order
	my %told = map { @counts[ 8 * $_, 8 * $_ + 1 ] } 0 .. $#counts / 8;
	cmp_ok($told{'1.t'} // 0, '>', 0, 'permits are counted');
};

subtest '[R4] get: hit, miss, pending' => sub {
	fresh();
	my $token = token();
	my $permit = permit('k');
	is(get('k'), "miss $permit", 'nothing there: a permit');
	fill('k', 5);
	is(get('k'), "hit $token 5 {k}\np5", 'hit');
	foreach my $other ("x$token 5 {k}\np", "$token", "$token ", "$token 5", "$token 5 ", '', "\0", "$token 5 no newline")
	{
		$redis->call('SET', f('k'), $other);
		like(get('k'), qr/^miss/, 'no hit: ' . $other =~ s/[^ -~]/?/gr);
	}
	reserve('1.a', 'k');
	is(get('k'), 'pending', 'pending');
	is(get('l') =~ s/ .*//r, 'miss', '... of that key only');
	ends('1.a');
	like(get('k'), qr/^miss/, 'over');
};

subtest '[R5] [S4] put needs the token, nothing pending, nothing ended since' => sub {
	fresh();
	my $permit = permit('k');
	my ($token, $number) = split / /, $permit;
	is(put('k', 5, permit => "$_"), 'refused token', "permit '$_'")
	  foreach '', $token, "$token ", "x$permit", "x.y $number", "$token " . ($number + 1), "$token x", "$token -1";
	is(version_of('k'), 'none', 'nothing was stored so far');
	is(put('k', 5, permit => $permit), 'stored', 'a permit');
	is(put('k', 6, permit => $permit), 'stored', '... is good for all who read meanwhile');
	is(get('k'), "hit $token 6 {k}\np6", 'the last one is there');
	is(put('l', 1, permit => $permit), 'stored', 'also for other keys of the domain');
	reserve('1.a', 'k');
	is(put('k', 6, permit => $permit), 'refused pending', 'a reservation, permit from before');
	is(put('k', 6), 'refused pending', '... and from since then');
	is(put('l', 2, permit => $permit), 'stored', '... of another key');
	my $during = permit('k');
	ends('-1.a');
	is(put('k', 6, permit => $_), 'refused late', 'it has ended since, by a rollback') foreach $permit, $during;
	is(put('k', 6), 'stored', 'a permit of after it');
	$permit = permit('k');
	reserve('2.a', 'k');
	ends('2.a');
	is(put('k', 6, permit => $permit), 'refused late', 'by a commit');
	reserve('3.a', 'k', 'l', 'm');
	ends('3.a');
	is(put($_, 6, permit => $permit), 'refused late', "of several: $_") foreach 'k', 'l', 'm';
	is(put('other', 6, permit => $permit), 'stored', 'what nobody wrote');
	ok(abs($redis->call('PTTL', f('other')) - $hour) < 60_000, 'ttl 0: the default');
	is(put('other', 6, ttl => 5000), 'stored', 'with ttl');
	cmp_ok($redis->call('PTTL', f('other')), '<=', 5000, '... it has it');
	my $large = 'x' x (4 * 1024 * 1024);
	is(put('k', 9, payload => $large), 'stored', 'four megabytes');
	is(put('k', 9, payload => "x$large"), 'refused too large', 'not more');
	is(join(' ', @{ fcall('fence_counts', 0, 'n') }[ 0, 6, 7 ]), '1.t 8 17', 'both are counted');
};

subtest 'put: the server that was read must be the one that armed the process' => sub {
	fresh();
	my $mine = ($epoch =~ /^(\d+-\w{6})/)[0];
	my $same_number = $mine =~ s/.$/x/r =~ tr/x/f/r;
	$same_number =~ s/f$/e/ if $same_number eq $mine;
	foreach my $other ('1-abcdef', $same_number, substr($mine, 0, -1), "${mine}0", $epoch)
	{
		is(fcall('fence_put', 1, f('k'), permit('k'), "$other.5", 'p', 0), 'refused epoch', "row version of epoch $other");
		is(fcall('fence_put_from', 2, f('k'), v('k', 'side'), permit('k'), "$other.5", 0), 'refused epoch', '... put_from');
	}
	is(version_of('k'), 'none', 'nothing was stored');
	is(fcall('fence_put', 1, f('k'), permit('k'), "$mine.5", 'p', 0), 'stored', 'of its own');
	is(get('k'), 'hit ' . token() . " 5 {k}\np", 'the record has the version alone, since its token begins with the epoch');
	like(token(), qr/^\Q$mine.\E/, '... the token does');
	like(refuses('fence_put', 1, f('k'), permit('k'), 5, 'p', 0), qr/as fence.row_version returns it/, 'a number alone is an error');
};

subtest '[R5] put_from: the same proof, of a record that is renamed' => sub {
	fresh();
	my $permit = permit('k');
	my ($token) = split / /, $permit;
	my $side = v('k', 'side');
	my $record = sub { $redis->call('SET', $side, $_[0], 'PX', 10_000) };
	is(put_from('k', 5), 'refused lost', 'there is no such key');
	foreach my $bad ("$token 4 {k}\np", "x$token 5 {k}\np", "$token 5 {l}\np", "$token 5 \np", "$token 5 ", '')
	{
		$record->($bad);
		is(put_from('k', 5), 'refused lost', 'a record that begins otherwise: ' . ($bad =~ s/\n.*//sr));
		is($redis->call('GET', $side), $bad, '... stays where it is');
	}
	is(version_of('k'), 'none', 'nothing was stored so far');
	my $payload = 'p' x 1_000_000;
	$record->("$token 5 {k}\n$payload");
	is(put_from('k', 5), 'stored', 'stored');
	is(get('k'), "hit $token 5 {k}\n$payload", 'a hit');
	is($redis->call('EXISTS', $side), 0, 'the record has left its place');
	ok(abs($redis->call('PTTL', f('k')) - $hour) < 60_000, 'ttl 0: the default, not that of the record');
	reserve('1.a', 'k');
	$record->("$token 6 {k}\np6");
	is(put_from('k', 6, permit => $permit), 'refused pending', 'a reservation');
	is($redis->call('EXISTS', f('k')), 0, '... nothing is renamed');
	ends('1.a');
	is(put_from('k', 6, permit => $permit), 'refused late', 'it has ended since');
	is(put_from('k', 6, ttl => 5000), 'stored', 'with a permit of after it, and ttl');
	cmp_ok($redis->call('PTTL', f('k')), '<=', 5000, '... it has it');
	$record->("$token 6 {k}:json\nof a value");
	is(put_from('k', 6, suffix => 'json'), 'stored', 'of a value beside the fence');
	is($redis->call('GET', v('k', 'json')), "$token 6 {k}:json\nof a value", 'it is there');
	is(version_of('k'), '6', 'under the version of the fence');
	$record->("$token 7 {k}:json\np7");
	is(put_from('k', 7, suffix => 'json'), 'stored', 'of a newer version');
	is($redis->call('GET', f('k')), "$token 7 ", 'the fence is a mark');
	$record->("$token 7 {k}:json\np7");
	like(refuses('fence_put_from', 3, f('k'), $side, $side, permit('k'), row_version($epoch, 7), 0), qr/expected a fence/, 'a record is not its own value');
	like(refuses('fence_put_from', 2, f('k'), $_, permit('k'), row_version($epoch, 7), 0), qr/expected a fence/, "no place for a record of the fence: $_")
	  foreach f('k'), f('l'), v('l', 'side'), 'other';
};

subtest 'an answer names its question' => sub {
	fresh();
	my $token = token();
	my $ask = sub { my ($function, @words) = @_; return $redis->call('FCALL_RO', "fence_$function", @words); };
	is_deeply($ask->('get', 1, f('k'), '#1'), [ 'miss', permit('k'), '#1' ], 'a miss');
	fill('k', 5);
	is_deeply($ask->('get', 1, f('k'), '#2'), [ 'hit', "$token 5 {k}\np5", '#2' ], 'a hit');
	is($ask->('check', 2, f('k'), f('l'), $token, 5, $token, 5, '#3x'), '10 #3x', 'check');
	is_deeply($ask->('get_derived', 1, f('k'), '#4'), [ 'miss', '#4' ], 'of a derived value');
	is($ask->('status', 1, f('k'), '#5')->[-1], '#5', 'status');
	is($ask->('newest', 1, f('k'), '#6')->[-1], '#6', 'newest');
	reserve('1.a', 'k');
	is_deeply($ask->('get', 1, f('k'), '#' . '7' x 20), [ 'pending', '#' . '7' x 20 ], 'pending');
	like(refuses('fence_get', 1, f('k'), $_), qr/expected a fence/, "no nonce: $_") foreach '7', '#', '#a b', '#' . '7' x 21;
};

subtest 'values beside a fence, which is a mark then' => sub {
	fresh();
	my $token = token();
	is(put('k', 5, suffix => 'json', payload => '{}'), 'stored', 'a value');
	is($redis->call('GET', f('k')), "$token 5 ", 'the fence is a mark');
	is(get('k', 'json'), "hit $token 5 {k}:json\n{}", 'hit');
	is(get('k') =~ s/ .*//r, 'miss', 'the mark itself is none');
	is(check('k', 5), 1, '... but current');
	is(put('k', 5, suffix => 'x.y:{z}', payload => 'other'), 'stored', 'another representation');
	is(get('k', 'x.y:{z}'), "hit $token 5 {k}:x.y:{z}\nother", 'hit');
	like(refuses('fence_put', 2, f('k'), v('k', $_), permit('k'), row_version($epoch, 5), 'p', 0), qr/perhaps a value of it/, 'a suffix is one word') foreach 'a b', "a\nb";
	fill('k', 5, payload => 'whole');
	is(put('k', 5, suffix => 'json', payload => '[]'), 'stored', 'beside a fence with a payload');
	is(get('k'), "hit $token 5 {k}\nwhole", '... which stays');
	is(put('k', 6, suffix => 'json', payload => '6'), 'stored', 'a newer version');
	is($redis->call('GET', f('k')), "$token 6 ", '... replaces the fence');
	is(get('k', 'x.y:{z}') =~ s/ .*//r, 'miss', '... and no former value is a hit');
	reserve('1.a', 'k');
	is(get('k', 'json'), 'pending', 'reserved');
	ends('-1.a');
	is(get('k', 'json') =~ s/ .*//r, 'miss', 'a value without its fence is none');
	like(refuses('fence_get', 2, f('k'), $_), qr/expected a fence/, "no value of it: $_")
	  foreach v('l', 'x'), 'n:v:1.t:{k}', 'n:v:1.t:{k}:', f('k') . ':x', 'n:v:1.t:{k}x', 'x';
};

subtest 'check: many at one moment' => sub {
	fresh();
	my $token = token();
	fill($_, 5) foreach 'a', 'b', 'c';
	my $check = sub { return fcall('fence_check', 3, f('a'), f('b'), f('c'), map { ($token, $_) } @_); };
	is($check->(5, 5, 5), '111', 'all current');
	is($check->(5, 4, 50), '100', 'other versions');
	is(fcall('fence_check', 2, f('a'), f('b'), $token, 5, "x$token", 5), '10', 'another token');
	is(fcall('fence_check', 1, f('a'), "$token 5", ''), '0', 'a header cut differently');
	reserve('1.a', 'b');
	is($check->(5, 5, 5), '101', 'a write is on its way');
	domain('reserve', '2.a');
	is($check->(5, 5, 5), '000', 'the domain is reserved');
	domain('aborted', '2.a');
	is($redis->call('FCALL_RO', 'fence_check', 1, f('a'), $token, 5), '1', 'with FCALL_RO');
	$redis->call('DEL', f('a'));
	$redis->call('LPUSH', f('a'), 'x');
	is($check->(5, 5, 5), '001', 'a key of another type is not current, and hides no other');
};

subtest '[R12] derived values: a hit if all sources are current' => sub {
	fresh();
	fill($_, 5) foreach 'a', 'b';
	my $name = derived("10\n\nend", 'a', 'b');
	my $read = sub { return answer('fence_get_derived', 1, $name); };
	is($read->(), "hit 10\n\nend", 'hit');
	is($redis->call('FCALL_RO', 'fence_get_derived', 1, $name)->[0], 'hit', 'with FCALL_RO');
	fill('b', 5, suffix => 'x');
	is($read->(), "hit 10\n\nend", 'a version names one content');
	reserve('1.a', 'b');
	is($read->(), 'miss', 'a source is reserved');
	ends('1.a');
	is($read->(), 'miss', '... and may have changed');
	fill('b', 6);
	is($read->(), 'miss', '... has');
	derived(11, 'a', 'b');
	is($read->(), 'hit 11', 'computed again');
	domain('reserve', '2.a');
	is($read->(), 'miss', 'the domain is reserved');
	domain('committed', '2.a');
	is($read->(), 'miss', '... and changed');
	fill($_, 7) foreach 'a', 'b';
	derived(14, 'a', 'b');
	my $record = $redis->call('GET', $name);
	disarm();
	is($read->(), 'miss', 'without a lease');
	renew();
	foreach my $broken ('', "\n\n", "\n\n14", f('a') . " x 7\n\n14", "x y 7\n\n14", $record =~ s/\n\n/\n/r, "\n$record",
		"n:f:1.nosuch:{a} x 7\n$record", join('', (f('a') . ' ' . token() . " 7\n") x 1001) . "\n14")
	{
		$redis->call('SET', $name, $broken);
		is($read->(), 'miss', 'broken: ' . substr $broken =~ s/[^ -~]/?/gr, 0, 60);
	}
	$redis->call('DEL', $name);
	is($read->(), 'miss', 'gone');

	# some sources are another process's affair
	my ($slot_a, $slot_b) = map { FenceTest::Router::slot_of("{$_}") } 'a', 'b';
	fresh('unarmed');
	arm(slots => "$slot_a");
	announce('1.t', 1);
	fill('a', 1);
	my $mine = f('a') . ' ' . token('a') . " 1\n";
	$redis->call('SET', $name, $mine . f('b') . " 1.x 1\n\n2");
	is($read->(), "elsewhere $mine" . f('b') . " 1.x 1\n\n2", 'elsewhere');
	$redis->call('DEL', f('a'));
	is($read->(), 'miss', '... unless one of its own is not current');
};

subtest 'one reader fills, the others are told so' => sub {
	fresh();
	like(get('k'), qr/^miss \S+ \d+$/, 'without fill leases nobody is busy') foreach 1, 2;
	renew(fill => 60_000);
	like(get('k'), qr/^miss \S+ \d+$/, 'the first is asked to fill');
	my ($ms) = get('k') =~ /^miss \S+ \d+ busy (\d+)$/;
	ok($ms && $ms <= 60_000, 'the second is told for how long');
	like(get('l'), qr/^miss \S+ \d+$/, 'another key is another matter');
	is(answer('fence_release', 1, f('k')), 'released', 'the first gives up');
	like(get('k'), qr/^miss \S+ \d+$/, 'the next one is asked');
	reserve('1.a', 'k');
	is(get('k'), 'pending', 'pending is no miss');
	ends('1.a');
	like(get('k'), qr/^miss \S+ \d+$/, 'after a write nobody waits for the filler of before');
	like(get('k'), qr/ busy /, '... but for its own');
	is(answer('fence_release', 1, 'n:f:1.nosuch:{k}'), 'released', 'of nothing known');

	renew(fill => 300);
	get('dies');
	my $before = clock();
	my ($told) = get('dies') =~ / busy (\d+)$/;
	poll(sub { get('dies') !~ /busy/ }, 'the end of the fill lease of a reader that died');
	cmp_ok(clock() - $before, '>=', $told // 0, 'not before it was over');
	renew(fill => 60_000);
	get("many$_") foreach 1 .. 5000;
	my $most = function_memory();
	poll(sub { renew(fill => 300); function_memory() < $most - 500 }, 'heartbeats to forget old leases');
	renew(fill => 0);
	unlike(get('k'), qr/busy/, 'turned off') foreach 1, 2;
};

subtest 'callers in another database' => sub {
	fresh();
	fill('k', 5);
	my $third = $redis->connect;
	$third->call('SELECT', 3);
	is(join(' ', @{ $third->call('FCALL', 'fence_get', 1, f('k')) }), 'hit ' . token() . " 5 {k}\np5", 'get reads the same fence');
	is($third->call('FCALL', 'fence_check', 1, f('k'), token(), 5), 1, 'check');
	is($third->call('FCALL', 'fence_put', 1, f('k'), permit(), row_version($epoch, 6), 'six', 0), 'stored', 'put');
	is(read_fast('k'), "hit 6 {k}\nsix", '... is seen in database 0');
	is($third->call('FCALL', 'fence_remove', 1, f('k'), header(), 'x'), 0, 'remove');
	my $name = derived('d', 'k');
	is($third->call('FCALL', 'fence_get_derived', 1, $name)->[1], 'd', 'get_derived');
	is($third->call('DBSIZE'), 0, 'nothing was made in that database');
	$third->call('SET', 'here', 1);
	$third->call('FCALL', 'fence_get', 1, f('m'));
	is($third->call('GET', 'here'), 1, 'the caller stays where he was');
};

done_testing();
