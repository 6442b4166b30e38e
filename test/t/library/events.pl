# Events of the library: what commits is published once, as messages or in a stream, also in a cluster.

use strict;
use warnings;

use FenceTest;
use FenceTest::Library;
use Test::More;

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

done_testing();
