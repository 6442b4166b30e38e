"""A Redis replica replaces the master and lacks the last writes that the master had acknowledged.

To cut a replica's link, REPLICAOF points it to a port where no server listens. Then bytes that the master has sent and the
replica has not read are lost too. After a SIGSTOP the replica would still read them.
"""

import time

from faults.fault import Fault, new_mark, sleep, wait_for

NOBODY = 1                  # a port where no server listens


class Failover(Fault):
    epoch = 'new'

    def cut_off(self, site, rng, record):
        """Cuts the link of a replica, and writes a key that it will lack. Returns the replica."""
        replica = site.ensure_replica()
        record['injected'] = time.monotonic()
        replica.call('REPLICAOF', '127.0.0.1', NOBODY)
        key = 'fault:' + new_mark(site, 'lost')
        site.redis.call('SET', key, 1, 'EX', 600)
        sleep(rng, 0.1, 1.5 * site.lease)
        record['proof']['on_master'] = site.redis.call('EXISTS', key)
        record['proof']['key'] = key
        return replica

    def promote(self, replica, record):
        replica.call('REPLICAOF', 'NO', 'ONE')
        record['proof']['on_replica'] = replica.call('EXISTS', record['proof']['key'])


class ReplicaCutOff(Failover):
    name = 'replica_cut_off'
    describe = 'a replica goes on answering while its link to the master is cut'
    epoch = 'same'

    def do(self, site, rng, record):
        replica = self.cut_off(site, rng, record)
        record['proof']['on_replica'] = replica.call('EXISTS', record['proof']['key'])
        replica.call('REPLICAOF', '127.0.0.1', site.redis.port)


class LossyFailover(Failover):
    name = 'failover_lossy'
    describe = 'the master is killed, a replica that lacks its newest writes is promoted'

    def do(self, site, rng, record):
        replica = self.cut_off(site, rng, record)
        former = site.redis
        went = time.monotonic()
        if rng.random() < 0.5:
            former.kill9()
            sleep(rng, 0, site.lease)
        self.promote(replica, record)
        site.redirect(replica, keep_old=False)
        record['down'] = (went, time.monotonic())
        former.remove()


class OldMasterAlive(Failover):
    """The old master stays alive. again: it becomes the master again. resync: it is a replica of the new master in between."""

    def __init__(self, name, describe, again=False, resync=False):
        self.name, self.describe, self.again, self.resync = name, describe, again, resync

    def do(self, site, rng, record):
        replica = self.cut_off(site, rng, record)
        former = site.redis
        proof = record['proof']
        self.promote(replica, record)
        before = site.epoch()
        site.redirect(replica, keep_old=True)
        proof['second_epoch'] = site.wait_open(90, above=before)
        # longer than a lease, so that the old master answers "unarmed" to its readers by then
        sleep(rng, 1.2 * site.lease, 2 * site.lease)
        proof['old_alive'] = former.running() and former.call('PING')
        proof['old_role'] = former.info('replication', 'role')
        if self.again:
            if self.resync:
                self.resynchronize(former, replica, record)
            before = site.epoch()
            site.redirect(former, keep_old=True)
            proof['third_epoch'] = site.wait_open(90, above=before)
            sleep(rng, 1.2 * site.lease, 2 * site.lease)
        site.forget_old_redis()

    def resynchronize(self, former, master, record):
        run = former.identity()
        former.call('REPLICAOF', '127.0.0.1', master.port)
        wait_for(lambda: former.info('replication', 'master_link_status') == 'up', 'the old master to follow')
        former.call('REPLICAOF', 'NO', 'ONE')
        record['proof']['same_process'] = former.identity() == run


FAULTS = [
    ReplicaCutOff(),
    LossyFailover(),
    OldMasterAlive('old_master_alive', 'a lagging replica is promoted; the old master lives and readers stay connected to it'),
    OldMasterAlive('old_master_again', 'the same, and then the old master, with its old data, becomes the master again', again=True),
    OldMasterAlive('old_master_resynced', 'the same, but in between the old master was a replica of the new one',
                   again=True, resync=True),
]
