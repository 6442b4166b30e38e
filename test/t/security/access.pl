# Who may do what, in Redis and in PostgreSQL, and where passwords are seen.

use strict;
use warnings;

use FenceTest;
use FenceTest::Session;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

# What doc/operations.md gives to the extension's user and to readers. %s: the namespace.
my @EXTENSION = qw(+fcall +fcall_ro +function|list +function|load +info +set +get +mget +getrange +del +exists +multi +exec +time +select +scan
  +rename +pexpire);
# And for effects, besides
my @EFFECTS = qw(~app:* +get +incrby +decrby +setrange +exists +type +rename +unlink +pexpire +pttl +persist +hset +hget +hstrlen +hdel +hincrby
  +hmget +hexists +hscan +lpush +rpush +lrange +ltrim +lrem +zadd +zcard +zrange +zremrangebyrank +xadd +xtrim +xrevrange);
my @READER = qw(+fcall|fence_put +fcall_ro|fence_token +fcall_ro|fence_get +fcall_ro|fence_release +fcall_ro|fence_check
  +fcall_ro|fence_get_derived +multi +exec +mget +get +getrange +exists +set +time +select);
# Which may read and write fences and values, look at the lease, and nothing else of the namespace
my @READER_KEYS = ((map { "~secured:$_:*" } qw(f v)), '%R~secured:heartbeat*');
# Of those who may not even fill a cache
my @LOOKER = grep { !/^[+](?:fcall[|].*|set)$/ } @READER;
my @LOOKER_KEYS = map { "%R~secured:$_*" } qw(f: v: heartbeat);
my $NAMESPACE = 'secured';

my $redis = FenceTest::Redis->start;
my @EVERYBODY = ('on', 'resetkeys', "~$NAMESPACE:*", 'resetchannels', 'nocommands');

sub set_user { my ($name, $password, @rules) = @_; return $redis->call('ACL', 'SETUSER', $name, 'reset', @EVERYBODY, ">$password", @rules); }
sub url_of { my ($name, $password) = @_; return "redis://$name:$password\@127.0.0.1:" . $redis->port; }

set_user('extension', 'p1-hidden', @EXTENSION);
my $node = new_postgres('security', undef, namespace => $NAMESPACE, redis_url => url_of('extension', 'p1-hidden'),
	bulk_threshold => 50, max_prepared_transactions => 5);
$node->{fence_redis} = $redis;
my $sql = FenceTest::Session->open($node);

sub state_of { my ($field) = @_; return $sql->run("SELECT $field FROM fence.state"); }

# What Redis has refused to that user since its log was emptied.
sub refused_to
{
	my ($user) = @_;

	return map { my %entry = @$_; $entry{username} eq $user ? "$entry{reason} $entry{object}" : () } @{ $redis->call('ACL', 'LOG') };
}

# Writes the URL where no statement shows it, and reloads.
sub set_url
{
	my ($url) = @_;

	$node->append_conf('postgresql.conf', "pgcache_fence.redis_url = '$url'");
	$node->reload;
	return;
}

$sql->run(<<'SQL');
CREATE TABLE item (id int PRIMARY KEY, name text, version bigint NOT NULL DEFAULT 0);
INSERT INTO item SELECT g, 'x' FROM generate_series(1, 200) g;
CREATE TABLE told (id int PRIMARY KEY, name text, version bigint NOT NULL DEFAULT 0);
INSERT INTO told SELECT g, 'x' FROM generate_series(1, 20) g;
SELECT fence.attach('item'), fence.attach('told', cache => 'row');
CREATE FUNCTION name_of(id int) RETURNS text STABLE LANGUAGE sql RETURN (SELECT i.name FROM item i WHERE i.id = name_of.id);
SELECT fence.define_derived('name', '{item($1)}', 'name_of(int)');
SQL
poll(sub { $sql->run("SELECT status FROM fence.get('item', '1')") ne 'unarmed' }, 'the announcement');

