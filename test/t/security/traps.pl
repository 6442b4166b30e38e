# Names that mean something else than they seem: a schema "fence" that somebody made beforehand, and a database whose schemas
# are full of functions, operators, types and tables with the names of PostgreSQL's own and of ours. None of them may be run,
# by whoever installs the extension, by whoever calls it, or by the workers, who are superusers.

use strict;
use warnings;

use FenceTest;
use FenceTest::Session;
use PostgreSQL::Test::Utils;
use Test::More;

my $redis = FenceTest::Redis->start;
my $node = new_postgres('traps', $redis, max_prepared_transactions => 2, audit_rate => 1000);
my $attached = q{SELECT pg_catalog.count(*) FROM pg_catalog.pg_namespace WHERE nspname OPERATOR(pg_catalog.=) 'fence'};

sub error_of
{
	my ($dbname, $statement) = @_;
	my $error;

	$node->psql($dbname, "\\set VERBOSITY verbose\n$statement", stderr => \$error);
	return $error;
}

subtest 'a schema fence that somebody made' => sub {
	$node->safe_psql('postgres', 'CREATE ROLE creator LOGIN; CREATE DATABASE prepared; GRANT CREATE ON DATABASE prepared TO creator');
	my $creator = FenceTest::Session->open($node, dbname => 'prepared', user => 'creator');
	$creator->run(<<'SQL');
SET client_min_messages = warning;
CREATE SCHEMA fence;
CREATE FUNCTION fence.rob(numeric, int) RETURNS numeric LANGUAGE plpgsql AS 'BEGIN ALTER ROLE creator SUPERUSER; RETURN 1; END';
CREATE FUNCTION fence.rob(int, interval) RETURNS interval LANGUAGE plpgsql AS 'BEGIN ALTER ROLE creator SUPERUSER; RETURN ''1 s''; END';
CREATE FUNCTION fence.rob(numeric, bigint) RETURNS numeric LANGUAGE plpgsql AS 'BEGIN ALTER ROLE creator SUPERUSER; RETURN 1; END';
CREATE OPERATOR fence.* (LEFTARG = numeric, RIGHTARG = int, FUNCTION = fence.rob);
CREATE OPERATOR fence.* (LEFTARG = int, RIGHTARG = interval, FUNCTION = fence.rob);
CREATE OPERATOR fence.% (LEFTARG = numeric, RIGHTARG = bigint, FUNCTION = fence.rob);
SQL
	my $refused = qr/ERROR:  42P06: schema "fence" exists already\nDETAIL: .*\nHINT: /;
	my $super = "SELECT rolsuper FROM pg_roles WHERE rolname = 'creator'";
	my $members = "SELECT count(*) FROM pg_extension WHERE extname = 'pgcache_fence'";

	foreach my $statement ('CREATE EXTENSION pgcache_fence', 'CREATE EXTENSION IF NOT EXISTS pgcache_fence CASCADE')
	{
		like(error_of('prepared', $statement), $refused, "$statement is refused");
	}
	like(error_of('prepared', 'CREATE EXTENSION pgcache_fence SCHEMA fence'), qr/ERROR: .*must be installed in schema "pg_catalog"/,
		'there is no way to name it');
	is($node->safe_psql('prepared', $super), 'f', 'who made it has gained nothing');
	is($node->safe_psql('prepared', $members), '0', 'there is no extension');
	$creator->run('DROP SCHEMA fence CASCADE; CREATE SCHEMA fence');
	like(error_of('prepared', 'CREATE EXTENSION pgcache_fence'), $refused, 'an empty one: who owns it could drop what is in it');
	$creator->run('DROP SCHEMA fence');
	$node->safe_psql('prepared', 'CREATE SCHEMA fence');
	like(error_of('prepared', 'CREATE EXTENSION pgcache_fence'), $refused, "the administrator's own, likewise");
	$node->safe_psql('prepared', 'DROP SCHEMA fence; CREATE EXTENSION pgcache_fence');
	is($node->safe_psql('prepared', $attached), '1', 'without it all is well');
	is(error_of('prepared', 'DROP EXTENSION pgcache_fence; CREATE EXTENSION pgcache_fence'), '', 'and again');
	like($creator->error_of($_), qr/^42501/, "$_ is refused") foreach 'DROP SCHEMA fence CASCADE', 'CREATE TABLE fence.mine ()', 'DROP TABLE fence.domain CASCADE';
	is($node->safe_psql('prepared', $super), 'f', 'who made it has gained nothing');

	$node->safe_psql('prepared', 'CREATE TABLE fence.of_a_superuser ()');
	like(error_of('prepared', 'DROP EXTENSION pgcache_fence'), qr/ERROR:  2BP01/, 'what a superuser puts there is not dropped unasked');
	$node->safe_psql('prepared', 'DROP EXTENSION pgcache_fence CASCADE');
	is($node->safe_psql('prepared', $attached), '0', 'nothing is left');
	$creator->close;
};

