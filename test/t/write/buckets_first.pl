# Buckets: the first read of a row caches it. Its bucket is opened only after the commits that are under way, so the read has to
# wait for them, and for the courier, which tells Redis.

use strict;
use warnings;

use FenceTest;
use FenceTest::Session;
use Test::More;

my $rows = 40;
my $redis = FenceTest::Redis->start;
# a commit takes eight milliseconds
my $node = new_postgres('first', $redis, fsync => 'on', commit_delay => 8000, commit_siblings => 0, watch_buckets => 33554432);
my ($sql, $writer) = map { FenceTest::Session->open($node) } 1 .. 2;
my $count = sub { return $sql->run("SELECT count(*) FROM generate_series(1, $rows) g WHERE (fence.get('item', g::text)).status = 'hit'"); };

$sql->run(q(CREATE TABLE item (id int PRIMARY KEY, name text DEFAULT 'old', version bigint NOT NULL DEFAULT 0)));
$sql->run(q(INSERT INTO item SELECT g FROM generate_series(0, 100) g; SELECT fence.attach('item')));
poll(sub { $sql->run("SELECT status FROM fence.get('item', '100')") eq 'miss' }, 'item is announced');
# row 0 is in a closed bucket, so its commits have reserved nothing
$writer->begin(q(DO $$ BEGIN LOOP UPDATE item SET name = 'new' WHERE id = 0; COMMIT; END LOOP; END $$));
poll(sub { $sql->run('SELECT name FROM item WHERE id = 0') eq 'new' }, 'somebody commits all the time');
$sql->run("SELECT fence.read('item', '$_')") foreach 1 .. $rows;
$sql->run('SELECT pg_cancel_backend(' . $writer->pid . ')');
cmp_ok($count->(), '>', $rows / 2, 'most rows are cached after one read: ' . $count->());
no_reservations($node);

done_testing();
