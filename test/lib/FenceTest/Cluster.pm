# FenceTest/Cluster.pm
#    A private Redis Cluster: masters that divide the slots evenly, and one replica for each.
#
# Owns: the processes of its members, each of which is a FenceTest::Redis in cluster mode.
#
#    my $cluster = FenceTest::Cluster->start(3, replicas => 1);
#    my @masters = $cluster->masters;               # as the members see it now
#    $cluster->move_slots($to, 0 .. 99);
#    my $new = $cluster->join;                      # one more member, without slots
#    my $router = $cluster->router;                 # FenceTest::Router, by the slots as they are now
#
# Options: replicas (for each master; default 1), config (lines of redis.conf), tls (lines of redis.conf without the port: then all
# connections use TLS, except those of the test itself).
package FenceTest::Cluster;

use strict;
use warnings;

use Carp;
use FenceTest::Redis;
use FenceTest::Router;
use IO::Socket::INET;
use Time::HiRes qw(time usleep);

sub _poll
{
	my ($condition, $what) = @_;
	my $deadline = time() + 60;

	until ($condition->())
	{
		croak "timed out waiting for $what" if time() > $deadline;
		usleep(20_000);
	}
	return;
}

sub start
{
	my ($class, $n, %option) = @_;
	my $self = bless { members => [], epoch => 0, config => $option{config} // [], tls => $option{tls} }, $class;
	my @masters = map { $self->_member } 1 .. $n;

	$_->call('CLUSTER', 'ADDSLOTSRANGE', int(16384 * $_->{index} / $n), int(16384 * ($_->{index} + 1) / $n) - 1) foreach @masters;
	my @replicas = map { $self->_member } 1 .. $n * ($option{replicas} // 1);
	$self->_meet;
	foreach my $i (0 .. $#replicas)
	{
		$replicas[$i]->call('CLUSTER', 'REPLICATE', $masters[ $i % $n ]->id);
	}
	$self->wait_healthy;
	return $self;
}

sub _member
{
	my ($self) = @_;
	my @tls = $self->{tls} ? (@{ $self->{tls} }, 'tls-cluster yes', 'tls-replication yes') : ();
	my $member = FenceTest::Cluster::Member->start(config => [ @{ $self->{config} }, @tls ]);

	$member->{index} = @{ $self->{members} };
	$member->id;	# the object keeps it, so that it is known even after the member has died
	push @{ $self->{members} }, $member;
	$member->call('CLUSTER', 'SET-CONFIG-EPOCH', ++$self->{epoch});
	return $member;
}

# Makes all members meet, and waits until all know one another.
sub _meet
{
	my ($self) = @_;
	my @members = $self->alive;

	foreach my $member (@members[ 1 .. $#members ])
	{
		$members[0]->call('CLUSTER', 'MEET', '127.0.0.1', $member->port, $member->{bus});
	}
	_poll(sub { !grep { my @n = split /\n/, $_->call('CLUSTER', 'NODES'); @n < @members || grep { /handshake/ } @n } @members },
		'the members to meet');
	return;
}

sub members { return @{ $_[0]{members} }; }
sub alive { return grep { defined $_->pid && !$_->{paused} } @{ $_[0]{members} }; }

# Waits until every living member sees the cluster as whole, and every replica follows its master.
sub wait_healthy
{
	my ($self) = @_;

	_poll(
		sub {
			my @slots;
			foreach my $m ($self->alive)
			{
				return 0 if (eval { $m->call('CLUSTER', 'INFO') } // '') !~ /cluster_state:ok/;
				return 0 if $m->info('replication', 'role') eq 'slave' && $m->info('replication', 'master_link_status') ne 'up';
				push @slots, join ',', map { "$_->[0]-$_->[1] $_->[2][2]" } @{ $m->call('CLUSTER', 'SLOTS') };
			}
			return !grep { $_ ne $slots[0] } @slots;
		},
		'the cluster to be whole');
	return;
}

sub at_port { my ($self, $port) = @_; return (grep { $_->port == $port } $self->members)[0]; }

# The member that owns the range in the reply to CLUSTER SLOTS. It is found by its ID, because with TLS the reply has another port.
sub _owner_of { my ($self, $range) = @_; return (grep { $_->id eq $range->[2][2] } $self->members)[0]; }

# The members that own slots, in the order of the slots.
sub masters
{
	my ($self) = @_;
	my %seen;

	return map { $self->_owner_of($_) } grep { !$seen{ $_->[2][2] }++ }
	  sort { $a->[0] <=> $b->[0] } @{ ($self->alive)[0]->call('CLUSTER', 'SLOTS') };
}

sub replica_of
{
	my ($self, $master) = @_;

	return (grep { $_->call('CLUSTER', 'MYID') && $_->info('replication', 'role') eq 'slave'
		  && $_->info('replication', 'master_port') == $master->port } $self->alive)[0];
}

sub owner
{
	my ($self, $slot) = @_;

	foreach my $range (@{ ($self->alive)[0]->call('CLUSTER', 'SLOTS') })
	{
		return $self->_owner_of($range) if $range->[0] <= $slot && $slot <= $range->[1];
	}
	return;
}

sub router
{
	my ($self) = @_;
	my @owner;

	foreach my $range (@{ ($self->alive)[0]->call('CLUSTER', 'SLOTS') })
	{
		@owner[ $range->[0] .. $range->[1] ] = ($self->_owner_of($range)) x ($range->[1] - $range->[0] + 1);
	}
	return FenceTest::Router->new(sub { return $owner[ $_[0] ]; });
}

# Moves slots as redis-cli does: key by key, while both masters serve clients.
sub move_slots
{
	my ($self, $to, @slots) = @_;

	foreach my $slot (@slots)
	{
		my $from = $self->owner($slot);
		next if $from == $to;
		$to->call('CLUSTER', 'SETSLOT', $slot, 'IMPORTING', $from->id);
		$from->call('CLUSTER', 'SETSLOT', $slot, 'MIGRATING', $to->id);
		_poll(
			sub {
				my @keys = @{ $from->call('CLUSTER', 'GETKEYSINSLOT', $slot, 100) } or return 1;
				$from->attempt('MIGRATE', '127.0.0.1', $to->port, '', 0, 5000, 'REPLACE', 'KEYS', @keys);
				return 0;
			},
			"the keys of slot $slot to move");
		$_->attempt('CLUSTER', 'SETSLOT', $slot, 'NODE', $to->id) foreach $to, $from, grep { $_ != $to && $_ != $from } $self->masters;
	}
	return;
}

# Adds a member, a master without slots. Waits until it knows who owns each slot, because before that it cannot import any.
sub join
{
	my ($self) = @_;
	my $new = $self->_member;

	$self->_meet;
	$self->wait_healthy;
	return $new;
}

# Removes a member, which must own no slots any more.
sub leave
{
	my ($self, $member) = @_;
	my $id = $member->id;

	$_->attempt('CLUSTER', 'FORGET', $id) foreach grep { $_ != $member } $self->alive;
	$member->stop;
	return;
}

sub url
{
	my ($self, @members) = @_;

	return 'redis+cluster://' . CORE::join(',', map { '127.0.0.1:' . $_->port } @members ? @members : ($self->members)[ 0 .. 2 ]);
}

# ---------------------------------------------------------------------------------------------------------------------

package FenceTest::Cluster::Member;

use strict;
use warnings;

our @ISA = ('FenceTest::Redis');

sub _directives
{
	my ($self) = @_;

	$self->{bus} //= FenceTest::Redis::_free_port();
	my @tls = grep { /^tls-cluster/ } @{ $self->{config} };
	return ($self->SUPER::_directives, 'cluster-enabled yes', "cluster-port $self->{bus}", 'cluster-node-timeout 2000',
		'cluster-replica-validity-factor 0', @tls ? ('port 0', "tls-port $self->{port}") : ());
}

sub id { my ($self) = @_; return $self->{id} //= $self->call('CLUSTER', 'MYID'); }

1;