# A copy of each function, operator and type of pg_catalog, in this schema, which raises when it is called. A copy has the
# argument types of the original, so it is taken whenever its schema is searched first, and whenever the original only
# comes near. Names of tables are views that have none of the columns.
sub set_traps
{
	my ($schema) = @_;
	my $made = $node->safe_psql('traps', <<"SQL");
SET client_min_messages = error;
CREATE SCHEMA IF NOT EXISTS $schema;
SET search_path = '';
CREATE FUNCTION $schema.spring() RETURNS boolean LANGUAGE internal AS 'any_in';
CREATE TEMP TABLE made (kind text);
DO \$\$
DECLARE
	o record;
BEGIN
	FOR o IN SELECT p.oid, p.proname, p.proretset, p.prorettype FROM pg_proc p WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.prokind <> 'p' LOOP
		BEGIN
			EXECUTE format('CREATE FUNCTION $schema.%I(%s) RETURNS %s LANGUAGE internal AS ''any_in''', o.proname,
				(SELECT string_agg(CASE WHEN p.provariadic <> 0 AND a.n = p.pronargs THEN 'VARIADIC ' ELSE '' END || format_type(a.type, NULL), ', ' ORDER BY a.n)
				   FROM pg_proc p, unnest(p.proargtypes::oid[]) WITH ORDINALITY a (type, n) WHERE p.oid = o.oid),
				CASE WHEN o.proretset THEN 'SETOF ' ELSE '' END || format_type(o.prorettype, NULL));
			INSERT INTO pg_temp.made VALUES ('function');
		EXCEPTION WHEN OTHERS THEN NULL;
		END;
	END LOOP;
	FOR o IN SELECT * FROM pg_operator WHERE oprnamespace = 'pg_catalog'::regnamespace LOOP
		BEGIN
			EXECUTE format('CREATE OPERATOR $schema.%s (%s RIGHTARG = %s, FUNCTION = $schema.%I)', o.oprname,
				'LEFTARG = ' || format_type(NULLIF(o.oprleft, 0), NULL) || ',', format_type(o.oprright, NULL),
				(SELECT proname FROM pg_proc WHERE oid = o.oprcode));
			INSERT INTO pg_temp.made VALUES ('operator');
		EXCEPTION WHEN OTHERS THEN NULL;
		END;
	END LOOP;
	FOR o IN SELECT typname FROM pg_type WHERE typnamespace = 'pg_catalog'::regnamespace AND typtype = 'b' AND typcategory <> 'A' LOOP
		BEGIN
			EXECUTE format('CREATE DOMAIN $schema.%I AS pg_catalog.%1\$I CHECK ($schema.spring())', o.typname);
			INSERT INTO pg_temp.made VALUES ('type');
		EXCEPTION WHEN OTHERS THEN NULL;
		END;
	END LOOP;
	FOR o IN SELECT relname FROM pg_class WHERE relnamespace = 'pg_catalog'::regnamespace AND relkind IN ('r', 'v')
		UNION SELECT unnest('{domain,domains,tombstone,floor,derived,cluster,reservation,outbox,state,nodes,pending,effects,metrics}'::text[]) LOOP
		EXECUTE format('CREATE VIEW $schema.%I AS SELECT $schema.spring() AS sprung', o.relname);
		INSERT INTO pg_temp.made VALUES ('view');
	END LOOP;
END \$\$;
SELECT kind, count(*) FROM pg_temp.made GROUP BY kind ORDER BY kind;
SQL
	note "$schema: ", $made =~ s/\n/, /gr;
	my %n = split /[|\n]/, $made;
	cmp_ok($n{function}, '>', 2000, 'functions');
	cmp_ok($n{operator}, '>', 700, 'operators');
	cmp_ok($n{type}, '>', 50, 'types');
	cmp_ok($n{view}, '>', 100, 'relations');
}

