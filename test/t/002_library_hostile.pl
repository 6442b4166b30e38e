# The function library against callers that mean harm or know no better, and against a server that refuses to write:
# every such call is refused and changes nothing, and no function leaves its work half-done.

use strict;
use warnings;

use FenceTest;
use FenceTest::Library;
use Test::More;

# What Redis answers where a user lacks a permission: 7.0, later versions, at the start of a call.
my $denied = qr/can't run this command|permission/;

# ---------------------------------------------------------------------------------------------------------------------
# Hostile arguments. Every function with arguments that are right, then with each one of them replaced.
# ---------------------------------------------------------------------------------------------------------------------

my $long = 'x' x 1_000_000;
my @no_number = (
	'', '-1', '-0', '+1', ' 1', '1 ', "1\n", "1\0", '1.0', '1e3', '0x10', 'x', 'nan', 'inf', "\xff\xfe",
	'9' x 1_000_000);
my %hostile = (
	F => [
		'', 'x', 'n:f:1.t', 'n:f:1.t:k', 'n:f:1.t:{}', 'n:f:1.t:{k', 'n:f::{k}', 'n:f:1.t{k}', ':f:1.t:{k}', v('k'),
		'n m:f:1.t:{k}', "n\0:f:1.t:{k}", 'n:F:1.t:{k}', 'n:heartbeat', "n:f:1.t:{$long}", $long, "\xff\xfe"
	],
	V => [
		'', 'x', f('k'), f('l'), v('l'), v('k') . 'x', 'n:v:1.u:{k}', 'other:v:1.t:{k}', 'n:heartbeat', v('k') . $long,
		"\0"
	],
	W => [ @no_number, '01', '00', '9223372036854775808', '18446744073709551616', '10000000000000000000' ],
	O => [ grep { $_ ne '' } @no_number, '01', '9223372036854775808' ],
	M => [ @no_number, '1' x 16 ],
	Z => [ grep { $_ ne '' } @no_number, '1' x 16 ],
	S => [ '', ' ', 'a b', "a\nb", "a\0", "\xff", $long ],
	N => [ '', 'a b', 'a:b', "\0", 'a' . $long . ' ' ],
	D => [ '', 'a:b', '{a}', $long ],
	H => [ '', 'g', "a\n", '0' x 17, $long ],
	J => [
		'', '{', 'null', '1', '"x"', '[]', '{}', '{"idle_ms": 0}', '{"idle_ms": "x"}', '{"idle_ms": null}',
		'{"idle_ms": 1e300}', '{"idle_ms": 1000, "fill_ms": -1}', '{"idle_ms": 1000, "fill_ms": "x"}',
		'{"idle_ms": 1000, "stream_max": 0}', '{"idle_ms": 1000, "stream_max": []}',
		'{"idle_ms": 1000, "domains": 1}', '{"idle_ms": 1000, "domains": null}', '{"idle_ms": 1000, "domains": [1]}',
		'{"idle_ms": 1000, "domains": [["1.u", 1], ["1.x"]]}', '{"idle_ms": 1000, "domains": [[null, 1]]}',
		'{"idle_ms": 1000, "domains": [["1.u", "x"]]}', '{"idle_ms": 1000, "domains": [["a:b", 1]]}',
		'{"idle_ms": 1000, "reservations": [["1.u", "1.a"], ["1.u"]]}', '{"idle_ms": 1000, "reservations": [["1.u", "a b"]]}',
		'{"idle_ms": 1000, "reservations": [[1, 2]]}', '[' x 10_000
	],
	X => [ '', 'x', 'rr', 'R', "\0", $long ],        # operation
	C => [ @no_number, '1', '2', '4', '1001', '1' x 16 ],    # how many fences follow
	L => [ ' ', 'x', '-', ',', '-1', '1-', '2-1', '0-16384', '16384', '1-2-3', '0--1', '1' x 20 ],    # slots
	P => [ '', 'x', 'None', "none\0", $long ],       # how to publish
	# these are answered, but not obeyed
	e => [ '', 'x', '1-zz', '0-0', "\0", $long ],    # epoch: unarmed
	t => [ '', 'x', "\0", '1.0', $long ],            # token: refused, or 0
	k => [ '', 'x', '00', '-1', "\0", $long ],       # ticket: refused
	i => [ '', 'x', '0000', "\0", $long ],           # identity: refused
	s => [ '', 'a b', "\0", $long ],                 # stamp to look for: not found
);
my $obeyed_not = qr/^(?:0(?: 0)*|unarmed|refused.*|refused|committed|aborted|settled|unchanged)$/s;

