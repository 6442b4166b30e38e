# FenceTest/Battery.pm
#    Tests privileges. A cell is a statement that a role tries on an object. The test expects that PostgreSQL allows it or raises
#    a certain SQLSTATE. A refused statement must not have reached Redis. Each cell has a key of its own, which would show in
#    Redis' log of commands.
#
# Owns: the server $redis and the node $node, with the roles and the objects below. A test makes cells with try and do_between,
# and then calls run_battery.
package FenceTest::Battery;

use strict;
use warnings;

use Exporter 'import';
use Test::More;
use FenceTest;

our @EXPORT = qw(
  $node $bootstrap $ALLOWED $DENIED
  @PRIVILEGES @ROLES %owner_of @TABLES @ROW_DOMAINS
  is_one owns has has_policies may_use_vault reads
  setup try do_between yes_or run_battery
);

our $ALLOWED = '00000';
our $DENIED = '42501';
our ($node, $bootstrap);

my $NAMESPACE = 'battery';
my $redis;

# ----------------------------------------------------------------------------------------------------------------------
# Roles and objects
# ----------------------------------------------------------------------------------------------------------------------

# only_...: has only that privilege on each table. executor: has EXECUTE on the function of the cell, and otherwise only on the
# functions of PUBLIC. owner_executor: the same, and a member of table_owner. deputy: a member of the extension's owner, not a
# superuser.
our @PRIVILEGES = qw(select insert update delete truncate references trigger);
our @ROLES = (qw(superuser deputy db_owner schema_owner table_owner other_owner executor owner_executor filler beginner),
	(map { "only_$_" } @PRIVILEGES), qw(column_select bypass_rls monitor read_all write_all nobody));

# domain => owner of its table, or undef if there is no table. `other` belongs to another role; guarded and forced have policies;
# hidden is in a schema that only its owner may use.
our %owner_of = (map({ $_ => 'table_owner' } qw(item part grp mtab guarded forced hidden free bare free_part external)),
	other => 'other_owner', other_free => 'other_owner', solo => undef, none => undef);
our @TABLES = qw(item part grp mtab guarded forced hidden other);
our @ROW_DOMAINS = qw(item part guarded forced hidden other);

sub is_one { my ($role, @roles) = @_; return scalar grep { $_ eq $role } @roles; }

sub table_of { my ($object) = @_; return ($object eq 'hidden' ? 'vault' : 'app') . ".$object"; }

sub owns
{
	my ($role, $object) = @_;
	my $owner = $owner_of{$object} or return 0;

	return is_one($role, 'superuser', $owner) || ($role eq 'owner_executor' && $owner eq 'table_owner');
}

sub has
{
	my ($role, $privilege, $object) = @_;

	return owns($role, $object) || $role eq "only_$privilege" || ($privilege eq 'select' && is_one($role, qw(read_all bypass_rls)))
	  || ($role eq 'write_all' && is_one($privilege, qw(insert update delete)));
}

sub has_policies
{
	my ($role, $object) = @_;

	return 0 if is_one($role, qw(superuser bypass_rls));
	return $object eq 'forced' || ($object eq 'guarded' && !owns($role, $object));
}

# pg_read_all_data and pg_write_all_data have USAGE on every schema.
sub may_use_vault { my ($role) = @_; return is_one($role, qw(superuser table_owner owner_executor read_all write_all)); }

# Whether a role may read cached rows. A cached row has all columns, and no policy applies to it. If the domain has no table, the
# privilege to fill the cache decides.
sub reads
{
	my ($role, $object) = @_;

	return is_one($role, qw(superuser deputy filler beginner)) if $object eq 'solo';
	return 0 if $object eq 'hidden' && !may_use_vault($role);
	return has($role, 'select', $object) && !has_policies($role, $object);
}