# The same in the session's pg_temp, which is searched first for types and relations if search_path does not name it.
my $temporary = join ";\n",
  (map { "CREATE DOMAIN pg_temp.$_ AS pg_catalog.$_ CHECK (trap.spring())" } qw(text name oid regclass jsonb json uuid int8 int4 timestamptz interval xid)),
  (map { "CREATE TEMP VIEW $_ AS SELECT trap.spring() AS sprung" }
	  qw(pg_class pg_trigger pg_index pg_prepared_xacts pg_locks pg_namespace pg_stat_activity pg_extension domain tombstone floor derived cluster reservation outbox));

my $log_before;
my $admin;

subtest 'installed among traps' => sub {
	$node->safe_psql('postgres', 'CREATE ROLE ordinary LOGIN; CREATE DATABASE traps');
	set_traps($_) foreach qw(public trap);
	$log_before = -s $node->logfile;
	$node->safe_psql('postgres', "ALTER DATABASE traps SET search_path = trap, public, pg_catalog");
	$admin = FenceTest::Session->open($node, dbname => 'traps');
	$admin->run('SET client_min_messages = warning');

	# that the traps work
	my $sprung = qr/cannot accept a value of type any/;
	like($admin->error_of($_), $sprung, "sprung by $_")
	  foreach 'SELECT now()', 'SELECT 1 = 1', 'SELECT NULL::text', "SELECT 'a' IN ('b')", 'SELECT * FROM pg_class';
	like($admin->error_of('SELECT count(*) FROM (VALUES (1)) x'), qr/count is not an aggregate/, 'count(*)');
	$admin->run($temporary);
	like($admin->error_of('SELECT NULL::uuid'), $sprung, 'one in pg_temp');

	is($admin->error_of('CREATE EXTENSION pgcache_fence'), undef, 'CREATE EXTENSION');
	is($admin->error_of('DROP EXTENSION pgcache_fence'), undef, 'DROP EXTENSION');
	is($admin->error_of('CREATE EXTENSION pgcache_fence'), undef, 'CREATE EXTENSION again');
	is($node->safe_psql('traps', <<'SQL'), '', 'no object of it depends on one of another schema');
SET search_path = pg_catalog;
WITH RECURSIVE of_ours AS (
	SELECT classid, objid FROM pg_depend WHERE refclassid = 'pg_extension'::regclass AND deptype = 'e'
	   AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'pgcache_fence')
	UNION SELECT d.classid, d.objid FROM pg_depend d JOIN of_ours o ON d.refclassid = o.classid AND d.refobjid = o.objid)
SELECT pg_describe_object(o.classid, o.objid, 0), pg_describe_object(d.refclassid, d.refobjid, d.refobjsubid)
  FROM of_ours o JOIN pg_depend d ON d.classid = o.classid AND d.objid = o.objid
 WHERE (d.refclassid, d.refobjid) NOT IN (SELECT classid, objid FROM of_ours)
   AND NOT (d.refclassid = 'pg_extension'::regclass) AND (pg_identify_object(d.refclassid, d.refobjid, d.refobjsubid)).schema IS DISTINCT FROM 'pg_catalog';
SQL
};