sub templates
{
	my $token = token();
	my ($ticket) = fcall('fence_get', 2, f('l'), v('l'))->[2];
	my $till = until_of() + 1000;

	# function, number of keys, then pairs of type and right value. Type '': may be anything
	return (
		[ fence_hello    => 0, N => 'n', H => 'ab' ],
		[ fence_status   => 1, F => f('k') ],
		[ fence_pending  => 0, '' => 'n', M => 0, M => 10, '' => '' ],
		[ fence_counts   => 0, '' => 'n' ],
		[ fence_current  => 1, F => f('k') ],
		[ fence_check    => 1, F => f('k'), t => $token, W => 5 ],
		[ fence_check_many => 2, F => f('k'), F => f('q'), t => $token, W => 5, t => "x$token", W => 5 ],
		[ fence_peek     => 2, F => f('k'), V => v('k') ],
		[ fence_get_ro   => 2, F => f('m'), V => v('m') ],
		[ fence_get_many => 4, F => f('m'), V => v('m'), F => f('k'), V => v('k') ],
		[ fence_get      => 2, F => f('m'), V => v('m') ],
		[ fence_put      => 2, F => f('k'), V => v('k'), t => $token, '' => '', W => 7, '' => 'payload', M => 0 ],
		[ fence_put      => 2, F => f('l'), V => v('l'), t => $token, k => $ticket, W => 7, '' => 'payload', M => 0 ],
		[ fence_reserve  => 1, F => f('k'), e => $epoch, S => '9.a', O => 5, W => 7 ],
		[ fence_reserve  => 2, F => f('k'), F => f('l'), e => $epoch, S => '9.a', O => 5, W => 7, O => 5, W => 7 ],
		[ fence_write    => 0, C => 3, F => f('k'), F => f('l'), F => f('p'), e => $epoch, X => 'r', S => '9.a', O => 5, W => 7,
			X => 'c', S => '1.a', W => 8, X => 'a', S => '1.a' ],
		[ fence_abort    => 1, F => f('p'), e => $epoch, s => '1.a' ],
		[ fence_commit   => 1, F => f('k'), e => $epoch, S => '1.a', W => 8 ],
		[ fence_write    => 0, C => 2, F => f('k'), F => f('q'), e => $epoch, X => 'v', S => '1.a', W => 9, M => 0, '' => 'payload', M => 1,
			X => 'd', S => '1.a', W => 5 ],
		[ fence_settle   => 0, N => 'n', F => f('k'), e => $epoch, S => '1.a', O => 10 ],
		[ fence_repair   => 1, F => f('q'), e => $epoch, W => 5, O => 11 ],
		[ fence_domain_reserve => 0, '' => 'n', D => '1.t', e => $epoch, S => '9.a', Z => '' ],
		[ fence_domain_abort   => 0, '' => 'n', D => '1.t', e => $epoch, s => '2.a' ],
		[ fence_domain_commit  => 0, '' => 'n', D => '1.t', e => $epoch, s => '2.a' ],
		[ fence_announce => 0, '' => 'n', e => $epoch, D => '1.t', M => 3, P => 'stream' ],
		[ fence_release  => 1, F => f('l') ],
		[ fence_renew    => 0, '' => 'n:heartbeat', i => $identity, e => $epoch, M => $till, J => '{"idle_ms": 1000}' ],
		[ fence_arm      => 1, '' => 'n:heartbeat', i => $identity, E => next_epoch(), M => $till, L => '0-16383',
			'' => 'cluster', M => 3, J => '{"idle_ms": 1000}' ],
		[ fence_disarm   => 0, '' => 'n', '' => 'cluster', M => 3 ]);
}

