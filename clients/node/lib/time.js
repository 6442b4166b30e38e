'use strict';
const { wrong } = require('./errors');

const TICKS = 4;                         // of a timer in the time that is waited: an error comes at most one of them late

// All waits of the same length, the oldest first. They share one timer, and none of them asks for the time. On some machines a
// timer, or asking for the time, would cost a hit as much as its block does.
class Limit {
  #ms;
  #now = 0;                             // in ticks
  #waiting = new Set();
  #timer = null;

  constructor(ms) {
    this.#ms = ms;
  }

  of(promise) {
    return new Promise((resolve, reject) => {
      const wait = { until: this.#now + TICKS + 1, reject };
      this.#waiting.add(wait);
      this.#timer ??= setInterval(() => this.#tick(), this.#ms / TICKS);
      promise.then(value => {
        this.#waiting.delete(wait);
        resolve(value);
      }, error => {
        this.#waiting.delete(wait);
        reject(error);
      });
    });
  }

  #tick() {
    this.#now++;
    for (const wait of this.#waiting) {
      if (wait.until > this.#now) return;
      this.#waiting.delete(wait);
      wait.reject(wrong('TIMEOUT', `Redis did not answer in ${this.#ms} ms`));
    }
    clearInterval(this.#timer);
    this.#timer = null;
  }
}

const limits = new Map();               // milliseconds -> Limit

// Resolves like the promise, or rejects after that time.
function limited(promise, ms) {
  let limit = limits.get(ms);
  if (!limit) limits.set(ms, limit = new Limit(ms));
  return limit.of(promise);
}

const sleep = ms => new Promise(resolve => { setTimeout(resolve, ms); });

module.exports = { limited, sleep };
