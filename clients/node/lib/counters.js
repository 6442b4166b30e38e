'use strict';
// What reads were, by domain. Each is a counter that only goes up, and it costs an addition.

const READS = ['hit', 'local', 'miss', 'pending', 'unarmed', 'unavailable'];

const FAMILIES = {
  reads: ['pgcache_fence_client_reads_total', 'Reads by what they were answered from: hit and local are from the cache, the others'
    + ' from PostgreSQL', 'result'],
  puts: ['pgcache_fence_client_puts_total', 'Values put into Redis, by what Redis answered', 'result'],
  loads: ['pgcache_fence_client_loads_total', 'Queries that loaded what Redis did not have'],
  waits: ['pgcache_fence_client_waits_total', 'Pauses for another reader who was filling a value in'],
  checks: ['pgcache_fence_client_checks_total', 'Values kept in the process, by what the check said', 'result'],
  errors: ['pgcache_fence_client_redis_errors_total', 'Calls to Redis that failed or came too late'],
};

class Counters {
  #domains = new Map();

  // of: family, or family and result
  count(domain, of) {
    let counts = this.#domains.get(domain);
    if (!counts) this.#domains.set(domain, counts = Object.fromEntries(READS.map(result => [`reads ${result}`, 0])));
    counts[of] = (counts[of] || 0) + 1;
  }

  // { name, help, labels, value }, for whatever collects metrics.
  list() {
    const found = [];
    for (const [domain, counts] of this.#domains) {
      for (const [of, value] of Object.entries(counts)) {
        const [family, result] = of.split(' ');
        const [name, help] = FAMILIES[family];
        found.push({ name, help, labels: result ? { domain, result } : { domain }, value });
      }
    }
    return found;
  }

  // For people: { account: { reads: { hit: 3, ... }, loads: 1, ... } }
  summary() {
    const all = {};
    for (const [domain, counts] of this.#domains) {
      all[domain] = {};
      for (const [of, value] of Object.entries(counts)) {
        const [family, result] = of.split(' ');
        if (result) (all[domain][family] ??= {})[result] = value;
        else all[domain][family] = value;
      }
    }
    return all;
  }
}

// client: require('prom-client'). Makes counters that are filled when they are collected.
function prometheus(counters, client, registers) {
  return Object.values(FAMILIES).map(([name, help, label]) => new client.Counter({
    name, help, labelNames: ['domain', ...label ? [label] : []], ...registers ? { registers } : {},
    collect() {
      this.reset();
      for (const each of counters.list()) if (each.name === name) this.inc(each.labels, each.value);
    },
  }));
}

// meter: of @opentelemetry/api.
function openTelemetry(counters, meter) {
  for (const [name, description] of Object.values(FAMILIES)) {
    meter.createObservableCounter(name.replace(/_total$/, ''), { description }).addCallback(result => {
      for (const each of counters.list()) if (each.name === name) result.observe(each.value, each.labels);
    });
  }
}

module.exports = { Counters, prometheus, openTelemetry };
