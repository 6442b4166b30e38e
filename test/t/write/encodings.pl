# Databases of other encodings than UTF8: names and values in Redis are UTF-8, what cannot be is refused in the statement,
# and whatever somebody else put there makes no invalid text here. Clients of Redis are doc/clients.md's.

use strict;
use warnings;

use FenceTest;
use FenceTest::Session;
use PostgreSQL::Test::Utils;
use Test::More;

local $ENV{PGCLIENTENCODING} = 'UTF8';
my $redis = FenceTest::Redis->start;
my $node = new_postgres('encodings', $redis, value_limit => '64kB');
my $namespace = $node->safe_psql('postgres', 'SHOW pgcache_fence.namespace');

# ---------------------------------------------------------------------------------------------------------------------
# Tools
# ---------------------------------------------------------------------------------------------------------------------

# A session in a new database of that encoding, which sends and gets UTF-8 (of SQL_ASCII: bytes).
sub new_database
{
	my ($encoding) = @_;
	my $name = lc $encoding;

	$node->safe_psql('postgres', "CREATE DATABASE $name ENCODING '$encoding' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0");
	my $sql = FenceTest::Session->open($node, dbname => $name);
	$sql->run("SET client_encoding = 'SQL_ASCII'") if $encoding eq 'SQL_ASCII';
	is($sql->run('SHOW server_encoding'), $encoding, "a database with $encoding");
	$sql->run('CREATE EXTENSION pgcache_fence');
	return $sql;
}

# As doc/clients.md says: the bytes of the UTF-8 text.
sub encode
{
	my ($text) = @_;

	$text =~ s/([^A-Za-z0-9._~-])/sprintf '%%%02X', ord $1/ge;
	return $text eq '' ? '%00' : $text;
}

sub names
{
	my ($sql, $domain, @key) = @_;
	my ($place) = map { /:f:(\w+\.)x$/ ? $1 . encode($domain) : die $_ } $sql->run("SELECT fence.fence_prefix('x')");

	return map { "$namespace:$_:$place:{" . join(',', map { encode($_) } @key) . '}' } 'f', 'v';
}

# fence_get of such a client: (hit, token, version, payload) or what it says else
sub get
{
	my ($answer, $rest) = @{ $redis->call(qw(FCALL_RO fence_get 1), (names(@_))[0]) };

	return ($answer, $rest // ()) if $answer ne 'hit';
	my ($head, $payload) = split /\n/, $rest, 2;
	return ($answer, (split / /, $head)[ 0, 1 ], $payload);
}

sub put { my ($fence, $permit, $version, $payload) = @_; return $redis->call(qw(FCALL fence_put 1), $fence, $permit, row_version($permit, $version), $payload, 0); }

# A table in one of the domains: key and value are text.
sub new_table
{
	my ($sql, $name, $attach) = @_;

	$sql->run("CREATE TABLE \"$name\" (key text PRIMARY KEY, value text, version bigint NOT NULL DEFAULT 0)");
	$sql->run("SELECT fence.attach('\"$name\"' $attach)");
	poll(sub { (get($sql, $name, 'nobody'))[0] eq 'miss' }, "$name is announced");
	return;
}

# The reader of doc/clients.md never sees what was replaced, and is vouched for what is there.
sub is_fenced
{
	my ($sql, $table, $key) = @_;
	my ($fence, $value) = names($sql, $table, $key);

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($sql->run("SELECT fence.fence_key('$table', '$key')"), $fence, "$table $key: one name for all");
	is($sql->run("SELECT fence.value_key('$table', '$key')"), $value, 'of the value too');
	is($sql->run("SELECT fence.key_slot('$fence')"), slot($fence), 'and one slot');
	foreach my $text ('first', $key, 'last')
	{
		$sql->run("INSERT INTO \"$table\" (key, value) VALUES ('$key', '$text')"
			  . ' ON CONFLICT (key) DO UPDATE SET value = excluded.value');
		my $payload = sprintf '{"key": "%s", "value": "%s", "version": %d}', $key, $text,
		  $sql->run("SELECT version FROM \"$table\" WHERE key = '$key'");
		poll(sub { (get($sql, $table, $key))[0] eq 'hit' }, 'a hit');
		is((get($sql, $table, $key))[3], $payload, "hit: $text");
		is($sql->run("SELECT fence.read('$table', '$key')"), $payload, 'fence.read says the same');
		$sql->run("BEGIN; UPDATE \"$table\" SET value = 'other' WHERE key = '$key'");
		poll(sub { (get($sql, $table, $key))[0] eq 'pending' }, 'pending');
		like($sql->run("SELECT domain, key FROM fence.pending"), qr/^\Q$table\E\|\Q@{[ encode($key) ]}\E$/m, 'pending is seen');
		$sql->run('ROLLBACK');
	}
	$sql->run("DELETE FROM \"$table\" WHERE key = '$key'");
	poll(sub { (get($sql, $table, $key))[0] eq 'miss' }, 'deleted');
	return;
}

# The slot of a key, by CRC16 of its tag, as Redis Cluster has it
sub slot
{
	my ($key) = @_;
	my $crc = 0;

	$key = $1 if $key =~ /\{([^}]+)\}/;
	foreach my $byte (unpack 'C*', $key)
	{
		$crc ^= $byte << 8;
		$crc = ($crc << 1 ^ ($crc & 0x8000 ? 0x1021 : 0)) & 0xffff for 1 .. 8;
	}
	return $crc % 16384;
}

