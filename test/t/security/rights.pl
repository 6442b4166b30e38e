# What the extension's user may not do in Redis: fences stay closed until it may, and state and doctor name each right.

use strict;
use warnings;

use FenceTest;
use FenceTest::Session;
use Test::More;

my @NEEDED = qw(del exists fcall fcall_ro get getrange info mget pexpire rename scan select set time function|list function|load);
my @EVENTS = qw(publish spublish xadd);

my $redis = FenceTest::Redis->start;

# Gives the user these keys, and all commands that it needs but some.
sub set_user
{
	my ($keys, @without) = @_;
	my %without = map { $_ => 1 } @without;

	return $redis->call(qw(ACL SETUSER extension reset on >hidden), @$keys, map { "+$_" } grep { !$without{$_} } @NEEDED);
}

set_user([ '~secured:f:*', '%R~secured:*' ], qw(del time scan));
my $node = new_postgres('main', undef, namespace => 'secured', wait => 0, redis_url => 'redis://extension:hidden@127.0.0.1:' . $redis->port);
my $sql = FenceTest::Session->open($node);

sub reason { return $sql->run('SELECT state, reason FROM fence.state'); }
sub lacking { return $sql->run(q(SELECT severity || ' ' || finding FROM fence.doctor() WHERE finding ~ '^user .* lacks ' ORDER BY 1)); }

subtest 'all that is missing is named before fences open' => sub {
	poll(sub { reason() =~ /lacks/ }, 'the reason');
	is(reason(), 'CLOSED|user "extension" of Redis lacks +del +scan +time ~secured:*', 'in fence.state');
	my $where = 'in Redis at 127.0.0.1, port ' . $redis->port;
	is(lacking(), join("\n", map { "error user \"extension\" lacks $_ $where" } sort qw(+del +scan +time ~secured:*)), 'in fence.doctor, one by one')
	  or diag($sql->run('SELECT * FROM fence.doctor()'));
	is($sql->run(q(SELECT hint FROM fence.doctor() WHERE finding ~ '^user .*[+]del')),
		'ACL SETUSER extension +del (doc/operations.md, "Users and passwords").', 'with what to do');
	set_user(['~secured:*']);
	wait_open($node);
	is(lacking(), '', 'nothing is missing any more');
};

subtest 'each of them' => sub {
	foreach my $command (grep { !/^f/ } @NEEDED)
	{
		set_user([ '~secured:*' ], $command);
		my $asks = $redis->connect;
		$asks->call('AUTH', 'extension', 'hidden');
		is(join(' ', @{ $asks->call(qw(FCALL_RO fence_rights 0 secured)) }), "+$command", "without $command");
	}
	set_user(['~secured:*']);
};

subtest 'for events' => sub {
	$sql->run("CREATE TABLE item (id int PRIMARY KEY, version bigint NOT NULL DEFAULT 0); SELECT fence.attach('item')");
	is(lacking(), '', 'nobody has asked for events');
	$sql->run("SELECT fence.detach('item'); SELECT fence.attach('item', publish => 'pubsub')");
	is(join(' ', sort map { /^warning .* lacks (\S+) .*: events are lost$/ } split /\n/, lacking()), '&secured:e:* +publish +spublish +xadd', 'they are lost');
	$redis->call(qw(ACL SETUSER extension), map { "+$_" } @EVENTS);
	like(lacking(), qr/^warning user "extension" lacks &secured:e:[*] /m, 'the channel');
	$redis->call(qw(ACL SETUSER extension), '&secured:e:*');
	is(lacking(), '', 'they are not');
	is($sql->run('SELECT state FROM fence.state'), 'OPEN', 'fences are open all the same');
};

$node->stop;
done_testing();
