# Memory and file descriptors hold steady: many fenced transactions in one session, many reconnects of each process
# that talks to Redis. Measured are the backend, the courier, the keeper, the patrol, and Redis with its functions.
#
# FENCE_TRANSACTIONS and FENCE_RECONNECTS (of each process) tell how many; "sh test/memory.sh leaks" asks for many more.

use strict;
use warnings;

use FenceTest;
use IPC::Open2;
use Test::More;
use Time::HiRes qw(time usleep);

my $transactions = $ENV{FENCE_TRANSACTIONS} || 20_000;
my $reconnects   = $ENV{FENCE_RECONNECTS}   || 300;

# What may be more at the end than after a tenth of the work: kilobytes, and open files (a backend opens and closes those of
# tables as it likes). Even in the short run that is less than 20 bytes per transaction, or one connection per reconnect.
my %bound = (kB => 512, files => 16);

my ($redis, $node, %process);

# ---------------------------------------------------------------------------------------------------------------------
# A session that costs less per statement than FenceTest::Session
# ---------------------------------------------------------------------------------------------------------------------

my ($to_psql, $from_psql, $psql);

sub open_session
{
	$psql = open2($from_psql, $to_psql, qw(psql -X -q -A -t -v ON_ERROR_STOP=1 -d), $node->connstr('postgres'));
	$to_psql->autoflush(1);
	$process{backend} = ask('SELECT pg_backend_pid()');
	return;
}

# The output of statements, which end with a semicolon (but for the last one).
sub ask
{
	my ($sql) = @_;
	my $output = '';

	local $SIG{PIPE} = 'IGNORE';
	local $SIG{ALRM} = sub { die "psql did not finish: $sql\n" };
	alarm 300;
	print $to_psql "$sql;\n\\echo .\n";
	while (1)
	{
		my $line = <$from_psql> // die "psql has ended: $sql\n";
		last if $line eq ".\n";
		$output .= $line;
	}
	alarm 0;
	chomp $output;
	return $output;
}

# ---------------------------------------------------------------------------------------------------------------------
# Measuring
# ---------------------------------------------------------------------------------------------------------------------

# Kilobytes of a process that it shares with nobody.
sub kilobytes
{
	my ($pid) = @_;

	open my $status, '<', "/proc/$pid/status" or die "process $pid is gone\n";
	return (map { /^RssAnon:\s+(\d+)/ ? $1 : () } <$status>)[0];
}

sub files
{
	my ($pid) = @_;
	my @files = glob "/proc/$pid/fd/*";

	return scalar @files;
}

# Name and unit => value.
sub measure
{
	my %now;

	foreach my $name (sort keys %process)
	{
		$now{"$name, kB"}    = kilobytes($process{$name});
		$now{"$name, files"} = files($process{$name});
	}
	# what functions keep, not what they have left for the collector
	$redis->call('FCALL', 'collect_all', 0);
	my $info = $redis->call('INFO', 'memory');
	$now{'Redis data, kB'} = int($info =~ /^used_memory:(\d+)/m ? $1 / 1024 : die $info);
	$now{'Redis functions, kB'} = int($info =~ /^used_memory_vm_functions:(\d+)/m ? $1 / 1024 : die $info);
	return \%now;
}

# Measures when a tenth, a half and all of the work is done; work($n) does n of it, whose names are only for the output.
sub steady
{
	my ($names, $total, $work) = @_;
	my $started = time();
	my @samples;

	foreach my $part (0.1, 0.4, 0.5)
	{
		$work->(int($total * $part));
		# the least of several looks, for buffers come and go
		my $least = measure();
		foreach (1 .. 5)
		{
			$work->(int($total / 1000) + 1);
			my $now = measure();
			foreach (keys %$now) { $least->{$_} = $now->{$_} if $now->{$_} < $least->{$_}; }
		}
		push @samples, $least;
	}
	note sprintf '%-22s %9s %9s %9s', "$total $names", '10 %', '50 %', '100 %';
	foreach my $what (sort keys %{ $samples[0] })
	{
		my @values = map { $_->{$what} } @samples;
		my ($unit) = $what =~ /(\w+)$/;

		note sprintf '%-22s %9d %9d %9d', $what, @values;
		cmp_ok($values[2] - $values[0], '<=', $bound{$unit}, "$names: $what") or diag("10 %, 50 %, 100 %: @values");
	}
	note sprintf '%.0f s', time() - $started;
	return;
}

# Workers restart when they fail; then nothing was measured.
sub same_processes
{
	my ($what) = @_;

	foreach my $name (grep { $_ ne 'backend' } sort keys %process)
	{
		is(ask("SELECT pid FROM pg_stat_activity WHERE backend_type = 'pgcache_fence $name'"), $process{$name}, "$what: the $name is the same");
	}
	is(ask('SELECT bypassed_transactions FROM fence.state'), 0, "$what: every transaction was fenced");
	return;
}

