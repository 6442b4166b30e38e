# Reading rows of partitioned tables from PostgreSQL: the partition is found by the key, as in a SELECT, so a read costs the same
# whatever the number of partitions; and it is the right one, however the table is partitioned.

use strict;
use warnings;

use FenceTest;
use FenceTest::Session;
use Test::More;

my $redis = FenceTest::Redis->start;
my $node = new_postgres('partitions', $redis, audit_rate => 0);
my $sql = FenceTest::Session->open($node);

# Processor time of a backend in microseconds.
sub spent
{
	my ($session) = @_;

	open my $fh, '<', '/proc/' . $session->pid . '/schedstat' or return 0;
	return (split / /, <$fh>)[0] / 1000;
}

sub served
{
	my ($domain, $key) = @_;

	poll(sub { $sql->run("SELECT status FROM fence.get('$domain', $key)") ne 'unarmed' }, "the announcement of $domain");
	return;
}

# What a new session does to read one row: tables that it locks, Domains that it keeps, and the time of the first and of later reads.
sub cost
{
	my ($read) = @_;
	my $session = FenceTest::Session->open($node);
	my %cost;
	my $before = spent($session);

	$session->run("BEGIN; $read");
	$cost{first} = spent($session) - $before;
	$cost{locks} = $session->run("SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'relation'");
	$cost{kept} = $session->run("SELECT count(*) FROM pg_backend_memory_contexts WHERE name = 'pgcache_fence domains'");
	$cost{bytes} = $session->run("SELECT sum(total_bytes) FROM pg_backend_memory_contexts");
	$session->run('COMMIT');
	$before = spent($session);
	$session->run($read) foreach 1 .. 20;
	$cost{later} = (spent($session) - $before) / 20;
	$session->close;
	note(sprintf '%s: %d locks, %d domains, %d kB, first %d us, later %d us', $read, @cost{qw(locks kept)}, $cost{bytes} / 1024, @cost{qw(first later)});
	return \%cost;
}

subtest 'a read costs the same with any number of partitions' => sub {
	my %cost;
	foreach my $n (10, 200)
	{
		$sql->run(<<"SQL");
CREATE TABLE of$n (id int PRIMARY KEY, n int, version bigint NOT NULL DEFAULT 0) PARTITION BY RANGE (id);
DO \$\$ BEGIN FOR i IN 0 .. $n - 1 LOOP
	EXECUTE format('CREATE TABLE of${n}_%s PARTITION OF of$n FOR VALUES FROM (%s) TO (%s)', i, i * 10, i * 10 + 10); END LOOP; END \$\$;
INSERT INTO of$n SELECT g, g FROM generate_series(0, 10 * $n - 1) g;
SELECT fence.attach('of$n');
SQL
		served("of$n", 1);
		$cost{$n} = cost("SELECT fence.try_read('of$n', (random() * (10 * $n - 1))::int)");
		cost("SELECT n FROM of$n WHERE id = 5");
	}
	cmp_ok($cost{200}{locks}, '<=', $cost{10}{locks}, 'locks');
	cmp_ok($cost{200}{kept}, '<=', 2, 'tables whose description is kept: the root and one partition');
	is($cost{200}{kept}, $cost{10}{kept}, '... as with few partitions');
	is($sql->run("SELECT fence.read('of200', 1777)->>'n'"), '1777', 'and it is the right row');
};