my $setup = <<'SQL';
CREATE ROLE superuser SUPERUSER;
CREATE ROLE table_owner;
CREATE ROLE bypass_rls BYPASSRLS;
CREATE ROLE deputy IN ROLE "%bootstrap";
CREATE ROLE monitor IN ROLE pg_monitor;
CREATE ROLE read_all IN ROLE pg_read_all_data;
CREATE ROLE write_all IN ROLE pg_write_all_data;
CREATE ROLE owner_executor IN ROLE table_owner;
%plain
ALTER DATABASE postgres OWNER TO db_owner;
GRANT EXECUTE ON FUNCTION fence.put(text, text, bigint, text, interval, text[]) TO filler;
GRANT EXECUTE ON FUNCTION fence.begin_write(text, bigint, "any") TO beginner;
CREATE SCHEMA app AUTHORIZATION schema_owner;
GRANT USAGE ON SCHEMA app TO PUBLIC;
GRANT CREATE ON SCHEMA app TO table_owner, other_owner;
CREATE SCHEMA vault;
GRANT USAGE, CREATE ON SCHEMA vault TO table_owner;
CREATE FUNCTION app.noop() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TABLE app.item (id int PRIMARY KEY, ref int, owner name, version bigint NOT NULL DEFAULT 0);
CREATE TABLE app.part (id int PRIMARY KEY, ref int, owner name, version bigint NOT NULL DEFAULT 0) PARTITION BY RANGE (id);
CREATE TABLE app.part_1 PARTITION OF app.part FOR VALUES FROM (0) TO (1000);
CREATE TABLE app.part_2 PARTITION OF app.part FOR VALUES FROM (1000) TO (1000000);
CREATE TABLE app.loose (LIKE app.part INCLUDING ALL);
CREATE TABLE app.grp (id int PRIMARY KEY, ref int, owner name);
CREATE INDEX ON app.grp (ref);
CREATE TABLE app.mtab (id int PRIMARY KEY, ref int, owner name);
CREATE TABLE app.bare (LIKE app.mtab INCLUDING ALL);
CREATE TABLE app.guarded (LIKE app.item INCLUDING ALL);
CREATE TABLE app.forced (LIKE app.item INCLUDING ALL);
CREATE TABLE vault.hidden (LIKE app.item INCLUDING ALL);
CREATE TABLE app.other (LIKE app.item INCLUDING ALL);
CREATE TABLE app.free (LIKE app.item INCLUDING ALL);
CREATE TABLE app.other_free (LIKE app.item INCLUDING ALL);
CREATE TABLE app.free_part (id int PRIMARY KEY, version bigint NOT NULL DEFAULT 0) PARTITION BY RANGE (id);
CREATE TABLE app.free_part_1 PARTITION OF app.free_part DEFAULT;
CREATE FOREIGN DATA WRAPPER elsewhere;
CREATE SERVER elsewhere FOREIGN DATA WRAPPER elsewhere;
CREATE FOREIGN TABLE app.external (id int, version bigint) SERVER elsewhere;
ALTER TABLE app.guarded ENABLE ROW LEVEL SECURITY;
ALTER TABLE app.forced ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY own ON app.guarded USING (owner = current_user);
CREATE POLICY own ON app.forced USING (owner = current_user);
SELECT fence.attach('app.' || t, domain => t) FROM unnest('{item,part,guarded,forced,other}'::text[]) t;
SELECT fence.attach('vault.hidden', domain => 'hidden');
SELECT fence.attach('app.grp', domain => 'grp', key => '{ref}', scope => 'group');
SELECT fence.attach('app.mtab', domain => 'mtab', version => NULL, scope => 'manual');
SELECT fence.attach(NULL, domain => 'solo', scope => 'manual');
CREATE FUNCTION app.compute(int) RETURNS int STABLE LANGUAGE sql AS 'SELECT $1';
CREATE FUNCTION app.own(int) RETURNS int STABLE LANGUAGE sql AS 'SELECT $1';
ALTER FUNCTION app.own OWNER TO executor;
CREATE FUNCTION vault.compute(int) RETURNS int STABLE LANGUAGE sql AS 'SELECT $1';
CREATE FUNCTION app.secret(int) RETURNS int STABLE LANGUAGE sql AS 'SELECT $1';
ALTER FUNCTION app.secret OWNER TO superuser;
REVOKE EXECUTE ON FUNCTION app.secret FROM PUBLIC;
SELECT fence.define_derived('of_item', '{item,part}', 'app.compute(int)');
SELECT fence.define_derived('of_guarded', '{item,guarded}', 'app.compute(int)');
SELECT fence.define_derived('of_hidden', '{item,hidden}', 'app.compute(int)');
SELECT fence.define_derived('by_hidden', '{item}', 'vault.compute(int)');
SELECT fence.define_derived('by_secret', '{item}', 'app.secret(int)');
SQL

