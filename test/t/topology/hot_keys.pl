# Hot keys and slots over three shards: what the views and fence.doctor say of them, and read copies of a hot row under other tags
# (doc/operations.md, "Hot keys").

use strict;
use warnings;

use FenceTest;
use FenceTest::Comparison;
use FenceTest::Router;
use FenceTest::Session;
use IPC::Run;
use Test::More;

my @DOMAINS = qw(item item_b item_c);
my @servers = map { FenceTest::Redis->start } 1 .. 3;
my $router = FenceTest::Router->new(sub { return $servers[ int($_[0] * @servers / 16384) ]; });
my $node = new_postgres('hot', undef, redis_url => join(', ', map { $_->url } @servers));
my $sql = FenceTest::Session->open($node);

sub fence_of { my ($domain, @key) = @_; return $sql->run("SELECT fence.fence_key('$domain', VARIADIC '{" . join(',', @key) . "}'::text[])"); }

# Reads the fences one after another, $rounds times, over pipelines.
sub read_often
{
	my ($rounds, @fences) = @_;

	foreach my $fence (@fences)
	{
		my $connection = $router->server($fence)->connection;
		for (my $sent = 0; $sent < $rounds; $sent += 500)
		{
			strong_send($connection, $fence) foreach 1 .. 500;
			strong_take($connection) foreach 1 .. 500;
		}
	}
	return;
}

sub findings { my ($pattern) = @_; return $sql->run("SELECT string_agg(finding, '; ') FROM fence.doctor() WHERE severity = 'warning' AND finding ~ '$pattern'"); }

