"""Faults of several Redis servers (nodes_site.py): slots move, masters fail and come back.

Each fault ends when the keeper has granted every slot to the server that serves it.
"""

import time

from faults.fault import Fault, sleep, wait_for
from faults.pauses import stopped

HOT = 12                    # the slots to move are those of this many keys


class NodesFault(Fault):
    """layout: the sites that this fault is for, 'cluster' or 'shards'."""

    layout = 'cluster'

    def do(self, site, rng, record):
        site.wait_whole()
        self.disturb(site, rng, record)
        if site.layout == 'cluster':
            site.wait_healthy()
        site.wait_whole()

    def disturb(self, site, rng, record):
        raise NotImplementedError


class SlotsMove(NodesFault):
    name = 'slots_move'
    describe = 'slots of keys that are in use move to another master'

    def disturb(self, site, rng, record):
        before = site.owners()
        for slot in set(rng.sample(site.slots_of_keys(HOT), 5)):
            source = site.owner(slot)
            site.move_slot(slot, rng.choice([master for master in site.masters() if master is not source]))
        record['proof']['moved'] = site.owners() != before
        if not record['proof']['moved']:
            raise RuntimeError('no slot has moved')


class SlotsReturn(NodesFault):
    name = 'slots_return'
    describe = 'a slot of a key that is in use moves to another master, and back before the keeper has granted it there'

    def disturb(self, site, rng, record):
        for slot in set(rng.sample(site.slots_of_keys(HOT), 2)):
            source = site.owner(slot)
            site.move_slot(slot, rng.choice([master for master in site.masters() if master is not source]))
            sleep(rng, 0, 1)
            site.move_slot(slot, source)


class ClusterFailover(NodesFault):
    name = 'cluster_failover'
    describe = 'CLUSTER FAILOVER: a replica and its master swap roles'
    epoch = 'new'

    def disturb(self, site, rng, record):
        master = rng.choice(site.masters())
        replica = site.replica_of(master)
        replica.call('CLUSTER', 'FAILOVER')
        wait_for(lambda: replica.known() in site.owned(), 'the replica to take over')


class MasterKilled(NodesFault):
    """quick: the master restarts, empty, before a replica takes over."""

    epoch = 'new'

    def __init__(self, name, describe, quick):
        self.name, self.describe, self.quick = name, describe, quick

    def disturb(self, site, rng, record):
        master = rng.choice(site.masters())
        replica = site.replica_of(master)
        went = time.monotonic()
        master.kill9()
        if self.quick:
            sleep(rng, 0, 0.5)
        else:
            wait_for(lambda: replica.known() in site.owned(), 'the replica to take over', 60)
            sleep(rng, 0, 2 * site.lease)
        master.start()
        record['down'] = (went, time.monotonic())


class MasterPaused(NodesFault):
    name = 'master_pause_long'
    describe = 'a master is suspended (SIGSTOP), its replica takes over, and the old master continues where it was stopped'
    epoch = 'new'

    def disturb(self, site, rng, record):
        master = rng.choice(site.masters())
        replica = site.replica_of(master)
        with stopped(master.pid):
            wait_for(lambda: replica.call('ROLE')[0] == 'master', 'the replica to take over', 60)
            sleep(rng, 0, 2 * site.lease)
        wait_for(lambda: master.info('replication', 'role') == 'slave', 'the old master to give in', 60)


class MembersDistant(NodesFault):
    name = 'members_distant'
    describe = 'all members are 2 or 10 ms away from everybody, and the connections of all clients end once a second'
    options = {'proxy': True}

    def disturb(self, site, rng, record):
        record['proof']['killed'] = 0
        delay = rng.choice((0.001, 0.005))
        for proxy in site.proxies:
            proxy.treat('readers', rng.getrandbits(30), delay=delay)
        try:
            for _ in range(rng.randint(4, 8)):
                time.sleep(1)
                # not those between members, which know each other by the same addresses
                record['proof']['killed'] += sum(member.call('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes') for member in site.alive())
        finally:
            for proxy in site.proxies:
                proxy.treat('readers')


class ShardKilled(NodesFault):
    layout = 'shards'
    name = 'shard_kill9'
    describe = 'one of the shards is killed and comes back empty'
    epoch = 'new'

    def disturb(self, site, rng, record):
        server = rng.choice(site.members)
        went = time.monotonic()
        server.kill9()
        sleep(rng, *rng.choice(((0, 0.3), (0, 4 * site.lease))))
        server.start()
        record['down'] = (went, time.monotonic())
        site.wait_open(60, above=record['epoch_before'])


class ShardPaused(NodesFault):
    layout = 'shards'
    name = 'shard_pause_long'
    describe = 'one of the shards is suspended for two leases or more'

    def disturb(self, site, rng, record):
        with stopped(rng.choice(site.members).pid):
            sleep(rng, 2 * site.lease, 5 * site.lease)


class ShardFlushed(NodesFault):
    layout = 'shards'
    name = 'shard_flushall'
    describe = 'FLUSHALL on one of the shards, several times'
    epoch = 'same'

    def disturb(self, site, rng, record):
        for _ in range(rng.randint(2, 5)):
            rng.choice(site.members).call('FLUSHALL')
            sleep(rng, 0.05, 0.4)


FAULTS = [
    SlotsMove(),
    SlotsReturn(),
    ClusterFailover(),
    MasterKilled('master_kill9', 'a master of the cluster is killed, and its replica takes over', False),
    MasterKilled('master_kill9_quick', 'a master of the cluster is killed and restarts, empty, before its replica takes over', True),
    MasterPaused(),
    MembersDistant(),
    ShardKilled(),
    ShardPaused(),
    ShardFlushed(),
]
