# fence.metrics: exact while many write at once, also when Redis goes away; gauges fall back to 0. What monitoring/ is made of:
# the real exporter serves every series, promtool accepts the rules, and nothing there names what does not exist.

use strict;
use warnings;

use FenceTest;
use FenceTest::Session;
use IO::Socket::INET;
use IPC::Run;
use JSON::PP;
use Test::More;

use constant { SESSIONS => 6, TRANSACTIONS => 150 };

my $monitoring = "$TOP/monitoring";
my $redis = FenceTest::Redis->start;
# an answer that comes late is asked for again, and counted again
my $node = new_postgres('main', $redis, max_prepared_transactions => 5, timeout => '10s');
my $sql = FenceTest::Session->open($node);
$sql->run('SET pgcache_fence.zero_counters = on');

# ---------------------------------------------------------------------------------------------------------------------
# Tools
# ---------------------------------------------------------------------------------------------------------------------

# The value of one series; labels as key => value.
sub metric
{
	my ($name, %labels) = @_;
	my $json = encode_json(\%labels);

	return $sql->run("SELECT value FROM fence.metrics WHERE name = '$name' AND labels @> '$json'");
}

sub operation
{
	my ($domain, $operation, $result) = @_;

	return metric('cache_fence_operations_total', domain => $domain, operation => $operation, result => $result);
}

# Waits until the sum of what is listed reaches it: answers are counted when they are here. Then it must be exactly that.
sub counts_ok
{
	my ($wanted, $name, @series) = @_;
	my $sum = sub { my $n = 0; $n += operation(@$_) foreach @series; return $n; };

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	eval { poll(sub { $sum->() >= $wanted }, $name); };
	return is($sum->(), $wanted, $name);
}

sub output_of
{
	my (@command) = @_;
	my $out = '';

	IPC::Run::run(\@command, '>&', \$out);
	return ($?, $out);
}

# ---------------------------------------------------------------------------------------------------------------------

foreach my $table (qw(item other))
{
	$sql->run("CREATE TABLE $table (id int PRIMARY KEY, n int NOT NULL DEFAULT 0, version bigint NOT NULL DEFAULT 0)");
	$sql->run("INSERT INTO $table (id) SELECT g FROM generate_series(1, 100) g");
	$sql->run("SELECT fence.attach('$table')");
	poll(sub { $sql->run("SELECT status FROM fence.get('$table', '1')") ne 'unarmed' }, 'the domain');
	# the patrol asks Redis for its counts now and then: what was counted here must not come after the reset
	poll(sub { operation($table, 'get', 'miss') == 1 }, 'the miss to be counted');
}

# Of the transactions each fifth is rolled back, each tenth also writes in the other table.
$sql->run(<<'SQL');
CREATE PROCEDURE work(me int, rounds int) LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1 .. rounds LOOP
		UPDATE item SET n = n + 1 WHERE id = me;
		IF i % 10 = 0 THEN
			UPDATE other SET n = n + 1 WHERE id = me;
		END IF;
		IF i % 5 = 4 THEN
			ROLLBACK;
		ELSE
			COMMIT;
		END IF;
	END LOOP;
END $$
SQL

subtest 'exact while many write' => sub {
	my @sessions = map { FenceTest::Session->open($node) } 1 .. SESSIONS;
	my $rolled_back = TRANSACTIONS / 5;
	my $in_other = TRANSACTIONS / 10;

	$sql->run('SELECT fence.reset_metrics()');
	$sessions[ $_ - 1 ]->begin("CALL work($_, @{[TRANSACTIONS]})") foreach 1 .. SESSIONS;
	is($_->take, '', 'worked') foreach map { $_->wait; $_ } @sessions;
	no_reservations($node);
	counts_ok(SESSIONS * TRANSACTIONS, 'reservations granted', [ 'item', 'reserve', 'granted' ]);
	counts_ok(SESSIONS * (TRANSACTIONS - $rolled_back), 'commits written', [ 'item', 'commit', 'written' ]);
	counts_ok(SESSIONS * $rolled_back, 'aborts written', [ 'item', 'abort', 'written' ]);
	counts_ok(SESSIONS * $in_other, 'reservations granted in the other domain', [ 'other', 'reserve', 'granted' ]);
	counts_ok(SESSIONS * $in_other, 'commits written in the other domain', [ 'other', 'commit', 'written' ]);
	is(operation('item', $_, 'failed'), 0, "no $_ failed") foreach qw(reserve commit abort);
	is(metric('cache_fence_commit_window_seconds_count'), SESSIONS * (TRANSACTIONS - $rolled_back), 'each committed transaction has its time');
	is(metric('cache_fence_commit_window_seconds_bucket', le => '+Inf'), metric('cache_fence_commit_window_seconds_count'),
		'and is in a bucket');
	poll(sub { metric('cache_fence_pending', domain => 'item') == 0 }, 'the gauge to fall');
	$_->close foreach @sessions;
};

