# rediss://: everything goes through TLS, and only to a server whose certificate is for the name in the URL.

use strict;
use warnings;

use FenceTest;
use FenceTest::Certificates;
use FenceTest::Session;
use IO::Socket::INET;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Socket qw(inet_aton inet_ntoa);
use Test::More;
use Time::HiRes qw(time);

# Without TLS in hiredis the setting is refused, in words; nothing else can be tested then.
my $plain = FenceTest::Redis->start;
my $node = new_postgres('tls', $plain);
{
	my ($rc, undef, $error) =
	  $node->psql('postgres', "ALTER SYSTEM SET pgcache_fence.redis_url = 'rediss://:hunter2\@localhost'");
	if ($rc != 0)
	{
		like($error, qr/unsupported value.*\nDETAIL:  TLS .* needs hiredis 1\.0 or later/, 'TLS is refused with the reason');
		unlike($error, qr/hunter2\@/, '... which does not repeat the URL');
		my @telling = grep { /hunter2/ && !/ STATEMENT: /i } split /\n/, slurp_file($node->logfile);
		is("@telling", '', 'nor does the log, except for the statement itself');
	  SKIP: { skip 'this hiredis has no TLS', 1; }
		done_testing();
		exit 0;
	}
	$node->safe_psql('postgres', 'ALTER SYSTEM RESET pgcache_fence.redis_url');
}
plan skip_all => 'the program openssl is not here' unless FenceTest::Certificates::available();
my $program = $ENV{REDIS_SERVER} || 'redis-server';
plan skip_all => 'this Redis has no TLS' unless `ldd "\$(command -v $program)"` =~ /libssl/;

my $authority = FenceTest::Certificates->new;
my $stranger = FenceTest::Certificates->new;

# A name for the loopback that needs no resolver if there is none.
my $address = inet_aton('localhost');
my $name = $address && inet_ntoa($address) eq '127.0.0.1' ? 'localhost' : '127.1';

# The keeper opens later and later when fences were closed again and again: a new start.
sub begin_anew { $node->restart; return; }

# A Redis that has only a TLS port (and the socket by which the test talks to it); its port.
sub tls_redis
{
	my ($cert, $key, %option) = @_;
	my $clients = delete $option{clients};
	my $config = delete $option{config} // [];

	for (my $try = 1;; $try++)
	{
		my $port = FenceTest::Redis::_free_port();
		my $redis = eval {
			FenceTest::Redis->start(
				config => [ 'port 0', 'bind 127.0.0.1 -::1', $authority->redis_config($port, $cert, $key, $clients), @$config ],
				%option);
		};
		return ($redis, $port) if $redis;
		die $@ if $try == 3;
	}
}

# Sets the settings (undef: back to the default) and waits until the keeper gives a reason that matches; undef: until OPEN.
sub settle
{
	my ($what, $reason, %settings) = @_;
	my $seen = '';

	foreach my $setting (sort keys %settings)
	{
		my $value = $settings{$setting} // '';
		$node->safe_psql('postgres', "ALTER SYSTEM SET pgcache_fence.$setting = '$value'");
	}
	$node->reload;
	my $expected = defined $reason ? qr/^CLOSED\|.*(?:$reason)/ : qr/^OPEN\|/;
	my $reached = eval {
		poll(
			sub {
				$seen = $node->safe_psql('postgres', 'SELECT state, reason FROM fence.state');
				return $seen =~ $expected;
			},
			$what, 60);
	};
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok($reached, $what) or diag("seen: $seen");
	return $reached;
}

$node->safe_psql('postgres', <<'SQL');
CREATE TABLE item (id int PRIMARY KEY, name text, version bigint NOT NULL DEFAULT 0);
INSERT INTO item SELECT g, 'x' FROM generate_series(1, 3000) g;
SELECT fence.attach('item');
SQL

my ($cert, $key) = $authority->issue('named', "DNS:$name");
my ($redis, $port) = tls_redis($cert, $key);

