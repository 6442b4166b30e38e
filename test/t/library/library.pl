# Every function of the library (src/redis/fence.lua, arming.lua) against the rules of doc/protocol.md. A subtest names the
# rule that it checks; a number in brackets is the trace that the rule closes. What hostile callers do is in
# library/hostile_callers.pl, slots that move between real processes in 034 and 035.

use strict;
use warnings;

use FenceTest;
use FenceTest::Library;
use FenceTest::Router ();
use Test::More;

# ---------------------------------------------------------------------------------------------------------------------
# The process
# ---------------------------------------------------------------------------------------------------------------------

$redis->load_library;

subtest 'hello: identity' => sub {
	my $first = fcall('fence_hello', 0, 'n', 'abcdef0123456789');
	is($first->[0], 'abcdef0123456789', 'a process without an identity takes the nonce');
	is(fcall('fence_hello', 0, 'n', 'ffff')->[0], 'abcdef0123456789', 'a process that has one keeps it');
	is(fcall('fence_hello', 0, 'other', 'ffff')->[0], 'abcdef0123456789', 'it is the same for every namespace');
	my ($seconds, $us) = @{ $redis->call('TIME') };
	cmp_ok(abs($first->[1] - $seconds * 1000 - $us / 1000), '<', 60_000, 'the clock reading is in milliseconds');
	is_deeply([ @{$first}[ 2 .. 7 ] ], [ 'master', 1, '', '', '', '' ], 'role, library version, armed for nothing');
};

subtest 'unarmed: nothing is answered or promised' => sub {
	fresh('unarmed');
	my $before = snapshot();
	is(permit('k'), '', 'token');
	is(join(',', @{ $redis->call('FCALL_RO', 'fence_token', 2, f('k'), f('l')) }), ',', 'token of two');
	is(get('k'), 'unarmed', 'get');
	is(check('k', 1, 'x'), 0, 'check');
	is(put('k', 1, permit => 'x 1'), 'refused unarmed', 'put');
	is(reserve('1.a', 'k'), 0, 'write');
	is(store('1.a', 1, 'k', 1), -1, 'store');
	is(domain('reserve', '1.a'), 0, 'domain_reserve');
	is(domain('committed', '1.a'), 0, 'domain_end');
	is(announce('1.t', 1), 'unarmed', 'announce');
	is(disarm(), 'unarmed', 'disarm');
	is(fcall('fence_remove', 1, f('k'), header(), 'x'), 0, 'remove');
	is(answer('fence_status', 1, f('k')), 'unarmed  ', 'status');
	is(answer('fence_pending', 0, 'n', 10, ''), ' ', 'pending: no epoch');
	is(answer('fence_counts', 0, 'n'), '', 'counts');
	is(snapshot(), $before, 'and nothing changed');
};

subtest '[1] what was meant for another process arms nobody' => sub {
	fresh('unarmed');
	my $former = $identity;
	like(arm(), qr/^armed /, 'the process is armed');
	$redis->load_library;
	$identity = hello()->[0];
	like(arm(identity => $former), qr/^refused another process/, 'arm with the identity of the former one');
	like(renew(identity => $former), qr/^refused another process/, 'renew likewise');
	like(renew(), qr/^refused not armed/, 'renew, though the identity is right: never armed');
	is(hello()->[6], '', 'it is not armed');
	like(arm(), qr/^armed /, 'arm with its own identity');
	like(renew(epoch => $epoch =~ s{-.*}{-0}r), qr/^refused not armed/, 'renew in another epoch');
	like(renew(), qr/^renewed /, 'renew in that epoch');
};