subtest 'readers by any client are counted once' => sub {
	$sql->run("SELECT fence.read('item', '50')");
	my $fence = $sql->run("SELECT fence.fence_key('item', '50')");

	poll(sub { operation('item', 'seed', 'stored') == 1 }, 'the put');
	is(operation('item', 'get', 'miss'), 1, 'a miss');
	my $told = operation('item', 'get', 'told');
	is($redis->call('FCALL_RO', 'fence_get', 1, $fence)->[0], 'hit', 'a hit') foreach 1 .. 20;
	isnt($redis->call('FCALL_RO', 'fence_token', 1, $fence), '', 'a permit') foreach 1 .. 15;
	poll(sub { operation('item', 'get', 'hit') >= 20 }, 'the hits');
	is(operation('item', 'get', 'hit'), 20, 'each is counted once');
	counts_ok($told + 15, 'permits, too, whatever their readers found', [ 'item', 'get', 'told' ]);
	is(metric('cache_db_fallback_total', domain => 'item', reason => 'miss'), 1, 'one had to go to PostgreSQL');
};

subtest 'new rows are no affair of Redis' => sub {
	my $before = operation('item', 'reserve', 'granted');

	$sql->run('INSERT INTO item (id) SELECT g FROM generate_series(101, 110) g');
	$sql->run('UPDATE item SET n = 1 WHERE id = 101');
	counts_ok($before + 1, 'nothing is reserved for them, until they change', [ 'item', 'reserve', 'granted' ]);
};

# Its end is one word, whose answer counts them all.
subtest 'a transaction of 70,000 rows' => sub {
	$sql->run($_) foreach 'CREATE TABLE large (id int PRIMARY KEY, n int, version bigint NOT NULL DEFAULT 0)',
	  'INSERT INTO large SELECT g FROM generate_series(1, 70000) g', "SELECT fence.attach('large')", 'SET pgcache_fence.bulk_threshold = 1000000';
	$sql->run('UPDATE large SET n = 1');
	no_reservations($node);
	counts_ok(70_000, 'commits written', [ 'large', 'commit', 'written' ]);
	$sql->run('RESET pgcache_fence.bulk_threshold');
};

subtest 'counters of domains that are 0 are shown on demand' => sub {
	my $zeros = q(SELECT count(*) FROM fence.metrics WHERE value = 0 AND labels ? 'domain' AND name <> 'cache_fence_pending');

	cmp_ok($sql->run($zeros), '>', 50, 'shown');
	$sql->run('RESET pgcache_fence.zero_counters');
	is($sql->run($zeros), 0, 'by default they are not');
	is(metric('cache_fence_pending', domain => 'other'), 0, 'but gauges are,');
	is(operation('item', 'seed', 'stored'), 1, 'counters that have counted,');
	is(metric('cache_fence_values_too_large_total'), 0, 'and all of the server');
	$sql->run('SET pgcache_fence.zero_counters = on');
};

subtest 'conflicts' => sub {
	$sql->run("CREATE TABLE doc (id int PRIMARY KEY, version bigint NOT NULL); INSERT INTO doc VALUES (1, 5); SELECT fence.attach('doc', scope => 'manual')");
	like($sql->error_of(q(SELECT fence.begin_write_strict('doc', 4, '1'))), qr/^40001/, 'a caller has read an old version');
	is(operation('doc', 'reserve', 'conflict'), 1, 'that is a conflict,');
	is(metric('cache_stale_write_reject_total', domain => 'doc', cache_type => 'manual', level => 'postgres'), 1, 'and a stale write');
};

