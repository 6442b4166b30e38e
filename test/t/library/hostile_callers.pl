# The function library against callers that mean harm or know no better, and against a server that refuses to write:
# every such call is refused and changes nothing, and no function leaves its work half-done.
#
# fence_write and fence_store are for whoever knows the epoch, which is PostgreSQL: they do not look at the names of fences
# and stamps, which would cost every write. What they are told there hurts nothing but what is named.

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
my @no_number = ('', '-1', '-0', '+1', ' 1', '1 ', "1\n", "1\0", '1.0', '1e5', '0x10', 'x', 'nan', 'inf', "\xff\xfe", '9' x 1_000_000);
my %hostile = (
	F => [
		'', 'x', 'n:f:1.t', 'n:f:1.t:k', 'n:f::{k}', 'n:f:1.t{k}', ':f:1.t:{k}', 'n:v:1.t:{k}', 'n m:f:1.t:{k}',
		"n\0:f:1.t:{k}", 'n:F:1.t:{k}', 'n:heartbeat:{h}', "n:f:1.nosuch:{$long}", $long, "\xff\xfe"
	],
	V => [ '', 'x', f('k'), v('l', 'x'), v('k', 'x') =~ s/:x$//r, v('k', 'x') =~ s/:x$/x/r, 'n:v:1.u:{k}:x', 'other:v:1.t:{k}:x',
		'n:heartbeat:{h}', v('k', $long), "\0" ],
	W => [ @no_number, '1' x 20 ],                                       # version
	R => [ '', '7', '.7', '1-a', '1-a.', '1-a.x', '1-a.-7', '1.7', 'x.7', '1-a.7 ', "1-a.7\n", '1-a.' . '1' x 20, "1-a.$long", $long ],    # row version
	M => [ @no_number, '1' x 16 ],                                       # number
	Z => [ grep({ $_ ne '' } @no_number), '1' x 16 ],                    # ... or nothing
	S => [ '', ' ', 'a b', "a\nb", "a\0", "\xff", 'x' x 101, $long ],    # stamp
	N => [ '', 'a b', 'a:b', "\0", 'a' . $long . ' ' ],                  # namespace
	D => [ '', 'a:b', '{a}', $long ],                                    # domain
	H => [ '', 'g', "a\n", '0' x 17, $long ],                            # nonce
	J => [ '', 'x', '1000', '0 0 1 1', '1000 0 1', '1000 0 1 1 1', '1000 0 1 1 64', '1000 0 1 1 64 0 ', '1000 0 1 1 64  0', '1000 0 1 1 100 0', '1000 0 1 1 64 x', '1000 0 1 -1', '1000 x 1 1', "1000 0 1 1\n", '1e3 0 1 1', '9' x 99 ],
	C => [ @no_number, '1001', '99' ],                                   # how many follow
	L => [ ' ', 'x', '-', ',', '-1', '1-', '2-1', '0-16384', '16384', '1-2-3', '0--1', '1' x 20 ],    # slots
	P => [ '', 'x', 'None', "none\0", $long ],                           # how to publish
	X => [ '', 'x', 'Committed', "aborted\n", $long ],                   # how it ended
	# these are answered, but not obeyed
	e => [ '', 'x', 'n 1-zz', 'n', 'other 1-aa', "\0", $long ],          # header: 0, -1 or unarmed
	t => [ '', 'x', "\0", '1.0', $long ],                                # token or permit
	i => [ '', 'x', '0000', "\0", $long ],                               # identity
);
$hostile{f} = $hostile{F};
my $obeyed_not = qr/^(?:0|00|-1|unarmed|refused.*|announced 0)$/s;

