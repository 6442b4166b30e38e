# FenceTest/Redis.pm
#    A private Redis server on a Unix socket and a loopback port, and a small client for it.
#
# Owns: the processes that it starts, and their directories. It kills the processes by their process ids when the test ends
# (also after die or a signal). It does not use PostgreSQL.
#
#    my $redis = FenceTest::Redis->start(config => ['maxmemory 10mb']);
#    $redis->load_library;
#    my $reply = $redis->call('PING');          # dies if Redis answers an error
#    my $error = $redis->error_of('GET');       # the error's text, undef if there is none
package FenceTest::Redis;

use strict;
use warnings;

use Carp;
use Cwd qw(abs_path);
use File::Basename;
use File::Path qw(rmtree);
use File::Temp;
use IO::Socket::INET;
use POSIX ();
use Time::HiRes qw(time usleep);

my %running;        # process id -> server, of the running servers
my @directories;    # END removes them
my $owner = $$;     # only this process cleans up, not a forked child

# Starts a server. Options: config => [lines of redis.conf], password, timeout (of the client, in seconds).
# The environment variable REDIS_SERVER names the program.
sub start
{
	my ($class, %option) = @_;
	my $self = bless {
		dir      => File::Temp::tempdir('fence_redis_XXXXXX', TMPDIR => 1),
		config   => $option{config} // [],
		password => $option{password},
		timeout  => $option{timeout} // 30,
	}, $class;

	push @directories, $self->{dir};
	$self->{socket} = "$self->{dir}/redis.sock";
	$SIG{$_} ||= sub { exit 1 } foreach qw(INT TERM HUP);    # so that END runs
	for (my $try = 1;; $try++)
	{
		$self->{port} = _free_port();
		last if eval { $self->_launch; 1 };
		croak $@ if $try == 5 || $@ !~ /in use/;             # another program has taken the port meanwhile
	}
	return $self;
}

sub _free_port
{
	my $probe = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => 0, Listen => 1) or croak "no port: $!";

	return $probe->sockport;
}

sub _directives
{
	my ($self) = @_;

	return ('bind 127.0.0.1', "port $self->{port}", "unixsocket $self->{socket}", "dir $self->{dir}", 'save ""',
		'appendonly no', 'daemonize no', 'enable-debug-command yes', 'enable-protected-configs yes',
		'repl-diskless-sync-delay 0');
}

sub _arguments { return (); }

sub _launch
{
	my ($self) = @_;
	my $program = $ENV{REDIS_SERVER} || 'redis-server';
	my $conf = "$self->{dir}/redis.conf";

	open my $fh, '>', $conf or croak "$conf: $!";
	print $fh "$_\n"
	  foreach ($self->_directives, defined $self->{password} ? "requirepass $self->{password}" : (), @{ $self->{config} });
	close $fh;

	$self->disconnect;
	my $pid = fork() // croak "fork: $!";
	if ($pid == 0)
	{
		open STDIN,  '<',  '/dev/null';
		open STDOUT, '>>', "$self->{dir}/log";
		open STDERR, '>&', \*STDOUT;
		exec $program, $conf, $self->_arguments or POSIX::_exit(127);
	}
	$self->{pid} = $pid;
	$running{$pid} = $self;
	my $deadline = time() + 30;
	until (eval { local $self->{timeout} = 5; my $pong = $self->attempt('PING'); defined $pong })
	{
		if (waitpid($pid, POSIX::WNOHANG()) == $pid)
		{
			$self->_is_gone;
			croak "redis-server did not start:\n" . $self->log;
		}
		croak "redis-server does not answer:\n" . $self->log if time() > $deadline;
		usleep(5_000);
	}
	# Redis listens before it has loaded its dump
	until (_is_ready($self->attempt('PING')))
	{
		croak "redis-server is still loading" if time() > $deadline;
		usleep(5_000);
	}
	return;
}

sub _is_ready
{
	my ($reply) = @_;

	return !ref $reply || "$reply" !~ /^LOADING/;
}

sub dir    { return $_[0]{dir}; }
sub socket { return $_[0]{socket}; }
sub port   { return $_[0]{port}; }
sub pid    { return $_[0]{pid}; }

# The value for pgcache_fence.redis_url; unix_url is the URL of the socket.
sub url
{
	my ($self) = @_;
	my $auth = defined $self->{password} ? ":$self->{password}\@" : '';

	return "redis://${auth}127.0.0.1:$self->{port}";
}

sub unix_url
{
	my ($self) = @_;

	return "unix://$self->{socket}";
}

sub log
{
	my ($self) = @_;

	open my $fh, '<', "$self->{dir}/log" or return '';
	local $/;
	return <$fh> // '';
}

