# FenceTest/StopFast.pm
#    Loaded by test/coverage.sh into each TAP file (PERL5OPT): servers that a file leaves running are stopped at its end
#    by a fast shutdown. PostgreSQL::Test::Cluster stops them at once, and then their processes write no counts.
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
