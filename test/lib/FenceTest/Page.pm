# FenceTest/Page.pm
#    Finds the blocks of code in a page in Markdown, runs the SQL, and compares the results with those on the page.
#
# A block of `sql` is run statement by statement. A line "--> …" is the result of the statement before it ("--> (0 rows)": no
# rows). An ellipsis in the result stands for any text.
package FenceTest::Page;

use strict;
use warnings;

use Exporter qw(import);
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(blocks_of shown run_sql);

# [kind, text, line] of each block of the file
sub blocks_of
{
	my ($file) = @_;
	my $text = slurp_file($file);
	my @blocks;

	while ($text =~ /^```(\w*)\n(.*?)^```$/gms)
	{
		my ($kind, $block, $before) = ($1, $2, substr($text, 0, $-[0]));
		push @blocks, [ $kind, $block, 1 + ($before =~ tr/\n//) ];
	}
	return @blocks;
}

# Whether the output is the one on the page.
sub shown
{
	my ($got, $wanted) = @_;
	my $pattern = join '.+', map { quotemeta } split /\xe2\x80\xa6/, $wanted, -1;

	return $got =~ /\A$pattern\z/s;
}

# [statement, its result on the page or undef] for each statement
sub _statements
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

# Runs a block in a session without a pause, like a user who pastes it.
sub run_sql
{
	my ($sql, $text) = @_;

	foreach my $each (_statements($text))
	{
		my ($statement, $wanted) = @$each;
		(my $name = $statement) =~ s/^--.*\n//mg;
		$name =~ s/\s+/ /g;
		$name =~ s/^ //;

		my $got = eval { $sql->run($statement) };
		$wanted = '' if ($wanted // '') eq '(0 rows)';
		ok(defined $got && (!defined $wanted || shown($got, $wanted)), $name)
		  or diag(defined $got ? "shown: $got\nwanted: $wanted" : $@);
	}
	return;
}

1;