sub _is_gone
{
	my ($self) = @_;

	delete $running{ $self->{pid} } if defined $self->{pid};
	$self->{pid} = undef;
	$self->disconnect;
	return;
}

sub _end_by
{
	my ($self, $signal) = @_;
	my $pid = $self->{pid} // return;
	my $deadline = time() + 30;

	kill 'CONT', $pid if $self->{paused};
	$self->{paused} = 0;
	kill $signal, $pid;
	until (waitpid($pid, POSIX::WNOHANG()) != 0)
	{
		kill 'KILL', $pid if time() > $deadline;
		usleep(2_000);
	}
	return $self->_is_gone;
}

# stop: a clean shutdown, which saves data only if configured. The other one is a crash.
sub stop  { return $_[0]->_end_by('TERM'); }
sub kill9 { return $_[0]->_end_by('KILL'); }

# Starts the server again in the same directory and at the same port. Stops the old process first if it still runs.
sub restart
{
	my ($self) = @_;

	$self->stop;
	return $self->_launch;
}

# pause suspends the process, which keeps its connections open; another call continues it.
sub pause
{
	my ($self) = @_;

	$self->{paused} = 1;
	kill 'STOP', $self->{pid};
	return;
}

sub resume
{
	my ($self) = @_;

	$self->{paused} = 0;
	kill 'CONT', $self->{pid};
	return;
}

# The text of the function library: the files of src/redis that the build joins.
sub library_source
{
	my $text = '';

	foreach my $file (qw(fence.lua arming.lua rights.lua buckets.lua marks.lua fills.lua listings.lua hot.lua effects.lua))
	{
		my $path = dirname(abs_path(__FILE__)) . "/../../../src/redis/$file";

		open my $fh, '<', $path or croak "$path: $!";
		local $/;
		$text .= <$fh>;
	}
	return $text;
}