# function, number of keys, then pairs of type and right value. Type '': may be anything
sub templates
{
	my $token = token();
	my $till = until_of() + 1000;
	my @fences = map { f($_) } 'k', 'l';

	return (
		[ fence_hello    => 0, N => 'n', H => 'ab' ],
		[ fence_status   => 1, F => f('k') ],
		[ fence_mark     => 0, e => header(), M => 1, '' => '0/0', M => 7 ],
		[ fence_newest   => 1, F => f('k') ],
		[ fence_pending  => 0, '' => 'n', M => 10, '' => '' ],
		[ fence_counts   => 0, '' => 'n' ],
		[ fence_hot      => 0, '' => 'n' ],
		[ fence_rights   => 0, '' => 'n' ],
		[ fence_check    => 2, f => f('k'), f => f('q'), t => $token, '' => 5, t => "x$token", '' => 5 ],
		[ fence_get      => 1, F => f('m') ],
		[ fence_get      => 2, F => f('m'), V => v('m', 'x') ],
		[ fence_release  => 1, F => f('l') ],
		[ fence_put      => 1, F => f('k'), t => permit('k'), R => row_version($epoch, 7), '' => 'payload', M => 0 ],
		[ fence_put      => 2, F => f('k'), V => v('k', 'x'), t => permit('k'), R => row_version($epoch, 7), '' => 'payload', M => 0 ],
		[ fence_put_from => 2, F => f('k'), V => v('k', 'side'), t => permit('k'), R => row_version($epoch, 7), M => 0 ],
		[ fence_put_from => 3, F => f('k'), V => v('k', 'beside'), V => v('k', 'x'), t => permit('k'), R => row_version($epoch, 7), M => 0 ],
		[ fence_write    => 0, e => header(), '' => '9.a', C => 2, '' => f('k'), '' => f('l') ],
		[ fence_store    => 0, e => header(), S => '1.a', C => 1, '' => f('p'), M => 1, W => 8, Z => 0, '' => 'payload' ],
		[ fence_remove   => 1, F => f('q'), e => header(), '' => $token ],
		[ fence_domain_reserve => 0, e => header(), D => '1.t', S => '9.a', M => 0 ],
		[ fence_domain_end     => 0, e => header(), D => '1.t', '' => '2.a', X => 'committed' ],
		[ fence_announce => 0, '' => 'n', e => $epoch, D => '1.t', M => 3, P => 'stream', M => 1 ],
		[ fence_renew    => 0, '' => 'n:heartbeat:{h}', i => $identity, e => $epoch, M => $till, J => '1000 0 1 0' ],
		[ fence_arm      => 1, '' => 'n:heartbeat:{h}', i => $identity, '' => next_epoch(), M => $till, L => '0-16383', '' => 'cluster',
			M => 3, '' => 'run', J => '1000 0 1 0' ],
		[ fence_resume   => 0, e => header(), i => $identity, M => 3, '' => 'run', '' => 'next run' ],
		[ fence_disarm   => 0, '' => 'n', '' => 'cluster', M => 3 ]);
}

# Fences with a version, reservations of two rows and of the domain.
sub furnish
{
	fresh();
	announce('1.u', 2);
	put($_, 5) foreach 'k', 'q';
	$redis->call('SET', v('k', 'side'), token() . " 7 {k}\nside");
	$redis->call('SET', v('k', 'beside'), token() . " 7 {k}:x\nof a value");
	reserve('1.a', 'p');
	reserve('3.a', 'p');
	domain('reserve', '2.a') if $_[0];
	return;
}

sub shown
{
	my @words = map { length > 60 ? substr($_, 0, 20) . '...(' . length() . ')' : $_ } @_;

	return join ' ', map { "'$_'" } map { s/[^ -~]/?/gr } @words;
}

# The call must be refused, or give an allowed answer, and change nothing.
sub rejected
{
	my ($before, $allowed, @words) = @_;
	my $reply = $redis->attempt('FCALL', @words);
	my $text = ref $reply eq 'ARRAY' ? join ' ', @$reply : "$reply";

	return 'answered ' . substr($text, 0, 80) . ' to ' . shown(@words) . "\n"
	  if ref $reply ne 'FenceTest::Redis::Error' && $text !~ $allowed;
	return "fell over: $text at " . shown(@words) . "\n"
	  if ref $reply eq 'FenceTest::Redis::Error' && $text =~ /user_function|@|attempt to/;
	return snapshot() eq $before ? '' : 'changed something at ' . shown(@words) . "\n";
}

# Fewer or more arguments that are right all the same.
my %fits = map { $_ => 1 } 'fence_get 2', 'fence_get 1', 'fence_write +', 'fence_store +', 'fence_renew +', 'fence_announce 3', 'fence_put 2',
  'fence_check 1';

