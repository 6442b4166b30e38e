# FenceTest/Comparison.pm
#    Compares every row, every deleted key and every group with its fence: caches everything, makes a change, then compares.
#
# Owns: a connection to each server, and nothing else. It does not rely on the extension's own audit. It reads rows with SQL,
# and fences and values from Redis as a client in any language would.
#
#    my $compare = FenceTest::Comparison->new($node);             # all domains of the database that have a table
#    my @anomalies = $compare->around('UPDATE item SET ...');     # or a code reference
#    $compare->holds('title', 'UPDATE item SET ...');             # the same as an assertion
#    my @anomalies = $compare->anomalies;                         # compares the present state only
#
# It requires:
#   - nothing is pending any more;
#   - a fence that begins with the domain's token has the version of its row, group or tombstone;
#   - a hit of the fast or the slow read is the row (or the group's rows) as it is now, with its version, so that no copy from
#     before the change is served;
#   - a reader that read before the change and puts only now cannot make its old value a hit either;
#   - reads in a domain that is gone are answered "unarmed";
#   - afterwards every row can be cached again.
package FenceTest::Comparison;

use strict;
use warnings;

use Carp;
use FenceTest::Session;
use Test::More;
use Time::HiRes qw(time usleep);

use constant BATCH => 500;    # messages in flight

# Options:
#   dbname => 'postgres'
#   domains => [names]                   default: all that have a table at the time of each comparison
#   keys => {domain => [[parts], ...]}   keys that may exist later, and are compared from the beginning
#   where => {domain => SQL condition}   only these of its rows
#   redis => FenceTest::Redis            default: the one that new_postgres was given
#   timeout => 30                        seconds within which all domains must be announced, and all reservations ended
sub new
{
	my ($class, $node, %option) = @_;
	my $self = bless {
		node    => $node,
		dbname  => $option{dbname} // 'postgres',
		only    => $option{domains},
		keys    => $option{keys} // {},
		where   => $option{where} // {},
		redis   => $option{redis} // $node->{fence_redis} // croak('which Redis?'),
		timeout => $option{timeout} // 30,
		before  => {},
	}, $class;

	return $self;
}

# Says that the rows are in another server from now on, for instance after a promotion or an upgrade.
sub moved_to
{
	my ($self, $node) = @_;

	@$self{qw(node sql)} = ($node, undef);
	return;
}

# ---------------------------------------------------------------------------------------------------------------------
# PostgreSQL
# ---------------------------------------------------------------------------------------------------------------------

# The session of the comparison; a new one after a restart of the server.
sub _sql
{
	my ($self, $statement) = @_;

	$self->{sql} = undef if $self->{sql} && !eval { $self->{sql}->run('SELECT 1'); 1 };
	if (!$self->{sql})
	{
		$self->{sql} = FenceTest::Session->open($self->{node}, dbname => $self->{dbname});
		# so that values have the form in which fence.read stores them
		$self->{sql}->run("SET client_min_messages = warning; SET timezone = 'UTC'; SET datestyle = 'ISO'; "
			  . "SET intervalstyle = 'postgres'; SET extra_float_digits = 3; SET bytea_output = 'hex'");
	}
	return $self->{sql}->run($statement);
}

