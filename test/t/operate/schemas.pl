# operate/schemas.pl
#    Does what doc/schemas.md says, block by block, with 30 tables, and then writes and reads all of its domains at once: nothing stale is
#    served.

use strict;
use warnings;

use FenceTest;
use FenceTest::Page;
use FenceTest::Session;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;

use constant { TABLES => 30, SECONDS => 8 };

my $redis = FenceTest::Redis->start;
my $node = new_postgres('schemas', $redis, lease => '3s');
my $dir = PostgreSQL::Test::Utils::tempdir();
my $sql = FenceTest::Session->open($node);
my $own = 8;		# tables that the page makes

# ---------------------------------------------------------------------------------------------------------------------
# The page
# ---------------------------------------------------------------------------------------------------------------------
$sql->run("CREATE TABLE more_$_ (id int PRIMARY KEY, what text); INSERT INTO more_$_ SELECT g, 'old' FROM generate_series(1, 20) g")
  foreach $own + 1 .. TABLES;
run_sql($sql, $_->[1]) foreach blocks_of("$TOP/doc/schemas.md");
is($sql->run('SELECT count(DISTINCT relation) FROM fence.domains'), TABLES, 'all tables are attached');

# ---------------------------------------------------------------------------------------------------------------------
# Traffic
# ---------------------------------------------------------------------------------------------------------------------

# How a key of each domain is drawn, and what should be cached under it.
my %domains = (
	users => [ '(1 + random() * 40)::int', 'SELECT to_jsonb(t) FROM users t WHERE id = k::int' ],
	users_by_email => [ "'m' || (1 + random() * 40)::int", 'SELECT to_jsonb(t) FROM users t WHERE email = k' ],
	users_of_tenant => [ '(1 + random())::int', "SELECT coalesce(jsonb_agg(to_jsonb(t) ORDER BY to_jsonb(t)::text COLLATE \"C\"), '[]') FROM users t WHERE tenant_id = k::int" ],
	profiles => [ '(1 + random() * 40)::int', "SELECT jsonb_build_object('user_id', user_id, 'name', name, 'avatar', avatar) FROM profiles WHERE user_id = k::int" ],
	settings => [ "''", "SELECT coalesce(jsonb_agg(to_jsonb(t) ORDER BY to_jsonb(t)::text COLLATE \"C\"), '[]') FROM settings t" ],
	more_9 => [ '(1 + random() * 20)::int', 'SELECT to_jsonb(t) FROM more_9 t WHERE id = k::int' ],
);
$sql->run("CREATE TABLE stale (domain text, key text, got jsonb, before jsonb, after jsonb); GRANT ALL ON stale TO PUBLIC;
	INSERT INTO tenants VALUES (2, 'Bmce'); INSERT INTO users SELECT g, 1 + g % 2, 'm' || g, 'name' FROM generate_series(4, 40) g;
	INSERT INTO profiles SELECT g, 'name', 'none' FROM generate_series(2, 40) g");
foreach my $domain (sort keys %domains)
{
	my ($key, $row) = @{ $domains{$domain} };
	my $call = $domain eq 'settings' ? "fence.read('settings')" : "fence.read('$domain', k)";

	# three transactions: the versions of a key only rise, whichever row has it
	$sql->run("CREATE FUNCTION now_of_$domain(k text) RETURNS jsonb VOLATILE LANGUAGE sql AS \$\$ $row \$\$;
CREATE PROCEDURE read_$domain() LANGUAGE plpgsql AS \$\$
DECLARE
	k text := $key; before jsonb; got jsonb; after jsonb;
BEGIN
	before := now_of_$domain(k); COMMIT;
	got := $call; COMMIT;
	after := now_of_$domain(k); COMMIT;
	IF (got->>'version')::bigint < (before->>'version')::bigint OR (got->>'version')::bigint > (after->>'version')::bigint THEN
		INSERT INTO stale VALUES ('$domain', k, got, before, after);
	END IF;
END \$\$");
}
append_to_file("$dir/read.sql", join "\n", map { "CALL read_$_();" } sort keys %domains);
append_to_file("$dir/write.sql", <<'SQL');
\set u random(1, 40)
\set m random(1, 20)
\set n random(1, 1000000)
UPDATE users SET name = 'name ' || :n WHERE id = :u;
UPDATE users SET email = NULL WHERE email = 'm' || :m;
UPDATE users SET email = 'm' || :m WHERE id = :u AND NOT EXISTS (SELECT FROM users WHERE email = 'm' || :m);
UPDATE users SET tenant_id = 3 - tenant_id WHERE id = :u;
UPDATE profiles SET views = views + 1 WHERE user_id = :u;
UPDATE profiles SET avatar = 'a' || :n WHERE user_id = :u;
UPDATE more_9 SET what = :n WHERE id = :m;
SQL
append_to_file("$dir/rare.sql", "\\set n random(1, 1000000)\nUPDATE settings SET value = :n WHERE name = 'theme';\n\\sleep 20 ms\n");
my @pgbench = ('pgbench', '-n', '-h', $node->host, '-p', $node->port, '-T', SECONDS, '--max-tries=50');
my @runs = map { { name => $_->[0], out => '', command => [ @pgbench, '-c', $_->[1], '-f', "$dir/$_->[0].sql", 'postgres' ] } } [ read => 3 ], [ write => 2 ], [ rare => 1 ];
$_->{run} = IPC::Run::start($_->{command}, '<', '/dev/null', '>&', \$_->{out}) foreach @runs;
foreach my $run (@runs)
{
	$run->{run}->finish;
	my ($n) = $run->{out} =~ /number of transactions actually processed: (\d+)/;

	ok($n, "$run->{name}: $n transactions") or diag($run->{out});
}
is($sql->run('SELECT * FROM stale'), '', 'nothing stale was read');
$sql->run("CREATE FUNCTION differs() RETURNS TABLE (domain text, key text, got jsonb, wanted jsonb) LANGUAGE sql AS \$\$"
	. join(' UNION ALL ', map { my $d = $_; my $keys = $d eq 'settings' ? "SELECT ''" : $d =~ /email/ ? "SELECT 'm' || g FROM generate_series(1, 40) g" : 'SELECT g::text FROM generate_series(1, 40) g';
		"SELECT '$d', k, " . ($d eq 'settings' ? "fence.read('settings')" : "fence.read('$d', k)") . ", now_of_$d(k) FROM ($keys) x (k)" } sort keys %domains) . ' $$');
is($sql->run('SELECT * FROM differs() WHERE got IS DISTINCT FROM wanted'), '', 'afterwards every cached value is the row as it is') for 1, 2;
no_reservations($node);
is($sql->run("SELECT d.domain, a.relation, a.count FROM (SELECT DISTINCT domain FROM fence.domains) d, fence.audit(d.domain) a
	WHERE a.relation NOT IN ('equal', 'missing') AND a.count > 0"), '', 'fences agree with rows, of all domains');
is($sql->run("SELECT count(*) FROM fence.metrics WHERE name = 'cache_fence_db_compare' AND labels->>'relation' = 'fence_behind_db' AND value > 0"), '0', 'no promise was broken');

done_testing();
