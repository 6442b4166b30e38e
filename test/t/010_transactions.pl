# 010_transactions.pl
#    What a transaction reserves is what it stores, whatever the statement; and what does not commit leaves nothing.
#
# Three witnesses: fence.pending seen from a second session while the transaction is open, the messages that Redis got
# (MONITOR), and row and fence after the end.

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
		push @seen, [ @words[ 1 .. $#words ] ] if @words && $words[0] =~ /^fcall$/i;
	}
	return @seen;
}

# For each commit (or settling) of a fence of that domain among the messages: key => {w, reserved => whether that w
# was asked for before, in the same transaction}.
sub commits
{
	my ($domain, @messages) = @_;
	my (%asked, %found);

	foreach my $m (@messages)
	{
		my ($function, $count, @rest) = @$m;
		my @done;    # [operation, fence, stamp, version]
		if ($function eq 'fence_write')
		{
			my @names = splice @rest, 0, shift @rest;
			shift @rest;    # epoch
			while (my $name = shift @names)
			{
				my ($op, $stamp, @versions) = splice @rest, 0, { r => 4, c => 3, a => 2 }->{ $rest[0] };
				push @done, [ $op, $name, $stamp, $versions[-1] ];
			}
		}
		# the patrol's: namespace, fence, epoch, stamp, version
		@done = ([ 'c', @rest[ 1, 3, 4 ] ]) if $function eq 'fence_settle';
		foreach (@done)
		{
			my ($op, $name, $stamp, $w) = @$_;
			next unless $op ne 'a' && $name =~ /:f:\d+\.\Q$domain\E:\{(.*)\}/;
			my $key = $1;
			if ($op eq 'r') { $asked{"$stamp $key $w"} = 1; }
			else { $found{$key} = { w => $w, reserved => $asked{"$stamp $key $w"} ? 1 : 0 }; }
		}
	}
	return %found;
}

# Reservations as the second session sees them: "key version fate", sorted; only those of the writer.
sub pending_of
{
	my ($domain) = @_;

	return $sql->run("SELECT string_agg(key || '=' || version || ' ' || fate, ', ' ORDER BY key) FROM fence.pending "
		  . "WHERE domain = '$domain' AND pid = " . $writer->pid);
}

sub status_of
{
	my ($domain, @key) = @_;
	my $list = join ', ', map { "'$_'" } @key;

	return $sql->run("SELECT relation, fence_version, row_version, pending FROM fence.status('$domain', $list)");
}

# Sends what the writer's connection gathered, and waits until Redis has answered it.
sub flush_writer { $writer->run("SELECT 1 FROM fence.get('other', '1')"); return; }