# ---------------------------------------------------------------------------------------------------------------------
# Transactions
# ---------------------------------------------------------------------------------------------------------------------

my $schema = <<'SQL';
CREATE TABLE item (id int PRIMARY KEY, name text NOT NULL DEFAULT 'x', version bigint NOT NULL DEFAULT 0);
INSERT INTO item (id) SELECT g FROM generate_series(1, 1000) g;
CREATE TABLE member (id int PRIMARY KEY, room int NOT NULL);
INSERT INTO member SELECT g, g % 50 FROM generate_series(1, 200) g;
CREATE TABLE scratch (id int PRIMARY KEY, version bigint NOT NULL DEFAULT 0);
SELECT fence.attach('item'), fence.attach('member', key => '{room}', scope => 'group'), fence.attach('scratch'),
	fence.attach(NULL, domain => 'manual', scope => 'manual');

-- Transactions first .. first + n - 1 of a mix; each ends with one COMMIT or ROLLBACK.
CREATE PROCEDURE mix(first bigint, n bigint) LANGUAGE plpgsql AS $$
DECLARE
	k int;
BEGIN
	FOR i IN first .. first + n - 1 LOOP
		k := (i / 20) % 1000 + 1;
		IF i % 3000 = 17 THEN
			UPDATE item SET name = 'many' WHERE id BETWEEN 100 AND 400;
		ELSIF i % 3000 = 18 THEN
			TRUNCATE scratch;
			INSERT INTO scratch (id) SELECT g FROM generate_series(1, 20) g;
		ELSE
			CASE i % 20
				WHEN 0 THEN
					DELETE FROM item WHERE id = k;
				WHEN 1 THEN
					INSERT INTO item (id) VALUES (k) ON CONFLICT DO NOTHING;
				WHEN 2 THEN
					UPDATE item SET name = 'aborted' WHERE id = k;
					ROLLBACK;
					CONTINUE;
				WHEN 3 THEN
					FOR s IN 1 .. 5 LOOP
						BEGIN
							UPDATE item SET name = 'savepoint' WHERE id = k + s;
							IF s % 2 = 0 THEN RAISE EXCEPTION 'back'; END IF;
						EXCEPTION WHEN raise_exception THEN NULL;
						END;
					END LOOP;
				WHEN 4 THEN
					BEGIN
						UPDATE item SET name = 'outer' WHERE id = k;
						BEGIN
							DELETE FROM item WHERE id = k;
							INSERT INTO item (id) VALUES (k);
							RAISE EXCEPTION 'back';
						EXCEPTION WHEN raise_exception THEN NULL;
						END;
					EXCEPTION WHEN raise_exception THEN NULL;
					END;
				WHEN 5 THEN
					UPDATE member SET room = (room + 1) % 50 WHERE id = k % 200 + 1;
				WHEN 6 THEN
					PERFORM fence.begin_write('manual', 0, (k % 100)::text);
				WHEN 7 THEN
					PERFORM fence.read('item', k::text);
					UPDATE scratch SET id = id WHERE id = k % 20 + 1;
				WHEN 8 THEN
					UPDATE item SET name = 'few' WHERE id BETWEEN k AND k + 10;
				ELSE
					UPDATE item SET name = 'one' WHERE id = i % 1000 + 1;
			END CASE;
		END IF;
		COMMIT;
	END LOOP;
END $$;
SQL

# What a procedure cannot do, and statements that fail.
my $by_hand = <<'SQL';
BEGIN; UPDATE item SET name = 'a' WHERE id = 1; SAVEPOINT s; UPDATE item SET name = 'b' WHERE id = 2;
	ROLLBACK TO s; DELETE FROM item WHERE id = 3; RELEASE s; INSERT INTO item (id) VALUES (3); COMMIT;
BEGIN; UPDATE item SET name = 'p' WHERE id = 4; PREPARE TRANSACTION 'p'; COMMIT PREPARED 'p';
BEGIN; UPDATE item SET name = 'p' WHERE id = 5; PREPARE TRANSACTION 'p'; ROLLBACK PREPARED 'p';
\set ON_ERROR_STOP 0
UPDATE item SET name = NULL WHERE id = 6;
BEGIN; UPDATE item SET name = 'c' WHERE id = 7; SELECT 1 / 0; COMMIT;
\set ON_ERROR_STOP 1
SELECT fence.get('item', '1') IS NULL, fence.status('item', '1') IS NULL, count(*) FROM fence.pending
SQL

my $done = 0;

sub transact
{
	my ($n) = @_;

	while ($n > 0)
	{
		my $some = $n < 1000 ? $n : 1000;
		ask("CALL mix($done, $some)");
		ask($by_hand);
		$done += $some;
		$n    -= $some;
	}
	return;
}

