# A transaction reserves every row that it changes, whatever the statement; one word ends that; what does not commit leaves
# the rows as they were, at most not cached.
#
# Three witnesses: strong reads and fence.pending seen from a second session while the transaction is open, the messages that
# Redis got (MONITOR), and row and fence after the end.

use strict;
use warnings;

use FenceTest;
use FenceTest::Session;
use Test::More;

my $redis = FenceTest::Redis->start;
my $node = new_postgres('main', $redis, lease => '1500ms', timeout => '5s', patrol_grace => '3s', max_prepared_transactions => 5);
my $sql = FenceTest::Session->open($node);      # the second session
my $writer = FenceTest::Session->open($node);

# ---------------------------------------------------------------------------------------------------------------------
# Tools
# ---------------------------------------------------------------------------------------------------------------------

my $monitor = $redis->connect;
$monitor->call('MONITOR');
my $echoes = 0;

# The FCALLs that Redis got since the last call: [function, key count, keys..., arguments...].
sub messages
{
	my $end = 'end ' . ++$echoes;
	my @seen;

	$redis->call('ECHO', $end);
	while ((my $line = $monitor->reply) !~ /"ECHO" "\Q$end\E"/)
	{
		my @words = map { s/\\(["\\])/$1/gr } $line =~ /"((?:[^"\\]|\\.)*)"/g;
		push @seen, [ @words[ 1 .. $#words ] ] if @words && $words[0] =~ /^fcall(?:_ro)?$/i;
	}
	return @seen;
}

# What the messages say of rows of that domain: {reserved => {key => 1}, stamps => {stamp => 1}, ends => [words of these stamps]}.
sub words_of
{
	my ($domain, @messages) = @_;
	my %told = (reserved => {}, stamps => {}, ends => []);
	my @words;

	foreach (grep { $_->[0] eq 'fence_write' } @messages)
	{
		my (undef, undef, undef, $stamp, $n, @rest) = @$_;
		foreach (splice @rest, 0, $n =~ s/#.*//r)
		{
			next unless /:f:\w+\.\Q$domain\E:\{(.*)\}/;
			$told{reserved}{$1} = $told{stamps}{$stamp} = 1;
		}
		push @words, @rest;
	}
	$told{ends} = [ grep { $told{stamps}{ s/^(?:-|=\d+ )//r } } @words ];
	return \%told;
}

# How many of the domain's fences the writer's transaction has reserved, and its fate; as the second session sees it.
sub pending_of
{
	my ($domain) = @_;

	return $sql->run("SELECT fences, fate FROM fence.pending WHERE domain = '$domain' AND pid = " . $writer->pid);
}

sub status_of
{
	my ($domain, @key) = @_;
	my $list = join ', ', map { "'$_'" } @key;

	return $sql->run("SELECT relation, fence_version, row_version, pending FROM fence.status('$domain', $list)");
}

# Sends what the writer's connection gathered, and waits until Redis has answered it.
sub flush_writer { $writer->run("SELECT 1 FROM fence.get('other', '1')"); return; }

# A domain with rows 1 to 4 at version 5, which are cached. attach: further arguments of fence.attach
my $tables = 0;
sub new_table
{
	my ($columns, $attach) = @_;
	my $name = 'item' . ++$tables;

	$columns //= "id int PRIMARY KEY, name text DEFAULT 'x', version bigint NOT NULL DEFAULT 0";
	$sql->run("CREATE TABLE $name ($columns)");
	$sql->run("INSERT INTO $name (id, version) SELECT g, 5 FROM generate_series(1, 4) g");
	$sql->run("SELECT fence.attach('$name'" . ($attach ? ", $attach" : '') . ')');
	poll(sub { $sql->run("SELECT status FROM fence.get('$name', '1')") ne 'unarmed' }, "$name is announced");
	warm($name, 1 .. 4);
	return $name;
}

sub warm
{
	my ($name, @keys) = @_;

	$sql->run("SELECT fence.read('$name', '$_')") foreach @keys;
	return;
}

# The statement, with :t for the table's name, in a transaction of its own. expected: key => version, of rows and
# tombstones. Checked: what is reserved while it is open, row, fence, messages.
#   setup => SQL before    new => keys that are only inserted: nothing is sent for them
#   open => [keys] reserved in the open transaction, if those are others (undef: not looked at)
#   end => [statements] in place of COMMIT
sub reserves_what_it_changes
{
	my ($title, $statement, $expected, %option) = @_;

	subtest $title => sub {
		my $table = new_table($option{columns});
		my %new = map { $_ => 1 } @{ $option{new} // [] };
		my @changed = grep { !$new{$_} } sort keys %$expected;
		my @open = exists $option{open} ? sort @{ $option{open} // [] } : @changed;

		(my $text = $statement) =~ s/:t\b/$table/g;
		if ($option{setup})
		{
			(my $setup = $option{setup}) =~ s/:t\b/$table/g;
			$sql->run($setup);
			no_reservations($node);
			warm($table, 1 .. 4);
		}
		messages();
		$writer->run("BEGIN");
		$writer->run($text);
		flush_writer();
		if (!exists $option{open} || $option{open})
		{
			is(pending_of($table), @open ? scalar(@open) . '|in progress' : '', 'reserved while it is open');
			is($sql->run("SELECT status FROM fence.get('$table', '$_')"), 'pending', "a read of $_ says so") foreach @open;
			isnt($sql->run("SELECT status FROM fence.get('$table', '$_')"), 'pending', "nothing of $_, which is new")
			  foreach sort keys %new;
		}
		$writer->run($_) foreach @{ $option{end} // ['COMMIT'] };
		no_reservations($node, 30);
		my $told = words_of($table, messages());
		ok($told->{reserved}{$_}, "$_ was reserved") foreach @changed;
		ok(!$told->{reserved}{$_}, "Redis was told nothing of $_") foreach sort keys %new;
		is_deeply($told->{ends}, [ keys %{ $told->{stamps} } ], 'one word ended it');
		foreach my $key (sort keys %$expected)
		{
			my $w = $expected->{$key};
			is(status_of($table, $key), "missing||$w|0", "$key: row after it, no fence");
			# a deleted key is a miss, everything else can be cached and is then a hit of the row's version
			$sql->run("SELECT fence.read('$table', '$key')");
			my $row = $sql->run("SELECT version FROM $table WHERE id = $key");
			is($sql->run("SELECT status, version FROM fence.get('$table', '$key')"), $row eq '' ? 'miss|' : "hit|$w",
				"$key: what a strong read finds");
		}
		compare_fences($node, $table);
		$sql->run("SELECT fence.detach('$table'); DROP TABLE $table");
	};
	return;
}

# Nothing comes of it: rows as before, nothing pending; what was reserved is not cached. Ends with ROLLBACK unless told otherwise.
#   end => statement that ends it    error => SQLSTATE that the last of statement and end raises
#   untouched => 1: nothing was reserved either, so all is cached as before
sub leaves_nothing
{
	my ($title, $statement, %option) = @_;

	subtest $title => sub {
		my $table = new_table();
		my @keys = (1 .. 5);
		my $commits = ($option{end} // '') eq 'COMMIT' && !$option{error};

		if ($option{setup})
		{
			(my $setup = $option{setup}) =~ s/:t\b/$table/g;
			$sql->run($setup);
			no_reservations($node);
			warm($table, 1 .. 4);
		}
		my @before = map { status_of($table, $_) } @keys;
		my $rows = $sql->run("SELECT * FROM $table ORDER BY id");
		messages();
		$writer->run('BEGIN');
		foreach my $part (@{ ref $statement ? $statement : [$statement] }, $option{end} // 'ROLLBACK')
		{
			(my $text = $part) =~ s/:t\b/$table/g;
			my $error = $writer->error_of($text);
			next unless defined $error;
			if ($option{error} && $error =~ /^\Q$option{error}\E:/) { pass("raises $option{error}"); delete $option{error}; }
			elsif ($error !~ /^25P02:/) { fail('no other error'); diag($error); }
		}
		ok(!$option{error}, 'the error came') if exists $option{error};
		$writer->run('ROLLBACK') if ($option{end} // '') ne 'COMMIT';
		no_reservations($node, 30);
		my $told = words_of($table, messages());
		my %reserved = %{ $told->{reserved} };
		is_deeply([ map { status_of($table, $_) } @keys ],
			[ map { $reserved{ $_ + 1 } ? $before[$_] =~ s/^equal\|\d+/missing|/r : $before[$_] } 0 .. $#keys ],
			'fences are as they were, or gone where something was reserved');
		is($sql->run("SELECT * FROM $table ORDER BY id"), $rows, 'rows too');
		is_deeply($told->{ends}, [ map { $commits ? $_ : "-$_" } keys %{ $told->{stamps} } ],
			$commits ? 'one word ended it' : 'Redis was told of no commit, in one word');
		is_deeply(\%reserved, {}, 'nothing was reserved') if $option{untouched};
		warm($table, 1 .. 4);
		is($sql->run("SELECT status, version FROM fence.get('$table', '1')"), 'hit|5', 'what was cached can be cached again');
		compare_fences($node, $table);
		$sql->run("SELECT fence.detach('$table'); DROP TABLE $table");
	};
	return;
}

$sql->run('SET client_min_messages = warning');
$writer->run('SET client_min_messages = warning');
$sql->run('CREATE TABLE other (id int PRIMARY KEY, version bigint NOT NULL DEFAULT 0)');
$sql->run("SELECT fence.attach('other')");

# ---------------------------------------------------------------------------------------------------------------------
# What is changed is reserved; what is only inserted is not
# ---------------------------------------------------------------------------------------------------------------------

reserves_what_it_changes('UPDATE that does not mention version', "UPDATE :t SET name = 'y' WHERE id = 1", { 1 => 6 });
reserves_what_it_changes('UPDATE by an application that writes version + 1 (Hibernate, lock_version)',
	"UPDATE :t SET name = 'y', version = version + 1 WHERE id = 1 AND version = 5", { 1 => 6 });
reserves_what_it_changes('UPDATE that writes the version it read', "UPDATE :t SET version = 5 WHERE id = 1", { 1 => 6 });
reserves_what_it_changes('UPDATE that writes a lower version', "UPDATE :t SET version = 1 WHERE id = 1", { 1 => 6 });
reserves_what_it_changes('UPDATE that writes NULL for the version', "UPDATE :t SET version = NULL WHERE id = 1",
	{ 1 => 6 });
reserves_what_it_changes('two UPDATEs of one row in one transaction',
	"UPDATE :t SET name = 'y' WHERE id = 1; UPDATE :t SET name = 'z' WHERE id = 1", { 1 => 7 });
reserves_what_it_changes('SELECT FOR UPDATE, then UPDATE',
	"SELECT 1 FROM :t WHERE id = 1 FOR UPDATE; UPDATE :t SET name = 'y' WHERE id = 1", { 1 => 6 });
reserves_what_it_changes('UPDATE of several rows', "UPDATE :t SET name = 'y'", { map { $_ => 6 } 1 .. 4 });
reserves_what_it_changes('INSERT without a version', "INSERT INTO :t (id) VALUES (10)", { 10 => 0 }, new => [10]);
reserves_what_it_changes('INSERT with NULL for the version',
	"INSERT INTO :t (id, version) VALUES (10, NULL)", { 10 => 1 }, new => [10]);
reserves_what_it_changes('INSERT with a version', "INSERT INTO :t (id, version) VALUES (10, 41)", { 10 => 41 },
	new => [10]);
reserves_what_it_changes('INSERT of the largest version that a row may bring',
	"INSERT INTO :t (id, version) VALUES (10, 4611686018427387903)", { 10 => '4611686018427387903' }, new => [10]);
reserves_what_it_changes('INSERT of one above: the next version of the key instead',
	"INSERT INTO :t (id, version) VALUES (10, 4611686018427387904)", { 10 => 1 }, new => [10]);
reserves_what_it_changes('INSERT of several rows',
	"INSERT INTO :t (id, version) SELECT g, g FROM generate_series(10, 12) g",
	{ map { $_ => $_ } 10 .. 12 }, new => [ 10 .. 12 ]);
reserves_what_it_changes('INSERT, then UPDATE in the same transaction',
	"INSERT INTO :t (id) VALUES (10); UPDATE :t SET name = 'y' WHERE id = 10", { 10 => 1 });
reserves_what_it_changes('COPY', "COPY :t (id, name) FROM PROGRAM 'echo 10,a; echo 11,b' (FORMAT csv)",
	{ 10 => 0, 11 => 0 }, new => [ 10, 11 ]);
reserves_what_it_changes('DELETE', "DELETE FROM :t WHERE id = 1", { 1 => 6 });
reserves_what_it_changes('DELETE of several rows', "DELETE FROM :t WHERE id <= 2", { 1 => 6, 2 => 6 });
reserves_what_it_changes('re-INSERT of a deleted key', "INSERT INTO :t (id) VALUES (1)", { 1 => 7 },
	new => [1], setup => "DELETE FROM :t WHERE id = 1");
reserves_what_it_changes('re-INSERT with a version above the tombstone', "INSERT INTO :t (id, version) VALUES (1, 50)",
	{ 1 => 50 },
	new => [1], setup => "DELETE FROM :t WHERE id = 1");
reserves_what_it_changes('DELETE and INSERT of one key in one transaction',
	"DELETE FROM :t WHERE id = 1; INSERT INTO :t (id) VALUES (1)", { 1 => 7 });
reserves_what_it_changes('DELETE, INSERT, DELETE of one key in one transaction',
	"DELETE FROM :t WHERE id = 1; INSERT INTO :t (id) VALUES (1); DELETE FROM :t WHERE id = 1", { 1 => 8 });
reserves_what_it_changes('change of the key', "UPDATE :t SET id = 10 WHERE id = 1", { 1 => 6, 10 => 5 }, new => [10]);
reserves_what_it_changes('change of the key to one that was deleted',
	"UPDATE :t SET id = 1 WHERE id = 2", { 2 => 6, 1 => 9 },
	new => [1], setup => "UPDATE :t SET name = 'y' WHERE id = 1; UPDATE :t SET name = 'z' WHERE id = 1; DELETE FROM :t WHERE id = 1");
reserves_what_it_changes('two keys change places',
	"UPDATE :t SET id = 10 WHERE id = 1; UPDATE :t SET id = 1 WHERE id = 2; "
	  . "UPDATE :t SET id = 2 WHERE id = 10", { 1 => 7, 2 => 7, 10 => 6 });
reserves_what_it_changes('ON CONFLICT DO UPDATE that updates',
	"INSERT INTO :t (id) VALUES (1) ON CONFLICT (id) DO UPDATE SET name = 'y'", { 1 => 6 });
reserves_what_it_changes('ON CONFLICT DO UPDATE that inserts',
	"INSERT INTO :t (id) VALUES (10) ON CONFLICT (id) DO UPDATE SET name = 'y'", { 10 => 0 }, new => [10]);
reserves_what_it_changes('ON CONFLICT DO UPDATE with a version that the application counts',
	"INSERT INTO :t AS t (id, version) VALUES (1, 1) ON CONFLICT (id) DO UPDATE SET version = t.version + 1", { 1 => 6 });
reserves_what_it_changes('ON CONFLICT DO NOTHING that inserts',
	"INSERT INTO :t (id) VALUES (10) ON CONFLICT DO NOTHING", { 10 => 0 }, new => [10]);
reserves_what_it_changes('MERGE', "MERGE INTO :t t USING (VALUES (1), (2), (10)) v (id) ON t.id = v.id "
	  . "WHEN MATCHED AND v.id = 2 THEN DELETE WHEN MATCHED THEN UPDATE SET name = 'y' "
	  . "WHEN NOT MATCHED THEN INSERT (id) VALUES (v.id)", { 1 => 6, 2 => 6, 10 => 0 }, new => [10]);
reserves_what_it_changes('data-modifying WITH', "WITH gone AS (DELETE FROM :t WHERE id = 1 RETURNING id) "
	  . "UPDATE :t SET name = 'y' WHERE id = 2", { 1 => 6, 2 => 6 });
reserves_what_it_changes('a PL/pgSQL block whose exception undoes an UPDATE',
	<<'SQL', { 1 => 6, 2 => 6 }, open => undef);
DO $$ BEGIN
	BEGIN
		UPDATE :t SET name = 'lost'; UPDATE :t SET name = 'lost'; RAISE division_by_zero;
	EXCEPTION WHEN division_by_zero THEN
		UPDATE :t SET name = 'y' WHERE id = 1;
	END;
	UPDATE :t SET name = 'y' WHERE id = 2;
END $$
SQL
reserves_what_it_changes('savepoints: what is rolled back, what is released, what comes after',
	<<'SQL', { 1 => 7, 2 => 6 }, open => undef);
SAVEPOINT a;
	UPDATE :t SET name = 'a' WHERE id = 1;
	SAVEPOINT b;
		UPDATE :t SET name = 'b' WHERE id = 1; UPDATE :t SET name = 'b' WHERE id = 3;
	ROLLBACK TO b;
	RELEASE b;
RELEASE a;
SAVEPOINT c;
	DELETE FROM :t WHERE id = 4; INSERT INTO :t (id) VALUES (10);
ROLLBACK TO c;
UPDATE :t SET name = 'c' WHERE id IN (1, 2);
SAVEPOINT d;
	UPDATE :t SET name = 'd';
ROLLBACK TO d
SQL
reserves_what_it_changes('savepoints: the version falls back to the one before',
	<<'SQL', { 1 => 6 });
UPDATE :t SET name = 'a' WHERE id = 1;
SAVEPOINT a;
	UPDATE :t SET name = 'b' WHERE id = 1;
	SAVEPOINT b; UPDATE :t SET name = 'b' WHERE id = 1; RELEASE b;
ROLLBACK TO a
SQL
reserves_what_it_changes('a savepoint that is rolled back after a release below it, then written again',
	<<'SQL', { 1 => 6 });
SAVEPOINT a; SAVEPOINT b; UPDATE :t SET name = 'b' WHERE id = 1; RELEASE b; ROLLBACK TO a;
UPDATE :t SET name = 'c' WHERE id = 1
SQL
reserves_what_it_changes('a deferred constraint trigger that writes at COMMIT', "UPDATE :t SET name = 'y' WHERE id = 1",
	{ 1 => 6, 2 => 6 }, open => [1], setup => <<'SQL');
CREATE OR REPLACE FUNCTION touch_next() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN EXECUTE format('UPDATE %I SET name = ''touched'' WHERE id = $1',
	TG_TABLE_NAME) USING NEW.id + 1; RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER touch AFTER UPDATE ON :t DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.id = 1)
	EXECUTE FUNCTION touch_next()
SQL
reserves_what_it_changes('session_replication_role = replica', "SET LOCAL session_replication_role = replica; "
	  . "UPDATE :t SET name = 'y' WHERE id = 1", { 1 => 6 });
reserves_what_it_changes('SERIALIZABLE',
	"SET TRANSACTION ISOLATION LEVEL SERIALIZABLE; UPDATE :t SET name = 'y' WHERE id = 1",
	{ 1 => 6 });
reserves_what_it_changes('PREPARE TRANSACTION, COMMIT PREPARED', "UPDATE :t SET name = 'y' WHERE id IN (1, 2)",
	{ 1 => 6, 2 => 6 },
	end => [ "PREPARE TRANSACTION 'p'", "COMMIT PREPARED 'p'" ]);
reserves_what_it_changes('a table whose version is smallint', "UPDATE :t SET version = version + 1",
	{ map { $_ => 6 } 1 .. 4 },
	columns => "id int PRIMARY KEY, version smallint NOT NULL DEFAULT 0");

subtest 'thousands of rows, more than is outstanding at once' => sub {
	my $table = new_table();

	$writer->run("INSERT INTO $table (id) SELECT g FROM generate_series(11, 3010) g");
	$writer->run("UPDATE $table SET name = 'y'");
	no_reservations($node);
	warm($table, 1, 11, 3010);
	is($sql->run("SELECT count(*), min(version), max(version) FROM $table WHERE id > 10"), '3000|1|1', 'stored');
	is(status_of($table, $_), 'equal|1|1|0', "$_ is cached") foreach 11, 3010;
	compare_fences($node, $table);
};

# ---------------------------------------------------------------------------------------------------------------------
# Other triggers
# ---------------------------------------------------------------------------------------------------------------------

# A BEFORE trigger of that name (ours is zzz_pgcache_fence_before) with that body.
sub before_trigger
{
	my ($name, $events, $body) = @_;

	return "CREATE OR REPLACE FUNCTION meddle() RETURNS trigger LANGUAGE plpgsql AS \$\$ BEGIN $body END \$\$; "
	  . "CREATE TRIGGER $name BEFORE $events ON :t FOR EACH ROW EXECUTE FUNCTION meddle()";
}

foreach my $which ([ aaa => 'before ours' ], [ zzzz => 'after ours' ])
{
	my ($name, $when) = @$which;
	leaves_nothing("a trigger $when suppresses the row: " . (split ' ', $_)[0], $_, end => 'COMMIT',
		untouched => scalar($name eq 'aaa' || /^INSERT/),
		setup => before_trigger($name, 'INSERT OR UPDATE OR DELETE', 'RETURN NULL;'))
	  foreach "UPDATE :t SET name = 'y'", 'INSERT INTO :t (id) VALUES (5)', 'DELETE FROM :t';
}
reserves_what_it_changes('a trigger after ours suppresses some of the rows', "UPDATE :t SET name = 'y'",
	{ 1 => 6, 3 => 6 },
	open => [ 1 .. 4 ],
	setup => before_trigger('zzzz', 'UPDATE', 'IF NEW.id % 2 = 0 THEN RETURN NULL; END IF; RETURN NEW;'));
reserves_what_it_changes('a trigger before ours rewrites the version', "UPDATE :t SET name = 'y' WHERE id = 1",
	{ 1 => 6 },
	setup => before_trigger('aaa', 'UPDATE', 'NEW.version := 1000; RETURN NEW;'));
reserves_what_it_changes('a trigger after ours stores a higher version',
	"UPDATE :t SET name = 'y' WHERE id = 1", { 1 => 1000 },
	setup => before_trigger('zzzz', 'UPDATE', 'NEW.version := 1000; RETURN NEW;'));
reserves_what_it_changes('a trigger after ours stores a higher version in a new row',
	"INSERT INTO :t (id) VALUES (10)", { 10 => 1000 },
	setup => before_trigger('zzzz', 'INSERT', 'NEW.version := 1000; RETURN NEW;'), new => [10]);
reserves_what_it_changes('a trigger after ours changes the key of a new row', "INSERT INTO :t (id) VALUES (10)",
	{ 11 => 0 },
	setup => before_trigger('zzzz', 'INSERT', 'NEW.id := 11; RETURN NEW;'), new => [11]);
reserves_what_it_changes('a trigger after ours changes the key in an UPDATE', "UPDATE :t SET name = 'y' WHERE id = 1",
	{ 1 => 6, 11 => 6 },
	setup => before_trigger('zzzz', 'UPDATE', 'NEW.id := 11; RETURN NEW;'), new => [11], open => undef);
leaves_nothing("a trigger after ours stores a $_->[0] version: 27000", "UPDATE :t SET name = 'y' WHERE id = 1",
	error => '27000',
	setup => before_trigger('zzzz', 'UPDATE', "NEW.version := $_->[1]; RETURN NEW;"))
  foreach [ lower => 4 ], [ 'the old' => 'OLD.version' ], [ negative => -1 ];
leaves_nothing('a trigger after ours stores a negative version in a new row: 27000', 'INSERT INTO :t (id) VALUES (5)',
	error => '27000', setup => before_trigger('zzzz', 'INSERT', 'NEW.version := -1; RETURN NEW;'));
# what BEFORE ROW gave a new row is not remembered: it might as well have been deleted meanwhile
leaves_nothing('a trigger after ours stores a version below the tombstone: 40001', 'INSERT INTO :t (id) VALUES (5)',
	error => '40001',
	setup => 'INSERT INTO :t (id, version) VALUES (5, 10); DELETE FROM :t WHERE id = 5;'
	  . before_trigger('zzzz', 'INSERT', 'NEW.version := 3; RETURN NEW;'));

# ---------------------------------------------------------------------------------------------------------------------
# What does not commit
# ---------------------------------------------------------------------------------------------------------------------

leaves_nothing('ROLLBACK', "UPDATE :t SET name = 'y'; DELETE FROM :t WHERE id = 1; INSERT INTO :t (id) VALUES (5)");
leaves_nothing('ROLLBACK TO the only savepoint, then COMMIT',
	"SAVEPOINT a; UPDATE :t SET name = 'y'; DELETE FROM :t WHERE id = 1; INSERT INTO :t (id) VALUES (5); ROLLBACK TO a",
	end => 'COMMIT');
leaves_nothing('ON CONFLICT DO NOTHING that does nothing', 'INSERT INTO :t (id) VALUES (1) ON CONFLICT DO NOTHING',
	end => 'COMMIT', untouched => 1);
leaves_nothing('ON CONFLICT DO UPDATE whose WHERE is false',
	"INSERT INTO :t AS t (id) VALUES (1) ON CONFLICT (id) DO UPDATE SET name = 'y' WHERE t.version > 100",
	end => 'COMMIT', untouched => 1);
leaves_nothing('an error in the middle of a statement', "UPDATE :t SET name = (1 / (3 - id))::text", error => '22012');
leaves_nothing('an error after the statement', [ "UPDATE :t SET name = 'y'", 'SELECT 1 / 0' ], error => '22012');
leaves_nothing('an error in a PL/pgSQL block that is caught',
	"DO \$\$ BEGIN UPDATE :t SET name = 'y'; RAISE division_by_zero; EXCEPTION WHEN division_by_zero THEN NULL; END \$\$",
	end => 'COMMIT');
leaves_nothing('a unique violation', 'INSERT INTO :t (id) VALUES (5), (1)', error => '23505', untouched => 1);
leaves_nothing('a foreign key that is violated at COMMIT', "UPDATE :t SET name = 'nobody' WHERE id = 1",
	end => 'COMMIT', error => '23503',
	setup => 'CREATE TABLE IF NOT EXISTS names (name text PRIMARY KEY); '
	  . "INSERT INTO names VALUES ('x') ON CONFLICT DO NOTHING; "
	  . 'ALTER TABLE :t ADD FOREIGN KEY (name) REFERENCES names DEFERRABLE INITIALLY DEFERRED');
leaves_nothing('a deferred trigger that raises at COMMIT', "UPDATE :t SET name = 'y'", end => 'COMMIT',
	error => 'P0001', setup => <<'SQL');
CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$;
CREATE CONSTRAINT TRIGGER refuse AFTER UPDATE ON :t DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()
SQL
leaves_nothing('ROLLBACK PREPARED',
	[ "UPDATE :t SET name = 'y'; DELETE FROM :t WHERE id = 1", "PREPARE TRANSACTION 'p'" ],
	end => "ROLLBACK PREPARED 'p'");

# ---------------------------------------------------------------------------------------------------------------------
# When it is reserved, and what is cached beside rows
# ---------------------------------------------------------------------------------------------------------------------

subtest "reserve => 'commit': nothing is reserved before, so a rollback costs nothing" => sub {
	foreach my $how (qw(table session))
	{
		my $table = new_table(undef, $how eq 'table' ? "reserve => 'commit'" : undef);
		my $get = sub { return $sql->run("SELECT status, version FROM fence.get('$table', '$_[0]')"); };

		$writer->run('SET pgcache_fence.reserve = commit') if $how eq 'session';
		foreach my $end (qw(ROLLBACK COMMIT))
		{
			messages();
			$writer->run("BEGIN; UPDATE $table SET name = 'y' WHERE id = 1; DELETE FROM $table WHERE id = 2");
			flush_writer();
			is(pending_of($table), '', "$how, $end: nothing is reserved while it is open");
			is($get->($_), 'hit|5', "$_ is served, as it is committed") foreach 1, 2;
			is($writer->run("SELECT fence.read('$table', '1') ->> 'name'"), 'y', 'the transaction itself reads what it wrote');
			$writer->run($end);
			no_reservations($node);
			my $told = words_of($table, messages());
			is(join(' ', sort keys %{ $told->{reserved} }), $end eq 'COMMIT' ? '1 2' : '', 'what Redis was told');
			is_deeply($told->{ends}, [ keys %{ $told->{stamps} } ], 'and one word that ends it');
			is($get->($_), $end eq 'COMMIT' ? 'miss|' : 'hit|5', "$_ after it") foreach 1, 2;
		}
		$writer->run('RESET pgcache_fence.reserve');
		compare_fences($node, $table);
	}
};

subtest 'INSERT where absence is cached: it reserves, and what was absent is not served after it' => sub {
	my $table = new_table(undef, 'cache_absent => true');
	my $get = sub { return $sql->run("SELECT status, payload FROM fence.get('$table', '10')"); };

	foreach my $end (qw(ROLLBACK COMMIT))
	{
		warm($table, 10);
		is($get->(), 'hit|null', 'that there is no row is cached');
		$writer->run("BEGIN; INSERT INTO $table (id) VALUES (10)");
		flush_writer();
		is($get->(), 'pending|', 'not while somebody inserts it');
		$writer->run($end);
		no_reservations($node);
		is($get->(), 'miss|', "nor after $end");
	}
	is($sql->run("SELECT fence.read('$table', '10') ->> 'version'"), '0', 'a reader finds the row');
	$writer->run("DELETE FROM $table WHERE id = 10");
	no_reservations($node);
	is($get->(), 'miss|', 'deleted: a miss,');
	warm($table, 10);
	is($sql->run("SELECT status, version, payload FROM fence.get('$table', '10')"), 'hit|1|null', 'then absent, with the version of the tombstone');
	compare_fences($node, $table);
};

subtest 'version overflow of the column: 22003 for an UPDATE, DELETE works' => sub {
	foreach my $type ([ smallint => '32767' ], [ integer => '2147483647' ], [ bigint => '9223372036854775806' ])
	{
		my ($name, $max) = @$type;
		my $table = new_table("id int PRIMARY KEY, name text, version $name NOT NULL DEFAULT 0");

		# versions that were there before stay
		$sql->run("SELECT fence.detach('$table')");
		$sql->run("INSERT INTO $table (id, version) VALUES (10, $max)");
		$sql->run("SELECT fence.attach('$table')");
		poll(sub { $sql->run("SELECT status FROM fence.get('$table', '1')") ne 'unarmed' }, "$table is announced");
		warm($table, 10);
		if ($name ne 'bigint')
		{
			my $error = $writer->error_of("UPDATE $table SET name = 'y' WHERE id = 10");
			like($error, qr/^22003: /, "$name: UPDATE at the largest version");
		}
		no_reservations($node);
		warm($table, 10);
		is(status_of($table, 10), "equal|$max|$max|0", 'the row is as it was');
		$writer->run("DELETE FROM $table WHERE id = 10");
		no_reservations($node);
		my $next = $name eq 'bigint' ? '9223372036854775807' : $max + 1;
		is(status_of($table, 10), "missing||$next|0", 'DELETE works: the tombstone is above');
		like($writer->error_of("INSERT INTO $table (id) VALUES (10)"), qr/^22003: /, 'a new row there would overflow');
		no_reservations($node);
	}
};

# ---------------------------------------------------------------------------------------------------------------------
# Time, and two sessions
# ---------------------------------------------------------------------------------------------------------------------

subtest 'a transaction that is pending longer than the lease is not settled by time' => sub {
	my $table = new_table();
	my ($renewals, $rounds, $reads) = (0, 0, 0);

	$writer->run("BEGIN; UPDATE $table SET name = 'y' WHERE id = 1");
	flush_writer();
	messages();
	# a renewal is sent each quarter of the lease, and each round of the patrol lists what is pending
	poll(
		sub {
			foreach my $m (messages())
			{
				$renewals++ if $m->[0] eq 'fence_renew';
				$rounds++   if $m->[0] eq 'fence_pending';
			}
			$reads++ if $sql->run("SELECT status FROM fence.get('$table', '1')") ne 'pending';
			return $renewals >= 13 && $rounds >= 13;
		},
		'renewals and rounds of the patrol');
	is($reads, 0, 'reads say pending all the time');
	is(pending_of($table), '1|in progress', 'it is still there');
	cmp_ok($sql->run("SELECT extract(epoch FROM age) FROM fence.pending WHERE domain = '$table'"),
		'>', 1.5, 'and older than three leases');
	$writer->run('COMMIT');
	no_reservations($node);
	is(status_of($table, 1), 'missing||6|0', 'it ends with its commit');
};

subtest 'two sessions: the second waits for the first' => sub {
	# the executor tells of a row before it is locked, a trigger after that
	my $early = $sql->run('SELECT capture FROM fence.state') eq 'executor' ? 2 : 1;
	foreach my $end ([ COMMIT => 7 ], [ ROLLBACK => 6 ])
	{
		my ($how, $version) = @$end;
		my $table = new_table();
		my $second = FenceTest::Session->open($node);

		$second->run("SELECT 1 FROM fence.get('other', '1')");
		flush_writer();
		$writer->run("BEGIN; UPDATE $table SET name = 'first' WHERE id = 1");
		$second->run('BEGIN');
		$second->begin("UPDATE $table SET name = 'second' WHERE id = 1");
		poll(sub { $sql->run("SELECT wait_event_type FROM pg_stat_activity WHERE pid = " . $second->pid) eq 'Lock' },
			'the lock');
		poll(sub { $sql->run("SELECT count(*) FROM fence.pending WHERE domain = '$table'") eq $early }, "$early reservations");
		$writer->run($how);
		$second->wait;
		is($second->take, '', "after $how of the first the second goes on");
		my $reserved = "SELECT fences, pid FROM fence.pending WHERE domain = '$table' AND fate = 'in progress'";
		poll(sub { $sql->run($reserved) ne '' }, 'the second reservation');
		is($sql->run($reserved), '1|' . $second->pid, 'its reservation');
		$second->run('COMMIT');
		no_reservations($node);
		is(status_of($table, 1), "missing||$version|0", 'row and fence');
	}
};

subtest 'two sessions: INSERT of one key' => sub {
	my $table = new_table();
	my $second = FenceTest::Session->open($node);

	$writer->run("BEGIN; INSERT INTO $table (id) VALUES (10)");
	$second->begin("INSERT INTO $table (id) VALUES (10)");
	poll(sub { $sql->run("SELECT wait_event_type FROM pg_stat_activity WHERE pid = " . $second->pid) eq 'Lock' },
		'the lock');
	$writer->run('COMMIT');
	like($second->error_of, qr/^23505: /, 'the second fails');
	no_reservations($node);
	warm($table, 10);
	is(status_of($table, 10), 'equal|0|0|0', 'row and fence are those of the first');
};

subtest 'two sessions: INSERT of a key that is being deleted' => sub {
	my $table = new_table();
	my $second = FenceTest::Session->open($node);

	$writer->run("BEGIN; DELETE FROM $table WHERE id = 1");
	$second->begin("INSERT INTO $table (id) VALUES (1)");
	poll(sub { $sql->run("SELECT wait_event_type FROM pg_stat_activity WHERE pid = " . $second->pid) eq 'Lock' },
		'the lock');
	$writer->run('COMMIT');
	like($second->error_of, qr/^40001: could not insert .*\nDETAIL: .*\nHINT: /,
		'the insert took its version before it knew of the tombstone');
	no_reservations($node);
	is(status_of($table, 1), 'missing||6|0', 'the tombstone');
	$second->run("INSERT INTO $table (id) VALUES (1)");
	no_reservations($node);
	is(status_of($table, 1), 'missing||7|0', 'tried again it starts above');
};

done_testing();
