# Buckets: a transaction that waits in its commit looks at the bits again. One Redis process holds up the commit, while a reader
# caches another of its rows in another process.

use strict;
use warnings;

use FenceTest;
use FenceTest::Session;
use Test::More;

my @servers = map { FenceTest::Redis->start } 1 .. 2;
my $node = new_postgres('look', undef,
	redis_url     => join(', ', map { $_->url } @servers),
	watch_buckets => 1 << 20,
	reserve       => 'commit',
	lease         => '30s',
	timeout       => '10s');
my ($sql, $writer) = map { FenceTest::Session->open($node) } 1 .. 2;

sub status { my ($key) = @_; return $sql->run("SELECT status FROM fence.get('item', '$key')"); }
sub name_of { my ($key) = @_; return $sql->run("SELECT fence.read('item', '$key')->>'name'"); }
sub warm { my ($key) = @_; return poll(sub { name_of($key); status($key) eq 'hit' }, "row $key is cached"); }

$sql->run(q(CREATE TABLE item (id int PRIMARY KEY, name text DEFAULT 'old', version bigint NOT NULL DEFAULT 0)));
$sql->run(q(INSERT INTO item SELECT g FROM generate_series(1, 100) g; SELECT fence.attach('item')));
# two rows of each process; who looks at one opens its bucket
my ($held_up, $other, @looked_at) = map {
	$sql->run("SELECT $_->[0](id) FROM item WHERE fence.key_slot(fence.fence_key('item', id::text)) * 2 / 16384 = $_->[1]")
  } [ 'min', 0 ], [ 'min', 1 ], [ 'max', 0 ], [ 'max', 1 ];
poll(sub { status($_) eq 'miss' }, 'item is announced') foreach @looked_at;

warm($held_up);
$writer->run($_) foreach 'BEGIN', "UPDATE item SET name = 'new' WHERE id IN ($held_up, $other)";
$servers[0]->pause;
$writer->begin('COMMIT');
my $waits = q(SELECT wait_event_type = 'Extension' FROM pg_stat_activity WHERE pid = ) . $writer->pid;
poll(sub { $sql->run($waits) eq 't' }, 'the commit waits for the reservation of the cached row');
warm($other);
is(name_of($other), 'old', 'meanwhile a reader caches a row that the commit has found in a closed bucket');
$servers[0]->resume;
$writer->wait;
$writer->take;
isnt(status($other), 'hit', 'the commit has looked again, and reserved it');
is(join(' ', map { name_of($_) } $held_up, $other), 'new new', 'both new values are read');
no_reservations($node);

done_testing();
