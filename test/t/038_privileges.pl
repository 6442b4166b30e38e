# 038_privileges.pl
#    A battery: every function and relation of schema fence, every kind of write and what else could change the fences, tried by
#    every kind of role on every kind of object, and compared with the tables below.
#
# A cell is one statement by one role on one object. It is expected to be allowed or to raise a SQLSTATE; what is refused must not
# have reached Redis: each cell has a key of its own, by which Redis' log of commands would name it. What is in the catalogue and
# not in a table here fails the test. sql/privileges.sql has the examples that explain.

use strict;
use warnings;

use FenceTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $NAMESPACE = 'battery';
my $ALLOWED = '00000';
my $DENIED = '42501';

my $redis = FenceTest::Redis->start(config => [ 'slowlog-log-slower-than 0', 'slowlog-max-len 1000000' ]);
my $node = new_postgres('privileges', $redis, namespace => $NAMESPACE,
	'pgcache_fence.unreserved_writes' => 'reserve_domain');
my $bootstrap = $node->safe_psql('postgres', 'SELECT current_user');

# ----------------------------------------------------------------------------------------------------------------------
# Roles and objects
# ----------------------------------------------------------------------------------------------------------------------

# only_...: that privilege, and no other, on each table. executor has EXECUTE on the function that is tried, and on no other that
# PUBLIC has not; so has owner_executor, a member of table_owner. deputy: a member of the extension's owner, no superuser.
my @PRIVILEGES = qw(select insert update delete truncate references trigger);
my @ROLES = (qw(superuser deputy db_owner schema_owner table_owner other_owner executor owner_executor filler beginner),
	(map { "only_$_" } @PRIVILEGES), qw(column_select bypass_rls monitor read_all write_all nobody));

# What is fenced, and who owns it: undef if there is no table. other is of another role; guarded and forced have policies; hidden is
# in a schema that only its owner may use.
my %owner_of = (map({ $_ => 'table_owner' } qw(item part grp mtab guarded forced hidden free bare free_part external)),
	other => 'other_owner', other_free => 'other_owner', solo => undef, none => undef);
my @TABLES = qw(item part grp mtab guarded forced hidden other);
my @ROW_DOMAINS = qw(item part guarded forced hidden other);

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

