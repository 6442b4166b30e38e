# What a user of Redis writes past the library, into a bucket where nothing may be stored, is not served for ever: no write would end
# it, so the patrol sweeps it out (pgcache_fence.sweep_rate).

use strict;
use warnings;

use FenceTest;
use FenceTest::Session;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my @READER = qw(+fcall|fence_put +fcall_ro|fence_token +fcall_ro|fence_get +fcall_ro|fence_release +fcall_ro|fence_check
  +fcall_ro|fence_get_derived +multi +exec +mget +get +getrange +exists +set +time +select);
# What doc/operations.md gives to the extension
my @EXTENSION = qw(+fcall +fcall_ro +function|list +function|load +info +set +get +mget +getrange +del +exists +multi +exec +time +select +scan
  +rename +pexpire);
my $redis = FenceTest::Redis->start;
$redis->call('ACL', 'SETUSER', 'extension', 'reset', 'on', '>p', '~*', 'nocommands', @EXTENSION);
my $node = new_postgres('forged', undef, redis_url => 'redis://extension:p@127.0.0.1:' . $redis->port, watch_buckets => 1 << 20, patrol_interval => '50ms', fill_lease => 0, lease => '4s');
$node->{fence_redis} = $redis;
my $sql = FenceTest::Session->open($node);

$sql->run(<<'SQL');
CREATE TABLE item (id int PRIMARY KEY, name text, version bigint NOT NULL DEFAULT 0);
INSERT INTO item SELECT g, 'true' FROM generate_series(1, 3000) g;
SELECT fence.attach('item', ttl => '1 hour');
SQL
poll(sub { status(0) eq 'miss' }, 'the announcement');

my $namespace = $sql->run('SHOW pgcache_fence.namespace');
$redis->call('ACL', 'SETUSER', 'liar', 'reset', 'on', '>p', 'resetkeys', "~$namespace:f:*", "~$namespace:v:*", "%R~$namespace:heartbeat*",
	'nocommands', @READER);
my $liar = $redis->connect;
$liar->call('AUTH', 'liar', 'p');

sub status { my ($key) = @_; return $sql->run("SELECT status FROM fence.get('item', '$key')"); }
sub name_of { my ($key) = @_; return $sql->run("SELECT fence.read('item', '$key')->>'name'"); }
sub fence_of { my ($key) = @_; return $sql->run("SELECT fence.fence_key('item', '$key')"); }
sub swept { return $sql->run("SELECT value FROM fence.metrics WHERE name = 'cache_fence_swept_total'"); }

sub warm
{
	my ($key) = @_;

	poll(sub { name_of($key); return status($key) eq 'hit' }, "$key is cached");
	return;
}

# Writes a fence of that key as if it were current.
sub forge
{
	my ($key, $version, @life) = @_;
	my $fence = fence_of($key);
	my ($token) = split / /, $liar->call(qw(FCALL_RO fence_token 1), $fence);

	is($liar->call('SET', $fence, "$token $version {$key}\n{\"id\": $key, \"name\": \"lie\"}", @life), 'OK', "$key is forged");
	return;
}

# The lie is served, or was swept out already; then readers get the row again, whatever was written meanwhile.
sub ends_soon
{
	my ($key, @writes) = @_;
	my $before = swept();

	forge($key, 7);
	$sql->run($_) foreach @writes;
	my $expected = $sql->run("SELECT name FROM item WHERE id = $key");
	poll(sub { name_of($key) eq $expected }, "the row of $key", 30);
	is(name_of($key), $expected, '... is read again after ' . @writes . ' writes');
	cmp_ok(swept(), '>', $before, '... and counted');
	return;
}

subtest 'of a row that nobody has read' => sub {
	ends_soon(10);
	ends_soon(11, map { "UPDATE item SET name = 'new $_' WHERE id = 11" } 1 .. 5);
	ends_soon(12, map { "UPDATE item SET name = 'new $_' WHERE id = 12" } 1 .. 5);
	ends_soon(13, 'DELETE FROM item WHERE id = 13');
	like(slurp_file($node->logfile), qr/WARNING: .* removed \d+ cached value\(s\) that nobody may have stored, among them "\Q$namespace\E:f:/,
		'the log says so');
	like($sql->run("SELECT severity, finding FROM fence.doctor() WHERE finding LIKE '%nobody may have stored'"),
		qr/^warning\|\d+ cached value\(s\) were removed/, 'so does fence.doctor');
};

