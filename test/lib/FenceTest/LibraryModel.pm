# FenceTest/LibraryModel.pm
#    A small model of the function library: the rules of doc/protocol.md for one namespace and a process that has all slots.
#    library/random_walks.pl compares every answer of the library with the model's.
#
# Time is a number that grows with each event, like the library's counter. Permits and numbers of reservations are texts of
# the real library; told() and numbered() note at which time it returned them.
package FenceTest::LibraryModel;

use strict;
use warnings;

sub new { my $self = bless { now => 1, told => {}, numbers => {}, tokens => {} }, $_[0]; $self->forget; return $self; }

# The library loses its variables: another process, or the library was loaded anew.
sub forget { my ($self) = @_; @$self{qw(epoch lease)} = (undef, 0); return; }

sub arm
{
	my ($self, $epoch) = @_;

	$self->{lease} = 1;
	return if defined $self->{epoch} && $self->{epoch} eq $epoch;
	@$self{qw(epoch domains pending ended recent drawn)} = ($epoch, {}, {}, {}, {}, $self->{now}++);
	return;
}

# ---------------------------------------------------------------------------------------------------------------------
# Domains
# ---------------------------------------------------------------------------------------------------------------------

sub domain_of { my ($fence) = @_; return (split /:/, $fence)[2]; }

# Draws a new token. The model learns its text when the library first returns it.
sub new_token { my ($self, $d) = @_; @$d{qw(born token)} = ($self->{drawn} = $self->{now}++, undef); $self->{recent} = {}; return; }

# The library makes the record of a domain when it needs one, and forgets it when the domain is not attached and nothing is pending for all of
# it. A new record has a new token. The model keeps what has ended.
sub domain
{
	my ($self, $name) = @_;
	my $d = $self->{domains}{$name} //= { id => 0, ended => 0, pending => {}, gone => 1 };

	$self->new_token($d) if $d->{gone};
	$d->{gone} = 0;
	return $d;
}

sub ended { my ($self, $name) = @_; my $d = $self->{domains}{$name}; return $d ? $d->{ended} : 0; }

sub announce
{
	my ($self, $name, $id) = @_;
	return 'announced 1' if $id <= $self->ended($name);
	my $d = $self->domain($name);
	return 'announced 0' if $id <= $d->{id};
	$self->new_token($d) if $d->{id} || $d->{withdrawn};
	@$d{qw(id withdrawn)} = ($id, 0);
	return 'announced 0';
}

sub withdraw
{
	my ($self, $name, $id) = @_;
	my $d = $self->{domains}{$name};

	return unless $d && $id && $d->{id} == $id;
	@$d{qw(id withdrawn)} = (0, 1);
	return $self->new_token($d);
}