subtest 'the right name' => sub {
	settle('the fences open', undef, redis_url => "rediss://$name:$port", tls_ca_file => $authority->file) or return;
	is($redis->info('clients', 'connected_clients') > 1, 1, 'this Redis is used');
	# another Redis now, so perhaps another epoch: served as soon as the domain is announced
	poll(sub { $node->safe_psql('postgres', "SELECT (fence.get('item', '1')).status") ne 'unarmed' }, 'the domain is announced');

	my $session = FenceTest::Session->open($node);
	$session->run("SELECT fence.read('item', '1')");
	is($session->run("SELECT status FROM fence.get('item', '1')"), 'hit', 'a read is cached');
	$session->run("UPDATE item SET name = 'y' WHERE id = 1");
	is($session->run("SELECT fence.read('item', '1')->>'name'"), 'y', 'a write is seen');
	is($session->run("SELECT fence_version = row_version AND pending = 0 FROM fence.status('item', '1')"), 't', '... and fenced');

	# many small messages, and replies longer than a TLS record
	$session->run('SET pgcache_fence.bulk_threshold = 100000');
	is($session->run("SELECT count(fence.read('item', id::text)) FROM item"), 3000, 'all are read');
	is($session->run("SELECT count(*) FROM item WHERE (fence.get('item', id::text)).status = 'hit'"), 3000, '... and cached');
	$session->run("UPDATE item SET name = 'all'");
	is($session->run("SELECT count(*) FROM item WHERE (fence.get('item', id::text)).status = 'hit'"), 0,
		'a transaction of 3000 rows: no fence is left');
	$session->run("UPDATE item SET name = repeat('0123456789', 300000) WHERE id = 2");
	$session->run("SELECT fence.read('item', '2')") foreach 1 .. 2;
	is($session->run("SELECT status, length(payload::jsonb->>'name') FROM fence.get('item', '2')"), 'hit|3000000',
		'a value of 3 MB comes back whole');
	no_reservations($node);
	is($session->run("SELECT string_agg(relation, ',') FROM fence.audit('item') WHERE count > 0 AND relation NOT IN ('equal', 'missing')"),
		'', 'the audit finds nothing wrong');
};

subtest 'who the server is' => sub {
	begin_anew();
	settle('a certificate for a name, a URL with the address', 'certificate of the server is not accepted: IP address mismatch',
		redis_url => "rediss://127.0.0.1:$port");
	settle('an unknown authority', 'not accepted: (self.signed|unable to get (local )?issuer)',
		redis_url => "rediss://$name:$port", tls_ca_file => $stranger->file);
	settle('the authorities of the system', 'not accepted: (self.signed|unable to get (local )?issuer)', tls_ca_file => undef);
	settle('no such file', 'tls_ca_file could not be used: No such file', tls_ca_file => '/no/such/file');
	settle('a file that holds no certificate', 'tls_ca_file could not be used', tls_ca_file => $key);

	my ($other, $other_port) = tls_redis($authority->issue('other', 'DNS:other.invalid,DNS:*.localhost,IP:127.0.0.2'));
	settle('a certificate for another name', 'not accepted: hostname mismatch',
		redis_url => "rediss://$name:$other_port", tls_ca_file => $authority->file);
	settle('... or another address', 'not accepted: IP address mismatch', redis_url => "rediss://127.0.0.1:$other_port");
	is($other->info('stats', 'total_commands_processed') < 20, 1, 'it was told nothing');
	$other->stop;

	my ($expired, $expired_port) =
	  tls_redis($authority->issue('expired', "DNS:$name", '-startdate', '20200101000000Z', '-enddate', '20200201000000Z'));
	settle('a certificate that has expired', 'not accepted: certificate has expired', redis_url => "rediss://$name:$expired_port");
	$expired->stop;

	my ($numbered, $numbered_port) = tls_redis($authority->issue('numbered', 'IP:127.0.0.1'));
	settle('a certificate for the address', undef, redis_url => "rediss://127.0.0.1:$numbered_port");
	$numbered->stop;
};

subtest 'the server is told which name is meant' => sub {
	begin_anew();
	# It shows the certificate for the name only to those who ask for that name (SNI), and what it was asked for. It is no Redis.
	my $many_port = FenceTest::Redis::_free_port();
	my $log = $authority->dir . '/many.log';
	my ($other_cert, $other_key) = $authority->issue('default', 'DNS:default.invalid');
	my $many = IPC::Run::start(
		[ 'openssl', 's_server', '-accept', "127.0.0.1:$many_port", '-cert', $other_cert, '-key', $other_key,
			'-servername', $name, '-cert2', $cert, '-key2', $key ],
		'<', \undef, '>&', $log);

	settle('it has the right certificate', 'no reply in time', redis_url => "rediss://$name:$many_port", tls_ca_file => $authority->file, timeout => '300ms');
	ok(eval { poll(sub { slurp_file($log) =~ /Hostname in TLS extension: "\Q$name\E"/ }, 'its log') }, 'the name was said');
	$many->kill_kill;
	settle('back', undef, redis_url => "rediss://$name:$port", timeout => '2s');
};