subtest 'arm and renew: late ones are refused, until is never lowered' => sub {
	fresh('unarmed');
	my $now = clock();
	like(arm(at => $_), qr/^refused the lease was over/, 'arm until ' . ($_ - $now) . ' ms') foreach $now, $now - 1, 0;
	is(hello()->[6], '', 'not armed');
	like(arm(at => $now + $hour), qr/^armed /, 'armed');
	like(renew(at => $_), qr/^refused the lease was over/, 'renew until ' . ($_ - $now) . ' ms') foreach $now, 0;
	is(until_of(), $now + $hour, 'until is as armed');
	renew(at => $now + 2 * $hour);
	is(until_of(), $now + 2 * $hour, 'renew extends');
	renew(at => $now + $hour);
	arm(at => $now + $hour);
	is(until_of(), $now + 2 * $hour, 'neither lowers');
	arm(at => $now + 3 * $hour);
	is(until_of(), $now + 3 * $hour, 'arm in the same epoch extends');
	$redis->call('DEL', heartbeat());
	renew();
	is($redis->call('PEXPIRETIME', heartbeat()), until_of() - 1, 'every heartbeat writes a key, which is gone when the lease is over');
};

subtest 'arm: owner, timeline, server' => sub {
	fresh();
	my $armed = join ' ', @{ hello() }[ 4 .. 7 ];
	like(arm(owner => 'other', epoch => '99-aa'), qr/^refused armed by cluster cluster/, 'a foreign owner, lease running');
	like(arm(timeline => 2, epoch => '99-aa'), qr/^refused armed by timeline 3/, 'a lower timeline');
	like(arm(server => 'b', epoch => '99-aa'), qr/^refused armed by another server/, 'another server of this timeline');
	is(disarm('other', 9), 'refused', 'a foreign owner cannot disarm');
	is(disarm('cluster', 2), 'refused', 'nor a lower timeline');
	is(join(' ', @{ hello() }[ 4 .. 7 ]), $armed, 'nothing changed');
	like(arm(epoch => next_epoch()), qr/^armed /, 'the same server, in another epoch');
	is(disarm(), 'disarmed', 'the owner disarms');
	like(arm(server => 'b', epoch => '99-aa'), qr/^refused armed by another server/, '... which ends no lease for another server');
	like(arm(timeline => 4, server => 'b', epoch => next_epoch()), qr/^armed /, 'a higher timeline may');
	disarm('cluster', 4);
	like(arm(owner => 'other', timeline => 1, epoch => next_epoch()), qr/^armed /, 'a foreign owner may after a disarm');
	my $at = clock() + 50;
	fresh('unarmed');
	arm(at => $at);
	1 until clock() > $at;
	like(arm(server => 'b', epoch => next_epoch()), qr/^armed /, 'after the lease another server may');
};

subtest 'disarm ends the lease, not what is known' => sub {
	fresh();
	fill('k', 5);
	my $since = reserve('1.a', 'l');
	is(disarm(), 'disarmed', 'disarm');
	is(get('k'), 'unarmed', 'get');
	is(read_fast('k'), 'closed', 'token');
	is(check('k', 5), 0, 'check');
	like(reserve('2.a', 'l'), qr/^[1-9]/, 'reserve needs the epoch only');
	ends('1.a');
	is(holders('l'), '2.a row', 'so does an end');
	like(arm(), qr/^armed /, 'armed again in the same epoch');
	like(read_fast('k'), qr/^hit 5 /, 'its domains are still attached, its fences are trusted');
};

subtest 'a lease that runs out by itself' => sub {
	fresh('unarmed');
	my $until = clock() + 200;
	arm(at => $until);
	announce('1.t', 1);
	fill('k', 5);
	my $permit = permit('k');
	my ($hits, $wrong) = (0, 0);
	poll(
		sub {
			my $before = clock();
			my $got = read_fast('k');
			my $after = clock();
			$hits++ if $got =~ /^hit/;
			$wrong++ if $after < $until && $got !~ /^hit/ or $before >= $until && $got ne 'closed';
			return $before >= $until;
		},
		'the end of the lease');
	is($wrong, 0, 'token is told until the lease is over and not any more then');
	cmp_ok($hits, '>', 0, 'it was told');
	is(get('k'), 'unarmed', 'get');
	is(check('k', 5), 0, 'check');
	is(put('l', 1, permit => $permit), 'stored', 'put needs its proof only');
	renew();
	like(read_fast('k'), qr/^hit/, 'renewed: answers again');
	$redis->call('DEL', heartbeat());
	like(read_fast('k'), qr/^hit/, 'where the key of heartbeats was evicted the clock tells');
};