sub _quoted     { return "'" . $_[0] =~ s/'/''/gr . "'"; }
sub _identifier { return '"' . $_[0] =~ s/"/""/gr . '"'; }
sub _hex        { return "encode(convert_to($_[0], 'UTF8'), 'hex')"; }
sub _unhex      { return pack 'H*', $_[0]; }

# The lines of a statement that selects hexadecimal texts; NULL is ''.
sub _lines
{
	my ($self, @columns_and_from) = @_;
	my $from = pop @columns_and_from;

	return map { [ map { _unhex($_) } split /,/, $_, -1 ] }
	  split /\n/, $self->_sql('SELECT ' . join(" || ',' || ", map { 'coalesce(' . _hex($_) . ", '')" } @columns_and_from) . " $from");
}

sub _read_domains
{
	my ($self) = @_;
	my $array = 'array_to_string(%s, E\'\n\')';
	my %domains;

	foreach my $line ($self->_lines('d.domain', 'd.relation::text', 'd.scope', 'd.version::text', sprintf($array, 'd.key'),
			sprintf($array, 'd.columns'), 'x.id::text', 'd.cache_absent::text',
			"FROM fence.domains d JOIN fence.domain x ON x.name = d.domain WHERE d.relation IS NOT NULL AND d.scope <> 'manual'"))
	{
		my ($name, $relation, $scope, $version, $key, $columns, $id, $absent) = @$line;
		next if $self->{only} && !grep { $_ eq $name } @{ $self->{only} };
		$domains{$name} = {
			name     => $name,
			relation => $relation,
			scope    => $scope,
			version  => $version,
			id       => $id,
			absent   => $absent eq 'true',
			key      => [ split /\n/, $key ],
			columns  => [ split /\n/, $columns ],
		};
	}
	return $self->{domains} = \%domains;
}

# SQL for a row as a reader caches it.
sub _payload
{
	my ($domain) = @_;

	return 'to_jsonb("fence row".*)' unless @{ $domain->{columns} };
	return '(SELECT to_jsonb("fence columns") FROM (SELECT '
	  . join(', ', map { '"fence row".' . _identifier($_) } @{ $domain->{columns} })
	  . ') "fence columns")';
}

# SQL for every row or group: key, version, payload. One statement, so that a group's version goes with its rows.
sub _rows_of
{
	my ($self, $domain) = @_;
	my $where = $self->{where}{ $domain->{name} } // 'true';
	my @key = map { '"fence row".' . _identifier($_) } @{ $domain->{key} };
	my $key = 'ARRAY[' . join(', ', map { "$_\::text" } @key) . ']';
	my $payload = _payload($domain);

	if ($domain->{scope} eq 'group')
	{
		return "SELECT $key AS k, fence.group_version(" . _quoted($domain->{name}) . ", VARIADIC $key) AS version, "
		  . "jsonb_agg($payload ORDER BY $payload) AS payload FROM $domain->{relation} \"fence row\" WHERE "
		  . join(' AND ', "($where)", map { "$_ IS NOT NULL" } @key)
		  . " GROUP BY 1";
	}
	my $version = 'greatest(coalesce("fence row".' . _identifier($domain->{version}) . ', 0), 0)::bigint';
	return "SELECT $key, $version AS version, $payload AS payload FROM $domain->{relation} \"fence row\" WHERE $where";
}

# The key parts of a tombstone's text.
sub _key_parts { return map { s/%([0-9A-F]{2})/$1 eq '00' ? '' : pack 'H2', $1/ger } split /,/, $_[0], -1; }

# Everything that has, or may have, a version: fence name => {domain, version, payload}. Without a payload the row is
# deleted; without a version PostgreSQL has neither row nor tombstone. Reads the present domains first.
sub _read_all
{
	my ($self) = @_;
	my $domains = $self->_read_domains;
	my %name_of = map { $_->{id} => $_->{name} } values %$domains;
	my (@others, %found);

	foreach my $name (sort keys %$domains) { push @others, [ $name, '', @$_ ] foreach @{ $self->{keys}{$name} // [] }; }
	push @others, map { [ $name_of{ $_->[0] }, $_->[2], _key_parts($_->[1]) ] }
	  $self->_lines(qw(domain_id::text key version::text), 'FROM fence.tombstone WHERE domain_id IN (' . join(', ', keys %name_of) . ')')
	  if %name_of;
	my @parts = map { 'SELECT ' . _quoted($_) . ", x.* FROM (" . $self->_rows_of($domains->{$_}) . ') x' } sort keys %$domains;
	while (my @some = splice @others, 0, BATCH)
	{
		unshift @parts, 'VALUES '
		  . join(', ', map { my ($d, $v, @k) = @$_; '(' . join(', ', _quoted($d), 'ARRAY[' . join(', ', map { _quoted($_) } @k) . ']', ($v eq '' ? 'NULL' : $v) . '::bigint', 'NULL::jsonb') . ')' } @some);
	}
	return {} unless @parts;
	foreach my $line ($self->_lines('d', 'fence.fence_key(d, VARIADIC k)', 'version::text', 'payload::text',
			'FROM (' . join(' UNION ALL ', @parts) . ') x (d, k, version, payload)'))
	{
		my ($domain, $fence, $version, $payload) = map { $_ eq '' ? undef : $_ } @$line;
		my $known = $found{$fence};
		# a row takes precedence over a tombstone, and both over a key that has neither
		next if $known && !defined $payload && (defined $known->{payload} || !defined $version);
		$found{$fence} = { domain => $domain, version => $version, payload => $payload };
	}
	# a group without rows is an empty array, not nothing
	foreach my $row (grep { $domains->{ $_->{domain} }{scope} eq 'group' } values %found)
	{
		$row->{version} //= 0;
		$row->{payload} //= '[]';
	}
	return \%found;
}

# What to expect for a fence that was there before, if PostgreSQL now has neither row nor tombstone of it. A group without
# rows is an empty array, not nothing.
sub _nothing_left
{
	my ($self, $past) = @_;
	my $domain = $self->{domains}{ $past->{domain} };
	my $group = $domain && $domain->{scope} eq 'group';

	return { domain => $past->{domain}, version => $group ? 0 : undef, payload => $group ? '[]' : undef };
}

# ---------------------------------------------------------------------------------------------------------------------
# Redis
# ---------------------------------------------------------------------------------------------------------------------

# The replies to these commands, in order. Sends many commands at once.
sub _ask
{
	my ($self, @commands) = @_;
	my $connection = $self->{redis}->connection;
	my @replies;

	while (my @some = splice @commands, 0, BATCH)
	{
		$connection->send(@$_) foreach @some;
		push @replies, map { $connection->reply } @some;
	}
	foreach (@replies) { croak "Redis: $_" if ref $_ eq 'FenceTest::Redis::Error'; }
	return @replies;
}

# (version, payload) of a record that begins with the permit's token; the payload of a mark is undef. For other records nothing.
sub _judge
{
	my ($record, $permit) = @_;
	my ($head, $payload) = split /\n/, $record // '', 2;
	my ($token, $version) = split / /, $head // '';

	return unless defined $version && $token eq (split / /, $permit)[0];
	return ($version, $payload);
}

# {fence => [answer, permit, version, payload]}: a hit if the fast read or the slow read is one, else the answer of the slow read.
sub _gets
{
	my ($self, @fences) = @_;
	my @replies = $self->_ask(map { ([ 'GET', $_ ], [qw(FCALL_RO fence_token 1), $_], [qw(FCALL_RO fence_get 1), $_]) } @fences);
	my %got;

	foreach my $fence (@fences)
	{
		my ($record, $permit, $slow) = splice @replies, 0, 3;
		my ($answer, $rest) = @$slow;
		my ($version, $payload) = $permit ne '' ? _judge($record, $permit) : ();
		if ($answer eq 'hit' && !defined $payload)
		{
			($permit) = split / /, $rest;
			($version, $payload) = _judge($rest, $permit);
		}
		$permit = $rest if $answer eq 'miss';
		$got{$fence} = defined $payload ? [ 'hit', $permit, $version, $payload ] : [ $answer, $permit ];
	}
	return %got;
}

# Reads all of them as a reader does: get, and put after a miss. Returns {fence => answer of get}.
sub _read_through
{
	my ($self, $rows) = @_;
	my %got = $self->_gets(sort keys %$rows);
	my @missed = grep { $got{$_}[0] eq 'miss' && defined $rows->{$_}{payload} } sort keys %$rows;

	$self->_ask(map { _put($_, $got{$_}[1], $rows->{$_}) } @missed);
	return \%got;
}

sub _put { my ($fence, $permit, $row) = @_; return [ qw(FCALL fence_put 1), $fence, $permit, FenceTest::Redis::row_version($permit, $row->{version}), $row->{payload}, 0 ]; }

# ---------------------------------------------------------------------------------------------------------------------
# Before
# ---------------------------------------------------------------------------------------------------------------------

# Caches everything, and returns the fences that cannot be cached. Waits until every domain is announced and nothing is pending.
sub seed
{
	my ($self) = @_;
	my $deadline = time() + $self->{timeout};
	my ($rows, @uncached);

	while (1)
	{
		$rows = $self->_read_all;
		# deleted without a tombstone: a reader may still ask for it
		foreach my $fence (grep { !$rows->{$_} } keys %{ $self->{before} })
		{
			my $past = $self->{before}{$fence};
			$rows->{$fence} = $self->_nothing_left($past) if $self->{domains}{ $past->{domain} };
		}
		my $got = $self->_read_through($rows);
		# for _late_puts: the permit of a reader that reads now and puts too late
		$rows->{$_}{permit} = $got->{$_}[1] foreach keys %$rows;
		my %again = $self->_gets(sort keys %$rows);
		@uncached = map { "$_ cannot be cached: $again{$_}[0]" } grep { !$self->_is_served($again{$_}, $rows->{$_}) } sort keys %again;
		last if !@uncached || time() > $deadline;
		usleep(5_000);
	}
	$self->{before} = { %{ $self->{before} }, %$rows };
	return @uncached;
}

# Whether the answer to a reader is right: a row must be a hit; a deleted row must not, unless its absence is cached.
sub _is_served
{
	my ($self, $got, $row) = @_;

	return $got->[0] eq 'hit' if defined $row->{payload};
	return $got->[0] eq 'miss' || ($got->[0] eq 'hit' && $self->_is_absence($got->[3], $row));
}

sub _is_absence { my ($self, $payload, $row) = @_; return $payload eq 'null' && $self->{domains}{ $row->{domain} }{absent}; }

# ---------------------------------------------------------------------------------------------------------------------
# After
# ---------------------------------------------------------------------------------------------------------------------

# Waits until nothing is pending in our domains. Returns what stays pending. fence.pending lists one fence of each transaction, which
# may be in another domain.
sub _pending_ones
{
	my ($self) = @_;
	my $deadline = time() + $self->{timeout};
	my $names = join ', ', map { _quoted($_) } keys %{ $self->_read_domains }, map { $_->{domain} } values %{ $self->{before} };
	my $left;

	return if $names eq '';
	while (1)
	{
		$left = $self->_sql("SELECT domain, key, fences, stamp, kind, fate, gid FROM fence.pending "
			  . "WHERE domain IN ($names) OR fate NOT IN ('in progress', 'prepared', 'stands')");
		last if $left eq '' || time() > $deadline;
		usleep(5_000);
	}
	return map { "still pending: $_" } split /\n/, $left;
}

# Whether a payload is that of the row. The rows of a group may be in any order.
sub _same_payload
{
	my ($self, $payload, $row) = @_;

	return 1 if $payload eq $row->{payload};
	return 0 if $self->{domains}{ $row->{domain} }{scope} ne 'group' || $payload !~ /^\[/;
	my ($a, $b) = map { '(SELECT coalesce(jsonb_agg(x ORDER BY x), \'[]\') FROM jsonb_array_elements(' . _quoted($_) . '::jsonb) x)' }
	  $payload, $row->{payload};
	return $self->_sql("SELECT $a = $b") eq 't';
}

# Compares a fence, and what a reader gets, with the row in PostgreSQL. v: the version of the fence if it begins with the token, else ''.
sub _compare_one
{
	my ($self, $fence, $row, $v, $got) = @_;
	my ($answer, undef, $version, $payload) = @$got;
	my $stored = $row->{version};
	my @wrong;

	if (!$self->{domains}{ $row->{domain} })
	{
		push @wrong, "$fence: its domain is gone, a reader gets $answer" if $answer ne 'unarmed';
		return @wrong;
	}
	# the absence of a key that has never existed is cached with the highest version
	$stored //= '9223372036854775807' if $self->{domains}{ $row->{domain} }{absent};
	push @wrong, "$fence: version $v, PostgreSQL has " . ($stored // 'none') if $v ne '' && $v ne ($stored // '');
	return @wrong if $answer ne 'hit';
	return $self->_is_absence($payload, $row) ? @wrong : (@wrong, "$fence: STALE, it is deleted: $payload") if !defined $row->{payload};
	push @wrong, "$fence: STALE, $payload, PostgreSQL has $row->{payload}" if !$self->_same_payload($payload, $row);
	push @wrong, "$fence: hit of version $version, PostgreSQL has $stored" if $version ne $stored;
	return @wrong;
}

# {fence => its version if it begins with the domain's token, else ''}, whether or not the process is armed or rows are reserved.
sub _versions
{
	my ($self, @fences) = @_;
	my @replies = $self->_ask(map { ([ 'GET', $_ ], [qw(FCALL_RO fence_status 1), $_]) } @fences);
	my %version;

	foreach my $fence (@fences)
	{
		my ($record, $status) = splice @replies, 0, 2;
		$version{$fence} = ($status->[0] eq 'armed' ? (_judge($record, $status->[1]))[0] : undef) // '';
	}
	return %version;
}

# The anomalies in the present state, of all fences that this comparison has ever seen.
sub _state_anomalies
{
	my ($self) = @_;
	my $rows = $self->_read_all;
	my @fences = sort keys %{ { %{ $self->{before} }, %$rows } };
	my %all = map { $_ => $rows->{$_} // $self->_nothing_left($self->{before}{$_}) } @fences;
	my %versions = $self->_versions(@fences);
	my %got = $self->_gets(@fences);

	$self->{changed} = {};
	foreach my $fence (grep { $self->{before}{$_} } @fences)
	{
		my ($old, $new) = map { join ' ', $_->{version} // '-', $_->{payload} // '-' } $self->{before}{$fence}, $all{$fence};
		$self->{changed}{ $all{$fence}{domain} }++ if $old ne $new;
	}
	$self->{changed}{ $all{$_}{domain} }++ foreach grep { !$self->{before}{$_} } @fences;
	$self->{compared} = { fences => scalar @fences, versions => scalar(grep { $_ ne '' } values %versions),
		hits => scalar(grep { $_->[0] eq 'hit' } values %got) };
	return map { $self->_compare_one($_, $all{$_}, $versions{$_}, $got{$_}) } @fences;
}

# The numbers that the last comparison has counted right after the change: {fences, versions, hits}.
sub compared { return $_[0]{after_change} // $_[0]{compared}; }

# The number of rows and groups that the last seed has cached.
sub seeded
{
	my ($self) = @_;

	return scalar grep { defined $_->{payload} && $self->{domains}{ $_->{domain} } } values %{ $self->{before} };
}

# {domain => number of rows, deleted keys and groups whose version or value the change has altered}
sub changed { return $_[0]{changed}; }

# The anomalies now, without regard to an earlier state. Includes reservations only if all => 1.
sub anomalies
{
	my ($self, %option) = @_;

	delete $self->{after_change};
	return ($option{all} ? $self->_pending_ones : (), $self->_state_anomalies);
}

# Acts as readers that stalled: puts the values that they read during seed.
sub _late_puts
{
	my ($self) = @_;
	my $before = $self->{before};
	my @fences = grep { defined $before->{$_}{payload} && $before->{$_}{permit} } sort keys %$before;

	$self->_ask(map { _put($_, $before->{$_}{permit}, $before->{$_}) } @fences);
	return;
}

# The anomalies now, and those after everything has been cached again.
sub settled
{
	my ($self) = @_;

	return ($self->anomalies(all => 1), map { "afterwards: $_" } $self->seed, $self->_state_anomalies);
}

# The anomalies after seed and after a change that the caller has made since.
sub after
{
	my ($self) = @_;
	my @wrong = ($self->_pending_ones, $self->_state_anomalies);
	my $changed = $self->{changed};

	$self->{after_change} = $self->{compared};
	$self->_late_puts;
	push @wrong, map { "after a late put: $_" } $self->_state_anomalies;
	push @wrong, map { "afterwards: $_" } $self->seed, $self->_state_anomalies;
	$self->{changed} = $changed;
	my %once;
	return grep { !$once{$_}++ } @wrong;
}

# The whole comparison around SQL (in a session of its own; an error there dies) or a code reference.
sub around
{
	my ($self, $change) = @_;
	my @wrong = map { "before: $_" } $self->seed;

	if (ref $change) { $change->(); }
	else { FenceTest::Session->open($self->{node}, dbname => $self->{dbname})->run("SET client_min_messages = warning;\n$change"); }
	return (@wrong, $self->after);
}

# The same as a test.
sub holds
{
	my ($self, $title, $change) = @_;
	my @wrong = $self->around($change);

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return ok(!@wrong, $title) || diag(join "\n", $#wrong > 9 ? (@wrong[ 0 .. 9 ], '...') : @wrong);
}

1;
