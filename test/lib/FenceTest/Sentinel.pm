# FenceTest/Sentinel.pm
#    Private sentinels that watch one master.
#
# Owns: their processes and directories. Each sentinel is a FenceTest::Redis in sentinel mode.
#
#    my @sentinels = FenceTest::Sentinel->start($redis, 3, quorum => 2);
package FenceTest::Sentinel;

use strict;
use warnings;

use FenceTest::Redis;

our @ISA = ('FenceTest::Redis');

# Starts n sentinels for the master. Options: name, quorum, down_after (ms), failover_timeout (ms), config.
sub start
{
	my ($class, $master, $n, %option) = @_;
	my $name = $option{name} // 'main';

	return map {
		$class->SUPER::start(
			config => [
				"sentinel monitor $name 127.0.0.1 " . $master->port . ' ' . ($option{quorum} // 2),
				"sentinel down-after-milliseconds $name " . ($option{down_after} // 1000),
				"sentinel failover-timeout $name " . ($option{failover_timeout} // 5000),
				@{ $option{config} // [] } ])
	} 1 .. $n;
}

# Lines of a server's redis.conf that a sentinel does not accept.
sub _directives
{
	my ($self) = @_;

	return ('bind 127.0.0.1', "port $self->{port}", "unixsocket $self->{socket}", "dir $self->{dir}", 'daemonize no');
}

sub _arguments { return ('--sentinel'); }

1;
