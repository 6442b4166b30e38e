# pg_dump and pg_restore: what is fenced comes back fenced, under names of its own in Redis, and goes on counting where
# the original had stopped.
#
# Each way of restoring is followed by the same two questions: is everything there (inventory), and is it alive (cycle).

use strict;
use warnings;

use FenceTest;
use FenceTest::Session;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;

my $redis = FenceTest::Redis->start;
my $node = new_postgres('main', $redis, lease => '1500ms', max_worker_processes => 16);
my $dir = PostgreSQL::Test::Utils::tempdir();
my $names = 0;

# ---------------------------------------------------------------------------------------------------------------------
# Tools
# ---------------------------------------------------------------------------------------------------------------------

# Names are bytes, here and there.
sub query { my ($server, $dbname, $statement) = @_; return $server->safe_psql($dbname, $statement); }

# "rc: errors" of a program that works on that server.
sub program
{
	my ($server, @command) = @_;
	my ($out, $err) = ('', '');

	local $ENV{PGHOST} = $server->host;
	local $ENV{PGPORT} = $server->port;
	my $ok = IPC::Run::run(\@command, '<', '/dev/null', '>', \$out, '2>', \$err);
	return ($ok ? 'good' : 'bad') . ": $err";
}

sub runs
{
	my ($server, @command) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is(program($server, @command), 'good: ', join ' ', map { s/\Q$dir\E\///r } @command);
}

sub new_database
{
	my ($server) = @_;
	my $name = 'copy' . ++$names;

	query($server, 'postgres', "CREATE DATABASE $name");
	return $name;
}

# Everything that must be the same afterwards.
sub inventory
{
	my ($server, $dbname) = @_;

	return query($server, $dbname, <<'SQL');
SELECT * FROM fence.domains ORDER BY domain, relation::text;
SELECT name, id FROM fence.domain ORDER BY id, name;
SELECT tgrelid::regclass, tgname, tgenabled, tgfoid::regproc, tgparentid = 0 FROM pg_trigger
 WHERE tgname ~ '^zzz_pgcache_fence' ORDER BY tgrelid::regclass::text, tgname;
-- what the triggers rest on, and the triggers on each other: not to be found in a dump
SELECT d.classid::regclass, pg_describe_object(d.classid, d.objid, d.objsubid), d.deptype,
	   pg_describe_object(d.refclassid, d.refobjid, d.refobjsubid)
  FROM pg_depend d LEFT JOIN pg_trigger t ON d.classid = 'pg_trigger'::regclass AND t.oid = d.objid
 WHERE t.tgname ~ '^zzz_pgcache_fence' ORDER BY 2, 3, 4;
SELECT d.name, t.key, t.version, t.removed_at FROM fence.tombstone t JOIN fence.domain d ON d.id = t.domain_id ORDER BY 1, 2;
SELECT d.name, f.version FROM fence.floor f JOIN fence.domain d ON d.id = f.domain_id ORDER BY 1;
SELECT last_value, is_called FROM fence.domain_id_seq;
SELECT * FROM fence.derived ORDER BY id;
SELECT last_value, is_called FROM fence.derived_id_seq;
SELECT * FROM plain ORDER BY id;
SELECT * FROM early.first ORDER BY id;
SELECT * FROM parts ORDER BY id;
SELECT * FROM members ORDER BY id;
SELECT * FROM "Größe"."Räume {x}" ORDER BY n;
SQL
}

# A database with every kind of fenced table; some of their rows are cached, some were deleted.
sub make_original
{
	my ($server) = @_;

	query($server, 'postgres', 'CREATE DATABASE original');
	query($server, 'original', <<'SQL');
CREATE EXTENSION pgcache_fence;
-- in the order of a dump: before and after schema fence
CREATE SCHEMA early;
CREATE SCHEMA "Größe";
CREATE TABLE plain (id int PRIMARY KEY, name text DEFAULT 'x', version bigint NOT NULL DEFAULT 0);
CREATE TABLE early.first (id int NOT NULL, name text, version smallint NOT NULL DEFAULT 0);
CREATE UNIQUE INDEX ON early.first (id);
CREATE TABLE "Größe"."Räume {x}" ("Schlüssel" text COLLATE "C", n int, name text, "Vérsion" int NOT NULL DEFAULT 0,
	gone int, PRIMARY KEY (n, "Schlüssel"));
ALTER TABLE "Größe"."Räume {x}" DROP gone;
CREATE TABLE hand (id int PRIMARY KEY, name text);
CREATE TABLE members (id int PRIMARY KEY, room int, name text);
CREATE TABLE parts (id int PRIMARY KEY, name text, version int NOT NULL DEFAULT 0) PARTITION BY RANGE (id);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (1) TO (10);
CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (10) TO (20) PARTITION BY HASH (id);
CREATE TABLE parts_2a PARTITION OF parts_2 FOR VALUES WITH (MODULUS 1, REMAINDER 0);
INSERT INTO plain SELECT g, 'x', 5 FROM generate_series(1, 9) g;
INSERT INTO early.first SELECT g, 'x', 5 FROM generate_series(1, 9) g;
INSERT INTO parts SELECT g, 'x', 5 FROM generate_series(1, 19) g;
INSERT INTO hand SELECT g, 'x' FROM generate_series(1, 9) g;
INSERT INTO members SELECT g, g % 3, 'x' FROM generate_series(1, 9) g;
INSERT INTO "Größe"."Räume {x}" VALUES ('ä{}:%,', 1, 'x', 5), (E'b\n\t\\', 2, 'x', 5), ('', 3, 'x', 5);
SELECT fence.attach('plain', on_redis_failure => 'error', ttl => '1 day'), fence.attach('early.first', key => '{id}'),
	fence.attach('parts'), fence.attach('hand', scope => 'manual'), fence.attach(NULL, domain => 'no table', scope => 'manual'),
	fence.attach('members', scope => 'group', key => '{room}'), fence.attach('members', domain => 'member', version => NULL),
	fence.attach('members', key => '{}', domain => 'all members', columns => '{id}', only_columns => true),
	-- two tables in one domain
	fence.attach('members', scope => 'group', key => '{id}', domain => 'joint'), fence.attach('parts', scope => 'group', key => '{id}', domain => 'joint'),
	fence.attach('"Größe"."Räume {x}"', version => 'Vérsion', tag => 'room/{n}', columns => '{n,name,Schlüssel}');
CREATE FUNCTION "Größe"."wie viele"(n int, "Schlüssel" text) RETURNS text STABLE LANGUAGE sql RETURN "Schlüssel" || n;
SELECT fence.define_derived('derived {x}', '{plain($1),"Größe.Räume {x}($1,$2)"}', '"Größe"."wie viele"(int, text)', '1 hour');
DELETE FROM plain WHERE id = 1;
DELETE FROM parts WHERE id IN (2, 12);
DELETE FROM "Größe"."Räume {x}" WHERE n = 3;
UPDATE members SET name = 'y' WHERE id = 1;
INSERT INTO fence.floor SELECT id, 20 FROM fence.domain WHERE name = 'early.first';
SQL
	return;
}

# An UPDATE, as the table's application writes it.
sub update_of
{
	my ($table, $name, $where) = @_;
	my $more = $table =~ /^(?:parts|pieces)$/ ? ', version = version + 1' : '';

	return "UPDATE $table SET name = '$name'$more WHERE $where";
}

# A column of fence.get or another function of a domain and key.
sub fence_call
{
	my ($function, $column, $server, $dbname, @arguments) = @_;
	my $list = join ', ', map { "'" . s/'/''/gr . "'" } @arguments;

	return query($server, $dbname, "SELECT $column FROM fence.$function($list)");
}

sub get { return fence_call('get', 'status', @_); }

sub served
{
	my ($server, $dbname, @of) = @_;

	poll(sub { get($server, $dbname, @of) ne 'unarmed' }, "$of[0] of $dbname is served", 30);
	return;
}

# Reads the key until it is cached: on a busy machine its bucket may open later than the first read waits for.
sub cached
{
	my ($server, $dbname, @of) = @_;

	poll(sub { fence_call('read', '1', $server, $dbname, @of); get($server, $dbname, @of) eq 'hit' }, "$of[0] of $dbname is cached", 30);
	return;
}

# miss, put, hit; a write, and the old value is not served; a deleted key that comes back starts above its tombstone.
# $old: an existing key, with the condition that finds its row; $deleted: [version of the tombstone, key, VALUES].
sub cycle_of
{
	my ($server, $dbname, $domain, $table, $old, $where, $deleted) = @_;
	my $version = $domain eq 'Größe.Räume {x}' ? '"Vérsion"' : 'version';

	subtest "$dbname: $domain" => sub {
		served($server, $dbname, $domain, @$old);
		is(get($server, $dbname, $domain, @$old), 'miss', 'nothing of the original is a hit');
		cached($server, $dbname, $domain, @$old);
		my $before = query($server, $dbname, "SELECT $version FROM $table WHERE $where");
		query($server, $dbname, update_of($table, 'written in the copy', $where));
		no_reservations($server, 30, $dbname);
		is(get($server, $dbname, $domain, @$old), 'miss', 'written: the old value is not served');
		like(fence_call('read', 'read', $server, $dbname, $domain, @$old), qr/written in the copy/, 'read: the new one');
		cached($server, $dbname, $domain, @$old);
		is(fence_call('get', 'status, version', $server, $dbname, $domain, @$old), 'hit|' . ($before + 1), 'cached again');
		is(fence_call('status', 'relation, row_version', $server, $dbname, $domain, @$old), 'equal|' . ($before + 1), 'fence and row');
		if ($deleted)
		{
			my ($last, $values, @key) = @$deleted;

			is(fence_call('read', 'read IS NULL', $server, $dbname, $domain, @key), 't', 'a deleted key is not there');
			query($server, $dbname, "INSERT INTO $table $values");
			is(fence_call('status', 'row_version', $server, $dbname, $domain, @key), $last + 1, 'it comes back above what it had');
		}
		compare_fences($server, $domain, $dbname);
	};
	return;
}

# All domains of a restored database.
sub cycle
{
	my ($server, $dbname) = @_;

	cycle_of($server, $dbname, 'plain', 'plain', [2], 'id = 2', [ 6, '(id) VALUES (1)', 1 ]);
	cycle_of($server, $dbname, 'parts', 'parts', [3], 'id = 3', [ 6, "VALUES (12, 'x')", 12 ]);
	cycle_of($server, $dbname, 'early.first', 'early.first', [2], 'id = 2', [ 20, "VALUES (77, 'x')", 77 ]);
	cycle_of($server, $dbname, 'Größe.Räume {x}', '"Größe"."Räume {x}"', [ 1, 'ä{}:%,' ], 'n = 1', [ 6, "VALUES ('', 3, 'x')", 3, '' ]);

	subtest "$dbname: groups and manual domains" => sub {
		my $group = sub { return fence_call('get', 'status', $server, $dbname, 'members', '1'); };

		served($server, $dbname, 'members', 1);
		my $version = query($server, $dbname, "SELECT fence.group_version('members', '1')");
		query($server, $dbname, "UPDATE members SET name = 'z' WHERE id = 4");
		is(query($server, $dbname, "SELECT fence.group_version('members', '1')"), $version + 1, 'a group goes on counting');
		compare_fences($server, 'members', $dbname);
		foreach my $domain ('hand', 'no table')
		{
			my $session = FenceTest::Session->open($server, dbname => $dbname);

			served($server, $dbname, $domain, 1);
			is($session->run("BEGIN; SELECT fence.begin_write('$domain', 7, '1')"), '8', "$domain: begin_write");
			$session->run("SELECT 1 FROM fence.get('$domain', '2')");
			is(get($server, $dbname, $domain, 1), 'pending', 'a reservation');
			$session->run('ROLLBACK');
			no_reservations($server, 30, $dbname);
		}
	};
	return;
}

make_original($node);
served($node, 'original', 'plain', 2);
fence_call('read', '1', $node, 'original', 'plain', $_) foreach 2 .. 9;
my $inventory = inventory($node, 'original');
like($inventory, qr/zzz_pgcache_fence_after.*\|n\|.*column id of table plain/, 'the inventory has dependencies');
like($inventory, qr/^plain\|1\|6\|/m, 'and tombstones');

# ---------------------------------------------------------------------------------------------------------------------
# Whole dumps
# ---------------------------------------------------------------------------------------------------------------------

runs($node, 'pg_dump', '-f', "$dir/plain.sql", 'original');
runs($node, 'pg_dump', '-Fc', '-f', "$dir/custom", 'original');
runs($node, 'pg_dump', '-Fd', '-j2', '-f', "$dir/directory", 'original');

my %way = (
	'plain'          => sub { [ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-o', '/dev/null', '-d', $_[0], '-f', "$dir/plain.sql" ] },
	'custom'         => sub { [ 'pg_restore', '-e', '-d', $_[0], "$dir/custom" ] },
	'one transaction' => sub { [ 'pg_restore', '-1', '-d', $_[0], "$dir/custom" ] },
	'parallel'       => sub { [ 'pg_restore', '-e', '-j2', '-d', $_[0], "$dir/directory" ] });
my $copy;

foreach my $way (sort keys %way)
{
	$copy = new_database($node);
	runs($node, @{ $way{$way}->($copy) });
	is(inventory($node, $copy), $inventory, "$way: all is there");
	my $keys = "SELECT fence.fence_key('plain', '2'), fence.value_key('plain', '2')";
	isnt(query($node, $copy, $keys), query($node, 'original', $keys), 'its names in Redis are its own');
	cycle($node, $copy);
	is(get($node, 'original', 'plain', 2), 'hit', 'the original is cached as before,');
	unlike(fence_call('get', 'payload', $node, 'original', 'plain', 2), qr/written/, 'its own value');
}
is(inventory($node, 'original'), $inventory, 'the original is as it was');

subtest 'into another cluster, at the same Redis' => sub {
	my $second = new_postgres('second', $redis, lease => '1500ms');
	my $other = new_database($second);

	runs($second, @{ $way{parallel}->($other) });
	is(inventory($second, $other), $inventory, 'all is there');
	cycle($second, $other);
	is(get($node, 'original', 'plain', 2), 'hit', 'the original is cached as before');
	$second->stop;
};

# ---------------------------------------------------------------------------------------------------------------------
# In parts
# ---------------------------------------------------------------------------------------------------------------------

# Lets the keeper know the database, so that only what a restore does later can bring it there again.
sub keeper_knows
{
	my ($dbname) = @_;

	query($node, $dbname, 'CREATE EXTENSION IF NOT EXISTS pgcache_fence');
	query($node, $dbname, "SELECT fence.attach(NULL, domain => 'probe', scope => 'manual')");
	served($node, $dbname, 'probe', 1);
	query($node, $dbname, "SELECT fence.detach_domain('probe')");
	poll(sub { $node->safe_psql($dbname, "SELECT count(*) FROM pg_stat_activity WHERE backend_type ~ 'pgcache_fence job'") eq '0' }, 'the keeper');
	return;
}

subtest 'section by section, with time between them' => sub {
	my $dbname = new_database($node);

	runs($node, 'pg_restore', '-e', '--section=pre-data', '-d', $dbname, "$dir/custom");
	keeper_knows($dbname);
	runs($node, 'pg_restore', '-e', "--section=$_", '-d', $dbname, "$dir/custom") foreach qw(data post-data);
	is(inventory($node, $dbname), $inventory, 'all is there');
	cycle($node, $dbname);
};

subtest 'first the schema, then the data' => sub {
	my $dbname = new_database($node);

	runs($node, 'pg_restore', '-e', '--schema-only', '-d', $dbname, "$dir/custom");
	like(program($node, 'psql', '-X', '-d', $dbname, '-c', 'INSERT INTO plain VALUES (1)'), qr/has the triggers of a fenced table, but is not attached\nHINT/,
		'a table whose domain is not there yet takes no writes');

	keeper_knows($dbname);

	# fence.domain first; triggers of the tables fire, and what they do is fenced. That of a manual domain must be told.
	runs($node, 'pg_restore', '-e', '--data-only', '-n', 'fence', '-d', $dbname, "$dir/custom");
	like(program($node, 'pg_restore', '-e', '--data-only', '-t', 'hand', '-d', $dbname, "$dir/custom"), qr/was written without a reservation/,
		'the table of a manual domain is guarded');
	local $ENV{PGOPTIONS} = '-c pgcache_fence.unreserved_writes=reserve_domain';
	runs($node, 'pg_restore', '-e', '--data-only', '-N', 'fence', '-d', $dbname, "$dir/custom");
	is(query($node, $dbname, 'SELECT count(*), min(version), max(version) FROM plain'), '8|5|5', 'rows have their versions');
	is(query($node, $dbname, 'SELECT count(*), min(version), max(version) FROM early.first'), '9|21|21',
		'at or below the floor they get others: as rows that are new');
	is(query($node, $dbname, "SELECT count(*) FROM pg_depend WHERE classid = 'pg_trigger'::regclass AND deptype = 'a' "
			  . "AND refclassid = 'pg_trigger'::regclass AND pg_describe_object(classid, objid, 0) ~ 'zzz_pgcache_fence'"),
		query($node, 'original', "SELECT count(*) FROM pg_depend WHERE classid = 'pg_trigger'::regclass AND deptype = 'a' "
			  . "AND refclassid = 'pg_trigger'::regclass AND pg_describe_object(classid, objid, 0) ~ 'zzz_pgcache_fence'"),
		'the triggers depend on each other as before');
	cycle_of($node, $dbname, 'plain', 'plain', [2], 'id = 2', [ 6, '(id) VALUES (1)', 1 ]);
	compare_fences($node, $_, $dbname) foreach 'parts', 'early.first', 'members', 'Größe.Räume {x}';

};

subtest 'first the schema, then the data, with --disable-triggers' => sub {
	my $dbname = new_database($node);
	my $stays = 'zzz_pgcache_fence_(after|before|truncate)$';

	# tables before fence.domain, and behind it; foreign keys do not matter
	runs($node, 'pg_restore', '-e', '--schema-only', '-d', $dbname, "$dir/custom");
	query($node, $dbname, 'CREATE FUNCTION never() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE \'fired\'; END $$; '
		  . 'CREATE TRIGGER aaa BEFORE INSERT ON plain FOR EACH ROW EXECUTE FUNCTION never(); '
		  . 'CREATE TRIGGER aaa BEFORE INSERT ON early.first FOR EACH ROW EXECUTE FUNCTION never()');
	keeper_knows($dbname);
	local $ENV{PGOPTIONS} = '-c pgcache_fence.unreserved_writes=reserve_domain';
	my $said = program($node, 'pg_restore', '-e', '--data-only', '--disable-triggers', '-d', $dbname, "$dir/custom");
	like($said, qr/^good: /, 'pg_restore --disable-triggers');
	query($node, $dbname, 'DROP FUNCTION never CASCADE');
	is(query($node, $dbname, "SELECT count(*) FROM pg_trigger WHERE tgname ~ '$stays' AND tgenabled <> 'A'"), '0', 'our triggers are as they were,');
	is(query($node, $dbname, "SELECT count(*) FROM pg_depend WHERE classid = 'pg_trigger'::regclass AND deptype = 'a' "
			  . "AND refclassid = 'pg_trigger'::regclass AND pg_describe_object(classid, objid, 0) ~ 'zzz_pgcache_fence'"),
		query($node, 'original', "SELECT count(*) FROM pg_depend WHERE classid = 'pg_trigger'::regclass AND deptype = 'a' "
			  . "AND refclassid = 'pg_trigger'::regclass AND pg_describe_object(classid, objid, 0) ~ 'zzz_pgcache_fence'"),
		'and depend on each other as before');
	cycle_of($node, $dbname, 'plain', 'plain', [2], 'id = 2', [ 6, '(id) VALUES (1)', 1 ]);
	cycle_of($node, $dbname, 'early.first', 'early.first', [2], 'id = 2');
	compare_fences($node, $_, $dbname) foreach 'parts', 'members', 'Größe.Räume {x}';
};

subtest 'one table only' => sub {
	my $dbname = new_database($node);

	query($node, $dbname, 'CREATE EXTENSION pgcache_fence');
	runs($node, 'pg_dump', '-f', "$dir/some.sql", '-t', 'plain', '-t', 'parts', '-t', 'parts_*', 'original');
	runs($node, 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-o', '/dev/null', '-d', $dbname, '-f', "$dir/some.sql");
	like(program($node, 'psql', '-X', '-d', $dbname, '-c', 'UPDATE parts SET id = id'), qr/has the triggers of a fenced table, but is not attached\nHINT/,
		'triggers without a domain: no writes, and a hint');
	query($node, $dbname, "SELECT fence.attach('plain'), fence.attach('parts')");
	is(query($node, $dbname, "SELECT count(*) FROM pg_trigger WHERE tgname ~ '^zzz_pgcache_fence' AND tgenabled = 'A' AND tgparentid = 0"), '6',
		'attach puts that right');
	cycle_of($node, $dbname, 'plain', 'plain', [2], 'id = 2');
	cycle_of($node, $dbname, 'parts', 'parts', [3], 'id = 3');
};

subtest '--clean, into the database that it came from' => sub {
	my $dbname = new_database($node);

	runs($node, @{ $way{custom}->($dbname) });
	served($node, $dbname, 'plain', 2);
	fence_call('read', '1', $node, $dbname, 'plain', 2);
	query($node, $dbname, "UPDATE plain SET name = 'after the dump' WHERE id = 2");
	fence_call('read', '1', $node, $dbname, 'plain', 2);
	# it complains that it cannot drop inherited constraints, with triggers or without; then it goes on
	my $said = program($node, 'pg_restore', '--clean', '--if-exists', '-d', $dbname, "$dir/custom");
	unlike($said, qr/zzz_pgcache_fence/, 'triggers are dropped one by one');
	is(join("\n", grep { !/cannot drop inherited constraint/ } $said =~ /error: could not execute query: (.*)/g), '', 'nothing else fails');
	is(inventory($node, $dbname), $inventory, 'all is there again');
	cycle($node, $dbname);
};

subtest '--clean in one transaction' => sub {
	my $from = new_database($node);
	my $fresh = new_database($node);
	my $tables = "SELECT d.name, d.id, t.tgname, t.tgenabled FROM fence.domain d LEFT JOIN pg_trigger t ON t.tgrelid = d.relation ORDER BY 1, 3";

	runs($node, @{ $way{custom}->($from) });
	query($node, $from, 'DROP TABLE parts');
	my $before = query($node, $from, $tables);
	runs($node, 'pg_dump', '-Fc', '-f', "$dir/clean", $from);
	query($node, $from, "UPDATE plain SET name = 'after the dump' WHERE id = 2");
	runs($node, 'pg_restore', '-1', '--clean', '-d', $from, "$dir/clean");
	runs($node, 'pg_restore', '-1', '--clean', '--if-exists', '-d', $fresh, "$dir/clean");
	foreach my $dbname ($from, $fresh)
	{
		is(query($node, $dbname, $tables), $before, 'domains and triggers are there');
		cycle_of($node, $dbname, 'plain', 'plain', [2], 'id = 2', [ 6, '(id) VALUES (1)', 1 ]);
		cycle_of($node, $dbname, 'early.first', 'early.first', [2], 'id = 2', [ 20, "VALUES (77, 'x')", 77 ]);
	}
};

# ---------------------------------------------------------------------------------------------------------------------
# Afterwards
# ---------------------------------------------------------------------------------------------------------------------

subtest 'a restored table is altered like any fenced table' => sub {
	my $refused = sub {
		my ($statement, $why) = @_;

		like(program($node, 'psql', '-X', '-d', $copy, '-c', $statement), qr/^bad: ERROR:  $why/, "$statement: refused");
	};

	my $ends = sub {
		my ($statement, $why) = @_;

		like(program($node, 'psql', '-X', '-d', $copy, '-c', "BEGIN; $statement; ROLLBACK"), qr/^good: WARNING:  the fencing of table .* ends\n.*: $why/,
			"$statement: ends the fencing");
	};

	$ends->('ALTER TABLE plain DROP id', 'column "id" of table "plain" does not exist');
	$ends->('ALTER TABLE plain DROP version', 'version column "version" of table "plain" does not exist');
	$ends->('ALTER TABLE plain DROP CONSTRAINT plain_pkey', 'table "plain" has no usable unique index on exactly the key columns');
	$ends->('DROP INDEX early.first_id_idx', 'table "first" has no usable unique index on exactly the key columns');
	$ends->('ALTER TABLE plain ALTER version TYPE text', 'version column "version" has type text');
	$refused->('ALTER TABLE plain DISABLE TRIGGER zzz_pgcache_fence_after', 'this change of trigger "zzz_pgcache_fence_after" is not possible');
	$refused->('CREATE OR REPLACE TRIGGER zzz_pgcache_fence_truncate BEFORE TRUNCATE ON plain EXECUTE FUNCTION fence.before_truncate()',
		'this change of trigger "zzz_pgcache_fence_truncate" is not possible');

	query($node, $copy, 'ALTER TABLE plain RENAME id TO number; ALTER TABLE plain RENAME version TO v; '
		  . 'ALTER TABLE "Größe"."Räume {x}" RENAME n TO "Nummer"; ALTER TABLE parts RENAME TO pieces');
	is(query($node, $copy, "SELECT key, version FROM fence.domains WHERE domain = 'plain'"), '{number}|v', 'renamed columns are followed,');
	is(query($node, $copy, "SELECT tag, key, columns FROM fence.domains WHERE domain = 'Größe.Räume {x}'"),
		'room/{Nummer}|{Nummer,Schlüssel}|{Nummer,name,Schlüssel}', 'also in the tag and the columns');
	foreach my $case ([ 'plain', 'plain', 'number = 4', 4 ], [ 'parts', 'pieces', 'id = 4', 4 ],
		[ 'Größe.Räume {x}', '"Größe"."Räume {x}"', '"Nummer" = 2', 2, "b\n\t\\" ])
	{
		my ($domain, $table, $where, @key) = @$case;

		fence_call('read', '1', $node, $copy, $domain, @key) foreach 1, 2;
		is(get($node, $copy, $domain, @key), 'hit', "$domain is cached");
		query($node, $copy, update_of($table, 'after the rename', $where));
		no_reservations($node, 30, $copy);
		is(get($node, $copy, $domain, @key), 'miss', 'a write is seen');
		like(fence_call('read', 'read', $node, $copy, $domain, @key), qr/after the rename/, 'and read');
		compare_fences($node, $domain, $copy);
	}

	query($node, $copy, "SELECT fence.detach('plain')");
	is(query($node, $copy, "SELECT count(*) FROM pg_trigger WHERE tgrelid = 'plain'::regclass"), '0', 'detach takes all triggers');
	query($node, $copy, 'ALTER TABLE early.first DROP id CASCADE; DROP TABLE pieces');
	is(query($node, $copy, "SELECT string_agg(name, ', ' ORDER BY id) FROM fence.domain"), 'hand, no table, members, member, all members, joint, Größe.Räume {x}',
		'DROP ... CASCADE and DROP TABLE end the attachments');
};

subtest 'the original is dropped' => sub {
	my $dbname = new_database($node);

	runs($node, @{ $way{custom}->($dbname) });
	served($node, $dbname, 'plain', 2);
	fence_call('read', '1', $node, $dbname, 'plain', 2);
	query($node, 'postgres', 'DROP DATABASE original');
	is(get($node, $dbname, 'plain', 2), 'hit', 'what the copy has cached is served');
	query($node, 'postgres', "ALTER DATABASE $dbname RENAME TO original");
	is(get($node, 'original', 'plain', 2), 'hit', 'also under the name of the original');
	is(inventory($node, 'original'), $inventory, 'all is there');
	query($node, 'original', "UPDATE plain SET name = 'y' WHERE id = 2");
	is(get($node, 'original', 'plain', 2), 'miss', 'writes are fenced');
	is(query($node, 'original', 'SELECT state FROM fence.state'), 'OPEN', 'the fences are open');
};

done_testing();
