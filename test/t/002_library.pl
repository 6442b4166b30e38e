# Every function of src/redis/fence.lua against the rules of doc/protocol.md ("Redis functions"). A number in brackets
# is the trace that the rule closes; a subtest names the rule it checks. What hostile callers do is in
# 002_library_hostile.pl.

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
	is(get('k'), 'unarmed', 'get');
	is(check('k', 1, 'x'), 0, 'check');
	is(put('k', 1, token => 'x', ticket => 1), 'refused unarmed', 'put');
	is(reserve('k', '1.a', '', 1), 'unarmed', 'reserve');
	is(commit('k', '1.a', 1), 'unarmed', 'commit');
	is(aborts('k', '1.a'), 'unarmed', 'abort');
	is(settle('k', '1.a', 1), 'unarmed', 'settle');
	is(repair('k', 1, 2), 'unarmed', 'repair');
	is(domain('reserve', '1.a'), 'unarmed', 'domain_reserve');
	is(domain('commit', '1.a'), 'unarmed', 'domain_commit');
	is(domain('abort', '1.a'), 'unarmed', 'domain_abort');
	is(announce('1.t', 1), 'unarmed', 'announce');
	is(writes('k', 'v', '1.a', 1, 0, 'p'), 'unarmed', 'write');
	is(answer('fence_disarm', 0, 'n', 'cluster', 3), 'unarmed', 'disarm');
	is(fcall('fence_status', 1, f('k'))->[0], 'unarmed', 'status');
	is(answer('fence_pending', 0, 'n', 0, 10, ''), ' ', 'pending: no epoch');
	is(snapshot(), $before, 'and nothing changed');
};

subtest '[1] what was meant for another process arms nobody' => sub {
	fresh('unarmed');
	my $former = $identity;
	like(arm(), qr/^armed /, 'the process is armed');
	$redis->load_library;
	$identity = hello()->[0];
	like(arm(identity => $former), qr/^refused another process/, 'arm with the identity of the former one');
	like(renew(identity => $former, until => $hour), qr/^refused another process/, 'renew likewise');
	like(renew(until => $hour), qr/^refused not armed/, 'renew, though the identity is right: never armed');
	is(hello()->[6], '', 'it is not armed');
	like(arm(), qr/^armed /, 'arm with its own identity');
	like(renew(epoch => $epoch =~ s{-.*}{-0}r, until => $hour), qr/^refused not armed/, 'renew in another epoch');
	like(renew(until => $hour), qr/^renewed /, 'renew in that epoch');
};

subtest 'arm and renew that come late are refused' => sub {
	fresh('unarmed');
	my $now = clock();
	like(arm(at => $_), qr/^refused the lease was over/, 'arm until ' . ($_ - $now) . ' ms') foreach $now, $now - 1, 0;
	is(hello()->[6], '', 'not armed');
	like(arm(at => $now + $hour), qr/^armed /, 'armed');
	like(renew(at => $_), qr/^refused the lease was over/, 'renew until ' . ($_ - $now) . ' ms') foreach $now, 0;
	is(until_of(), $now + $hour, 'until is as armed');
};

subtest 'until is extended, never lowered' => sub {
	fresh();
	my $at = clock() + 2 * $hour;
	like(renew(at => $at), qr/^renewed /, 'renewed');
	is(until_of(), $at, 'renew extends');
	like(renew(at => $at - 1000), qr/^renewed /, 'renewed');
	is(until_of(), $at, 'renew does not lower');
	like(arm(at => $at - 1000), qr/^armed /, 'armed again');
	is(until_of(), $at, 'arm in the same epoch does not lower');
	like(arm(at => $at + 5), qr/^armed /, 'armed again');
	is(until_of(), $at + 5, 'arm in the same epoch extends');
	$redis->call('DEL', 'n:heartbeat');
	renew(until => $hour);
	is($redis->call('EXISTS', 'n:heartbeat'), 1, 'every heartbeat writes a key');
};

subtest 'arm: another server of the same timeline' => sub {
	fresh();
	like(arm(timeline => 4, server => 'a', epoch => next_epoch()), qr/^armed /, 'a server');
	like(arm(timeline => 4, server => 'a', epoch => next_epoch()), qr/^armed /, 'the same server, in another epoch');
	like(arm(timeline => 4, server => 'b', epoch => '99-aa'), qr/^refused armed by another server/, 'another one, lease running');
	is(answer('fence_disarm', 0, 'n', 'cluster', 4), 'disarmed', 'a server that was started again cannot be told from it: it disarms');
	like(arm(timeline => 4, server => 'b', epoch => '99-aa'), qr/^refused armed by another server/, '... which ends no lease for this');
	renew(until => 20);
	like(arm(timeline => 5, server => 'b', epoch => next_epoch()), qr/^armed /, 'a higher timeline may');
	my $at = clock() + 50;
	arm(timeline => 6, server => 'c', epoch => next_epoch(), at => $at);
	1 until clock() > $at;
	like(arm(timeline => 6, server => 'd', epoch => next_epoch()), qr/^armed /, 'after the lease another server may');
};

subtest 'arm: foreign owner, lower timeline' => sub {
	fresh();
	my $armed = join ' ', @{ hello() }[ 4 .. 7 ];
	like(arm(owner => 'other', epoch => '99-aa'), qr/^refused armed by cluster cluster/, 'a foreign owner, lease running');
	like(arm(timeline => 2, epoch => '99-aa'), qr/^refused armed by timeline 3/, 'a lower timeline, lease running');
	is(join(' ', @{ hello() }[ 4 .. 7 ]), $armed, 'nothing changed');
	is(answer('fence_disarm', 0, 'n', 'other', 9), 'refused', 'a foreign owner cannot disarm');
	is(answer('fence_disarm', 0, 'n', 'cluster', 2), 'refused', 'nor a lower timeline');
	is(join(' ', @{ hello() }[ 4 .. 7 ]), $armed, 'nothing changed');
	like(arm(timeline => 4, epoch => next_epoch()), qr/^armed /, 'a higher timeline may');
	is(answer('fence_disarm', 0, 'n', 'cluster', 4), 'disarmed', 'the owner disarms');
	like(arm(owner => 'other', timeline => 1, epoch => next_epoch()), qr/^armed /, 'then a foreign owner may');
	is(join(' ', @{ hello() }[ 4 .. 5 ]), 'other 1', 'and is known');
};

subtest 'disarm ends the lease, not what is known' => sub {
	fresh();
	fill('k', 5);
	reserve('k', '1.a', 5, 6);
	is(answer('fence_disarm', 0, 'n', 'cluster', 3), 'disarmed', 'disarm');
	is(get('k'), 'unarmed', 'get');
	is(reserve('k', '2.a', '', 7), 'unarmed', 'reserve');
	is(commit('k', '1.a', 6), 'committed', 'commit needs no running lease');
	is(version_of('k'), 6, '... and counts');
	like(arm(), qr/^armed /, 'armed again in the same epoch: its domains are still attached');
	is(get('k'), 'miss ' . token() . ' ', 'and its fences are trusted');
};

subtest '[c9] an arm repeated in one epoch wipes nothing' => sub {
	fresh();
	fill('k', 5);
	my $token = token();
	reserve('k', '1.a', 5, 6);
	domain('reserve', '2.a');
	like(arm(domains => '[["1.t", 1], ["1.u", 2]]', reservations => '[["1.t", "2.a"], ["1.u", "3.a"]]'),
		qr/^armed /, 'armed again, with reservations of prepared transactions');
	is(pendings(), 'domain 1.t 2.a, domain 1.u 3.a, k 1.a 6', 'reservations are kept, carried ones are added once');
	is(token(), $token, 'the generation stays');
	domain('abort', '2.a');
	aborts('k', '1.a');
	like(get('k'), qr/^hit $token 5 /, 'the fence is still trusted');
	is(answer('fence_get', 2, 'n:f:1.u:{k}', 'n:v:1.u:{k}'), 'pending', 'a carried reservation holds readers');
};

subtest 'a higher epoch number empties reservations, domains and generations' => sub {
	fresh();
	fill('k', 5);
	my $token = token();
	reserve('k', '1.a', 5, 6);
	domain('reserve', '2.a');
	my $former = $epoch;
	$epoch = next_epoch();
	like(arm(), qr/^armed /, 'armed in a new epoch');
	is(pendings(), '', 'no reservation is left');
	is(get('k'), 'unarmed', 'no domain is attached');
	is(announce('1.t', 1), 'announced 0', 'attached again');
	isnt(token(), $token, 'another token');
	like(get('k'), qr/^miss \S+ \d+$/, 'the fence is not trusted');
	is(put('k', 5, token => $token, ticket => 1), 'refused token', 'nor is what was read under it');
	is(check('k', 5, $token), 0, 'check likewise');
	is(answer('fence_commit', 1, f('k'), $former, '1.a', 6), 'unarmed', 'a commit of the old epoch changes nothing');
};

subtest 'a lower epoch number, or the same with other bits, is refused' => sub {
	fresh();
	my ($number) = $epoch =~ /^(\d+)/;
	like(arm(epoch => ($number - 1) . '-ffff'), qr/^refused already armed in epoch/, 'a lower number');
	like(arm(epoch => "$number-ffff"), qr/^refused already armed in epoch/, 'the same number');
	answer('fence_disarm', 0, 'n', 'cluster', 3);
	like(arm(epoch => ($number - 1) . '-ffff'), qr/^refused already armed in epoch/, 'a lower number after the lease');
	like(arm(epoch => "$number-ffff"), qr/^refused already armed in epoch/, 'the same number after the lease');
	arm();
	is(hello()->[6], $epoch, 'the epoch stays');
};