# Each function and view of the extension, and what writes to fenced tables. Every line is one statement.
my $everything = <<'SQL';
CREATE TABLE trap.item (id int PRIMARY KEY, version bigint NOT NULL DEFAULT 0)
CREATE TABLE trap.member (id int PRIMARY KEY, room int, name varchar)
CREATE TABLE trap.parted (id int PRIMARY KEY, version bigint NOT NULL DEFAULT 0) PARTITION BY RANGE (id)
CREATE TABLE trap.part PARTITION OF trap.parted FOR VALUES FROM (0) TO (100)
SELECT fence.attach('trap.item', domain => 'item', cache => 'row', publish => 'pubsub')
SELECT fence.attach('trap.member', domain => 'member', key => '{room}', scope => 'group')
SELECT fence.attach('trap.parted', domain => 'parted', publish => 'notify')
SELECT fence.attach(NULL, domain => 'manual', scope => 'manual')
CREATE TABLE trap.part2 PARTITION OF trap.parted FOR VALUES FROM (100) TO (200)
INSERT INTO trap.item SELECT pg_catalog.generate_series(1, 10)
INSERT INTO trap.member VALUES (1, 1, 'a'), (2, 1, 'b'), (3, 2, 'c')
INSERT INTO trap.parted VALUES (1), (101)
UPDATE trap.item SET id = id WHERE id OPERATOR(pg_catalog.=) 1
UPDATE trap.member SET room = 2 WHERE id OPERATOR(pg_catalog.=) 1
UPDATE trap.parted SET id = id
DELETE FROM trap.item WHERE id OPERATOR(pg_catalog.=) 10
INSERT INTO trap.item VALUES (10)
SELECT fence.fence_key('item', '1'), fence.value_key('item', '1'), fence.key_slot('a'), fence.fence_keys('item', '{1,2}'), fence.fence_prefix('item')
SELECT fence.fence_key('item', 1), fence.value_key('item', 1::bigint), fence.fence_key('item', 1.0), fence.fence_key('manual', 1), fence.fence_key('manual', VARIADIC ARRAY[1])
SELECT fence.group_version('member', '1'), fence.group_version('member', 1), fence.row_version(1)
SELECT fence.get('item', '1'), fence.get('member', '2'), fence.get('parted', '101'), fence.get('manual', 'x')
SELECT fence.read('item', '1'), fence.try_read('item', '1'), fence.try_read('item', 1), fence.read('member', '2'), fence.read('parted', '101'), fence.read('item', 1), fence.get('item', 1), fence.peek('item', 1)
SELECT fence.put('item', 'none', 1, '{}', NULL, '2'), fence.put('item', 'none', 1, '{}', NULL, 2)
SELECT fence.peek('item', '1'), fence.status('item', '1'), fence.status('member', '2')
SELECT * FROM fence.get_many(VARIADIC fence.fence_keys('item', '{1,2}'))
SELECT * FROM fence.read_many(fence.fence_keys('item', '{1,2}'))
CREATE FUNCTION trap.total(int) RETURNS bigint STABLE LANGUAGE sql BEGIN ATOMIC SELECT version FROM trap.item WHERE id OPERATOR(pg_catalog.=) $1; END
SELECT fence.define_derived('total', '{item($1)}', 'trap.total(int)')
SELECT fence.read_derived('total', '1'), fence.try_read_derived('total', '1'), fence.try_read_derived('total', 1), fence.derived_keys('total', '1'), fence.read_derived('total', 1), fence.derived_keys('total', 1)
SELECT fence.drop_derived('total')
BEGIN
SELECT fence.begin_write('manual', 0, 'x')
SELECT fence.abort_write('manual', 'x')
SELECT fence.begin_write_strict('manual', 0, 'z'), fence.begin_write_strict('manual', 0, 8)
SELECT fence.begin_write('manual', 0, 'y'), fence.begin_write('manual', 0, 7), fence.abort_write('manual', 7)
COMMIT
SELECT fence.abort(token) FROM fence.reserve('item', NULL, '10 s', '3')
SELECT fence.commit(token) FROM fence.reserve('item', NULL, '10 s', '4')
SELECT fence.abort(token) FROM fence.reserve('item', NULL, '10 s', 4)
SELECT fence.reserve('item', NULL, '10 s', '5')
SELECT fence.audit('item'), fence.repair('item', '1'), fence.repair_domain('item'), fence.repair_domain('member')
SELECT fence.renumber('item')
SELECT fence.once('request'), fence.once_result('request', '1')
SELECT fence.counter_add('{c}a', 5, 0, 10, true)
SELECT fence.transfer('{c}a', '{c}b', 1)
SELECT fence.counter_add('{c}a', -99, 0, on_bound => 'clamp'), fence.counter_add('{c}a', -99, 0, on_bound => 'refuse')
SELECT fence.hash_set('{c}h', 'f', 'x', '{c}log', true), fence.hash_add('{c}h', 'n', 5, 0, 3, '{c}log', true, 'clamp')
SELECT fence.compare_and_set('set', NULL, 'a'), fence.take('taken'), fence.take_and_extend('taken2', '1 s'), fence.take_and_set('taken3', 'a')
SELECT fence.publish('published', 'a', durable => true), fence.publish_hash('hash', '{"a": 1}')
SELECT fence.append('log', 'a'), fence.append('{log2,log3}'::pg_catalog.text[], 'a'), fence.enqueue('queue', 'job')
SELECT fence.latest_common('{log,log2,log3}'), fence._log_stamps('log', 10)
SELECT fence.is_committed(fence.commit_marker())
BEGIN
UPDATE trap.item SET id = id WHERE id OPERATOR(pg_catalog.=) 2
SELECT fence.commit_marker()
PREPARE TRANSACTION 'trapped'
SELECT fence.explain('item', '1'), fence.explain('item', '2'), fence.explain('item', '5'), fence.explain('item', 1), fence.status('item', 1), fence.repair('item', 1)
SELECT * FROM fence.state, fence._state(), fence.wait_open()
SELECT * FROM fence.nodes, fence._nodes()
SELECT * FROM fence.buckets, fence._buckets()
SELECT * FROM fence.pending, fence._pending()
SELECT * FROM fence.effects, fence._effects()
SELECT * FROM fence.hot_keys, fence.hot_slots, fence._hot()
CALL fence.warm('item')
CALL fence.warm('member')
SELECT * FROM fence.metrics
SELECT * FROM fence._metrics()
SELECT * FROM fence.domains, fence.domain, fence.derived
SELECT finding FROM fence.doctor()
COMMIT PREPARED 'trapped'
SELECT fence.reset_metrics()
UPDATE fence.domain SET id = id
TRUNCATE trap.item, trap.member, trap.parted
ALTER TABLE trap.item ADD COLUMN v int
SELECT fence.detach('trap.member'), fence.detach_domain('manual')
DROP TABLE trap.parted
SQL

