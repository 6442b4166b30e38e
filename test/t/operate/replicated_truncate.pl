# A TRUNCATE of single partitions, applied by logical replication: no trigger, no hook, and still nothing that was
# cached before is served.

use strict;
use warnings;

use FenceTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $redis = FenceTest::Redis->start;
my $publisher = new_postgres('publisher', $redis, preload => 0, extension => 0, init => { allows_streaming => 'logical' });
my $subscriber = new_postgres('subscriber', $redis, lease => '1500ms', max_worker_processes => 16);
my $from = $publisher->connstr . ' dbname=postgres';
my $table = 'CREATE TABLE parts (id int PRIMARY KEY, name text%s) PARTITION BY RANGE (id);
	CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (1) TO (10);
	CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (10) TO (1000) PARTITION BY RANGE (id);
	CREATE TABLE parts_2_1 PARTITION OF parts_2 FOR VALUES FROM (10) TO (100);
	CREATE TABLE free (id int PRIMARY KEY, name text%s)';

sub status { my ($key) = @_; return $subscriber->safe_psql('postgres', "SELECT status FROM fence.get('parts', '$key')"); }
sub change { $publisher->safe_psql('postgres', $_[0]); $publisher->wait_for_catchup('sub'); return; }

sub make_cached
{
	my (@keys) = @_;

	poll(
		sub {
			$subscriber->safe_psql('postgres', join '; ', map { "SELECT fence.read('parts', '$_')" } @keys);
			return !grep { status($_) ne 'hit' } @keys;
		},
		'the rows are cached');
	return;
}

$publisher->safe_psql('postgres', sprintf($table, '', '') . "; INSERT INTO parts SELECT g, 'old' FROM generate_series(1, 15) g;
	INSERT INTO free VALUES (1, 'old'); CREATE PUBLICATION pub FOR ALL TABLES");
$subscriber->safe_psql('postgres', sprintf($table, ', version bigint NOT NULL DEFAULT 0', '') . "; SELECT fence.attach('parts')");
$subscriber->safe_psql('postgres', "CREATE SUBSCRIPTION sub CONNECTION '$from' PUBLICATION pub");
$subscriber->wait_for_subscription_sync($publisher, 'sub');
no_reservations($subscriber);

make_cached(1, 15);
change('TRUNCATE free');
is(status(1), 'hit', 'TRUNCATE of a table that is not fenced changes nothing');
change('TRUNCATE parts_1');
isnt(status($_), 'hit', "TRUNCATE of a partition: $_ is not served") foreach 1, 15;
is($subscriber->safe_psql('postgres', "SELECT fence.read('parts', '1') IS NULL, fence.read('parts', '15') ->> 'name'"), 't|old', 'what is read is true');

change("INSERT INTO parts VALUES (1, 'new')");
make_cached(1, 15);
change('BEGIN; TRUNCATE parts_2_1; UPDATE parts SET name = \'newer\' WHERE id = 1; COMMIT');
isnt(status($_), 'hit', "TRUNCATE of a partition's partition beside a row: $_ is not served") foreach 1, 15;

change("INSERT INTO parts VALUES (15, 'again')");
make_cached(1, 15);
change('BEGIN; SAVEPOINT a; TRUNCATE parts_2_1, parts_1; ROLLBACK TO a; UPDATE free SET name = name; COMMIT');
is(status($_), 'hit', "rolled back: $_ is still a hit") foreach 1, 15;
no_reservations($subscriber);

done_testing();