# Loads the function library (library_source, or the text given), replacing what is there.
sub load_library
{
	my ($self, $text) = @_;

	return $self->call('FUNCTION', 'LOAD', 'REPLACE', $text // library_source());
}

# ---------------------------------------------------------------------------------------------------------------------
# Client. Commands on the server object share one connection; connect gives another.
# ---------------------------------------------------------------------------------------------------------------------

sub connect
{
	my ($self, %option) = @_;
	my $connection = FenceTest::Redis::Connection->open($self->{socket}, $option{timeout} // $self->{timeout});

	$connection->call('AUTH', $self->{password}) if defined $self->{password};
	return $connection;
}

sub disconnect
{
	my ($self) = @_;

	delete $self->{connection};
	return;
}

# The shared connection. A new one is made after a failure, and in a forked child.
sub connection
{
	my ($self) = @_;

	delete $self->{connection} if $self->{connection} && !$self->{connection}->usable;
	return $self->{connection} //= $self->connect;
}

# The row version that a server names which is OPEN in this epoch, or in that of this token or permit (fence.row_version)
sub row_version { my ($epoch, $version) = @_; return ($epoch =~ /^(\d+-[0-9a-f]{1,6})/ ? $1 : '0-0') . ".$version"; }

sub call     { my $self = shift; return $self->connection->call(@_); }
sub attempt  { my $self = shift; return $self->connection->attempt(@_); }
sub error_of { my $self = shift; return $self->connection->error_of(@_); }

# A field of INFO.
sub info
{
	my ($self, $section, $field) = @_;
	my $text = $self->call('INFO', $section);

	return $text =~ /^\Q$field\E:(.*?)\r?$/m ? $1 : undef;
}

END
{
	my $status = $?;
	if ($$ == $owner)
	{
		$_->_end_by('KILL') foreach values %running;
		rmtree($_) foreach $ENV{PG_TEST_NOCLEAN} ? () : @directories;
	}
	$? = $status;
}

# ---------------------------------------------------------------------------------------------------------------------

# An error reply; as a string its text.
package FenceTest::Redis::Error;

use overload '""' => sub { return $_[0]{text}; }, 'eq' => sub { return "$_[0]" eq "$_[1]"; }, fallback => 1;

# ---------------------------------------------------------------------------------------------------------------------

# One blocking connection. Every reply must come within the timeout. Replies are strings, numbers, array references, undef
# for nil, or FenceTest::Redis::Error. After a timeout or a lost connection the object is unusable.
package FenceTest::Redis::Connection;

use Carp;
use IO::Select;
use IO::Socket::UNIX;
use Time::HiRes qw(time);

sub open
{
	my ($class, $path, $timeout) = @_;
	my $socket = IO::Socket::UNIX->new(Peer => $path) or croak "could not connect to $path: $!";

	return bless {
		socket  => $socket,
		select  => IO::Select->new($socket),
		in      => '',
		at      => 0,
		timeout => $timeout,
		owner   => $$
	}, $class;
}

sub usable { return $_[0]{socket} && $_[0]{owner} == $$; }

sub _fail
{
	my ($self, $why) = @_;

	delete $self->{socket};
	croak "Redis: $why";
}

# Sends a command without waiting for its reply.
sub send
{
	my ($self, @words) = @_;

	return $self->send_raw(encoded(@words));
}

# The bytes of a command. Several commands sent at once need less space in the socket's buffer.
sub encoded
{
	my (@words) = @_;
	my $bytes = '*' . @words . "\r\n";

	foreach my $word (@words)
	{
		my $octets = "$word";
		utf8::encode($octets) if utf8::is_utf8($octets);
		$bytes .= '$' . length($octets) . "\r\n$octets\r\n";
	}
	return $bytes;
}

# Sends bytes as they are. While the server accepts none, reads its replies, so that the buffers of both sides are never
# full at once.
sub send_raw
{
	my ($self, $bytes) = @_;
	my ($done, $deadline) = (0, time() + $self->{timeout});

	croak 'Redis: the connection has failed' unless $self->{socket};
	$self->{socket}->blocking(0);
	while ($done < length $bytes)
	{
		local $SIG{PIPE} = 'IGNORE';
		my $n = syswrite $self->{socket}, $bytes, length($bytes) - $done, $done;
		if (defined $n)
		{
			$done += $n;
			next;
		}
		$self->_fail("could not send: $!") unless $!{EAGAIN} || $!{EINTR};
		$self->_fail('timeout while sending') if time() > $deadline;
		IO::Select->select($self->{select}, $self->{select}, undef, 0.1);
		$self->_read(0);
	}
	return;
}

# Reads the bytes that have arrived. With wait, waits until the deadline for at least one.
sub _read
{
	my ($self, $wait) = @_;
	my $deadline = time() + $self->{timeout};

	croak 'Redis: the connection has failed' unless $self->{socket};
	$self->{socket}->blocking(0);
	while (1)
	{
		my $n = sysread $self->{socket}, $self->{in}, 1 << 16, length $self->{in};
		return if $n;
		$self->_fail('the server closed the connection') if defined $n;
		$self->_fail("could not receive: $!") unless $!{EAGAIN} || $!{EINTR};
		return unless $wait;
		my $left = $deadline - time();
		$self->_fail('timeout') if $left <= 0;
		$self->{select}->can_read($left);
	}
}

sub _parse
{
	my ($self) = @_;
	my $end;

	$self->_read(1) while ($end = index $self->{in}, "\r\n", $self->{at}) < 0;
	my $type = substr $self->{in}, $self->{at}, 1;
	my $line = substr $self->{in}, $self->{at} + 1, $end - $self->{at} - 1;
	$self->{at} = $end + 2;

	if ($type eq '$')
	{
		return undef if $line < 0;
		$self->_read(1) while length($self->{in}) - $self->{at} < $line + 2;
		$self->{at} += $line + 2;
		return substr $self->{in}, $end + 2, $line;
	}
	return $line if $type eq '+' || $type eq ':';
	return bless({ text => $line }, 'FenceTest::Redis::Error') if $type eq '-';
	return $line < 0 ? undef : [ map { $self->_parse } 1 .. $line ] if $type eq '*';
	$self->_fail("no reply begins with '$type'");
}

# The next reply.
sub reply
{
	my ($self) = @_;
	my $reply = $self->_parse;

	substr $self->{in}, 0, $self->{at}, '';
	$self->{at} = 0;
	return $reply;
}

# Whether a reply (or the end of the connection) can be read now.
sub has_reply
{
	my ($self) = @_;

	return length $self->{in} || $self->{select}->can_read(0) ? 1 : 0;
}

# Sends a command and returns the reply; an error reply is a FenceTest::Redis::Error.
sub attempt
{
	my ($self, @words) = @_;

	$self->send(@words);
	return $self->reply;
}

# Sends a command and returns the reply; dies if it is an error.
sub call
{
	my ($self, @words) = @_;
	my $reply = $self->attempt(@words);

	croak "Redis answered to @words[0 .. ($#words > 2 ? 2 : $#words)]: $reply" if ref $reply eq 'FenceTest::Redis::Error';
	return $reply;
}

# Sends a command and returns the text of the error reply; undef if the reply is no error.
sub error_of
{
	my ($self, @words) = @_;
	my $reply = $self->attempt(@words);

	return ref $reply eq 'FenceTest::Redis::Error' ? "$reply" : undef;
}

1;