subtest 'the extension needs no more than its ACL' => sub {
	$redis->call('ACL', 'LOG', 'RESET');
	$sql->run("SELECT fence.read('item', id::text) FROM item WHERE id < 10");
	is($sql->run("SELECT status FROM fence.get('item', '1')"), 'hit', 'read, put, get');
	$sql->run("UPDATE item SET name = 'y' WHERE id = 1");
	$sql->run("UPDATE told SET name = 'y' WHERE id = 1");
	$sql->run("BEGIN; UPDATE item SET name = 'z' WHERE id = 2; ROLLBACK");
	foreach (1, 2)
	{
		$sql->run("SELECT fence.peek('item', '3'), fence.read_derived('name', '3')");
		$sql->run("SELECT count(*) FROM fence.read_many(ARRAY[fence.fence_key('item', '3'), fence.fence_key('item', '4')])");
	}
	$sql->run("UPDATE item SET name = repeat('large', 2000) WHERE id = 9; SELECT fence.read('item', '9')");
	is($sql->run("SELECT status FROM fence.get('item', '9')"), 'hit', 'a large one');
	$sql->run("UPDATE item SET name = 'bulk'");
	$sql->run('TRUNCATE item; INSERT INTO item SELECT g FROM generate_series(1, 20) g; DELETE FROM item WHERE id = 3');
	$sql->run("BEGIN; UPDATE item SET name = 'p' WHERE id = 4; PREPARE TRANSACTION 'p'");
	$sql->run("COMMIT PREPARED 'p'");
	no_reservations($node);
	$sql->run("SELECT fence.repair('item', '5'); SELECT * FROM fence.audit('item'); SELECT * FROM fence.status('item', '5')");
	my $killed = FenceTest::Session->open($node);
	$killed->run("BEGIN; UPDATE item SET name = 'k' WHERE id = 6");
	$killed->kill9;
	no_reservations($node);
	compare_fences($node, 'item');
	is(join("\n", refused_to('extension')), '', 'Redis has refused it nothing');
};

subtest 'effects need what is said, and reach no other key' => sub {
	like($sql->error_of("SELECT fence.counter_add('app:c', 1)"), qr/NOPERM|can't run this command|can't access|No permissions/,
		'refused without');
	set_user('extension', 'p1-hidden', @EXTENSION, @EFFECTS);
	$redis->call('ACL', 'LOG', 'RESET');
	foreach my $end ('ROLLBACK', 'COMMIT')
	{
		$sql->run($_)
		  foreach 'BEGIN', "SELECT fence.once('app:once'), fence.once_result('app:once', '1')", "SELECT fence.counter_add('app:c', 1)",
		  "SELECT fence.transfer('app:{t}1', 'app:{t}2', 1, NULL)", "SELECT fence.compare_and_set('app:v', NULL, 'x')",
		  "SELECT fence.take_and_extend('app:v', '1 hour'), fence.take_and_extend('app:v', '0')",
		  "SELECT fence.publish('app:p', repeat('x', 600000)), fence.publish('app:q', 'x', '1 hour'), fence.publish_hash('app:h', '{\"a\": 1}')",
		  "SELECT fence.hash_set('app:{f}', 'a', 'x', 'app:{f}log'), fence.hash_add('app:{f}', 'n', 1, log_key => 'app:{f}log')",
		  "SELECT fence.take_and_set('app:until', 'x', expire_at => now() + '1 hour'), fence.publish('app:r', 'x', expire_at => now() + '1 hour')",
		  "SELECT fence.append('app:l', g, 'list', 1), fence.append('app:z', g, 'zset', 1), fence.append('app:s', g, 'stream', 1) "
		  . "FROM unnest('{1,2}'::text[]) g",
		  "SELECT fence.append('app:d', 'x', durable => true)", "SELECT fence.enqueue('app:{q}', 'x', '100 ms')",
		  'SELECT fence.commit_marker()', $end;
	}
	$sql->run("SELECT fence._log_stamps('app:' || k, 5) FROM unnest('{l,z,s}'::text[]) k");
	poll(sub { $redis->call('LLEN', 'app:{q}') == 1 }, 'the queue');
	$redis->call('LMOVE', 'app:{q}', 'app:{q}:processing', 'RIGHT', 'LEFT');
	poll(sub { $redis->call('LLEN', 'app:{q}') == 1 }, 'the job is back');
	poll(sub { !grep { /:[hs]:/ } @{ $redis->call('KEYS', "$NAMESPACE:*") } }, 'the end of all holds');
	is($redis->call('LLEN', 'app:d'), 1, 'a durable one');
	is(join("\n", refused_to('extension')), '', 'Redis has refused it nothing');
	like($sql->error_of("SELECT fence.counter_add('other', 1)"), qr/could not hold an effect in Redis/, 'another key');
	is($redis->call('EXISTS', 'other'), 0, 'is not touched');
	set_user('extension', 'p1-hidden', @EXTENSION);
	$redis->call('ACL', 'LOG', 'RESET');
};