sub setup
{
	$redis = FenceTest::Redis->start(config => [ 'slowlog-log-slower-than 0', 'slowlog-max-len 1000000' ]);
	$node = new_postgres('privileges', $redis, namespace => $NAMESPACE,
		'pgcache_fence.unreserved_writes' => 'reserve_domain');
	$bootstrap = $node->safe_psql('postgres', 'SELECT current_user');
	my $plain = join "\n", map { "CREATE ROLE $_;" } grep { $setup !~ /CREATE ROLE $_\b/ } @ROLES;
	my $tables = join ', ', map { table_of($_) } @TABLES;
	$setup =~ s/%bootstrap/$bootstrap/;
	$setup =~ s/%plain/$plain/;
	$setup .= "GRANT \U$_\E ON $tables TO only_$_;\n" foreach @PRIVILEGES;
	$setup .= "GRANT SELECT ON $tables TO bypass_rls;\n";
	$setup .= 'GRANT SELECT (id, ref) ON ' . table_of($_) . " TO column_select;\n" foreach @TABLES;
	$setup .= 'ALTER TABLE ' . table_of($_) . " OWNER TO $owner_of{$_};\n" foreach grep { $owner_of{$_} } sort keys %owner_of;
	$setup .= "ALTER TABLE app.$_ OWNER TO table_owner;\n" foreach qw(part_1 part_2 loose free_part_1);
	$node->safe_psql('postgres', $setup);
	return;
}

# ----------------------------------------------------------------------------------------------------------------------
# Cells
# ----------------------------------------------------------------------------------------------------------------------

# In statements %o is the object, %t its table, %k the key of the cell, %r the role, %n the namespace. A rule returns the expected
# result for a role and an object. Options: before: a statement that a superuser runs first in the same transaction, if the cell is
# expected to be allowed; committed: in a transaction of its own; undo: the cell is rolled back.
my @cells;
my $cell_number = 1000;

