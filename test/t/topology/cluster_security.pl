# A Redis Cluster whose users have no more than the documented rights, and one that is reached over TLS only.

use strict;
use warnings;

use FenceTest;
use FenceTest::Certificates;
use FenceTest::Cluster;
use FenceTest::Session;
use IPC::Run;
use Test::More;

# doc/operations.md, "Users and passwords"
my @EXTENSION = qw(+fcall +fcall_ro +function|list +function|load +info +set +get +mget +getrange +del +exists +multi +exec +time +select
  +scan +rename +pexpire +cluster|slots +cluster|info);
my @READER = qw(+fcall|fence_put +fcall_ro|fence_token +fcall_ro|fence_get +fcall_ro|fence_release +fcall_ro|fence_check
  +fcall_ro|fence_get_derived +multi +exec +mget +get +getrange +exists +set +time +select +cluster|slots +command +info);
my $NAMESPACE = 'secured';
my $KEYS = 60;

my ($cluster, $node, $sql);

sub set_user
{
	my ($member, $name, @rules) = @_;
	return $member->call('ACL', 'SETUSER', $name, 'reset', 'on', ">$name-hidden", 'resetkeys', "~$NAMESPACE:*", 'resetchannels',
		'nocommands', @rules);
}
sub set_users { set_user($_, 'extension', @EXTENSION), set_user($_, 'reader', @READER), $_->call('ACL', 'LOG', 'RESET') foreach @_; return; }

# What members have refused to that user.
sub refused
{
	my ($name) = @_;
	return join "\n", map { my %entry = @$_; $entry{username} eq $name ? "$entry{reason} $entry{object}" : () }
	  map { @{ $_->call('ACL', 'LOG') } } $cluster->alive;
}

sub start_postgres
{
	my ($name, $url, %settings) = @_;

	$node = new_postgres($name, undef, namespace => $NAMESPACE, redis_url => $url, bulk_threshold => 50, %settings);
	$sql = FenceTest::Session->open($node);
	$sql->run("CREATE TABLE item (id int PRIMARY KEY, n int, version bigint NOT NULL DEFAULT 0)");
	$sql->run("INSERT INTO item SELECT g, 0 FROM generate_series(1, $KEYS) g; SELECT fence.attach('item')");
	answered();
	return;
}

sub answered
{
	poll(sub { $sql->run("SELECT bool_and((fence.get('item', id::text)).status NOT IN ('unarmed', 'unavailable')) FROM item") eq 't' },
		'all slots to be answered in', 60);
	return;
}

# What an application and a cluster do.
sub use_it
{
	$sql->run("SELECT count(fence.read('item', id::text)) FROM item");
	is($sql->run("SELECT count(*) FROM item WHERE (fence.get('item', id::text)).status = 'hit'"), $KEYS, 'all is cached');
	$sql->run("UPDATE item SET n = 1 WHERE id < 20");
	$sql->run("BEGIN; UPDATE item SET n = 2 WHERE id < 20; ROLLBACK");
	$sql->run("UPDATE item SET n = 3; DELETE FROM item WHERE id = 1; INSERT INTO item VALUES (1, 3)");
	is($sql->run("SELECT count(*) FROM item WHERE fence.read('item', id::text) ->> 'n' = '3'"), $KEYS, 'a bulk change is seen');
	my $new = $cluster->join;
	set_users($new);
	my ($from) = $cluster->masters;
	my $slot = $sql->run("SELECT min(fence.key_slot(fence.fence_key('item', id::text))) FROM item");
	$cluster->move_slots($new, $slot);
	poll(sub { $sql->run('SELECT count(*) FROM fence.nodes WHERE slots > 0') == 4 }, 'the new master to be granted its slot', 60);
	answered();
	like($new->call('FUNCTION', 'LIST')->[0][1], qr/pgcache_fence/, 'it has the library');
	$sql->run('UPDATE item SET n = 4');
	is($sql->run("SELECT count(*) FROM item WHERE fence.read('item', id::text) ->> 'n' = '4'"), $KEYS, 'changes are seen');

	# who has given its last slot away is not heard of any more, and may go
	$cluster->move_slots($from, $slot);
	poll(sub { $sql->run('SELECT count(*) FROM fence.nodes WHERE slots > 0') == 3 }, 'the slot to be granted back', 60);
	answered();
	is($sql->run('SELECT count(*) FROM fence.nodes'), 3, 'who has no slots any more is no node');
	is(refused('extension'), '', 'nothing was refused to the extension');
	$cluster->leave($new);
	is($sql->run("SELECT count(*) FROM fence.doctor() WHERE finding ~ '${\$new->port}'"), 0, 'nor for the doctor');
	$sql->run('UPDATE item SET n = 6');
	is($sql->run("SELECT count(*) FROM item WHERE fence.read('item', id::text) ->> 'n' = '6'"), $KEYS, 'changes are seen');
	no_reservations($node);
	my @wrong = FenceTest::Comparison->new($node, redis => $cluster->router)->anomalies;
	is(join("\n", @wrong), '', 'fences agree with their rows');
	return;
}

