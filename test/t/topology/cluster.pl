# redis+cluster://: keys in all slots, changes of the cluster under load. Nothing stale is read, nothing waits for long.

use strict;
use warnings;

use FenceTest;
use FenceTest::Cluster;
use FenceTest::Session;
use File::Temp;
use IPC::Run;
use Test::More;
use Time::HiRes qw(time);

my $KEYS = 300;
my $cluster = FenceTest::Cluster->start(3);
my $node = new_postgres('cluster', undef, redis_url => $cluster->url, max_prepared_transactions => 5,
	wal_level => 'replica', max_wal_senders => 2);
my $sql = FenceTest::Session->open($node);
my $reader = "$TOP/test/lib/cluster_reader.py";

sub state_of { my ($field) = @_; return $sql->run("SELECT $field FROM fence.state"); }
sub epoch_number { return (split /-/, state_of('epoch'))[0]; }

# "port slots" of each process that was granted any, sorted; and as the cluster itself sees it.
sub granted
{
	return $sql->run(q(SELECT string_agg(split_part(address, ':', 2) || ' ' || slots, ', ' ORDER BY address) FROM fence.nodes WHERE slots > 0));
}

sub owned
{
	my %slots;
	$slots{ $_->[2][1] } += $_->[1] - $_->[0] + 1 foreach @{ ($cluster->alive)[0]->call('CLUSTER', 'SLOTS') };
	return join ', ', map { "$_ $slots{$_}" } sort keys %slots;
}

# Waits until everything is granted as the cluster has it, and readers are answered.
sub settled
{
	my ($what) = @_;
	my $begin = time();

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $reached = eval {
		poll(sub { state_of('state') eq 'OPEN' && granted() eq owned() }, $what, 60);
		poll(sub { $sql->run("SELECT bool_and((fence.get('item', id::text)).status NOT IN ('unarmed', 'unavailable')) FROM item") eq 't' },
			'the announcement');
	};
	ok($reached, $what) or diag(granted() . ' granted, ' . owned() . ' there: ' . state_of('state, reason'));
	return time() - $begin;
}

# Some slots of a master: the first n with keys of item, and an empty one.
sub slots_of
{
	my ($master, $n) = @_;
	my %seen = map { $_ => 1 } split /\n/, $sql->run("SELECT fence.key_slot(fence.fence_key('item', id::text)) FROM item");
	my $router = $cluster->router;
	my @own = grep { $router->{server_of}->($_) == $master } 0 .. 16383;

	return ((grep { $seen{$_} } @own)[ 0 .. $n - 1 ], (grep { !$seen{$_} } @own)[0]);
}

sub compare { return FenceTest::Comparison->new($node, redis => $cluster->router); }

is(granted(), owned(), 'every master was granted its slots');
is($sql->run('SELECT sum(slots) FROM fence.nodes'), 16384, 'all of them');
$sql->run(<<"SQL");
CREATE TABLE item (id int PRIMARY KEY, n int NOT NULL DEFAULT 0, version bigint NOT NULL DEFAULT 0);
INSERT INTO item SELECT g FROM generate_series(1, $KEYS) g;
SELECT fence.attach('item');
CREATE TABLE part (room int, id int, version bigint NOT NULL DEFAULT 0, PRIMARY KEY (room, id));
INSERT INTO part SELECT g % 10, g FROM generate_series(1, 100) g;
SELECT fence.attach('part', tag => 'room/{room}');
CREATE TABLE stop ();
CREATE TABLE done (n bigint, slowest interval);
CREATE PROCEDURE write_on() LANGUAGE plpgsql AS \$\$
DECLARE
	n bigint := 0;
	started timestamptz;
	slowest interval := '0';
