"""Faults by name, each of which can be injected while a workload runs.

    site = Site(directory, seed, **faults.options_for(names))
    record = faults.FAULTS['redis_kill9'].inject(site, random.Random(seed))

Class Fault describes the fields of a record. Faults are injected one at a time, in any order.
"""

from faults import combined, failover, lost_commits, network, nodes, pauses, postgres, promotion, redis_server
from faults.fault import Fault, NotDone

FAULTS = {fault.name: fault for module in (postgres, lost_commits, promotion, redis_server, failover, pauses, network, combined)
          for fault in module.FAULTS}

# Faults for sites with several Redis servers (nodes_site.py): layout -> name -> fault
NODES_FAULTS = {layout: {fault.name: fault for fault in (*postgres.FAULTS, *lost_commits.FAULTS, *promotion.FAULTS, *nodes.FAULTS)
                         if getattr(fault, 'layout', layout) == layout} for layout in ('cluster', 'shards')}


def one_of_each_kind(rng):
    """The names for a short run: draws one fault of each kind and keeps the order of the list."""
    kinds = {}
    for fault in FAULTS.values():
        kinds.setdefault(fault.kind(), []).append(fault.name)
    drawn = {rng.choice(names) for names in kinds.values()}
    return [name for name in FAULTS if name in drawn]


def options_for(names):
    """Options for a Site in which all these faults can be injected."""
    return {option: value for name in names for option, value in FAULTS[name].options.items()}


__all__ = ['FAULTS', 'NODES_FAULTS', 'Fault', 'NotDone', 'one_of_each_kind', 'options_for']
