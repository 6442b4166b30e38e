# FenceTest/Library.pm
#    Functions for tests of the function library, with one Redis process that is armed in an epoch of namespace n.
#
# Owns: the server $redis, and the identity and epoch in which it was last armed ($identity, $epoch). Tests name a key by a
# short text k: f(k) is its fence in domain 1.t, v(k, suffix) a value beside it.
package FenceTest::Library;

use strict;
use warnings;

use Exporter 'import';
use Test::More;
use FenceTest::Redis;

our @EXPORT = qw(
  $redis $hour $identity $epoch
  fcall answer refuses f v hello clock until_of arm renew next_epoch heartbeat disarm announce fresh settings
  token permit row_version read_fast get check put put_from fill header reserve ends store domain derived
  status holders recent pendings version_of snapshot function_memory
);

our $redis = $^C ? undef : FenceTest::Redis->start;    # not for perl -c, which would leave the server running
our $hour = 3_600_000;
our ($identity, $epoch);

{
	no warnings 'once';
	*row_version = \&FenceTest::Redis::row_version;
}

my $nonce = 0;
my $number = 0;    # of the last epoch

sub fcall   { return $redis->call('FCALL', @_); }
sub answer  { my $reply = fcall(@_); return ref $reply ? join ' ', @$reply : $reply; }
sub refuses { return $redis->error_of('FCALL', @_) // 'no error'; }

sub f { return "n:f:1.t:{$_[0]}"; }
sub v { return "n:v:1.t:{$_[0]}:$_[1]"; }

# ---------------------------------------------------------------------------------------------------------------------
# The process
# ---------------------------------------------------------------------------------------------------------------------

sub hello { return fcall('fence_hello', 0, $_[0] // 'n', sprintf '%016x', ++$nonce); }
sub clock { return hello()->[1]; }
sub until_of { return hello($_[0])->[7]; }

# ttl, fill_ms, stream_max, grant, warm_rate
sub settings
{
	my (%with) = @_;

	return join ' ', $with{ttl} // $hour, $with{fill} // 0, $with{most} // 1000, $with{grant} // 0, defined $with{rate} ? (0, $with{rate}) : ();
}

# Arms the process. Arguments that are not given are as fresh() has set them. until: milliseconds from now.
sub arm
{
	my (%with) = @_;

	return answer('fence_arm', 1, ($with{ns} // 'n') . ':heartbeat:{h}', $with{identity} // $identity, $with{epoch} // $epoch,
		$with{at} // clock() + ($with{until} // $hour), $with{slots} // '', $with{owner} // 'cluster', $with{timeline} // 3,
		$with{server} // 'run', $with{settings} // settings(%with));
}

sub renew
{
	my (%with) = @_;

	return answer('fence_renew', 0, 'n:heartbeat:{h}', $with{identity} // $identity, $with{epoch} // $epoch,
		$with{at} // clock() + ($with{until} // $hour), settings(%with), $with{slots} // ());
}

sub next_epoch { return sprintf '%d-%016x', ++$number, $number * 77; }
# The key that exists while the lease runs
sub heartbeat { return "n:heartbeat:{h}:$identity"; }
sub disarm { return answer('fence_disarm', 0, 'n', $_[0] // 'cluster', $_[1] // 3); }

# announce(name, id, publish, grant)
sub announce { my ($name, $id, $publish, $grant) = @_; return answer('fence_announce', 0, 'n', $epoch, $name, $id, $publish // 'none', $grant // 0); }

# Empties Redis and the library, arms the process in a new epoch, and announces domain 1.t.
sub fresh
{
	$redis->call('FLUSHALL');
	$redis->load_library;
	$identity = hello()->[0];
	$epoch = next_epoch();
	return if $_[0];
	like(arm(), qr/^armed /, 'armed');
	announce('1.t', 1);
	return;
}

# ---------------------------------------------------------------------------------------------------------------------
# Readers
# ---------------------------------------------------------------------------------------------------------------------

sub permit { return $redis->call('FCALL_RO', 'fence_token', 1, f($_[0] // 'k')); }
sub token { return (split / /, status($_[0] // 'k')->[1])[0]; }

# The strong read: 'hit record', 'miss', or 'closed' if fence_token returns no token.
sub read_fast
{
	my ($k) = @_;

	$redis->call('MULTI');
	$redis->call('MGET', f($k));
	$redis->call('FCALL_RO', 'fence_token', 1, f($k));
	my ($found, $permit) = @{ $redis->call('EXEC') };
	return 'closed' if $permit eq '';
	my ($token) = split / /, $permit;
	return defined $found->[0] && $found->[0] =~ /^\Q$token\E (.*)$/s ? "hit $1" : 'miss';
}

# The slow read: get(k), or get(k, suffix) for a value beside the fence.
sub get { return answer('fence_get', @_ > 1 ? (2, f($_[0]), v(@_)) : (1, f($_[0]))); }
sub check { my ($k, $version, $token) = @_; return fcall('fence_check', 1, f($k), $token // token(), $version); }

sub put
{
	my ($k, $version, %with) = @_;
	my @keys = (f($k), defined $with{suffix} ? v($k, $with{suffix}) : ());

	return fcall('fence_put', scalar @keys, @keys, $with{permit} // permit($k), row_version($with{epoch} // $epoch, $version), $with{payload} // "p$version", $with{ttl} // 0);
}

# The same for a record that is in Redis already, under the name of a value (side).
sub put_from
{
	my ($k, $version, %with) = @_;
	my @keys = (f($k), v($k, $with{side} // 'side'), defined $with{suffix} ? v($k, $with{suffix}) : ());

	return fcall('fence_put_from', scalar @keys, @keys, $with{permit} // permit($k), row_version($with{epoch} // $epoch, $version), $with{ttl} // 0);
}

# What a reader does after a miss.
sub fill { my ($k, $version, %with) = @_; is(put($k, $version, %with), 'stored', "$k is filled"); return; }

# Stores a value derived from these keys, whose fences must exist, and returns its name.
sub derived
{
	my ($payload, @keys) = @_;
	my $record = join '', map { $redis->call('GET', f($_)) =~ /^(\S+ \d+) / ? f($_) . " $1\n" : die "no fence of $_" } @keys;

	$redis->call('SET', 'n:v:1.t:{d}:sum.1:', "$record\n$payload");
	return 'n:v:1.t:{d}:sum.1:';
}

# ---------------------------------------------------------------------------------------------------------------------
# Writers
# ---------------------------------------------------------------------------------------------------------------------

sub header { return "n $epoch"; }
sub reserve { my ($stamp, @keys) = @_; return fcall('fence_write', 0, header(), $stamp, scalar @keys, map { f($_) } @keys); }
sub ends { return fcall('fence_write', 0, header(), '', 0, @_); }

# store(stamp, since, key, version, ended...): stores one row at its commit. Returns whether it was stored, -1 if the process is not
# armed. The time to live is the default.
sub store
{
	my ($stamp, $since, $k, $version, @ended) = @_;

	return fcall('fence_store', 0, header(), $stamp, 1, f($k), $since, $version, 0, "p$version", @ended) - 1;
}

# domain('reserve', stamp, ended attachment), domain('committed' or 'aborted', stamp)
sub domain
{
	my ($what, $stamp, $ended) = @_;

	return fcall('fence_domain_reserve', 0, header(), '1.t', $stamp, $ended // 0) if $what eq 'reserve';
	return fcall('fence_domain_end', 0, header(), '1.t', $stamp, $what);
}

# ---------------------------------------------------------------------------------------------------------------------
# The state of the library
# ---------------------------------------------------------------------------------------------------------------------

sub status { return fcall('fence_status', 1, f($_[0] // 'k')); }
sub recent { return status($_[0])->[2]; }

# The transactions that have reserved the key: "stamp kind", sorted.
sub holders
{
	my (undef, undef, undef, @list) = @{ status($_[0]) };
	my @found;

	while (my ($stamp, $kind) = splice @list, 0, 3) { push @found, "$stamp $kind"; }
	return join ', ', sort @found;
}

# All reservations by transaction: "stamp fences", or "domain name stamp" for a domain, sorted.
sub pendings
{
	my ($ns, $limit) = @_;
	my ($cursor, @found, @list) = ('');

	do
	{
		($cursor, undef, @list) = @{ fcall('fence_pending', 0, $ns // 'n', $limit // 1000, $cursor) };
		while (my ($kind, $name, $stamp, $n) = splice @list, 0, 5)
		{
			push @found, $kind eq 'row' ? "$stamp $n" : "domain $name $stamp";
		}
	} while $cursor ne '';
	return join ', ', sort @found;
}

# The version of the stored fence, current or not; 'none' if there is no fence.
sub version_of { my $fence = $redis->call('GET', f($_[0])) // return 'none'; return (split / /, $fence)[1]; }

# The whole state of the library and its keys, without ages, times to live and the numbers in permits.
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
	foreach my $fence (map { ("n:f:1.t:{$_}", "n:f:1.u:{$_}") } 'k', 'l', 'p', 'q')
	{
		my ($armed, $permit, $recent) = @{ fcall('fence_status', 1, $fence) };
		push @all, join ' ', $armed, $permit =~ s/ .*//r, $recent;
	}
	return join "\n", @all, map { holders($_) } 'k', 'l', 'p', 'q';
}

# Kilobytes of Lua, after a full collection.
sub function_memory
{
	$redis->attempt('FUNCTION', 'LOAD', "#!lua name=collect\nredis.register_function('collect_all', function() collectgarbage() collectgarbage() return 1 end)");
	fcall('collect_all', 0);
	return ($redis->info('memory', 'used_memory_vm_functions') =~ /(\d+)/)[0] / 1024;
}

1;
