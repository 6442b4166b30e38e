# FenceTest/Impostor.pm
#    A server that passes commands on to a real Redis, and falsifies the replies to some of them as the test demands.
#
# Owns: the process that listens and those that it forks, one for each connection; they end with the test.
#
#    my $impostor = FenceTest::Impostor->start($redis);
#    $impostor->url;
#    $impostor->act('garbage', qr/fence_write/);      # how commands that match are answered from now on
#    $impostor->act('error', qr/./, text => 'OOM');
#    $impostor->honest;
#
# Ways: error, garbage, shapes, flip, cut, huge, line, many, deep, flood, silent, unasked. Ways that alter a real reply
# execute the command first.
package FenceTest::Impostor;

use strict;
use warnings;

use Carp;
use File::Temp;
use IO::Socket::INET;
use IO::Socket::UNIX;
use POSIX ();
use Time::HiRes qw(usleep);

my %listeners;
my $owner = $$;

sub start
{
	my ($class, $redis) = @_;
	my $listen = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => 0, Listen => 100) or croak "no port: $!";
	my $self = bless { redis => $redis, port => $listen->sockport, dir => File::Temp->newdir('fence_impostor_XXXXXX', TMPDIR => 1) },
	  $class;

	$self->honest;
	my $pid = fork() // croak "fork: $!";
	if ($pid == 0)
	{
		# a process group of its own, so that its children end with it
		setpgrp(0, 0);
		$SIG{CHLD} = 'IGNORE';
		$SIG{$_} = 'DEFAULT' foreach qw(INT TERM HUP __DIE__);
		eval { $self->_listen($listen); };
		POSIX::_exit(1);
	}
	$self->{pid} = $pid;
	$listeners{$pid} = 1;
	return $self;
}

sub url { return "redis://127.0.0.1:$_[0]{port}"; }

