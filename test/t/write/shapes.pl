# Triggers of a fenced table that somebody edited where nothing could refuse it: in the catalogue, or while the library was not
# loaded. Nothing of the domain is served from then on, in SQL and in Redis, until it is attached anew. What is refused at once
# is in sql/triggers.sql, sql/partitions.sql and sql/privileges.sql.

use strict;
use warnings;

use FenceTest;
use FenceTest::Session;
use Test::More;

my $redis = FenceTest::Redis->start;
my $node = new_postgres('main', $redis);
my $wrong = qr/is not fenced any more: nothing of domain/;

sub sql { my (@statements) = @_; return $node->safe_psql('postgres', join ';', @statements); }

# What a client hears that asks Redis itself.
sub heard { my ($fence) = @_; return $redis->call('FCALL_RO', 'fence_get', 1, $fence)->[0]; }

# What a statement of a new session says.
sub error_of { my ($statement) = @_; return ($node->psql('postgres', $statement))[2]; }

sub name { my ($domain) = @_; return sql("SELECT fence.fence_key('$domain', '1')"); }

# Waits until key 1 of the domain is a hit for clients of Redis.
sub cached
{
	my ($domain, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok(poll(sub { sql("SELECT fence.read('$domain', '1')"); heard($name) eq 'hit' }, "a hit in $domain"), "$domain is served");
	return;
}

sub withdrawn
{
	my ($domain, $name, $doctor) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok(poll(sub { heard($name) eq 'unarmed' }, "$domain is withdrawn"), 'nothing of it is served by Redis');
	is($redis->call('FCALL_RO', 'fence_token', 1, $name), '', '... and no permit is given');
	like(error_of("SELECT fence.read('$domain', '1')"), $wrong, 'nor by fence.read,');
	like(error_of("SELECT fence.audit('$domain')"), $wrong, 'and the audit does not say that all is well');
	like(sql("SELECT finding FROM fence.doctor() WHERE severity = 'error'"), $doctor, 'fence.doctor tells what is wrong');
	return;
}

sql('CREATE TABLE item (id int PRIMARY KEY, v text, version bigint NOT NULL DEFAULT 0)',
	'CREATE TABLE other (id int PRIMARY KEY, v text, version bigint NOT NULL DEFAULT 0)',
	'CREATE TABLE part (id int PRIMARY KEY, v text, version bigint NOT NULL DEFAULT 0) PARTITION BY RANGE (id)',
	'CREATE TABLE part_1 PARTITION OF part FOR VALUES FROM (0) TO (10)',
	'CREATE TABLE part_2 PARTITION OF part FOR VALUES FROM (10) TO (20)',
	map {; "INSERT INTO $_ VALUES (1, 'old')", "SELECT fence.attach('$_')" } qw(item other part));
my %name = map { $_ => name($_) } qw(item other part);

my $edit = 'SET allow_system_table_mods = on; UPDATE pg_trigger SET';
my %case = (
	'disabled' => [ 'item', "$edit tgenabled = 'D' WHERE tgrelid = 'item'::regclass AND tgname ~ '^zzz_pgcache_fence_after'", qr/domain item is.*is not ENABLED ALWAYS/ ],
	'made hollow' => [ 'item', "$edit tgqual = (SELECT tgqual FROM pg_trigger WHERE tgname = 'never') WHERE tgrelid = 'item'::regclass AND tgname ~ '_after'",
		qr/domain item is.*has a WHEN condition/ ],
	'renamed' => [ 'item', "$edit tgname = 'mine' WHERE tgrelid = 'item'::regclass AND tgname ~ '_before'", qr/domain item is.*under another name/ ],
	'another function' => [ 'item', "$edit tgfoid = 'nothing'::regproc WHERE tgrelid = 'item'::regclass AND tgname ~ '_truncate'",
		qr/domain item is.*runs another function/ ],
	'of a partition' => [ 'part', "$edit tgenabled = 'R' WHERE tgrelid = 'part_2'::regclass AND tgname ~ '_after'", qr/domain part is.*"part_2" is not ENABLED ALWAYS/ ],
	'a copy of another' => [ 'part', "$edit tgparentid = (SELECT oid FROM pg_trigger WHERE tgrelid = 'item'::regclass AND tgname ~ '_after') "
		  . "WHERE tgrelid = 'part_1'::regclass AND tgname ~ '_after'", qr/domain part is.*is no copy of that of the table above/ ]);

sql('CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$', 'CREATE TABLE never ()',
	'CREATE TRIGGER never AFTER INSERT ON never FOR EACH ROW WHEN (false) EXECUTE FUNCTION nothing()');

foreach my $case (sort keys %case)
{
	my ($domain, $change, $doctor) = @{ $case{$case} };

	subtest $case => sub {
		cached($domain, $name{$domain});
		my $saved = sql("SELECT string_agg(format('UPDATE pg_trigger SET tgenabled = %L, tgqual = %L, tgname = %L, tgfoid = %s, tgparentid = %s WHERE oid = %s', "
			  . "tgenabled, tgqual, tgname, tgfoid::oid, tgparentid, oid), ';') FROM pg_trigger WHERE tgrelid IN ('$domain'::regclass, 'part_1'::regclass, 'part_2'::regclass)");
		sql($change);
		# whoever looks at the table first; the patrol does, but may take its time
		like(error_of("SELECT fence.get('$domain', '1')"), $wrong, 'a new session is told');
		withdrawn($domain, $name{$domain}, $doctor);
		cached('other', $name{other});

		# what is put right is served again, and nothing that was cached before
		sql("UPDATE $domain SET v = 'past the triggers' WHERE id = 1") if $case eq 'of a partition';
		sql("SET allow_system_table_mods = on; $saved");
		sql('SELECT fence.attach(NULL, domain => $$news$$, scope => $$manual$$)', 'SELECT fence.detach_domain($$news$$)');
		ok(poll(sub { heard($name{$domain}) ne 'unarmed' }, 'served again'), 'served again');
		isnt(heard($name{$domain}), 'hit', 'by no value of before');
	};
}

subtest 'a function of ours that is another now' => sub {
	cached('item', $name{item});
	my $definition = sql("SELECT pg_get_functiondef('fence.after_row'::regproc)");
	sql('CREATE OR REPLACE FUNCTION fence.after_row() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$');
	like(error_of("SELECT fence.get('item', '1')"), $wrong, 'a new session is told');
	withdrawn($_, $name{$_}, qr/domain $_ is.*runs another function/) foreach qw(item other part);
	sql($definition);
};

subtest 'a grantee of TRIGGER, while the library is not loaded' => sub {
	sql('SELECT fence.attach(NULL, domain => $$news$$, scope => $$manual$$)');
	cached($_, $name{$_}) foreach qw(item other);
	sql('CREATE ROLE grantee', 'GRANT TRIGGER ON item TO grantee', 'GRANT EXECUTE ON FUNCTION fence.after_row TO grantee');
	$node->append_conf('postgresql.conf', "shared_preload_libraries = ''");
	$node->restart;
	sql('SET ROLE grantee', 'CREATE OR REPLACE TRIGGER zzz_pgcache_fence_after AFTER INSERT OR UPDATE OR DELETE ON item FOR EACH ROW WHEN (false) '
		  . 'EXECUTE FUNCTION fence.after_row()');
	$node->append_conf('postgresql.conf', "shared_preload_libraries = 'pgcache_fence'");
	$node->restart;
	wait_open($node);
	cached('other', $name{other});
	withdrawn('item', $name{item}, qr/domain item is.*has a WHEN condition/);
	like(error_of("UPDATE item SET v = 'never'"), $wrong, 'the triggers that are left let no write pass');
	sql("SELECT fence.detach('item')", "SELECT fence.attach('item')");
	cached('item', $name{item});
	sql("UPDATE item SET v = 'new' WHERE id = 1");
	no_reservations($node);
	is(heard($name{item}), 'miss', 'attached anew, writes are fenced');
	compare_fences($node, 'item');
};

done_testing();