subtest 'who we are' => sub {
	begin_anew();
	my ($strict, $strict_port) = tls_redis($cert, $key, clients => 'yes');
	my ($client_cert, $client_key) = $authority->issue('client', 'DNS:client.invalid');
	my ($foreign_cert, $foreign_key) = $stranger->issue('client', 'DNS:client.invalid');

	settle('a client certificate is wanted', 'alert|closed the connection|reset',
		redis_url => "rediss://$name:$strict_port");
	settle('a certificate without its key', 'must be set together', tls_cert_file => $client_cert);
	settle('the key of another certificate', 'tls_key_file could not be used: key values mismatch', tls_key_file => $foreign_key);
	settle('a certificate that the server does not know', 'alert|closed the connection|reset',
		tls_cert_file => $foreign_cert, tls_key_file => $foreign_key);
	settle('the right one', undef, tls_cert_file => $client_cert, tls_key_file => $client_key);
	my $session = FenceTest::Session->open($node);
	poll(sub { $session->run("SELECT status FROM fence.get('item', '3')") =~ /hit|miss/ }, 'a backend gets through');
	pass('backends show it too');
	is($node->safe_psql('postgres', 'SELECT count(*) FROM fence.pending'), 0, '... and views');
	settle('back', undef, redis_url => "rediss://$name:$port", tls_cert_file => undef, tls_key_file => undef);
	$strict->stop;
};

subtest 'the wrong port' => sub {
	begin_anew();
	settle('TLS to a plain port', 'wrong version number|no TLS handshake in time|closed the connection|reset|TLS handshake failed',
		redis_url => "rediss://$name:" . $plain->port);
	settle('plain to a TLS port', 'is for TLS|closed the connection|reset', redis_url => "redis://127.0.0.1:$port");
	settle('back', undef, redis_url => "rediss://$name:$port");
};

subtest 'a server that does not go on with the handshake' => sub {
	begin_anew();
	my $silent = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => 0, Listen => 100) or die "no port: $!";

	settle('the keeper does not wait for ever', 'no TLS handshake in time',
		redis_url => "rediss://$name:" . $silent->sockport, timeout => '300ms');
	settle('back', undef, redis_url => "rediss://$name:$port", timeout => '30s');
	$redis->pause;
	my $session = FenceTest::Session->open($node);
	my $begin = time();
	my ($rc, undef, $error) =
	  $node->psql('postgres', "SET statement_timeout = '300ms'; SELECT * FROM fence.pending");
	cmp_ok(time() - $begin, '<', 15, 'a handshake can be cancelled');
	like($error, qr/canceling statement due to statement timeout/, '... by a timeout');
	$redis->resume;
	settle('back', undef, timeout => '2s');
};

subtest 'a new password, a new certificate' => sub {
	begin_anew();
	my ($secret, $secret_port) = tls_redis($cert, $key, password => 'first');

	settle('with the password', undef, redis_url => "rediss://:first\@$name:$secret_port");
	my $epoch = $node->safe_psql('postgres', 'SELECT epoch FROM fence.state');
	$secret->call('CONFIG', 'SET', 'requirepass', 'second');
	$secret->{password} = 'second';
	$node->safe_psql('postgres', "ALTER SYSTEM SET pgcache_fence.redis_url = 'rediss://:second\@$name:$secret_port'");
	$node->reload;
	poll(sub { $node->safe_psql('postgres', 'SELECT state, since > pg_conf_load_time() FROM fence.state') eq 'OPEN|t' },
		'OPEN with the new password');
	is($node->safe_psql('postgres', 'SELECT epoch FROM fence.state'), $epoch, 'a new password is no new epoch');
	# whoever came in with the old one is thrown out, and comes back
	$secret->call('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes');
	poll(sub { $node->safe_psql('postgres', "SELECT (fence.get('item', '3')).status") =~ /hit|miss/ }, 'backends have it too');
	$node->safe_psql('postgres', "UPDATE item SET name = 'z' WHERE id = 3");
	pass('a write after the change');

	# the certificate of the server is renewed by another authority
	my $bundle = $authority->dir . '/both.crt';
	append_to_file($bundle, slurp_file($authority->file) . slurp_file($stranger->file));
	settle('both authorities', undef, tls_ca_file => $bundle);
	my ($new_cert, $new_key) = $stranger->issue('renewed', "DNS:$name");
	$secret->call('CONFIG', 'SET', 'tls-cert-file', $new_cert, 'tls-key-file', $new_key);
	$secret->call('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes');
	settle('the old authority is dropped', undef, tls_ca_file => $stranger->file);

	my $log = slurp_file($node->logfile);
	# what the log holds of statements is the server's own affair
	my @telling = grep { /(first|second)\@/ && !/ statement: /i } split /\n/, $log;
	is("@telling", '', 'no password in the log');
	$secret->stop;
};

$node->stop;
done_testing();
