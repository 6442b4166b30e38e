# FenceTest/Document.pm
#    Pages of the documentation as tests: their blocks, the statements in these, and what they show.
package FenceTest::Document;

use strict;
use warnings;

use Exporter 'import';
use PostgreSQL::Test::Utils;

our @EXPORT = qw(blocks statements shown);

# [kind, text, line] of each block of a page in Markdown.
sub blocks
{
	my ($path) = @_;
	my $text = slurp_file($path);
	my @blocks;

	while ($text =~ /^```(\w*)\n(.*?)^```$/gms)
	{
		my ($kind, $block, $before) = ($1, $2, substr($text, 0, $-[0]));
		push @blocks, [ $kind, $block, 1 + ($before =~ tr/\n//) ];
	}
	return @blocks;
}

# [statement, what it shows or undef] of each of a block of SQL
sub statements
{
	my ($text) = @_;
	my (@found, $statement);

	foreach my $line (split /\n/, $text)
	{
		if ($line =~ /^--> ?(.*)/)
		{
			my $last = $found[-1];
			$last->[1] = defined $last->[1] ? "$last->[1]\n$1" : $1;
			next;
		}
		$statement = defined $statement ? "$statement\n$line" : $line;
		(my $code = $line) =~ s/\s*--.*//;
		next unless $code =~ /;$/;
		push @found, [ $statement, undef ];
		undef $statement;
	}
	die "an unfinished statement: $statement" if ($statement // '') =~ /^[^-\s]/m;
	return @found;
}

# Whether that is what is shown; an ellipsis stands for anything.
sub shown
{
	my ($got, $wanted) = @_;
	my $pattern = join '.+', map { quotemeta } split /…|\xe2\x80\xa6/, $wanted, -1;

	return $got =~ /\A$pattern\z/s;
}

1;
