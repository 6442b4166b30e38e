# FenceTest/Bulk.pm
#    Shared by the tests of domains that are reserved as a whole: servers, sessions, cached tables of three kinds, and reads.
#
# Owns: the server $redis, the node $node and four sessions, which setup opens and finish closes. If a test kills a backend, it
# may open that session anew. Reads go directly to Redis where a lock could make SQL wait.
package FenceTest::Bulk;

use strict;
use warnings;

use Exporter 'import';
use PostgreSQL::Test::Utils;
use Test::More;
use FenceTest;
use FenceTest::Session;

our @EXPORT = qw(
  $redis $node $sql $writer $other $blocker
  $threshold $rows @kinds $update $one
  setup finish connect_all flush set epoch wait_new_epoch
  new_table fence_of warm get reads hits_are stale names_in all_is_well pending_of ended waits_for
);

our $threshold = 10;
our $rows = 60;
our $update = "UPDATE :t SET name = 'new'";
our $one = "UPDATE :t SET name = 'one' WHERE id = 1";
our ($redis, $node, $sql, $writer, $other, $blocker);

sub setup
{
	$redis = FenceTest::Redis->start;
	$node = new_postgres('main', $redis,
		timeout                   => '5s',
		bulk_threshold            => $threshold,
		audit_rate                => 0,
		wal_level                 => 'replica',
		max_wal_senders           => 1,
		synchronous_commit        => 'local',
		synchronous_standby_names => 'nobody',
		restart_after_crash       => 'on',
		autovacuum                => 'off',
		max_prepared_transactions => 5);
	$sql = FenceTest::Session->open($node);
	$sql->run('CREATE TABLE beside (id int PRIMARY KEY, version bigint NOT NULL DEFAULT 0)');
	$sql->run('INSERT INTO beside VALUES (1, 1)');
	$sql->run("SELECT fence.attach('beside')");
	$sql->run('CREATE TABLE scratch (id int)');
	connect_all();
	return;
}

# Ends a test: checks that no reservation is left, and that no process has crashed except those that the test killed.
sub finish
{
	is($sql->run('SELECT count(*) FROM fence.pending'), '0', 'nothing is pending in the end');
	$_->close foreach $sql, $writer, $other, $blocker;
	$node->stop('fast');
	my $log = slurp_file($node->logfile);
	unlike($log, qr/PANIC|TRAP|segfault|was terminated by signal (?!9)/, 'no crash but those that were meant');
	unlike($log, qr/fence_behind_db|older than its row/, 'no broken promise');
	done_testing();
	return;
}

# Connects all writers to Redis, so that they reserve rows while a statement runs.
sub connect_all
{
	($sql, $writer, $other, $blocker) = map { FenceTest::Session->open($node) } 1 .. 4;
	flush($_) foreach $writer, $other;
	return;
}

# Makes the session send all messages that its connection has gathered, and wait for an answer after them.
sub flush { $_[0]->run("SELECT 1 FROM fence.get('beside', '1')"); return; }

# Kinds of tables. Each has the keys 1 to 60 in a column id, and a column name.
my %kind = (
	plain => {
		make => ['CREATE TABLE :t (id int PRIMARY KEY, n int DEFAULT 1, name text, version bigint NOT NULL DEFAULT 0)'],
		fill => "INSERT INTO :t (id, name, version) SELECT g, 'old', 5 FROM generate_series(1, 60) g",
	},
	partitioned => {
		make => [
			'CREATE TABLE :t (id int PRIMARY KEY, n int DEFAULT 1, name text, version bigint NOT NULL DEFAULT 0) '
			  . 'PARTITION BY RANGE (id)',
			'CREATE TABLE :t_1 PARTITION OF :t FOR VALUES FROM (1) TO (31)',
			'CREATE TABLE :t_2 PARTITION OF :t DEFAULT PARTITION BY HASH (id)',
			'CREATE TABLE :t_2a PARTITION OF :t_2 FOR VALUES WITH (MODULUS 2, REMAINDER 0)',
			'CREATE TABLE :t_2b PARTITION OF :t_2 FOR VALUES WITH (MODULUS 2, REMAINDER 1)',
		],
		fill => "INSERT INTO :t (id, name, version) SELECT g, 'old', 5 FROM generate_series(1, 60) g",
	},
	group => {
		make => ['CREATE TABLE :t (id int, n int DEFAULT 1, name text, PRIMARY KEY (id, n))'],
		fill => "INSERT INTO :t SELECT g, n, 'old' FROM generate_series(1, 60) g, generate_series(1, 2) n",
		attach => ", key => '{id}', scope => 'group'",
	});
our @kinds = qw(plain partitioned group);

my $tables = 0;
my %kind_of;     # table -> kind
my %fence;       # table -> [key -> fence]