subtest 'namespaces are apart' => sub {
	fresh();
	fill('k', 5);
	my $other = next_epoch();
	like(arm(ns => 'other', epoch => $other, owner => 'another', timeline => 1), qr/^armed /, 'another one is armed');
	is(hello()->[6], $epoch, 'this one stays armed as it was');
	is(answer('fence_reserve', 1, 'other:f:1.t:{k}', $other, '1.a', '', 9), 'reserved ', 'a reservation there');
	like(get('k'), qr/^hit /, 'is none here');
	is(answer('fence_get', 2, 'other:f:1.t:{k}', 'other:v:1.t:{k}'), 'unarmed', 'an attachment here is none there');
};

subtest 'attachments: announce, end, attach again' => sub {
	fresh();
	my @u = ('n:f:1.u:{k}', 'n:v:1.u:{k}');
	is(answer('fence_get', 2, @u), 'unarmed', 'a domain that is not announced is not answered for');
	is(answer('fence_reserve', 1, $u[0], $epoch, '1.a', '', 1), 'reserved ', '... but may be reserved in');
	is(answer('fence_announce', 0, 'n', '1-aa', '1.u', 7, 'none'), 'unarmed', 'an announcement of another epoch is none');
	is(announce('1.u', 7), 'announced 0', 'announced');
	is(answer('fence_get', 2, @u), 'pending', 'and the reservation counts');
	answer('fence_commit', 1, $u[0], $epoch, '1.a', 1);

	my ($status, $token, $ticket) = @{ fcall('fence_get', 2, @u) };
	is(answer('fence_put', 2, @u, $token, $ticket, 1, 'p', 0), 'stored', 'a value');
	is(announce('1.u', 7), 'announced 0', 'announced once more');
	is(announce('1.u', 6), 'announced 0', 'an older attachment announced late');
	like(answer('fence_get', 2, @u), qr/^hit $token 1 p/, '... changes nothing');
	is(announce('1.u', 8), 'announced 0', 'a newer attachment');
	like(answer('fence_get', 2, @u), qr/^miss (?!$token)\S+ \d/, '... trusts nothing of the former');

	is(answer('fence_domain_reserve', 0, 'n', '1.u', $epoch, '2.a', 8), 'reserved', 'detach: reserved');
	is(answer('fence_domain_commit', 0, 'n', '1.u', $epoch, '2.a'), 'committed', '... and committed');
	is(answer('fence_get', 2, @u), 'unarmed', 'the domain is over');
	is(announce('1.u', 8), 'announced 1', 'a late announcement of the ended attachment is refused');
	is(answer('fence_get', 2, @u), 'unarmed', '... does not revive it');
	is(announce('1.u', 9), 'announced 0', 'attached again');
	my $seen = fcall('fence_get', 2, @u)->[1];
	is(announce('1.u', 8, 'withdrawn'), 'announced 0', 'a late word that a former attachment is not to be served');
	is(fcall('fence_get', 2, @u)->[1], $seen, '... changes nothing');
	is(announce('1.u', 9, 'withdrawn'), 'announced 0', 'this one is not to be served any more:');
	is(answer('fence_get', 2, @u), 'unarmed', 'readers are told unarmed,');
	is(announce('1.u', 9), 'announced 0', 'until it is announced again,');
	isnt(fcall('fence_get', 2, @u)->[1], $seen, 'and nothing of before is trusted');
	is(announce('1.v', 1, 'withdrawn'), 'announced 0', 'one that was never announced');
	like(answer('fence_get', 2, @u), qr/^miss /, 'answers');

	# the reservation knows what ends, whoever commits it: the transaction itself or the patrol
	($status, $token, $ticket) = @{ fcall('fence_get', 2, @u) };
	is(answer('fence_put', 2, @u, $token, $ticket, 4, 'p', 0), 'stored', 'a value');
	is(answer('fence_domain_reserve', 0, 'n', '1.u', $epoch, '3.a', ''), 'reserved', 'many rows');
	is(answer('fence_domain_reserve', 0, 'n', '1.u', $epoch, '3.a', 9), 'reserved', '... and a detach, by one transaction');
	is(answer('fence_domain_reserve', 0, 'n', '1.u', $epoch, '3.a', ''), 'reserved', '... in any order');
	is(answer('fence_domain_abort', 0, 'n', '1.u', $epoch, '4.a'), 'aborted', 'an abort of another stamp');
	is(answer('fence_domain_commit', 0, 'n', '1.u', $epoch, '4.a'), 'committed', 'and a commit that is not pending');
	is(answer('fence_get', 2, @u), 'pending', '... change nothing');
	is(answer('fence_domain_commit', 0, 'n', '1.u', $epoch, '3.a'), 'committed', 'committed');
	is(answer('fence_get', 2, @u), 'unarmed', 'the domain is over');
	announce('1.u', 10);
	like(answer('fence_get', 2, @u), qr/^miss (?!$token)\S+ \d/, 'attached again: nothing of before is trusted');
};