# ---------------------------------------------------------------------------------------------------------------------
# Reconnects
# ---------------------------------------------------------------------------------------------------------------------

# As poll, which looks too seldom to be used a hundred thousand times.
sub soon
{
	my ($condition, $what) = @_;
	my $deadline = time() + 60;
	my $result;

	until ($result = $condition->())
	{
		die "timed out waiting for $what\n" if time() > $deadline;
		usleep(200);
	}
	return $result;
}

# Ids in Redis of the connections that it has now, by address.
sub connections
{
	return { map { /^id=(\d+) addr=(\S+)/ ? ($2 => $1) : () } split /\n/, $redis->call('CLIENT', 'LIST') };
}

# Ids of a process's own connections: its sockets, their ports, who in Redis has these.
sub connections_of
{
	my ($pid) = @_;
	my %mine = map { (readlink($_) // '') =~ /^socket:\[(\d+)\]/ ? ($1 => 1) : () } glob "/proc/$pid/fd/*";
	my $all = connections();
	my @ids;

	open my $sockets, '<', '/proc/net/tcp' or die "/proc/net/tcp: $!";
	while (<$sockets>)
	{
		my (undef, $local, $remote, @rest) = split;
		next unless defined $remote && $mine{ $rest[6] };
		my $id = $all->{ '127.0.0.1:' . hex((split /:/, $local)[1]) };
		push @ids, $id if defined $id;
	}
	return @ids;
}

# Cuts the process's connection again and again; use makes it connect, perhaps only the next time.
sub reconnect
{
	my ($name, $way, $use) = @_;
	my $title = "reconnects of the $name, $way";
	my %others;

	$use->();
	%others = map { $_ => 1 } values %{ connections() };
	delete @others{ connections_of($process{$name}) };
	steady($title, $reconnects, sub {
		foreach (1 .. $_[0])
		{
			my $id = soon(sub {
					my ($newest) = sort { $b <=> $a } grep { !$others{$_} } values %{ connections() };
					$use->() unless $newest;
					return $newest;
				}, "a connection of the $name");
			$redis->attempt('CLIENT', 'KILL', 'ID', $id);
			# one that was cut before it was of any use would be an outage
			$use->();
		}
	});
	same_processes($title);
	return;
}

# A signal that only wakes: the keeper renews the lease at once, the patrol begins a round.
sub wake { my ($name) = @_; kill 'USR1', $process{$name}; return; }

sub lease_end { return ask('SELECT extract(epoch FROM clock_timestamp() + lease_left) FROM fence.nodes'); }

# ---------------------------------------------------------------------------------------------------------------------

$redis = FenceTest::Redis->start;
# all libraries have one Lua, and one collector
$redis->call('FUNCTION', 'LOAD',
	"#!lua name=collect\nredis.register_function('collect_all', function() collectgarbage() collectgarbage() return 1 end)");
$node = new_postgres('main', $redis,
	max_prepared_transactions => 5,
	synchronous_commit        => 'off',
	fsync                     => 'off',
	lease                     => '60s',
	bulk_threshold            => 200,
	log_min_messages          => 'fatal');
open_session();
ask($schema);
poll(sub { ask("SELECT status FROM fence.get('scratch', '1')") ne 'unarmed' }, 'the domains');
foreach my $name (qw(courier keeper patrol))
{
	$process{$name} = ask("SELECT pid FROM pg_stat_activity WHERE backend_type = 'pgcache_fence $name'");
}

# The library remembers the last 10,000 to 20,000 ends. It has seen as many before anything is measured.
my $header = ask("SELECT current_setting('pgcache_fence.namespace') || ' ' || epoch FROM fence.state");
my ($namespace) = split / /, $header;
foreach my $n (1 .. 61)
{
	$redis->call('FCALL', 'fence_write', 0, $header, "1.$n", 1000, map { "$namespace:f:1.memory:{$n.$_}" } 1 .. 1000);
	$redis->call('FCALL', 'fence_write', 0, $header, '', 0, "1.$n");
}

steady('transactions', $transactions, \&transact);
same_processes('transactions');

reconnect('backend', 'which reads', sub { ask("SELECT fence.get('item', '1')") });
reconnect('backend', 'which writes', sub { ask("UPDATE item SET name = 'again' WHERE id = 1") });
reconnect('courier', 'which ends reservations', sub { ask("UPDATE item SET name = 'again' WHERE id = 1") });
reconnect('keeper', 'which renews', sub { my $before = lease_end(); wake('keeper'); soon(sub { lease_end() > $before + 0.0001 }, 'a renewal'); });
reconnect('patrol', 'which lists', sub { wake('patrol') });

close $to_psql;
waitpid $psql, 0;
no_reservations($node);
compare_fences($node, 'item');
$node->stop('fast');
done_testing();