subtest 'a prepared transaction stays in the gauge until it ends' => sub {
	$sql->run("BEGIN; UPDATE item SET n = 0 WHERE id IN (60, 61); PREPARE TRANSACTION 'p'");
	poll(sub { metric('cache_fence_pending', domain => 'item') == 2 }, 'the gauge to rise');
	is(metric('cache_fence_pending', domain => 'other'), 0, 'only of its domain');
	$sql->run("COMMIT PREPARED 'p'");
	poll(sub { metric('cache_fence_pending', domain => 'item') == 0 }, 'the gauge to fall');
	counts_ok(1, 'the patrol settled the transaction', [ 'item', 'settle', 'committed' ]);
};

subtest 'Redis away, and back' => sub {
	$sql->run('SELECT fence.reset_metrics()');
	my $writer = FenceTest::Session->open($node);

	$writer->run('BEGIN; UPDATE item SET n = 1 WHERE id = 70');
	poll(sub { metric('cache_fence_pending', domain => 'item') == 1 }, 'the gauge to rise');
	is(metric('cache_fence_open'), 1, 'open');
	$redis->kill9;
	$writer->run('ROLLBACK');
	$sql->run('UPDATE item SET n = 2 WHERE id IN (71, 72)');
	is(metric('cache_fence_bypassed_transactions_total'), 1, 'a transaction went without reservations');
	is(operation('item', 'commit', 'bypassed'), 2, 'with two rows');
	is($sql->run('SELECT bypassed_transactions FROM fence.state'), 1, 'fence.state says so too');
	is(metric('cache_fence_open'), 0, 'closed');
	poll(sub { metric('cache_fence_pending', domain => 'item') == 0 }, 'the gauge to fall');
	cmp_ok(operation('item', 'reserve', 'timeout'), '>=', 2, 'nobody answered their reservations,');
	is(operation('item', 'reserve', 'failed'), 0, 'which is no error of Redis');
	# until the keeper has seen the connection end, a read is "unarmed": the lease may run out first on a busy machine
	poll(sub { $sql->run("SELECT status FROM fence.get('item', '71')") eq 'unavailable' }, 'a read that knows Redis away');
	is(metric('cache_db_fallback_total', domain => 'item', reason => 'unavailable'), 1, 'went to PostgreSQL');
	$redis->restart;
	wait_open($node);
	is($sql->run("SELECT sum(value) FROM fence.metrics WHERE name = 'cache_fence_epoch_changes_total'"), 1, 'one new epoch');
	is(metric('cache_fence_state_changes_total', state => $_), 1, "$_ once") foreach qw(OPEN CLOSED);
	$writer->close;
};

subtest 'what monitoring/ is made of' => sub {
	my ($status, $out) = output_of('/usr/bin/python3', "$monitoring/generate.py", '--check');
	is($out, '', 'queries and dashboard are made from src/base/metrics.h, and the alerts name nothing else');
	is($status, 0, 'checked');

	($status, $out) = output_of('/usr/bin/python3', "$monitoring/generate.py", '--list');
	my $here = $sql->run(<<'SQL');
SELECT DISTINCT name || ' ' || CASE WHEN labels ? 'cache_type' THEN labels || '{"domain": "*", "cache_type": "*"}'
	WHEN labels ? 'domain' THEN labels || '{"domain": "*"}' ELSE labels END FROM fence.metrics
SQL
	my $sorted = sub {
		return join "\n", sort map { my ($name, $json) = split / /, $_, 2; $name . ' ' . JSON::PP->new->canonical->encode(decode_json($json)) }
		  split /\n/, $_[0];
	};
	is($sorted->($out), $sorted->($here), 'fence.metrics has exactly what the header lists');
};