# Fences with a version, with a ticket, with reservations, and a domain reservation.
sub furnish
{
	fresh('unarmed');
	arm(domains => '[["1.t", 1], ["1.u", 2]]');
	fill('k', 5);
	get('l');
	fill('p', 1);
	fill('q', 5);
	reserve('p', '1.a', '', 2);
	reserve('k', '1.a', 5, 6);
	domain('reserve', '2.a');
	domain('abort', '2.a');
	return;
}

sub shown
{
	my @words = map { length > 60 ? substr($_, 0, 20) . '...(' . length() . ')' : $_ } @_;

	return join ' ', map { "'$_'" } map { s/[^ -~]/?/gr } @words;
}

# The call must be refused and change nothing.
sub rejected
{
	my ($before, $allowed, @words) = @_;
	my $reply = $redis->attempt('FCALL', @words);
	my $text = ref $reply eq 'ARRAY' ? join ' ', @$reply : "$reply";

	if (ref $reply ne 'FenceTest::Redis::Error' && $text !~ $allowed)
	{
		return 'answered ' . substr($text, 0, 80) . ' to ' . shown(@words) . "\n";
	}
	if (ref $reply eq 'FenceTest::Redis::Error' && $text =~ /user_function|@|attempt to/)
	{
		return "fell over: $text at " . shown(@words) . "\n";
	}
	return snapshot() eq $before ? '' : 'changed something at ' . shown(@words) . "\n";
}

