# FenceTest/Router.pm
#    A client of several Redis servers that divide the slots among themselves. It sends each command to the server that has its
#    first key. So code for one server (FenceTest::Comparison) can use several.
#
# Owns: nothing; the connections belong to the servers. It follows no redirection.
#
#    my $router = FenceTest::Router->new(sub { my ($slot) = @_; return $servers[$slot * @servers / 16384]; });
#    my $reply = $router->call('FCALL_RO', 'fence_get', 1, $fence);
package FenceTest::Router;

use strict;
use warnings;

use Carp;
use Exporter 'import';

our @EXPORT_OK = qw(slot_of);

sub new
{
	my ($class, $server_of) = @_;

	return bless { server_of => $server_of, queue => [] }, $class;
}

# The slot of a key according to the Redis Cluster specification.
sub slot_of
{
	my ($key) = @_;
	my $crc = 0;

	$key = $1 if $key =~ /^[^{]*\{([^}]+)\}/s;
	foreach my $byte (unpack 'C*', $key)
	{
		$crc ^= $byte << 8;
		$crc = ($crc & 0x8000 ? $crc << 1 ^ 0x1021 : $crc << 1) & 0xffff foreach 1 .. 8;
	}
	return $crc % 16384;
}

sub server
{
	my ($self, $key) = @_;

	return $self->{server_of}->(slot_of($key));
}

sub connection { return $_[0]; }

sub send
{
	my ($self, @words) = @_;
	my $connection = $self->server($words[0] =~ /^FCALL/ ? $words[3] : $words[1])->connection;

	$connection->send(@words);
	push @{ $self->{queue} }, $connection;
	return;
}

sub reply { return (shift @{ $_[0]{queue} })->reply; }

sub attempt { my ($self, @words) = @_; $self->send(@words); return $self->reply; }

sub call
{
	my ($self, @words) = @_;
	my $reply = $self->attempt(@words);

	croak "Redis answered to @words[0 .. 1]: $reply" if ref $reply eq 'FenceTest::Redis::Error';
	return $reply;
}

1;