# Makes a table of that kind, attaches and caches it.
sub new_table
{
	my ($kind) = @_;
	my $table = ($kind // 'plain') . ++$tables;

	$kind_of{$table} = $kind //= 'plain';
	my $how = $kind{$kind};
	$sql->run(s/:t/$table/gr) foreach @{ $how->{make} }, $how->{fill};
	$sql->run("SELECT fence.attach('$table'" . ($how->{attach} // '') . ')');
	$fence{$table} = [ undef, split /\n/, $sql->run("SELECT fence.fence_key('$table', k::text) FROM generate_series(1, $rows) k ORDER BY k") ];
	warm($table);
	return $table;
}

# Caches all rows.
sub warm
{
	my ($table) = @_;

	poll(
		sub {
			$sql->run("SELECT fence.read('$table', id::text) FROM (SELECT DISTINCT id FROM $table) k");
			return $sql->run("SELECT count(*) FROM (SELECT DISTINCT id FROM $table) k "
				  . "WHERE (fence.get('$table', id::text)).status <> 'hit'") eq '0';
		},
		"$table is cached");
	return;
}

sub fence_of { my ($table, $key) = @_; return $fence{$table}[$key]; }
sub get { return $redis->call(qw(FCALL_RO fence_get 1), fence_of(@_)); }

# The results of reads of these keys (default: all): "hit 59, pending 1".
sub reads
{
	my ($table, @keys) = @_;
	my %count;

	$count{ get($table, $_)->[0] }++ foreach @keys ? @keys : 1 .. $rows;
	return join ', ', map { @keys == 1 ? $_ : "$_ $count{$_}" } sort keys %count;
}

# Tests that reads of all keys get at most so many hits, and at most $fewer less. The default of $fewer is the number of rows that
# may have been reserved one by one.
sub hits_are
{
	my ($table, $most, $title, $fewer) = @_;
	my $reads = reads($table);
	my ($hits) = $reads =~ /hit (\d+)/;

	$hits //= 0;
	$fewer //= $threshold + 1;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return ok($reads !~ /pending|unarmed/ && $hits <= $most && $hits >= $most - $fewer, "$title: $reads")
	  || diag("expected: at most $most hits, at most $fewer fewer");
}

# The number of hits whose value differs from the row in PostgreSQL.
sub stale
{
	my ($table) = @_;
	my ($now, $cached) = $kind_of{$table} eq 'group'
	  ? ("(SELECT coalesce(jsonb_agg(to_jsonb(t) ORDER BY to_jsonb(t)), '[]') FROM $table t WHERE t.id = k)",
		"(SELECT coalesce(jsonb_agg(x ORDER BY x), '[]') FROM jsonb_array_elements(g.payload::jsonb) x)")
	  : ("(SELECT to_jsonb(t) FROM $table t WHERE t.id = k)", 'g.payload::jsonb');

	return $sql->run("SELECT count(*) FROM generate_series(1, 200) k CROSS JOIN LATERAL fence.get('$table', k::text) g "
		  . "WHERE g.status = 'hit' AND $cached IS DISTINCT FROM $now");
}

# Checks at the end that no hit is stale, and that everything can be cached again.
sub all_is_well
{
	my ($table) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	no_reservations($node);
	is(stale($table), '0', 'nothing stale is served');
	compare_fences($node, $table);
	warm($table);
	is(stale($table), '0', 'everything can be cached again');
	compare_fences($node, $table);
	return;
}

# The reservations of a session in a domain: "domain 1, row 10".
sub pending_of
{
	my ($table, $session) = @_;

	return $sql->run("SELECT string_agg(kind || ' ' || n, ', ' ORDER BY kind) FROM (SELECT kind, coalesce(sum(fences), count(*)) AS n "
		  . "FROM fence.pending WHERE domain = '$table' AND fate = 'in progress' AND pid = " . $session->pid
		  . ' GROUP BY kind) p');
}

sub ended
{
	my ($table) = @_;

	poll(sub { $sql->run("SELECT count(*) FROM fence.pending WHERE domain = '$table' AND fate <> 'in progress'") eq '0' },
		'what has ended to be settled');
	return;
}

sub waits_for
{
	my ($session, $event) = @_;

	my $seen = 'SELECT wait_event_type, wait_event FROM pg_stat_activity WHERE pid = ' . $session->pid;

	poll(sub { grep { $_ eq $event } split /\|/, $sql->run($seen) }, "a session to wait for $event");
	return;
}

sub set
{
	$sql->run("ALTER SYSTEM SET $_") foreach @_;
	$node->reload;
	return;
}

sub epoch { return (split /-/, $sql->run('SELECT epoch FROM fence.state'))[0]; }

# Waits, after Redis has lost everything, for a new epoch in which the domain is served again.
sub wait_new_epoch
{
	my ($before, $table) = @_;

	poll(sub { my $e = eval { epoch() }; defined $e && $e > $before }, 'a new epoch');
	wait_open($node);
	poll(sub { reads($table, $rows) ne 'unarmed' }, "$table is served") if $table;
	return;
}

# The number of keys of the table for each name.
sub names_in
{
	my ($table) = @_;

	return $sql->run("SELECT string_agg(name || ' ' || n, ', ' ORDER BY name) FROM (SELECT name, count(DISTINCT id) AS n "
		  . "FROM $table GROUP BY name) t");
}

1;
