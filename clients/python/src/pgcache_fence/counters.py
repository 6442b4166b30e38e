"""Counters of reads, for prometheus_client, OpenTelemetry, or callers of snapshot().

If Python runs without a global interpreter lock, threads may lose some counts. Nothing else depends on them.
"""

from typing import Any, Dict, Iterable, Iterator, Tuple

READS = {'hit': 'from Redis', 'local': 'from this process, after a check', 'database': 'from PostgreSQL'}
EVENTS = {'stored': 'values put', 'refused': 'puts that Redis refused: a write was faster, or the server that was read is not the primary any more',
          'kept_back': 'values that may not be put: the snapshot may be older than the permit, or there is no row version',
          'waited': 'waits for another reader to put the value', 'unarmed': 'answers without a permit',
          'pending': 'answers while a write was on its way', 'unavailable': 'questions that Redis did not answer'}


class Counters:
    """reads: (domain, source) -> number. events: (domain, event) -> number."""

    def __init__(self) -> None:
        self.reads: Dict[Tuple[str, str], int] = {}
        self.events: Dict[Tuple[str, str], int] = {}

    def read(self, domain: str, source: str, n: int = 1) -> None:
        self.reads[domain, source] = self.reads.get((domain, source), 0) + n

    def event(self, domain: str, event: str) -> None:
        self.events[domain, event] = self.events.get((domain, event), 0) + 1

    def snapshot(self) -> Dict[str, Dict[str, Dict[str, int]]]:
        """{'reads': {domain: {source: number}}, 'events': {domain: {event: number}}}"""
        found: Dict[str, Dict[str, Dict[str, int]]] = {'reads': {}, 'events': {}}
        for kind, counts in (('reads', self.reads), ('events', self.events)):
            for (domain, what), n in list(counts.items()):
                found[kind].setdefault(domain, {})[what] = n
        return found


class PrometheusCollector:
    """prometheus_client.REGISTRY.register(PrometheusCollector(fences.counters))"""

    def __init__(self, counters: Counters) -> None:
        self.counters = counters

    def describe(self) -> Iterable[Any]:
        return []

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily
        for name, text, label, counts in (
                ('reads', 'Strong reads, by where the value came from', 'source', self.counters.reads),
                ('events', 'What happened beside reads', 'event', self.counters.events)):
            family = CounterMetricFamily('pgcache_fence_client_' + name, text, labels=['domain', label])
            for labels, n in list(counts.items()):
                family.add_metric(labels, n)
            yield family


def observe(counters: Counters, meter: Any) -> None:
    """Registers the counters with a meter of OpenTelemetry: observe(fences.counters, metrics.get_meter('app'))."""
    from opentelemetry.metrics import Observation

    def callback(counts: Dict[Tuple[str, str], int], label: str) -> Any:
        return lambda options: [Observation(n, {'domain': domain, label: what}) for (domain, what), n in list(counts.items())]

    meter.create_observable_counter('pgcache_fence.client.reads', callbacks=[callback(counters.reads, 'source')],
                                    unit='{read}', description='Strong reads, by where the value came from')
    meter.create_observable_counter('pgcache_fence.client.events', callbacks=[callback(counters.events, 'event')],
                                    unit='{event}', description='What happened beside reads')
