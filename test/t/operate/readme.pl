# Does what README.md says, block by block, and compares what it shows: builds and installs from source, configures a
# server, runs every SQL statement and every command.
#
# `sql` is run in one session (FenceTest::Page). `python` is run with the library of clients/python; "#--> " is what it prints. `ini` goes
# into postgresql.conf. Of `sh`, packages are asked for, make is run, scripts tell their usage. The rest needs a machine of its own:
# test/readme.sh does that, as it does with `js`.

use strict;
use warnings;

use File::Basename;
use FenceTest;
use FenceTest::Page;
use FenceTest::Session;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;

my $config = $ENV{PG_CONFIG} // 'pg_config';
chomp(my ($sharedir, $libdir, $version) = map { scalar `$config $_` } qw(--sharedir --pkglibdir --version));
my ($major) = $version =~ /^PostgreSQL (\d+)/;
plan skip_all => 'needs a server that finds extensions in other directories'
  unless $major >= 18 || ($ENV{TEMP_CONFIG} && -e $ENV{TEMP_CONFIG} && slurp_file($ENV{TEMP_CONFIG}) =~ /^extension_destdir/m);

my $dir = PostgreSQL::Test::Utils::tempdir();
my $redis = FenceTest::Redis->start;
my ($node, $sql);
my %done;

my @blocks = blocks_of("$TOP/README.md");

# Output and exit status of a command.
sub output_of
{
	my ($input, @command) = @_;
	my $out = '';

	IPC::Run::run(\@command, '<', \$input, '>&', \$out);
	$out =~ s/\s+\z//;
	return ($out, $? >> 8);
}

sub in_postgres_conf
{
	my ($text) = @_;
	my $root = "$dir/root";

	die 'the README installs after it configures' unless $done{make};
	# the Redis of the test is elsewhere, and a library that was built a moment ago
	is($text =~ s/127\.0\.0\.1:6379/'127.0.0.1:' . $redis->port/ge, 1, 'the URL of Redis');
	$node = new_postgres('readme', undef, preload => 0, start => 0, watch_buckets => 1 << 20, lease => '3s', timeout => '1s');
	$node->append_conf('postgresql.conf', join "\n",
		"dynamic_library_path = '$root$libdir:\$libdir'",
		$major >= 18 ? "extension_control_path = '$root$sharedir:\$system'" : "extension_destdir = '$root'", $text);
	$node->start;
	$sql = FenceTest::Session->open($node);
}

sub run_python
{
	my ($text) = @_;
	my $wanted = join "\n", $text =~ /^#--> (.*)$/mg;
	my $port = $redis->port;

	# the Redis of the test is elsewhere; psycopg2 asks the server of its environment
	is($text =~ s/redis\.Redis\(/redis.Redis(port=$port, /g, 1, 'the client of Redis');
	local @ENV{qw(PGHOST PGPORT PGDATABASE PYTHONPATH PYTHONDONTWRITEBYTECODE)} =
	  ($node->host, $node->port, 'postgres', "$TOP/clients/python/src", 1);
	# in the folder where make has left what it built: Python looks there first
	append_to_file("$dir/tree/reader.py", $text);
	my ($got) = output_of('', '/usr/bin/python3', "$dir/tree/reader.py");
	is($got, $wanted, 'what the library reads');
}

# Packages by the names that this system has for this PostgreSQL; asked for only where there are lists of packages.
sub ask_for_packages
{
	# Node.js may be here from elsewhere, and then its package cannot be had
	my @names = map { s/-\d+$/-$major/r } grep { !/^(nodejs|npm)$/ } @_ or return;
	my ($out, $status) = output_of('', 'apt-get', '-s', '--no-install-recommends', 'install', @names);

	SKIP:
	{
		skip 'no lists of packages here', 1 if $out =~ /Unable to locate package (make|gcc)\b/;
		is($status, 0, "packages: @names") or diag($out);
	}
}

# What only test/readme.sh does, on a machine that it makes for that.
my $elsewhere = qr{^(apt-get update|service (?:redis-server start|postgresql restart)|su - postgres -c .*|psql postgres|python3 -m venv .*|~/reader/bin/.*|npm install .*|node reader[.]mjs)$};

sub run_sh
{
	foreach my $line (split /\n/, $_[0])
	{
		$line =~ s/\s*#.*//;
		next if $line eq '';
		if ($line =~ /^apt-get install -y (?:--no-install-recommends )?(.*)/) { ask_for_packages(split ' ', $1) }
		elsif ($line eq 'make && make install')
		{
			# a reader's compiler may warn of more than ours, which must not end his build
			append_to_file("$dir/warns.h", "#warning \"of a newer compiler\"\n");
			local @ENV{qw(MAKEFLAGS MAKELEVEL MFLAGS DESTDIR PG_CONFIG COPT)} = ('', '', '', "$dir/root", $config, "-include $dir/warns.h");
			mkdir "$dir/tree";
			my ($out, $status) = output_of('', 'sh', '-c', 'cd "$1" && tar -cf - --exclude="*.o" --exclude="*.so" --exclude=fence_lua.h --exclude=exports.map --exclude=./tmp_check ' .
				"Makefile META.json pgcache_fence* src | tar -C \"\$2\" -xf - && cd \"\$2\" && $line", 'sh', $TOP, "$dir/tree");
			is($status, 0, $line) or die $out;
			$done{make} = 1;
		}
		elsif ($line =~ m{^sh (test/\S+\.sh)$})
		{
			my ($out, $status) = output_of('', 'sh', "$TOP/$1", '--help');
			is($status, 0, "$line: is there");
			like($out, qr/^usage: sh \Q$1\E/m, '... and says what it does');
			$done{$1} = 1;
		}
		elsif ($line !~ $elsewhere) { fail("nobody knows how to run: $line") }
	}
}

# A reader may have installed already when he tries the first screen: so do we.
my %kinds = (js => sub { }, sql => sub { run_sql($sql, @_) }, python => \&run_python, sh => \&run_sh, ini => \&in_postgres_conf);
foreach my $block ((grep { $_->[0] =~ /^(sh|ini)$/ } @blocks), grep { $_->[0] !~ /^(sh|ini)$/ } @blocks)
{
	my ($kind, $text, $line) = @$block;

	note "README.md, line $line: $kind";
	if ($kinds{$kind}) { $kinds{$kind}->($text) }
	else { fail("line $line: a block of unknown kind: $kind") }
}
ok($done{$_}, "$_ is told") foreach 'make', 'test/run.sh', 'test/demo.sh';
cmp_ok(scalar(grep { $_->[0] eq 'sql' } @blocks), '>=', 3, 'blocks of SQL');
is($sql->run("SELECT string_agg(DISTINCT a.relation, ' ') FROM fence.domains d, fence.audit(d.domain) a WHERE a.count > 0 AND a.relation NOT IN ('equal', 'missing')"), '', 'all fences agree');

# what the settings' table says is so
my $readme = slurp_file("$TOP/README.md");
my $rows = 0;
while ($readme =~ /^\| `(pgcache_fence\.\w+)` \| `?([^|`]*?)`? \|/gm)
{
	my ($name, $default) = ($1, $2);

	$rows++;
	is($node->safe_psql('postgres', "SELECT boot_val || CASE WHEN unit IN ('ms', 's') THEN ' ' || unit ELSE '' END FROM pg_settings WHERE name = '$name'") =~ s/^(\d+)000 ms$/$1 s/r =~ s/^86400 s$/1 day/r,
		$default, "the default of $name");
}
cmp_ok($rows, '>=', 4, 'settings');

done_testing();
