"""A site with several Redis servers: a cluster of masters with replicas, or client-side shards. fence_site.py has one server.

    site = NodesSite('/tmp/x', seed=1, layout='cluster')        # or 'shards'

Owns: the members. Readers get the addresses of all members at the start and no changes later. In a cluster MOVED and ASK
redirect them; shards do not move.
"""

import itertools
import os

import redis

from fence_site import Site
from proxy import Proxy
from servers import RedisServer, wait_for

MASTERS = 3
SLOTS = 16384


class NodesSite(Site):
    def __init__(self, directory, seed, layout, **options):
        super().__init__(directory, seed, **options)
        self.layout = layout
        self.members = []
        self.proxies = []               # before the members of a cluster, for faults of the way to them

    def start_redis(self):
        if self.layout == 'shards':
            self.members = [self.new_redis() for _ in range(MASTERS)]
            for member in self.members:
                member.start()
        else:
            self.form_cluster()

    def stop(self):
        super().stop()
        for member in self.members:
            member.stop()
        for proxy in self.proxies:
            proxy.stop()

    def redis_address(self):
        addresses = [member.socket if self.layout == 'shards' else '127.0.0.1:%d' % member.known()
                     for member in self.members]
        return self.layout + ' ' + ','.join(addresses)

    def extension_url(self):
        if self.layout == 'shards':
            return ','.join(member.url() for member in self.members)
        return 'redis+cluster://' + ','.join('127.0.0.1:%d' % member.known() for member in self.members[:MASTERS])

    def whole(self):
        """Whether the keeper has granted every slot to the server that serves it, and fences are OPEN."""
        if self.state()[0] != 'OPEN':
            return False
        granted = {int(port): slots for port, slots in self.psql(
            r"SELECT substring(address FROM '(\d+)$'), slots FROM fence.nodes WHERE slots > 0")} \
            if self.layout == 'cluster' else None
        if granted is None:
            return self.psql('SELECT count(*), sum(slots) FROM fence.nodes WHERE slots > 0') == [(MASTERS, SLOTS)]
        return granted == self.owned()

    def wait_whole(self, seconds=90):
        wait_for(self.whole, 'every slot to be granted where it is', seconds, pause=0.05)

    # ------------------------------------------------------------------------------------------------------------------
    # A cluster
    # ------------------------------------------------------------------------------------------------------------------

    def form_cluster(self):
        for number in range(2 * MASTERS):
            config = ['cluster-enabled yes', 'cluster-node-timeout 2000', 'cluster-replica-validity-factor 0',
                      *self.redis_config]
            member = RedisServer(self.name('redis'), config)
            if self.with_proxy:
                self.proxies.append(Proxy(member.socket, os.path.join(self.directory, 'proxy.log')))
                member.announced = self.proxies[-1].readers
            member.start()
            member.call('CLUSTER', 'SET-CONFIG-EPOCH', number + 1)
            self.members.append(member)
        masters, replicas = self.members[:MASTERS], self.members[MASTERS:]
        for n, master in enumerate(masters):
            master.call('CLUSTER', 'ADDSLOTSRANGE', SLOTS * n // MASTERS, SLOTS * (n + 1) // MASTERS - 1)
        for member in self.members[1:]:
            self.members[0].call('CLUSTER', 'MEET', '127.0.0.1', member.port, member.bus)
        wait_for(lambda: all(self.knows_all(member) for member in self.members), 'the members to meet')
        for replica, master in zip(replicas, masters):
            replica.call('CLUSTER', 'REPLICATE', self.id_of(master))
        self.wait_healthy()

    def knows_all(self, member):
        lines = nodes(member)
        return len(lines) == len(self.members) and not any('handshake' in line for line in lines)

    @staticmethod
    def id_of(member):
        return member.call('CLUSTER', 'MYID')

    def alive(self):
        return [member for member in self.members if member.running()]

    def at_port(self, port):
        return next(member for member in self.members if member.known() == port)

    def owners(self):
        """Ranges of slots (first, last, member) as the first member that answers reports them."""
        for member in self.alive():
            try:
                return [(first, last, self.at_port(master[1]))
                        for first, last, master, *_ in member.call('CLUSTER', 'SLOTS')]
            except redis.RedisError:
                continue
        raise RuntimeError('no member of the cluster answers')

    def owned(self):
        """port -> number of slots that the member there owns."""
        found = {}
        for first, last, member in self.owners():
            found[member.known()] = found.get(member.known(), 0) + last - first + 1
        return found

    def masters(self):
        """The members that own slots."""
        return [self.at_port(port) for port in sorted(self.owned())]

    def owner(self, slot):
        return next(member for first, last, member in self.owners() if first <= slot <= last)

    def replica_of(self, master):
        for member in self.alive():
            if member.info('replication', 'role') == 'slave' and \
                    int(member.info('replication', 'master_port')) == master.known():
                return member
        return None

    def is_healthy(self):
        """Whether all living members report cluster_state:ok and the same slots, and replicas follow their masters."""
        views = set()
        for member in self.alive():
            try:
                if 'cluster_state:ok' not in text_of(member.call('CLUSTER', 'INFO')):
                    return False
                if member.info('replication', 'role') == 'slave' and \
                        member.info('replication', 'master_link_status') != 'up':
                    return False
                views.add(tuple(sorted((first, last, master[1])
                                       for first, last, master, *_ in member.call('CLUSTER', 'SLOTS'))))
            except redis.RedisError:
                return False
        return len(views) == 1

    def wait_healthy(self, seconds=60):
        wait_for(self.is_healthy, 'the cluster to be whole', seconds, pause=0.05)

    def slots_of_keys(self, keys):
        """The slots of the workload's keys 1 .. keys. The lower a key, the hotter it is."""
        return [slot for slot, in self.psql("SELECT fence.key_slot(fence.fence_key('item', n::text)) "
                                            "FROM generate_series(1, %s) n ORDER BY n", (keys,))]

    def move_slot(self, slot, target):
        """Moves a slot as redis-cli does, with MIGRATE for one key after the other, while both masters serve clients."""
        source = self.owner(slot)
        if source is target:
            return
        target.call('CLUSTER', 'SETSLOT', slot, 'IMPORTING', self.id_of(source))
        source.call('CLUSTER', 'SETSLOT', slot, 'MIGRATING', self.id_of(target))
        for key in itertools.chain.from_iterable(iter(lambda: source.call('CLUSTER', 'GETKEYSINSLOT', slot, 10), [])):
            source.call('MIGRATE', '127.0.0.1', target.port, key, 0, 5000, 'REPLACE')
        for member in [target, source, *(m for m in self.masters() if m not in (target, source))]:
            member.call('CLUSTER', 'SETSLOT', slot, 'NODE', self.id_of(target))


def text_of(answer):
    """The reply to CLUSTER INFO or NODES as text. Newer versions of redis-py return it parsed."""
    return '\n'.join('%s:%s' % item for item in answer.items()) if isinstance(answer, dict) else answer


def nodes(member):
    return text_of(member.call('CLUSTER', 'NODES')).splitlines()
