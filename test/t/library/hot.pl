# The sampled counts of the library: which keys and slots take the most calls (src/redis/hot.lua).

use strict;
use warnings;

use FenceTest;
use FenceTest::Library;
use FenceTest::Router ();
use Test::More;

# Sends many calls in pipelines.
sub pipelined
{
	my (@calls) = @_;
	my $connection = $redis->connection;

	while (my @part = splice @calls, 0, 200)
	{
		$connection->send(@$_) foreach @part;
		foreach (@part) { my $reply = $connection->reply; die "$reply" if ref $reply eq 'FenceTest::Redis::Error'; }
	}
	return;
}

# What the library tells: (ms => ..., all => [tokens, gets, writes], key => {name => [...]}, slot => {...}).
sub told
{
	my ($ms, @rest) = @{ fcall('fence_hot', 0, 'n') };
	my %told = (ms => $ms, all => [ splice @rest, 0, 3 ], key => {}, slot => {});

	while (my ($what, $name, @calls) = splice @rest, 0, 5) { $told{$what}{$name}[$_] += $calls[$_] foreach 0 .. 2; }
	return %told;
}

# Whether an estimate is as close as the number of its samples allows: within five standard deviations of n / 100 samples.
sub near
{
	my ($estimate, $n, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return cmp_ok(abs($estimate / 100 - $n / 100), '<=', 5 * sqrt($n / 100) + 1, "$name: $estimate of $n");
}

sub token_call { return [ qw(FCALL_RO fence_token 1), f($_[0]) ]; }

subtest 'a key that many read, among many' => sub {
	fresh();
	my $n = 0;
	pipelined(map { token_call($_ % 5 < 2 ? 'hot' : 'k' . $n++) } 1 .. 50_000);
	my %told = told();
	near($told{all}[0], 50_000, 'all calls');
	near($told{key}{ f('hot') }[0], 20_000, 'the hot key');
	near($told{slot}{ FenceTest::Router::slot_of('{hot}') }[0], 20_000, 'its slot');
	is_deeply([ @{ $told{key}{ f('hot') } }[ 1, 2 ] ], [ 0, 0 ], 'nothing of another kind');
	is(scalar(grep { $_->[0] > 2000 } values %{ $told{key} }), 1, 'no other key seems hot');
	cmp_ok(scalar keys %{ $told{$_} }, '<=', 48, "a small list: $_") foreach 'key', 'slot';
	is(fcall('fence_counts', 0, 'n')->[1], 50_000, 'permits are counted as before');
	arm(epoch => next_epoch());
	is_deeply([ @{ fcall('fence_hot', 0, 'n') }[ 1 .. 3 ] ], [ 0, 0, 0 ], 'a new epoch starts again') or diag(answer('fence_hot', 0, 'n'));
	is(answer('fence_hot', 0, 'other'), '0 0 0 0', 'a namespace that nobody has armed');
};

subtest 'each kind of call' => sub {
	fresh();
	my $token = token();
	pipelined(
		(map { [ qw(FCALL_RO fence_get 1), f('g') ] } 1 .. 20_000),
		(map { [ qw(FCALL_RO fence_check 10), (f('c')) x 10, ($token, 5) x 10 ] } 1 .. 2000),
		(map { [ qw(FCALL fence_write 0), header(), '1.a', 4, (map { f($_) } qw(x x w y)), '-1.a' ] } 1 .. 5000));
	my %told = told();
	my %near = (g => [ 1, 20_000 ], c => [ 0, 20_000 ], x => [ 2, 10_000 ], w => [ 2, 5000 ], y => [ 2, 5000 ]);
	near($told{key}{ f($_) }[ $near{$_}[0] ], $near{$_}[1], $_) foreach sort keys %near;
	near($told{all}[0], 20_000, 'checks');
	near($told{all}[1], 20_000, 'gets');
	near($told{all}[2], 20_000, 'fences that were reserved, not calls');
};

subtest 'a caller that repeats a pattern is sampled like any other' => sub {
	fresh();
	pipelined(map { token_call("p" . $_ % 100) } 1 .. 100_000);
	my %told = told();
	my @of = sort { $b <=> $a } map { $_->[0] } values %{ $told{key} };
	cmp_ok($of[0], '<', 5000, 'no key of a hundred seems to have them all');
};

subtest 'memory does not grow' => sub {
	fresh();
	# the tags of sampled keys are remembered too, up to 10,000 of them
	my $flood = sub { my ($from) = @_; pipelined(map { token_call("$from.$_." . 'x' x 1000) } 1 .. 30_000) };
	$flood->(1);
	my $before = function_memory();
	$flood->(2);
	cmp_ok(function_memory(), '<', $before + 300, 'many long names');
	pipelined(map { [ qw(FCALL_RO fence_token 1), 'n:f:1.t:{' . 'x' x 20_000 . "$_}" ] } 1 .. 2000);
	cmp_ok(function_memory(), '<', $before + 300, '... and names that are too long, which are not kept');
};

subtest 'two periods take turns' => sub {
	$redis->call('FLUSHALL');
	$redis->load_library(FenceTest::Redis->library_source =~ s/PERIOD = 30000/PERIOD = 100/r);
	$identity = hello()->[0];
	$epoch = next_epoch();
	arm();
	announce('1.t', 1);
	my $passes = sub { my $till = clock() + $_[0]; poll(sub { clock() > $till }, 'time passes'); };
	pipelined(map { token_call("k") } 1 .. 20_000);
	$passes->(120);
	renew();
	near({ told() }->{key}{ f('k') }[0], 20_000, 'the period before is told too');
	pipelined(map { token_call("k") } 1 .. 20_000);
	my %told = told();
	near($told{key}{ f('k') }[0], 40_000, 'both together') if $told{ms} < 200;
	$passes->(120);
	renew();
	$passes->(120);
	%told = told();
	is_deeply($told{all}, [ 0, 0, 0 ], 'what is older is forgotten');
	cmp_ok($told{ms}, '<', 10_000, '... and the time is that of what is told');
	like(refuses('fence_hot', 0), qr/expected a namespace/, 'no namespace');
};

done_testing();
