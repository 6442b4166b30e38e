# How a process of Redis is armed and disarmed, its leases, announcements and slots, in the library (arming.lua).
#
# The tests library/arming, reads, writes, events, listings, fills and hot call every function of the library (src/redis/) and hold it
# against the rules of doc/protocol.md. A subtest names the rule that it checks; a number in brackets is the trace that
# the rule closes. What hostile callers do is in library/hostile_callers, slots that move between real processes in topology/.

use strict;
use warnings;

use FenceTest;
use FenceTest::Library;
use FenceTest::Router ();
use Test::More;

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
	is(fcall('fence_remove', 1, f('k'), header(), 'x'), 0, 'remove');
	is(answer('fence_status', 1, f('k')), 'unarmed  ', 'status');
	is(answer('fence_pending', 0, 'n', 10, ''), ' ', 'pending: no epoch');
	is(answer('fence_counts', 0, 'n'), '', 'counts');
	is(snapshot(), $before, 'and nothing changed');
	is(disarm(), 'unarmed', 'disarm');
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
	like(arm(timeline => 2, epoch => '99-aa'), qr/^refused timeline 3 of this cluster has replaced timeline 2/, 'a lower timeline');
	like(arm(server => 'b', epoch => '99-aa'), qr/^refused armed by another server/, 'another server of this timeline');
	# hello tells the same to who asks, so that he need not try
	my $refusal = sub { return fcall('fence_hello', 0, 'n', 'aa', @_)->[8]; };
	like($refusal->('other', 3, 'run'), qr/^armed by cluster cluster, whose lease runs: two clusters use namespace "n"$/, 'hello, a foreign owner');
	like($refusal->('cluster', 2, 'run'), qr/^timeline 3 of this cluster/, 'hello, a lower timeline');
	like($refusal->('cluster', 3, 'b'), qr/^armed by another server/, 'hello, another server');
	is($refusal->('cluster', 3, 'run'), '', 'hello, the same server: it may arm');
	is($refusal->('cluster', 4, 'b'), '', 'hello, a higher timeline');
	is($refusal->(), '', 'hello, nobody asks');
	refuses('fence_hello', 0, 'n', 'aa', @$_) foreach ['other'], [ 'other', 3 ], [ 'other', 'x', 'run' ], [ 'other', 3, 'run', 'more' ];
	is(disarm('other', 9), 'refused', 'a foreign owner cannot disarm');
	is(disarm('cluster', 2), 'refused', 'nor a lower timeline');
	is(join(' ', @{ hello() }[ 4 .. 7 ]), $armed, 'nothing changed');
	like(arm(epoch => next_epoch()), qr/^armed /, 'the same server, in another epoch');
	is(disarm(), 'disarmed', 'the owner disarms');
	is($refusal->('other', 1, 'x'), '', '... and then another cluster may arm');
	like(arm(server => 'b', epoch => '99-aa'), qr/^refused armed by another server/, '... which ends no lease for another server');
	like(arm(timeline => 4, server => 'b', epoch => next_epoch()), qr/^armed /, 'a higher timeline may');
	disarm('cluster', 4);
	like(arm(epoch => next_epoch()), qr/^refused timeline 4 of this cluster/, '... the lower one may not again, although no lease runs');
	like(arm(owner => 'other', timeline => 1, epoch => next_epoch()), qr/^armed /, 'a foreign owner may after a disarm');
	my $at = clock() + 50;
	fresh('unarmed');
	arm(at => $at);
	1 until clock() > $at;
	like(arm(server => 'b', epoch => next_epoch()), qr/^armed /, 'after the lease another server may');
};

subtest 'disarm by a higher timeline: it replaces the server that armed the process, which lives on' => sub {
	fresh();
	fill('k', 5);
	my $old = $epoch;
	my $permit = permit('k');
	is(disarm(), 'disarmed', 'the same timeline ends the lease');
	like(renew(), qr/^renewed /, '... and the epoch can go on');
	is(disarm('cluster', 4), 'disarmed', 'a higher one');
	like(renew(), qr/^refused not armed in this epoch/, '... ends the epoch');
	is(read_fast('k'), 'closed', 'nothing is served');
	is(put('k', 6, permit => $permit), 'refused unarmed', 'nothing is stored');
	like(arm(epoch => next_epoch()), qr/^refused timeline 4 of this cluster/, 'the replaced server cannot begin another epoch');
	like(fcall('fence_hello', 0, 'n', 'aa', 'cluster', 3, 'run')->[8], qr/^timeline 4 of this cluster/, '... as hello tells it');
	is(hello()->[6], $old, 'the number of its epoch is not used again');
	$epoch = next_epoch();
	like(arm(timeline => 4, server => 'b'), qr/^armed /, 'the new server may begin its own at once');
	announce('1.t', 1);
	is(read_fast('k'), 'miss', 'what the old one stored is not served');
	is(put('k', 6, epoch => $old), 'refused epoch', 'nor is what is read there');
};