subtest '[c9] an arm repeated in one epoch wipes nothing, one in a higher epoch all' => sub {
	fresh();
	fill('k', 5);
	my $token = token();
	reserve('1.a', 'l');
	domain('reserve', '2.a');
	arm();
	is(pendings(), '1.a 1, domain 1.t 2.a', 'reservations are kept');
	is(token(), $token, 'so is the token');
	my $permit = fcall('fence_status', 1, f('k'))->[1];
	my $former = header();
	$epoch = next_epoch();
	like(arm(), qr/^armed /, 'armed in a new epoch');
	is(pendings(), '', 'no reservation is left');
	is(get('k'), 'unarmed', 'no domain is attached');
	is(announce('1.t', 1), 'announced 0', 'attached again');
	isnt(token(), $token, 'another token');
	like(get('k'), qr/^miss /, 'the fence is not trusted');
	is(put('k', 5, permit => $permit), 'refused token', 'nor is what was read under it');
	is(check('k', 5, $token), 0, 'check likewise');
	is(fcall('fence_write', 0, $former, '3.a', 1, f('k')), 0, 'a write in the old epoch is not granted');
	is(pendings(), '', '... nor recorded');
	like(arm(epoch => $_), qr/^refused already armed in epoch/, "epoch $_") foreach '1-ffff', $epoch =~ s/-.*/-ffff/r;
	disarm();
	like(arm(epoch => '1-ffff'), qr/^refused already armed in epoch/, 'also after the lease');
};

subtest 'namespaces are apart' => sub {
	fresh();
	fill('k', 5);
	my $other = next_epoch();
	like(arm(ns => 'other', epoch => $other, owner => 'another', timeline => 1), qr/^armed /, 'another one is armed');
	is(hello()->[6], $epoch, 'this one stays armed as it was');
	like(fcall('fence_write', 0, "other $other", '1.a', 1, 'other:f:1.t:{k}'), qr/^[1-9]/, 'a reservation there');
	like(get('k'), qr/^hit /, 'is none here');
	is(answer('fence_get', 1, 'other:f:1.t:{k}'), 'unarmed', 'an attachment here is none there');
	is(fcall('fence_write', 0, "other $epoch", '1.a', 1, f('k')), 0, 'an epoch of one is none of the other');
	is(fcall('fence_store', 0, "other $other", '1.a', 1, f('k'), 1, 6, 0, 'p'), 1, 'a row is stored in the own one only');
	is(fcall('fence_remove', 1, f('k'), "other $other", token()), 0, 'and removed there');
	like(get('k'), qr/^hit \S+ 5 /, 'the fence is as it was');
};

