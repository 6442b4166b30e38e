# A battery (FenceTest::Battery): every kind of write to fenced tables, and the DDL that could change them or the extension's
# objects, tried by every kind of role.

use strict;
use warnings;

use FenceTest::Battery;
use Test::More;

setup();

# ----------------------------------------------------------------------------------------------------------------------
# Writers of fenced tables
# ----------------------------------------------------------------------------------------------------------------------

my @WRITTEN = qw(item part grp mtab guarded);
# Each cell has a group of its own, which is new to the extension's tables
my $row = "INSERT INTO %t (id, ref, owner) VALUES (%k, 1, '%r') ON CONFLICT DO NOTHING";

# PostgreSQL itself has no COPY where policies apply, and no MERGE that passes over the rows that they hide.
sub writes
{
	my ($suffix, $only_allowed) = @_;

	foreach my $write (
		[ insert => 'INSERT', 'INSERT INTO %t (id, ref, owner) VALUES (%k, %k, current_user)' ],
		[ insert => 'COPY', "\\copy %t (id, ref, owner) from program 'echo \"%k,%k,%r\"' csv" ],
		[ update => 'UPDATE', 'UPDATE %t SET ref = %k', committed => $row ],
		[ update => 'UPDATE of keys', 'UPDATE %t SET id = %k + 100000', committed => "DELETE FROM %t; $row" ],
		[ delete => 'DELETE', 'DELETE FROM %t', committed => $row ],
		[ truncate => 'TRUNCATE', 'TRUNCATE %t', committed => $row ],
		[ insert => 'MERGE insert', 'MERGE INTO %t USING (VALUES (1)) v (i) ON false WHEN NOT MATCHED THEN '
			  . 'INSERT (id, ref, owner) VALUES (%k, %k, current_user)' ],
		[ update => 'MERGE update', 'MERGE INTO %t USING (VALUES (1)) v (i) ON true WHEN MATCHED THEN UPDATE SET ref = %k', committed => $row ],
		[ delete => 'MERGE delete', 'MERGE INTO %t USING (VALUES (1)) v (i) ON true WHEN MATCHED THEN DELETE', committed => $row ])
	{
		my ($privilege, $title, $statement, %option) = @$write;

		try("$title$suffix", $statement, [ grep { $_ ne 'guarded' || $title !~ /COPY|MERGE/ } @WRITTEN ],
			sub { has($_[0], $privilege, $_[1]) ? $ALLOWED : $only_allowed ? undef : $DENIED }, %option);
	}
	return;
}

writes('');
# A writer may know nothing of the extension
do_between('REVOKE USAGE ON SCHEMA fence FROM PUBLIC');
writes(' without USAGE on schema fence', 1);
do_between('GRANT USAGE ON SCHEMA fence TO PUBLIC');

# ----------------------------------------------------------------------------------------------------------------------
# DDL
# ----------------------------------------------------------------------------------------------------------------------

my @OTHERS = grep { !is_one($_, qw(superuser deputy)) } @ROLES;
my @OWNERS = qw(table_owner owner_executor);
my $trigger = 'zzz_pgcache_fence_after';
my $on_item = 'AFTER INSERT OR UPDATE OR DELETE ON app.item FOR EACH ROW';