# Adds a cell for each role and each object.
sub try
{
	my ($title, $statement, $objects, $rule, %option) = @_;

	foreach my $object (@$objects)
	{
		foreach my $role (@{ $option{roles} // \@ROLES })
		{
			my $expected = $rule->($role, $object) // next;
			my %cell = (title => $object eq '-' ? $title : "$title($object)", role => $role, expected => $expected, key => ++$cell_number, %option);

			foreach my $part ([ statement => $statement ], [ before => $option{before} ], [ committed => $option{committed} ])
			{
				my $sql = $part->[1] // next;
				my %value = (o => $object, t => table_of($object), k => $cell{key}, r => $role, n => $NAMESPACE);
				$sql =~ s/%([otkrn])/$value{$1}/g;
				$cell{ $part->[0] } = $sql;
			}
			push @cells, \%cell;
		}
	}
	return;
}

# Adds a statement that the superuser runs after the cells before it and before the cells after it.
sub do_between { my ($statement) = @_; push @cells, { do => $statement }; return; }

sub yes_or { my ($yes, $no) = @_; return $yes ? $ALLOWED : $no // $DENIED; }

# ----------------------------------------------------------------------------------------------------------------------
# Running
# ----------------------------------------------------------------------------------------------------------------------

# The functions that keeper and patrol call although no session writes
my @WORKERS_SAY = qw(fence_counts fence_effects fence_hello fence_pending fence_queues fence_renew);

sub is_allowed { my ($cell) = @_; return $cell->{expected} eq $ALLOWED; }

# The part of the script for a cell. It prints a line "<key> <SQLSTATE> <message>" after the statement and after its transaction.
sub script_of
{
	my ($cell) = @_;

	return "$cell->{do};\n" if $cell->{do};
	my $key = $cell->{key};
	my $tell = "\\if :ERROR\n\\echo $key :SQLSTATE :LAST_ERROR_MESSAGE\n\\else\n\\echo $key $ALLOWED\n\\endif\n";
	my $statement = $cell->{statement} . ($cell->{statement} =~ /^\\/ ? '' : ';');
	my $script = "BEGIN;\nSET LOCAL SESSION AUTHORIZATION \"$cell->{role}\";\n$statement\n$tell";

	# a cell that should have been refused, but was not, must leave nothing for the cells after it
	return $script . ($cell->{keep} ? 'COMMIT' : 'ROLLBACK') . ";\n" unless is_allowed($cell);
	if ($cell->{before})
	{
		my $before = $cell->{before} . ($cell->{before} =~ /gset$/ ? '' : ';');
		$script =~ s/^BEGIN;\n/BEGIN;\n$before\n/;
	}
	$script = "$cell->{committed};\n$script" if $cell->{committed};
	# an error at the end of \copy shows only in the state of the transaction
	return $script . "SELECT;\n$tell" . ($cell->{undo} ? 'ROLLBACK' : 'COMMIT') . ";\n$tell";
}

sub run_cells
{
	my (@run) = @_;
	my $script = "\\o /dev/null\n\\set permit t\n\\set uuid 00000000-0000-0000-0000-000000000000\n"
	  . join('', map { script_of($_) } @run);
	my ($stdout, $stderr);

	# errors are expected, and the printed lines contain them
	$node->psql('postgres', $script, stdout => \$stdout, stderr => \$stderr, on_error_stop => 0, on_error_die => 0);
	my %told;
	push @{ $told{$1} }, [ $2, $3 ] while $stdout =~ /^(\d+) (\w{5}) ?(.*)$/mg;
	foreach my $cell (grep { $_->{key} } @run)
	{
		my @lines = @{ $told{ $cell->{key} } // [ [ 'none', 'psql told nothing' ] ] };
		my ($first) = grep { $_->[0] ne $ALLOWED } @lines;
		($cell->{state}, $cell->{message}) = @{ $first // $lines[0] };
		$cell->{message} =~ s/$cell->{key}/%k/g;
	}
	return;
}

# The cells with another result than expected, by statement: the roles, what they got and what was expected.
sub differences
{
	my (@run) = @_;
	my %matrix;
	my $text = '';

	push @{ $matrix{ $_->{title} }{"expected $_->{expected}, got $_->{state} $_->{message}"} }, $_->{role}
	  foreach grep { $_->{state} !~ /^(?:$_->{expected})$/ } @run;
	foreach my $title (sort keys %matrix)
	{
		$text .= "$title\n";
		$text .= "    $_\n        by @{ $matrix{$title}{$_} }\n" foreach sort keys %{ $matrix{$title} };
	}
	return $text;
}

# In the same form the cells whose keys are in Redis' log, with one of the commands.
sub refused_cells
{
	my ($log, @run) = @_;
	my %cell_of = map { $_->{key} => $_ } @run;
	my %matrix;

	foreach my $line (@$log)
	{
		my ($cell) = grep { defined } map { $cell_of{$_} } $line =~ /[{:-](\d+)\b/g or next;

		$matrix{ $cell->{title} }{ $cell->{role} } = $line;
	}
	my $text = '';
	foreach my $title (sort keys %matrix)
	{
		my @by = sort keys %{ $matrix{$title} };

		$text .= "$title\n    $matrix{$title}{$by[0]}\n        by @by\n";
	}
	return $text;
}

# Lines that describe the extension's objects and the fenced tables. No cell may change any of them.
sub fingerprint
{
	return split /\n/, $node->safe_psql('postgres', <<'SQL');
CREATE FUNCTION pg_temp.sorted(acl aclitem[]) RETURNS text[] LANGUAGE sql AS 'SELECT array_agg(a::text ORDER BY a::text) FROM unnest(acl) a';
SELECT 'function', oid::regprocedure, pg_temp.sorted(coalesce(proacl, acldefault('f', proowner))), proowner, md5(prosrc), proconfig, prosecdef,
       provolatile FROM pg_proc WHERE pronamespace = 'fence'::regnamespace;
SELECT 'relation', oid::regclass, pg_temp.sorted(coalesce(relacl, acldefault(CASE relkind WHEN 'S' THEN 's'::"char" ELSE 'r' END, relowner))),
       relowner, relrowsecurity, relnatts, relhasrules FROM pg_class WHERE relnamespace IN ('fence'::regnamespace, 'app'::regnamespace, 'vault'::regnamespace);
SELECT 'schema', nspname, nspowner, pg_temp.sorted(nspacl) FROM pg_namespace WHERE nspname IN ('fence', 'app', 'vault');
SELECT 'trigger', tgrelid::regclass, tgname, tgfoid::regprocedure, tgenabled, tgtype, tgqual IS NULL FROM pg_trigger;
SELECT 'member', pg_describe_object(classid, objid, objsubid) FROM pg_depend WHERE refclassid = 'pg_extension'::regclass AND deptype = 'e';
SELECT 'comment', classoid, objoid, description FROM pg_description WHERE objoid >= 16384;
SELECT 'default', d FROM pg_default_acl d;
SELECT 'database', datname, datacl, setconfig FROM pg_database d LEFT JOIN pg_db_role_setting s ON setdatabase = d.oid;
SELECT 'domain', * FROM fence.domains;
SELECT 'derived', * FROM fence.derived;
SQL
}

# The lines that are in only one of two lists.
sub changes
{
	my ($old, $new) = @_;
	my %is_old = map { $_ => 1 } @$old;
	my %is_new = map { $_ => 1 } @$new;

	return join "\n", map({ "- $_" } grep { !$is_new{$_} } @$old), map({ "+ $_" } grep { !$is_old{$_} } @$new);
}

# Runs all cells: first those that must be refused, then those that must be allowed. There must be more cells of each kind than the
# given numbers.
sub run_battery
{
	my ($some_refused, $some_allowed) = @_;

	poll(sub { $node->safe_psql('postgres', "SELECT bool_and((fence.get(d, '1')).status = 'miss') FROM unnest('{" . join(',', @TABLES, 'solo') . "}'::text[]) d") eq 't' },
		'the announcement of all domains');
	my @before = fingerprint();

	# The refused cells come first. Any command that Redis gets meanwhile comes from a worker, or shows a defect.
	$redis->call('SLOWLOG', 'RESET');
	run_cells(grep { $_->{do} || !is_allowed($_) } @cells);
	my @log = map { join ' ', @{ $_->[3] } } @{ $redis->call('SLOWLOG', 'GET', -1) };
	my @refused = grep { $_->{key} && !is_allowed($_) } @cells;
	cmp_ok(scalar @refused, '>', $some_refused, 'cells that are to be refused: ' . scalar @refused);
	is(differences(@refused), '', 'what is refused');
	is(refused_cells(\@log, @refused), '', '... and Redis was told nothing of it');
	# A call without a key, such as the end of a domain, shows by the name of its function
	my %said = map { /^FCALL(?:_RO)? (\w+)/i ? ($1 => $_) : () } @log;
	delete @said{@WORKERS_SAY};
	is(join("\n", values %said), '', '... nor anything else but what workers say');

	run_cells(grep { $_->{do} || is_allowed($_) } @cells);
	my @allowed = grep { $_->{key} && is_allowed($_) } @cells;
	cmp_ok(scalar @allowed, '>', $some_allowed, 'cells that are to be allowed: ' . scalar @allowed);
	is(differences(@allowed), '', 'what is allowed');
	is(changes(\@before, [ fingerprint() ]), '', 'the catalogue is as it was');
	no_reservations($node);
	compare_fences($node, $_) foreach qw(item part grp guarded);
	$node->stop;
	done_testing();
	return;
}

1;