BEGIN
	WHILE to_regclass('stop') IS NOT NULL LOOP
		started := clock_timestamp();
		UPDATE item SET n = item.n + 1 WHERE id IN (1 + (random() * ${\($KEYS - 1)})::int, 1 + (random() * ${\($KEYS - 1)})::int);
		COMMIT;
		n := n + 1;
		slowest := greatest(slowest, clock_timestamp() - started);
		PERFORM pg_sleep(0.002);
	END LOOP;
	INSERT INTO done VALUES (n, slowest);
END \$\$;
SQL
settled('announced');

subtest 'slots are counted as Redis counts them' => sub {
	my @keys = split /\n/, $sql->run(q(
		SELECT k || ' ' || fence.key_slot(k) FROM (
			SELECT string_agg(substr('{}{}abcdefghij/:0123456789', 1 + (random() * 25)::int, 1), '') AS k
			  FROM generate_series(1, 100000) g, generate_series(1, 1 + g % 12) c GROUP BY g) x));
	my $wrong = '';
	my $redis = ($cluster->masters)[0]->connect;

	push @keys, map { "$_ " . $sql->run("SELECT fence.key_slot('$_')") } '', '{}', '{}{a}', 'a{b}{c}', '{{a}}', 'a}{b', '{a';
	cmp_ok(scalar(grep { /\{\}|\}.*\{/ } @keys), '>', 1000, 'among them empty and several tags');
	while (my @some = splice @keys, 0, 1000)
	{
		$redis->send('CLUSTER', 'KEYSLOT', (split / /, $_)[0]) foreach @some;
		foreach (@some) { my $slot = $redis->reply; $wrong .= "$_, not $slot\n" if $slot != (split / /, $_)[1]; }
	}
	is($wrong, '', '100,000 keys');
};

subtest 'statements over all slots' => sub {
	my $compare = compare();

	$compare->holds($_, $_) foreach 'UPDATE item SET n = 1 WHERE id = 1', 'UPDATE item SET n = n + 1', 'DELETE FROM item WHERE id % 7 = 0',
	  'INSERT INTO item SELECT g FROM generate_series(7, 70, 7) g', 'UPDATE item SET id = id + 1000 WHERE id < 20',
	  'BEGIN; UPDATE item SET n = 2; ROLLBACK', 'BEGIN; UPDATE item SET n = 3; SAVEPOINT a; DELETE FROM item; ROLLBACK TO a; COMMIT',
	  'SET pgcache_fence.bulk_threshold = 10; UPDATE item SET n = 4; RESET pgcache_fence.bulk_threshold',
	  "BEGIN; UPDATE item SET n = 5; UPDATE part SET id = id + 1000; PREPARE TRANSACTION 'p'; COMMIT PREPARED 'p'", 'TRUNCATE part';
	$sql->run('TRUNCATE item; INSERT INTO item SELECT g FROM generate_series(1, ' . $KEYS . ') g');
	my $other = FenceTest::Session->open($node);
	$other->run('BEGIN; TRUNCATE part');
	# sent to every master at once, awaited at the end
	poll(sub { $sql->run("SELECT count(*) FROM fence.pending WHERE domain = 'part' AND kind = 'domain'") == 3 },
		'a whole domain is reserved on every master');
	$other->run('COMMIT');
	no_reservations($node);
	is(state_of('bypassed_transactions'), 0, 'nothing was committed without a reservation');
};

# Whether that process serves the fence; MOVED, ASK and the like are words too.
sub armed
{
	my ($server, $fence) = @_;
	my $answer = $server->attempt(qw(FCALL_RO fence_status 1), $fence);

	return ref $answer eq 'ARRAY' && $answer->[0] eq 'armed';
}

