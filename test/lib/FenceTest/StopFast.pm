# FenceTest/StopFast.pm
#    test/coverage.sh loads this into each TAP file (PERL5OPT). At the end of the file it stops running servers with a fast
#    shutdown. PostgreSQL::Test::Cluster would use an immediate shutdown, after which the processes write no coverage counts.
package FenceTest::StopFast;

use strict;
use warnings;

INIT
{
	if (PostgreSQL::Test::Cluster->can('teardown_node'))
	{
		no warnings qw(once redefine);
		*PostgreSQL::Test::Cluster::teardown_node = sub
		{
			my ($self) = @_;
			$self->stop('fast', fail_ok => 1) or $self->stop('immediate', fail_ok => 1);
		};
	}
}

1;