subtest 'hostile arguments change nothing' => sub {
	furnish();
	my $tried = 0;
	my $before;

	foreach my $template (templates())
	{
		$before = snapshot();
		my ($function, $nkeys, @typed) = @$template;
		my @types  = @typed[ grep { $_ % 2 == 0 } 0 .. $#typed ];
		my @values = @typed[ grep { $_ % 2 == 1 } 0 .. $#typed ];
		my $wrong = '';

		# a wrong number of arguments or of keys
		foreach my $count (0 .. $#values)
		{
			next if $function eq 'fence_announce' && $count == 2;    # no domain: announces nothing
			$wrong .= rejected($before, qr/^\b$/, $function, $nkeys, @values[ 0 .. $count - 1 ]);
		}
		$wrong .= rejected($before, qr/^\b$/, $function, $nkeys, @values, 'one more');
		foreach my $n ($nkeys + 1, $nkeys - 1, @values + 1, -1, 'x', '', '1.5', 999999999999)
		{
			$wrong .= rejected($before, qr/^\b$/, $function, $n, @values);
		}

		# one argument replaced
		foreach my $i (0 .. $#values)
		{
			my $hostile = $hostile{ $types[$i] } // next;
			my $allowed = $types[$i] =~ /[a-z]/ ? $obeyed_not : qr/^\b$/;
			foreach my $value (@$hostile)
			{
				next if $value eq $values[$i];
				my @words = @values;
				$words[$i] = $value;
				$wrong .= rejected($before, $allowed, $function, $nkeys, @words);
				$tried++;
			}
		}
		is($wrong, '', "$function " . join '', @types);
	}
	note("$tried arguments replaced");

	# mixed namespaces, foreign namespaces
	my $wrong = '';
	$wrong .= rejected($before, qr/^\b$/, 'fence_reserve', 2, f('k'), 'other:f:1.t:{k}', $epoch, '9.a', '', 1, '', 1);
	$wrong .= rejected($before, qr/^unarmed$/, 'fence_get', 2, 'other:f:1.t:{k}', 'other:v:1.t:{k}');
	$wrong .= rejected($before, qr/^unarmed$/, 'fence_get', 2, 'n:f:1.nosuch:{k}', 'n:v:1.nosuch:{k}');
	$wrong .= rejected($before, qr/^unarmed$/, 'fence_reserve', 1, 'other:f:1.t:{k}', $epoch, '9.a', '', 1);
	$wrong .= rejected($before, qr/^\b$/, 'fence_settle', 0, 'other', f('k'), $epoch, '9.a', '');
	$wrong .= rejected($before, qr/^\b$/, 'fence_nosuch', 0);
	is($wrong, '', 'namespaces and names');
};

subtest 'the same calls with right arguments do change something' => sub {
	my %reads = map { $_ => 1 } qw(fence_hello fence_status fence_pending fence_counts fence_current fence_check fence_check_many
	  fence_peek fence_get_ro fence_release);
	furnish();
	my $n = () = templates();
	foreach my $i (0 .. $n - 1)
	{
		furnish();
		get('l');
		domain('reserve', '2.a') if (templates())[$i][0] =~ /domain_(abort|commit)/;
		my ($function, $nkeys, @typed) = @{ (templates())[$i] };
		my $before = snapshot();
		my $reply = $redis->attempt('FCALL', $function, $nkeys, @typed[ grep { $_ % 2 == 1 } 0 .. $#typed ]);
		isnt(ref $reply, 'FenceTest::Redis::Error', "$function answers") or diag("$reply");
		my $should = $reads{$function} ? 'nothing' : 'something';
		is(snapshot() eq $before ? 'nothing' : 'something', $should, "$function changes $should");
	}
};

subtest 'other ways to call' => sub {
	furnish();
	my $before = snapshot();
	foreach my $template (templates())
	{
		my ($function, $nkeys, @typed) = @$template;
		next if $function =~ /hello|status|pending|counts|current|check|peek|get_ro|release|disarm|announce|abort|domain/;
		my @words = ($function, $nkeys, @typed[ grep { $_ % 2 == 1 } 0 .. $#typed ]);
		like($redis->error_of('FCALL_RO', @words), qr/write flag/, "FCALL_RO $function");
		like($redis->error_of('EVAL', 'return redis.call("FCALL", unpack(ARGV))', 0, @words),
			qr/not allowed/, "EVAL of FCALL $function");
	}
	is(snapshot(), $before, 'nothing changed');
	aborts('k', '1.a');
	is($redis->call('FCALL_RO', 'fence_check', 1, f('k'), token(), 5), 1, 'check may be called read-only');
	like($redis->error_of('FCALL', 'fence_get', 2, f('k')), qr/number of keys|wrong number/i, 'fewer keys than said');
	like($redis->error_of('FCALL'), qr/wrong number of arguments/, 'no arguments');

	my $cli = $ENV{REDIS_CLI} || 'redis-cli';
  SKIP:
	{
		skip("no $cli", 5) if system("$cli --version >/dev/null 2>&1") != 0;
		my @cli = ($cli, '-s', $redis->socket);
		my $run = sub {
			open my $out, '-|', @cli, @_ or die "$cli: $!";
			local $/;
			return <$out>;
		};
		my @put = ('FCALL', 'fence_put', '2', f('k'), v('k'), token(), '');
		$before = snapshot();
		like($run->('FCALL', 'fence_get', '1', f('k')), qr/^(ERR|\(error\)).*expected 2 keys/, 'redis-cli: a key too few');
		like($run->(@put, '-5', 'p', '0'), qr/malformed version/, 'a negative version');
		like($run->(@put, '9223372036854775808', 'p', '0'), qr/malformed version/, 'one too large');
		like($run->('FCALL', 'fence_get', '2', f('k'), 'x' x 100_000), qr/no value of this fence/, 'a huge value name');
		is(snapshot(), $before, 'nothing changed');
	}
};

subtest 'keys of another type count as absent and are replaced' => sub {
	fresh();
	foreach my $make ([ 'LPUSH', 'x' ], [ 'HSET', 'a', 'b' ], [ 'SADD', 'x' ], [ 'XADD', '*', 'a', 'b' ])
	{
		my ($command, @rest) = @$make;
		my $set = sub { $redis->call('DEL', $_[0]); $redis->call($command, $_[0], @rest); };
		$set->($_) foreach f('k'), v('k');
		is(put('k', 5, ticket => 1), 'refused no fence', "$command: put");
		is(check('k', 5), 0, 'check');
		is(repair('k', 5, 6), 'unchanged', 'repair');
		is(reserve('k', '1.a', 4, 5), 'reserved ', 'reserve');
		is(commit('k', '1.a', 5), 'committed', 'commit');
		is(pendings(), '', 'the reservation ends');
		is(get('k') =~ /^miss \S+ \d+$/, 1, 'get gives a ticket');
		$set->(v('k'));
		is(fill('k', 5), 'stored', 'put replaces a value of another type');
		is(get('k'), 'hit ' . token() . ' 5 p5', 'hit');
		$set->(f('k'));
		reserve('k', '2.a', '', 6);
		is(settle('k', '2.a', ''), 'settled', 'settle');
		is(pendings() . version_of('k'), 'none', 'done');
	}
	$redis->call('SET', f('k'), $_), like(get('k'), qr/^miss \S+ \d+$/, 'a fence that is garbage: ' . shown($_))
	  foreach '', 'x', ' ', "\0", token() . ' 5', token() . ' 5 a b', "x 5 \n", token() . ' ', $long;
};

# ---------------------------------------------------------------------------------------------------------------------
# Functions that fail half-way: a reservation is dropped only after its key writes
# ---------------------------------------------------------------------------------------------------------------------

# A function that writes fails, of those that do not, abort works.
sub fails_cleanly
{
	my ($why) = @_;
	my $before = snapshot();

	like($_->[1], $why, $_->[0])
	  foreach [ get => refuses('fence_get', 2, f('new'), v('new')) ],
	  [ put => refuses('fence_put', 2, f('k'), v('k'), token(), '', 7, 'p', 0) ],
	  [ reserve => refuses('fence_reserve', 1, f('k'), $epoch, '9.a', 5, 7) ],
	  [ write => refuses('fence_write', 0, 2, f('k'), f('k'), $epoch, qw(r 9.a 5 7 c 1.a 6)) ],
	  [ commit => refuses('fence_commit', 1, f('k'), $epoch, '1.a', 6) ],
	  [ 'write a value' => refuses('fence_write', 0, 1, f('k'), $epoch, qw(v 1.a 6 0 p)) ],
	  [ settle => refuses('fence_settle', 0, 'n', f('k'), $epoch, '1.a', 6) ],
	  [ 'settle without u' => refuses('fence_settle', 0, 'n', f('k'), $epoch, '1.a', '') ],
	  [ repair => refuses('fence_repair', 1, f('k'), $epoch, 5, 6) ],
	  [ renew => refuses('fence_renew', 0, 'n:heartbeat', $identity, $epoch, clock() + 2 * $hour, '{"idle_ms": 1}') ],
	  [ arm => refuses('fence_arm', 1, 'n:heartbeat', $identity, next_epoch(), clock() + 2 * $hour, '', 'cluster', 3,
			'{"idle_ms": 1}') ];
	is(snapshot(), $before, 'nothing changed: no reservation was dropped, none is left over');
	is(check('k', 5), 0, 'check still works, and knows the reservation');
	is(aborts('p', '1.a'), 'aborted', 'abort works: it writes no key');
	isnt(snapshot(), $before, '... and counts');
	return;
}

sub recovers
{
	is(commit('k', '1.a', 6), 'committed', 'then the commit goes through');
	is(version_of('k') . pendings(), '6', '... and counts');
	return;
}

subtest 'out of memory (maxmemory, noeviction)' => sub {
	furnish();
	$redis->call('CONFIG', 'SET', 'maxmemory-policy', 'noeviction');
	$redis->call('CONFIG', 'SET', 'maxmemory', 1);
	fails_cleanly(qr/OOM|maxmemory/);
	$redis->call('CONFIG', 'SET', 'maxmemory', 0);
	recovers();
};

subtest 'too few replicas' => sub {
	furnish();
	$redis->call('CONFIG', 'SET', 'min-replicas-to-write', 1);
	fails_cleanly(qr/NOREPLICAS/);
	$redis->call('CONFIG', 'SET', 'min-replicas-to-write', 0);
	recovers();
};

subtest 'a disk that fails (MISCONF)' => sub {
	furnish();
	my $dir = $redis->dir . '/gone';
	mkdir $dir or die "$dir: $!";
	$redis->call('CONFIG', 'SET', 'save', '3600 1000000');
	$redis->call('CONFIG', 'SET', 'dir', $dir);
	rmdir $dir;
	$redis->call('BGSAVE');
	poll(sub { $redis->info('persistence', 'rdb_last_bgsave_status') eq 'err' }, 'a background save to fail');
	fails_cleanly(qr/MISCONF/);
	$redis->call('CONFIG', 'SET', 'save', '');
	$redis->call('CONFIG', 'SET', 'dir', $redis->dir);
	recovers();
};

subtest 'a user who may not use every command: failing in the middle' => sub {
	my $as = sub {
		my ($rules, $body) = @_;
		furnish();
		$redis->call('ACL', 'SETUSER', 'limited', 'reset', 'on', '>pw', '~*', '&*', '+@all', @$rules);
		my $limited = $redis->connect;
		$limited->call('AUTH', 'limited', 'pw');
		$body->(sub { return $limited->error_of('FCALL', @_) // 'no error'; });
	};
	$as->(
		['-select'],
		sub {
			my ($try) = @_;
			my $before = snapshot();
			like($try->('fence_get', 2, f('m'), v('m')), $denied, 'without SELECT no ticket is given');
			like($try->('fence_commit', 1, f('k'), $epoch, '1.a', 6), $denied, 'nor committed');
			is(snapshot(), $before, 'nothing changed');
		});
	$as->(
		['-set'],
		sub {
			my ($try) = @_;
			my $before = snapshot();
			like($try->('fence_commit', 1, f('k'), $epoch, '1.a', 6), $denied, 'commit without SET');
			like($try->('fence_settle', 0, 'n', f('k'), $epoch, '1.a', 6), $denied, 'settle likewise');
			like($try->('fence_reserve', 1, f('k'), $epoch, '2.a', 6, 7), $denied, 'reserve that raises likewise');
			like($try->('fence_put', 2, f('k'), v('k'), token(), '', 8, 'p', 0), $denied, 'put likewise');
			is(snapshot(), $before, 'no reservation was dropped');
			recovers() if aborts('p', '1.a');
		});
	$as->(
		['-del'],
		sub {
			my ($try) = @_;
			$redis->call('DEL', f('k'));
			$redis->call('SET', f('k'), token() . ' - 12345');
			my $before = snapshot();
			like($try->('fence_commit', 1, f('k'), $epoch, '1.a', 6), $denied, 'commit without DEL');
			like($try->('fence_settle', 0, 'n', f('k'), $epoch, '1.a', ''), $denied, 'settle likewise');
			is(snapshot(), $before, 'no reservation was dropped');
			like($try->('fence_reserve', 1, f('k'), $epoch, '2.a', '', 7), $denied, 'reserve likewise');
			is(pendings(), 'k 1.a 6, k 2.a 7, p 1.a 2', 'leaves its reservation behind rather than the ticket alone');
		});
	$as->(
		[ 'resetkeys', '~n:f:*' ],
		sub {
			my ($try) = @_;
			grants('k', '1.a', '', 6);
			like($try->('fence_write', 0, 1, f('k'), $epoch, qw(v 1.a 6 0 p 1)), qr/$denied|can't access/, 'a value without the right to it');
			is(pendings(), 'k 1.a 6, p 1.a 2', 'no reservation was dropped');
			is(version_of('k'), 6, 'the fence was written before: a miss from now on');
		});
	$redis->call('ACL', 'DELUSER', 'limited');
};

done_testing();