subtest 'users with the documented rights' => sub {
	$cluster = FenceTest::Cluster->start(3, replicas => 0, config => ['cluster-allow-replica-migration no']);
	set_users($cluster->members);
	my $hosts = join ',', map { '127.0.0.1:' . $_->port } $cluster->members;
	start_postgres('cluster_acl', "redis+cluster://extension:extension-hidden\@$hosts");
	use_it();

	# a reader with a cluster client
	$sql->run("UPDATE item SET n = 5; SELECT count(fence.get('item', id::text)) FROM item");
	my $names = $sql->run("SELECT string_agg(fence.fence_key('item', id::text), ' ') FROM item");
	my ($output, $error) = ('', '');
	IPC::Run::run([ '/usr/bin/python3', '-', "$TOP/test/lib", ($cluster->masters)[0]->port, split / /, $names ], \<<'PYTHON', \$output, \$error);
import collections, sys
sys.path.insert(0, sys.argv.pop(1))
import redis
import strong
from redis.cluster import RedisCluster
r = RedisCluster('127.0.0.1', int(sys.argv[1]), username='reader', password='reader-hidden')
counts = collections.Counter()
for _ in range(2):
    for fence in sys.argv[2:]:
        node = r.get_node_from_key(fence)
        client = r.get_redis_connection(node)
        status, *answer = strong.read(client, fence)
        counts[status] += 1
        slow = client.execute_command('FCALL_RO', 'fence_get', 1, fence)[0].decode()
        counts['disagreed'] += slow != status
        if status == 'miss':
            strong.put(client, fence, answer[0], answer[0].partition('.')[0] + '.5', 'v')
try:
    redis.Redis(port=int(sys.argv[1]), username='reader', password='reader-hidden').execute_command('FCALL', 'fence_renew', 0)
except redis.exceptions.NoPermissionError:
    counts['refused'] += 1
print(' '.join('%s %d' % pair for pair in sorted(counts.items())))
PYTHON
	is($error, '', 'the reader had no error');
	my ($hits) = $output =~ /hit (\d+)/;
	cmp_ok($hits // 0, '>=', $KEYS, 'what it put, it got') or diag($output);
	like($output, qr/disagreed 0/, 'the fast way and the slow one agree');
	like($output, qr/refused 1/, 'what a reader must not call is refused to it');
	# newer clients say who they are, and do not mind if they may not
	is(join(', ', grep { !/client\|setinfo/ } split /\n/, refused('reader')), 'command fcall', 'and nothing else');
};

subtest 'and no less' => sub {
	foreach my $rule ('+cluster|slots', '+cluster|info')
	{
		set_user($_, 'extension', grep { $_ ne $rule } @EXTENSION) foreach $cluster->alive;
		$_->call('ACL', 'LOG', 'RESET') foreach $cluster->alive;
		ok(eval { poll(sub { refused('extension') ne '' }, "without $rule", 30) }, "without $rule something is refused");
		set_users($cluster->alive);
		wait_open($node);
	}
};

subtest 'over TLS' => sub {
	my ($rc, undef, $error) = $node->psql('postgres', "ALTER SYSTEM SET pgcache_fence.redis_url = 'rediss+cluster://localhost'");
	plan skip_all => 'this hiredis has no TLS' if $rc != 0 && $error =~ /needs hiredis 1\.0 or later/;
	plan skip_all => 'the program openssl is not here' unless FenceTest::Certificates::available();
	my $program = $ENV{REDIS_SERVER} || 'redis-server';
	plan skip_all => 'this Redis has no TLS' unless `ldd "\$(command -v $program)"` =~ /libssl/;
	$node->stop;
	my $authority = FenceTest::Certificates->new;
	my @lines = grep { !/^tls-port/ } $authority->redis_config(0, $authority->issue('address', 'IP:127.0.0.1'));

	$cluster = FenceTest::Cluster->start(3, replicas => 0, config => ['cluster-allow-replica-migration no'], tls => \@lines);
	set_users($cluster->members);
	my $hosts = join ',', map { '127.0.0.1:' . $_->port } $cluster->members;
	start_postgres('cluster_tls', "rediss+cluster://extension:extension-hidden\@$hosts", 'pgcache_fence.tls_ca_file' => $authority->file);
	use_it();
};

done_testing();