# A metric that does not exist must be found, or the test above tests nothing.
subtest 'rules that name what does not exist' => sub {
	my $copy = PostgreSQL::Test::Utils::tempdir;

	system("cp -r '$monitoring' '$copy/monitoring' && mkdir -p '$copy/src/base' && cp '$TOP/src/base/metrics.h' '$copy/src/base'") == 0 or die;
	my $spoil = sub {
		my ($from, $to) = @_;
		my $text = PostgreSQL::Test::Utils::slurp_file("$monitoring/alerts.yml");

		$text =~ s/\Q$from\E/$to/ or die;
		open my $fh, '>', "$copy/monitoring/alerts.yml" or die $!;
		print $fh $text;
		close $fh;
		my ($status, $out) = output_of('/usr/bin/python3', "$copy/monitoring/generate.py", '--check');
		return $out;
	};
	like($spoil->('cache_fence_open == 0', 'cache_fence_opened == 0'), qr/no metric cache_fence_opened/, 'a metric');
	like($spoil->('relation="fence_ahead_db"', 'relation="behind"'), qr/no relation "behind"/, 'a value of a label');
	like($spoil->('{relation="fence_ahead_db"}', '{kind="x"}'), qr/no label kind/, 'a label');
};

subtest 'promtool' => sub {
	my ($status, $out) = output_of('promtool', 'check', 'rules', "$monitoring/alerts.yml");
	is($status, 0, 'the rules are well-formed') or diag($out);
	($status, $out) = output_of('promtool', 'test', 'rules', "$monitoring/alerts_test.yml");
	is($status, 0, 'and fire when they should') or diag($out);
};

subtest 'the exporter' => sub {
	my $probe = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => 0, Listen => 1) or die;
	my $port = $probe->sockport;
	my $log = '';

	# each release has other collectors of its own
	# ... and of some of them settings, whose names have a further dot
	my %collectors = map { ($_ => 1) } output_of('prometheus-postgres-exporter', '--help') =~ /--(?:\[no-\])?collector\.(\w+)(?![\w.=])/g;
	my @without = map { "--no-collector.$_" } sort keys %collectors;

	$probe->close;
	$sql->run('CREATE ROLE exporter LOGIN IN ROLE pg_monitor');
	local $ENV{DATA_SOURCE_NAME} =
	  'user=exporter dbname=postgres sslmode=disable host=' . $node->host . ' port=' . $node->port;
	my $exporter = IPC::Run::start(
		[
			'prometheus-postgres-exporter', '--disable-default-metrics', '--disable-settings-metrics', @without, "--web.listen-address=127.0.0.1:$port", "--extend.query-path=$monitoring/queries.yaml"
		],
		'<', \undef, '>&', \$log);
	my $scraped = eval {
		poll(
			sub {
				$exporter->pump_nb;
				my $socket = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $port) or return;
				print $socket "GET /metrics HTTP/1.0\r\n\r\n";
				local $/;
				my $page = <$socket>;
				return $page =~ /^cache_fence_open/m ? $page : undef;
			},
			'a page of metrics');
	};
	$exporter->signal('TERM');
	eval { $exporter->finish };
	ok($scraped, 'it serves our metrics') or diag($log);

	# name{labels} without what the exporter adds
	my %value;
	foreach (split /\n/, $scraped // '')
	{
		next unless /^(cache_\w+)(?:\{(.*)\})? (\S+)$/;
		my ($name, $labels, $number) = ($1, $2 // '', $3);
		my %label = $labels =~ /(\w+)="([^"]*)"/g;
		delete @label{qw(server datname)};
		$label{le} += 0 if exists $label{le} && $label{le} ne '+Inf';
		$value{ join ' ', $name, map { "$_=$label{$_}" } sort keys %label } = $number;
	}
	$sql->run('RESET pgcache_fence.zero_counters');
	my %wanted = map { my ($series, $number) = split /\|/; ($series => $number) } split /\n/, $sql->run(<<'SQL');
SELECT concat_ws(' ', name, (SELECT string_agg(key || '=' || value, ' ' ORDER BY key) FROM jsonb_each_text(labels))), value
  FROM fence.metrics
SQL
	is_deeply([ sort keys %value ], [ sort keys %wanted ], 'exactly the series of fence.metrics');
	# some move meanwhile
	my @differ = grep { !/heartbeat|clock|get/ && ($value{$_} // '') != $wanted{$_} } sort keys %wanted;
	is("@differ", '', 'with their values');
	like($scraped, qr/^# TYPE cache_fence_operations_total counter$/m, 'a counter is one');
	like($scraped, qr/^# TYPE cache_fence_pending gauge$/m, 'a gauge is one');
	like($scraped, qr/^# TYPE cache_fence_commit_window_seconds histogram$/m, 'the histogram is one');
};

$sql->close;
$node->stop('fast');
done_testing();
