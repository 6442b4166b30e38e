# A master that was demoted and resynchronised partially keeps its memory: it is still armed, holds its tokens, and has
# fences under them. Once its lease is over it must tell readers nothing, whatever the heartbeats of its new master bring.

use strict;
use warnings;

use FenceTest;
use Test::More;

my $fence = 'm:f:1.t:{1}';
my @config = ('repl-ping-replica-period 300', 'repl-timeout 600', 'repl-backlog-size 1mb');
my $old = FenceTest::Redis->start(config => \@config);
my $new = FenceTest::Redis->start(config => \@config);
my $epoch = 0;

# Arms the process for so many milliseconds, in a new epoch; returns what writers say.
sub arm
{
	my ($server, $ms) = @_;
	my $hello = $server->call('FCALL', 'fence_hello', 0, 'm', sprintf '%016x', $server->port);
	my $text = ++$epoch . '-aa';
	my $armed = $server->call('FCALL', 'fence_arm', 1, 'm:heartbeat', $hello->[0], $text, $hello->[1] + $ms, '', 'cluster', 1,
		'server', '86400000 100 1000 0');

	is($armed->[0], 'armed', "armed in epoch $text");
	is($server->call('FCALL', 'fence_announce', 0, 'm', $text, '1.t', 7, 'none', 0)->[1], 0, 'announced');
	return "m $text";
}

# A strong read: the payload, or undef.
sub hit
{
	my ($server) = @_;
	my $record = $server->call('GET', $fence);
	my ($token) = $server->call('FCALL_RO', 'fence_token', 1, $fence) =~ /^(\S+) /;

	return defined $token && defined $record && $record =~ /^\Q$token\E .*\n(.*)/ ? $1 : undef;
}

sub follow
{
	my ($server, $master) = @_;

	$server->call('REPLICAOF', '127.0.0.1', $master->port);
	poll(sub { ($server->info('replication', 'master_link_status') // '') eq 'up' }, 'the replica link');
	poll(sub { $server->info('replication', 'master_repl_offset') eq $master->info('replication', 'master_repl_offset') },
		'the replica to be level');
	return;
}

$old->load_library;
follow($new, $old);

# long enough for the steps until 'a hit' on any machine; what is over is waited for
arm($old, 5_000);
my $permit = $old->call('FCALL_RO', 'fence_token', 1, $fence);
is($old->call('FCALL', 'fence_put', 1, $fence, $permit, FenceTest::Redis::row_version($permit, 1), 'first', 0), 'stored', 'a reader fills the fence in');
is(hit($old), 'first', 'a hit');

poll(sub { $old->info('replication', 'master_repl_offset') eq $new->info('replication', 'master_repl_offset') }, 'the replica');
$new->call('REPLICAOF', 'NO', 'ONE');
my $before = $new->info('stats', 'sync_partial_ok');
follow($old, $new);
is($new->info('stats', 'sync_partial_ok'), $before + 1, 'the roles change places by a partial resync');
poll(sub { !defined hit($old) }, 'the end of the lease');
like($old->call('GET', $fence), qr/first/, 'the demoted master has the fence');

my $header = arm($new, 600_000);
poll(sub { $old->info('replication', 'master_repl_offset') eq $new->info('replication', 'master_repl_offset') },
	'the heartbeat to arrive at the demoted master');
is($old->call('FCALL_RO', 'fence_token', 1, $fence), '', 'no permit there: the heartbeat of another process is not its own');
is_deeply($old->call('FCALL_RO', 'fence_get', 1, $fence), ['unarmed'], '... and the slow path tells so');
is($old->call('FCALL_RO', 'fence_check', 1, $fence, split / /, $permit), '0', '... nor does a check say yes');

# What it would have served: a row that was reserved and committed at the new master while the link was down.
$old->call('CONFIG', 'SET', 'masteruser', 'nobody', 'masterauth', 'nothing');
$new->call('CLIENT', 'KILL', 'TYPE', 'replica');
poll(sub { $old->info('replication', 'master_link_status') eq 'down' }, 'the link to be down');
cmp_ok($new->call('FCALL', 'fence_write', 0, $header, '5.a', 1, $fence), '>', 0, 'the row is reserved at the new master');
cmp_ok($new->call('FCALL', 'fence_write', 0, $header, '', 0, '5.a'), '>', 0, '... and committed');
is(hit($old), undef, 'the demoted master, which knows nothing of it, serves nothing');

done_testing;
