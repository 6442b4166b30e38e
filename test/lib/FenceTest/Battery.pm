# FenceTest/Battery.pm
#    Cells: statements tried by roles on objects. Each is expected to be allowed or to raise a SQLSTATE; what is refused must not
#    have reached Redis. Each cell has a key of its own, by which Redis' log of commands would name it.
#
# Owns: the server $redis and the node $node, with the roles and the objects below. A test makes cells by try and do_between, and
# ends with run_battery.
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

# only_...: that privilege, and no other, on each table. executor has EXECUTE on the function that is tried, and on no other that
# PUBLIC has not; so has owner_executor, a member of table_owner. deputy: a member of the extension's owner, no superuser.
our @PRIVILEGES = qw(select insert update delete truncate references trigger);
our @ROLES = (qw(superuser deputy db_owner schema_owner table_owner other_owner executor owner_executor filler beginner),
	(map { "only_$_" } @PRIVILEGES), qw(column_select bypass_rls monitor read_all write_all nobody));

# What is fenced, and who owns it: undef if there is no table. other is of another role; guarded and forced have policies; hidden is
# in a schema that only its owner may use.
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

# PostgreSQL gives its role that reads all data, and the one that writes, USAGE on every schema.
sub may_use_vault { my ($role) = @_; return is_one($role, qw(superuser table_owner owner_executor read_all write_all)); }

# A cached row has all columns, and knows no policies. Without a table the right to fill the cache decides.
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
# What is tried
# ----------------------------------------------------------------------------------------------------------------------

# In statements: %o the object, %t its table, %k the key of the cell, %r the role, %n the namespace. A rule tells what is expected
# of a role with an object. Options: before: what a superuser does first, in the same transaction, if the cell is expected to be
# allowed (committed: in one of its own); undo: rolled back.
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

# A statement of the superuser, between the cells before it and those after it.
sub do_between { my ($statement) = @_; push @cells, { do => $statement }; return; }

sub yes_or { my ($yes, $no) = @_; return $yes ? $ALLOWED : $no // $DENIED; }

# ----------------------------------------------------------------------------------------------------------------------
# Running
# ----------------------------------------------------------------------------------------------------------------------

# What keeper and patrol call where nobody writes
my @WORKERS_SAY = qw(fence_counts fence_effects fence_hello fence_pending fence_queues fence_renew);

sub is_allowed { my ($cell) = @_; return $cell->{expected} eq $ALLOWED; }

# The part of the script that tries the cell: a line "<key> <SQLSTATE> <message>" after the statement and after its transaction.
sub script_of
{
	my ($cell) = @_;

	return "$cell->{do};\n" if $cell->{do};
	my $key = $cell->{key};
	my $tell = "\\if :ERROR\n\\echo $key :SQLSTATE :LAST_ERROR_MESSAGE\n\\else\n\\echo $key $ALLOWED\n\\endif\n";
	my $statement = $cell->{statement} . ($cell->{statement} =~ /^\\/ ? '' : ';');
	my $script = "BEGIN;\nSET LOCAL SESSION AUTHORIZATION \"$cell->{role}\";\n$statement\n$tell";

	# of what should have been refused nothing may stay for the cells that follow
	return $script . ($cell->{keep} ? 'COMMIT' : 'ROLLBACK') . ";\n" unless is_allowed($cell);
	if ($cell->{before})
	{
		my $before = $cell->{before} . ($cell->{before} =~ /gset$/ ? '' : ';');
		$script =~ s/^BEGIN;\n/BEGIN;\n$before\n/;
	}
	$script = "$cell->{committed};\n$script" if $cell->{committed};
	# psql tells of an error at the end of \copy by nothing but the state of the transaction
	return $script . "SELECT;\n$tell" . ($cell->{undo} ? 'ROLLBACK' : 'COMMIT') . ";\n$tell";
}

sub run_cells
{
	my (@run) = @_;
	my $script = "\\o /dev/null\n\\set permit t\n\\set uuid 00000000-0000-0000-0000-000000000000\n"
	  . join('', map { script_of($_) } @run);
	my ($stdout, $stderr);

	# errors are expected; they are told again by the lines
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

# The cells that differ, statement by statement: which roles got what instead of what.
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

# The same of cells that Redis' log names, with one of the commands.
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

# Everything about the extension's objects and the fenced tables that no cell may have changed, a line each.
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

# Lines that only one of two lists has.
sub changes
{
	my ($old, $new) = @_;
	my %is_old = map { $_ => 1 } @$old;
	my %is_new = map { $_ => 1 } @$new;

	return join "\n", map({ "- $_" } grep { !$is_new{$_} } @$old), map({ "+ $_" } grep { !$is_old{$_} } @$new);
}

# Runs all cells: those that are to be refused, which must be more than so many, then those that are to be allowed.
sub run_battery
{
	my ($some_refused, $some_allowed) = @_;

	poll(sub { $node->safe_psql('postgres', "SELECT bool_and((fence.get(d, '1')).status = 'miss') FROM unnest('{" . join(',', @TABLES, 'solo') . "}'::text[]) d") eq 't' },
		'the announcement of all domains');
	my @before = fingerprint();

	# What is refused comes first: whatever Redis is told meanwhile is the workers' or a weakness.
	$redis->call('SLOWLOG', 'RESET');
	run_cells(grep { $_->{do} || !is_allowed($_) } @cells);
	my @log = map { join ' ', @{ $_->[3] } } @{ $redis->call('SLOWLOG', 'GET', -1) };
	my @refused = grep { $_->{key} && !is_allowed($_) } @cells;
	cmp_ok(scalar @refused, '>', $some_refused, 'cells that are to be refused: ' . scalar @refused);
	is(differences(@refused), '', 'what is refused');
	is(refused_cells(\@log, @refused), '', '... and Redis was told nothing of it');
	# What names no key, as the end of a domain does, shows by the function
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