# Refused in the statement, with a hint; what the transaction did before is there after a rollback to the savepoint.
sub is_refused
{
	my ($sql, $statement, $what) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$sql->run('BEGIN; CREATE TEMP TABLE done ON COMMIT DROP AS SELECT 1; SAVEPOINT s');
	like($sql->error_of($statement), qr/^22P05: .*cannot be converted.*\nHINT/s, $what);
	is($sql->run('ROLLBACK TO s; SELECT count(*) FROM done'), 1, 'and nothing else is lost');
	$sql->run('COMMIT');
	return;
}

# ---------------------------------------------------------------------------------------------------------------------

my $latin1 = new_database('LATIN1');
new_table($latin1, 'étage', ", cache => 'row', publish => 'notify'");

subtest 'LATIN1: keys, domains and rows' => sub {
	is_fenced($latin1, 'étage', $_) foreach 'José', 'ÿ', '';
	$latin1->run("INSERT INTO \"étage\" VALUES ('José', 'à'), ('Zoë', 'ü')");
	is($latin1->run("SELECT string_agg(k, ' ') FROM fence.fence_keys('étage', '{José,Zoë}') f, unnest(f) k"),
		join(' ', map { (names($latin1, 'étage', $_))[0] } 'José', 'Zoë'), 'names of several');
	like($latin1->run("SELECT string_agg(value->>'value', ' ' ORDER BY value->>'value') FROM fence.read_many(fence.fence_keys('étage', '{José,Zoë}'))"),
		qr/^à ü$/, 'rows of several');
	is($latin1->run("SELECT relation FROM fence.status('étage', 'Zoë')"), 'equal', 'status');
	like($latin1->run("SELECT labels->>'domain' FROM fence.metrics"), qr/^étage$/m, 'metrics');
	is($latin1->run("SELECT string_agg(relation, ' ') FROM fence.audit('étage') WHERE count > 0"), 'equal missing', 'audit: rows, deleted keys');
	like($latin1->run("SELECT * FROM fence.explain('étage', 'Zoë')"), qr/hit: readers get the cached value/, 'explain');
	compare_fences($node, 'étage', 'latin1');
};

