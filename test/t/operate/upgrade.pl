# From one version to the next: every way leads to the same objects; a library that is older than the SQL says so, one that
# is newer serves it; the change of library, SQL and Redis library while writers and readers go on; two versions that
# share a Redis.
#
# There is one version so far, so the next one is made up here: this build, with the version of its Redis library raised, and an
# update script. What the next version adds is a function that version 1.0 of this test lacks: its declaration is cut out of
# the script, and its name in the library is spoilt.

use strict;
use warnings;

use File::Path qw(make_path);
use FenceTest;
use IPC::Open2;
use JSON::PP;
use PostgreSQL::Test::Utils;
use Test::More;

my $config = $ENV{PG_CONFIG} // 'pg_config';
chomp(my ($sharedir, $libdir, $version) = map { scalar `$config $_` } qw(--sharedir --pkglibdir --version));
my ($major) = $version =~ /^PostgreSQL (\d+)/;

# Where the extension under test is, if it is in a directory of its own that servers can be pointed to.
my $place = $ENV{TEMP_CONFIG} && -e $ENV{TEMP_CONFIG} ? slurp_file($ENV{TEMP_CONFIG}) : '';
my ($tested) = $place =~ /^dynamic_library_path = '([^:']*)\Q$libdir\E:/m;
plan skip_all => 'needs an extension that is installed in a directory of its own' unless $tested;

my $dir = PostgreSQL::Test::Utils::tempdir();
my $version_1_0 = '1.0';
my $next = '1.0next';
my $build = slurp_file("$tested$libdir/pgcache_fence.so");
my $script = slurp_file("$tested$sharedir/extension/pgcache_fence--$version_1_0.sql");
my $control = slurp_file("$tested$sharedir/extension/pgcache_fence.control");