# Runs the code while others write and read.
sub under_load
{
	my ($what, $code) = @_;
	my @writers = map { FenceTest::Session->open($node) } 1, 2;
	my $result = File::Temp->new;
	my $bypassed = state_of('bypassed_transactions');
	my %seen;

	$sql->run('CREATE TABLE IF NOT EXISTS stop (); TRUNCATE done');
	my $client = IPC::Run::start([ '/usr/bin/python3', $reader, $node->connstr('postgres'), join(',', map { $_->port } $cluster->alive),
			$KEYS, "$result" ]);
	$_->begin('CALL write_on()') foreach @writers;
	$code->();
	$sql->run('DROP TABLE stop');
	$_->wait foreach @writers;
	is($_->take, '', "$what: writers had no error") foreach @writers;
	$client->signal('TERM');
	IPC::Run::finish($client);
	open my $fh, '<', "$result" or die $!;
	%seen = map { split } <$fh>;
	is($seen{stale}, 0, "$what: nothing stale was read");
	cmp_ok($seen{hit} + $seen{miss}, '>', 0, "$what: readers were answered");
	note("$what: " . join(', ', map { "$_ $seen{$_}" } sort keys %seen) . '; writes and the slowest: '
		  . $sql->run("SELECT string_agg(n || ' ' || slowest, ', ') FROM done")
		  . '; without reservation: ' . (state_of('bypassed_transactions') - $bypassed));
	no_reservations($node);
	my @wrong = compare()->anomalies;
	is(join("\n", @wrong), '', "$what: fences agree with their rows");
	return %seen;
}

# How often something that keeps the epoch is tried: on a machine that is too busy for a heartbeat another one may begin.
use constant TRIES => 3;

sub statuses { return split /\n/, $sql->run("SELECT (fence.get('item', id::text)).status FROM item ORDER BY id"); }

sub warm
{
	$sql->run('SELECT count(fence.read(\'item\', id::text)) FROM item');
	return scalar grep { $_ eq 'hit' } statuses();
}

# The slots as (first key of item, slot) of those of a master.
sub key_in
{
	my ($slot) = @_;
	return $sql->run("SELECT min(id) FROM item WHERE fence.key_slot(fence.fence_key('item', id::text)) = $slot");
}