subtest 'LATIN1: NOTIFY' => sub {
	$latin1->run('LISTEN pgcache_fence');
	my ($fence) = names($latin1, 'étage', 'José');
	like($latin1->run("UPDATE \"étage\" SET value = 'é' WHERE key = 'José'; SELECT"), qr/payload "\S+\.%C3%A9tage \Q$fence\E /, 'has the same names');
	$latin1->run('UNLISTEN *');
};

subtest 'LATIN1: values that clients put' => sub {
	foreach my $payload ("{\"key\": \"\xe6\xbc\xa2\"}", '{"key": "\u6f22"}', "{\"key\": \"\xe9\"}", "\xff\xfe", "\0")
	{
		my ($fence) = names($latin1, 'étage', 'Zoë');

		$latin1->run("UPDATE \"étage\" SET value = value WHERE key = 'Zoë'");
		no_reservations($node, undef, 'latin1');
		$redis->call('DEL', $fence);
		my ($status, $permit) = get($latin1, 'étage', 'Zoë');
		is($status, 'miss', 'to be filled');
		my $version = $latin1->run("SELECT version FROM \"étage\" WHERE key = 'Zoë'");
		is(put($fence, $permit, $version, $payload), 'stored', 'put');
		like($latin1->error_of("SELECT * FROM fence.get('étage', 'Zoë')"), qr/^22021: .*\nDETAIL.*LATIN1/, 'get: an error')
		  if $payload !~ /\\u/;
		like($latin1->run("SELECT fence.read('étage', 'Zoë')"), qr/"ü"/, 'read: the row');
	}
	$redis->call('SET', (names($latin1, 'étage', 'Zoë'))[0], "\xe9 \xff 1\n{}");
	like($latin1->run("SELECT * FROM fence.explain('étage', 'Zoë')"), qr/^fence\|.*\\xe9 \\xff/m, 'explain shows what it is');
	is($latin1->run("SELECT fence.put('étage', permit, 99, 'à', NULL, 'new') FROM fence.get('étage', 'new')"), 'stored', 'put by SQL');
	is($redis->call('GET', (names($latin1, 'étage', 'new'))[0]) =~ /\nà$/, 1, 'is UTF-8');
	is($latin1->run("SELECT payload FROM fence.get('étage', 'new')"), 'à', 'and comes back');
};

subtest 'LATIN1: derived values, groups, manual domains, tags' => sub {
	$latin1->run(q{CREATE FUNCTION whose(k text) RETURNS jsonb STABLE LANGUAGE sql AS
		'SELECT to_jsonb(value) FROM public."étage" WHERE key = k';
		SELECT fence.define_derived('à qui', '{étage($1),étage(Jos%C3%A9)}', 'whose(text)')});
	my ($fence, $value) = split /\|/, $latin1->run("SELECT fence, value FROM fence.derived_keys('à qui', 'Zoë')");
	is($fence, (names($latin1, 'étage', 'Zoë'))[0], 'the fence of a derived value');
	like($value, qr/:%C3%A0%20qui\.\d+:Zo%C3%AB$/, 'its name');
	is($latin1->run("SELECT fence.read_derived('à qui', 'Zoë')"), '"ü"', 'computed') for 1 .. 2;
	like(($redis->call(qw(FCALL_RO fence_get_derived 1), $value))->[1], qr/"ü"/, 'stored');
	$latin1->run(q{CREATE TABLE grp (k text, v text); CREATE INDEX ON grp (k); SELECT fence.attach('grp', key => '{k}', scope => 'group');
		INSERT INTO grp VALUES ('é', 'à'), ('é', 'b')});
	poll(sub { (get($latin1, 'grp', 'é'))[0] eq 'miss' }, 'the announcement');
	like($latin1->run("SELECT fence.read('grp', 'é')"), qr/"à".*"b"|"b".*"à"/, 'a group');
	is((get($latin1, 'grp', 'é'))[0], 'hit', 'is cached');
	$latin1->run("SELECT fence.attach(NULL, domain => 'à la main', scope => 'manual')");
	poll(sub { (get($latin1, 'à la main', 'é'))[0] eq 'miss' }, 'the announcement');
	$latin1->run("BEGIN; SELECT fence.begin_write('à la main', 0, 'é')");
	is((get($latin1, 'à la main', 'é'))[0], 'pending', 'reserved by hand');
	$latin1->run('COMMIT');
	my $token = $latin1->run("SELECT token FROM fence.reserve('à la main', 5, '1 minute', 'é')");
	is((get($latin1, 'à la main', 'é'))[0], 'pending', 'reserved for longer');
	is($latin1->run("SELECT fence.commit('$token')") > 0, 1, 'and ended');
	$latin1->run(q{CREATE TABLE tagged (k text PRIMARY KEY, version bigint NOT NULL DEFAULT 0); SELECT fence.attach('tagged', tag => 'of/{k}')});
	like($latin1->run("SELECT fence.fence_key('tagged', 'é')"), qr/\{of\/%C3%A9\}:%C3%A9$/, 'a tag');
};

subtest 'LATIN1: effects' => sub {
	is($latin1->run("SELECT fence.counter_add('compté', 2)"), 2, 'a counter');
	poll(sub { ($redis->call('GET', 'compté') // '') eq '2' }, 'the counter under its name');
	like($latin1->error_of("SELECT fence.counter_add('compté', 1, NULL, 2)"), qr/counter "compté" would pass its bound/, 'a message');
	foreach my $text ('à', 'é' x 300_000)
	{
		$latin1->run("SELECT fence.publish('clé', '$text')");
		poll(sub { ($redis->call('GET', 'clé') // '') eq $text }, 'what is published');
		is($latin1->run("SELECT fence.take('clé')"), $text, 'and taken') if length $text < 10;
	}
	$latin1->run(q{SELECT fence.publish_hash('haché', '{"é": "à", "n": {"ü": 1}}')});
	poll(sub { ($redis->call('HGET', 'haché', 'é') // '') eq 'à' }, 'a field');
	is($redis->call('HGET', 'haché', 'n'), '{"ü": 1}', 'and one of JSON');
	$latin1->run("SELECT fence.append('journal é', 'à')");
	poll(sub { $redis->call('LLEN', 'journal é') == 1 }, 'a log');
	$latin1->run("SELECT fence.append(ARRAY['journal é', 'journal à'], 'ü')");
	poll(sub { $redis->call('LLEN', 'journal à') == 1 }, 'two logs');
	$latin1->run(q{BEGIN; SELECT fence.once('fois é'), fence.once_result('fois é', '"à"'); COMMIT});
	poll(sub { ($latin1->run(q{SELECT result FROM fence.once('fois é')}) // '') eq '"à"' }, 'a result');
	is($latin1->run("SELECT fence.compare_and_set('état', NULL, 'à')"), 't', 'set');
	poll(sub { ($redis->call('GET', 'état') // '') eq 'à' }, 'its end');
	is($latin1->run("SELECT fence.compare_and_set('état', 'à', 'ü')"), 't', 'compared');
	$latin1->run("BEGIN; SELECT fence.append('journal é', 'x')");
	like($latin1->run('SELECT key FROM fence.effects'), qr/^journal é$/m, 'what is held is seen');
	$latin1->run('ROLLBACK');
	foreach my $bytes ("\xe9", "a\0b", "\xe6\xbc\xa2")
	{
		$redis->call('SET', 'octets', $bytes);
		like($latin1->error_of("SELECT fence.take('octets')"), qr/^22021: .*not valid text/, 'what is no text is not taken');
		poll(sub { ($redis->call('GET', 'octets') // '') eq $bytes }, 'and stays');
	}
};

subtest 'LATIN1: durable effects are redone from their rows' => sub {
	$redis->stop;
	$latin1->run("SELECT fence.append('durable é', 'à', durable => true)");
	is($latin1->run('SELECT key, arguments[2] FROM fence.outbox'), 'durable é|à', 'the row');
	$redis->restart;
	wait_open($node);
	poll(sub { $redis->call('LLEN', 'durable é') == 1 }, 'the log');
	like($redis->call('LINDEX', 'durable é', 0), qr/à/, 'has the entry');
	poll(sub { $latin1->run('SELECT count(*) FROM fence.outbox') == 0 }, 'the end of the row');
	is($redis->call('LLEN', 'durable é'), 1, 'once');
};

subtest 'LATIN1: lengths are those of UTF-8' => sub {
	$latin1->run(q{CREATE TABLE other (k text PRIMARY KEY, version bigint NOT NULL DEFAULT 0)});
	like($latin1->error_of("SELECT fence.attach('other', domain => repeat('é', 32))"), qr/^22023: .*too long/, 'a domain of 64 bytes');
	$latin1->run("SELECT fence.attach('other', domain => repeat('é', 31))");
	like($latin1->error_of("INSERT INTO other VALUES (repeat('é', 334))"), qr/^54000: .*\nDETAIL.*2004 bytes/, 'a key of 2004');
	$latin1->run("INSERT INTO other VALUES (repeat('é', 333))");
	like($latin1->error_of("SELECT fence.counter_add(repeat('é', 513), 1)"), qr/^22023: .*1 to 1024 bytes/, 'the key of an effect');
};

subtest 'EUC_JP: what Unicode does not have, or has once' => sub {
	my $sql = new_database('EUC_JP');

	new_table($sql, '部屋', ", cache => 'row'");
	is_fenced($sql, '部屋', $_) foreach '東京', 'ｶﾅ';
	$sql->run("INSERT INTO \"部屋\" VALUES ('東京', '日本')");
	$sql->run("SET client_encoding = 'EUC_JP'");
	my $table = '"' . "\xc9\xf4\xb2\xb0" . '"';
	# two bytes without a meaning; the number sign that JIS X 0212 has beside NEC's
	foreach my $bytes ("\xa9\xa1", "\x8f\xa2\xf1")
	{
		is_refused($sql, "INSERT INTO $table VALUES ('$bytes', 'x')", 'a new key');
		is_refused($sql, "UPDATE $table SET key = '$bytes'", 'a changed key');
		is_refused($sql, "SELECT fence.counter_add('$bytes', 1)", 'an effect');
		is_refused($sql, "SELECT fence.attach(NULL, domain => '$bytes', scope => 'manual')", 'a domain');
		$sql->run("UPDATE $table SET value = '$bytes'");
		is($sql->run("SELECT fence.read('\xc9\xf4\xb2\xb0', key)->>'value' = '$bytes' FROM $table"), 't', 'a value: is read');
		isnt((get($sql, '部屋', '東京'))[0], 'hit', 'and not cached');
	}
	is($sql->run("SELECT count(*) FROM $table"), 1, 'one row');
};

subtest 'WIN1252' => sub {
	my $sql = new_database('WIN1252');

	new_table($sql, 'prix €', ", cache => 'row'");
	is_fenced($sql, 'prix €', '€ 5');
	is_refused($sql, "INSERT INTO \"prix €\" VALUES (convert_from('\\x81', 'WIN1252'))", 'a byte without a meaning');
};

subtest 'SQL_ASCII: UTF-8 or nothing' => sub {
	my $sql = new_database('SQL_ASCII');

	new_table($sql, 'étage', ", cache => 'row'");
	is_fenced($sql, 'étage', $_) foreach 'José', '漢';
	$sql->run("INSERT INTO \"étage\" VALUES ('José', 'à')");
	is_refused($sql, "INSERT INTO \"étage\" VALUES ('\xe9', 'x')", 'a new key');
	is_refused($sql, "UPDATE \"étage\" SET key = '\xe9'", 'a changed key');
	is_refused($sql, "SELECT fence.attach(NULL, domain => '\xe9', scope => 'manual')", 'a domain');
	is_refused($sql, "SELECT fence.publish('x', '\xe9')", 'an effect');
	is_refused($sql, "SELECT fence.read('étage', '\xe9')", 'a key that is asked for');
	$sql->run("UPDATE \"étage\" SET value = '\xe9'");
	is($sql->run("SELECT fence.read('étage', 'José')->>'value' = '\xe9'"), 't', 'a value: is read');
	isnt((get($sql, 'étage', 'José'))[0], 'hit', 'and not cached');
	my ($fence) = names($sql, 'étage', 'José');
	foreach my $payload ("{\"key\": \"\xe9\"}", '{"key": "\u6f22"}')
	{
		my (undef, $permit) = get($sql, 'étage', 'José');
		is(put($fence, $permit, $sql->run("SELECT version FROM \"étage\""), $payload), 'stored', 'put');
		is($sql->run("SELECT fence.read('étage', 'José')->>'value' = '\xe9'"), 't', 'what a client put is passed over');
		$redis->call('DEL', $fence);
	}
};

subtest 'SQL_ASCII: rows that were there before' => sub {
	my $sql = FenceTest::Session->open($node, dbname => 'sql_ascii');

	$sql->run("SET client_encoding = 'SQL_ASCII'; CREATE TABLE old (key text PRIMARY KEY, version bigint NOT NULL DEFAULT 0)");
	$sql->run("INSERT INTO old VALUES ('\xe9'), ('x'); SELECT fence.attach('old')");
	is_refused($sql, "DELETE FROM old WHERE key = '\xe9'", 'deleting one');
	$sql->run("UPDATE old SET key = 'y' WHERE key = 'x'");
	$sql->run("SELECT fence.detach('old'); UPDATE old SET key = 'z' WHERE key = '\xe9'; SELECT fence.attach('old')");
	$sql->run("DELETE FROM old WHERE key = 'z'");
};

subtest 'other databases see names as they are' => sub {
	my $utf8 = FenceTest::Session->open($node);

	$latin1->run("BEGIN; UPDATE \"étage\" SET value = 'é' WHERE key = 'José'; SELECT fence.append('journal é', 'x')");
	like($utf8->run('SELECT domain FROM fence.pending'), qr/^\w+\.%C3%A9tage$/m, 'reservations');
	like($utf8->run('SELECT key FROM fence.effects'), qr/^journal é$/m, 'effects');
	$latin1->run('ROLLBACK');
};

done_testing();