# Everybody is denied it, but roles => what they get.
sub ddl
{
	my ($statement, %except) = @_;
	my %option = map { $_ => delete $except{$_} } qw(undo keep);

	try($statement, $statement, ['-'], sub { $except{ $_[0] } // $DENIED }, roles => \@OTHERS, %option);
	return;
}

sub all { my ($state, @roles) = @_; return map { $_ => $state } @roles; }

# Triggers of the fenced table are as they are: neither more of them nor others in their place, by whoever may make triggers
my @MAKERS = (@OWNERS, 'only_trigger');
ddl("CREATE TRIGGER t%k $on_item EXECUTE FUNCTION fence.after_row()", all("$DENIED|0A000", @MAKERS));
ddl("CREATE OR REPLACE TRIGGER $trigger $on_item WHEN (false) EXECUTE FUNCTION fence.after_row()", all("$DENIED|0A000", @MAKERS));
ddl("CREATE TRIGGER t%k BEFORE INSERT ON app.item FOR EACH ROW EXECUTE FUNCTION fence.before_row()", all("$DENIED|0A000", @MAKERS));
ddl("CREATE OR REPLACE TRIGGER $trigger $on_item EXECUTE FUNCTION app.noop()", all("$DENIED|0A000", @MAKERS));
ddl('CREATE TRIGGER t%k BEFORE TRUNCATE ON app.item EXECUTE FUNCTION fence.before_truncate()', all("$DENIED|0A000", @MAKERS));
ddl('CREATE TRIGGER t%k AFTER INSERT ON app.item EXECUTE FUNCTION fence._domain_restored()');
ddl("CREATE TRIGGER t%k $on_item EXECUTE FUNCTION app.noop()", all($ALLOWED, @MAKERS), undo => 1);
ddl("ALTER TABLE app.item $_", all('0A000', @OWNERS))
  foreach "DISABLE TRIGGER $trigger", "ENABLE REPLICA TRIGGER $trigger", "ENABLE TRIGGER $trigger";
ddl("ALTER TABLE app.item $_ TRIGGER USER", all($ALLOWED, @OWNERS)) foreach 'DISABLE', 'ENABLE';
ddl('ALTER TABLE app.item SET UNLOGGED', all($ALLOWED, @OWNERS), undo => 1);
ddl("ALTER TRIGGER $trigger ON app.item RENAME TO t%k", all('0A000', @OWNERS));
ddl("DROP TRIGGER $trigger ON app.item", all($ALLOWED, @OWNERS), undo => 1);
ddl('DROP TABLE app.item', all($ALLOWED, @OWNERS, 'schema_owner'), undo => 1);
ddl('ALTER TABLE app.item ADD COLUMN c%k int', all($ALLOWED, @OWNERS), undo => 1);
# Partitions come and go by their owner, who may not call the functions of the triggers that they get
ddl('CREATE TABLE app.p%k PARTITION OF app.part FOR VALUES FROM (2000000) TO (3000000)', all($ALLOWED, @OWNERS), undo => 1);
ddl('ALTER TABLE app.part ATTACH PARTITION app.loose FOR VALUES FROM (2000000) TO (3000000)', all($ALLOWED, @OWNERS), undo => 1);
ddl('ALTER TABLE app.part DETACH PARTITION app.part_1', all($ALLOWED, @OWNERS), undo => 1);

# Objects of the extension
my $function = 'fence.fence_key(text, text[])';
ddl($_) foreach (
	"ALTER FUNCTION $function VOLATILE", "ALTER FUNCTION $function RENAME TO f", "ALTER FUNCTION $function OWNER TO %r",
	"ALTER FUNCTION $function SET search_path = app", "ALTER FUNCTION $function SECURITY DEFINER", "DROP FUNCTION $function",
	"CREATE OR REPLACE FUNCTION fence.fence_key(domain text, VARIADIC key text[]) RETURNS text LANGUAGE sql AS 'SELECT 1::text'",
	'CREATE FUNCTION fence.f%k() RETURNS int LANGUAGE sql AS \'SELECT 1\'', 'CREATE TABLE fence.t%k ()', 'CREATE TYPE fence.t%k AS (i int)',
	'CREATE VIEW fence.v%k AS SELECT 1', 'CREATE OPERATOR fence.* (LEFTARG = numeric, RIGHTARG = int, FUNCTION = pg_catalog.numeric_mul)',
	'DROP TABLE fence.tombstone', 'DROP VIEW fence.state', 'DROP SEQUENCE fence.domain_id_seq', 'DROP TRIGGER restored ON fence.domain',
	'ALTER TABLE fence.domain DISABLE TRIGGER restored', 'ALTER TABLE fence.domain ADD COLUMN c%k int', 'ALTER TABLE fence.domain OWNER TO %r',
	'ALTER TABLE fence.domain ENABLE ROW LEVEL SECURITY', 'CREATE POLICY p%k ON fence.domain USING (false)', 'CREATE INDEX ON fence.tombstone (version)',
	'CREATE RULE r%k AS ON INSERT TO fence.tombstone DO INSTEAD NOTHING', 'CREATE TRIGGER t%k AFTER INSERT ON fence.domain EXECUTE FUNCTION app.noop()',
	'CREATE STATISTICS app.s%k ON domain_id, key FROM fence.tombstone', 'CREATE TABLE app.c%k () INHERITS (fence.domain)',
	'CREATE TABLE app.c%k (d bigint REFERENCES fence.floor)', 'CREATE PUBLICATION p%k FOR TABLE fence.reservation',
	'ALTER VIEW fence.state RENAME TO s', 'ALTER SEQUENCE fence.domain_id_seq RESTART', 'CREATE OR REPLACE VIEW fence.domains AS SELECT 1 AS domain',
	'COMMENT ON SCHEMA fence IS \'x\'', 'COMMENT ON EXTENSION pgcache_fence IS \'x\'', "COMMENT ON FUNCTION $function IS 'x'",
	'COMMENT ON TABLE fence.domain IS \'x\'', 'COMMENT ON COLUMN fence.state.state IS \'x\'',
	'ALTER SCHEMA fence RENAME TO f', 'ALTER SCHEMA fence OWNER TO %r', 'DROP SCHEMA fence CASCADE',
	'ALTER EXTENSION pgcache_fence UPDATE', 'ALTER EXTENSION pgcache_fence ADD TABLE app.item', "ALTER EXTENSION pgcache_fence DROP FUNCTION $function",
	'DROP EXTENSION pgcache_fence CASCADE', "ALTER DEFAULT PRIVILEGES FOR ROLE \"$bootstrap\" IN SCHEMA fence GRANT EXECUTE ON FUNCTIONS TO PUBLIC",
	'ALTER DATABASE postgres SET pgcache_fence.on_redis_failure = bypass', 'SET pgcache_fence.on_redis_failure = bypass',
);
# Who has a privilege without being allowed to grant it is only warned: that it stays is told by the fingerprint below
ddl($_, all("$DENIED|$ALLOWED", @OTHERS), keep => 1) foreach (
	'GRANT EXECUTE ON FUNCTION fence.put(text, text, bigint, text, interval, text[]) TO PUBLIC', 'GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA fence TO %r',
	'GRANT SELECT ON fence.tombstone TO PUBLIC', 'GRANT CREATE ON SCHEMA fence TO %r', 'REVOKE USAGE ON SCHEMA fence FROM PUBLIC',
	'REVOKE SELECT ON fence.domain FROM PUBLIC', 'REVOKE EXECUTE ON FUNCTION fence.get(text, text[]) FROM PUBLIC',
);
# Only a provider of labels could tell who may
ddl("SECURITY LABEL ON FUNCTION $function IS 'x'", all('22023', @OTHERS));

run_battery(1000, 300);