subtest 'attachments: announce, end, attach again' => sub {
	fresh();
	my $u = 'n:f:1.u:{k}';
	my $read = sub { return answer('fence_get', 1, $u); };
	my $permit = sub { return fcall('fence_token', 1, $u); };
	is($read->(), 'unarmed', 'a domain that is not announced is not answered for');
	like(fcall('fence_write', 0, header(), '1.a', 1, $u), qr/^[1-9]/, '... but may be reserved in');
	is(answer('fence_announce', 0, 'n', '1-aa', '1.u', 7, 'none', 0), 'unarmed', 'an announcement of another epoch is none');
	is(announce('1.u', 7), 'announced 0', 'announced');
	is($read->(), 'pending', 'and the reservation counts');
	ends('1.a');

	my $first = $permit->();
	my $put = sub { return fcall('fence_put', 1, $u, $_[0], 1, 'p', 0); };
	is($put->($first), 'stored', 'a value');
	is(announce('1.u', $_), 'announced 0', "announced $_: the same, or an older one that comes late") foreach 7, 6;
	like($read->(), qr/^hit /, '... changes nothing');
	is(announce('1.u', 8), 'announced 0', 'a newer attachment');
	is($put->($first), 'refused token', '... trusts nothing of the former');
	like($read->(), qr/^miss /, '... nor what was stored');

	my $ends_attachment = sub { return fcall('fence_domain_reserve', 0, header(), '1.u', @_); };
	is($ends_attachment->('2.a', 8), 1, 'detach: reserved');
	is(fcall('fence_domain_end', 0, header(), '1.u', '2.a', 'committed'), 1, '... and committed');
	is($read->(), 'unarmed', 'the domain is over');
	is(announce('1.u', 8), 'announced 1', 'a late announcement of the ended attachment is refused');
	is($permit->(), '', '... does not revive it');
	announce('1.u', 9);
	my $seen = $permit->();
	is(announce('1.u', 8, 'withdrawn'), 'announced 0', 'a late word that a former attachment is not to be served');
	is($permit->(), $seen, '... changes nothing');
	is(announce('1.u', 9, 'withdrawn'), 'announced 0', 'this one is not to be served any more:');
	is($permit->() . $read->(), 'unarmed', 'readers are told nothing,');
	announce('1.u', 9);
	isnt($permit->() =~ s/ .*//r, $seen =~ s/ .*//r, 'and until it is announced again nothing of before is trusted');

	# the reservation knows what ends, whoever tells its end: the transaction itself or the patrol
	is($ends_attachment->('3.a', $_), 1, "reserved, ending $_, by one transaction in any order") foreach 0, 9, 0;
	is(fcall('fence_domain_end', 0, header(), '1.u', '4.a', $_), 1, "another stamp $_") foreach 'aborted', 'committed';
	is($read->(), 'pending', '... changes nothing');
	fcall('fence_domain_end', 0, header(), '1.u', '3.a', 'committed');
	is($read->(), 'unarmed', 'the domain is over');
};

subtest 'slots come and go in one epoch' => sub {
	my ($slot_j, $slot_k) = map { FenceTest::Router::slot_of("{$_}") } 'j', 'k';
	my $renewed = sub { my ($slots, $grant) = @_; return (split / /, renew(slots => $slots, grant => $grant), 5)[4]; };

	fresh('unarmed');
	like(arm(slots => $slot_k), qr/^armed /, 'armed for one slot');
	announce('1.t', 1);
	fill('k', 5);
	my $token = token();
	is(get('j') . permit('j'), 'unarmed', 'no answer in the other');
	is(put('j', 1, permit => permit('k')), 'refused unarmed', 'nor put');
	is(reserve('1.a', 'j'), 0, 'nor a reservation');
	ends('1.a');
	is($renewed->($slot_k, 1), 0, 'granted the same: nothing comes');
	like(read_fast('k'), qr/^hit /, '... and nothing goes');

	is($renewed->("$slot_j,$slot_k", 2), 1, 'granted one more');
	like(read_fast('k'), qr/^hit /, 'the other one stays warm');
	is(get('j') . permit('j'), 'unarmed', 'in the new one readers are not answered yet');
	like(reserve('1.a', 'j'), qr/^[1-9]/, '... but reservations are granted');
	announce('1.t', 1, 'none', $_) foreach 0, 1;
	is(get('j') . permit('j'), 'unarmed', 'announced for former grants: they are not yet');
	announce('1.t', 1, 'none', 2);
	is(get('j'), 'pending', 'announced for this grant: they are');
	ends('1.a');
	announce('1.u', 3, 'none', 1);
	is(answer('fence_get', 1, 'n:f:1.u:{j}'), 'unarmed', 'another domain, announced late for a former grant, is silent there');
	like(answer('fence_get', 1, 'n:f:1.u:{k}'), qr/^miss/, '... and only there');

	my $permit = permit('k');
	reserve('3.a', 'k');
	is($renewed->($slot_j, 3), 0, 'one is taken away');
	is(get('k') . permit('k'), 'unarmed', 'no answer there any more');
	is(put('k', 9, permit => $permit), 'refused unarmed', '... nor put');
	is(store('3.a', 1, 'k', 9), 0, '... nor stored with a commit');
	is(holders('k'), '', '... which ends its reservation');
	fill('j', 6);
	is($renewed->("$slot_j,$slot_k", 4), 1, 'the slot comes back');
	announce('1.t', 1, 'none', 4);
	isnt(token(), $token, 'under another token');
	like(get($_), qr/^miss /, "so what $_ had is not trusted") foreach 'j', 'k';

	is($renewed->('none', 5), 0, 'all are taken away');
	is(get($_), 'unarmed', 'no answer') foreach 'j', 'k';
	like(renew(slots => ''), qr/^refused all slots, and some/, 'all is no grant of slots');
	like(renew(), qr/^renewed /, 'a renewal without slots');
	is(get('k'), 'unarmed', '... gives none back');

	fresh('unarmed');
	like(arm(slots => $slot_j, grant => 8), qr/^armed /, 'a process that joins is armed with a grant');
	announce('1.t', 1, 'none', 7);
	is(get('j'), 'unarmed', 'a late announcement does not make it speak');
	announce('1.t', 1, 'none', 8);
	like(get('j'), qr/^miss /, 'its own does');
};

# ---------------------------------------------------------------------------------------------------------------------
# Readers
# ---------------------------------------------------------------------------------------------------------------------

subtest '[R6] the fast read: data, then token' => sub {
	fresh();
	like(permit('k'), qr/^1\d*\.[0-9a-f]{16} \d+$|^\d+\.[0-9a-f]{16} \d+$/, 'a permit: token, blank, number');
	is(read_fast('k'), 'miss', 'nothing there');
	fill('k', 5, payload => "a\0b\nc \xff");
	is(read_fast('k'), "hit 5 \na\0b\nc \xff", 'any bytes');
	announce('1.u', 1);
	my @permits = @{ $redis->call('FCALL_RO', 'fence_token', 3, f('k'), 'n:f:1.u:{k}', 'n:f:1.nosuch:{k}') };
	is($permits[0], permit('k'), 'one of each domain');
	is($permits[1], $redis->call('FCALL_RO', 'fence_token', 1, 'n:f:1.u:{k}'), '... its own');
	is($permits[2], '', '... nothing of one that is not known');
	isnt($permits[0] =~ s/ .*//r, $permits[1] =~ s/ .*//r, 'tokens differ');
	is($redis->call('FCALL_RO', 'fence_token', 0), '', 'no fence');
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
	is(get('k'), "hit $token 5 \np5", 'hit');
	foreach my $other ("x$token 5 \np", "$token", "$token ", "$token 5", "$token 5 ", '', "\0", "$token 5 no newline")
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
	is(get('k'), "hit $token 6 \np6", 'the last one is there');
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

subtest '[R5] put_from: the same proof, of a record that is renamed' => sub {
	fresh();
	my $permit = permit('k');
	my ($token) = split / /, $permit;
	my $side = v('k', 'side');
	my $record = sub { $redis->call('SET', $side, $_[0], 'PX', 10_000) };
	is(put_from('k', 5), 'refused lost', 'there is no such key');
	foreach my $bad ("$token 4 \np", "x$token 5 \np", "$token 5 x\np", "$token 5 ", '')
	{
		$record->($bad);
		is(put_from('k', 5), 'refused lost', 'a record that begins otherwise: ' . ($bad =~ s/\n.*//sr));
		is($redis->call('GET', $side), $bad, '... stays where it is');
	}
	is(version_of('k'), 'none', 'nothing was stored so far');
	my $payload = 'p' x 1_000_000;
	$record->("$token 5 \n$payload");
	is(put_from('k', 5), 'stored', 'stored');
	is(get('k'), "hit $token 5 \n$payload", 'a hit');
	is($redis->call('EXISTS', $side), 0, 'the record has left its place');
	ok(abs($redis->call('PTTL', f('k')) - $hour) < 60_000, 'ttl 0: the default, not that of the record');
	reserve('1.a', 'k');
	$record->("$token 6 \np6");
	is(put_from('k', 6, permit => $permit), 'refused pending', 'a reservation');
	is($redis->call('EXISTS', f('k')), 0, '... nothing is renamed');
	ends('1.a');
	is(put_from('k', 6, permit => $permit), 'refused late', 'it has ended since');
	is(put_from('k', 6, ttl => 5000), 'stored', 'with a permit of after it, and ttl');
	cmp_ok($redis->call('PTTL', f('k')), '<=', 5000, '... it has it');
	$record->("$token 6 \nof a value");
	is(put_from('k', 6, suffix => 'json'), 'stored', 'of a value beside the fence');
	is($redis->call('GET', v('k', 'json')), "$token 6 \nof a value", 'it is there');
	is(version_of('k'), '6', 'under the version of the fence');
	$record->("$token 7 \np7");
	is(put_from('k', 7, suffix => 'json'), 'stored', 'of a newer version');
	is($redis->call('GET', f('k')), "$token 7 ", 'the fence is a mark');
	$record->("$token 7 \np7");
	like(refuses('fence_put_from', 3, f('k'), $side, $side, permit('k'), 7, 0), qr/expected a fence/, 'a record is not its own value');
	like(refuses('fence_put_from', 2, f('k'), $_, permit('k'), 7, 0), qr/expected a fence/, "no place for a record of the fence: $_")
	  foreach f('k'), f('l'), v('l', 'side'), 'other';
};

subtest 'values beside a fence, which is a mark then' => sub {
	fresh();
	my $token = token();
	is(put('k', 5, suffix => 'json', payload => '{}'), 'stored', 'a value');
	is($redis->call('GET', f('k')), "$token 5 ", 'the fence is a mark');
	is(get('k', 'json'), "hit $token 5 \n{}", 'hit');
	is(get('k') =~ s/ .*//r, 'miss', 'the mark itself is none');
	is(check('k', 5), 1, '... but current');
	is(put('k', 5, suffix => "a\nb", payload => 'other'), 'stored', 'another representation');
	is(get('k', "a\nb"), "hit $token 5 \nother", 'hit');
	fill('k', 5, payload => 'whole');
	is(put('k', 5, suffix => 'json', payload => '[]'), 'stored', 'beside a fence with a payload');
	is(get('k'), "hit $token 5 \nwhole", '... which stays');
	is(put('k', 6, suffix => 'json', payload => '6'), 'stored', 'a newer version');
	is($redis->call('GET', f('k')), "$token 6 ", '... replaces the fence');
	is(get('k', "a\nb") =~ s/ .*//r, 'miss', '... and no former value is a hit');
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

# ---------------------------------------------------------------------------------------------------------------------
# Writers
# ---------------------------------------------------------------------------------------------------------------------

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

# ---------------------------------------------------------------------------------------------------------------------
# Other databases
# ---------------------------------------------------------------------------------------------------------------------

subtest 'callers in another database' => sub {
	fresh();
	fill('k', 5);
	my $third = $redis->connect;
	$third->call('SELECT', 3);
	is(join(' ', @{ $third->call('FCALL', 'fence_get', 1, f('k')) }), 'hit ' . token() . " 5 \np5", 'get reads the same fence');
	is($third->call('FCALL', 'fence_check', 1, f('k'), token(), 5), 1, 'check');
	is($third->call('FCALL', 'fence_put', 1, f('k'), permit(), 6, 'six', 0), 'stored', 'put');
	is(read_fast('k'), "hit 6 \nsix", '... is seen in database 0');
	is($third->call('FCALL', 'fence_remove', 1, f('k'), header(), 'x'), 0, 'remove');
	my $name = derived('d', 'k');
	is($third->call('FCALL', 'fence_get_derived', 1, $name)->[1], 'd', 'get_derived');
	is($third->call('DBSIZE'), 0, 'nothing was made in that database');
	$third->call('SET', 'here', 1);
	$third->call('FCALL', 'fence_get', 1, f('m'));
	is($third->call('GET', 'here'), 1, 'the caller stays where he was');
};

# ---------------------------------------------------------------------------------------------------------------------
# Events
# ---------------------------------------------------------------------------------------------------------------------

# One table that publishes so, with some of everything that commits, and what does not.
sub commit_all_kinds
{
	my %since = map { $_ => reserve("$_.e", 'k') } 2 .. 6;
	ends('2.e');
	ends('2.e', '-3.e');
	ends("=$since{4} 4.e");
	store('5.e', $since{5}, 'k', 5);
	fcall('fence_store', 0, header(), '6.e', 1, f('k'), $since{6}, 6, '', '');
	domain('reserve', '9.e');
	domain('committed', '9.e') foreach 1, 2;
	domain('reserve', '10.e');
	domain('aborted', '10.e');
	return;
}

my @events = ((map { '1.t ' . f('k') . " $_" } '- 2.e', '- 4.e', '5 5.e', '6 6.e'), '1.t - - 9.e');

subtest 'events: pubsub' => sub {
	fresh();
	announce('1.t', 2, 'pubsub');
	my $listener = $redis->connect;
	$listener->call('SUBSCRIBE', 'n:e:1.t');
	commit_all_kinds();
	is(join("\n", map { $listener->reply->[2] } @events), join("\n", @events), 'each commit once, no rollback');
	announce('1.t', 3, 'none');
	reserve('20.e', 'k');
	ends('20.e');
	ok(!$listener->has_reply, 'and no more; none without publish');
};

subtest 'events: stream' => sub {
	fresh('unarmed');
	arm(most => 20);
	announce('1.t', 1, 'stream');
	commit_all_kinds();
	my @is = map { my %e = @{ $_->[1] }; "$e{domain} $e{fence} $e{version} $e{stamp}" } @{ $redis->call('XRANGE', 'n:e:1.t', '-', '+') };
	is(join("\n", @is), join("\n", @events), 'each commit once, no rollback');
	cmp_ok($redis->call('PTTL', 'n:e:1.t'), '>', 1000, 'a stream that nothing is added to goes');
	foreach my $w (1 .. 1000) { reserve("$w.l", 'l'); ends("$w.l"); }
	cmp_ok($redis->call('XLEN', 'n:e:1.t'), '<', 500, 'its length is limited');
	$redis->call('SET', 'n:e:1.t', 'no stream');
	reserve('1.m', 'l');
	ends('1.m');
	is(holders('l'), '', 'an event that cannot be written stops nothing');
};

subtest 'events in a cluster: to the slot of the fence' => sub {
	my $bus = 'cluster-port ' . FenceTest::Redis::_free_port();    # the usual one may be too high for a port
	my $cluster = FenceTest::Redis->start(config => [ 'cluster-enabled yes', 'cluster-require-full-coverage no', $bus ]);
	local $FenceTest::Library::redis = $cluster;
	$cluster->call('CLUSTER', 'ADDSLOTSRANGE', 0, 16383);
	poll(sub { $cluster->call('CLUSTER', 'INFO') =~ /cluster_state:ok/ }, 'the cluster');
	fresh();
	announce('1.t', 2, 'pubsub');
	my ($listener, $wide) = ($cluster->connect, $cluster->connect);
	$listener->call('SSUBSCRIBE', 'n:e:1.t:{k}');
	$wide->call('SUBSCRIBE', 'n:e:1.t');
	store('2.e', reserve('2.e', 'k'), 'k', 2);
	is($listener->reply->[2], '1.t ' . f('k') . ' 2 2.e', 'rows: sharded, in the channel of their tag');
	domain('reserve', '3.e');
	domain('committed', '3.e');
	is($wide->reply->[2], '1.t - - 3.e', 'the whole domain: to everybody');
	$cluster->stop;
};

# ---------------------------------------------------------------------------------------------------------------------
# Many reservations, and listings
# ---------------------------------------------------------------------------------------------------------------------

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
	cmp_ok($age->('1.a'), '>=', 30, 'older');
	cmp_ok($age->('2.a'), '>=', 30, '... that of the domain');
	cmp_ok($age->('3.a'), '<', 30, 'a new one');
	my (undef, undef, undef, @status) = @{ status('k') };
	is("@status[ 0, 1, 3, 4 ]", '1.a row 2.a domain', 'status tells the row, then the domain');
	cmp_ok($status[$_], '>=', 30, '... and ages') foreach 2, 5;
	ends('1.a');
	listed();
	reserve('1.a', 'k');
	cmp_ok($age->('1.a'), '<', 30, 'what has ended is forgotten');
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