# By what: columns with the key, partitions, rows, and the key's columns. A group is the rows that have these columns in common.
my $numbers = 'FROM generate_series(1, 60) i';
my @schemes = (
	[ range => 'day date, place int, PRIMARY KEY (place, day)) PARTITION BY RANGE (day)',
		[ "1 PARTITION OF range FOR VALUES FROM (MINVALUE) TO ('2026-01-10')", "2 PARTITION OF range FOR VALUES FROM ('2026-01-10') TO ('2026-01-20')", '3 PARTITION OF range DEFAULT' ],
		"SELECT '2026-01-01'::date + i, i % 7 $numbers", 'place, day' ],
	[ two_columns => 'a int, b text, c int, PRIMARY KEY (c, b, a)) PARTITION BY RANGE (a, b)',
		[ "1 PARTITION OF two_columns FOR VALUES FROM (MINVALUE, MINVALUE) TO (20, 'm')", "2 PARTITION OF two_columns FOR VALUES FROM (20, 'm') TO (40, 'm')", '3 PARTITION OF two_columns FOR VALUES FROM (40, \'m\') TO (MAXVALUE, MAXVALUE)' ],
		"SELECT i, chr(97 + i % 26), i $numbers", 'c, b, a' ],
	[ list => 'kind varchar(9), id int, PRIMARY KEY (id, kind)) PARTITION BY LIST (kind)',
		[ "1 PARTITION OF list FOR VALUES IN ('a', 'b')", "2 PARTITION OF list FOR VALUES IN ('c', NULL)", '3 PARTITION OF list DEFAULT' ],
		"SELECT chr(97 + i % 6), i $numbers", 'id, kind' ],
	[ hash => 'name text, at timestamptz, PRIMARY KEY (name, at)) PARTITION BY HASH (at, name)',
		[ map { "$_ PARTITION OF hash FOR VALUES WITH (MODULUS 4, REMAINDER $_)" } 0 .. 3 ],
		"SELECT 'n' || i, '2026-01-01 00:00:00.123456+02'::timestamptz + i * '1 day'::interval $numbers", 'name, at' ],
	[ types => 'n numeric, c char(5), u uuid, PRIMARY KEY (n, c, u)) PARTITION BY HASH (n, c, u)',
		[ map { "$_ PARTITION OF types FOR VALUES WITH (MODULUS 3, REMAINDER $_)" } 0 .. 2 ],
		"SELECT i / 8.0, 'c' || i, md5(i::text)::uuid $numbers", 'n, c, u' ],
	[ levels => 'day date, id int, x text, PRIMARY KEY (id, day)) PARTITION BY RANGE (day)',
		[ "1 (x text, id int NOT NULL, day date NOT NULL) PARTITION BY HASH (id)", "1a PARTITION OF levels1 FOR VALUES WITH (MODULUS 2, REMAINDER 0)",
			'1b PARTITION OF levels1 FOR VALUES WITH (MODULUS 2, REMAINDER 1)', "2 PARTITION OF levels FOR VALUES FROM ('2026-02-01') TO ('2026-04-01')" ],
		"SELECT '2026-01-01'::date + i, i, 'x' $numbers", 'id, day', before => "ALTER TABLE levels ATTACH PARTITION levels1 FOR VALUES FROM ('2026-01-01') TO ('2026-02-01')" ],
	[ group_with => 'day date, id int, x int) PARTITION BY LIST (id)',
		[ '1 PARTITION OF group_with FOR VALUES IN (1, 3)', '2 PARTITION OF group_with FOR VALUES IN (0, 2)' ],
		"SELECT '2026-01-01'::date + i % 3, i % 4, i $numbers", 'day, id', attach => ", scope => 'group', key => '{day,id}'" ],
	[ group_without => 'day date, id int, x int) PARTITION BY RANGE (day)',
		[ "1 PARTITION OF group_without FOR VALUES FROM (MINVALUE) TO ('2026-01-20') PARTITION BY LIST (id)", '1a PARTITION OF group_without1 FOR VALUES IN (0, 1)',
			'1b PARTITION OF group_without1 FOR VALUES IN (2, 3)', '2 PARTITION OF group_without DEFAULT' ],
		"SELECT '2026-01-01'::date + i, i % 4, i $numbers", 'id', attach => ", scope => 'group', key => '{id}'" ],
	[ expression => 'id int, x int) PARTITION BY RANGE ((id / 10))',
		[ '1 PARTITION OF expression FOR VALUES FROM (MINVALUE) TO (3)', '2 PARTITION OF expression FOR VALUES FROM (3) TO (MAXVALUE)' ],
		"SELECT i, i $numbers", 'id', attach => ", scope => 'group', key => '{id}'" ],
	[ any_case => 'name text, id int) PARTITION BY LIST (name COLLATE any_case)',
		[ "1 PARTITION OF any_case FOR VALUES IN ('a')", '2 PARTITION OF any_case DEFAULT' ],
		"SELECT (ARRAY['a', 'A', 'b', 'B'])[i % 4 + 1], i $numbers", 'name', attach => ", scope => 'group', key => '{name}'" ],
);