sub executes
{
	my ($role, $function) = @_;

	return is_one($role, qw(superuser deputy executor owner_executor))
	  || ($role eq 'filler' && $function eq 'fence.put(text,text,bigint,text,interval,text[])')
	  || ($role eq 'beginner' && $function eq 'fence.begin_write(text,bigint,"any")') || ($role eq 'monitor' && is_one($function, qw(doctor _metrics)));
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

sub yes_or { my ($yes, $no) = @_; return $yes ? $ALLOWED : $no // $DENIED; }

# Rules, given the function's name
my %rule = (
	everybody => sub { sub { $_[1] eq 'none' ? '42704' : $ALLOWED } },
	# EXECUTE is PUBLIC's: privileges on what is read decide
	readers => sub { sub { $_[1] eq 'none' ? '42704' : yes_or(reads(@_)) } },
	# EXECUTE decides
	trusted => sub { my ($f) = @_; sub { $_[1] eq 'none' && executes($_[0], $f) ? '42704' : yes_or(executes($_[0], $f)) } },
	# EXECUTE, and owning the table if there is one
	owners => sub { my ($f) = @_; sub { my ($role, $object) = @_;
		return $DENIED unless executes($role, $f);
		return '42704' if $object eq 'none';
		return yes_or(!exists $owner_of{$object} || !defined $owner_of{$object} || owns($role, $object)) } },
	# EXECUTE, and owning the function
	function_owners => sub { my ($f) = @_; sub { yes_or(executes($_[0], $f) && is_one($_[0], qw(superuser executor))) } },
	# EXECUTE, and a key that is not ours
	effects => sub { my ($f) = @_; sub { executes($_[0], $f) ? ($_[1] eq 'inside' ? '22023' : $ALLOWED) : $DENIED } },
	# Nobody calls it. Whether EXECUTE on those of row triggers is PUBLIC's is no matter here, but who makes partitions needs it.
	row_triggers => sub { sub { "39P01|$DENIED" } },
	triggers => sub { my ($f) = @_; sub { executes($_[0], $f) ? '39P01' : $DENIED } },
);

my @EFFECT_KEYS = qw(inside outside);
sub effect { my ($call, %option) = @_; return [ 'effects', $call, \@EFFECT_KEYS, %option ]; }

my $permit = "SELECT permit FROM fence.get('%o', '%k') \\gset";
my $uuid = "SELECT token AS uuid FROM fence.reserve('%o', 0, '1 min', '%k') \\gset";
my @ANY = (@TABLES, qw(solo none));
my @CACHED = (@TABLES, 'solo');
my @MANUAL = qw(mtab solo none);
# Derived values: what they are computed from
my %SOURCES = (of_item => [qw(item part)], of_guarded => [qw(item guarded)], of_hidden => [qw(item hidden)], by_hidden => ['item'],
	by_secret => ['item']);
my @DERIVED = (sort(keys %SOURCES), 'none');

# Those that take the values of a key are there twice: with texts, and with values of any type.
my %BEFORE_KEY = (put => 'text,text,bigint,text,interval', begin_write => 'text,bigint', begin_write_strict => 'text,bigint',
	reserve => 'text,bigint,interval');

sub keyed
{
	my ($name, $rule, $call, @rest) = @_;
	my $types = $BEFORE_KEY{$name} // 'text';
	(my $typed = $call) =~ s/'%k'/%k/;

	return ("fence.$name($types,text[])" => [ $rule, $call, @rest ], "fence.$name($types,\"any\")" => [ $rule, $typed, @rest ]);
}

# Every function: its rule, a call with valid arguments, and the objects. %x: the key of an effect.
my %FUNCTIONS = (
	keyed(fence_key => 'everybody', "fence.fence_key('%o', '%k')", \@ANY),
	keyed(value_key => 'everybody', "fence.value_key('%o', '%k')", \@ANY),
	fence_keys => [ 'everybody', "fence.fence_keys('%o', '{%k}')", \@ANY ],
	key_slot => [ 'everybody', "fence.key_slot('%k')", ['-'] ],
	is_committed => [ 'everybody', "fence.is_committed('1.0')", ['-'] ],
	_state => [ 'everybody', 'fence._state()', ['-'] ],
	wait_open => [ 'everybody', 'fence.wait_open()', ['-'] ],
	_nodes => [ 'everybody', 'fence._nodes()', ['-'] ],

	keyed(get => 'readers', "fence.get('%o', '%k')", \@ANY),
	keyed(peek => 'readers', "fence.peek('%o', '%k')", \@ANY),
	keyed(status => 'readers', "fence.status('%o', '%k')", \@ANY),
	keyed(explain => 'readers', "fence.explain('%o', '%k')", \@ANY),
	get_many => [ 'readers', "fence.get_many(fence.fence_key('%o', '%k'), fence.fence_key('%o', '-%k'))", \@ANY ],
	keyed(read => 'readers', "fence.read('%o', '%k')", [ @ROW_DOMAINS, qw(grp none) ]),
	read_many => [ 'readers', "fence.read_many(fence.fence_keys('%o', '{%k,-%k}'))", [ @ROW_DOMAINS, qw(grp none) ] ],
	keyed(group_version => 'readers', "fence.group_version('%o', '%k')", [qw(grp none)]),
	keyed(read_derived => 'derived', "fence.read_derived('%o', '%k')", \@DERIVED),
	keyed(derived_keys => 'derived', "fence.derived_keys('%o', '%k')", \@DERIVED),

	keyed(put => 'trusted', "1 / (fence.put('%o', :'permit', 1, 'x', NULL, '%k') = 'stored')::int", \@ANY, before => $permit),
	keyed(begin_write => 'trusted', "fence.begin_write('%o', 0, '%k')", \@MANUAL),
	keyed(begin_write_strict => 'trusted', "fence.begin_write_strict('%o', 0, '%k')", \@MANUAL, undo => 1),
	keyed(abort_write => 'trusted', "fence.abort_write('%o', '%k')", \@MANUAL, before => "SELECT fence.begin_write('%o', 0, '%k')"),
	keyed(reserve => 'trusted', "fence.reserve('%o', NULL, '1 ms', '%k')", [ @ROW_DOMAINS, qw(grp none) ]),
	commit => [ 'trusted', "fence.commit(:'uuid')", \@CACHED, before => $uuid ],
	abort => [ 'trusted', "fence.abort(:'uuid')", \@CACHED, before => $uuid ],
	audit => [ 'trusted', "fence.audit('%o')", \@ANY ],
	keyed(repair => 'trusted', "fence.repair('%o', '%k')", \@ANY),
	repair_domain => [ 'trusted', "fence.repair_domain('%o')", \@ANY ],
	doctor => [ 'trusted', 'fence.doctor()', ['-'] ],
	reset_metrics => [ 'trusted', 'fence.reset_metrics()', ['-'] ],
	_metrics => [ 'trusted', 'fence._metrics()', ['-'] ],
	_pending => [ 'trusted', 'fence._pending()', ['-'] ],
	_effects => [ 'trusted', 'fence._effects()', ['-'] ],
	define_derived => [ 'function_owners', "fence.define_derived('x%k', '{item}', 'app.own(int)')", ['-'], undo => 1 ],
	drop_derived => [ 'trusted', "fence.drop_derived('of_item')", ['-'], undo => 1 ],

	attach => [ 'owners', "fence.attach('%t', domain => 'a%k', add_version => true)", [qw(free bare free_part other_free)], undo => 1 ],
	detach => [ 'owners', "fence.detach('%t')", \@TABLES, undo => 1 ],
	detach_domain => [ 'owners', "fence.detach_domain('%o')", \@ANY, undo => 1 ],
	renumber => [ 'owners', "fence.renumber('%o')", [qw(item part other none)], undo => 1 ],

	once => effect("fence.once('%x')"),
	once_result => effect("fence.once_result('%x', '1')", before => "SELECT fence.once('app:%k')"),
	counter_add => effect("fence.counter_add('%x', 1)"),
	transfer => effect("fence.transfer('{%k}1', '%x{%k}2', 1, NULL)"),
	compare_and_set => effect("fence.compare_and_set('%x', NULL, 'x')"),
	take => effect("fence.take('%x')"),
	take_and_extend => effect("fence.take_and_extend('%x', '1 min')"),
	take_and_set => effect("fence.take_and_set('%x', 'x', durable => true)"),
	publish => effect("fence.publish('%x', 'x')"),
	hash_set => effect("fence.hash_set('%x', 'f', 'x')"),
	hash_add => effect("fence.hash_add('%x', 'n', 1)"),
	publish_hash => effect("fence.publish_hash('%x', '{\"a\": 1}')"),
	'fence.append(text,text,text,bigint,boolean)' => effect("fence.append('%x', 'x', durable => true)"),
	'fence.append(text[],text,text,bigint,boolean)' => effect("fence.append('{app:-%k,%x}'::text[], 'x')"),
	_log_stamps => effect("fence._log_stamps('%x', 5)"),
	latest_common => [ 'latest_common', "fence.latest_common('{%x}')", \@EFFECT_KEYS ],
	enqueue => effect("fence.enqueue('%x', 'x')"),
	commit_marker => [ 'trusted', 'fence.commit_marker()', ['-'] ],

	(map { $_ => [ 'row_triggers', "fence.$_()", ['-'] ] } qw(before_row after_row before_truncate)),
	(map { $_ => [ 'triggers', "fence.$_()", ['-'] ] } qw(_domain_restored)),
);

$rule{derived} = sub {
	sub {
		my ($role, $name) = @_;
		my $sources = $SOURCES{$name} or return '42704';
		return $DENIED if ($name eq 'by_secret' && $role ne 'superuser') || ($name eq 'by_hidden' && !may_use_vault($role));
		return yes_or(!grep { !reads($role, $_) } @$sources);
	};
};
# It calls _log_stamps with the rights of the caller
$rule{latest_common} = sub {
	sub { is_one($_[0], qw(superuser deputy)) ? ($_[1] eq 'inside' ? '22023' : $ALLOWED) : $DENIED };
};

sub names_in_catalogue
{
	my ($query) = @_;

	return split /\n/, $node->safe_psql('postgres', $query);
}

# Each name of the catalogue has an entry, and each entry is in the catalogue.
sub is_complete
{
	my ($what, $names, $entries) = @_;
	my %is_name = map { $_ => 1 } @$names;
	my %is_entry = map { $_ => 1 } @$entries;
	my @missing = map { "$_ has no entry" } grep { !$is_entry{$_} } @$names;
	my @stale = map { "$_ does not exist" } grep { !$is_name{$_} } @$entries;

	return is(join("\n", sort @missing, @stale), '', "each $what of schema fence has an entry");
}

my @functions = sort(names_in_catalogue(<<'SQL'));
SELECT CASE WHEN count(*) OVER (PARTITION BY proname) > 1 THEN oid::regprocedure::text ELSE proname::text END
  FROM pg_proc WHERE pronamespace = 'fence'::regnamespace
SQL
is_complete('function', \@functions, [ keys %FUNCTIONS ]);

foreach my $function (@functions)
{
	my ($rule, $call, $objects, %option) = @{ $FUNCTIONS{$function} // next };
	my $signature = $function =~ /\(/ ? $function : "fence.$function";

	push @cells, { do => "GRANT EXECUTE ON FUNCTION $signature TO executor, owner_executor" };
	foreach my $object (@$objects)
	{
		(my $statement = $call) =~ s/%x/$object eq 'inside' ? '%n:f:1.x:%k' : 'app:%k'/eg;
		try($function, "SELECT $statement", [$object], $rule{$rule}->($function), %option);
	}
	push @cells, { do => "REVOKE EXECUTE ON FUNCTION $signature FROM executor, owner_executor" };
}

# What has other answers than the rules tell
push @cells, { do => 'GRANT EXECUTE ON FUNCTION fence.attach TO executor, owner_executor' };
try('attach without a table', "SELECT fence.attach(NULL, domain => 'a%k', scope => 'manual')", ['-'], $rule{trusted}->('attach'), undo => 1);
try('attach a foreign table', "SELECT fence.attach('%t')", ['external'],
	sub { is_one($_[0], qw(superuser owner_executor)) ? '42809' : $DENIED });
push @cells, { do => 'REVOKE EXECUTE ON FUNCTION fence.attach FROM executor, owner_executor' };

# No setting of his own lets a reader see what policies hide
try('get with row_security off', "SET LOCAL row_security = off; SELECT fence.get('%o', '%k')", [qw(item guarded forced)],
	$rule{readers}->('get'));

# Relations of schema fence, and who may read them besides the owner of the extension and pg_read_all_data. What a view calls
# is called with the rights of who reads it.
my %RELATIONS = (
	(map { $_ => 'everybody' } qw(domain derived domains state nodes)),
	metrics => 'monitor',
	(map { $_ => 'nobody else' } qw(tombstone floor cluster reservation outbox pending effects)),
	(map { $_ => 'nobody else' } qw(domain_id_seq derived_id_seq reservation_id_seq outbox_id_seq)),
);
my %CALLING = map { $_ => 1 } qw(metrics pending effects);
my %kind_of = map { split /\|/ } names_in_catalogue(<<'SQL');
SELECT relname, relkind FROM pg_class WHERE relnamespace = 'fence'::regnamespace AND relkind NOT IN ('i', 't')
SQL
my %first_column = map { split /\|/ } names_in_catalogue(<<'SQL');
SELECT attrelid::regclass, attname FROM pg_attribute JOIN pg_class c ON c.oid = attrelid
 WHERE relnamespace = 'fence'::regnamespace AND attnum = 1
SQL
is_complete('relation', [ keys %kind_of ], [ keys %RELATIONS ]);

sub may_select
{
	my ($role, $name) = @_;

	return 1 if is_one($role, qw(superuser deputy)) || $RELATIONS{$name} eq 'everybody';
	return 1 if $role eq 'monitor' && $RELATIONS{$name} eq 'monitor';
	return $role eq 'read_all' && !$CALLING{$name};
}

# Members of pg_write_all_data may write here too: PostgreSQL lets nobody take that away.
sub may_write { my ($role) = @_; return is_one($role, qw(superuser deputy write_all)); }

foreach my $name (sort keys %RELATIONS)
{
	my $kind = $kind_of{$name} // next;
	my $owners = sub { yes_or(is_one($_[0], qw(superuser deputy))) };
	my $readers = sub { yes_or(may_select($_[0], $name)) };
	my $writers = sub { yes_or(may_write($_[0])) };
	my $column = $first_column{"fence.$name"};
	my @attempts;

	if ($kind eq 'S')
	{
		@attempts = ([ "SELECT last_value FROM fence.$name", $readers ], [ "SELECT nextval('fence.$name')", $writers ],
			[ "SELECT setval('fence.$name', 1)", sub { may_write($_[0]) ? undef : $DENIED } ]);
	}
	elsif ($kind eq 'v')
	{
		# Some cannot be written at all
		my $refused = sub { may_write($_[0]) ? undef : '42501|55000|0A000' };

		@attempts = ([ "SELECT count(*) FROM fence.$name", $readers ], [ "DELETE FROM fence.$name WHERE false", $refused ],
			[ "UPDATE fence.$name SET $column = DEFAULT WHERE false", $refused ],
			[ "INSERT INTO fence.$name SELECT (NULL::fence.$name).* WHERE false", $refused ],
			[ "LOCK TABLE fence.$name IN ACCESS EXCLUSIVE MODE", sub { may_write($_[0]) ? undef : $DENIED } ]);
	}
	else
	{
		@attempts = ([ "SELECT count(*) FROM fence.$name", $readers ], [ "DELETE FROM fence.$name WHERE false", $writers ],
			[ "UPDATE fence.$name SET $column = DEFAULT WHERE false", $writers ],
			[ "INSERT INTO fence.$name OVERRIDING SYSTEM VALUE SELECT (NULL::fence.$name).* WHERE false", $writers ],
			[ "TRUNCATE fence.$name", $owners ], [ "LOCK TABLE fence.$name IN ACCESS SHARE MODE", sub { $_[0] eq 'write_all' ? undef : $readers->(@_) } ],
			[ "LOCK TABLE fence.$name IN ACCESS EXCLUSIVE MODE", $writers ],
			[ "SELECT FROM fence.$name FOR UPDATE", sub { is_one($_[0], 'write_all') ? undef : $owners->(@_) } ]);
	}
	try($_->[0], $_->[0], ['-'], $_->[1], undo => 1) foreach @attempts;
}

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
push @cells, { do => 'REVOKE USAGE ON SCHEMA fence FROM PUBLIC' };
writes(' without USAGE on schema fence', 1);
push @cells, { do => 'GRANT USAGE ON SCHEMA fence TO PUBLIC' };

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
  foreach "DISABLE TRIGGER $trigger", 'DISABLE TRIGGER USER', "ENABLE REPLICA TRIGGER $trigger", "ENABLE TRIGGER $trigger";
ddl('ALTER TABLE app.item SET UNLOGGED', all('0A000', @OTHERS));
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
	'CREATE TABLE app.c%k (d bigint REFERENCES fence.domain)', 'CREATE PUBLICATION p%k FOR TABLE fence.reservation',
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

poll(sub { $node->safe_psql('postgres', "SELECT bool_and((fence.get(d, '1')).status = 'miss') FROM unnest('{" . join(',', @CACHED) . "}'::text[]) d") eq 't' },
	'the announcement of all domains');
my @before = fingerprint();

# What is refused comes first: whatever Redis is told meanwhile is the workers' or a weakness.
$redis->call('SLOWLOG', 'RESET');
run_cells(grep { $_->{do} || !is_allowed($_) } @cells);
my @log = map { join ' ', @{ $_->[3] } } @{ $redis->call('SLOWLOG', 'GET', -1) };
my @refused = grep { $_->{key} && !is_allowed($_) } @cells;
cmp_ok(scalar @refused, '>', 1000, 'cells that are to be refused: ' . scalar @refused);
is(differences(@refused), '', 'what is refused');
is(refused_cells(\@log, @refused), '', '... and Redis was told nothing of it');
# What names no key, as the end of a domain does, shows by the function
my %said = map { /^FCALL(?:_RO)? (\w+)/i ? ($1 => $_) : () } @log;
delete @said{@WORKERS_SAY};
is(join("\n", values %said), '', '... nor anything else but what workers say');

run_cells(grep { $_->{do} || is_allowed($_) } @cells);
my @allowed = grep { $_->{key} && is_allowed($_) } @cells;
cmp_ok(scalar @allowed, '>', 500, 'cells that are to be allowed: ' . scalar @allowed);
is(differences(@allowed), '', 'what is allowed');
is(changes(\@before, [ fingerprint() ]), '', 'the catalogue is as it was');
no_reservations($node);
compare_fences($node, $_) foreach qw(item part grp guarded);

$node->stop;
done_testing();