subtest 'disarm of a process that nobody has armed' => sub {
	fresh('unarmed');
	is(disarm('cluster', 4), 'unarmed', 'there is no lease to end');
	is(join(' ', @{ hello() }[ 4, 5 ]), 'cluster 4', 'but the process knows the newest timeline');
	like(arm(), qr/^refused timeline 4 of this cluster has replaced timeline 3/, '... and is not armed by a lower one');
	like(arm(owner => 'other', timeline => 1), qr/^armed /, 'another cluster may');
	refuses('fence_disarm', 0, $_, 'cluster', 4) foreach '', 'a b', "n\0";
};

# resume(before, server): what a server asks after a clean restart.
sub resume
{
	my ($before, $server, %with) = @_;

	return answer('fence_resume', 0, $with{header} // header(), $with{identity} // $identity, $with{timeline} // 3, $before, $server);
}

subtest 'resume: only the server that comes next goes on in the epoch' => sub {
	fresh();
	fill('k', 5);
	my $permit = permit('l');
	my $since = reserve('1.a', 'm');
	my $armed = snapshot();
	like(resume('run', 'b', identity => 'ff'), qr/^refused another process/, 'another process');
	like(resume('run', 'b', header => 'n 99-aa'), qr/^refused not armed/, 'another epoch');
	like(resume('run', 'b', header => "other $epoch"), qr/^refused not armed/, 'another namespace');
	like(resume('run', 'b', timeline => $_), qr/^refused armed by another timeline/, "timeline $_") foreach 2, 4;
	like(resume('former', 'b'), qr/^refused another server/, 'the next of another server');
	is(snapshot(), $armed, 'nothing has changed');
	is(put('l', 1, permit => $permit), 'stored', 'a permit from before counts');
	is(resume('run', 'b'), 'resumed', 'the next one may');
	like(read_fast('k'), qr/^hit 5 /, 'what was cached is served');
	is(holders('m'), '1.a row', 'what was reserved is reserved');
	is(put('l', 2, permit => $permit), 'refused late', 'a permit from before counts no more');
	is(store('1.a', $since, 'm', 7), 0, 'nor does a reservation');
	fill('l', 2);
	$permit = permit('l');
	is(resume('run', 'b'), 'resumed', 'a question that was repeated gets the same answer');
	is(put('l', 3, permit => $permit), 'stored', 'and changes nothing');
	like(resume('run', 'copy'), qr/^refused another server/, 'a copy, which does not know of the next one, may not');
	is(resume('b', 'c'), 'resumed', 'the one after the next');
	like(arm(server => 'b', epoch => next_epoch()), qr/^refused armed by another server/, 'which now counts as the server that has armed it');
	like(refuses('fence_resume', 0, header(), $identity, 3, 'c'), qr/expected header/, 'an argument is missing');
	like(refuses('fence_resume', 0, header(), $identity, 'x', 'c', 'd'), qr/expected header/, 'a timeline that is none');
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
	is(put('l', 1, permit => $permit), 'refused unarmed', 'put');
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
	my $put = sub { return fcall('fence_put', 1, $u, $_[0], row_version($_[0], 1), 'p', 0); };
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

	my $mark = sub { return (split / /, answer('fence_mark', 0, header(), $_[0], $_[1], 7))[1]; };
	my $position = sub { return fcall('fence_newest', 1, f('k'))->[3]; };
	my $number = $mark->(0, '');
	$mark->($number, '0/A');
	is($position->(), '0/A', 'a mark for standbys');

	is($renewed->("$slot_j,$slot_k", 2), 1, 'granted one more');
	like(read_fast('k'), qr/^hit /, 'the other one stays warm');
	is($position->(), '', 'the mark is forgotten, because ends in the new slot were counted elsewhere');
	$mark->($number, '0/A');
	is($position->(), '', '... and does not come back late');
	$mark->($mark->(0, ''), '0/B');
	is($position->(), '0/B', '... but the next one counts');
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

done_testing();
