'use strict';
// Counters of reads for each domain, which only go up. The Python package has the same names.

const FAMILIES = [
  ['reads', 'Strong reads, by where the value came from: hit, local (this process, after a check) or database', 'source'],
  ['events', 'What happened beside reads: pending, unarmed and unavailable say why Redis gave no permit, stored and refused what'
    + ' became of puts; kept_back: there was no row version, so nothing was put', 'event'],
];

class Counters {
  #counts = { reads: new Map(), events: new Map() };    // domain -> { source or event: number }

  #count(family, domain, what) {
    let counts = this.#counts[family].get(domain);
    if (!counts) this.#counts[family].set(domain, counts = Object.create(null));
    counts[what] = (counts[what] ?? 0) + 1;
  }

  // state is hit or local, or the reason why the value is from PostgreSQL: miss, pending, unarmed, unavailable.
  read(domain, state) {
    const isCached = state === 'hit' || state === 'local';
    this.#count('reads', domain, isCached ? state : 'database');
    if (!isCached && state !== 'miss') this.#count('events', domain, state);
  }

  event(domain, event) {
    this.#count('events', domain, event);
  }

  // { reads: { domain: { source: number } }, events: { domain: { event: number } } }
  snapshot() {
    const copy = family => Object.fromEntries([...this.#counts[family]].map(([domain, counts]) => [domain, { ...counts }]));
    return { reads: copy('reads'), events: copy('events') };
  }

  // [labels, number], of one family.
  samples([family, , label]) {
    return [...this.#counts[family]].flatMap(([domain, counts]) =>
      Object.entries(counts).map(([what, number]) => [{ domain, [label]: what }, number]));
  }
}

// client: require('prom-client'). The counters are filled when they are collected.
function prometheus(counters, client, register) {
  return FAMILIES.map(family => new client.Counter({
    name: `pgcache_fence_client_${family[0]}_total`, help: family[1], labelNames: ['domain', family[2]],
    ...register ? { registers: [register] } : {},
    collect() {
      this.reset();
      for (const [labels, number] of counters.samples(family)) this.inc(labels, number);
    },
  }));
}

// meter: of @opentelemetry/api.
function openTelemetry(counters, meter) {
  for (const family of FAMILIES) {
    meter.createObservableCounter(`pgcache_fence.client.${family[0]}`, { description: family[1] }).addCallback(result => {
      for (const [labels, number] of counters.samples(family)) result.observe(number, labels);
    });
  }
}

module.exports = { Counters, prometheus, openTelemetry };
