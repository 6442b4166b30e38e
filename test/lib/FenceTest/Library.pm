# FenceTest/Library.pm
#    Words for tests of the function library: one Redis, one namespace n, one process that is armed in an epoch.
#
# Owns: the server $redis, and what the library there was last told ($identity, $epoch). Keys are named by a short
# text k: f(k) is its fence, v(k) its value, in domain 1.t.
package FenceTest::Library;

use strict;
use warnings;

use Exporter 'import';
use Test::More;
use FenceTest::Redis;

our @EXPORT = qw(
  $redis $hour $identity $epoch
  fcall answer refuses f v hello clock until_of arm renew next_epoch fresh get token check put fill
  grants reserve commit aborts writes settle repair domain announce pendings version_of snapshot
);

our $redis = $^C ? undef : FenceTest::Redis->start;    # perl -c, which checks syntax, would leave it behind
our $hour = 3_600_000;
our ($identity, $epoch);

my $nonce = 0;
my $number = 0;    # of the last epoch

sub fcall   { return $redis->call('FCALL', @_); }
sub answer  { return join ' ', @{ fcall(@_) }; }
sub refuses { return $redis->error_of('FCALL', @_) // 'no error'; }

sub f { return "n:f:1.t:{$_[0]}"; }
sub v { return "n:v:1.t:{$_[0]}"; }

sub hello { return fcall('fence_hello', 0, $_[0] // 'n', sprintf '%016x', ++$nonce); }
sub clock { return hello()->[1]; }
sub until_of { return hello($_[0])->[7]; }

# Arms; what is not said is as fresh() left it. until: from now.
sub arm
{
	my (%with) = @_;
	my $ns = $with{ns} // 'n';
	my $settings = $with{settings}
	  // sprintf '{"idle_ms": 3600000, %s"domains": %s, "reservations": %s}',
	  $with{server} ? qq("server": "$with{server}", ) : '', $with{domains} // '[]', $with{reservations} // '[]';

	return answer('fence_arm', 1, "$ns:heartbeat", $with{identity} // $identity, $with{epoch} // $epoch,
		$with{at} // clock() + ($with{until} // $hour),
		$with{slots} // '0-16383', $with{owner} // 'cluster', $with{timeline} // 3, $settings);
}

sub renew
{
	my (%with) = @_;

	return answer('fence_renew', 0, ($with{ns} // 'n') . ':heartbeat', $with{identity} // $identity,
		$with{epoch} // $epoch, $with{at} // clock() + $with{until},
		$with{settings} // sprintf('{"idle_ms": 3600000, "grant": %d}', $with{grant} // 0), $with{slots} // ());
}

sub next_epoch { return sprintf '%d-%016x', ++$number, $number * 77; }

# A process without any memory or key, armed in a new epoch with domain 1.t attached.
sub fresh
{
	$redis->call('FLUSHALL');
	$redis->load_library;
	$identity = hello()->[0];
	$epoch = next_epoch();
	like(arm(domains => '[["1.t", 1]]'), qr/^armed /, 'armed') if !$_[0];
	return;
}

sub get    { return answer('fence_get', 2, f($_[0]), v($_[0])); }
sub token  { return fcall('fence_status', 1, f($_[0] // 'k'))->[1]; }
sub check  { my ($k, $version, $token) = @_; return fcall('fence_check', 1, f($k), $token // token(), $version); }

sub put
{
	my ($k, $version, %with) = @_;

	return answer('fence_put', 2, f($k), v($k), $with{token} // token(), $with{ticket} // '', $version,
		$with{payload} // "p$version", $with{ttl} // 0);
}

# What a reader does: get, and put if that is a miss.
sub fill
{
	my ($k, $version) = @_;
	my ($status, undef, $ticket) = @{ fcall('fence_get', 2, f($k), v($k)) };

	die "no miss but $status" unless $status eq 'miss';
	return put($k, $version, ticket => $ticket);
}

sub reserve
{
	my ($k, $stamp, $observed, $w) = @_;

	return answer('fence_reserve', 1, f($k), $epoch, $stamp, $observed, $w);
}

sub commit { my ($k, $stamp, $w) = @_; return answer('fence_commit', 1, f($k), $epoch, $stamp, $w); }
sub aborts { my ($k, $stamp) = @_; return answer('fence_abort', 1, f($k), $epoch, $stamp); }
# One operation: writes('k', 'v', stamp, w, ttl_ms, payload, grant). Without a grant: the one of grants().
sub writes
{
	my ($k, @operation) = @_;

	push @operation, 1 if $operation[0] eq 'v' && @operation == 5;
	return answer('fence_write', 0, 1, f($k), $epoch, @operation);
}

# A reservation whose commit may bring the row.
sub grants { my ($k, $stamp, $observed, $w) = @_; return writes($k, 'g', $stamp, $observed, $w, 1); }
sub settle { my ($k, $stamp, $u) = @_; return answer('fence_settle', 0, 'n', f($k), $epoch, $stamp, $u); }
sub repair { my ($k, $seen, $u) = @_; return answer('fence_repair', 1, f($k), $epoch, $seen, $u); }

# domain('reserve', stamp, ended): a reservation ends no attachment unless told.
sub domain
{
	my ($what, @args) = @_;
	push @args, '' if $what eq 'reserve' && @args == 1;
	return answer("fence_domain_$what", 0, 'n', '1.t', $epoch, @args);
}
sub announce
{
	my ($name, $id, $publish, @grant) = @_;

	return answer('fence_announce', 0, 'n', $epoch, $name, $id, $publish // 'none', @grant);
}

# All reservations: "name stamp w", sorted.
sub pendings
{
	my ($ns, $limit) = @_;
	my @found;
	my $cursor = '';

	do
	{
		($cursor, undef, my @list) = @{ fcall('fence_pending', 0, $ns // 'n', 0, $limit // 1000, $cursor) };
		while (my ($kind, $name, $stamp, $w) = splice @list, 0, 5)
		{
			$name =~ s/^n:f:1\.t:\{(.*)\}$/$1/;
			push @found, $kind eq 'row' ? "$name $stamp $w" : "domain $name $stamp";
		}
	} while $cursor ne '';
	return join ', ', sort @found;
}

# The fence's version, '-' if it has none, 'none' if there is no fence.
sub version_of
{
	my ($k) = @_;
	my $fence = $redis->call('GET', f($k)) // return 'none';

	return (split / /, $fence)[1];
}

# Everything that the library knows or has written, but for ages and times to live.
sub snapshot
{
	my @all;

	for my $db (0 .. 3)
	{
		$redis->call('SELECT', $db);
		push @all, map { "$db $_ " . unpack 'H*', $redis->call('DUMP', $_) // '' } sort @{ $redis->call('KEYS', '*') };
	}
	$redis->call('SELECT', 0);
	foreach my $ns ('n', 'other')
	{
		push @all, pendings($ns), join ' ', @{ hello($ns) }[ 0, 4 .. 7 ];
	}
	push @all, join ' ', @{ fcall('fence_status', 1, "n:f:$_:{k}") }[ 0 .. 1 ] foreach '1.t', '1.u';
	return join "\n", @all;
}

1;