subtest 'many at once' => sub {
	my $before = swept();

	my ($token) = split / /, $liar->call(qw(FCALL_RO fence_token 1), fence_of(100));
	my @fences = split /\n/, $sql->run("SELECT fence.fence_key('item', g::text) FROM generate_series(100, 2599) g");
	$liar->call('SET', $_, "$token 7 " . s/.*:(?=\{)//r . "\n{\"name\": \"lie\"}") foreach @fences;
	poll(sub { @{ $redis->call('KEYS', "$namespace:f:*") } < 10 }, 'all to be swept out', 60);
	cmp_ok(swept() - $before, '>=', 2400, 'all are counted, but those in buckets that are open');
};

subtest 'what readers have stored stays' => sub {
	warm($_) foreach 1 .. 9;
	my $before = swept();
	# the present token and a bucket that was opened: as good as what a reader that puts says
	forge(9, 0);
	# what is no fence under a live token does no harm, and is nobody's lie
	$redis->call('SET', fence_of(20), 'dead 7 {20}' . "\n{}");
	$redis->call('SET', "$namespace:f:x", 1);
	$redis->call('LPUSH', fence_of(21), 'x');
	forge(22, 7);
	poll(sub { swept() > $before }, 'a whole round');
	forge(23, 7);
	poll(sub { swept() > $before + 1 }, 'another one');
	is(swept(), $before + 2, 'nothing else was removed');
	is(join(' ', map { status($_) } 1 .. 8), join(' ', ('hit') x 8), 'hits stay hits');
	is($redis->call('EXISTS', fence_of(20), fence_of(21), "$namespace:f:x"), 3, 'others are left alone');
	is(name_of(9), 'lie', 'a lie in an open bucket is served');
	$sql->run("UPDATE item SET name = 'written' WHERE id = 9");
	is(name_of(9), 'written', '... until the next write');
	# of an epoch that has ended there are fences in closed buckets, which nobody is served
	$redis->call(qw(FUNCTION DELETE pgcache_fence));
	my $epoch = $sql->run('SELECT epoch FROM fence.state');
	poll(sub { $sql->run("SELECT state = 'OPEN' AND epoch <> '$epoch' FROM fence.state") eq 't' }, 'a new epoch', 30);
	poll(sub { status(0) eq 'miss' }, 'the announcement');
	warm($_) foreach 1 .. 9;
	forge(24, 7);
	poll(sub { swept() > $before + 2 }, 'a whole round');
	is(swept(), $before + 3, 'nothing else was removed in the new epoch');
	is(join(' ', map { status($_) } 1 .. 9), join(' ', ('hit') x 9), 'hits stay hits');
};

subtest 'the narrowest rights' => sub {
	my $fence = fence_of(1);
	my $reads = [ 'MGET', $fence ];
	my $user = sub {
		my ($name, @rules) = @_;
		my $connection = $redis->connect;
		$redis->call('ACL', 'SETUSER', $name, 'reset', 'on', '>p', 'resetkeys', @rules);
		$connection->call('AUTH', $name, 'p');
		return $connection;
	};
	my @looks = ("%R~$namespace:f:*", "%R~$namespace:heartbeat*", qw(nocommands +mget +fcall_ro|fence_token +exists +time));
	my $looker = $user->('looker', @looks);

	warm(1);
	my ($record) = @{ $looker->call(@$reads) };
	my ($token) = split / /, $looker->call(qw(FCALL_RO fence_token 1), $fence);
	like($record, qr/^\Q$token\E /, 'who only reads needs MGET and fence_token');
	like($looker->error_of('SET', $fence, 'x') // 'none', qr/^NOPERM/, '... and cannot write');
	# a function does what it does with the rights of its caller
	my @puts = (qw(FCALL fence_put 1), $fence, $looker->call(qw(FCALL_RO fence_token 1), $fence), row_version($token, 0), 'x', 0);
	my $caller = $user->('caller', grep({ $_ ne '+set' } @READER), "~$namespace:f:*", "%R~$namespace:heartbeat*");
	like($caller->error_of(@puts) // 'none', qr/NOPERM|can't run this command|permission/i, 'who puts needs SET');
	is((split / /, ($redis->call('GET', $fence)))[0], $token, '... without it nothing is stored');
	is(join(' ', map { my %entry = @$_; $entry{username} eq 'extension' ? $entry{object} : () } @{ $redis->call('ACL', 'LOG') }), '',
		'the sweep needs no more than what the extension has');
};

# A bucket that was open, and is forgotten with the map of its turn.
subtest 'a genuine one whose life is prolonged' => sub {
	$node->append_conf('postgresql.conf', "pgcache_fence.watch_buckets = 64");
	$node->restart;
	wait_open($node);
	$sql = FenceTest::Session->open($node);
	$sql->run("CREATE TABLE brief (id int PRIMARY KEY, name text, version bigint NOT NULL DEFAULT 0);"
		  . " INSERT INTO brief SELECT g, 'true' FROM generate_series(1, 100) g; SELECT fence.attach('brief', ttl => '1 second')");
	poll(sub { $sql->run("SELECT status FROM fence.get('brief', '0')") eq 'miss' }, 'the announcement');
	my $fence = $sql->run("SELECT fence.fence_key('brief', '1')");
	my $record;
	poll(sub { $sql->run("SELECT fence.read('brief', '1')"); return $record = $liar->call('GET', $fence) }, 'the record');
	$liar->call('SET', $fence, $record);
	# all others of the 64 buckets are opened, so the maps take turns; then nothing is opened any more
	$sql->run('SELECT count(fence.read(\'brief\', g::text)) FROM generate_series(2, 100) g');
	poll(sub { $redis->call('EXISTS', $fence) == 0 }, 'it to be swept out, or written', 60);
	cmp_ok(swept(), '>', 0, 'swept out');
	$sql->run("UPDATE brief SET name = 'new' WHERE id = 1");
	is($sql->run("SELECT fence.read('brief', '1')->>'name'"), 'new', 'the row is read');
};

done_testing();