sub first_column { return split /\n/, $node->safe_psql('postgres', $_[0]) }

subtest 'every function and view' => sub {
	my %internal = map { $_ => 1 } qw(before_row after_row before_truncate _domain_restored);

	foreach my $name (first_column("SELECT DISTINCT proname FROM pg_proc WHERE pronamespace = 'fence'::regnamespace"))
	{
		like($everything, qr/\bfence\.\Q$name\E\(/, "$name is called") unless $internal{$name};
	}
	like($everything, qr/\bfence\.\Q$_\E\b/, "$_ is read") foreach first_column("SELECT viewname FROM pg_views WHERE schemaname = 'fence'");
	wait_open($node);
	foreach my $statement (split /\n/, $everything)
	{
		is($admin->error_of($statement), undef, $statement);
	}
	unlike($admin->run('SELECT finding FROM fence.doctor()'), qr/could not check/, 'the doctor sees everything');
};

subtest 'an ordinary role' => sub {
	my $sql = FenceTest::Session->open($node, dbname => 'traps', user => 'ordinary');

	$node->safe_psql('traps', 'GRANT USAGE ON SCHEMA trap TO ordinary; GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON trap.item TO ordinary');
	$sql->run($temporary);
	foreach my $statement ('INSERT INTO trap.item VALUES (1), (2), (3)', 'UPDATE trap.item SET v = 1 WHERE id OPERATOR(pg_catalog.=) 1',
		'DELETE FROM trap.item WHERE id OPERATOR(pg_catalog.=) 2', 'INSERT INTO trap.item VALUES (2)',
		"SELECT fence.get('item', '1'), fence.read('item', '1'), fence.peek('item', '1'), fence.status('item', '1')",
		"SELECT fence.explain('item', '1')",
		"SELECT * FROM fence.read_many(fence.fence_keys('item', '{1,2}'))", "SELECT fence.is_committed('1.1')",
		(map { "SELECT * FROM fence.$_" } qw(state nodes domains)), 'TRUNCATE trap.item')
	{
		is($sql->error_of($statement), undef, $statement);
	}
	$sql->close;
};

# What workers do: settle, carry reservations over to a new epoch, prune, audit.
subtest 'the workers' => sub {
	my $audited = q{SELECT pg_catalog.sum(value) FROM fence.metrics WHERE name OPERATOR(pg_catalog.=) 'cache_fence_db_compare'};

	$admin->run('INSERT INTO trap.item VALUES (1), (2), (3)');
	$redis->restart;
	wait_open($node);
	poll(sub { $admin->run("SELECT status FROM fence.get('item', '1')") =~ /hit|miss|busy/ }, 'the domain to be served');
	poll(sub { ($admin->run($audited) || 0) > 0 }, 'the audit');
	no_reservations($node, 30, 'postgres');
	is($admin->error_of('DROP EXTENSION pgcache_fence CASCADE'), undef, 'DROP EXTENSION');
	$admin->close;
	$node->stop;
	my $log = substr slurp_file($node->logfile), $log_before;
	my @sprung = grep { /cannot accept a value|is not an aggregate/ && !/\[\d+\] session / } split /\n/, $log;
	is(join("\n", @sprung), '', 'no trap was sprung by a worker');
};

done_testing();