sub act
{
	my ($self, $way, $which, %option) = @_;
	my $file = "$self->{dir}/act";

	open my $fh, '>', "$file.new" or croak "$file: $!";
	print $fh join("\n", $way, $which, $option{text} // '');
	close $fh;
	rename "$file.new", $file or croak "$file: $!";
	return;
}

sub honest { return $_[0]->act('honest', ''); }

END
{
	my $status = $?;
	if ($$ == $owner)
	{
		foreach my $pid (keys %listeners)
		{
			kill 'KILL', -$pid, $pid;
			waitpid $pid, 0;
		}
	}
	$? = $status;
}

# ---------------------------------------------------------------------------------------------------------------------
# Inside its processes
# ---------------------------------------------------------------------------------------------------------------------

sub _listen
{
	my ($self, $listen) = @_;

	while (1)
	{
		my $client = $listen->accept or next;
		my $pid = fork() // next;
		next if $pid;
		close $listen;
		srand($$);
		eval { $self->_serve($client); };
		POSIX::_exit(0);
	}
}

# Serves a connection, one command after the other.
sub _serve
{
	my ($self, $client) = @_;
	my $redis = IO::Socket::UNIX->new(Peer => $self->{redis}->socket) or die;
	my %from = (client => { socket => $client, in => '' }, redis => { socket => $redis, in => '' });

	while (1)
	{
		my $command = _reply($from{client});
		open my $fh, '<', "$self->{dir}/act" or die;
		chomp(my ($way, $which, $text) = <$fh>);
		my $mine = $way ne 'honest' && $command =~ /$which/s;
		if (!$mine)
		{
			_write($redis, $command);
			_write($client, _reply($from{redis}));
			next;
		}
		my $answer = '';
		if ($way =~ /^(shapes|flip|cut)$/)
		{
			_write($redis, $command);
			$answer = _reply($from{redis});
		}
		no strict 'refs';
		&{"_way_$way"}($client, $answer, $text // '');
	}
}

sub _read
{
	my ($from) = @_;

	sysread($from->{socket}, $from->{in}, 1 << 16, length $from->{in}) or die 'closed';
	return;
}

sub _write
{
	my ($to, $bytes) = @_;
	my $done = 0;

	local $SIG{PIPE} = 'IGNORE';
	while ($done < length $bytes)
	{
		my $n = syswrite $to, $bytes, length($bytes) - $done, $done;
		die 'closed' unless $n;
		$done += $n;
	}
	return;
}

# The bytes of the next reply, or command.
sub _reply
{
	my ($from) = @_;
	my $at = 0;
	my $left = 1;

	while ($left > 0)
	{
		my $end;
		_read($from) while ($end = index $from->{in}, "\r\n", $at) < 0;
		my ($type, $n) = (substr($from->{in}, $at, 1), substr($from->{in}, $at + 1, $end - $at - 1));
		$at = $end + 2;
		$left--;
		$left += $n if $type eq '*' && $n > 0;
		next unless $type eq '$' && $n >= 0;
		$at += $n + 2;
		_read($from) while length $from->{in} < $at;
	}
	return substr $from->{in}, 0, $at, '';
}

sub _pick { return $_[ int rand @_ ]; }
sub _string { return sprintf "\$%d\r\n%s\r\n", length $_[0], $_[0]; }
sub _array { return sprintf "*%d\r\n%s", scalar @_, join '', @_; }

sub _way_error { my ($client, undef, $text) = @_; return _write($client, "-$text\r\n"); }
sub _way_garbage { my ($client) = @_; return _write($client, join '', map { chr int rand 256 } 1 .. 1 + rand 200); }

# Valid replies that this command cannot have.
sub _way_shapes
{
	my ($client, $answer) = @_;

	return _write($client, _pick(
		"+OK\r\n", ":1\r\n", "\$-1\r\n", "*-1\r\n", "*0\r\n", "\$0\r\n\r\n", _array(":1\r\n"), _array(_array("*0\r\n")),
		_array(_string('written')), _array(_string('written'), "*0\r\n", ":7\r\n", "\$-1\r\n"), _array(_string('reserved')),
		_array(_string('written'), map { _string($_) } ('99999999999999999999', '-', 'x', '')), _array(map { _string('x' x 1000) } 1 .. 8),
		_array(map { _string('') } 1 .. 8), _array(map { _string("\0") } 1 .. 7), _array(map { ":9223372036854775807\r\n" } 1 .. 8),
		_array(_string("a\nb\0c"), _string('1'), map { _string('9' x 30) } 1 .. 6), _array(_string('unarmed')),
		# replies to MULTI and EXEC, or to commands between them
		"+QUEUED\r\n", _string('1.a 1'), _string(' '), _array(_array(), _string('1.a 1')), _array(_array("\$-1\r\n"), _string('')),
		_array(_array(_string("1.a 7 {1}\n{}")), _string('1.a 1')), _array(_array(_string("1.a x y\n")), _string("1.a \0")),
		_array(map { _array(_string("1.a 7 x\n" . 'x' x 1000)) } 1 .. 3), _array(_string('hit'), _string("1.a 7 {1}\n")),
		_array(_string('miss'), _string('')), _string('stored'), _string('0101'), ":0\r\n", $answer));
}

# Changes one byte of the true reply.
sub _way_flip
{
	my ($client, $answer) = @_;

	substr($answer, rand length $answer, 1) = chr int rand 256;
	return _write($client, $answer);
}

# Closes the connection within the reply.
sub _way_cut
{
	my ($client, $answer) = @_;

	_write($client, substr $answer, 0, rand length $answer);
	die 'enough';
}

# Sends without end, until the other side closes the connection.
sub _endlessly
{
	my ($client, $head, $body) = @_;

	_write($client, $head);
	_write($client, $body x (1 + (1 << 16) / length $body)) while 1;
}

sub _way_huge  { return _endlessly($_[0], "\$2000000000\r\n", 'x'); }
sub _way_line  { return _endlessly($_[0], '-', 'x'); }
sub _way_many  { return _endlessly($_[0], _pick("*1000000\r\n", "*2000000000\r\n"), "*2\r\n:1\r\n:2\r\n"); }
sub _way_deep  { return _endlessly($_[0], '', "*1\r\n"); }
sub _way_flood { return _endlessly($_[0], '', "+OK\r\n"); }

# Sends no reply at all; and sends two replies to one command.
sub _way_silent { sleep 3600; return; }
sub _way_unasked { my ($client) = @_; return _write($client, "+OK\r\n+OK\r\n"); }

1;
