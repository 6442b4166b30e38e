# After a change of redis_url nobody sends the new user and password to the old address, also while the keeper does not know
# of the change yet.

use strict;
use warnings;

use FenceTest;
use FenceTest::Session;
use Test::More;

my %redis = map { $_ => FenceTest::Redis->start } qw(old new);
$redis{old}->call(qw(ACL SETUSER first on >p1 ~* &* +@all));
$redis{new}->call(qw(ACL SETUSER second on >p2 ~* &* +@all));

sub url_of { my ($which, $user) = @_; return "redis://$user\@127.0.0.1:" . $redis{$which}->port; }

# Who tried to log in to the old server in vain.
sub strangers { return join ' ', map { my %entry = @$_; $entry{reason} eq 'auth' ? $entry{username} : () } @{ $redis{old}->call('ACL', 'LOG') }; }

my $node = new_postgres('main', undef, redis_url => url_of('old', 'first:p1'));
my $sql = FenceTest::Session->open($node);
$sql->run("CREATE TABLE item (id int PRIMARY KEY, version bigint NOT NULL DEFAULT 0); SELECT fence.attach('item')");
my $keeper = $sql->run("SELECT pid FROM pg_stat_activity WHERE backend_type = 'pgcache_fence keeper'");

kill STOP => $keeper;
$node->append_conf('postgresql.conf', "pgcache_fence.redis_url = '" . url_of('new', 'second:p2') . "'");
$node->reload;
poll(sub { $sql->run('SHOW pgcache_fence.redis_url') =~ /second/ }, 'the new setting');
foreach my $question ('fence.doctor()', 'fence.pending', 'fence.hot_keys', 'fence.effects', "fence.get('item', '1')", "fence.status('item', '1')")
{
	my $session = FenceTest::Session->open($node);
	$session->error_of("SELECT * FROM $question");
	is(strangers(), '', "not by $question");
	$session->close;
}
like($sql->run(q(SELECT string_agg(finding, ' ') FROM fence.doctor())), qr/the settings of the connection to Redis were changed/, 'doctor says so');
kill CONT => $keeper;
wait_open($node);
is(strangers(), '', 'nor by a worker');
poll(sub { $sql->run("SELECT status FROM fence.get('item', '1')") eq 'miss' }, 'the announcement');
is($redis{new}->call('ACL', 'WHOAMI'), 'default', 'the new one answers');

$node->stop;
done_testing();