subtest 'and no less' => sub {
	foreach my $rule (@EXTENSION)
	{
		my @others = grep { $_ ne $rule } @EXTENSION;

		# a new function library is what only a new Redis needs
		$redis->call('FUNCTION', 'FLUSH');
		set_user('extension', 'p1-hidden', @others);
		my $broken = eval {
			poll(
				sub {
					$sql->run("UPDATE item SET name = 'n' WHERE id = 7; SELECT fence.read('item', '7'), fence.read_derived('name', '8')");
					# of which the payload does not pass through Lua
					$sql->run("UPDATE item SET name = repeat('large', 2000) WHERE id = 9; SELECT fence.read('item', '9')");
					# whose reservations the patrol settles
					$sql->run("BEGIN; UPDATE item SET name = 'q' WHERE id = 10; PREPARE TRANSACTION 'q'");
					$sql->run("COMMIT PREPARED 'q'");
					return 1 if refused_to('extension');
					return state_of('state, reason') =~ /^CLOSED\|.*(NOPERM|can't run this command|lacks \Q$rule\E$)/;
				},
				"without $rule", 20);
		};
		ok($broken, "without $rule something is refused") or diag(state_of('state, reason'));
		set_user('extension', 'p1-hidden', @EXTENSION);
		$redis->call('ACL', 'LOG', 'RESET');
		# the waits between tries grow with each failure
		$node->restart;
		$sql = FenceTest::Session->open($node);
		wait_open($node);
		poll(sub { $sql->run("SELECT status FROM fence.get('item', '1')") ne 'unarmed' }, 'the announcement');
	}
	set_user('extension', 'p1-hidden', grep { $_ ne '+mget' } @EXTENSION);
	like($sql->error_of("SELECT * FROM fence.status('item', '5')"), qr/could not ask Redis for the fence: Redis answered: .*mget/,
		'who asks is told which');
	set_user('extension', 'p1-hidden', @EXTENSION);
};

# What Redis refuses to a user who asks all that, in a word. The heartbeat's key is taken away before: the cheap look at the
# lease fails then, and the dear one is needed.
sub refusals
{
	my ($connection, $user, @commands) = @_;

	$redis->call('ACL', 'LOG', 'RESET');
	foreach my $command (@commands)
	{
		$redis->call('DEL', @{ $redis->call('KEYS', "$NAMESPACE:heartbeat*") }, 'none');
		$connection->attempt(@$command);
	}
	return join ', ', refused_to($user);
}

subtest 'a reader of Redis' => sub {
	set_user('reader', 'p2-hidden', 'resetkeys', @READER_KEYS, @READER);
	my $reader = $redis->connect;
	$reader->call('AUTH', 'reader', 'p2-hidden');
	my ($fence, $value, $none) =
	  split /\|/, $sql->run("SELECT fence.fence_key('item', '14'), fence.value_key('item', '14') || ':short', fence.fence_key('item', '13')");

	my ($status, $permit) = strong_read($reader, $fence);
	is($status, 'miss', 'gets');
	my $version = $sql->run('SELECT version FROM item WHERE id = 14');
	is($reader->call(qw(FCALL fence_put 1), $fence, $permit, row_version($permit, $version), 'payload', 0), 'stored', 'puts');
	is($reader->call(qw(FCALL fence_put 2), $fence, $value, $permit, row_version($permit, $version), 'short', 0), 'stored', '... beside the fence too');
	is((strong_read($reader, $fence))[2], 'payload', 'has a hit');
	is($reader->call(qw(FCALL_RO fence_get 1), $fence)->[0], 'hit', '... the slow way too');
	is($reader->call(qw(FCALL_RO fence_get 2), $fence, $value)->[1] =~ s/.*\n//r, 'short', '... and of what is beside');
	my ($token) = split / /, $permit;
	is($reader->call(qw(FCALL_RO fence_check 1), $fence, $token, $version), 1, 'checks');
	my $derived = $sql->run("SELECT value FROM fence.derived_keys('name', '14')");
	$reader->call('SET', $derived, "$fence $token $version\n\ncomputed");
	is($reader->call(qw(FCALL_RO fence_get_derived 1), $derived)->[1], 'computed', 'has a derived one');

	my @uses = ([ 'GET', $fence ], [ 'MGET', $fence ], [ 'SET', $derived, "$fence $token $version\n\ncomputed" ], ['MULTI'],
		[ qw(FCALL_RO fence_token 1), $fence ], ['EXEC'], [ qw(FCALL_RO fence_token 1), $fence ], [ qw(FCALL_RO fence_get 1), $none ],
		[ qw(FCALL fence_put 2), $fence, $value, $permit, row_version($permit, $version), 'short', 0 ], [ qw(FCALL_RO fence_release 1), $fence ],
		[ qw(FCALL_RO fence_check 1), $fence, $token, $version ], [ qw(FCALL_RO fence_get_derived 1), $derived ]);
	is(refusals($reader, 'reader', @uses), '', 'nothing of that is refused');
	my $large = "$value.1";
	my @large = ([ 'SET', $large, "$token $version {14}\nlarge" ], [ qw(FCALL fence_put_from 2), $fence, $large, $permit, row_version($permit, $version), 0 ]);
	isnt(refusals($reader, 'reader', @large), '', 'a put that renames needs more');
	$redis->call('ACL', 'SETUSER', 'reader', '+fcall|fence_put_from', '+rename', '+pexpire');
	is(refusals($reader, 'reader', @large), '', 'nothing of that is refused to who has it');
	is((strong_read($reader, $fence))[2], 'large', 'it is stored');
	foreach my $rule (@READER)
	{
		$redis->call('ACL', 'SETUSER', 'reader', 'nocommands', grep { $_ ne $rule } @READER);
		isnt(refusals($reader, 'reader', @uses), '', "needs $rule");
		$redis->call('ACL', 'SETUSER', 'reader', 'nocommands', @READER);
	}

	my @functions;
	foreach my $library (@{ $redis->call('FUNCTION', 'LIST', 'LIBRARYNAME', 'pgcache_fence') })
	{
		my %library = @$library;
		push @functions, map { my %f = @$_; $f{name} } @{ $library{functions} };
	}
	cmp_ok(scalar @functions, '>', 10, 'the functions of the library');
	foreach my $name (sort grep { !/^fence_(token|get|put|release|check|get_derived)$/ } @functions)
	{
		like($reader->error_of($_, $name, 1, $fence, 'a', 'b', 'c', 'd', 'e', 'f') // 'none', qr/^NOPERM/, "not $_ $name")
		  foreach qw(FCALL FCALL_RO);
	}
	foreach my $command ([qw(FLUSHALL)], [qw(FLUSHDB)], [qw(FUNCTION FLUSH)], [qw(FUNCTION DELETE pgcache_fence)],
		[ qw(FUNCTION LOAD), '#!lua name=x' ], [qw(CONFIG SET maxmemory 1)], [qw(EVAL return 0)], [qw(SWAPDB 0 1)],
		[ 'RENAME', $fence, "$fence.2" ], [ 'RESTORE', $fence, 0, 'x' ], [ 'COPY', $fence, "$fence.2" ], [qw(SHUTDOWN)],
		[qw(KEYS *)], [qw(MONITOR)], [qw(ACL LIST)], [qw(DEBUG RELOAD)], [qw(REPLICAOF NO ONE)], [ 'GET', 'other:key' ])
	{
		like($reader->error_of(@$command) // 'none', qr/^NOPERM/, "not @$command[0 .. ($#$command > 1 ? 1 : $#$command)]");
	}
	like($reader->error_of('SET', $_, 1) // 'none', qr/^NOPERM/, "not $_")
	  foreach 'other:key', map { "$NAMESPACE:$_:{1}" } qw(d e h m q s);
	# said plainly in doc/operations.md: what the functions do, they do with the caller's rights
	is($reader->call('SET', $fence, 'forged'), 'OK', 'a reader that may put can also write a fence by itself');
	$sql->run("UPDATE item SET name = 'after' WHERE id = 14");
	is($sql->run("SELECT fence.read('item', '14')->>'name'"), 'after', '... which breaks nothing for others here');
	is($sql->run('SELECT state FROM fence.state'), 'OPEN', 'the fences are open');
};

# Who may put, or SET keys of the namespace, can say any version and any value. PostgreSQL believes none of it.
subtest 'a reader that forges versions' => sub {
	my $huge = '9223372036854775806';
	my $liar = $redis->connect;

	$sql->run(<<'SQL');
CREATE TABLE note (id int PRIMARY KEY, name text, version bigint NOT NULL DEFAULT 0);
INSERT INTO note VALUES (1, 'true');
SELECT fence.attach('note');
SELECT fence.attach(NULL, scope => 'manual', domain => 'hand');
SQL
	poll(sub { $sql->run("SELECT count(*) FROM unnest('{note,hand}'::text[]) d WHERE (fence.get(d, '1')).status IN ('unarmed', 'pending')") == 0 },
		'the announcement');
	set_user('reader', 'p2-hidden', 'resetkeys', @READER_KEYS, @READER);
	$liar->call('AUTH', 'reader', 'p2-hidden');
	my $permit = sub { return $liar->call(qw(FCALL_RO fence_token 1), $_[0]); };
	my %ways = (
		'a put' => sub {
			my ($fence) = @_;
			return $liar->call(qw(FCALL fence_put 1), $fence, $permit->($fence), row_version($permit->($fence), $huge), '{"name": "lie"}', 0);
		},
		'a put, and another one' => sub {
			my ($fence) = @_;
			my $one = $permit->($fence);
			$liar->call(qw(FCALL fence_put 1), $fence, $one, row_version($one, 1), '{"name": "lie"}', 0);
			return $liar->call(qw(FCALL fence_put 1), $fence, $one, row_version($one, $huge), '{"name": "lie"}', 0);
		},
		'SET of the fence' => sub {
			my ($fence) = @_;
			my ($token) = split / /, $permit->($fence);
			$liar->call('SET', $fence, "$token $huge {1}\n{\"name\": \"lie\"}");
			return 'stored';
		});
	my %last = map { $_ => 0 } qw(note hand);
	my %fence = map { $_ => $sql->run("SELECT fence.fence_key('$_', '1')") } qw(note hand);
	foreach my $way (sort keys %ways)
	{
		my $forge = sub {
			my ($domain, $what) = @_;
			is($ways{$way}->($fence{$domain}), 'stored', "$way, before $what");
			is(join(' ', (strong_read($liar, $fence{$domain}))[ 0, 1 ]), "hit $huge", '... is believed by readers');
		};
		foreach my $write (
			"UPDATE note SET name = 'new'", "UPDATE note SET name = 'newer'", 'DELETE FROM note', "INSERT INTO note VALUES (1, 'back')",
			"INSERT INTO note VALUES (1, 'upsert') ON CONFLICT (id) DO UPDATE SET name = EXCLUDED.name")
		{
			$forge->('note', $write);
			is($sql->error_of($write), undef, '... and not by the write');
			no_reservations($node);
			if ($write =~ /back/)
			{
				# said plainly in doc/operations.md: an INSERT tells Redis nothing
				is(strong_word($liar, $fence{note}), 'hit', '... which ends it, unless it is an INSERT');
				$redis->call('DEL', $fence{note});
			}
			is(strong_word($liar, $fence{note}), 'miss', '... which ends it');
			is($sql->run("SELECT fence.read('note', '1')->>'name'"), $sql->run('SELECT name FROM note'), '... readers get the row');
			my $version = $sql->run("SELECT row_version FROM fence.status('note', '1')");
			is($version, ++$last{note}, '... and the version is the next one');
		}
		$forge->('note', 'fence.reserve');
		my ($version, $token) = split /\|/, $sql->run("SELECT * FROM fence.reserve('note', NULL, '1 min', '1')");
		is($version, $last{note} + 1, '... which goes by the row');
		is($sql->error_of("SELECT fence.abort('$token')"), undef, '... and ends');
		no_reservations($node);
		foreach my $in (qw(COMMIT ROLLBACK))
		{
			$forge->('hand', "fence.begin_write and $in");
			is($sql->run('BEGIN; ' . "SELECT fence.begin_write('hand', 0, '1')"), $last{hand} + 1, '... which goes by what it gave last');
			$sql->run($in);
			$last{hand}++ if $in eq 'COMMIT';
			no_reservations($node);
		}
		$forge->('hand', 'fence.reserve');
		($version, $token) = split /\|/, $sql->run("SELECT * FROM fence.reserve('hand', 0, '1 min', '1')");
		is($version, $last{hand} + 1, '... the same');
		is($sql->run("SELECT fence.commit('$token')"), ++$last{hand}, '... nor does fence.commit go by it');
		no_reservations($node);
	}
	# while a write is under way, and what a put behind it says
	my $writer = FenceTest::Session->open($node);
	$writer->run("BEGIN; UPDATE note SET name = 'late'");
	my $token = $sql->run("SELECT token FROM fence.status('note', '1')");
	$liar->call('SET', $fence{note}, "$token $huge {1}\n{\"name\": \"lie\"}");
	is(strong_word($liar, $fence{note}), 'hit', 'forged while a write is under way: a hit of the fast read');
	is($writer->error_of("UPDATE note SET name = 'later'; COMMIT"), undef, '... no error');
	is($sql->error_of("UPDATE note SET name = 'latest'"), undef, '... nor for the next one');
	is($sql->run("SELECT fence.read('note', '1')->>'name'"), 'latest', '... behind which nothing of it is left');
	cmp_ok($sql->run('SELECT version FROM note'), '<', 100, '... and the version has stayed small');
};

subtest 'a reader that can forge nothing' => sub {
	$redis->call('ACL', 'SETUSER', 'looker', 'reset', 'on', 'resetkeys', @LOOKER_KEYS, 'resetchannels', 'nocommands', '>p6-hidden', @LOOKER);
	my $looker = $redis->connect;
	$looker->call('AUTH', 'looker', 'p6-hidden');
	my ($fence, $value, $none, $derived) = split /\|/, $sql->run("SELECT fence.fence_key('item', '11'), fence.value_key('item', '11') || ':short',"
		  . " fence.fence_key('item', '12'), (fence.derived_keys('name', '11')).value");

	$sql->run("SELECT fence.read('item', '11'), fence.read_derived('name', '11')");
	my ($status, $version, $payload, $token) = strong_read($looker, $fence);
	is($status, 'hit', 'gets');
	is($looker->call(qw(FCALL_RO fence_get 1), $fence)->[0], 'hit', '... the slow way too');
	is($looker->call(qw(FCALL_RO fence_check 1), $fence, $token, $version), 1, 'checks');
	is($looker->call(qw(FCALL_RO fence_get_derived 1), $derived)->[0], 'hit', 'has a derived one');
	$redis->call('DEL', $none);
	my ($missed, $permit) = strong_read($looker, $none);
	is($missed, 'miss', 'has a miss');
	is($looker->call(qw(FCALL_RO fence_get 1), $none)->[0], 'miss', '... the slow way too');
	is($redis->call('EXISTS', $none), 0, '... which leaves no fence behind');
	my @uses = ([ 'GET', $fence ], [ 'MGET', $fence ], ['MULTI'], [ qw(FCALL_RO fence_token 1), $fence ], ['EXEC'],
		[ qw(FCALL_RO fence_token 1), $fence ], [ qw(FCALL_RO fence_get 1), $fence ], [ qw(FCALL_RO fence_release 1), $none ],
		[ qw(FCALL_RO fence_check 1), $fence, $token, $version ], [ qw(FCALL_RO fence_get_derived 1), $derived ]);
	is(refusals($looker, 'looker', @uses), '', 'nothing of that is refused');
	foreach my $rule (@LOOKER)
	{
		$redis->call('ACL', 'SETUSER', 'looker', 'nocommands', grep { $_ ne $rule } @LOOKER);
		isnt(refusals($looker, 'looker', @uses), '', "needs $rule");
		$redis->call('ACL', 'SETUSER', 'looker', 'nocommands', @LOOKER);
	}
	foreach my $command ([ 'SET', $fence, 'forged' ], [ 'DEL', $fence ], [ 'SET', $derived, 'forged' ], [ qw(FCALL fence_get 1), $none ],
		[ qw(FCALL fence_put 1), $none, $permit, row_version($permit, 1), 'forged', 0 ], [ qw(FCALL_RO fence_put 1), $none, $permit, row_version($permit, 1), 'forged', 0 ],
		[ qw(FCALL fence_put 2), $fence, $value, $permit, row_version($permit, $version), 'forged', 0 ], [qw(FLUSHALL)], [qw(KEYS *)], [ 'GET', 'other:key' ],
		[ 'EXPIRE', $fence, 1 ])
	{
		like($looker->error_of(@$command) // 'none', qr/^NOPERM/, "not @$command[0 .. ($#$command > 1 ? 1 : $#$command)]");
	}
	is((strong_read($looker, $fence))[2], $payload, 'nothing has changed');
};

subtest 'passwords are not told' => sub {
	$sql->run('CREATE ROLE ordinary LOGIN; GRANT SELECT ON item TO ordinary');
	my $ordinary = FenceTest::Session->open($node, user => 'ordinary');
	my $epoch = state_of('epoch');

	# a new one
	set_user('extension', 'p3-hidden', @EXTENSION);
	my $before = $sql->run('SELECT clock_timestamp()');
	set_url(url_of('extension', 'p3-hidden'));
	poll(sub { state_of("state, since > '$before'") eq 'OPEN|t' }, 'OPEN with the new password');
	is(state_of('epoch'), $epoch, 'a new password needs no restart and no new epoch');
	$redis->call('CLIENT', 'KILL', 'USER', 'extension');
	poll(sub { $ordinary->run("SELECT status FROM fence.get('item', '1')") =~ /hit|miss/ }, 'a session that was there before');
	$sql->run("UPDATE item SET name = 'new password' WHERE id = 9");
	no_reservations($node);

	# a wrong one, at every place that could repeat it
	set_url(url_of('extension', 'p4-hidden'));
	poll(sub { state_of('state, reason') =~ /^CLOSED\|.*(WRONGPASS|withheld)/ }, 'the wrong password');
	$redis->call('CLIENT', 'KILL', 'USER', 'extension');
	my @seen = map { $ordinary->run($_) } (
		"SELECT * FROM pg_settings WHERE name LIKE 'pgcache_fence.%'",
		'SELECT * FROM pg_stat_activity', 'SELECT * FROM fence.state', 'SELECT * FROM fence.nodes', 'SELECT * FROM fence.domains',
		"SELECT * FROM fence.get('item', '1')", "SELECT fence.read('item', '1')");
	unlike("@seen", qr/hidden/, 'what an ordinary role sees');
	unlike("@seen", qr/redis_url|tls_/, '... has none of the secret settings');
	foreach my $statement ('SHOW pgcache_fence.redis_url', "SELECT current_setting('pgcache_fence.redis_url')",
		'SHOW pgcache_fence.tls_key_file', 'SELECT * FROM pg_file_settings', "SET pgcache_fence.redis_url = 'redis://h'",
		"SELECT * FROM fence.status('item', '1')", 'SELECT * FROM fence.pending')
	{
		my $error = $ordinary->error_of($statement);
		ok(defined $error, "$statement: refused") or next;
		unlike($error, qr/hidden/, '... without a word too many');
	}
	my @errors = map { $sql->error_of($_) // '' } ('SELECT * FROM fence.pending', "SELECT * FROM fence.status('item', '1')",
		"SELECT * FROM fence.audit('item')", "SET pgcache_fence.on_redis_failure = error; UPDATE item SET name = 'x' WHERE id = 1");
	unlike("@errors", qr/hidden/, 'what a superuser is told');
	unlike($sql->run("SELECT * FROM pg_stat_activity"), qr/hidden/, 'pg_stat_activity');
	set_url('redis://extension:p5-hidden@');
	set_url('redis://extension:p5-hidden@127.0.0.1/7');
	set_url('redis+cluster://extension:p5-hidden@127.0.0.1 redis://127.0.0.1');
	poll(sub { slurp_file($node->logfile) =~ /redis\+sentinel:\/\/ and redis\+cluster:\/\/ stand alone/ }, 'the log');
	# PostgreSQL tells of it with the name as it is written there
	my $changed = qr/parameter "pgcache_fence.redis_url" changed$/m;
	my $told = () = slurp_file($node->logfile) =~ /$changed/g;
	$node->append_conf('postgresql.conf', "PgCache_Fence.REDIS_URL = 'redis://extension:p7-hidden\@127.0.0.1:1'");
	$node->reload;
	poll(sub { my $after = () = slurp_file($node->logfile) =~ /$changed/g; $after > $told }, 'the setting in capitals');
	my $log = slurp_file($node->logfile);
	is(join("\n", grep { /hidden/ } split /\n/, $log), '', 'the log');
	foreach my $pid (split /\n/, $sql->run('SELECT pid FROM pg_stat_activity'))
	{
		my $title = eval { slurp_file("/proc/$pid/cmdline") } // '';
		unlike($title, qr/hidden/, "title of process $pid");
	}
	set_url(url_of('extension', 'p3-hidden'));
	wait_open($node, 90);
	$ordinary->close;
};

subtest 'roles' => sub {
	poll(sub { $sql->run("SELECT status FROM fence.get('item', '1')") ne 'unarmed' }, 'the announcement');
	$sql->run(<<'SQL');
CREATE ROLE fence_admin;
CREATE ROLE owner LOGIN;
CREATE ROLE operator LOGIN;
GRANT fence_admin TO operator;
GRANT USAGE, CREATE ON SCHEMA public TO owner;
GRANT EXECUTE ON FUNCTION fence.attach, fence.detach TO owner;
GRANT EXECUTE ON FUNCTION fence.audit, fence.repair(text, text[]), fence._pending TO fence_admin;
GRANT SELECT ON fence.pending TO fence_admin;
SQL
	my $owner = FenceTest::Session->open($node, user => 'owner');
	my $operator = FenceTest::Session->open($node, user => 'operator');
	my $ordinary = FenceTest::Session->open($node, user => 'ordinary');

	$owner->run('CREATE TABLE own (id int PRIMARY KEY, tenant text, version bigint NOT NULL DEFAULT 0)');
	is($owner->run("SELECT fence.attach('own')"), 'own', 'an owner who was granted attach attaches his table');
	like($owner->error_of("SELECT fence.attach('item', domain => 'x')"), qr/^42501/, '... and no other');
	like($owner->error_of("SELECT fence.detach('item')"), qr/^42501/, '... nor detaches it');
	is($operator->error_of('SELECT * FROM fence.pending'), undef, 'an operator looks at reservations');
	like($operator->error_of("SELECT fence.detach('item')"), qr/^42501/, '... and does not detach');
	foreach my $call ("fence.attach('own')", "fence.detach('own')", "fence.put('item', 't', 1, 'x', NULL, '1')",
		"fence.begin_write('item', 1, '1')", "fence.abort_write('item', '1')", "fence.audit('item')", "fence.repair('item', '1')",
		"fence.detach_domain('item')", 'fence._pending()')
	{
		like($ordinary->error_of("SELECT $call"), qr/^42501: permission denied/, "everybody else: not $call");
	}

	# row-level security: a cached row knows no policies
	poll(sub { $sql->run("SELECT status FROM fence.get('own', '1')") ne 'unarmed' }, 'the announcement');
	$owner->run("INSERT INTO own VALUES (1, 'owner'), (2, 'ordinary'); GRANT SELECT ON own TO ordinary");
	$owner->run("SELECT fence.read('own', id::text) FROM own") foreach 1 .. 2;
	is($owner->run("SELECT status FROM fence.get('own', '1')"), 'hit', 'a cached row');
	is($ordinary->run("SELECT fence.read('own', '1')->>'tenant'"), 'owner', 'without policies the reader gets it');
	$owner->run('ALTER TABLE own ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON own USING (tenant = current_user)');
	$owner->run("SELECT fence.read('own', id::text) FROM own") foreach 1 .. 2;
	is($owner->run("SELECT status FROM fence.get('own', '1')"), 'hit', 'cached again');
	is($ordinary->run('SELECT id FROM own'), '2', 'a policy hides the row');
	foreach my $id (1, 2)
	{
		like($ordinary->error_of("SELECT fence.$_('own', '$id')"), qr/row-level security applies to you/, "fence.$_($id) is refused")
		  foreach qw(get read);
	}
	$owner->run('REVOKE SELECT ON own FROM ordinary');
	like($ordinary->error_of("SELECT fence.$_('own', '2')"), qr/^42501/, "fence.$_ without SELECT") foreach qw(get read);
};

# With the default in its place another Redis would be armed, or other keys used.
subtest 'a start with an invalid value' => sub {
	my %good = (redis_url => url_of('extension', 'p3-hidden'), namespace => $NAMESPACE, databases => '*');
	my %bad = (redis_url => 'redis://extension:p8-hidden@', namespace => 'a b', databases => 'a b');

	$node->stop;
	foreach my $name (sort keys %bad)
	{
		my $offset = -s $node->logfile;
		$node->append_conf('postgresql.conf', "pgcache_fence.$name = '$bad{$name}'");
		ok(!$node->start(fail_ok => 1), "$name: refused");
		my $log = substr(slurp_file($node->logfile), $offset);
		like($log, qr/FATAL:  invalid value for parameter "pgcache_fence.$name"\n.*DETAIL:  /, '... with the reason');
		unlike($log, qr/hidden/, '... and without a password');
		$node->append_conf('postgresql.conf', "pgcache_fence.$name = '$good{$name}'");
	}
	$node->start;
	wait_open($node);
};

$node->stop;
done_testing();