$sql->run("CREATE COLLATION any_case (provider = icu, locale = 'und-u-ks-level2', deterministic = false)");
foreach my $scheme (@schemes)
{
	my ($name, $columns, $partitions, $rows, $key, %with) = @$scheme;

	subtest "by $name" => sub {
		my @key = split /, /, $key;
		my $arguments = join ', ', map { "t.$_" } @key;
		my $same = join ' AND ', map { "other.$_ = t.$_" } @key;
		my $read = "fence.read('$name', $arguments)";
		my $right = 'to_jsonb(t)';

		$sql->run("CREATE TABLE $name ($columns");
		$sql->run("CREATE TABLE $name$_") foreach @$partitions;
		$sql->run($with{before}) if $with{before};
		$sql->run("INSERT INTO $name $rows");
		$sql->run("SELECT fence.attach('$name'" . ($with{attach} // ', version => NULL') . ')');
		served($name, 'VARIADIC (SELECT ARRAY[' . join(', ', map { "t.${_}::text" } @key) . "] FROM $name t LIMIT 1)");
		($read, $right) = ("(SELECT jsonb_agg(e ORDER BY e) FROM jsonb_array_elements($read) e)",
			"(SELECT jsonb_agg(to_jsonb(other) ORDER BY to_jsonb(other)) FROM $name other WHERE $same)") if $with{attach};
		is($sql->run("SELECT count(*), count(*) FILTER (WHERE $read = $right) FROM $name t"), '60|60', 'each row is read');
		cmp_ok($sql->run("SELECT count(DISTINCT tableoid) FROM $name"), '>', 1, '... from several partitions');
		$sql->run("CREATE TABLE was AS SELECT * FROM $name; DELETE FROM $name");
		is($sql->run("SELECT count(*) FILTER (WHERE coalesce($read, '[]') = '[]') FROM was t"), 60, 'and none when it is gone');
		$sql->run('DROP TABLE was');
	};
}

# A key that no partition takes, one whose partition is gone, and one whose partition is new.
subtest 'no partition' => sub {
	$sql->run("CREATE TABLE few (id int PRIMARY KEY, version bigint) PARTITION BY LIST (id); SELECT fence.attach('few')");
	served('few', 1);
	is($sql->run("SELECT found IS NULL FROM fence.read('few', 1) found"), 't', 'of a table that has none');
	$sql->run('CREATE TABLE few1 PARTITION OF few FOR VALUES IN (1); INSERT INTO few VALUES (1)');
	is($sql->run("SELECT fence.read('few', 1)->>'id'"), 1, 'a new one');
	is($sql->run("SELECT found IS NULL FROM fence.read('few', 2) found"), 't', 'a key of none');
	$sql->run('ALTER TABLE few DETACH PARTITION few1');
	is($sql->run("SELECT found IS NULL FROM fence.read('few', 1) found"), 't', 'one that was taken away');
};

# The audit looks at all partitions, one after the other. A transaction that asks whether it has written itself looks at its locks.
subtest 'neither the audit nor a writer holds locks on partitions that it has not changed' => sub {
	my $held = "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'relation' AND relation::regclass::text LIKE 'of200%'";

	$sql->run('BEGIN');
	is($sql->run("SELECT sum(count) > 0 FROM fence.audit('of200', 0.01)"), 't', 'the audit has compared rows');
	is($sql->run($held), 0, '... and holds no lock');
	$sql->run('ROLLBACK; BEGIN; UPDATE of200 SET n = -1 WHERE id = 15');
	is($sql->run("SELECT value->>'n', source FROM fence.try_read('of200', 15)"), '-1|database', 'a writer reads its own row');
	cmp_ok($sql->run($held), '<', 10, '... and holds few locks');
	$sql->run('ROLLBACK');
};

done_testing();
