# pg_upgrade to a newer major version: domains, triggers and tombstones come back, the new cluster opens the fences in
# a new epoch, nothing that the old one cached is served, and writes are fenced.
#
# Needs two major versions of PostgreSQL with their headers; builds the extension for each in a directory of its own.

use strict;
use warnings;

use File::Basename;
use FenceTest;
use FenceTest::Comparison;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;

# Where each major version lives that has a server, pg_upgrade and what is needed to build: major => [bindir, pg_config].
sub installations
{
	my %found;

	foreach my $config (grep { -x } glob('/usr/lib/postgresql/*/bin/pg_config /usr/pgsql-*/bin/pg_config'), map { "$_/pg_config" } split /:/, $ENV{PATH})
	{
		chomp(my ($bindir, $include, $pgxs, $version) = map { scalar `$config $_` } qw(--bindir --includedir-server --pgxs --version));
		next unless $version =~ /^PostgreSQL (\d+)/ && $1 >= 15;
		$found{$1} //= [ $bindir, "$bindir/pg_config" ]
		  if -x "$bindir/pg_upgrade" && -x "$bindir/postgres" && -x "$bindir/pg_config" && -e "$include/postgres.h" && -e $pgxs;
	}
	return %found;
}

my %installed = installations();
chomp(my $version = `pg_config --version`);
my ($tested) = ($ENV{PG_CONFIG} // '') =~ m{/(\d+)/bin/pg_config$} ? $1 : $version =~ /(\d+)/;
my ($newer) = grep { $_ > $tested } sort { $a <=> $b } keys %installed;
my ($older) = grep { $_ < $tested } sort { $a <=> $b } keys %installed;
plan skip_all => "pg_upgrade needs two major versions of PostgreSQL (15 or later) with their headers; here is: "
  . join(', ', sort keys %installed) || 'none'
  unless $installed{$tested} && ($newer || $older);
my ($from, $to) = $newer ? ($tested, $newer) : ($older, $tested);
note "from $from to $to";

# The extension, built for that version; settings by which its server finds it.
my $dir = PostgreSQL::Test::Utils::tempdir();
sub built_for
{
	my ($major) = @_;
	my (undef, $config) = @{ $installed{$major} };
	my $root = "$dir/root$major";
	my $out = '';

	mkdir "$dir/tree$major";
	local @ENV{qw(MAKEFLAGS MAKELEVEL MFLAGS PG_CONFIG)} = ('', '', '', $config);
	IPC::Run::run([ 'sh', '-c', 'cp -R "$1"/Makefile "$1"/src "$1"/sql "$1"/test "$1"/pgcache_fence* "$2" && cd "$2" && make clean && '
			  . 'make -j2 "PG_CONFIG=$3" && make install "PG_CONFIG=$3" "DESTDIR=$4"',
			'sh', $TOP, "$dir/tree$major", $config, $root ], '<', '/dev/null', '>&', \$out)
	  or die "could not build for PostgreSQL $major:\n" . substr($out, -3000);
	chomp(my ($libdir, $sharedir) = map { scalar `$config $_` } qw(--pkglibdir --sharedir));
	return (
		dynamic_library_path => "$root$libdir:\$libdir",
		$major >= 18 ? (extension_control_path => "$root$sharedir:\$system") : (extension_destdir => $root));
}

my $redis = FenceTest::Redis->start;
sub cluster
{
	my ($major, %option) = @_;
	my $path = dirname($installed{$major}[0]);

	# what the harness adds for the tested version is not for both
	delete local $ENV{TEMP_CONFIG};
	return new_postgres("v$major", $redis, built_for($major), namespace => 'upgraded', max_worker_processes => 16,
		new  => [ install_path => $path ],
		init => { extra => [ '--no-locale', '-E', 'UTF8', $major >= 18 ? '--no-data-checksums' : () ] }, %option);
}

# What must be the same afterwards.
my $inventory = <<'SQL';
SELECT * FROM fence.domains ORDER BY domain, relation::text;
SELECT name, id FROM fence.domain ORDER BY id, name;
SELECT tgrelid::regclass, tgname, tgenabled, tgfoid::regproc, tgparentid = 0 FROM pg_trigger
 WHERE tgname ~ '^zzz_pgcache_fence' ORDER BY tgrelid::regclass::text, tgname;
SELECT d.classid::regclass, pg_describe_object(d.classid, d.objid, d.objsubid), d.deptype,
	   pg_describe_object(d.refclassid, d.refobjid, d.refobjsubid)
  FROM pg_depend d LEFT JOIN pg_trigger t ON d.classid = 'pg_trigger'::regclass AND t.oid = d.objid
 WHERE t.tgname ~ '^zzz_pgcache_fence' ORDER BY 2, 3, 4;
SELECT d.name, t.key, t.version, t.removed_at FROM fence.tombstone t JOIN fence.domain d ON d.id = t.domain_id ORDER BY 1, 2;
SELECT d.name, f.version FROM fence.floor f JOIN fence.domain d ON d.id = f.domain_id ORDER BY 1;
SELECT last_value, is_called FROM fence.domain_id_seq;
SQL

my $old = cluster($from);
$old->safe_psql('postgres', <<'SQL');
CREATE TABLE plain (id int PRIMARY KEY, name text DEFAULT 'x', version bigint NOT NULL DEFAULT 0);
CREATE TABLE "Größe {x}" ("Schlüssel" text COLLATE "C", n int, gone int, name text, "Vérsion" int NOT NULL DEFAULT 0, PRIMARY KEY (n, "Schlüssel"));
ALTER TABLE "Größe {x}" DROP gone;
CREATE TABLE members (id int PRIMARY KEY, room int, name text);
CREATE TABLE hand (id int PRIMARY KEY, name text);
CREATE TABLE parts (id int PRIMARY KEY, name text, version int NOT NULL DEFAULT 0) PARTITION BY RANGE (id);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (1) TO (10);
CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (10) TO (20) PARTITION BY HASH (id);
CREATE TABLE parts_2a PARTITION OF parts_2 FOR VALUES WITH (MODULUS 1, REMAINDER 0);
INSERT INTO plain SELECT g, 'x', 5 FROM generate_series(1, 9) g;
INSERT INTO parts SELECT g, 'x', 5 FROM generate_series(1, 19) g;
INSERT INTO members SELECT g, g % 3, 'x' FROM generate_series(1, 9) g;
INSERT INTO "Größe {x}" VALUES ('ä{}:%,', 1, 'x', 5), (E'b\n\t\\', 2, 'x', 5), ('', 3, 'x', 5);
SELECT fence.attach('plain', on_redis_failure => 'error', ttl => '1 day'), fence.attach('parts'), fence.attach('hand', scope => 'manual'),
	fence.attach(NULL, domain => 'no table', scope => 'manual'), fence.attach('members', scope => 'group', key => '{room}'),
	fence.attach('members', domain => 'member', version => NULL),
	fence.attach('members', key => '{}', domain => 'all members', columns => '{id}', only_columns => true),
	fence.attach('members', scope => 'group', key => '{id}', domain => 'joint'), fence.attach('parts', scope => 'group', key => '{id}', domain => 'joint'),
	fence.attach('"Größe {x}"', version => 'Vérsion', tag => 'room/{n}', columns => '{n,name,Schlüssel}');
DELETE FROM plain WHERE id = 1;
DELETE FROM parts WHERE id IN (2, 12);
DELETE FROM "Größe {x}" WHERE n = 3;
UPDATE members SET name = 'y' WHERE id = 1;
INSERT INTO fence.floor SELECT id, 20 FROM fence.domain WHERE name = 'parts';
SQL
my $compare = FenceTest::Comparison->new($old, domains => [ qw(plain parts hand members member), 'Größe {x}' ]);
$compare->holds('before the upgrade', "UPDATE plain SET name = 'before' WHERE id = 2; UPDATE parts SET name = 'before' WHERE id > 15");
my $before = $old->safe_psql('postgres', $inventory);
my $epoch = $old->safe_psql('postgres', "SELECT split_part(epoch, '-', 1) FROM fence.state");
$old->stop;

my $new = cluster($to, start => 0);
my $out = '';
my $upgraded = do
{
	# it leaves its files where it runs
	mkdir "$dir/run";
	IPC::Run::run([ 'sh', '-c', 'cd "$1" && shift && exec "$@"', 'sh', "$dir/run", "$installed{$to}[0]/pg_upgrade", '--no-sync',
			'-b', $installed{$from}[0], '-B', $installed{$to}[0], '-d', $old->data_dir, '-D', $new->data_dir, '-p', $old->port, '-P', $new->port, '-s', $new->host ],
		'<', '/dev/null', '>&', \$out);
};
ok($upgraded, "pg_upgrade from $from to $to") or diag($out, join '', map { slurp_file($_) } glob($new->data_dir . '/pg_upgrade_output.d/*/log/*'));
BAIL_OUT('no upgraded cluster') unless $upgraded;
$new->start;
wait_open($new);
$compare->moved_to($new);
# what the triggers depend on is recorded when the domains are announced
poll(sub { $new->safe_psql('postgres', "SELECT bool_and((fence.get(d, '1')).status <> 'unarmed') FROM unnest('{plain,parts,members}'::text[]) d") eq 't' },
	'the domains to be announced');
is($new->safe_psql('postgres', $inventory), $before, 'domains, triggers, what they depend on, tombstones and floors are there');
cmp_ok($new->safe_psql('postgres', "SELECT split_part(epoch, '-', 1) FROM fence.state"), '>', $epoch, 'a new epoch');
is(join("\n", $compare->anomalies), '', 'fences agree');
is($compare->compared->{hits}, 0, 'what the old cluster cached is not trusted');

$compare->holds('every row and group can be cached again; writes are fenced', <<'SQL');
UPDATE plain SET name = 'new' WHERE id < 5; UPDATE parts SET name = 'new'; UPDATE members SET name = 'new' WHERE room = 1;
UPDATE "Größe {x}" SET name = 'new' WHERE n = 1; DELETE FROM "Größe {x}" WHERE n = 2; DELETE FROM plain WHERE id = 9
SQL
is(join(',', sort keys %{ $compare->changed }), 'Größe {x},members,parts,plain', 'all of them');
is($new->safe_psql('postgres', "INSERT INTO plain (id) VALUES (1) RETURNING version"), '7', 'a deleted key goes on above its tombstone,');
is($new->safe_psql('postgres', "INSERT INTO parts (id) VALUES (12) RETURNING version"), '21', 'and above the floor');
$compare->holds('afterwards', 'TRUNCATE parts; ALTER TABLE plain ADD more int DEFAULT 5');
foreach my $statement ('ALTER TABLE plain DROP version', 'ALTER TABLE plain DROP id', 'ALTER TABLE plain DROP CONSTRAINT plain_pkey')
{
	$new->psql('postgres', "BEGIN; $statement; ROLLBACK", stderr => \my $warning);
	like($warning, qr/the fencing of table "plain" as domain "plain" ends/, "$statement: ends the fencing");
}
foreach my $statement ('DROP TRIGGER zzz_pgcache_fence_before ON plain', 'ALTER TABLE plain DISABLE TRIGGER zzz_pgcache_fence_after')
{
	isnt($new->psql('postgres', $statement, stderr => \my $error), 0, "$statement: refused");
	note $error;
}
$new->safe_psql('postgres', "SELECT fence.detach('plain'), fence.attach('plain')");
$compare->holds('attached again', "UPDATE plain SET name = 'last'");
$new->safe_psql('postgres', 'DROP EXTENSION pgcache_fence CASCADE');
is($new->safe_psql('postgres', "SELECT count(*) FROM pg_trigger WHERE tgname ~ 'pgcache_fence'"), '0', 'DROP EXTENSION takes all');

done_testing();
