"""Faults by name, each of which can be injected while a workload runs.

    site = Site(directory, seed, **faults.options_for(names))
    record = faults.FAULTS['redis_kill9'].inject(site, random.Random(seed))

What a record tells is described at Fault. Faults are injected one at a time; any sequence is possible.
"""

from faults import combined, failover, lost_commits, network, nodes, pauses, postgres, redis_server
from faults.fault import Fault, NotDone

FAULTS = {fault.name: fault for module in (postgres, lost_commits, redis_server, failover, pauses, network, combined)
          for fault in module.FAULTS}

# Where there are several Redis servers (nodes_site.py): layout -> name -> fault
NODES_FAULTS = {layout: {fault.name: fault for fault in (*postgres.FAULTS, *lost_commits.FAULTS, *nodes.FAULTS)
                         if getattr(fault, 'layout', layout) == layout} for layout in ('cluster', 'shards')}


def one_of_each_kind(rng):
    """Names, in the order of the list: a short run. Which one of a kind is drawn."""
    kinds = {}
    for fault in FAULTS.values():
        kinds.setdefault(fault.kind(), []).append(fault.name)
    drawn = {rng.choice(names) for names in kinds.values()}
    return [name for name in FAULTS if name in drawn]


def options_for(names):
    """Options of a Site in which all these can be injected."""
    return {option: value for name in names for option, value in FAULTS[name].options.items()}


__all__ = ['FAULTS', 'NODES_FAULTS', 'Fault', 'NotDone', 'one_of_each_kind', 'options_for']