sub reserve_domain { my ($self, $name, $stamp, $ended) = @_; my $p = \$self->domain($name)->{pending}{$stamp}; $$p = $ended if $ended >= ($$p // 0); return; }

sub end_domain
{
	my ($self, $name, $stamp, $committed) = @_;
	my $d = $self->{domains}{$name} // return;
	my $ended = delete $d->{pending}{$stamp} // return;

	if ($committed)
	{
		$d->{ended} = $ended if $ended > $d->{ended};
		$d->{id} = 0 if $d->{id} <= $d->{ended};
		$self->new_token($d);
	}
	$d->{gone} = 1 unless $d->{id} || $d->{withdrawn} || %{ $d->{pending} };
	return;
}

# ---------------------------------------------------------------------------------------------------------------------
# Readers
# ---------------------------------------------------------------------------------------------------------------------

sub is_served { my ($self, $name) = @_; my $d = defined $self->{epoch} && $self->{domains}{$name}; return $d && $d->{id} ? $d : undef; }
sub may_tell { my ($self, $name) = @_; my $d = $self->is_served($name); return $d && $self->{lease} && !%{ $d->{pending} } ? $d : undef; }

# The library has returned this permit for the domain. Returns what is wrong with it, or nothing.
sub told
{
	my ($self, $name, $permit) = @_;
	my $d = $self->may_tell($name);

	return ($permit eq '' ? () : "told $permit of $name") unless $d;
	my ($token) = $permit =~ /^(\S+) \d+$/ or return "no permit: '$permit'";
	return "another token of $name: $token" if defined $d->{token} ? $d->{token} ne $token : $self->{tokens}{$token}++;
	$d->{token} = $token;
	$self->{told}{$permit} = $self->{now}++;
	return;
}

# Whether no reservation of the fence has ended since then.
sub none_ended { my ($self, $fence, $since) = @_; return ($self->{ended}{$fence} // 0) <= $since; }

sub put
{
	my ($self, $fence, $permit) = @_;
	my $d = $self->is_served(domain_of($fence)) or return 'refused unarmed';
	my $told = $self->{told}{$permit};

	return 'refused unarmed' unless $self->{lease};
	return 'refused token' unless defined $told && defined $d->{token} && $permit =~ /^\Q$d->{token}\E /;
	return 'refused late' unless $self->none_ended($fence, $told);
	return 'refused pending' if $self->{pending}{$fence};
	return 'stored';
}

# The first element of get's answer. raw: the content of the key.
sub get
{
	my ($self, $fence, $raw) = @_;
	my $d = $self->is_served(domain_of($fence));

	return 'unarmed' unless $d && $self->{lease};
	return 'pending' if %{ $d->{pending} } || $self->{pending}{$fence};
	return defined $raw && defined $d->{token} && $raw =~ /^\Q$d->{token}\E \d+ .*\n/ ? 'hit' : 'miss';
}

# ---------------------------------------------------------------------------------------------------------------------
# Writers
# ---------------------------------------------------------------------------------------------------------------------

sub numbered { my ($self, $number) = @_; $self->{numbers}{$number} = $self->{now}++; return; }

# When the library returned that number; 0: the number proves nothing.
sub since { my ($self, $number) = @_; return $self->{numbers}{$number} // 0; }

sub reserve { my ($self, $stamp, @fences) = @_; foreach (@fences) { $self->{pending}{$_}{$stamp} = 1; delete $self->{recent}{$_}; } return; }

# Ends a reservation. since: undef after a rollback
sub release
{
	my ($self, $fence, $stamp, $since) = @_;
	my $p = $self->{pending}{$fence};

	return 0 unless $p && $p->{$stamp};
	my $proven = defined $since && keys %$p == 1 && $since >= $self->{drawn} && $self->none_ended($fence, $since);
	delete $p->{$stamp};
	delete $self->{pending}{$fence} unless %$p;
	$self->{ended}{$fence} = $self->{now}++;
	if ($proven) { $self->{recent}{$fence} = $stamp; } else { delete $self->{recent}{$fence}; }
	return 1;
}

# Ends a transaction, which is given as "stamp", "-stamp" or "=number stamp".
sub end
{
	my ($self, $what) = @_;
	my ($stamp, $since) = $what =~ /^-(.*)/ ? ($1, undef) : $what =~ /^=(\d+) (.*)/ ? ($2, $self->since($1)) : ($what, 0);

	$self->release($_, $stamp, $since) foreach sort keys %{ $self->{pending} };
	return;
}

# A commit that brings its row. Returns whether the row is stored.
sub store
{
	my ($self, $stamp, $fence, $number) = @_;
	my $d = $self->{domains}{ domain_of($fence) } or return 0;
	my $since = $self->since($number);
	my $p = $self->{pending}{$fence};
	my $proven = $d->{id} && $p && $p->{$stamp} && keys %$p == 1 && $d->{born} <= $since && $self->none_ended($fence, $since);

	$self->release($fence, $stamp, $since);
	return $proven ? 1 : 0;
}

# The audit has removed the fence.
sub removed { my ($self, $fence) = @_; $self->{ended}{$fence} = $self->{now}++; delete $self->{recent}{$fence}; return; }

sub recent
{
	my ($self, $fence) = @_;

	return '' if $self->{pending}{$fence} || %{ $self->domain(domain_of($fence))->{pending} };
	return $self->{recent}{$fence} // '';
}

sub holders { my ($self, $fence) = @_; return join ' ', sort keys %{ $self->{pending}{$fence} // {} }; }

1;
