# doc/reference.md has every function, relation and setting of the extension as the catalogue has it: signatures with defaults,
# columns, comments, bounds. It has nothing that does not exist, and its examples show what it says.
#
# The first paragraph of an entry is the object's comment, so an object without a comment fails too.

use strict;
use warnings;

use FenceTest;
use FenceTest::Page;
use FenceTest::Session;
use PostgreSQL::Test::Utils;
use Test::More;

my $file = "$TOP/doc/reference.md";
my $page = slurp_file($file) =~ s/,\n +/, /gr;		# long signatures go on in the next line
my $redis = FenceTest::Redis->start;
my $node = new_postgres('reference', $redis, namespace => 'fence', 'pgcache_fence.capture' => 'auto');

# What the page must say of each object, from the catalogue: [name, text]. A missing comment shows as "NO COMMENT".
sub entries
{
	my ($query) = @_;
	my $rows = $node->safe_psql('postgres', "SELECT name || E'\\x01' || text || E'\\x02' FROM ($query) AS entry (name, text) ORDER BY name::text COLLATE \"C\"");

	return map { [ split /\x01/, $_ ] } split /\x02\n?/, $rows;
}

my $internal = "(p.proname LIKE '\\_%' OR p.prorettype = 'trigger'::regtype)";
my $ours = "p.pronamespace = 'fence'::regnamespace";
my $described = "coalesce(obj_description(p.oid, 'pg_proc'), 'NO COMMENT')";

# Variants of one name are one entry, whose comment they share.
my @functions = entries(<<"SQL");
SELECT 'fence.' || p.proname,
	format(E'### fence.%s\\n\\n%s\\n\\n```\\n%s\\n```\\n', p.proname, string_agg(DISTINCT $described, ' / '),
		string_agg(format('fence.%s(%s)%s', p.proname, regexp_replace(pg_get_function_arguments(p.oid), '::(timestamp with time zone|[a-z]+(\\[\\])?)', '', 'g'),
			' → ' || pg_get_function_result(p.oid)), E'\\n' ORDER BY p.oid))
  FROM pg_proc p WHERE $ours AND NOT $internal GROUP BY p.proname
SQL

my @internal_functions = entries(<<"SQL");
SELECT p.oid::regprocedure, format(E'| `%s` | %s |\\n', p.oid::regprocedure, $described) FROM pg_proc p WHERE $ours AND $internal
SQL

my @relations = entries(<<'SQL');
SELECT 'fence.' || c.relname,
	format(E'### fence.%s\n\n%s\n\n| column | type | |\n| --- | --- | --- |\n%s\n', c.relname, coalesce(obj_description(c.oid, 'pg_class'), 'NO COMMENT'),
		string_agg(format(E'| `%s` | %s | %s |\n', a.attname, format_type(a.atttypid, a.atttypmod),
			coalesce(col_description(c.oid, a.attnum), 'NO COMMENT')), '' ORDER BY a.attnum))
  FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
 WHERE c.relnamespace = 'fence'::regnamespace AND c.relkind IN ('r', 'v') GROUP BY c.oid
SQL

my @settings = entries(<<'SQL');
SELECT name, format('| `%s` | %s | %s | %s |', name, coalesce('`' || nullif(boot_val || coalesce(' ' || unit, ''), '') || '`', 'empty'),
	CASE WHEN enumvals IS NOT NULL THEN '`' || array_to_string(enumvals, '`, `') || '`'
	     WHEN min_val IS NOT NULL THEN format('%s to %s', min_val, max_val) ELSE '' END,
	CASE context WHEN 'postmaster' THEN 'restart' WHEN 'sighup' THEN 'reload' ELSE context END)
  FROM pg_settings WHERE name LIKE 'pgcache\_fence.%'
SQL

cmp_ok(scalar @$_, '>=', 7, 'the catalogue was read') foreach \@functions, \@internal_functions, \@relations, \@settings;
foreach my $entry (@functions, @internal_functions, @relations, @settings)
{
	my ($name, $text) = @$entry;

	ok(index($page, "\n$text") >= 0, "the page has $name as the catalogue has it") or diag("not in doc/reference.md:\n$text");
}

is_deeply([ sort $page =~ /^### (.*)$/mg ], [ sort map { $_->[0] } @functions, @relations ], 'each entry is of something that exists, and is there once');
is_deeply([ sort $page =~ /^\| `(fence\.\w+\(.*?\))` \|/mg ], [ sort map { $_->[0] } @internal_functions ], '... and so is each internal function');
is_deeply([ sort $page =~ /^\| `(pgcache_fence\.\w+)` \|/mg ], [ sort map { $_->[0] } @settings ], '... and each setting');
isnt($node->safe_psql('postgres', "SELECT obj_description('fence'::regnamespace, 'pg_namespace')"), '', 'the schema has a comment');

my $sql = FenceTest::Session->open($node);
run_sql($sql, $_->[1]) foreach grep { $_->[0] eq 'sql' } blocks_of($file);

done_testing();
