'use strict';
// Keeps values in the process, each with the token and version under which it was read. A read uses a value only after a check
// that began after the read.

class Local {
  #entries = new Map();                 // name -> { token, version, payload }; the one used last is last
  #max;
  #maxBytes;
  #bytes = 0;

  constructor({ max = 10000, maxBytes = 64 * 1024 * 1024 } = {}) {
    this.#max = max;
    this.#maxBytes = maxBytes;
  }

  get(name) {
    const entry = this.#entries.get(name);
    if (!entry) return undefined;
    this.#entries.delete(name);
    this.#entries.set(name, entry);
    return entry;
  }

  set(name, entry) {
    this.delete(name);
    if (this.#max < 1 || entry.payload.length > this.#maxBytes) return;
    this.#entries.set(name, entry);
    this.#bytes += entry.payload.length;
    while (this.#entries.size > this.#max || this.#bytes > this.#maxBytes) this.delete(this.#entries.keys().next().value);
  }

  delete(name) {
    this.#bytes -= this.#entries.get(name)?.payload.length ?? 0;
    this.#entries.delete(name);
  }

  get size() {
    return this.#entries.size;
  }
}

module.exports = { Local };