subtest 'hostile arguments change nothing' => sub {
	furnish('with the domain');
	my ($tried, $before) = (0, snapshot());

	foreach my $template (templates())
	{
		my ($function, $nkeys, @typed) = @$template;
		my @types  = @typed[ grep { $_ % 2 == 0 } 0 .. $#typed ];
		my @values = @typed[ grep { $_ % 2 == 1 } 0 .. $#typed ];
		my $wrong = '';

		# a wrong number of arguments or of keys
		foreach my $count (0 .. $#values)
		{
			next if $fits{"$function $count"};
			$wrong .= rejected($before, qr/^\b$/, $function, $nkeys, @values[ 0 .. $count - 1 ]);
		}
		$wrong .= rejected($before, qr/^\b$/, $function, $nkeys, @values, 'one more') unless $fits{"$function +"};
		foreach my $n ($nkeys + 1, $nkeys - 1, @values + 1, -1, 'x', '', '1.5', 999999999999)
		{
			next if $n =~ /^\d$/ && $fits{"$function $n"};
			$wrong .= rejected($before, qr/^\b$/, $function, $n, @values);
		}

		# one argument replaced
		foreach my $i (0 .. $#values)
		{
			my $hostile = $hostile{ $types[$i] } // next;
			my $allowed = $types[$i] =~ /[a-z]/ ? $obeyed_not : qr/^\b$/;
			foreach my $value (@$hostile)
			{
				my @words = @values;
				$words[$i] = $value;
				$wrong .= rejected($before, $allowed, $function, $nkeys, @words);
				$tried++;
			}
		}
		is($wrong, '', "$function " . join '', @types);
	}
	note("$tried arguments replaced");

	my $wrong = '';
	$wrong .= rejected($before, qr/^\b$/, @$_)
	  foreach [ 'fence_token', 'x' ], [ 'fence_nosuch', 0 ], [ 'fence_check', 1001, (f('k')) x 1001, ('x', 1) x 1001 ],
	  [ 'fence_write', 0, header(), '9.a', 1001, (f('k')) x 1001 ], [ 'fence_get_derived', 0 ], [ 'fence_get_derived', 2, 'a', 'b' ];
	foreach my $fence (@{ $hostile{F} }, '{', ':{', 'n:f:1.t:{', 'n:f:1.t:{}')
	{
		# names that begin as those of a domain that is known are not looked at any further
		$wrong .= rejected($before, qr/^$|^\Q@{[ permit('k') ]}\E$/, 'fence_token', 1, $fence);
		$wrong .= rejected($before, qr/^0$/, 'fence_check', 1, $fence, token(), 5);
		$wrong .= rejected($before, qr/^miss$/, 'fence_get_derived', 1, $fence) unless $fence eq 'n:heartbeat:{h}';
	}
	is($wrong, '', 'others');
};

subtest 'the same calls with right arguments do change something' => sub {
	# no snapshot shows what fence_resume changes; library/arming does
	my %reads = map { $_ => 1 } qw(fence_hello fence_status fence_mark fence_newest fence_pending fence_counts fence_hot fence_rights fence_check
	  fence_get fence_release fence_resume);
	furnish();
	foreach my $i (0 .. scalar(() = templates()) - 1)
	{
		furnish();
		domain('reserve', '2.a') if (templates())[$i][0] =~ /domain_end/;
		my ($function, $nkeys, @typed) = @{ (templates())[$i] };
		my $before = snapshot();
		my $reply = $redis->attempt('FCALL', $function, $nkeys, @typed[ grep { $_ % 2 == 1 } 0 .. $#typed ]);
		isnt(ref $reply, 'FenceTest::Redis::Error', "$function answers") or diag("$reply");
		my $should = $reads{$function} ? 'nothing' : 'something';
		is(snapshot() eq $before ? 'nothing' : 'something', $should, "$function changes $should");
	}
};

subtest 'a writer that knows the epoch but talks nonsense hurts what it names, and that ends' => sub {
	furnish();
	my $before = snapshot();
	my @names = ('', 'x', 'n', "a\nb", "\0", '-', '=', $long, '1', 1, 'n:f:1.t:{', 'n:f:1.nosuch:{k}', f('new'));
	my @stamps = ('', 'n', '1', "a\nb", "\0", '{', $long);
	foreach my $stamp (@stamps)
	{
		like(fcall('fence_write', 0, header(), $stamp, scalar @names, @names), qr/^[1-9]/, 'stamp ' . shown($stamp)) foreach 1, 2;
		fcall('fence_write', 0, header(), "$stamp.", scalar @names, @names);
		pendings();
		fcall('fence_status', 1, f('new'));
	}
	is(fcall('fence_store', 0, header(), 's', 1, $_, 1, 1, 0, 'p'), 1, 'not stored under ' . shown($_)) foreach @names;
	fcall('fence_write', 0, header(), '', 0, $_, "-$_", "=$_", "=1 $_", "$_.") foreach @stamps;
	is(snapshot(), $before, 'all has ended');
};

subtest 'other ways to call' => sub {
	furnish();
	my $before = snapshot();
	foreach my $template (templates())
	{
		my ($function, $nkeys, @typed) = @$template;
		my @words = ($function, $nkeys, @typed[ grep { $_ % 2 == 1 } 0 .. $#typed ]);
		next unless $function =~ /put|write|store|remove|domain|renew|arm$/ && $function !~ /disarm/;
		like($redis->error_of('FCALL_RO', @words), qr/write flag/, "FCALL_RO $function");
		like($redis->error_of('EVAL', 'return redis.call("FCALL", unpack(ARGV))', 0, @words), qr/not allowed/, "EVAL of FCALL $function");
	}
	is(snapshot(), $before, 'nothing changed');
	like($redis->error_of('FCALL', 'fence_get', 2, f('k')), qr/number of keys|wrong number/i, 'fewer keys than said');
	like($redis->error_of('FCALL'), qr/wrong number of arguments/, 'no arguments');
};

subtest 'keys of another type are no fences, and are replaced' => sub {
	fresh();
	foreach my $make ([ 'LPUSH', 'x' ], [ 'HSET', 'a', 'b' ], [ 'SADD', 'x' ], [ 'XADD', '*', 'a', 'b' ])
	{
		my ($command, @rest) = @$make;
		my $set = sub { $redis->call('DEL', $_[0]); $redis->call($command, $_[0], @rest); };
		$set->(f('k'));
		like(get('k'), qr/^miss /, "$command: get");
		is(check('k', 5), 0, 'check');
		is(put('k', 5), 'stored', 'put');
		is(get('k'), 'hit ' . token() . " 5 {k}\np5", 'hit');
		$set->(f('k'));
		$set->(v('k', 'x'));
		is(put('k', 5, suffix => 'x'), 'stored', 'put of a value beside it');
		is(get('k', 'x'), 'hit ' . token() . " 5 {k}:x\np5", 'hit');
		$set->(f('k'));
		my $since = reserve('1.a', 'k');
		is($redis->call('EXISTS', f('k')), 0, 'a reservation deletes it');
		$set->(f('k'));
		is(store('1.a', $since, 'k', 6, '1.a'), 1, 'a commit with the row');
		is(get('k'), 'hit ' . token() . " 6 1.a {k}\np6", 'hit');
	}
};

# ---------------------------------------------------------------------------------------------------------------------
# A server that refuses to write, from the start or half-way
# ---------------------------------------------------------------------------------------------------------------------

# What fails, and leaves all as it was: a server refuses the call before it starts.
sub fails_cleanly
{
	my ($why, @only) = @_;
	my $before = snapshot();
	my %calls = (
		put    => sub { return refuses('fence_put', 1, f('k'), permit('k'), row_version($epoch, 7), 'p', 0); },
		put_from => sub { return refuses('fence_put_from', 2, f('k'), v('k', 'side'), permit('k'), row_version($epoch, 7), 0); },
		write  => sub { return refuses('fence_write', 0, header(), '9.a', 1, f('k'), '1.a'); },
		store  => sub { return refuses('fence_store', 0, header(), '1.a', 1, f('p'), 1, 6, 0, 'p', '1.a'); },
		remove => sub { return refuses('fence_remove', 1, f('k'), header(), token()); },
		domain => sub { return refuses('fence_domain_reserve', 0, header(), '1.t', '9.a', 0); },
		renew  => sub { return refuses('fence_renew', 0, 'n:heartbeat:{h}', $identity, $epoch, clock() + 2 * $hour, '1000 0 1 0'); },
		arm    => sub { return refuses('fence_arm', 1, 'n:heartbeat:{h}', $identity, next_epoch(), clock() + 2 * $hour, '', 'cluster', 3, 'run',
				'1000 0 1 0'); });
	like($calls{$_}->(), $why, $_) foreach @only ? @only : sort keys %calls;
	is(snapshot(), $before, 'nothing changed: no reservation was dropped, none is left over');
	# out of memory Redis refuses whatever comes in a MULTI
	like(get('k'), qr/^hit/, 'reads go on');
	return;
}

sub recovers { ends('1.a', '3.a'); is(pendings(), '', 'then all ends'); is(put('p', 6), 'stored', 'and is stored'); return; }

subtest 'out of memory (maxmemory, noeviction): writes go on, values are not stored' => sub {
	furnish();
	$redis->call('CONFIG', 'SET', 'maxmemory-policy', 'noeviction');
	$redis->call('CONFIG', 'SET', 'maxmemory', 1);
	fails_cleanly(qr/OOM|maxmemory/, 'put', 'store');
	like(reserve('9.a', 'k'), qr/^[1-9]/, 'a reservation is granted');
	is(version_of('k'), 'none', '... and deletes');
	ends('9.a');
	is(holders('k'), '', '... and ends');
	is(domain('reserve', '8.a') . domain('committed', '8.a'), '11', 'of the domain, too');
	like(renew(), qr/^renewed/, 'the lease is renewed');
	like(arm(), qr/^armed/, '... the process armed');
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

subtest 'a demoted master that kept its memory (READONLY)' => sub {
	my $master = FenceTest::Redis->start;
	furnish();
	my $before = snapshot();
	$redis->call('CONFIG', 'SET', 'replica-serve-stale-data', 'yes');
	$master->pause;                                      # it does not come to a synchronisation
	$redis->call('REPLICAOF', '127.0.0.1', $master->port);
	fails_cleanly(qr/READONLY/);
	$redis->call('REPLICAOF', 'NO', 'ONE');
	$master->resume;
	$master->stop;
	is(snapshot(), $before, 'promoted again: all is there');
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
	$as->([ '-del' ], sub {
		my ($try) = @_;
		like($try->('fence_write', 0, header(), '9.a', 2, f('k'), f('q')), $denied, 'DEL fails: not granted');
		is(holders($_), '9.a row', "... but a veto is left: $_") foreach 'k', 'q';
		is(put('k', 5), 'refused pending', '... nobody can put');
		like(reserve('9.a', 'k', 'q'), qr/^[1-9]/, 'again, with the right to: granted,');
		is(version_of('k') . version_of('q'), 'nonenone', '... and deleted');
		like($try->('fence_remove', 1, f('k'), header(), token()), qr/no error/, 'remove of what is not there');
	});
	$as->([ '-set' ], sub {
		my ($try) = @_;
		ends('3.a');
		my $before = snapshot();
		like($try->('fence_put', 1, f('k'), permit('k'), row_version($epoch, 8), 'p', 0), $denied, 'put without SET');
		is(snapshot(), $before, 'nothing changed');
		like($try->('fence_store', 0, header(), '1.a', 1, f('p'), reserve('1.a', 'p'), 6, 0, 'p'), $denied, 'a commit with the row');
		is(holders('p') . version_of('p'), 'none', '... is a miss');
	});
	$as->([ '-exists', '-time' ], sub {
		my ($try) = @_;
		like($try->('fence_token', 1, f('k')), $denied, 'whoever may not look at the lease is told nothing');
		like($try->('fence_get', 1, f('k')), $denied, 'get likewise');
	});
	$as->([ '-exists' ], sub { is($_[0]->('fence_token', 1, f('k')), 'no error', 'without EXISTS the clock tells'); });
	$as->([ '-publish' ], sub {
		announce('1.t', 2, 'pubsub');
		is($_[0]->('fence_write', 0, header(), '', 0, '1.a'), 'no error', 'an event that may not be told stops nothing');
		is(holders('p'), '3.a row', '... it has ended');
	});
	$redis->call('ACL', 'DELUSER', 'limited');
};

done_testing();
