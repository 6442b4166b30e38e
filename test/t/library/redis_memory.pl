# What the protocol assumes of the memory of a function library (doc/protocol.md, State), against the server at hand:
# what was granted is remembered over everything but the loss of the process or of the library, and a process that
# has forgotten can be told from one that has not. The probes are the identity and one reservation.

use strict;
use warnings;

use FenceTest;
use Test::More;

my $nonce = 0;
my $epoch = 0;
my $settings = '3600000 0 1000 0';

sub hello
{
	my ($server) = @_;

	return $server->call('FCALL', 'fence_hello', 0, 'm', sprintf '%016x', ++$nonce);
}

sub pending
{
	my ($server) = @_;
	my (undef, undef, @list) = @{ $server->call('FCALL', 'fence_pending', 0, 'm', 100, '') };
	my @found;

	while (my (undef, $name, $stamp, $n) = splice @list, 0, 5)
	{
		push @found, "$name $stamp $n";
	}
	return join ',', @found;
}

# Arms the process in a new epoch and reserves; what it must know from now on.
sub remember
{
	my ($server) = @_;
	my $hello = hello($server);
	my $text = sprintf '%d-%016x', ++$epoch, $$;
	my $armed = $server->call('FCALL', 'fence_arm', 1, 'm:heartbeat', $hello->[0], $text, $hello->[1] + 3_600_000,
		'0-16383', 'cluster', 1, 'run', $settings);
	die "not armed: @$armed" unless $armed->[0] eq 'armed';
	$server->call('FCALL', 'fence_announce', 0, 'm', $text, '1.t', 1, 'none', 0);
	$server->call('FCALL', 'fence_write', 0, "m $text", '7.aa', 1, 'm:f:1.t:{1}') or die 'not reserved';
	return { identity => $hello->[0], epoch => $text, pending => 'm:f:1.t:{1} 7.aa 1' };
}

sub survives
{
	my ($server, $memory, $what) = @_;
	my $hello = hello($server);

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is("$hello->[0] $hello->[6] " . pending($server), "$memory->{identity} $memory->{epoch} $memory->{pending}",
		"memory survives $what");
}

sub gone
{
	my ($server, $memory, $what) = @_;
	my $hello = hello($server);

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	isnt($hello->[0], $memory->{identity}, "identity changes with $what");
	is("$hello->[6] " . pending($server), ' ', "... and the process is neither armed nor has it reservations");
	my $renewed = $server->call('FCALL', 'fence_renew', 0, 'm:heartbeat', $memory->{identity}, $memory->{epoch},
		$hello->[1] + 3_600_000, $settings);
	is($renewed->[0], 'refused', '... and what was meant for the former memory is refused [1]');
}