# What the keeper says to each process while the code runs: [time, port, slots], of renewals and grants that name slots.
sub grants_during
{
	my ($code) = @_;
	my %monitor = map { $_->port => $_->connect } $cluster->masters;
	my @grants;

	$_->call('MONITOR') foreach values %monitor;
	$code->();
	foreach my $port (keys %monitor)
	{
		my $end = "end of $port";
		$cluster->at_port($port)->call('ECHO', $end);
		while ((my $line = $monitor{$port}->reply) !~ /"$end"/)
		{
			my ($time) = $line =~ /^(\d+\.\d+)/ or next;
			push @grants, [ $time, $port, $1 ] if $line =~ /"fence_renew" .* "([\d,-]+|none)"$/;
			push @grants, [ $time, $port, $1 ] if $line =~ /"fence_arm" "1" "[^"]+" "\w+" "[\w-]+" "\d+" "([^"]*)"/;
		}
	}
	return sort { $a->[0] <=> $b->[0] } @grants;
}

sub names { my ($ranges, $slot) = @_; return scalar grep { my ($a, $b) = split /-/; $a <= $slot && $slot <= ($b // $a) } split /,/, $ranges =~ s/none//r; }

subtest 'only slots that moved go cold' => sub {
	my ($to, undef, $from) = $cluster->masters;	# in this order they are told what they are granted
	my ($kept, $what) = (0, '');

	settled('granted');
	for (1 .. TRIES)
	{
		my $epoch = epoch_number();
		my @slots = slots_of($from, 12);
		my %moved = map { $_ => 1 } split /\n/, $sql->run('SELECT id FROM item WHERE '
			  . "fence.key_slot(fence.fence_key('item', id::text)) IN (" . join(',', @slots) . ')');
		my $result = File::Temp->new;
		my $writer = FenceTest::Session->open($node);
		my $began;

		is(warm(), $KEYS, 'all is cached');
		my $client = IPC::Run::start([ '/usr/bin/python3', $reader, $node->connstr('postgres'),
				join(',', map { $_->port } $cluster->alive), $KEYS, "$result" ]);
		my @grants = grants_during(sub {
				$cluster->move_slots($to, @slots);
				$began = time();
				settled('the slots are granted as they are now');
		});
		note(sprintf 'granted %.2f s after the last one moved', time() - $began);
		my @status = statuses();
		note(sprintf 'right after, of %d keys %d are cached; %d have moved', scalar @status, scalar(grep { $_ eq 'hit' } @status),
			scalar keys %moved);
		$client->signal('TERM');
		IPC::Run::finish($client);
		open my $fh, '<', "$result" or die $!;
		my %seen = map { split } <$fh>;
		note(join ', ', map { "$_ $seen{$_}" } sort keys %seen);
		is($seen{stale}, 0, 'nothing stale was read');
		($from, $to) = ($to, $from), next if epoch_number() != $epoch;

		$kept = 1;
		is(join(' ', grep { $status[ $_ - 1 ] ne 'hit' && !$moved{$_} } 1 .. $KEYS), '', 'no key is cold whose slot has not moved');
		foreach my $slot (@slots)
		{
			my ($given) = grep { $_->[1] == $to->port && names($_->[2], $slot) } @grants;
			my ($taken) = grep { $_->[1] == $from->port && !names($_->[2], $slot) } @grants;
			$what .= "slot $slot\n" unless $given && $taken && $taken->[0] < $given->[0];
		}
		is($what, '', 'each slot was taken from its owner before another one was given it');
		last;
	}
	ok($kept, 'the epoch went on');
};

subtest 'a fence that returns to a process' => sub {
	my ($from, $to) = $cluster->masters;
	my ($slot) = slots_of($from, 1);
	my $id = key_in($slot);
	my $fence = $sql->run("SELECT fence.fence_key('item', '$id')");

	is(warm(), $KEYS, 'all is cached');
	my $epoch = epoch_number();
	# it is at the other process, and granted to it, but nobody touches this key there
	$cluster->move_slots($to, $slot);
	poll(sub { armed($to, $fence) }, 'the slot to be granted to the new owner', 60);
	# on its way back, its keys first, it misses a commit
	$from->call('CLUSTER', 'SETSLOT', $slot, 'IMPORTING', $to->id);
	$to->call('CLUSTER', 'SETSLOT', $slot, 'MIGRATING', $from->id);
	$to->call('MIGRATE', '127.0.0.1', $from->port, '', 0, 5000, 'REPLACE', 'KEYS', $fence);
	$sql->run("UPDATE item SET n = 1000 WHERE id = $id");
	$_->attempt('CLUSTER', 'SETSLOT', $slot, 'NODE', $from->id) foreach $from, $to, $cluster->masters;
	poll(sub { armed($from, $fence) }, 'the slot to be granted back', 60);
	note('epoch ' . epoch_number() . " after $epoch: " . state_of('reason'));
	isnt(strong_word($from, $fence), 'hit', 'what it missed is not served');
	is($sql->run("SELECT fence.read('item', '$id') ->> 'n'"), 1000, 'the row is read');
	settled('granted');
	no_reservations($node);
};

subtest 'what stands moves with its slot' => sub {
	my $kept = 0;

	for (1 .. TRIES)
	{
		my ($from, $to) = $cluster->masters;
		my ($slot, $other) = slots_of($from, 2);
		my ($id, $id2) = map { key_in($_) } $slot, $other;
		my $epoch = epoch_number();
		my $session = FenceTest::Session->open($node);

		warm();
		$session->run("BEGIN; UPDATE item SET n = 2000 WHERE id = $id; PREPARE TRANSACTION 'moves'");
		my $token = $sql->run("SELECT token FROM fence.reserve('part', NULL, '1 minute', '1', '1')");
		my $part = $sql->run("SELECT fence.key_slot(fence.fence_key('part', '1', '1'))");
		my ($elsewhere) = grep { $_ != $cluster->owner($part) } $cluster->masters;
		$cluster->move_slots($to, $slot);
		$cluster->move_slots($elsewhere, $part);
		settled('granted');
		is($sql->run("SELECT status FROM fence.get('item', '$id')"), 'pending', 'what a prepared transaction has written is not served');
		$sql->run("SELECT fence.read('item', '$id')");
		poll(sub { $sql->run("SELECT status FROM fence.get('part', '1', '1')") ne 'unarmed' }, 'the other table');
		is($sql->run("SELECT status FROM fence.get('part', '1', '1')"), 'pending', 'nor what is reserved detached');
		$session->run("COMMIT PREPARED 'moves'");
		$sql->run("SELECT fence.abort('$token')");
		is($sql->run("SELECT fence.read('item', '$id') ->> 'n'"), 2000, 'the row is read');
		no_reservations($node);
		is($sql->run("SELECT fence.read('item', '$id') ->> 'n'"), 2000, 'and read again');
		$kept = epoch_number() == $epoch;
		last if $kept;
	}
	ok($kept, 'in the same epoch');
};

subtest 'what was prepared while its slot was away' => sub {
	my ($from, $to) = $cluster->masters;
	my ($slot, $other) = slots_of($from, 2);
	my $id = key_in($slot);
	my $fence = $sql->run("SELECT fence.fence_key('item', '$id')");
	my $session = FenceTest::Session->open($node);
	my $migrate = sub {
		my ($source, $target) = @_;
		return $source->call('MIGRATE', '127.0.0.1', $target->port, '', 0, 5000, 'REPLACE', 'KEYS', $fence);
	};

	settled('granted');
	is(warm(), $KEYS, 'all is cached');
	$to->call('CLUSTER', 'SETSLOT', $slot, 'IMPORTING', $from->id);
	$from->call('CLUSTER', 'SETSLOT', $slot, 'MIGRATING', $to->id);
	$migrate->($from, $to);
	$session->run("BEGIN; UPDATE item SET n = 4000 WHERE id = $id; PREPARE TRANSACTION 'away'");
	isnt(strong_word($from, $fence), 'hit', 'it is not served where it was');
	# it is back, and another one moves: the same message says so to its process, and takes the other
	$from->call('CLUSTER', 'SETSLOT', $slot, 'STABLE');
	$migrate->($to, $from);
	$to->call('CLUSTER', 'SETSLOT', $slot, 'STABLE');
	isnt(strong_word($from, $fence), 'hit', '... nor when it is back');
	$cluster->move_slots($to, $other);
	poll(sub { armed($from, $fence) }, 'the slot to be granted again', 60);
	is(strong_word($from, $fence), 'pending', 'what is prepared is known there');
	$session->run("COMMIT PREPARED 'away'");
	is($sql->run("SELECT fence.read('item', '$id') ->> 'n'"), 4000, 'the row is read') foreach 1 .. 2;
	no_reservations($node);
	is($sql->run("SELECT fence.read('item', '$id') ->> 'n'"), 4000, '... and again') foreach 1 .. 2;
};

subtest 'who is committing is waited for' => sub {
	my ($from, $to) = $cluster->masters;
	my ($slot) = slots_of($from, 1);
	my $id = key_in($slot);
	my $fence = $sql->run("SELECT fence.fence_key('item', '$id')");
	my $writer = FenceTest::Session->open($node);

	is(warm(), $KEYS, 'all is cached');
	$sql->run('SET synchronous_commit = local');
	# a commit that is in the log, and nobody sees it: it waits for a standby that there is not
	$node->append_conf('postgresql.conf', "synchronous_standby_names = 'nobody'");
	$node->reload;
	$writer->run('SET synchronous_commit = on');
	# the setting counts once the checkpointer has it too: a commit before that does not wait
	my $update = "UPDATE item SET n = 3000 WHERE id = $id";
	$writer->begin($update);
	poll(sub {
			return 1 if $sql->run("SELECT wait_event FROM pg_stat_activity WHERE pid = ${\$writer->pid}") eq 'SyncRep';
			if ($writer->ready) { $writer->take; $writer->begin($update); }
			return;
		}, 'the commit to wait');
	$cluster->move_slots($to, $slot);
	poll(sub { state_of('reason') =~ /committing while slots move/ || state_of('state') eq 'CLOSED'
		  || armed($to, $fence) }, 'the move to be seen', 60);
	ok(!armed($to, $fence), 'nobody is granted the slot meanwhile');
	isnt(strong_word($to, $fence), $_, "nor is there a $_") foreach 'hit', 'miss';
	$node->append_conf('postgresql.conf', "synchronous_standby_names = ''");
	$node->reload;
	$writer->wait;
	is($writer->take, '', 'it commits');
	settled('granted');
	is($sql->run("SELECT fence.read('item', '$id') ->> 'n'"), 3000, 'and is read');
	$sql->run('RESET synchronous_commit');
	no_reservations($node);
};

subtest 'slots move under load' => sub {
	my $epoch = epoch_number();
	my @masters = $cluster->masters;

	under_load('resharding', sub {
			my $begin = time();
			my @slots = map { [ slots_of($_, 12) ] } @masters;
			$cluster->move_slots($masters[ ($_ + 1) % 3 ], @{ $slots[$_] }) foreach 0 .. 2;
			note(sprintf 'slots moved for %.1f s', time() - $begin);
			note(sprintf 'and all were granted after %.1f s more', settled('the slots are granted as they are now'));
	});
	note('epoch ' . epoch_number() . " after $epoch: " . state_of('reason'));
};

subtest 'a slot goes and comes back' => sub {
	my ($slot, $fence) = split /\|/, $sql->run("SELECT fence.key_slot(fence.fence_key('item', '5')), fence.fence_key('item', '5')");
	my $from = $cluster->owner($slot);
	my ($to) = grep { $_ != $from } $cluster->masters;

	settled('granted');
	$sql->run("SELECT fence.read('item', '5')");
	is($sql->run("SELECT status FROM fence.get('item', '5')"), 'hit', 'cached');
	my $bypassed = state_of('bypassed_transactions');
	$cluster->move_slots($to, $slot);
	isnt(strong_word($to, $fence), 'hit', 'the new owner does not serve it');
	is($sql->run("SELECT status FROM fence.get('item', '5')"), 'unarmed', 'nor does SQL') if state_of('state') eq 'OPEN';
	$sql->run("UPDATE item SET n = 99 WHERE id = 5");
	$cluster->move_slots($from, $slot);
	isnt(strong_word($from, $fence), 'hit', 'the old one does not either: it missed a commit');
	is($sql->run("SELECT fence.read('item', '5') ->> 'n'"), 99, 'the row is read');
	is(state_of('bypassed_transactions'), $bypassed, 'it was reserved all the same');
	settled('and after a while the slot is granted again');
	$sql->run("SELECT fence.read('item', '5')");
	is($sql->run("SELECT status FROM fence.get('item', '5')"), 'hit', 'cached again');
	no_reservations($node);
};

subtest 'failover' => sub {
	my ($first, $second) = $cluster->masters;
	my ($replica, $other) = map { $cluster->replica_of($_) } $first, $second;

	under_load('CLUSTER FAILOVER', sub {
			$replica->call('CLUSTER', 'FAILOVER');
			poll(sub { $cluster->wait_healthy; granted() =~ /\b${\$replica->port} / }, 'the replica to be granted its slots');
			settled('granted');
	});
	under_load('kill -9', sub {
			$second->kill9;
			poll(sub { granted() =~ /\b${\$other->port} / }, 'the replica to take over', 90);
			$second->restart;
			$cluster->wait_healthy;
			settled('granted');
	});
};

subtest 'a master joins, another leaves' => sub {
	my @masters = $cluster->masters;

	under_load('join and leave', sub {
			my $new = $cluster->join;
			my @slots = slots_of($masters[0], 10);
			$cluster->move_slots($new, @slots);
			settled('the new one is granted its slots');
			$cluster->move_slots($masters[0], @slots);
			settled('they are given back');
			$cluster->leave($new);
	});
	is($sql->run('SELECT sum(slots) FROM fence.nodes'), 16384, 'all slots are granted');
};

# The name is one that no resolver needs to be asked about.
subtest 'a master whose name means nothing' => sub {
	my ($lost) = $cluster->masters;
	my @all = $cluster->alive;
	my $port = $lost->port;
	plan skip_all => 'this server announces no names' if defined $lost->connect->error_of('CONFIG', 'SET', 'cluster-announce-hostname', 'a..b');
	$_->call('CONFIG', 'SET', 'cluster-announce-hostname', '127.0.0.1') foreach grep { $_ != $lost } @all;
	$_->call('CONFIG', 'SET', 'cluster-preferred-endpoint-type', 'hostname') foreach @all;
	poll(sub { state_of('state') eq 'OPEN' && granted() !~ /\b$port / && granted() =~ / / }, 'the others to be granted their slots', 60);
	is($sql->error_of('UPDATE item SET n = n + 1'), undef, 'all rows can be written');
	is($sql->run("SELECT bool_or((fence.get('item', id::text)).status IN ('hit', 'miss')) FROM item"), 't', 'keys of the others are answered');
	$_->call('CONFIG', 'SET', 'cluster-preferred-endpoint-type', 'ip') foreach @all;
	$_->call('CONFIG', 'SET', 'cluster-announce-hostname', '') foreach @all;
	settled('it is granted its slots again');
	is(join("\n", compare()->anomalies), '', 'fences agree with their rows');
};

subtest 'a master that hangs comes back after its replica was promoted' => sub {
	my ($old) = $cluster->masters;
	my $replica = $cluster->replica_of($old);
	my $where = "WHERE fence.key_slot(fence.fence_key('item', id::text)) IN (SELECT s FROM slots)";

	$sql->run('CREATE TEMP TABLE slots (s int)');
	foreach my $range (@{ $old->call('CLUSTER', 'SLOTS') })
	{
		$sql->run("INSERT INTO slots SELECT generate_series($range->[0], $range->[1])") if $range->[2][1] == $old->port;
	}
	settled('granted');
	$sql->run("SELECT count(fence.read('item', id::text)) FROM item");
	my @names = split /\n/, $sql->run("SELECT fence.fence_key('item', id::text) FROM item $where");
	my $reader = $old->connect;
	is(scalar(grep { (strong_read($reader, $_))[0] ne 'hit' } @names), 0, scalar(@names) . ' values are cached there');
	$old->pause;
	# what a client that is still connected asks: answered first when it wakes
	strong_send($reader, $_, [ qw(FCALL_RO fence_get 1), $_ ]) foreach @names;
	$sql->run("UPDATE item SET n = -1 $where");
	poll(sub { granted() =~ /\b${\$replica->port} / }, 'the replica to take over', 90);
	$sql->run("UPDATE item SET n = -2 $where");
	$sql->run("SELECT count(fence.read('item', id::text)) FROM item");
	$old->resume;
	my @answers = map { ((strong_take($reader))[0], $reader->reply) } @names;
	is(scalar(grep { (ref $_ eq 'ARRAY' ? $_->[0] : "$_") eq 'hit' } @answers), 0, 'nothing stale');
	$cluster->wait_healthy;
	settled('granted');
	is(join("\n", compare()->anomalies), '', 'fences agree with their rows');
};

no_reservations($node);
done_testing();