$control =~ s/^default_version = '\K$version_1_0'/$next'/m or die 'no default version in the control file';
$script =~ s/^(CREATE FUNCTION fence\.is_committed\(.*?;\nCOMMENT ON .*?;\n)//ms or die 'no fence.is_committed in the script';
my $added = $1;

# Files that were installed while the server runs do not change the library that it has loaded: a script that needs the new
# one begins like this.
my $update = <<"SQL";
DO \$\$
BEGIN
    CREATE FUNCTION fence._of_this_version() RETURNS boolean LANGUAGE C AS 'MODULE_PATHNAME', 'fence_is_committed';
    DROP FUNCTION fence._of_this_version();
EXCEPTION WHEN undefined_function THEN
    RAISE EXCEPTION 'the server has loaded a library of pgcache_fence that is older than version $next of the extension'
        USING ERRCODE = 'object_not_in_prerequisite_state',
              HINT = 'Install the new library, restart PostgreSQL, then try again. Until then the extension stays as it is.';
END \$\$;
$added
ALTER TABLE fence.domain
    DROP CONSTRAINT domain_cache_check,
    ADD CONSTRAINT domain_cache_check CHECK (cache IN ('none', 'row', 'next'));
CREATE TABLE fence.later (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY);
CREATE OR REPLACE VIEW fence.state AS SELECT s.*, NULL::text AS later FROM fence._state() s;
GRANT SELECT ON fence.later TO PUBLIC;
SQL

sub library_of_1_0
{
	return $build =~ s/fence_is_committed\0/Fence_is_committed\0/gr;
}

sub library_of_next
{
	return $build =~ s/(LIBRARY_VERSION = ')1'/${1}2'/r;
}

isnt(library_of_1_0(), $build, 'a library of 1.0');
isnt(library_of_next(), $build, 'a library of the next version');

sub write_file
{
	my ($file, $content) = @_;

	open my $out, '>:raw', "$file.new" or die $!;
	print $out $content;
	close $out or die $!;
	chmod 0755, "$file.new";
	rename "$file.new", $file or die $!;
}

# What `make install` does: a new file takes the place of the old one, which may be loaded.
sub install
{
	my ($name, $library) = @_;
	my $files = "$dir/$name$sharedir/extension/pgcache_fence";

	make_path("$dir/$name$libdir", "$dir/$name$sharedir/extension");
	write_file("$files.control", $control);
	write_file("$files--$version_1_0.sql", $script);
	write_file("$files--$version_1_0--$next.sql", $update);
	write_file("$dir/$name$libdir/pgcache_fence.so", $library);
	return (
		dynamic_library_path => "$dir/$name$libdir:\$libdir",
		$major >= 18 ? (extension_control_path => "$dir/$name$sharedir:\$system") : (extension_destdir => "$dir/$name"));
}

sub error_of
{
	my ($node, $statement, $dbname) = @_;
	my $error;

	isnt($node->psql($dbname // 'postgres', $statement, stderr => \$error), 0, "$statement fails");
	return $error;
}

sub version_in { return $_[0]->safe_psql($_[1] // 'postgres', "SELECT extversion FROM pg_extension WHERE extname = 'pgcache_fence'") }

# Everything that a version of the extension consists of.
my $inventory = <<'SQL';
SELECT extversion, extnamespace::regnamespace, extrelocatable, extconfig::regclass[], extcondition FROM pg_extension WHERE extname = 'pgcache_fence';
CREATE TEMP TABLE member AS
	SELECT d.* FROM pg_depend d JOIN pg_extension e ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
	 WHERE e.extname = 'pgcache_fence' AND d.deptype = 'e';
SELECT pg_describe_object(classid, objid, objsubid) AS object, obj_description(objid, classid::regclass::name) FROM member ORDER BY 1;
SELECT pg_get_functiondef(p.oid), p.proacl, p.prorows, p.procost, i.initprivs FROM pg_proc p
	JOIN member m ON m.classid = 'pg_proc'::regclass AND m.objid = p.oid
	LEFT JOIN pg_init_privs i ON i.classoid = m.classid AND i.objoid = p.oid ORDER BY 1;
SELECT c.oid::regclass, c.relkind, c.relacl, c.reloptions, i.initprivs, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
	a.attidentity, a.attcollation::regcollation, a.attacl, pg_get_expr(d.adbin, d.adrelid), col_description(c.oid, a.attnum)
	FROM pg_class c JOIN member m ON m.classid = 'pg_class'::regclass AND m.objid = c.oid
	JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
	LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
	LEFT JOIN pg_init_privs i ON i.classoid = m.classid AND i.objoid = c.oid ORDER BY 1, a.attnum;
SELECT conrelid::regclass, conname, convalidated, pg_get_constraintdef(oid) FROM pg_constraint WHERE connamespace = 'fence'::regnamespace ORDER BY 1, 2;
SELECT indexrelid::regclass, pg_get_indexdef(indexrelid) FROM pg_index WHERE indrelid IN (SELECT objid FROM member) ORDER BY 1;
SELECT pg_get_triggerdef(oid), tgenabled FROM pg_trigger WHERE tgrelid IN (SELECT objid FROM member) AND NOT tgisinternal ORDER BY 1;
SELECT viewname, definition FROM pg_views WHERE schemaname = 'fence' ORDER BY 1;
SELECT nspacl FROM pg_namespace WHERE nspname = 'fence';
SQL

# A table and what happens to it, with what 1.0 has.
my $table = <<'SQL';
CREATE TABLE item (id int PRIMARY KEY, n int NOT NULL DEFAULT 0, version bigint NOT NULL DEFAULT 0);
INSERT INTO item (id) SELECT generate_series(1, 10);
SELECT fence.attach('item', on_redis_failure => 'bypass');
SQL

# A hit, after a read that fills.
sub is_cached
{
	my ($node, $what) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok(eval {
			poll(sub { $node->safe_psql('postgres', "SELECT fence.read('item', '1')"); $node->safe_psql('postgres', "SELECT status FROM fence.get('item', '1')") eq 'hit' }, 'a hit', 30);
		}, $what)
	  or diag $node->safe_psql('postgres', 'SELECT * FROM fence.state');
}

subtest 'every way leads to the same objects' => sub {
	my $redis = FenceTest::Redis->start;
	my $node = new_postgres('ways', $redis, install('ways', library_of_next()));
	my %is;

	is($node->safe_psql('postgres', "SELECT source, target, path FROM pg_extension_update_paths('pgcache_fence') ORDER BY 1, 2"),
		"1.0|$next|1.0--$next\n$next|1.0|", 'the ways that there are');
	$node->safe_psql('postgres', "CREATE DATABASE $_") foreach qw(direct named walked);
	$node->safe_psql('direct', 'CREATE EXTENSION pgcache_fence');
	$node->safe_psql('named', "CREATE EXTENSION pgcache_fence VERSION '$next'");
	$node->safe_psql('walked', "CREATE EXTENSION pgcache_fence VERSION '1.0'");
	my $before = $node->safe_psql('walked', $inventory);
	$node->safe_psql('walked', "CREATE VIEW mine AS SELECT state FROM fence.state; ALTER EXTENSION pgcache_fence UPDATE");
	%is = map { $_ => $node->safe_psql($_, $inventory) } qw(direct named walked);
	like($is{direct}, qr/^\Q$next\E\|/, 'CREATE EXTENSION makes the newest version');
	isnt($before, $is{walked}, 'the update changes something');
	is($is{$_}, $is{direct}, "the same objects, columns, constraints, privileges: $_") foreach qw(named walked);
	is($node->safe_psql('walked', 'SELECT state FROM mine'), 'OPEN', 'a view of a user that rests on ours is still there');
	is($node->safe_psql('walked', 'ALTER EXTENSION pgcache_fence UPDATE; SELECT later FROM fence.state'), '', 'updating again is nothing');
	$node->stop;
};

subtest 'a library that is older than the SQL' => sub {
	my $redis = FenceTest::Redis->start;
	my $node = new_postgres('older', $redis, install('older', library_of_1_0()), extension => 0);
	my $clear = qr/ERROR: .*library of pgcache_fence that is older than version $next.*HINT: +Install the new library, restart PostgreSQL/s;

	like(error_of($node, 'CREATE EXTENSION pgcache_fence'), $clear, 'and says why and what to do');
	$node->safe_psql('postgres', "CREATE EXTENSION pgcache_fence VERSION '1.0'; $table");
	wait_open($node);
	my $before = $node->safe_psql('postgres', $inventory);
	like(error_of($node, 'ALTER EXTENSION pgcache_fence UPDATE'), $clear, 'likewise');
	is($node->safe_psql('postgres', $inventory), $before, 'the extension is as it was');
	is_cached($node, 'and at work');
	$node->stop;
};

subtest 'a library that is newer than the SQL' => sub {
	my $redis = FenceTest::Redis->start;
	my $node = new_postgres('newer', $redis, install('newer', library_of_next()), extension => 0);
	my $error;

	$node->safe_psql('postgres', "CREATE EXTENSION pgcache_fence VERSION '1.0'; $table");
	wait_open($node);
	is($node->safe_psql('postgres', "SELECT count(*) FROM pg_proc WHERE pronamespace = 'fence'::regnamespace AND proname = 'is_committed'"), '0', 'the SQL of 1.0');
	foreach my $view (split /\n/, $node->safe_psql('postgres', "SELECT viewname FROM pg_views WHERE schemaname = 'fence' ORDER BY 1"))
	{
		is($node->psql('postgres', "SELECT * FROM fence.$view", stderr => \$error), 0, "fence.$view") or diag $error;
	}
	is_cached($node, 'reads are hits');
	is($node->psql('postgres', <<'SQL', stderr => \$error), 0, 'every function of 1.0 works') or diag $error;
\set ON_ERROR_STOP on
CREATE TABLE grouped (id int PRIMARY KEY, room int);
CREATE FUNCTION twice(int) RETURNS jsonb STABLE LANGUAGE sql AS 'SELECT to_jsonb(2 * n) FROM public.item WHERE id = $1';
SELECT fence.attach('grouped', key => '{room}', scope => 'group');
SELECT fence.attach(NULL, domain => 'by hand', scope => 'manual');
SELECT fence.define_derived('double', '{item($1)}', 'twice(int)');
INSERT INTO grouped VALUES (1, 7);
BEGIN;
SELECT fence.begin_write('by hand', 0, 'x');
SELECT fence.abort_write('by hand', 'x');
COMMIT;
UPDATE item SET n = 2 WHERE id = 1;
SELECT fence.read('item', '1'), fence.group_version('grouped', '7'), fence.read_derived('double', '1'), fence.derived_keys('double', '1'),
	fence.key_slot(fence.fence_key('item', '1')), fence.value_key('item', '1'), fence.peek('item', '1'), fence.status('item', '1');
SELECT fence.put('item', permit, 1, 'x', NULL, '2') FROM fence.get('item', '2');
SELECT * FROM fence.get_many(VARIADIC fence.fence_keys('item', '{1,2}')), fence.read_many(fence.fence_keys('item', '{1,2}'));
SELECT * FROM fence.audit('item');
SELECT fence.repair('item', '3'), fence.drop_derived('double'), fence.detach('grouped'), fence.detach_domain('by hand');
SQL
	like(error_of($node, 'SELECT fence.is_committed($$x$$)'), qr/function fence.is_committed\(unknown\) does not exist/, 'what came with the next version');

	# a dump is restored to the version that is installed
	$node->safe_psql('postgres', "SELECT fence.detach('item'), fence.attach('item', cache => 'row', publish => 'notify'); DELETE FROM item WHERE id = 10");
	my $dump = "$dir/dump.sql";
	$node->command_ok([ 'pg_dump', '-f', $dump, 'postgres' ], 'a dump');
	$node->safe_psql('postgres', 'CREATE DATABASE restored');
	$node->command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-f', $dump, '-d', 'restored' ], 'restored');
	is(version_in($node, 'restored'), $next, 'with the newest version');
	$node->safe_psql('postgres', 'ALTER EXTENSION pgcache_fence UPDATE');
	my $domains = "SELECT domain, cache, publish FROM fence.domains";
	is($node->safe_psql($_, $domains), 'item|row|notify', "$_: what was attached still is") foreach qw(postgres restored);
	is($node->safe_psql('postgres', 'INSERT INTO item (id) VALUES (10) RETURNING version'), '2', 'a deleted key goes on counting');
	compare_fences($node, 'item');
	$node->stop;
};

# What load.py counted since it was last asked.
sub counted
{
	my ($load) = @_;

	print { $load->{in} } "\n";
	my $line = readline($load->{out}) // die 'load.py has ended';
	return decode_json($line);
}

# Until there are writes and, if wanted, hits again: [counts, what was stale].
sub passes
{
	my ($load, $what, $hits) = @_;
	my (%sum, @stale);

	my $reached = eval {
		poll(
			sub {
				my $now = counted($load);
				push @stale, @{ delete $now->{stale} };
				$sum{$_} += $now->{$_} foreach keys %$now;
				select undef, undef, undef, 0.2;
				return ($sum{writes} // 0) >= 50 && ($sum{'reads in SQL'} // 0) >= 20 && (!$hits || ($sum{hits} // 0) >= 50);
			}, $what, 90);
	};
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	note "$what: ", join ', ', map { "$_ $sum{$_}" } sort keys %sum;
	ok($reached, "$what: writes and " . ($hits ? 'hits' : 'reads') . ' go on');
	is(join("\n", @stale), '', "$what: no stale read");
	is(join(', ', grep { /^refused/ } sort keys %sum), '', "$what: no statement is refused");
}

sub start_load
{
	my ($node, $redis) = @_;
	my %load;

	$load{pid} = open2($load{out}, $load{in}, '/usr/bin/python3', 'test/lib/load.py', $redis->{socket}, $node->connstr('postgres'), 'item', 10);
	$load{in}->autoflush(1);
	return \%load;
}

sub stop_load
{
	my ($load) = @_;

	close $load->{in};
	waitpid $load->{pid}, 0;
	is($?, 0, 'the load ends well');
}

sub library_in { return $_[0]->call('FCALL', 'fence_hello', 0, 'any', 'a')->[3] }

subtest 'under load' => sub {
	my $redis = FenceTest::Redis->start;
	my $node = new_postgres('load', $redis, install('load', library_of_1_0()), extension => 0, on_redis_failure => 'bypass');

	$node->safe_psql('postgres', "CREATE EXTENSION pgcache_fence VERSION '1.0'; $table");
	wait_open($node);
	is(library_in($redis), 1, 'Redis has the library of 1.0');
	my $load = start_load($node, $redis);
	passes($load, '1.0', 1);

	install('load', library_of_next());
	passes($load, 'new files under a running server', 1);
	like(error_of($node, 'ALTER EXTENSION pgcache_fence UPDATE'), qr/HINT: .*restart PostgreSQL/, 'too early');
	$node->restart;
	poll(sub { library_in($redis) == 2 }, 'Redis to have the new library', 120);    # until then the old one's lease may run
	passes($load, 'the new library, the SQL of 1.0', 1);
	is(version_in($node), '1.0', 'the SQL has not changed');

	$node->safe_psql('postgres', 'ALTER EXTENSION pgcache_fence UPDATE');
	passes($load, 'ALTER EXTENSION', 1);
	is(version_in($node), $next, 'now it has');
	is($node->safe_psql('postgres', "SELECT count(*) FROM fence.doctor() WHERE severity <> 'ok' AND finding ~ 'installed files'"), '0', 'the doctor has no word on it');

	# a newer cluster uses the same Redis; it goes away; then somebody loads the old library
	my $source = FenceTest::Redis::library_source();
	$redis->call('FUNCTION', 'LOAD', 'REPLACE', $source =~ s/(LIBRARY_VERSION = ')\d+/${1}3/r);
	wait_state($node, 'CLOSED');
	poll(sub { $node->safe_psql('postgres', 'SELECT reason FROM fence.state') =~ /version 3 of the function library, this pgcache_fence has version 2: upgrade/ }, 'the reason');
	passes($load, 'a newer Redis library', 0);
	$redis->call('FUNCTION', 'DELETE', 'pgcache_fence');
	wait_open($node, 120);
	passes($load, 'the Redis library removed', 1);
	$redis->call('FUNCTION', 'LOAD', 'REPLACE', $source =~ s/(LIBRARY_VERSION = ')\d+/${1}1/r);
	poll(sub { library_in($redis) == 2 }, 'the library to be replaced', 120);
	wait_open($node, 120);
	passes($load, 'an older Redis library', 1);
	stop_load($load);
	no_reservations($node);
	compare_fences($node, 'item');
	$node->stop;
};

subtest 'two versions that share a Redis' => sub {
	my $redis = FenceTest::Redis->start;
	my $old = new_postgres('old', $redis, install('old', library_of_1_0()), extension => 0);
	$old->safe_psql('postgres', "CREATE EXTENSION pgcache_fence VERSION '1.0'; $table");
	wait_open($old);
	is_cached($old, '1.0 alone');
	my $load = start_load($old, $redis);
	passes($load, '1.0 alone', 1);

	my $new_node = new_postgres('new', $redis, install('new', library_of_next()));
	$new_node->safe_psql('postgres', $table);
	is_cached($new_node, 'the next version comes: it is at work');
	wait_state($old, 'CLOSED');
	poll(sub { $old->safe_psql('postgres', 'SELECT reason FROM fence.state') =~ /version 2 of the function library, this pgcache_fence has version 1: upgrade/ },
		'1.0 says why it cannot go on');
	passes($load, '1.0 beside the next', 0);
	my $epoch = $new_node->safe_psql('postgres', 'SELECT epoch FROM fence.state');
	$old->restart;
	passes($load, '1.0 restarted beside the next', 0);
	is($new_node->safe_psql('postgres', 'SELECT epoch FROM fence.state'), $epoch, 'which does not notice');

	install('old', library_of_next());
	$old->restart;
	wait_open($old, 120);
	passes($load, 'both have the new library', 1);
	is($new_node->safe_psql('postgres', 'SELECT epoch FROM fence.state'), $epoch, 'nor of the upgrade');
	stop_load($load);
	$_->stop foreach $old, $new_node;
};

done_testing();