subtest 'slots come and go in one epoch' => sub {
	my ($j, $k) = ('j', 'k');
	my ($slot_j, $slot_k) = map { FenceTest::Router::slot_of("{$_}") } $j, $k;
	my $renewed = sub { my ($slots, $grant) = @_; return (split / /, renew(until => $hour, slots => $slots, grant => $grant), 5)[4]; };

	fresh('unarmed');
	like(arm(domains => '[["1.t", 1]]', slots => $slot_k), qr/^armed /, 'armed for one slot');
	fill($k, 5);
	my $token = token();
	is(get($j), 'unarmed', 'no answer in the other');
	is(reserve($j, '1.a', '', 6), 'reserved -', 'nor a reservation');
	is($renewed->($slot_k, 1), 0, 'granted the same: nothing comes');
	like(get($k), qr/^hit /, '... and nothing goes');

	is($renewed->("$slot_j,$slot_k", 2), 1, 'granted one more');
	like(get($k), qr/^hit /, 'the other one stays warm');
	is(get($j), 'unarmed', 'in the new one readers are not answered yet');
	is(reserve($j, '1.a', '', 6), 'reserved ', '... but reservations are granted');
	is(announce('1.t', 1), 'announced 0', 'an announcement without a grant');
	is(announce('1.t', 1, 'none', 1), 'announced 0', '... and one for a former');
	is(get($j), 'unarmed', '... change nothing');
	is(announce('1.t', 1, 'none', 2), 'announced 0', 'announced for this grant');
	is(get($j), 'pending', 'answered');
	commit($j, '1.a', 6);
	is(answer('fence_domain_reserve', 0, 'n', '1.u', $epoch, '2.a', ''), 'reserved', 'a domain that is made now');
	answer('fence_domain_abort', 0, 'n', '1.u', $epoch, '2.a');
	announce('1.u', 3, 'none', 1);
	is(answer('fence_get', 2, 'n:f:1.u:{j}', 'n:v:1.u:{j}'), 'unarmed', '... and announced late for a former grant is silent there');
	like(answer('fence_get', 2, 'n:f:1.u:{k}', 'n:v:1.u:{k}'), qr/^miss/, '... and only there');

	reserve($k, '3.a', '', 7);
	is($renewed->($slot_j, 3), 0, 'one is taken away');
	is(get($k), 'unarmed', 'no answer there any more');
	is(put($k, 9), 'refused unarmed', '... nor put');
	is(repair($k, 5, 7), 'unarmed', '... nor repair');
	is(pendings(), 'k 3.a 7', 'its reservation is still there');
	is(commit($k, '3.a', 7), 'committed', 'until its commit,');
	is(pendings(), '', 'which does no more');
	is($redis->call('GET', f($k)), "$token 5 ", '... than that');
	fill($j, 6);
	like(get($j), qr/^hit /, 'the slot that stays is warm');
	is($renewed->("$slot_j,$slot_k", 4), 1, 'the slot comes back');
	announce('1.t', 1, 'none', 4);
	isnt(token(), $token, 'under another generation');
	like(get($k), qr/^miss /, 'so what missed a commit is not trusted');
	like(get($j), qr/^miss /, '... nor the rest');

	is($renewed->('none', 5), 0, 'all are taken away');
	is(get($_), 'unarmed', 'no answer') foreach $j, $k;
	is(renew(until => $hour, slots => '', grant => 6) =~ s/ \d+$//r, 'refused all slots, and some, are not of one epoch', 'all is no grant of slots');
	like(renew(until => 2 * $hour, grant => 6), qr/^renewed /, 'a renewal without slots');
	is(get($k), 'unarmed', '... gives none back');
	is(refuses('fence_renew', 0, 'n:heartbeat', $identity, $epoch, clock() + $hour, '{"idle_ms": 1}', '7-x') =~ /expected/ ? 1 : 0, 1,
		'malformed slots');

	fresh('unarmed');
	my $settings = '{"idle_ms": 3600000, "grant": 8, "domains": [["1.t", 1]]}';
	like(arm(settings => $settings, slots => "$slot_j"), qr/^armed /, 'a process that joins is armed with a grant');
	announce('1.t', 1, 'none', 7);
	is(get($j), 'unarmed', 'a late announcement does not make it speak');
	announce('1.t', 1, 'none', 8);
	like(get($j), qr/^miss /, 'its own does');
};

subtest 'until: a lease that runs out by itself' => sub {
	fresh('unarmed');
	my $until = clock() + 200;
	arm(at => $until, domains => '[["1.t", 1]]');
	my $token = token();
	$redis->call('SET', f('k'), "$token 5 ");
	$redis->call('SET', v('k'), "$token 5 \np5");
	my ($hits, $wrong) = (0, 0);
	poll(
		sub {
			my $before = clock();
			my $got = get('k');
			my $after = clock();
			$hits++ if $got =~ /^hit/;
			$wrong++ if $after < $until && $got !~ /^hit/ or $before >= $until && $got ne 'unarmed';
			return $before >= $until;
		},
		'the end of the lease');
	is($wrong, 0, 'get answers until the lease is over and not any more then');
	cmp_ok($hits, '>', 0, 'it did answer');
	is(check('k', 5), 0, 'check says no');
	is(put('k', 6), 'refused unarmed', 'put is refused');
	is(reserve('k', '1.a', '', 7), 'unarmed', 'so is reserve');
	is(domain('reserve', '1.a'), 'unarmed', 'and domain_reserve');
	is(commit('k', '1.a', 6), 'committed', 'commit needs the epoch only');
	is(version_of('k'), 6, '... and counts');
	is(settle('k', '1.a', 7), 'settled', 'so does settle');
	is(version_of('k'), 7, '... and counts');
	is(aborts('k', '1.a'), 'aborted', 'and abort');
	like(renew(until => $hour), qr/^renewed/, 'renewed');
	like(get('k'), qr/^miss $token /, 'answers again');
};

# ---------------------------------------------------------------------------------------------------------------------
# Readers
# ---------------------------------------------------------------------------------------------------------------------

subtest 'get: miss, ticket, hit' => sub {
	fresh();
	my ($status, $token, $ticket) = @{ fcall('fence_get', 2, f('k'), v('k')) };
	is($status, 'miss', 'a missing fence is a miss');
	like($ticket, qr/^\d+$/, 'with a ticket');
	is($token, token(), 'and the current token');
	is(get('k'), "miss $token $ticket", 'the next reader gets the outstanding ticket');
	is(check('k', 5), 0, 'check: no version');
	is(put('k', 5, ticket => $ticket, payload => "a\0b\nc \xff"), 'stored', 'the ticket is redeemed');
	is_deeply(fcall('fence_get', 2, f('k'), v('k')), [ 'hit', $token, 5, "a\0b\nc \xff" ], 'hit, any bytes');
	is(check('k', 5), 1, 'check: the same version');
	is(check('k', $_), 0, "check: not $_") foreach 4, 6, 50;
	is(check('k', 5, 'x'), 0, 'check: another token');
	is_deeply(fcall('fence_current', 1, f('k')), [ $token, 5 ], 'current: what the value names');
	is_deeply(fcall('fence_current', 1, f('other')), [], 'current: nothing without a version');
	$redis->call('DEL', v('k'));
	is(get('k'), "miss $token ", 'a missing value is a miss without a ticket');
	$redis->call('SET', v('k'), "$token 4 \nold");
	is(get('k'), "miss $token ", 'so is a value of another version');
	$redis->call('SET', v('k'), "x$token 5 \nold");
	is(get('k'), "miss $token ", 'or of another token');
	$redis->call('SET', v('k'), "$token 5 no newline");
	is(get('k'), "miss $token ", 'or a broken one');
	my %seen = ($ticket => 1);
	foreach my $loss ('DEL', 'FLUSHALL', 'DEL')
	{
		$redis->call($loss, $loss eq 'DEL' ? f('k') : ());
		$ticket = fcall('fence_get', 2, f('k'), v('k'))->[2];
		ok(!$seen{$ticket}++, "after $loss of the fence: a ticket that was never given before");
	}
	my $ttl = $redis->call('PTTL', f('k'));
	ok(50_000 < $ttl && $ttl <= 60_000, "a fence that has only a ticket goes after a minute: $ttl");
	fill('k', 5);
	cmp_ok($redis->call('PTTL', f('k')), '>', 3_500_000, 'a fence has its idle time to live');
	$redis->call('PEXPIRE', f('k'), 1_000_000);
	reserve('k', '1.a', 5, 6);
	commit('k', '1.a', 6);
	cmp_ok($redis->call('PTTL', f('k')), '>', 3_500_000, 'which begins anew with a commit');
	renew(until => $hour, settings => '{"idle_ms": 3600000, "fill_ms": 300000}');
	get('waited');
	cmp_ok($redis->call('PTTL', f('waited')), '>', 200_000, 'a ticket lives as long as a fill lease');
	renew(until => $hour, settings => '{"idle_ms": 5000}');
	get('short');
	cmp_ok($redis->call('PTTL', f('short')), '<=', 5000, 'and not longer than fences do');
};

subtest 'put: token, ticket, version' => sub {
	fresh();
	my $token = token();
	is(put('k', 5, ticket => 1), 'refused no fence', 'a missing fence refuses');
	my $ticket = fcall('fence_get', 2, f('k'), v('k'))->[2];
	is(put('k', 5, ticket => $_), 'refused ticket', "another ticket: '$_'")
	  foreach '', "0$ticket", "$ticket ", $ticket + 1;
	is(put('k', 5, ticket => $ticket, token => 'x'), 'refused token', 'another token');
	is($redis->call('EXISTS', v('k')), 0, 'nothing was stored so far');
	is(put('k', 5, ticket => $ticket), 'stored', 'the current ticket');
	is(put('k', 4), 'stale 5', 'an older version');
	is(get('k'), "hit $token 5 p5", 'changed nothing');
	is(put('k', 5, payload => 'again'), 'stored', 'the same version, without a ticket');
	is(get('k'), "hit $token 5 again", 'is stored');
	is(put('k', 7), 'stored', 'a newer version');
	is(get('k'), "hit $token 7 p7", 'raises the fence');
	is($redis->call('PTTL', v('k')), -1, 'ttl 0: none');
	is(put('k', 7, ttl => 5000), 'stored', 'with ttl');
	my $ttl = $redis->call('PTTL', v('k'));
	ok($ttl > 0 && $ttl <= 5000, 'the value has it');
	reserve('k', '1.a', 7, 8);
	reserve('k', '2.a', '', 10);
	is(put('k', 9), 'stored', 'put of 9 while 8 and 10 are pending');
	is(pendings(), 'k 1.a 8, k 2.a 10', 'drops no reservation');
	is(get('k'), 'pending', 'they still hold readers');
	aborts('k', $_) foreach '1.a', '2.a';
	my $large = 'x' x 1_000_000;
	is(put('k', 9, payload => $large), 'stored', 'a megabyte');
	is(fcall('fence_get', 2, f('k'), v('k'))->[3], $large, 'comes back');
	foreach my $suffix (':json', ':', ":a\nb")
	{
		is(answer('fence_put', 2, f('k'), v('k') . $suffix, $token, '', 9, $suffix, 0),
			'stored', 'another value of the same fence');
		is(fcall('fence_get', 2, f('k'), v('k') . $suffix)->[3], $suffix, 'comes back');
	}
	is(put('k', 99, payload => 'x' x (4 * 1024 * 1024 + 1)), 'refused too large', 'what is too large for Redis to copy around');
};

subtest 'get_ro: no ticket, no trace' => sub {
	fresh();
	my @pair = (f('k'), v('k'));
	my $before = snapshot();
	my $token = token();
	is(answer('fence_get_ro', 2, @pair), "miss $token ", 'a missing fence');
	is(snapshot(), $before, '... stays missing');
	get('k');
	is(answer('fence_get_ro', 2, @pair), "miss $token ", 'the ticket of another is not told');
	fill('k', 5);
	is(answer('fence_get_ro', 2, @pair), "hit $token 5 p5", 'hit');
	is(join(' ', @{ $redis->call('FCALL_RO', 'fence_get_ro', 2, @pair) }), "hit $token 5 p5", 'with FCALL_RO');
	$redis->call('DEL', v('k'));
	is(answer('fence_get_ro', 2, @pair), "miss $token ", 'no value');
	reserve('k', '1.a', 5, 6);
	is(answer('fence_get_ro', 2, @pair), 'pending', 'pending');
	is(answer('fence_get_ro', 2, 'other:f:1.t:{k}', 'other:v:1.t:{k}'), 'unarmed', 'unarmed');
};

sub get_many { return answer('fence_get_many', 2 * @_, map { (f($_), v($_)) } @_); }

subtest 'get_many: the answers of get, each behind its length' => sub {
	fresh();
	my $token = token();
	fill($_, 5) foreach 'a', 'b';
	is(get_many('a'), "5 hit $token 5 p5 ", 'one; the stamp is not known');
	reserve('a', '1.a', 5, 6);
	reserve('b', '1.a', 5, 6);
	is(get_many('a', 'b'), '1 pending 1 pending', 'a write of both is on its way');
	commit('a', '1.a', 6);
	is(get_many('a', 'b'), "3 miss $token  1 pending", 'half committed: they are not all hits');
	commit('b', '1.a', 6);
	put($_, 6) foreach 'a', 'b';
	is(get_many('a', 'b'), "5 hit $token 6 p6 1.a 5 hit $token 6 p6 1.a", 'the stamp of the transaction that committed both');
	my @reply = @{ fcall('fence_get_many', 6, map { (f($_), v($_)) } 'new', 'a', 'new') };
	my $ticket = $reply[3];
	like($ticket, qr/^\d+$/, 'a missing one is given a ticket');
	is("@reply", "3 miss $token $ticket 5 hit $token 6 p6 1.a 3 miss $token $ticket", 'a fence may be named twice');
	is(put('new', 1, ticket => $ticket), 'stored', 'the ticket is good');
	is(answer('fence_get_many', 4, f('a'), v('a'), 'other:f:1.t:{k}', 'other:v:1.t:{k}'),
		"5 hit $token 6 p6 1.a 1 unarmed", 'other namespaces are apart');
	settle('a', '2.a', 9);
	put('a', 9);
	is(get_many('a'), "5 hit $token 9 p9 ", 'settle does not know whose version it was');

	my $before = snapshot();
	my @most = map { (f("m$_"), v("m$_")) } 1 .. 1001;
	like(refuses('fence_get_many', scalar @most, @most), qr/1 to 1000 pairs/, 'too many');
	like(refuses('fence_get_many', 0), qr/1 to 1000 pairs/, 'none');
	like(refuses('fence_get_many', 4, f('x'), v('x'), f('y'), v('z')), qr/no value of this fence/, 'a wrong pair after a right one');
	is(snapshot(), $before, 'changed nothing');
	is(scalar @{ fcall('fence_get_many', 2000, @most[ 0 .. 1999 ]) }, 4000, 'a thousand');
};

subtest 'check_many: the answers of check' => sub {
	fresh();
	my $token = token();
	fill($_, 5) foreach 'a', 'b', 'c';
	my $check = sub { return answer('fence_check_many', 3, f('a'), f('b'), f('c'), map { ($token, $_) } @_); };
	is($check->(5, 5, 5), '1 1 1', 'all current');
	is($check->(5, 4, 6), '1 0 0', 'other versions');
	is(answer('fence_check_many', 2, f('a'), f('b'), $token, 5, "x$token", 5), '1 0', 'another token');
	reserve('b', '1.a', 5, 6);
	is($check->(5, 5, 5), '1 0 1', 'a write is on its way');
	commit('b', '1.a', 6);
	is($check->(5, 6, 5), '1 1 1', 'committed');
	domain('reserve', '2.a');
	is($check->(5, 6, 5), '0 0 0', 'the domain is reserved');
	is($redis->call('FCALL_RO', 'fence_check_many', 1, f('a'), $token, 5)->[0], 0, 'with FCALL_RO');
	like(refuses('fence_check_many', 2, f('a'), f('b'), $token, 5), qr/token and version for each/, 'one pair too few');
	like(refuses('fence_check_many', 1, f('a'), $token, '05'), qr/malformed version/, 'a malformed version');
	like(refuses('fence_check_many', 1, v('a'), $token, 5), qr/no fence/, 'no fence');
};

subtest 'peek: what is there, and what is known of it' => sub {
	fresh();
	my $peek = sub { return answer('fence_peek', 2, f('k'), v('k')); };
	my $token = token();
	is($peek->(), 'none', 'nothing is there');
	my $before = snapshot();
	is($redis->call('FCALL_RO', 'fence_peek', 2, f('k'), v('k'))->[0], 'none', 'with FCALL_RO');
	is(snapshot(), $before, 'no ticket is given');
	fill('k', 5);
	is($peek->(), "fresh $token 5 p5  5", 'what get would hit');
	reserve('k', '1.a', 5, 6);
	is($peek->(), "pending $token 5 p5  5", 'a write is on its way');
	commit('k', '1.a', 6);
	is($peek->(), "stale $token 5 p5  6", 'a newer version is committed');
	reserve('k', '2.a', 6, 7);
	is($peek->(), "stale $token 5 p5  6", '... and another is on its way');
	aborts('k', '2.a');
	grants('k', '3.a', 6, 8);
	writes('k', 'v', '3.a', 8, 0, "a\nb");
	is($peek->(), "fresh $token 8 a\nb 3.a 8", 'a value that its writer brought, with his stamp');
	domain('reserve', '4.a');
	is($peek->(), "pending $token 8 a\nb 3.a 8", 'the domain is reserved');
	domain('commit', '4.a');
	is($peek->(), "unknown $token 8 a\nb 3.a ", 'after a bulk change nothing is known of it');
	fill('k', 9);
	$redis->call('DEL', f('k'));
	is($peek->(), 'unknown ' . token() . ' 9 p9  ', 'a lost fence');
	get('k');
	is($peek->(), 'unknown ' . token() . ' 9 p9  ', 'one with a ticket only');
	reserve('k', '5.a', '', 10);
	is($peek->(), 'pending ' . token() . ' 9 p9  ', 'a write is on its way all the same');
	fill('l', 9);
	answer('fence_disarm', 0, 'n', 'cluster', 3);
	is(answer('fence_peek', 2, f('l'), v('l')), 'unknown ' . token() . ' 9 p9  ', 'without a lease');
	$redis->call('SET', v('l'), $_) && is(answer('fence_peek', 2, f('l'), v('l')), 'none', 'no value of ours')
	  foreach '', 'x', 'a b c', "t 05 \nx", "t 5 s";
	$redis->call('DEL', v('l'));
	$redis->call('RPUSH', v('l'), 1);
	is(answer('fence_peek', 2, f('l'), v('l')), 'none', 'nor is a list');
	like(refuses('fence_peek', 2, f('l'), v('k')), qr/no value of this fence/, 'of another fence');
};

subtest '[6c] a ticket of an older generation is worth nothing' => sub {
	fresh();
	my ($status, $token, $ticket) = @{ fcall('fence_get', 2, f('k'), v('k')) };
	domain('reserve', '1.a');
	domain('commit', '1.a');
	is(put('k', 5, token => $token, ticket => $ticket), 'refused token', 'with the token it was given with');
	is(put('k', 5, ticket => $ticket), 'refused ticket', 'with the current token: the fence has another one');
	isnt(fcall('fence_get', 2, f('k'), v('k'))->[2], $ticket, 'and get gives another ticket');
	is(put('k', 5, ticket => $ticket), 'refused ticket', 'still refused');
};

# ---------------------------------------------------------------------------------------------------------------------
# Writers
# ---------------------------------------------------------------------------------------------------------------------

subtest 'reserve: granted, max(own, w)' => sub {
	fresh();
	fill('k', 5);
	is(reserve('k', '1.a', 5, 6), 'reserved ', 'granted');
	is(get('k'), 'pending', 'readers wait');
	is(check('k', 5), 0, 'check says no');
	is(reserve('k', '1.a', 5, 5), 'reserved ', 'at the version: granted');
	is(pendings(), 'k 1.a 6', 'what was granted before stays');
	is(reserve('k', '1.a', 5, 9), 'reserved ', 'the same stamp again, higher');
	is(reserve('k', '1.a', 5, 7), 'reserved ', '... lower');
	is(pendings(), 'k 1.a 9', 'the highest counts');
	is(reserve('k', '2.a', '', 8), 'reserved ', 'another stamp');
	is(pendings(), 'k 1.a 9, k 2.a 8', 'both are pending');
	is(answer('fence_reserve', 3, f('k'), f('l'), f('k'), $epoch, '3.a', '', 5, '', 1, '', 12),
		'reserved   ', 'several fences in one message, an answer for each');
	is(pendings(), 'k 1.a 9, k 2.a 8, k 3.a 12, l 3.a 1', 'all counted');
};

subtest 'a fence that is not below what is reserved' => sub {
	foreach my $w (5, 4)
	{
		fresh();
		fill('k', 5);
		is(reserve('k', '1.a', '', $w), 'reserved ', "at 5, $w is granted");
		is(get('k'), 'pending', 'readers wait');
		aborts('k', '1.a');
		is(version_of('k'), 5, 'an abort leaves it');
		reserve('k', '1.a', '', $w);
		commit('k', '1.a', $w);
		is(version_of('k'), 'none', 'behind a commit it is gone, as if it had been evicted');
		fill('k', 5);
		reserve('k', '1.a', '', $w);
		reserve('k', '1.a', 5, 6);
		commit('k', '1.a', 6);
		is(version_of('k'), 6, 'unless the last word was above it');
	}
};

subtest 'reserve drops nobody else\'s reservation' => sub {
	fresh();
	fill('k', 5);
	reserve('k', '1.a', 5, 6);
	reserve('k', '2.a', 5, 8);
	is(reserve('k', '3.a', 6, 9), 'reserved ', 'observed 6: the first one must have committed, or the table was truncated');
	is(version_of('k'), 6, 'the version is raised to it');
	is(pendings(), 'k 1.a 6, k 2.a 8, k 3.a 9', 'each ends by itself');
	is(reserve('k', '4.a', 3, 9), 'reserved ', 'observed below the version');
	is(version_of('k'), 6, 'lowers nothing');
	aborts('k', $_) foreach '1.a', '2.a', '3.a', '4.a';
	is(get('k'), 'miss ' . token() . ' ', 'the old value is not served for the raised version');
	$redis->call('DEL', f('k'));
	reserve('k', '5.a', '', 7);
	reserve('k', '6.a', 7, 8);
	is(pendings(), 'k 5.a 7, k 6.a 8', 'without a version too');
	is(version_of('k'), 'none', '[3] and none is made');
};

# The versions of a truncated table restart, so what is said of its former rows must not end what is reserved for new ones.
subtest 'a late settle or commit of a row that TRUNCATE removed' => sub {
	foreach my $late (sub { return settle('k', '1.a', 10); }, sub { return commit('k', '1.a', 10); })
	{
		fresh();
		fill('k', 9);
		reserve('k', '1.a', 9, 10);
		domain('reserve', '2.a');
		domain('commit', '2.a');
		# the row came back at version 1, and is being changed
		is(reserve('k', '3.a', 1, 2), 'reserved ', 'granted');
		$late->();
		is(pendings(), 'k 3.a 2', 'the reservation of the new row stays');
		is(get('k'), 'pending', 'so no reader caches what it is about to replace');
	}
};

subtest '[2] [3] reserve gives no version and takes the ticket' => sub {
	fresh();
	my $ticket = fcall('fence_get', 2, f('k'), v('k'))->[2];
	is(reserve('k', '1.a', '', 1), 'reserved ', 'nothing observed (an INSERT)');
	is(version_of('k'), 'none', 'the ticket is gone');
	is(put('k', 0, ticket => $ticket), 'refused no fence', 'and cannot be redeemed any more');
	aborts('k', '1.a');
	is(version_of('k'), 'none', 'the abort leaves no version');
	$ticket = fcall('fence_get', 2, f('k'), v('k'))->[2];
	is(reserve('k', '2.a', 7, 8), 'reserved ', 'observed without a version in the fence');
	is(version_of('k'), 'none', '... makes none');
	is(put('k', 7, ticket => $ticket), 'refused no fence', '... and takes the ticket');
	# a reader between reserve and commit
	is(get('k'), 'pending', 'no new ticket while it is pending');
	commit('k', '2.a', 8);
	isnt(fcall('fence_get', 2, f('k'), v('k'))->[2], $ticket, 'the next one is new');
};

subtest '[2b] the observed version is optional and never the floor' => sub {
	fresh();
	fill('k', 5);
	is(reserve('k', '1.a', '', 100), 'reserved ', 'a row that starts above a floor of 99, nothing observed');
	is(version_of('k'), 5, 'raises nothing');
};

subtest 'commit' => sub {
	fresh();
	fill('k', 5);
	my $token = token();
	reserve('k', '1.a', 5, 6);
	is(commit('k', '1.a', 6), 'committed', 'committed');
	is($redis->call('GET', f('k')), "$token 6 1.a", 'version and stamp');
	is(pendings(), '', 'the reservation is over');
	is(get('k'), "miss $token ", 'the old value is not served');
	reserve('k', "$_.a", 6, $_) foreach 7, 8, 9;
	is(commit('k', '8.a', 8), 'committed', 'the second of three');
	is(pendings(), 'k 7.a 7, k 9.a 9', 'drops its own');
	is(commit('k', '7.a', 7), 'committed', 'an older one that comes late');
	is(version_of('k'), 8, 'lowers nothing');
	is(commit('k', '9.a', 8), 'committed', 'at less than was reserved');
	is(pendings(), '', 'the own one is dropped all the same');
	is(commit('k', '10.a', 12), 'committed', 'without a reservation');
	is(version_of('k'), 12, 'raises too: it is in PostgreSQL');
	fill('l', 3);
	reserve($_, '20.a', '', 13) foreach 'k', 'l';
	is(answer('fence_commit', 2, f('k'), f('l'), $epoch, '20.a', 13, 13), 'committed', 'several fences in one message');
	is(version_of('k') . version_of('l') . pendings(), '1313', 'all of them');
};

subtest '[4] a late commit does not revive a fence' => sub {
	fresh();
	fill('k', 5);
	reserve('k', '1.a', 5, 6);
	$redis->call('DEL', f('k'));
	is(commit('k', '1.a', 6), 'committed', 'evicted between reserve and commit');
	is(version_of('k'), 'none', 'no fence');
	is(pendings(), '', 'no reservation');
	my $ticket = fcall('fence_get', 2, f('k'), v('k'))->[2];
	is(commit('k', '1.a', 6), 'committed', 'once more, with a ticket outstanding');
	is(version_of('k'), 'none', 'the ticket is deleted');
	is(put('k', 6, ticket => $ticket), 'refused no fence', '... and refused');
	reserve('k', "$_.a", 6, $_) foreach 7, 8;
	commit('k', '7.a', 7);
	is(pendings(), 'k 8.a 8', 'reservations up to the committed version are dropped without a version too');
	is(writes('k', 'v', '8.a', 8, 0, 'p'), 'written', 'with a value');
	is($redis->call('EXISTS', v('k'), f('k')), 1, 'stores none (what is there is the old value)');
	is(get('k') =~ /^miss \S+ \d+$/, 1, 'a miss with a ticket');
};

subtest 'a commit with the row: it stays a hit' => sub {
	fresh();
	fill('k', 5);
	my $token = token();
	grants('k', '1.a', 5, 6);
	is(writes('k', 'v', '1.a', 6, 60_000, 'six'), 'written', 'committed');
	is(get('k'), "hit $token 6 six", 'the value is served');
	is($redis->call('GET', v('k')), "$token 6 1.a\nsix", 'with its stamp');
	cmp_ok($redis->call('PTTL', v('k')), '>', 1000, 'and ttl');
	is(writes('k', 'v', '1.a', 6, 0, 'another'), 'written', 'once more: its reservation is over');
	is(get('k'), "hit $token 6 six", '... stores nothing');

	grants('k', '2.a', 6, 7);
	grants('k', '3.a', 7, 8);
	is(writes('k', 'v', '3.a', 8, 0, 'eight'), 'written', 'a newer one');
	is(writes('k', 'v', '2.a', 7, 0, 'seven'), 'written', 'comes before an older one');
	is(get('k'), "hit $token 8 eight", 'which stores nothing');

	grants('k', '4.a', 8, 9);
	is(settle('k', '4.a', 9), 'settled', 'settled by the patrol');
	is(writes('k', 'v', '4.a', 9, 0, 'nine'), 'written', 'before its own word came');
	is(get('k'), "miss $token ", '... which stores nothing then');

	grants('k', '7.a', 9, 10);
	is(writes('k', 'v', '7.a', 10, 0, 'ten', 2), 'written', 'under another grant than the one that was given last');
	is(get('k'), "miss $token ", '... which stores nothing');
	fill('k', 10);
	grants('k', '8.a', 10, 12);
	grants('k', '9.a', 10, 11);
	is(writes('k', 'v', '9.a', 11, 0, 'eleven'), 'written', 'of two transactions');
	is(writes('k', 'v', '8.a', 12, 0, 'twelve'), 'written', '... the second');
	is(get('k'), "miss $token ", '... stores nothing: since it was granted another commit has ended');
	fill('k', 12);

	# as several words of one message, each sees what the former did
	is(answer('fence_write', 0, 3, (f('k')) x 3, $epoch, qw(g 5.a 12 13 1 v 5.a 13 0 ten 1 r 6.a 13 14)), 'written  ',
		'reserved, committed and reserved again');
	is(pendings() . version_of('k'), 'k 6.a 1413', 'in that order');
	aborts('k', '6.a');
	is(get('k'), "hit $token 13 ten", 'the value is served');
};

subtest 'a commit without a row: the value goes' => sub {
	fresh();
	fill('k', 5);
	my $token = token();
	reserve('k', '1.a', 5, 6);
	is(writes('k', 'd', '1.a', 6), 'written', 'deleted');
	is(get('k'), "miss $token ", 'a miss');
	is($redis->call('EXISTS', v('k')), 0, 'whose value takes no memory');
	put('k', 8);
	is(writes('k', 'd', '2.a', 7), 'written', 'an older one that comes late');
	is(get('k'), "hit $token 8 p8", 'takes nothing away');
};

subtest 'a late commit with a row from before TRUNCATE stores nothing' => sub {
	foreach my $again ('its reservation was settled', 'its reservation is still there', 'and a fence was restored')
	{
		fresh();
		fill('k', 5);
		grants('k', '1.a', 5, 6);
		domain('reserve', '2.a');
		domain('commit', '2.a');
		settle('k', '1.a', '') if $again =~ /settled/;
		# versions restart: the row that has version 6 now is another one
		fill('k', 6) if $again =~ /settled/;
		$redis->call('SET', f('k'), token() . ' 6 ') if $again =~ /restored/;
		is(writes('k', 'v', '1.a', 6, 0, 'of before'), 'written', "late: $again");
		unlike(get('k'), qr/of before/, 'is not served');
		fill('k', 6) unless $again =~ /settled/;
		like(get('k'), qr/^hit \S+ 6 p6$/, 'the new row is');
		is(pendings(), '', 'nothing is left over');
	}
};

subtest 'abort drops the own reservation only' => sub {
	fresh();
	fill('k', 5);
	reserve('k', '1.a', 5, 6);
	reserve('k', '2.a', 5, 7);
	is(aborts('k', '1.a'), 'aborted', 'aborted');
	is(pendings(), 'k 2.a 7', 'its own');
	is(aborts('k', '3.a'), 'aborted', 'nothing to abort');
	is(answer('fence_abort', 2, f('l'), f('k'), $epoch, '2.a'), 'aborted', 'several fences');
	is(pendings(), '', 'none is left');
	like(get('k'), qr/^hit \S+ 5 p5$/, 'the value is served again');
};

subtest '[5] settle' => sub {
	fresh();
	fill('k', 5);
	reserve('k', '1.a', 5, 6);
	is(settle('k', '1.a', 6), 'settled', 'with the version of the row');
	is(version_of('k') . pendings(), '6', 'as a commit');
	reserve('k', '2.a', 6, 7);
	reserve('k', '3.a', 6, 9);
	is(settle('k', '2.a', 8), 'settled', 'a newer version than it reserved');
	is(version_of('k') . pendings(), '8k 3.a 9', 'as a commit');
	is(settle('k', '3.a', ''), 'settled', 'neither row nor tombstone');
	is(version_of('k') . pendings(), 'none', 'the fence goes with the reservation');
	reserve('k', '4.a', '', 7);
	is(settle('k', '4.a', 7), 'settled', 'after an eviction');
	is(version_of('k') . pendings(), 'none', 'no fence is made');
	is(settle('k', '5.a', 9), 'settled', 'late and unknown');
	is(version_of('k'), 'none', 'nothing');
	fill('k', 9);
	is(settle('k', '5.a', 7), 'settled', 'late and older');
	is(version_of('k'), '9', 'nothing');
	reserve('k', '6.a', 9, 10);
	reserve('k', '7.a', 9, 11);
	settle('k', '6.a', '');
	is(pendings(), 'k 7.a 11', 'without a version only the own one is dropped');
};

subtest 'repair never lowers' => sub {
	fresh();
	is(repair('k', 5, 6), 'unchanged', 'no fence');
	my $ticket = fcall('fence_get', 2, f('k'), v('k'))->[2];
	is(repair('k', 5, 6), 'unchanged', 'no version');
	is(put('k', 5, ticket => $ticket), 'stored', 'the ticket is still good');
	is(repair('k', 5, 5), 'unchanged', 'equal');
	is(repair('k', 3, 6), 'repaired', 'behind the row');
	is(version_of('k'), 6, 'raised');
	is(repair('k', 5, 4), 'unchanged', 'ahead of the row, but not the version seen');
	is(version_of('k'), 6, 'stays');
	is(repair('k', 6, 4), 'repaired', 'ahead of the row');
	is(version_of('k'), 'none', 'removed, not lowered');
	fill('k', 6);
	is(repair('k', 5, ''), 'unchanged', 'no row, but not the version seen');
	is(repair('k', 6, ''), 'repaired', 'no row');
	is(version_of('k'), 'none', 'removed');
};

subtest 'reservations are no keys' => sub {
	fresh();
	fill('k', 5);
	reserve('k', '1.a', 5, 6);
	foreach my $loss ([ 'DEL', f('k'), v('k') ], ['FLUSHALL'], ['FLUSHDB'], [ 'SCRIPT', 'FLUSH' ])
	{
		$redis->call(@$loss);
		is(get('k'), 'pending', "after $loss->[0]");
	}
	commit('k', '1.a', 6);
	like(get('k'), qr/^miss \S+ \d+$/, 'after the commit a miss with a ticket');
};

# ---------------------------------------------------------------------------------------------------------------------
# Domains
# ---------------------------------------------------------------------------------------------------------------------

subtest 'domain reservations' => sub {
	fresh();
	fill('k', 5);
	my $token = token();
	is(domain('reserve', '1.a'), 'reserved', 'reserved');
	is(domain('reserve', '1.a'), 'reserved', 'twice by the same');
	is(domain('reserve', '2.a'), 'reserved', 'by another');
	is(pendings(), 'domain 1.t 1.a, domain 1.t 2.a', 'listed once each');
	is(get('k'), 'pending', 'holds every reader of the domain');
	is(get('never seen'), 'pending', 'also of keys without a fence');
	is(check('k', 5), 0, 'check says no');
	is(fcall('fence_status', 1, f('k'))->[4], 2, 'status counts them');
	is(domain('abort', '1.a'), 'aborted', 'one is aborted');
	is(get('k'), 'pending', 'the other holds');
	is(domain('abort', '2.a'), 'aborted', 'aborted');
	is(get('k'), "hit $token 5 p5", 'nothing changed: the value is served again');
};

subtest '[6b] domain_commit: a new generation, only if pending' => sub {
	fresh();
	fill('k', 5);
	my %seen = (token() => 1);
	is(domain('commit', '1.a'), 'committed', 'not pending');
	ok($seen{ token() }, 'changes nothing');
	foreach my $round (1 .. 3)
	{
		domain('reserve', '1.a');
		is(domain('commit', '1.a'), 'committed', "round $round, always the same stamp");
		my $token = token();
		ok(!$seen{$token}++, 'another token each time');
		domain('commit', '1.a');
		is(token(), $token, 'once only');
		like(get('k'), qr/^miss $token \d+$/, 'nothing cached before is trusted');
		fill('k', 5 + $round);
	}
};

subtest '[6a] a domain_commit leaves reservations of rows alone' => sub {
	fresh();
	fill('k', 5);
	reserve('k', '1.a', 5, 6);
	domain('reserve', '2.a');
	domain('commit', '2.a');
	is(pendings(), 'k 1.a 6', 'it lives on');
	is(get('k'), 'pending', 'and holds readers');
	is(reserve('k', '3.a', 5, 7), 'reserved ', 'touching the fence of the other token');
	is(version_of('k'), 'none', 'drops its version');
	is(pendings(), 'k 1.a 6, k 3.a 7', 'not the reservations');
};

subtest 'a reservation of another generation proves nothing: the fence is deleted' => sub {
	fresh();
	fill('k', 5);
	reserve('k', '1.a', 5, 6);
	reserve('k', '2.a', 5, 8);
	domain('reserve', '3.a');
	domain('commit', '3.a');
	aborts('k', '2.a');
	# a reader cannot get a ticket while it is pending: the fence of the new token is made by hand
	$redis->call('SET', f('k'), token() . ' 5 ');
	is(commit('k', '1.a', 6), 'committed', 'granted under the former generation');
	is(version_of('k'), 'none', 'the fence is deleted');
	is(pendings(), '', 'the reservation is over');

	reserve('k', '4.a', '', 6);
	domain('reserve', '5.a');
	domain('commit', '5.a');
	reserve('k', '4.a', '', 7);
	$redis->call('SET', f('k'), token() . ' 5 ');
	reserve('k', '6.a', '', 7);
	commit('k', '4.a', 7);
	is(version_of('k'), '7', 'granted again under this one: counts');
	is(pendings(), 'k 6.a 7', 'its own is over');
	aborts('k', '6.a');

	reserve('k', '7.a', 7, 8);
	reserve('k', '8.a', 7, 9);
	domain('reserve', '9.a');
	domain('commit', '9.a');
	$redis->call('SET', f('k'), token() . ' 5 ');
	commit('k', '8.a', 9);
	is(version_of('k') . ' ' . pendings(), 'none k 7.a 8', 'the fence is deleted, the other reservation stays');
};

# ---------------------------------------------------------------------------------------------------------------------
# Listings
# ---------------------------------------------------------------------------------------------------------------------

subtest 'pending: a listing in pages' => sub {
	fresh();
	my @expected;
	foreach my $k (1 .. 250)
	{
		foreach my $stamp ('1.a', $k % 3 ? () : '2.a')
		{
			reserve("k$k", $stamp, '', $k);
			push @expected, "k$k $stamp $k";
		}
	}
	domain('reserve', '3.a');
	push @expected, 'domain 1.t 3.a';
	is(pendings('n', $_), join(', ', sort @expected), "everything once, limit $_") foreach 1, 7, 1000;
	my ($cursor, $in, @list) = @{ fcall('fence_pending', 0, 'n', 0, 7, '') };
	is($in, $epoch, 'the epoch is told');
	cmp_ok(@list / 5, '<=', 10, 'a page is not much longer than its limit');
	is(@list % 5, 0, 'five strings each');
	is(answer('fence_pending', 0, 'n', $hour, 10, ''), " $epoch", 'none is that old');
	is(answer('fence_pending', 0, 'other', 0, 10, ''), ' ', 'none in another namespace');

	# settling what a page listed, as the patrol does, misses nothing
	my $rounds = 0;
	$cursor = '';
	do
	{
		($cursor, undef, @list) = @{ fcall('fence_pending', 0, 'n', 0, 9, $cursor) };
		while (my ($kind, $name, $stamp) = splice @list, 0, 5)
		{
			answer('fence_settle', 0, 'n', $name, $epoch, $stamp, '') if $kind eq 'row';
			domain('abort', $stamp) if $kind eq 'domain';
		}
	} while $cursor ne '' && $rounds++ < 1000;
	is(pendings(), '', 'all are settled in one listing');
};

subtest 'status' => sub {
	fresh();
	fill('k', 5);
	reserve('k', '1.a', 5, 6);
	reserve('k', '2.a', 5, 7);
	domain('reserve', '3.a');
	my @status = @{ fcall('fence_status', 1, f('k')) };
	my @ages = map { splice @status, $_, 1 } 13, 10, 7;
	is("@status", 'armed ' . token() . ' 5  3 1.a 6 2.a 7 3.a ', 'the fence and its reservations, that of the domain last');
	ok(!(grep { !/^\d+$/ || $_ > 60_000 } @ages), 'and their ages');
};

# ---------------------------------------------------------------------------------------------------------------------
# Versions are 64 bits, exactly
# ---------------------------------------------------------------------------------------------------------------------

subtest 'versions up to 9223372036854775807 compare exactly' => sub {
	fresh();
	my @edges = qw(0 1 2 9 10 11 99 100 101 2147483647 2147483648 9007199254740991 9007199254740992 9007199254740993
	  9007199254740994 90071992547409920 123456789012345677 123456789012345678 999999999999999999 1000000000000000000
	  1000000000000000001 9223372036854775806 9223372036854775807);
	my $wrong = '';
	foreach my $i (0 .. $#edges)
	{
		foreach my $j (0 .. $#edges)
		{
			my ($a, $b, $k) = (@edges[ $i, $j ], "$i.$j");
			my %expected = (
				reserve => 'reserved ' . ($j > $i ? $b : 'none'),
				put     => $j < $i ? "stale $a"  : 'stored',
				check   => $j < $i ? "$a 1 0"    : $j > $i ? "$b 0 1" : "$a 1 1",
				repair  => $j > $i ? "repaired $b" : $j < $i ? 'repaired none' : "unchanged $a",
				commit  => $edges[ $i > $j ? $i : $j ]);
			my %got;
			my ($status, $token, $ticket) = @{ fcall('fence_get', 2, f($k), v($k)) };
			put($k, $a, ticket => $ticket, token => $token);
			$got{reserve} = reserve($k, '1.a', '', $b);
			commit($k, '1.a', $b);
			$got{reserve} .= version_of($k);
			$redis->call('SET', f($k), "$token $a ");
			$got{put} = put($k, $b, token => $token);
			$got{check} = join ' ', version_of($k), map { check($k, $_, $token) } $a, $b;

			# commit and repair, each on a fence that has version a
			$redis->call('SET', f($k), "$token $a ");
			$got{repair} = repair($k, $a, $b) . ' ' . version_of($k);
			$redis->call('SET', f($k), "$token $a ");
			commit($k, '1.a', $b);
			$got{commit} = version_of($k);

			foreach my $what (sort keys %expected)
			{
				$wrong .= "$what $a, $b: $got{$what}, not $expected{$what}\n" if $got{$what} ne $expected{$what};
			}
		}
	}
	is($wrong, '', 'reserve, put, check, repair, commit of ' . @edges . ' x ' . @edges . ' versions');
	is(reserve('max', '1.a', '9223372036854775806', '9223372036854775807'), 'reserved ', 'the last version');
	is(pendings(), 'max 1.a 9223372036854775807', 'is listed in full');
};

# ---------------------------------------------------------------------------------------------------------------------
# Other databases
# ---------------------------------------------------------------------------------------------------------------------

subtest 'a reader in another database reads the same fences' => sub {
	fresh();
	fill('k', 5);
	my $token = token();
	my $third = $redis->connect;
	$third->call('SELECT', 3);
	my $got = sub { return join ' ', @{ $third->call('FCALL', 'fence_get', 2, f($_[0]), v($_[0])) }; };
	is($got->('k'), "hit $token 5 p5", 'get');
	is($third->call('FCALL', 'fence_check', 1, f('k'), $token, 5), 1, 'check');
	is($third->call('FCALL', 'fence_put', 2, f('k'), v('k'), $token, '', 6, 'six', 0)->[0], 'stored', 'put');
	is(get('k'), "hit $token 6 six", '... is seen in database 0');
	my ($status, undef, $ticket) = @{ $third->call('FCALL', 'fence_get', 2, f('l'), v('l')) };
	is(get('l'), "miss $token $ticket", 'and a ticket');
	$third->call('FCALL', 'fence_put', 2, f('l'), v('l'), $token, $ticket, 1, 'one', 0);
	reserve('l', '1.a', 1, 2);
	is($got->('l'), 'pending', 'a reservation is seen there');
	commit('l', '1.a', 2);
	is($got->('l'), "miss $token ", 'and a commit: nothing stale is served');

	# writers there
	$third->call('FCALL', 'fence_write', 0, 1, f('k'), $epoch, 'g', '2.a', 6, 7, 1);
	$third->call('FCALL', 'fence_write', 0, 1, f('k'), $epoch, 'v', '2.a', 7, 0, 'seven', 1);
	is(get('k'), "hit $token 7 seven", 'a writer there');
	$third->call('FCALL', 'fence_settle', 0, 'n', f('k'), $epoch, '3.a', 8);
	is(version_of('k'), 8, 'settle there');
	$third->call('FCALL', 'fence_repair', 1, f('k'), $epoch, 8, 9);
	is(version_of('k'), 9, 'repair there');
	is($third->call('FCALL', 'fence_status', 1, f('k'))->[2], 9, 'status there');
	is($third->call('DBSIZE'), 0, 'no fence or value was made in that database');

	# the caller's own choice of a database stays, also inside MULTI
	$third->call('SET', 'here', 1);
	$third->call('MULTI');
	$third->call('FCALL', 'fence_get', 2, f('m'), v('m'));
	$third->call('SET', 'here too', 1);
	$third->call('EXEC');
	is(join(' ', sort @{ $third->call('KEYS', '*') }), 'here here too', 'the caller stays where he was');
	is($redis->call('EXISTS', 'here', 'here too', f('m')), 1, 'and the fence is in database 0');

	my $replica = FenceTest::Redis->start;
	$replica->call('REPLICAOF', '127.0.0.1', $redis->port);
	poll(sub { ($replica->info('replication', 'master_link_status') // '') eq 'up' }, 'the replica link');
	$third->call('FCALL', 'fence_put', 2, f('k'), v('k'), $token, '', 10, 'ten', 0);
	$third->call('SET', 'here', 2);
	poll(
		sub { $redis->info('replication', 'master_repl_offset') eq $replica->info('replication', 'master_repl_offset') },
		'the replica to be level');
	is($replica->call('GET', v('k')), "$token 10 \nten", 'a replica gets it into database 0');
	$replica->call('SELECT', 3);
	is($replica->call('GET', 'here'), 2, '... and the rest where it belongs');
	$replica->stop;
};

# ---------------------------------------------------------------------------------------------------------------------
# Fill leases
# ---------------------------------------------------------------------------------------------------------------------

sub with_fill { my ($ms) = @_; return renew(until => $hour, settings => qq({"idle_ms": 3600000, "fill_ms": $ms})); }

subtest 'one reader fills, the others are told so' => sub {
	fresh();
	like(get('k'), qr/^miss \S+ \d+$/, 'without fill leases nobody is busy') foreach 1, 2;
	$redis->call('DEL', f('k'));
	like(with_fill(60_000), qr/^renewed/, 'a renewal brings the setting');
	my ($ticket) = get('k') =~ /^miss \S+ (\d+)$/;
	ok($ticket, 'the first is asked to fill');
	my ($ms) = get('k') =~ /^miss \S+ $ticket busy (\d+)$/;
	cmp_ok($ms, '<=', 60_000, 'the second is told for how long, and the same ticket') if ok(defined $ms, 'the second is told');
	like(get('l'), qr/^miss \S+ \d+$/, 'another key is another matter');
	is(put('k', 5, ticket => $ticket), 'stored', 'who does not know of busy puts all the same');
	like(get('k'), qr/^hit/, 'a hit');

	$redis->call('DEL', v('k'));
	like(get('k'), qr/^miss \S+ $/, 'the value was evicted: the first');
	like(get('k'), qr/^miss \S+  busy \d+$/, '... and the second; none needs a ticket');
	is(answer('fence_release', 1, f('k')), 'released', 'the first gives up');
	like(get('k'), qr/^miss \S+ $/, 'the next one is asked');
	reserve('k', '1.a', 5, 6);
	is(get('k'), 'pending', 'pending is no miss');
	commit('k', '1.a', 6);
	like(get('k'), qr/^miss \S+ $/, 'a new version is a new matter: nobody waits for the filler of the old one');
	like(get('k'), qr/ busy /, '... but for its own');
	domain('reserve', '2.a');
	domain('commit', '2.a');
	like(get('k'), qr/^miss \S+ \d+$/, 'so is a new generation');
	is(answer('fence_release', 1, 'n:f:1.nosuch:{k}'), 'released', 'of nothing known');
};

subtest 'a filler that dies holds nobody for longer than its lease' => sub {
	fresh();
	with_fill(300);
	like(get('k'), qr/^miss \S+ \d+$/, 'asked');
	my $before = clock();
	my ($told) = get('k') =~ / busy (\d+)$/;
	cmp_ok($told // 1000, '<=', 300, 'told');
	poll(sub { get('k') !~ /busy/ }, 'the end of the fill lease');
	cmp_ok(clock() - $before, '>=', $told // 0, 'not before it was over') if defined $told;
	like(get('k'), qr/ busy /, 'the one who was told nothing then is the next');
	# what is remembered of them goes with the heartbeats, though nobody asks any more: every call pays for what is there
	my $memory = sub { return $redis->info('memory', 'used_memory_vm_functions') // 0; };
	my $least = $memory->();
	get("many$_") foreach 1 .. 10_000;
	my $most = $memory->();
	poll(sub { with_fill(300); check('k', 1) foreach 1 .. 200; $memory->() <= $least + ($most - $least) / 2 },
		"$most bytes to be given back, down to $least");
	with_fill(0);
	unlike(get('k'), qr/busy/, 'turned off') foreach 1, 2;
};

# ---------------------------------------------------------------------------------------------------------------------
# Events
# ---------------------------------------------------------------------------------------------------------------------

# One table that publishes so, with some of everything that commits, and what does not.
sub commit_all_kinds
{
	my ($k) = @_;

	fill($k, 1);
	reserve($k, "$_.e", '', $_) foreach 2 .. 8;
	commit($k, '2.e', 2);
	commit($k, '2.e', 2);
	writes($k, 'v', '3.e', 3, 0, 'row');
	writes($k, 'd', '4.e', 4);
	aborts($k, '5.e');
	settle($k, '6.e', 7);
	settle($k, '8.e', '');
	writes($k, 'c', '7.e', 7);
	domain('reserve', '9.e');
	domain('commit', '9.e');
	domain('commit', '9.e');
	domain('reserve', '10.e');
	domain('abort', '10.e');
	return;
}

my @events = map { my ($w, $by) = /(\S+) (\S+)/; "$w $by" } ('2 2.e', '3 3.e', '4 4.e', '7 6.e', '- 8.e', '7 7.e', '- 9.e');

subtest 'events: pubsub' => sub {
	fresh('unarmed');
	arm();
	announce('1.t', 1, 'pubsub');
	my $listener = $redis->connect;
	$listener->call('SUBSCRIBE', 'n:e:1.t');
	commit_all_kinds('k');
	my @is = map { $listener->reply->[2] } @events;
	is(join("\n", @is), join("\n", map { '1.t ' . (/ 9/ ? '-' : f('k')) . " $_" } @events), 'each commit once, no abort');
	ok(!$listener->has_reply, 'and no more');
	announce('1.t', 2, 'none');
	fill('k', 8);
	reserve('k', '20.e', 8, 9);
	commit('k', '20.e', 9);
	ok(!$listener->has_reply, 'attached again without: none');
};

subtest 'events: stream' => sub {
	fresh('unarmed');
	arm(settings => '{"idle_ms": 3600000, "stream_max": 20}');
	announce('1.t', 1, 'stream');
	commit_all_kinds('k');
	my @is = map { my %e = @{ $_->[1] }; "$e{domain} $e{fence} $e{version} $e{stamp}" } @{ $redis->call('XRANGE', 'n:e:1.t', '-', '+') };
	is(join("\n", @is), join("\n", map { '1.t ' . (/ 9/ ? '-' : f('k')) . " $_" } @events), 'each commit once, no abort');
	cmp_ok($redis->call('PTTL', 'n:e:1.t'), '>', 1000, 'a stream that nothing is added to goes');
	foreach my $w (1 .. 2000)
	{
		reserve('l', "$w.l", '', $w);
		commit('l', "$w.l", $w);
	}
	cmp_ok($redis->call('XLEN', 'n:e:1.t'), '<', 500, 'its length is limited');
	$redis->call('SET', 'n:e:1.t', 'no stream');
	reserve('l', '1.m', '', 3000);
	is(commit('l', '1.m', 3000), 'committed', 'an event that cannot be written stops nothing');
};

subtest 'events in a cluster: to the slot of the fence' => sub {
	my $bus = 'cluster-port ' . FenceTest::Redis::_free_port();		# the usual one may be too high for a port
	my $cluster = FenceTest::Redis->start(config => [ 'cluster-enabled yes', 'cluster-require-full-coverage no', $bus ]);
	local $FenceTest::Library::redis = $cluster;
	$cluster->call('CLUSTER', 'ADDSLOTSRANGE', 0, 16383);
	poll(sub { $cluster->call('CLUSTER', 'INFO') =~ /cluster_state:ok/ }, 'the cluster');
	fresh('unarmed');
	arm();
	announce('1.t', 1, 'pubsub');
	my $listener = $cluster->connect;
	$listener->call('SSUBSCRIBE', 'n:e:1.t:{k}');
	my $wide = $cluster->connect;
	$wide->call('SUBSCRIBE', 'n:e:1.t');
	fill('k', 1);
	reserve('k', '2.e', '', 2);
	commit('k', '2.e', 2);
	is($listener->reply->[2], '1.t ' . f('k') . ' 2 2.e', 'rows: sharded, in the channel of their tag');
	domain('reserve', '3.e');
	domain('commit', '3.e');
	is($wide->reply->[2], '1.t - - 3.e', 'the whole domain: to everybody');
	$cluster->stop;
};

# Function memory in kilobytes
sub function_memory { return ($redis->info('memory', 'used_memory_vm_functions') =~ /(\d+)$/)[0] / 1024; }

sub reserve_many
{
	my ($stamp, $first, $n) = @_;
	my @fences = map { f("many$_") } $first .. $first + $n - 1;

	return fcall('fence_write', 0, $n, @fences, $epoch, ('r', $stamp, '', 7) x $n);
}

subtest 'more reservations than a process keeps: the domain as a whole' => sub {
	fresh();
	announce('1.u', 1);
	fill('k', 5);
	my $before = function_memory();
	reserve_many('1.a', $_ * 1000, 1000) foreach 0 .. 99;
	is(get('k'), 'hit ' . token() . ' 5 p5', 'so many are kept');
	is_deeply(reserve_many('2.a', 100_000, 1000), [ 'written', ('') x 1000 ], 'more are granted');
	is(get('k'), 'pending', 'the domain as a whole');
	is(join(',', grep { !/^many\d+ 1\.a 7$/ } split /, /, pendings()), 'domain 1.t 2.a', 'with one reservation');
	my $full = function_memory();
	reserve_many('2.a', 101_000 + $_ * 1000, 1000) foreach 0 .. 99;
	cmp_ok(function_memory(), '<', 2 * $full, 'memory is bounded');
	is(answer('fence_write', 0, 1, 'n:f:1.u:{k}', $epoch, 'r', '3.a', '', 7), 'written ', 'a domain that has few keeps rows');
	unlike(pendings(), qr/domain 1\.u/, '... and is not reserved');
	is(writes('many100000', 'c', '2.a', 7), 'written', 'what is committed');
	is(get('k'), 'pending', '... ends nothing');
	domain('commit', '2.a');
	is(get('many100000') =~ s/ .*//r, 'miss', 'the patrol does, by the fate of the transaction');
	is(get('k') =~ s/ .*//r, 'miss', 'and nothing of before is trusted');

	fcall('fence_write', 0, 1000, (map { f("many$_") } $_ * 1000 .. $_ * 1000 + 999), $epoch, ('a', '1.a') x 1000) foreach 0 .. 99;
	is(pendings(), 'n:f:1.u:{k} 3.a 7', 'all are dropped');
	my $rounds = 0;
	renew(until => $hour) while function_memory() > $before + 20_000 && $rounds++ < 500;
	cmp_ok(function_memory(), '<', $before + 20_000, "memory is given back after $rounds heartbeats, of $full kB");
};

subtest 'a listing of young reservations is a bounded piece of work, too' => sub {
	fresh();
	reserve_many('1.a', $_ * 1000, 1000) foreach 0 .. 9;
	my ($cursor, $pages, @list) = ('', 0);
	do
	{
		($cursor, undef, @list) = @{ fcall('fence_pending', 0, 'n', $hour, 10, $cursor) };
		is(scalar @list, 0, 'nothing is old enough');
		# what the next page begins with is gone by then
		fcall('fence_abort', 1, $cursor, $epoch, '1.a') if $cursor ne '';
		$pages++;
	} while $cursor ne '' && $pages < 100;
	cmp_ok($pages, '>=', 10, 'pages');
	cmp_ok($pages, '<=', 11, 'none begins anew');
};

# Many reservations at once: the table that held them is made anew when most are gone, and every call is as fast as before.
subtest 'many reservations leave nothing behind' => sub {
	fresh();
	my @keys = map { "many$_" } 1 .. 100_000;
	my $cost = sub {
		# more calls than one cycle of Lua's collector takes
		$redis->call('CONFIG', 'RESETSTAT');
		fcall('fence_write', 0, 1, f('many1'), $epoch, 'a', '7.none') foreach 1 .. 5000;
		return ($redis->info('commandstats', 'cmdstat_fcall') =~ /usec_per_call=([\d.]+)/)[0];
	};
	my ($before) = sort { $a <=> $b } map { $cost->() } 1 .. 4;
	foreach my $at (map { $_ * 100 } 0 .. $#keys / 100)
	{
		my @some = @keys[ $at .. $at + 99 ];
		is_deeply(fcall('fence_write', 0, 100, (map { f($_) } @some), $epoch, ('r', '1.a', '', 7) x 100), [ 'written', ('') x 100 ], 'reserved')
		  or last if $at % 5000 == 0;
		fcall('fence_write', 0, 100, (map { f($_) } @some), $epoch, ('r', '1.a', '', 7) x 100) if $at % 5000 != 0;
	}
	is(scalar(split /, /, pendings()), 100_000, 'all are listed');
	foreach my $at (map { $_ * 100 } 0 .. ($#keys - 100) / 100)
	{
		fcall('fence_write', 0, 100, (map { f($_) } @keys[ $at .. $at + 99 ]), $epoch, ('a', '1.a') x 100);
	}
	is(pendings(), join(', ', sort map { "$_ 1.a 7" } @keys[ -100 .. -1 ]), 'those that were not aborted are still there');
	is(aborts('many100000', '1.a'), 'aborted', 'and can be');
	# the first ones pay for the collection; the machine may have other work
	my $after = $cost->();
	foreach (1 .. 20) { last if $after < 1.7 * $before; $after = $cost->(); }
	cmp_ok($after, '<', 1.7 * $before, "calls cost what they did: $after and $before us");
};

done_testing();
