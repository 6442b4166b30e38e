# FenceTest/Session.pm
#    A psql that stays connected, for transactions that stay open, and for statements whose end a test awaits later.
#
# Owns: the psql processes, which end with the test.
#
#    my $s = FenceTest::Session->open($node);
#    $s->run('BEGIN');                         # dies if that is an error; returns the output
#    my $error = $s->error_of('SELECT 1/0');   # "22012: division by zero", then detail and hint, each on a line
#    $s->begin('COMMIT');                      # sends, does not wait
#    until ($s->ready) {...}                   # $s->wait to wait
#    my $output = $s->take;                    # output and errors of the statement that was begun
package FenceTest::Session;

use strict;
use warnings;

use Carp;
use IPC::Run;
use Time::HiRes qw(time usleep);

my $markers = 0;

# Options: dbname, user, timeout (seconds that a statement may take).
sub open
{
	my ($class, $node, %option) = @_;
	my $self = bless { in => '', out => '', marker => undef, timeout => $option{timeout} // 60 }, $class;
	my $where = $node->connstr($option{dbname} // 'postgres');

	$where .= " user=$option{user}" if $option{user};
	$where .= ' replication=database' if $option{replication};
	my @psql = (qw(psql -X -q -A -t -v ON_ERROR_STOP=0 -v VERBOSITY=verbose -d), $where);
	local $ENV{PGAPPNAME} = 'session';
	$self->{psql} = IPC::Run::start(\@psql, '<', \$self->{in}, '>&', \$self->{out});
	$self->{pid} = $self->run('SELECT pg_catalog.pg_backend_pid()');
	return $self;
}

# The process id of the backend.
sub pid { return $_[0]{pid}; }

sub begin
{
	my ($self, $sql) = @_;

	croak 'the last statement is not finished' if $self->{marker};
	$self->{marker} = sprintf '=== %d ===', ++$markers;
	$self->{in} .= "$sql\n;\n\\echo $self->{marker}\n";
	$self->ready;
	return;
}

# Whether the statement that was begun has finished, or psql has ended.
sub ready
{
	my ($self) = @_;

	croak 'nothing was begun' unless $self->{marker};
	# reads what has arrived, and waits a few milliseconds at most
	$self->{gone} ||= !eval { $self->{psql}->pump_nb; 1 } || !$self->{psql}->pumpable;
	return $self->{gone} || $self->{out} =~ /^\Q$self->{marker}\E$/m;
}

sub wait
{
	my ($self) = @_;
	my $deadline = time() + $self->{timeout};

	until ($self->ready)
	{
		croak "psql did not finish in $self->{timeout} s; it said: $self->{out}" if time() > $deadline;
		usleep(1_000);
	}
	return;
}

# Waits for the statement that was begun. Returns its output.
sub take
{
	my ($self) = @_;

	$self->wait;
	my ($text) = split /^\Q$self->{marker}\E\n/m, $self->{out}, 2;
	$self->{out}    = '';
	$self->{marker} = undef;
	$text //= '';
	$text =~ s/\n+\z//;
	return $text;
}

sub _error
{
	my ($text) = @_;
	my @lines = grep { /^(?:ERROR|FATAL|DETAIL|HINT):/ || /server closed the connection/ } split /\n/, $text;

	# DETAIL and HINT alone are no error, because a NOTICE has them too
	@lines = () unless grep { !/^(?:DETAIL|HINT):/ } @lines;
	s/^(?:ERROR|FATAL):\s+// foreach @lines;
	return @lines ? join("\n", @lines) : undef;
}

sub run
{
	my ($self, $sql) = @_;

	$self->begin($sql);
	my $text = $self->take;
	croak "failed: $sql\n$text" if defined _error($text) || $self->{gone};
	return $text;
}

# The error of the given statement, or without one of the statement that was begun before; undef if there is none.
sub error_of
{
	my ($self, $sql) = @_;

	$self->begin($sql) if defined $sql;
	return _error($self->take);
}

# Kills psql, so that the server loses its client.
sub kill9
{
	my ($self) = @_;

	$self->{psql}->signal('KILL');
	eval { $self->{psql}->finish };
	$self->{gone} = 1;
	return;
}

sub close
{
	my ($self) = @_;

	$self->{psql}->kill_kill(grace => 2) if $self->{psql};
	delete $self->{psql};
	return;
}

sub DESTROY
{
	my ($self) = @_;
	local ($?, $@);

	eval { $self->close };
	return;
}

1;
