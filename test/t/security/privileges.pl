# A battery (FenceTest::Battery): every function and relation of schema fence, tried by every kind of role on every kind of object,
# and compared with the tables below. What is in the catalogue and not in a table here fails the test. sql/privileges.sql has the
# examples that explain; privileges_of_tables tries what else could change the fences.

use strict;
use warnings;

use FenceTest;
use FenceTest::Battery;
use Test::More;

setup();

sub executes
{
	my ($role, $function) = @_;

	return is_one($role, qw(superuser deputy executor owner_executor))
	  || ($role eq 'filler' && $function eq 'fence.put(text,text,bigint,text,interval,text[])')
	  || ($role eq 'beginner' && $function eq 'fence.begin_write(text,bigint,"any")') || ($role eq 'monitor' && is_one($function, qw(doctor _metrics)));
}

# Rules, given the function's name
my %rule = (
	everybody => sub { sub { $_[1] eq 'none' ? '42704' : $ALLOWED } },
	# EXECUTE is PUBLIC's: privileges on what is read decide
	readers => sub { sub { $_[1] eq 'none' ? '42704' : yes_or(reads(@_)) } },
	# EXECUTE decides
	trusted => sub { my ($f) = @_; sub { $_[1] eq 'none' && executes($_[0], $f) ? '42704' : yes_or(executes($_[0], $f)) } },
	# EXECUTE, and the right to read
	trusted_readers => sub { my ($f) = @_; sub { $_[1] eq 'none' && executes($_[0], $f) ? '42704' : yes_or(executes($_[0], $f) && reads(@_)) } },
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
	fence_prefix => [ 'everybody', "fence.fence_prefix('none')", ['-'] ],
	fence_keys => [ 'everybody', "fence.fence_keys('%o', '{%k}')", \@ANY ],
	row_version => [ 'everybody', 'fence.row_version(1)', ['-'] ],
	key_slot => [ 'everybody', "fence.key_slot('%k')", ['-'] ],
	is_committed => [ 'everybody', "fence.is_committed('1.0')", ['-'] ],
	_state => [ 'everybody', 'fence._state()', ['-'] ],
	wait_open => [ 'everybody', 'fence.wait_open()', ['-'] ],
	_nodes => [ 'everybody', 'fence._nodes()', ['-'] ],
	_buckets => [ 'everybody', 'fence._buckets()', ['-'] ],

	keyed(get => 'readers', "fence.get('%o', '%k')", \@ANY),
	keyed(peek => 'readers', "fence.peek('%o', '%k')", \@ANY),
	keyed(status => 'readers', "fence.status('%o', '%k')", \@ANY),
	keyed(explain => 'readers', "fence.explain('%o', '%k')", \@ANY),
	get_many => [ 'readers', "fence.get_many(fence.fence_key('%o', '%k'), fence.fence_key('%o', '-%k'))", \@ANY ],
	keyed(read => 'readers', "fence.read('%o', '%k')", [ @ROW_DOMAINS, qw(grp none) ]),
	keyed(try_read => 'readers', "fence.try_read('%o', '%k')", [ @ROW_DOMAINS, qw(grp none) ]),
	read_many => [ 'readers', "fence.read_many(fence.fence_keys('%o', '{%k,-%k}'))", [ @ROW_DOMAINS, qw(grp none) ] ],
	keyed(group_version => 'readers', "fence.group_version('%o', '%k')", [qw(grp none)]),
	keyed(read_derived => 'derived', "fence.read_derived('%o', '%k')", \@DERIVED),
	keyed(try_read_derived => 'derived', "fence.try_read_derived('%o', '%k')", \@DERIVED),
	keyed(derived_keys => 'derived', "fence.derived_keys('%o', '%k')", \@DERIVED),

	keyed(put => 'trusted', "1 / (fence.put('%o', :'permit', 1, 'x', NULL, '%k') = 'stored')::int", \@ANY, before => $permit),
	warm => [ 'trusted_readers', "CALL fence.warm('%o', 'VALUES (''%k'')')", [ @ROW_DOMAINS, qw(grp none) ] ],
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
	_hot => [ 'trusted', 'fence._hot()', ['-'] ],
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

	do_between("GRANT EXECUTE ON ROUTINE $signature TO executor, owner_executor");
	foreach my $object (@$objects)
	{
		(my $statement = $call) =~ s/%x/$object eq 'inside' ? '%n:f:1.x:%k' : 'app:%k'/eg;
		try($function, $statement =~ /^CALL/ ? $statement : "SELECT $statement", [$object], $rule{$rule}->($function), %option);
	}
	do_between("REVOKE EXECUTE ON ROUTINE $signature FROM executor, owner_executor");
}

# What has other answers than the rules tell
do_between('GRANT EXECUTE ON FUNCTION fence.attach TO executor, owner_executor');
try('attach without a table', "SELECT fence.attach(NULL, domain => 'a%k', scope => 'manual')", ['-'], $rule{trusted}->('attach'), undo => 1);
try('attach a foreign table', "SELECT fence.attach('%t')", ['external'],
	sub { is_one($_[0], qw(superuser owner_executor)) ? '42809' : $DENIED });
do_between('REVOKE EXECUTE ON FUNCTION fence.attach FROM executor, owner_executor');

# No setting of his own lets a reader see what policies hide
try('get with row_security off', "SET LOCAL row_security = off; SELECT fence.get('%o', '%k')", [qw(item guarded forced)],
	$rule{readers}->('get'));

# Relations of schema fence, and who may read them besides the owner of the extension and pg_read_all_data. What a view calls
# is called with the rights of who reads it.
my %RELATIONS = (
	(map { $_ => 'everybody' } qw(domain derived domains state nodes buckets)),
	metrics => 'monitor',
	(map { $_ => 'nobody else' } qw(tombstone floor cluster reservation outbox pending effects hot_keys hot_slots)),
	(map { $_ => 'nobody else' } qw(domain_id_seq derived_id_seq reservation_id_seq outbox_id_seq)),
);
my %CALLING = map { $_ => 1 } qw(metrics pending effects hot_keys hot_slots);
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

run_battery(5000, 1500);
