# FenceTest/Page.pm
#    The blocks of a page in Markdown, and its SQL: runs it and compares what the page shows.
#
# A block of `sql` is run statement by statement. A line "--> …" is what the statement before it shows ("--> (0 rows)": nothing).
# An ellipsis in what is shown stands for anything.
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

# Whether that is what is shown.
sub shown
{
	my ($got, $wanted) = @_;
	my $pattern = join '.+', map { quotemeta } split /\xe2\x80\xa6/, $wanted, -1;

	return $got =~ /\A$pattern\z/s;
}

# [statement, what it shows or undef] of each
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

# Runs a block in a session, without a pause, as somebody who pastes it.
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