$sql->run("CREATE TABLE item (id int PRIMARY KEY, n int NOT NULL DEFAULT 0, version bigint NOT NULL DEFAULT 0);
	CREATE TABLE member (room int, id int, PRIMARY KEY (room, id));
	INSERT INTO item SELECT g FROM generate_series(1, 300) g; INSERT INTO member SELECT 1, g FROM generate_series(1, 200) g;
	SELECT fence.attach('item'); SELECT fence.attach('item', domain => 'item_b', tag => 'b/{id}');
	SELECT fence.attach('item', domain => 'item_c', tag => 'c/{id}'); SELECT fence.attach('member', tag => 'room/{room}', version => NULL)");

# a row whose three fences are in three processes
my $shard = sub { return "fence.key_slot(fence.fence_key('$_[0]', id)) * 3 / 16384"; };
my ($id) = split /\n/, $sql->run('SELECT id FROM item WHERE ' . join(' AND ', map { my ($a, $b) = @$_; $shard->($a) . ' <> ' . $shard->($b) }
	[ 'item', 'item_b' ], [ 'item', 'item_c' ], [ 'item_b', 'item_c' ]) . ' ORDER BY id LIMIT 1');
my %fence = map { $_ => fence_of($_, $id) } @DOMAINS;
poll(sub { $sql->run("SELECT string_agg(fence.read(d, $id)->>'n', '') FROM unnest('{item,item_b,item_c}'::text[]) d"); !grep { (strong_read($router->server($_), $_))[0] ne 'hit' } values %fence },
	'all copies to be cached');

subtest 'a row that everybody reads' => sub {
	ok(eval { poll(sub { read_often(3000, $fence{item}); findings('^one key of domain item ') ne '' }, 'the warning', 120) }, 'the doctor warns')
	  or diag($sql->run('SELECT * FROM fence.hot_keys ORDER BY share DESC LIMIT 5'));
	unlike(findings('one key'), qr/item_b/, '... of no other domain');
	is(findings('^slot'), '', '... and not of its slot as well');
	is($sql->run("SELECT domain, key, slot = fence.key_slot(fence.fence_key('item', $id)), share > 0.9, reads > 100
		FROM fence.hot_keys ORDER BY share DESC, reads DESC LIMIT 1"), "item|$id|t|t|t", 'the view names it');
	is($sql->run("SELECT slot = fence.key_slot(fence.fence_key('item', $id)), share > 0.9 FROM fence.hot_slots ORDER BY share DESC, reads DESC LIMIT 1"),
		't|t', '... and its slot');
	is($sql->run('SELECT count(DISTINCT node) FROM fence.hot_keys k WHERE node NOT IN (SELECT address FROM fence.nodes)'), 0, 'nodes are named as in fence.nodes');
};

subtest 'a tag with many keys' => sub {
	my @fences = split /\n/, $sql->run("SELECT fence.fence_key('member', 1, id) FROM member");
	ok(eval { poll(sub { read_often(500, @fences); findings('^slot \d+ takes') ne '' }, 'the warning', 120) }, 'the doctor warns of the slot')
	  or diag($sql->run('SELECT * FROM fence.hot_slots ORDER BY share DESC LIMIT 5'));
	unlike(findings('one key'), qr/member/, '... and of no key in it');
};

subtest 'writes and misses' => sub {
	$sql->run("UPDATE item SET n = n + 1 WHERE id = $id") foreach 1 .. 600;
	is($sql->run("SELECT string_agg(domain, ' ' ORDER BY domain) FROM fence.hot_keys WHERE key = '$id' AND writes > 0"), 'item item_b item_c',
		'one write reserves all copies');
	$router->call(qw(FCALL_RO fence_get 1), $fence{item}) foreach 1 .. 1000;
	cmp_ok($sql->run("SELECT misses FROM fence.hot_keys WHERE domain = 'item' AND key = '$id'"), '>', 0, 'fence_get is told apart');
};

# Redis sees one key of each block, so chance names it.
subtest 'reads of several keys' => sub {
	my @keys = grep { $_ ne $id } split /\n/, $sql->run('SELECT id FROM item WHERE ' . $shard->('item') . ' = 0 ORDER BY id LIMIT 4');
	my $fences = join ',', map { '"' . fence_of('item', $_) . '"' } @keys;
	$sql->run("SELECT count(g.status) FROM generate_series(1, 5000) n, LATERAL fence.get_many(VARIADIC CASE WHEN n > 0 THEN '{$fences}'::text[] END) g");
	is($sql->run("SELECT count(*) FROM fence.hot_keys WHERE domain = 'item' AND key IN ('" . join("','", @keys) . "') AND reads > 0"), scalar @keys,
		'all of them are sampled');
};

# Readers of all copies against a writer: whatever copy a reader draws, it is never older than what was committed before the read.
subtest 'copies are as strong as the one' => sub {
	my $script = $node->basedir . '/write.sql';
	open my $fh, '>', $script or die $!;
	print $fh "UPDATE item SET n = n + 1 WHERE id = $id;\n";
	close $fh;
	my $writer = IPC::Run::start([ 'pgbench', '-n', '-T', 6, '-c', 2, '-f', $script, '-h', $node->host, '-p', $node->port, 'postgres' ],
		'>', \my $out, '2>', \my $err);
	my ($reads, $hits, $old) = (0, 0, 0);
	while ($writer->pumpable)
	{
		foreach my $domain (@DOMAINS)
		{
			my $committed = $sql->run("SELECT n FROM item WHERE id = $id");
			my ($word, undef, $payload) = strong_read($router->server($fence{$domain}), $fence{$domain});
			my ($n) = $word eq 'hit' ? $payload =~ /"n": (\d+)/ : $sql->run("SELECT fence.read('$domain', $id)->>'n'");
			$reads++;
			$hits++ if $word eq 'hit';
			$old++ if $n < $committed;
		}
		$writer->pump_nb;
	}
	$writer->finish;
	is($old, 0, "no read was old, of $reads with $hits hits; " . ($out =~ /actually processed: (\d+)/)[0] . ' writes');
	no_reservations($node);
	$sql->run("SELECT fence.read('$_', $id)") foreach @DOMAINS;
	is(join(' ', map { (strong_read($router->server($fence{$_}), $fence{$_}))[0] } @DOMAINS), 'hit hit hit', 'then all copies are hits');
	is(join("\n", FenceTest::Comparison->new($node, redis => $router, domains => [@DOMAINS])->anomalies), '', 'all fences agree with their rows');
};

done_testing();
