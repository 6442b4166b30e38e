# Strong reads on a hot standby: hits, and rows that Redis proves to be the newest; never a row that may be old, however far the
# standby lags, whatever its versions say, and whosever history it follows. And who may arm after a promotion.

use strict;
use warnings;

use FenceTest;
use FenceTest::Session;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $redis = FenceTest::Redis->start;
my $primary = new_postgres('primary', $redis, init => { allows_streaming => 1 }, lease => '2s', hot_standby => 'on', wal_log_hints => 'on',
	wal_keep_size => '1GB', log_min_messages => 'log');

$primary->safe_psql('postgres', "CREATE TABLE item (id int PRIMARY KEY, name text, version bigint NOT NULL DEFAULT 0);
	INSERT INTO item SELECT g, 'old' FROM generate_series(1, 9) g; SELECT fence.attach('item')");
$primary->backup('b');

# A standby of the server; settings are of postgresql.conf.
sub standby_of
{
	my ($of, $name, $settings) = @_;
	my $new = PostgreSQL::Test::Cluster->new($name);

	$new->{fence_redis} = $redis;
	$new->init_from_backup($of, 'b', has_streaming => 1);
	$new->append_conf('postgresql.conf', $settings) if $settings;
	$new->start;
	return $new;
}

sub write_row { my ($node, $statement) = @_; $node->safe_psql('postgres', $statement); return; }
sub get { my ($node, $key) = @_; return $node->safe_psql('postgres', "SELECT status FROM fence.get('item', '$key')"); }
sub name_of { my ($node, $key) = @_; return $node->safe_psql('postgres', "SELECT name FROM item WHERE id = $key"); }

# What fence.read gives: the row's name, or the SQLSTATE and what the cache answered.
sub reading
{
	my ($node, $key) = @_;
	my ($rc, $out, $error) = $node->psql('postgres', "\\set VERBOSITY verbose\nSELECT fence.read('item', '$key') ->> 'name'");

	return $out if $rc == 0;
	return "$1 $2" if $error =~ /ERROR:  (\w+): this standby cannot tell .*\nDETAIL:  The cache answered: (\w+)\.\nHINT:  Read from the primary/;
	return $error;
}

my $standby = standby_of($primary, 'standby');
my $sibling = standby_of($primary, 'sibling');

sub caught_up { $primary->wait_for_catchup($_, 'replay', $primary->lsn('flush')) foreach $standby, $sibling; return; }
# Replay stops and goes on.
sub lag
{
	$standby->safe_psql('postgres', 'SELECT pg_wal_replay_pause()');
	poll(sub { $standby->safe_psql('postgres', 'SELECT pg_get_wal_replay_pause_state()') eq 'paused' }, 'the pause');
	return;
}
sub go_on { $standby->safe_psql('postgres', 'SELECT pg_wal_replay_resume()'); caught_up(); return; }
# What fence.try_read gives: name, version and source.
sub tried { my ($node, $table, $key) = @_; return $node->safe_psql('postgres', "SELECT value ->> 'name', version, source FROM fence.try_read('$table', '$key')"); }
# The standby serves this row once it has replayed a mark.
sub served { my ($node, $key, $name, $what) = @_; ok(eval { poll(sub { reading($node, $key) eq $name }, $what, 30) }, $what) or diag(reading($node, $key)); return; }
# The reservations of what was written are ended: what a reader gets now it also gets later.
sub settled { no_reservations($primary); return; }

subtest 'a standby knows its Redis' => sub {
	is($standby->safe_psql('postgres', 'SELECT pg_is_in_recovery()'), 't', 'a hot standby');
	is($standby->safe_psql('postgres', "SELECT string_agg(backend_type, ',') FROM pg_stat_activity WHERE backend_type ~ 'pgcache_fence'"),
		'pgcache_fence keeper', 'the keeper watches there, no other worker runs');
	poll(sub { get($standby, 1) eq 'miss' }, 'the keeper to find Redis');
	is($standby->safe_psql('postgres', 'SELECT state, reason FROM fence.state'), 'CLOSED|this server is a standby: only its primary opens fences',
		'fence.state tells what it is');
	is($standby->safe_psql('postgres', 'SELECT role, epoch FROM fence.nodes'), $primary->safe_psql('postgres', 'SELECT role, epoch FROM fence.nodes'),
		'fence.nodes tells what the primary has armed');
	is($standby->safe_psql('postgres', q(SELECT string_agg(finding, ', ') FROM fence.doctor() WHERE severity = 'error')), '',
		'fence.doctor finds nothing that is wrong');
	is($standby->safe_psql('postgres', q(SELECT count(*) FROM fence.metrics WHERE name = 'cache_fence_open')), '0',
		'... and no alert is given because it does not open fences');
};

subtest 'what may be read' => sub {
	caught_up();
	$primary->safe_psql('postgres', "SELECT fence.read('item', '1')") foreach 1 .. 2;
	is(get($standby, 1), 'hit', 'what the primary cached is a hit');
	is(reading($standby, 1), 'old', '... which read returns');
	is($standby->safe_psql('postgres', "SELECT permit IS NULL FROM fence.get('item', '2')"), 't', 'a miss gives no permit');
	served($standby, 2, 'old', 'a row that nobody has written lately');
	is($primary->safe_psql('postgres', "SELECT relation FROM fence.status('item', '2')"), 'equal', '... is put');
	my ($permit) = $primary->safe_psql('postgres', "SELECT permit FROM fence.get('item', '8')");
	like($standby->safe_psql('postgres', "SELECT fence.put('item', '$permit', 1, 'x', NULL, '8')"), qr/^refused/, 'put is refused');

	served($sibling, 7, 'old', 'the other standby serves its rows, too');
	is(reading($standby, 7), 'old', '... which are hits then');

	write_row($primary, "UPDATE item SET name = 'new' WHERE id = 1");
	settled();
	caught_up();
	is(get($standby, 1), 'miss', 'after a write: a miss');
	is(reading($standby, 1), 'new', '... the row is the one that the fence names');
	is(get($standby, 1), 'hit', '... and is a hit now');
	is(get($primary, 1), 'hit', '... for the primary too');
	is($primary->safe_psql('postgres', "SELECT payload::jsonb ->> 'name' FROM fence.get('item', '1')"), 'new', '... and right');

	my $writer = FenceTest::Session->open($primary);
	$writer->run("BEGIN; UPDATE item SET name = 'later' WHERE id = 1");
	is(reading($standby, 1), '55000 pending', 'while it is being written: refused');
	$writer->run('ROLLBACK');
	settled();
	served($standby, 1, 'new', 'rolled back: nobody is known who committed last, but the next mark proves the row');
	$writer->run("BEGIN; SAVEPOINT a; UPDATE item SET name = 'sub' WHERE id = 1; COMMIT");
	settled();
	caught_up();
	is(reading($standby, 1), 'sub', 'a row of a subtransaction is proven by its transaction');
	is(reading($standby, 99), '55000 miss', 'that there is no row is not proven where INSERT reserves nothing');
};

subtest 'from where a read is' => sub {
	my $absent = 'CREATE TABLE sparse (id int PRIMARY KEY, name text, version bigint NOT NULL DEFAULT 0);'
	  . "SELECT fence.attach('sparse', cache_absent => true); INSERT INTO sparse VALUES (1, 'one')";

	$primary->safe_psql('postgres', $absent);
	caught_up();
	settled();
	poll(sub { tried($standby, 'sparse', 2) eq '||database' }, 'the absence of a row to be proven');
	is(tried($standby, 'sparse', 2), '||cache', '... which is a hit now');
	poll(sub { tried($standby, 'sparse', 1) eq 'one|0|database' }, 'the row');
	is(tried($standby, 'sparse', 1), 'one|0|cache', 'a hit');
	is(tried($primary, 'sparse', 1), 'one|0|cache', 'the primary says so too');
	my $writer = FenceTest::Session->open($primary);
	$writer->run("BEGIN; UPDATE sparse SET name = 'two'");
	is(tried($standby, 'sparse', 1), '||primary', 'while it is being written: the primary must be asked');
	is(tried($primary, 'sparse', 1), 'one|0|database', '... which reads its row');
	$writer->run('COMMIT');
	settled();
	caught_up();
	is(tried($standby, 'sparse', 1), 'two|1|database', 'written');
};

subtest 'several keys, and derived values' => sub {
	$primary->safe_psql('postgres', <<'SQL');
CREATE TABLE part (id int PRIMARY KEY, n int, version bigint NOT NULL DEFAULT 0);
INSERT INTO part SELECT g, g FROM generate_series(1, 9) g;
SELECT fence.attach('part');
CREATE FUNCTION sum_of(a int, b int) RETURNS int LANGUAGE sql STABLE AS 'SELECT sum(n)::int FROM public.part WHERE id IN (a, b)';
SELECT fence.define_derived('sum', '{part($1),part($2)}', 'sum_of(int,int)');
SQL
	caught_up();
	settled();
	my $many = sub { return $_[0]->safe_psql('postgres', "SELECT string_agg(coalesce(value ->> 'n', '-') || ' ' || source, ',' ORDER BY fence)"
			  . " FROM fence.read_many(fence.fence_keys('part', '{$_[1]}'))"); };
	my $sum = sub { return $_[0]->safe_psql('postgres', "SELECT value, source FROM fence.try_read_derived('sum', $_[1])"); };

	my $counted = sub { return $standby->safe_psql('postgres', "SELECT coalesce(sum(value), 0) FROM fence.metrics"
			  . " WHERE labels \@> '{\"domain\": \"part\", \"operation\": \"standby\", \"result\": \"$_[0]\"}'"); };

	poll(sub { $many->($standby, '1,2') eq '1 database,2 database' }, 'the rows of the standby');
	is($many->($standby, '1,2'), '1 cache,2 cache', 'all are hits now');
	my $served = $counted->('served');
	is($many->($standby, '1,3'), '1 database,3 database', 'a hit, and a row of the standby');
	is($counted->('served') - $served, 1, '... which counts');
	poll(sub { $sum->($standby, '1, 4') eq '5|database' }, 'the sum');
	is($sum->($standby, '1, 4'), '5|cache', 'a derived value that the standby has computed is a hit');
	is($sum->($primary, '1, 4'), '5|cache', '... for the primary too');
	is($standby->safe_psql('postgres', q(SELECT fence.read_derived('sum', 1, 4))), '5', 'read_derived returns it');

	lag();
	write_row($primary, 'UPDATE part SET n = 10 WHERE id = 1');
	settled();
	my $sent = $counted->('primary');
	is($many->($standby, '1,2'), '- primary,- primary', 'one row is not there yet: the primary must be asked for all');
	is($counted->('primary') - $sent, 1, '... which counts the row that was a miss');
	is($sum->($standby, '1, 4'), '|primary', '... and for the sum');
	my (undef, undef, $error) = $standby->psql('postgres', "\\set VERBOSITY verbose\nSELECT fence.read_derived('sum', 1, 4)");
	like($error, qr/ERROR:  55000: this standby cannot tell .*\nHINT:  Read from the primary/, '... which read_derived raises');
	(undef, undef, $error) = $standby->psql('postgres', "CALL fence.warm('part')");
	like($error, qr/cannot execute fence.warm during recovery/, 'only the primary warms');
	is($many->($primary, '1,2'), '10 database,2 database', 'the primary reads all');
	is($many->($standby, '1,2'), '10 cache,2 cache', '... from which the standby has hits that it has not replayed');
	is($many->($standby, '1,6'), '10 database,6 database', '... also together with an old row of its own');
	is($sum->($standby, '1, 4'), '|primary', 'but it cannot compute with a row that it has not replayed');
	is($sum->($primary, '1, 4'), '14|database', 'the primary does');
	is($sum->($standby, '1, 4'), '14|cache', '... hit');

	write_row($primary, 'TRUNCATE part; INSERT INTO part SELECT g, 100 FROM generate_series(1, 9) g');
	settled();
	poll(sub { $many->($primary, '5,6') eq '100 cache,100 cache' }, 'the new rows to be cached');
	is($_->safe_psql('postgres', 'SELECT version FROM part WHERE id = 5'), '0', 'versions restart') foreach $primary, $standby;
	is($sum->($standby, '5, 6'), '|primary', '... so that a hit has the version of another row is no proof');
	is($sum->($primary, '5, 6'), '200|database', '... and nothing wrong was stored');
	go_on();
};

subtest 'who committed last' => sub {
	foreach my $with ("cache => 'none'", "cache => 'row'", "publish => 'pubsub'")
	{
		write_row($primary, $_) foreach 'CREATE TABLE told (LIKE item INCLUDING ALL)', "INSERT INTO told VALUES (1, 'told')", "SELECT fence.attach('told', $with)";
		my $fence = $primary->safe_psql('postgres', "SELECT fence.fence_key('told', '1')");
		my $last = sub { my ($statement) = @_; write_row($primary, $statement); settled(); return $redis->call('FCALL_RO', 'fence_newest', 1, $fence)->[5] // ''; };
		poll(sub { $last->("UPDATE told SET name = 'new'") =~ /^\d+\.[0-9a-f]+$/ }, "$with: who updates is known");
		is($last->('DELETE FROM told'), '', "$with: not who deletes, for an INSERT need not reserve");
		write_row($primary, 'DROP TABLE told');
	}
};

subtest 'an INSERT that the primary does not show yet' => sub {
	# whoever deleted a row committed last of its key, but says nothing of the next row of the key
	write_row($primary, $_) foreach "INSERT INTO item VALUES (51, 'former')", 'DELETE FROM item WHERE id = 51';
	settled();
	caught_up();
	# it waits for a standby that there is not, so the standby has it before it is visible on the primary
	$primary->append_conf('postgresql.conf', "synchronous_standby_names = 'nobody'");
	$primary->reload;
	my ($waits, $other) = map { FenceTest::Session->open($primary) } 1 .. 2;
	poll(sub { $waits->run('SHOW synchronous_standby_names') eq 'nobody' }, 'the setting is read');
	$other->run('SET synchronous_commit = local');
	$waits->begin("INSERT INTO item VALUES (50, 'early'), (51, 'early')");
	poll(sub { name_of($standby, 50) eq 'early' }, 'the standby to replay it');
	is(name_of($primary, 50), '', 'it is not visible on the primary');
	$other->run("BEGIN; UPDATE item SET name = 'never' WHERE id = 9; ROLLBACK");
	served($standby, 9, 'old', 'there is a mark from after it');
	is(reading($standby, $_), '55000 miss', "... and row $_ is not used") foreach 50, 51;
	$primary->append_conf('postgresql.conf', "synchronous_standby_names = ''");
	$primary->reload;
	$waits->wait;
	is($waits->take, '', 'it is visible');
	served($standby, 50, 'early', '... and used');
	$primary->safe_psql('postgres', 'DELETE FROM item WHERE id IN (50, 51)');
	settled();
};

subtest 'a standby that lags' => sub {
	write_row($primary, "UPDATE item SET name = name || '+' WHERE id = 3") foreach 1 .. 5;
	$primary->safe_psql('postgres', "SELECT fence.read('item', '3')");
	settled();
	caught_up();
	served($standby, 4, 'old', 'it has replayed a mark');
	lag();
	write_row($primary, "UPDATE item SET name = 'newest' WHERE id = 3");
	settled();
	is(name_of($standby, 3), 'old+++++', 'its row is old');
	is(reading($standby, 3), '55000 miss', '... and not used');
	is(reading($standby, 5), 'old', 'a row that nobody has written since that mark is used');
	is(reading($primary, 3), 'newest', 'the primary reads, and caches');
	is(reading($standby, 3), 'newest', '... and the standby has a hit, of what it does not have itself');

	# versions restart: the standby's old row has a higher one than the fence
	write_row($primary, 'TRUNCATE item');
	write_row($primary, "INSERT INTO item SELECT g, 'second' FROM generate_series(1, 9) g");
	settled();
	is(reading($primary, 3), 'second', 'after TRUNCATE the primary reads a new row');
	write_row($primary, "UPDATE item SET name = 'third' WHERE id = 3");
	settled();
	cmp_ok($standby->safe_psql('postgres', 'SELECT version FROM item WHERE id = 3'), '>',
		$primary->safe_psql('postgres', 'SELECT version FROM item WHERE id = 3'), 'the version of the old row is higher');
	is(reading($standby, 3), '55000 miss', '... and still it is not used');
	is(reading($standby, 6), '55000 miss', 'nor is a row that has not been written since, for it was truncated');
	is(name_of($standby, 6), 'old', '... which the standby does not know');
	go_on();
	is(reading($standby, 3), 'third', 'caught up: the row');
};

subtest 'waiting for replay' => sub {
	my $late = standby_of($primary, 'late', "recovery_min_apply_delay = '3s'");
	my $session = FenceTest::Session->open($late);
	my $timed = sub {
		my ($wait) = @_;
		my $start = time();

		$session->run("SET pgcache_fence.standby_wait = '$wait'");
		return ($session->run("SELECT value ->> 'name' || ' ' || source FROM fence.try_read('item', '7')"), time() - $start);
	};

	poll(sub { ($timed->('0'))[0] eq 'second database' || ($timed->('0'))[0] eq 'second cache' }, 'the late standby to be there', 60);
	write_row($primary, "UPDATE item SET name = 'delayed' WHERE id = 7");
	settled();
	my ($got, $took) = $timed->('0');
	is($got, '', 'not replayed, no wait: the primary must be asked');
	is($session->run("SELECT source FROM fence.try_read('item', '7')"), 'primary', '... and it says so');
	$session->run("SET pgcache_fence.standby_wait = '60s'; SET statement_timeout = '200ms'");
	like($session->error_of("SELECT fence.read('item', '7')"), qr/canceling statement due to statement timeout/, 'the wait can be interrupted');
	$session->run('SET statement_timeout = 0');
	($got, $took) = $timed->('60s');
	is($got, 'delayed database', 'it waits for the replay');
	cmp_ok($took, '<', 30, sprintf 'for %.1f s, not to the end', $took);

	$late->safe_psql('postgres', 'SELECT pg_wal_replay_pause()');
	write_row($primary, "UPDATE item SET name = 'paused' WHERE id = 7");
	settled();
	poll(sub { $late->safe_psql('postgres', 'SELECT pg_get_wal_replay_pause_state()') eq 'paused' }, 'the pause');
	($got, $took) = $timed->('60s');
	is($got, '', 'replay is paused: it does not wait');
	cmp_ok($took, '<', 30, 'at once');
	$late->safe_psql('postgres', 'SELECT pg_wal_replay_resume()');
	write_row($primary, "UPDATE item SET name = 'second' WHERE id = 7");

	# the name goes to another table before the standby has replayed that
	write_row($primary, $_) foreach 'CREATE TABLE former (LIKE item INCLUDING ALL)', "INSERT INTO former VALUES (1, 'former')",
	  'CREATE TABLE present (LIKE item INCLUDING ALL)', "INSERT INTO present VALUES (1, 'present')", "SELECT fence.attach('former', domain => 'moved')";
	$session->run("SET pgcache_fence.standby_wait = '60s'");
	my $moved = "SELECT value ->> 'name' FROM fence.try_read('moved', '1')";
	# replay may cancel a reader that waits, because of what the DDL has left in the catalogs
	my $read = sub { return eval { $session->run($moved) } // 'canceled'; };
	poll(sub { $read->() eq 'former' }, 'the late standby to serve it', 60);
	write_row($primary, "SELECT fence.detach('former'); SELECT fence.attach('present', domain => 'moved')");
	my $newest = sub { return $redis->call('FCALL_RO', 'fence_newest', 1, $primary->safe_psql('postgres', "SELECT fence.fence_key('moved', '1')"))->[3] // ''; };
	poll(sub { $newest->() ne '' }, 'a mark under the new token');
	isnt($read->(), 'former', 'a reader that waits is not given the row of the table that had the name');
	is($primary->safe_psql('postgres', $moved), 'present', '... nor has it put that');
	$session->close;
	$late->stop;
};

# Replay wants to remove what a reader that waits for replay may see, and PostgreSQL cancels that reader: the standby cannot tell.
subtest 'replay that does not wait for a reader' => sub {
	my $late = standby_of($primary, 'hasty', "recovery_min_apply_delay = '4s'");
	my $session = FenceTest::Session->open($late);
	# replay may cancel any statement, also this one
	my $conflicts = sub {
		return poll(sub { ($late->psql('postgres', "SELECT 'n' || confl_snapshot FROM pg_stat_database_conflicts WHERE datname = 'postgres'"))[1] },
			'a count') =~ s/^n//r;
	};
	# Runs the read with a snapshot that replay comes to remove something from. A slow machine may be late: then once more.
	my $answer = sub {
		my ($read) = @_;
		my $got;

		poll(sub {
			my $before = $conflicts->();
			write_row($primary, "UPDATE item SET name = name WHERE id = 6");
			write_row($primary, 'VACUUM item');
			write_row($primary, "UPDATE item SET name = name WHERE id = 7");
			$got = eval { $session->run($read) } // $@;
			return $conflicts->() > $before;
		}, 'a conflict with replay', 120);
		return $got;
	};

	$session->run("SET pgcache_fence.standby_wait = '60s'");
	poll(sub { tried($late, 'item', 8) =~ /\|(database|cache)$/ }, 'the hasty standby to be there', 60);
	$late->append_conf('postgresql.conf', 'max_standby_streaming_delay = 0');
	$late->reload;
	poll(sub { $session->run('SHOW max_standby_streaming_delay') eq '0' }, 'the setting', 60);
	is($answer->("SELECT value, version, source FROM fence.try_read('item', '7')"), '||primary', 'try_read: ask the primary');
	like($answer->("SELECT fence.read('item', '7')"), qr/this standby cannot tell whether its row of key "7"/, 'read: it cannot tell');
	is($answer->("SELECT DISTINCT source FROM fence.read_many(fence.fence_keys('item', '{7,8}'))"), 'primary', 'read_many: ask the primary');
	is($session->run('SELECT 1'), '1', 'the session goes on');
	$session->close;
	$late->stop;
};

# Two write the same few rows of two tables, one of which reserves at COMMIT; the standby alone reads and fills. What it reads is
# never older than what had been committed when it was asked.
subtest 'a standby reads what is being written' => sub {
	$primary->safe_psql('postgres', <<'SQL');
CREATE SEQUENCE counter;
CREATE TABLE early (id int PRIMARY KEY, n bigint NOT NULL, version bigint NOT NULL DEFAULT 0);
CREATE TABLE late (LIKE early INCLUDING ALL);
SELECT fence.attach('early'), fence.attach('late', reserve => 'commit');
CREATE TABLE stop ();
-- n of a row only grows: nextval is called once the row is locked, and who deletes is the only one who inserts
CREATE PROCEDURE write_on(owner int) LANGUAGE plpgsql AS $$
DECLARE
	t text;
	k int;
BEGIN
	WHILE to_regclass('stop') IS NOT NULL LOOP
		t := (ARRAY['early', 'late'])[1 + (random() * 1)::int];
		k := 1 + (random() * 7)::int;
		IF random() < 0.1 THEN
			BEGIN
				EXECUTE format('UPDATE %I SET n = nextval(''counter'') WHERE id = $1', t) USING k;
				IF random() < 0.5 THEN RAISE division_by_zero; END IF;
			EXCEPTION WHEN division_by_zero THEN NULL;
			END;
		ELSIF k % 2 = owner AND random() < 0.3 THEN
			EXECUTE format('DELETE FROM %I WHERE id = $1', t) USING k;
			IF random() < 0.5 THEN COMMIT; END IF;
			EXECUTE format('INSERT INTO %I VALUES ($1, nextval(''counter''))', t) USING k;
		ELSE
			EXECUTE format('UPDATE %I SET n = nextval(''counter'') WHERE id = $1', t) USING k;
		END IF;
		IF random() < 0.1 THEN ROLLBACK; ELSE COMMIT; END IF;
		PERFORM pg_sleep(random() * 0.01);
	END LOOP;
END $$;
INSERT INTO early SELECT g, nextval('counter') FROM generate_series(1, 8) g;
INSERT INTO late SELECT g, nextval('counter') FROM generate_series(1, 8) g;
SQL
	caught_up();
	poll(sub { $primary->safe_psql('postgres', "SELECT bool_or((fence.get(d, '1')).status = 'unarmed') FROM unnest('{early,late}'::text[]) d") eq 'f' },
		'the announcement');
	my @writers = map { FenceTest::Session->open($primary) } 0, 1;
	my ($truth, $reader) = map { FenceTest::Session->open($_) } $primary, $standby;
	my (%seen, @old);
	my $end = time() + 6;

	$writers[$_]->begin("CALL write_on($_)") foreach 0, 1;
	while (time() < $end || (!$seen{early} || !$seen{late}) && time() < $end + 60)
	{
		my ($table, $key) = ((qw(early late))[ int rand 2 ], 1 + int rand 8);
		my $before = $truth->run("SELECT n FROM $table WHERE id = $key");
		$reader->begin("SELECT fence.read('$table', '$key') ->> 'n'");
		my $n = $reader->take;
		$seen{ $n =~ /^\d+$/ ? $table : $n =~ /(The cache answered: \w+)/ ? $1 : $n }++;
		push @old, "$table $key: $n < $before" if $n =~ /^\d+$/ && $before ne '' && $n < $before;
	}
	$primary->safe_psql('postgres', 'DROP TABLE stop');
	$_->wait, is($_->take, '', 'a writer had no error') foreach @writers;
	note(join ', ', map { "$_ $seen{$_}" } sort keys %seen);
	is(join("\n", @old), '', 'nothing stale was read');
	cmp_ok($seen{$_} // 0, '>', 0, "rows of $_ were read") foreach qw(early late);
	settled();
	compare_fences($primary, $_) foreach qw(early late);
};

subtest 'Redis is gone' => sub {
	$redis->kill9;
	poll(sub { get($standby, 3) eq 'unavailable' }, 'the keeper of the standby to notice');
	is(reading($standby, 3), '55000 unavailable', 'no row is used');
	$redis->restart;
	wait_open($primary, 90);
	poll(sub { get($primary, 3) ne 'unarmed' }, 'the announcement');
	poll(sub { get($standby, 3) eq 'miss' }, 'the keeper of the standby to find it');
	served($standby, 3, 'third', 'a new epoch, with marks of its own');
};

# The next number that the server gives to a transaction.
sub next_xid { my ($node) = @_; return $node->safe_psql('postgres', "SELECT pg_snapshot_xmax(pg_current_snapshot())"); }

subtest 'promotion, and another history' => sub {
	reading($primary, $_) foreach 4 .. 6;
	settled();
	caught_up();
	$primary->stop;

	# what the old primary gave the next number to was lost with it; here it is given anew, before any client logs in
	my $pooled = FenceTest::Session->open($standby);
	my ($xid, $system, $ns) = split /\|/, $pooled->run("SELECT pg_snapshot_xmax(pg_current_snapshot()), system_identifier,"
		  . " current_setting('pgcache_fence.namespace') FROM pg_control_system()");
	is_deeply($redis->call('FCALL', 'fence_effect', 1, 'lost', $ns, "$system.$xid.0000abcd.1", "$system.$xid.0000abcd", '', '', 'counter',
			1, 5, '', '', ''), [ 'held', 5, 5 ], 'a hold of a lost transaction');
	$standby->promote;
	poll(sub { $pooled->run('SELECT state FROM fence.state') eq 'OPEN' }, 'OPEN');
	$pooled->run('SELECT pg_current_xact_id()');
	poll(sub { @{ $redis->call('KEYS', "$ns:h:*") } == 0 }, 'the hold to be settled');
	is($pooled->run("SELECT pg_xact_status('$xid')"), 'committed', 'another one of its number has committed');
	is($redis->call('GET', 'lost'), undef, '... but it is not applied');
	$pooled->close;
	poll(sub { get($standby, 4) ne 'unarmed' }, 'the announcement');
	is($standby->safe_psql('postgres', "SELECT count(*) FROM pg_stat_activity WHERE backend_type ~ '^pgcache_fence (keeper|patrol|courier)\$'"), '3',
		'promoted: all workers run');
	is(reading($standby, $_), 'second', "row $_, cached anew") foreach 4 .. 6;

	# the old primary comes back by mistake; the sibling still follows it. Both histories write the same row, in the same
	# version, in transactions of the same number.
	$primary->start;
	my $reason = '';
	ok(eval { poll(sub { ($reason = $primary->safe_psql('postgres', 'SELECT reason FROM fence.state')) =~ /timeline 2 of this cluster has replaced timeline 1/ }, 'it', 30) },
		'the old primary is refused') or diag($reason);
	ok(eval { poll(sub { slurp_file($primary->logfile) =~ /LOG:  pgcache_fence: CLOSED .*timeline 2 of this cluster has replaced timeline 1/ }, 'it', 30) },
		'... and its log says so');
	$primary->safe_psql('postgres', "ALTER SYSTEM SET pgcache_fence.redis_url = 'redis://127.0.0.1:1'");
	$primary->reload;
	# with neither Redis nor lease its writes go on; the numbers of its transactions stand still otherwise
	write_row($primary, "UPDATE item SET name = 'warm' WHERE id = 9");
	my $done;
	for (my $try = 0; $try < 20 && !$done; $try++)
	{
		my ($new, $old) = (next_xid($standby), next_xid($primary));
		my ($behind, $n) = $new < $old ? ($standby, $old - $new) : ($primary, $new - $old);
		$behind->safe_psql('postgres', "SELECT pg_current_xact_id()") foreach 1 .. $n;
		write_row($primary, "UPDATE item SET name = 'of the old history' WHERE id = 4");
		write_row($standby, "UPDATE item SET name = 'of the new history' WHERE id = 4");
		my @row = map { $_->safe_psql('postgres', 'SELECT xmin, version FROM item WHERE id = 4') } $primary, $standby;
		$done = $row[0] eq $row[1];
		note("row 4: @row");
	}
	ok($done, 'two histories, one version, one number');
	no_reservations($standby);
	$primary->wait_for_catchup($sibling, 'replay', $primary->lsn('flush'));
	is(name_of($sibling, 4), 'of the old history', 'the sibling has the row of the old history');
	is(get($sibling, 4), 'miss', 'nothing is cached');
	is(reading($sibling, 4), '55000 miss', '... and the row is not used');
	# the new primary tells marks while somebody streams from it; the sibling has replayed more than they say, of the other history
	my $listener = FenceTest::Session->open($standby, replication => 1);
	my $fence = $standby->safe_psql('postgres', "SELECT fence.fence_key('item', '4')");
	my $told = '';
	poll(sub { ($told = $redis->call('FCALL_RO', 'fence_newest', 1, $fence)->[3] // '') ne '' }, 'a mark of the new primary');
	$primary->safe_psql('postgres', 'SELECT pg_switch_wal()');
	write_row($primary, "UPDATE item SET name = 'warm' WHERE id = 9");
	$primary->wait_for_catchup($sibling, 'replay', $primary->lsn('flush'));
	is($sibling->safe_psql('postgres', "SELECT pg_last_wal_replay_lsn() >= '$told'"), 't', 'the sibling has replayed up to the position of the mark');
	is(reading($sibling, 4), '55000 miss', '... on another timeline, and the row is not used');
	$listener->close;
	is(reading($standby, 4), 'of the new history', 'the new primary reads its own');
	is(reading($sibling, 4), 'of the new history', '... which is a hit everywhere');
	$sibling->stop;

	# rewound, it is a standby of the new primary
	$primary->stop;
	command_ok([ 'pg_rewind', '--source-server', $standby->connstr('postgres'), '--target-pgdata', $primary->data_dir, '--no-sync',
			'--config-file', $primary->data_dir . '/postgresql.conf' ], 'pg_rewind');
	# which has copied the settings of the other one
	$primary->append_conf('postgresql.conf', sprintf "port = %d\nprimary_conninfo = '%s'", $primary->port, $standby->connstr);
	$primary->set_standby_mode;
	$primary->start;
	$standby->wait_for_catchup($primary, 'replay', $standby->lsn('flush'));
	poll(sub { get($primary, 4) eq 'hit' }, 'the keeper to find Redis');
	is(reading($primary, 4), 'of the new history', 'rewound: a standby that reads');
	# commits name themselves once the keeper has seen that a standby listens
	my $proven = eval {
		poll(sub {
			write_row($standby, "UPDATE item SET name = 'last' WHERE id = 4");
			$standby->wait_for_catchup($primary, 'replay', $standby->lsn('flush'));
			poll(sub { get($primary, 4) ne 'pending' }, 'the end', 10);
			return reading($primary, 4) eq 'last';
		}, 'a proof', 30);
	};
	ok($proven, '... and whose rows can be proven') or diag(reading($primary, 4));
	no_reservations($standby);

	# started as a primary by mistake: the same timeline as the real one
	$primary->stop;
	unlink $primary->data_dir . '/standby.signal' or die $!;
	my $before = $standby->safe_psql('postgres', 'SELECT identity, epoch FROM fence.nodes');
	$primary->start;
	ok(eval { poll(sub { ($reason = $primary->safe_psql('postgres', 'SELECT reason FROM fence.state')) =~ /armed by another server of this cluster and timeline/ }, 'it', 60) },
		'a copy that is started as a primary on the same timeline is refused') or diag($reason);
	like(slurp_file($primary->logfile), qr/LOG:  pgcache_fence: CLOSED .*armed by another server of this cluster and timeline, whose lease runs/,
		'... and its log says so');
	is($standby->safe_psql('postgres', 'SELECT state FROM fence.state'), 'OPEN', 'the real one is OPEN');
	is($standby->safe_psql('postgres', 'SELECT identity, epoch FROM fence.nodes'), $before, '... in its epoch');
	$primary->stop;
	is($standby->safe_psql('postgres', "UPDATE item SET name = 'end' WHERE id = 4 RETURNING name"), 'end', 'and writes');
	no_reservations($standby);
	compare_fences($standby, 'item');
};

$standby->stop;
done_testing();