# REPLICAOF, and waits for the link.
sub follow
{
	my ($server, $master) = @_;

	$server->call('REPLICAOF', '127.0.0.1', $master->port);
	poll(sub { ($server->info('replication', 'master_link_status') // '') eq 'up' }, 'the replica link');
	poll(sub { ($master->info('replication', 'slave0') // '') =~ /state=online/ }, 'an online replica');
}

# The periods keep the replication stream silent unless the test writes.
my @config = ('repl-ping-replica-period 300', 'repl-timeout 600', 'repl-backlog-size 1mb');
my $redis = FenceTest::Redis->start(config => \@config);
note('server: ' . $redis->info('server', 'redis_version'));
$redis->load_library;

subtest 'what does not touch the memory' => sub {
	my $memory = remember($redis);
	my %on = (0 => $redis->connect, 3 => $redis->connect);

	$on{3}->call('SELECT', 3);
	survives($redis, $memory, 'calls over several connections');
	foreach my $event ([qw(FLUSHALL)], [qw(FLUSHALL ASYNC)], [qw(FLUSHALL SYNC)], [qw(FLUSHDB)], [qw(SCRIPT FLUSH)],
		[qw(SWAPDB 0 3)], [qw(CONFIG RESETSTAT)])
	{
		$_->call(@$event) foreach values %on;
		survives($redis, $memory, "@$event");
	}
	$redis->call('BGREWRITEAOF');
	poll(sub { $redis->info('persistence', 'aof_rewrite_in_progress') eq '0' }, 'the rewrite');
	survives($redis, $memory, 'BGREWRITEAOF');
	$redis->call('SAVE');
	survives($redis, $memory, 'SAVE');
	$redis->call('BGSAVE');
	poll(sub { $redis->info('persistence', 'rdb_bgsave_in_progress') eq '0' }, 'the background save');
	survives($redis, $memory, 'BGSAVE');
	$redis->attempt('EVAL', 'error("no")', 0);
	$redis->attempt('FCALL', 'fence_get', 0);
	survives($redis, $memory, 'scripts and functions that fail');
};

subtest 'other libraries' => sub {
	my $memory = remember($redis);
	my $other = "#!lua name=other\nredis.register_function('other_f', function() return 1 end)";

	foreach my $event ([ 'LOAD', $other ], [ 'LOAD', 'REPLACE', $other ], [ 'DELETE', 'other' ])
	{
		$redis->call('FUNCTION', @$event);
		survives($redis, $memory, "FUNCTION $event->[0] of another library");
	}
	my $bad = FenceTest::Redis::library_source() . "\nthis is no Lua";
	ok($redis->error_of('FUNCTION', 'LOAD', 'REPLACE', $bad), 'a broken library is refused');
	survives($redis, $memory, 'a FUNCTION LOAD REPLACE that fails');
	ok($redis->error_of('FUNCTION', 'LOAD', FenceTest::Redis::library_source()), 'LOAD without REPLACE is refused');
	survives($redis, $memory, 'a FUNCTION LOAD that fails');
	(my $copy = FenceTest::Redis::library_source()) =~ s/name=pgcache_fence/name=copy/;
	like($redis->error_of('FUNCTION', 'LOAD', $copy), qr/already exists/, 'a second copy cannot be loaded');
	survives($redis, $memory, 'the attempt');
};

subtest 'the library is loaded anew' => sub {
	my $memory = remember($redis);

	$redis->load_library;
	gone($redis, $memory, 'FUNCTION LOAD REPLACE');

	$memory = remember($redis);
	$redis->call('FUNCTION', 'FLUSH');
	like($redis->error_of('FCALL', 'fence_get', 1, 'm:f:1.t:{1}'),
		qr/Function not found/, 'FUNCTION FLUSH takes the functions');
	$redis->load_library;
	gone($redis, $memory, 'FUNCTION FLUSH');

	$memory = remember($redis);
	$redis->call('FUNCTION', 'DELETE', 'pgcache_fence');
	$redis->load_library;
	gone($redis, $memory, 'FUNCTION DELETE');

	foreach my $policy (qw(REPLACE FLUSH))
	{
		$memory = remember($redis);
		$redis->call('FUNCTION', 'RESTORE', $redis->call('FUNCTION', 'DUMP'), $policy);
		gone($redis, $memory, "FUNCTION RESTORE $policy");
	}
};

subtest 'the data set is loaded anew' => sub {
	foreach my $debug ('RELOAD', 'LOADAOF')
	{
		$redis->call('CONFIG', 'SET', 'appendonly', $debug eq 'LOADAOF' ? 'yes' : 'no');
		poll(sub { $redis->info('persistence', 'aof_rewrite_in_progress') eq '0' }, 'the rewrite');
		my $memory = remember($redis);
	  SKIP:
		{
			my $error = $redis->error_of('DEBUG', $debug);
			skip("DEBUG $debug: $error", 3) if $error;
			gone($redis, $memory, "DEBUG $debug");
		}
		$redis->call('CONFIG', 'SET', 'appendonly', 'no');
	}
};

subtest 'the process is replaced' => sub {
	foreach my $end ('stop', 'kill9')
	{
		my $memory = remember($redis);
		$redis->call('SAVE');
		$redis->$end;
		$redis->restart;
		gone($redis, $memory, "$end and restart (the library itself came back with the dump)");
	}
	unlink $redis->dir . '/dump.rdb';
	my $memory = remember($redis);
	$redis->kill9;
	$redis->restart;
	like($redis->error_of('FCALL', 'fence_hello', 0, 'm', 'a'),
		qr/Function not found/, 'without a dump not even the library is there');
	$redis->load_library;
	gone($redis, $memory, 'kill9 and restart without a dump');
};

subtest 'replication' => sub {
	my $replica = FenceTest::Redis->start(config => \@config);
	my $memory = remember($redis);

	follow($replica, $redis);
	survives($redis, $memory, 'that a replica attaches (a full resync, seen by the master)');
	my $own = hello($replica);
	isnt($own->[0], $memory->{identity}, 'a replica has its own identity');
	is($own->[2], 'slave', '... tells its role');
	is("$own->[6] " . pending($replica), ' ', '... is not armed, has no reservations');
	like(
		$replica->error_of('FCALL', 'fence_arm', 1, 'm:heartbeat', $own->[0], '99-aa', $own->[1] + 60_000, '0-16383',
			'cluster', 1, 'run', $settings),
		qr/READONLY/i, '... and cannot be armed');
	is(hello($replica)->[6], '', '... not even half-way');
	is($replica->call('FCALL_RO', 'fence_token', 1, 'm:f:1.t:{1}'), '', '... no token is told there');
	is($replica->call('FCALL_RO', 'fence_get', 1, 'm:f:1.t:{1}')->[0], 'unarmed', '... get says why');
	is($replica->call('FCALL_RO', 'fence_check', 1, 'm:f:1.t:{1}', 'x', 1), 0, '... a check says no');

	my $partial = sub { return $redis->info('stats', 'sync_partial_ok'); };
	my $before = $partial->();
	$redis->call('CLIENT', 'KILL', 'TYPE', 'replica');
	poll(sub { $partial->() > $before }, 'a partial resync');
	poll(sub { $replica->info('replication', 'master_link_status') eq 'up' }, 'the replica link');
	survives($redis, $memory, 'a partial resync, on the master');
	is(hello($replica)->[0], $own->[0], 'and so does the memory of the replica, its own');

	# Roles change places without a difference in the data: the former master follows by a partial resync.
	poll(sub { $redis->info('replication', 'master_repl_offset') eq $replica->info('replication', 'master_repl_offset') },
		'the replica to be level');
	$before = $replica->info('stats', 'sync_partial_ok');
	$replica->call('REPLICAOF', 'NO', 'ONE');
	follow($redis, $replica);
	is($replica->info('stats', 'sync_partial_ok'),
		$before + 1, 'a demoted master that had not diverged resyncs partially');
	survives($redis, $memory, 'that, on the demoted master');
	like($redis->error_of('FCALL', 'fence_write', 0, "m $memory->{epoch}", '8.aa', 1, 'm:f:1.t:{1}'),
		qr/READONLY/i, '... which grants no reservation all the same');

	$redis->call('REPLICAOF', 'NO', 'ONE');
	survives($redis, $memory, 'promotion');
};

subtest 'a demoted master that had diverged' => sub {
	my $other = FenceTest::Redis->start(config => \@config);

	$other->load_library;
	foreach my $load ('disabled', 'swapdb')
	{
		$redis->call('REPLICAOF', 'NO', 'ONE');
		$redis->call('CONFIG', 'SET', 'repl-diskless-load', $load);
		my $memory = remember($redis);
		my $master = remember($other);
		follow($redis, $other);
		is($other->info('stats', 'sync_full') > 0, 1, 'it resyncs fully');
		my $hello = hello($redis);
		isnt($hello->[0], $memory->{identity}, "identity changes with a full resync (repl-diskless-load $load)");
		is("$hello->[6] " . pending($redis), ' ', '... and the process is neither armed nor has it reservations');
		isnt($hello->[0], $master->{identity}, '... nor has it the identity of its master');
		survives($other, $master, 'that a demoted master attaches');
	}
};

done_testing();