# A domain with rows 1 to 4 at version 5, whose fences know it.
my $tables = 0;
sub new_table
{
	my ($columns) = @_;
	my $name = 'item' . ++$tables;

	$columns //= "id int PRIMARY KEY, name text DEFAULT 'x', version bigint NOT NULL DEFAULT 0";
	$sql->run("CREATE TABLE $name ($columns)");
	$sql->run("INSERT INTO $name (id, version) SELECT g, 5 FROM generate_series(1, 4) g");
	$sql->run("SELECT fence.attach('$name')");
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
# tombstones. Checked: reservations while it is open, row, fence, messages.
#   setup => SQL before    open => reservations of the open transaction, if they differ (undef: not looked at)
#   cold => keys without a fence before        end => [statements] in place of COMMIT
#   settled => 1: the patrol ends it, which does not tell of versions: the fences go
sub stores_what_it_reserved
{
	my ($title, $statement, $expected, %option) = @_;

	subtest $title => sub {
		my $table = new_table($option{columns});
		my $open = exists $option{open} ? $option{open} : $expected;

		(my $text = $statement) =~ s/:t\b/$table/g;
		if ($option{setup})
		{
			(my $setup = $option{setup}) =~ s/:t\b/$table/g;
			$sql->run($setup);
			warm($table, 1 .. 4);
		}
		messages();
		flush_writer();
		$writer->run("BEGIN");
		$writer->run($text);
		if ($open)
		{
			flush_writer();
			is(pending_of($table), join(', ', map { "$_=$open->{$_} in progress" } sort keys %$open),
				'reserved while it is open');
			is($sql->run("SELECT status FROM fence.get('$table', '$_')"), 'pending', "a read of $_ says so")
			  foreach sort keys %$open;
		}
		$writer->run($_) foreach @{ $option{end} // ['COMMIT'] };
		no_reservations($node, 30);
		my %commits = commits($table, messages());
		is_deeply([ sort keys %commits ], [ sort keys %$expected ], 'every key is committed, and no other');
		foreach my $key (sort keys %$expected)
		{
			my $w = $expected->{$key};
			my $cold = $option{settled} || grep { $_ eq $key } @{ $option{cold} // [] };
			is_deeply($commits{$key}, $option{settled} ? { w => '', reserved => 0 } : { w => $w, reserved => 1 },
				"$key: version $w was reserved, then committed");
			is(status_of($table, $key), $cold ? "missing||$w|0" : "equal|$w|$w|0", "$key: fence and row after it");
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

# Nothing comes of it: rows, fences as before; nothing pending. Ends with ROLLBACK unless told otherwise.
#   end => statement that ends it    error => SQLSTATE that the last of statement and end raises
sub leaves_nothing
{
	my ($title, $statement, %option) = @_;

	subtest $title => sub {
		my $table = new_table();
		my @keys = (1 .. 5);

		if ($option{setup})
		{
			(my $setup = $option{setup}) =~ s/:t\b/$table/g;
			$sql->run($setup);
			warm($table, 1 .. 4);
		}
		my @before = map { status_of($table, $_) } @keys;
		my $rows = $sql->run("SELECT * FROM $table ORDER BY id");
		messages();
		flush_writer();
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
		is_deeply([ map { status_of($table, $_) } @keys ], \@before, 'fences are as they were');
		is($sql->run("SELECT * FROM $table ORDER BY id"), $rows, 'rows too');
		is_deeply({ commits($table, messages()) }, {}, 'Redis was told of no commit');
		is($sql->run("SELECT status, version FROM fence.get('$table', '1')"), 'hit|5', 'what was cached is served again');
		$sql->run("SELECT fence.detach('$table'); DROP TABLE $table");
	};
	return;
}

$sql->run('SET client_min_messages = warning');
$writer->run('SET client_min_messages = warning');
$sql->run('CREATE TABLE other (id int PRIMARY KEY, version bigint NOT NULL DEFAULT 0)');
$sql->run("SELECT fence.attach('other')");

# ---------------------------------------------------------------------------------------------------------------------
# The version that Redis reserved is the version stored
# ---------------------------------------------------------------------------------------------------------------------

stores_what_it_reserved('UPDATE that does not mention version', "UPDATE :t SET name = 'y' WHERE id = 1", { 1 => 6 });
stores_what_it_reserved('UPDATE by an application that writes version + 1 (Hibernate, lock_version)',
	"UPDATE :t SET name = 'y', version = version + 1 WHERE id = 1 AND version = 5", { 1 => 6 });
stores_what_it_reserved('UPDATE that writes the version it read', "UPDATE :t SET version = 5 WHERE id = 1", { 1 => 6 });
stores_what_it_reserved('UPDATE that writes a lower version', "UPDATE :t SET version = 1 WHERE id = 1", { 1 => 6 });
stores_what_it_reserved('UPDATE that writes NULL for the version', "UPDATE :t SET version = NULL WHERE id = 1",
	{ 1 => 6 });
stores_what_it_reserved('two UPDATEs of one row in one transaction',
	"UPDATE :t SET name = 'y' WHERE id = 1; UPDATE :t SET name = 'z' WHERE id = 1", { 1 => 7 });
stores_what_it_reserved('SELECT FOR UPDATE, then UPDATE',
	"SELECT 1 FROM :t WHERE id = 1 FOR UPDATE; UPDATE :t SET name = 'y' WHERE id = 1", { 1 => 6 });
stores_what_it_reserved('UPDATE of several rows', "UPDATE :t SET name = 'y'", { map { $_ => 6 } 1 .. 4 });
stores_what_it_reserved('INSERT without a version', "INSERT INTO :t (id) VALUES (10)", { 10 => 0 }, cold => [10]);
stores_what_it_reserved('INSERT with NULL for the version',
	"INSERT INTO :t (id, version) VALUES (10, NULL)", { 10 => 1 }, cold => [10]);
stores_what_it_reserved('INSERT with a version', "INSERT INTO :t (id, version) VALUES (10, 41)", { 10 => 41 },
	cold => [10]);
stores_what_it_reserved('INSERT of the largest version that a row may bring',
	"INSERT INTO :t (id, version) VALUES (10, 4611686018427387903)", { 10 => '4611686018427387903' }, cold => [10]);
stores_what_it_reserved('INSERT of one above: the next version of the key instead',
	"INSERT INTO :t (id, version) VALUES (10, 4611686018427387904)", { 10 => 1 }, cold => [10]);
stores_what_it_reserved('INSERT of several rows',
	"INSERT INTO :t (id, version) SELECT g, g FROM generate_series(10, 12) g",
	{ map { $_ => $_ } 10 .. 12 }, cold => [ 10 .. 12 ]);
stores_what_it_reserved('INSERT, then UPDATE in the same transaction',
	"INSERT INTO :t (id) VALUES (10); UPDATE :t SET name = 'y' WHERE id = 10", { 10 => 1 }, cold => [10]);
stores_what_it_reserved('COPY', "COPY :t (id, name) FROM PROGRAM 'echo 10,a; echo 11,b' (FORMAT csv)",
	{ 10 => 0, 11 => 0 }, cold => [ 10, 11 ]);
stores_what_it_reserved('DELETE', "DELETE FROM :t WHERE id = 1", { 1 => 6 });
stores_what_it_reserved('DELETE of several rows', "DELETE FROM :t WHERE id <= 2", { 1 => 6, 2 => 6 });
stores_what_it_reserved('re-INSERT of a deleted key', "INSERT INTO :t (id) VALUES (1)", { 1 => 7 },
	setup => "DELETE FROM :t WHERE id = 1");
stores_what_it_reserved('re-INSERT with a version above the tombstone', "INSERT INTO :t (id, version) VALUES (1, 50)",
	{ 1 => 50 },
	setup => "DELETE FROM :t WHERE id = 1");
stores_what_it_reserved('DELETE and INSERT of one key in one transaction',
	"DELETE FROM :t WHERE id = 1; INSERT INTO :t (id) VALUES (1)", { 1 => 7 });
stores_what_it_reserved('DELETE, INSERT, DELETE of one key in one transaction',
	"DELETE FROM :t WHERE id = 1; INSERT INTO :t (id) VALUES (1); DELETE FROM :t WHERE id = 1", { 1 => 8 });
stores_what_it_reserved('change of the key', "UPDATE :t SET id = 10 WHERE id = 1", { 1 => 6, 10 => 5 }, cold => [10]);
stores_what_it_reserved('change of the key to one that was deleted',
	"UPDATE :t SET id = 1 WHERE id = 2", { 2 => 6, 1 => 9 },
	setup => "UPDATE :t SET name = 'y' WHERE id = 1; UPDATE :t SET name = 'z' WHERE id = 1; DELETE FROM :t WHERE id = 1");
stores_what_it_reserved('two keys change places',
	"UPDATE :t SET id = 10 WHERE id = 1; UPDATE :t SET id = 1 WHERE id = 2; "
	  . "UPDATE :t SET id = 2 WHERE id = 10", { 1 => 7, 2 => 7, 10 => 6 }, cold => [10]);
stores_what_it_reserved('ON CONFLICT DO UPDATE that updates',
	"INSERT INTO :t (id) VALUES (1) ON CONFLICT (id) DO UPDATE SET name = 'y'", { 1 => 6 });
stores_what_it_reserved('ON CONFLICT DO UPDATE that inserts',
	"INSERT INTO :t (id) VALUES (10) ON CONFLICT (id) DO UPDATE SET name = 'y'", { 10 => 0 }, cold => [10]);
stores_what_it_reserved('ON CONFLICT DO UPDATE with a version that the application counts',
	"INSERT INTO :t AS t (id, version) VALUES (1, 1) ON CONFLICT (id) DO UPDATE SET version = t.version + 1", { 1 => 6 });
stores_what_it_reserved('ON CONFLICT DO NOTHING that inserts',
	"INSERT INTO :t (id) VALUES (10) ON CONFLICT DO NOTHING", { 10 => 0 }, cold => [10]);
stores_what_it_reserved('MERGE', "MERGE INTO :t t USING (VALUES (1), (2), (10)) v (id) ON t.id = v.id "
	  . "WHEN MATCHED AND v.id = 2 THEN DELETE WHEN MATCHED THEN UPDATE SET name = 'y' "
	  . "WHEN NOT MATCHED THEN INSERT (id) VALUES (v.id)", { 1 => 6, 2 => 6, 10 => 0 }, cold => [10]);
stores_what_it_reserved('data-modifying WITH', "WITH gone AS (DELETE FROM :t WHERE id = 1 RETURNING id) "
	  . "UPDATE :t SET name = 'y' WHERE id = 2", { 1 => 6, 2 => 6 });
stores_what_it_reserved('a PL/pgSQL block whose exception undoes an UPDATE',
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
stores_what_it_reserved('savepoints: what is rolled back, what is released, what comes after',
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
stores_what_it_reserved('savepoints: the version falls back to the one before',
	<<'SQL', { 1 => 6 }, open => { 1 => 8 });
UPDATE :t SET name = 'a' WHERE id = 1;
SAVEPOINT a;
	UPDATE :t SET name = 'b' WHERE id = 1;
	SAVEPOINT b; UPDATE :t SET name = 'b' WHERE id = 1; RELEASE b;
ROLLBACK TO a
SQL
stores_what_it_reserved('a savepoint that is rolled back after a release below it, then written again',
	<<'SQL', { 1 => 6 });
SAVEPOINT a; SAVEPOINT b; UPDATE :t SET name = 'b' WHERE id = 1; RELEASE b; ROLLBACK TO a;
UPDATE :t SET name = 'c' WHERE id = 1
SQL
stores_what_it_reserved('a deferred constraint trigger that writes at COMMIT', "UPDATE :t SET name = 'y' WHERE id = 1",
	{ 1 => 6, 2 => 6 }, open => { 1 => 6 }, setup => <<'SQL');
CREATE OR REPLACE FUNCTION touch_next() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN EXECUTE format('UPDATE %I SET name = ''touched'' WHERE id = $1',
	TG_TABLE_NAME) USING NEW.id + 1; RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER touch AFTER UPDATE ON :t DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.id = 1)
	EXECUTE FUNCTION touch_next()
SQL
stores_what_it_reserved('session_replication_role = replica', "SET LOCAL session_replication_role = replica; "
	  . "UPDATE :t SET name = 'y' WHERE id = 1", { 1 => 6 });
stores_what_it_reserved('SERIALIZABLE',
	"SET TRANSACTION ISOLATION LEVEL SERIALIZABLE; UPDATE :t SET name = 'y' WHERE id = 1",
	{ 1 => 6 });
stores_what_it_reserved('PREPARE TRANSACTION, COMMIT PREPARED', "UPDATE :t SET name = 'y' WHERE id IN (1, 2)",
	{ 1 => 6, 2 => 6 },
	end => [ "PREPARE TRANSACTION 'p'", "COMMIT PREPARED 'p'" ],
	settled => 1);
stores_what_it_reserved('a table whose version is smallint', "UPDATE :t SET version = version + 1",
	{ map { $_ => 6 } 1 .. 4 },
	columns => "id int PRIMARY KEY, version smallint NOT NULL DEFAULT 0");

subtest 'thousands of rows, more than is outstanding at once' => sub {
	my $table = new_table();

	$writer->run("INSERT INTO $table (id) SELECT g FROM generate_series(11, 3010) g");
	$writer->run("UPDATE $table SET name = 'y'");
	no_reservations($node);
	warm($table, 1, 11, 3010);
	is($sql->run("SELECT count(*), min(version), max(version) FROM $table WHERE id > 10"), '3000|1|1', 'stored');
	is(status_of($table, 3010), 'equal|1|1|0', 'the last one');
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
		setup => before_trigger($name, 'INSERT OR UPDATE OR DELETE', 'RETURN NULL;'))
	  foreach "UPDATE :t SET name = 'y'", 'INSERT INTO :t (id) VALUES (5)', 'DELETE FROM :t';
}
stores_what_it_reserved('a trigger after ours suppresses some of the rows', "UPDATE :t SET name = 'y'",
	{ 1 => 6, 3 => 6 },
	open => { map { $_ => 6 } 1 .. 4 },
	setup => before_trigger('zzzz', 'UPDATE', 'IF NEW.id % 2 = 0 THEN RETURN NULL; END IF; RETURN NEW;'));
stores_what_it_reserved('a trigger before ours rewrites the version', "UPDATE :t SET name = 'y' WHERE id = 1",
	{ 1 => 6 },
	setup => before_trigger('aaa', 'UPDATE', 'NEW.version := 1000; RETURN NEW;'));
stores_what_it_reserved('a trigger after ours stores a higher version: that one is fenced',
	"UPDATE :t SET name = 'y' WHERE id = 1", { 1 => 1000 },
	setup => before_trigger('zzzz', 'UPDATE', 'NEW.version := 1000; RETURN NEW;'));
stores_what_it_reserved('a trigger after ours stores a higher version in a new row',
	"INSERT INTO :t (id) VALUES (10)", { 10 => 1000 },
	setup => before_trigger('zzzz', 'INSERT', 'NEW.version := 1000; RETURN NEW;'), cold => [10]);
stores_what_it_reserved('a trigger after ours changes the key of a new row', "INSERT INTO :t (id) VALUES (10)",
	{ 11 => 0 },
	setup => before_trigger('zzzz', 'INSERT', 'NEW.id := 11; RETURN NEW;'), cold => [11], open => undef);
stores_what_it_reserved('a trigger after ours changes the key in an UPDATE', "UPDATE :t SET name = 'y' WHERE id = 1",
	{ 1 => 6, 11 => 6 },
	setup => before_trigger('zzzz', 'UPDATE', 'NEW.id := 11; RETURN NEW;'), cold => [11], open => undef);
leaves_nothing("a trigger after ours stores a $_->[0] version: 27000", "UPDATE :t SET name = 'y' WHERE id = 1",
	error => '27000',
	setup => before_trigger('zzzz', 'UPDATE', "NEW.version := $_->[1]; RETURN NEW;"))
  foreach [ lower => 4 ], [ 'the old' => 'OLD.version' ], [ negative => -1 ];
leaves_nothing('a trigger after ours stores a negative version in a new row: 27000', 'INSERT INTO :t (id) VALUES (5)',
	error => '27000', setup => before_trigger('zzzz', 'INSERT', 'NEW.version := -1; RETURN NEW;'));
leaves_nothing('a trigger after ours stores a version below the tombstone: 27000', 'INSERT INTO :t (id) VALUES (5)',
	error => '27000',
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
	end => 'COMMIT');
leaves_nothing('ON CONFLICT DO UPDATE whose WHERE is false',
	"INSERT INTO :t AS t (id) VALUES (1) ON CONFLICT (id) DO UPDATE SET name = 'y' WHERE t.version > 100",
	end => 'COMMIT');
leaves_nothing('an error in the middle of a statement', "UPDATE :t SET name = (1 / (3 - id))::text", error => '22012');
leaves_nothing('an error after the statement', [ "UPDATE :t SET name = 'y'", 'SELECT 1 / 0' ], error => '22012');
leaves_nothing('an error in a PL/pgSQL block that is caught',
	"DO \$\$ BEGIN UPDATE :t SET name = 'y'; RAISE division_by_zero; EXCEPTION WHEN division_by_zero THEN NULL; END \$\$",
	end => 'COMMIT');
leaves_nothing('a unique violation', 'INSERT INTO :t (id) VALUES (5), (1)', error => '23505');
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
		is(status_of($table, 10), "equal|$max|$max|0", 'the fence is as it was');
		$writer->run("DELETE FROM $table WHERE id = 10");
		no_reservations($node);
		my $next = $name eq 'bigint' ? '9223372036854775807' : $max + 1;
		is(status_of($table, 10), "equal|$next|$next|0", 'DELETE works: the tombstone is above');
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
	is(pending_of($table), '1=6 in progress', 'it is still there');
	cmp_ok($sql->run("SELECT extract(epoch FROM age) FROM fence.pending WHERE domain = '$table'"),
		'>', 1.5, 'and older than three leases');
	$writer->run('COMMIT');
	no_reservations($node);
	is(status_of($table, 1), 'equal|6|6|0', 'it ends with its commit');
};

subtest 'two sessions: the second waits for the first, and reserves what it stores' => sub {
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
		# the first one's is on its way
		poll(sub { $sql->run("SELECT count(*) FROM fence.pending WHERE domain = '$table'") ne '0' }, 'the reservation');
		is($sql->run("SELECT count(*) FROM fence.pending WHERE domain = '$table'"), '1', 'who waits has reserved nothing');
		$writer->run($how);
		$second->wait;
		is($second->take, '', "after $how of the first the second goes on");
		my $reserved = "SELECT version, pid FROM fence.pending WHERE domain = '$table' AND fate = 'in progress'";
		poll(sub { $sql->run($reserved) ne '' }, 'the second reservation');
		is($sql->run($reserved), "$version|" . $second->pid, 'its reservation');
		$second->run('COMMIT');
		no_reservations($node);
		is(status_of($table, 1), "equal|$version|$version|0", 'row and fence');
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
	is(status_of($table, 1), 'equal|6|6|0', 'the fence is at the tombstone');
	$second->run("INSERT INTO $table (id) VALUES (1)");
	no_reservations($node);
	is(status_of($table, 1), 'equal|7|7|0', 'tried again it starts above');
};

done_testing();
