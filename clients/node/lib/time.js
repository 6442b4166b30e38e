'use strict';
const { wrong } = require('./errors');

// All that waits equally long, the oldest first. They share a timer, because one for each would cost a hit more than its block does.
class Limit {
  #ms;
  #waiting = new Set();
  #timer = null;

  constructor(ms) {
    this.#ms = ms;
  }

  of(promise) {
    return new Promise((resolve, reject) => {
      const wait = { until: Date.now() + this.#ms, reject };
      this.#waiting.add(wait);
      this.#timer ??= setTimeout(() => this.#look(), this.#ms);
      promise.then(value => {
        this.#waiting.delete(wait);
        resolve(value);
      }, error => {
        this.#waiting.delete(wait);
        reject(error);
      });
    });
  }

  #look() {
    this.#timer = null;
    for (const wait of this.#waiting) {
      const left = wait.until - Date.now();
      if (left > 0) {
        this.#timer = setTimeout(() => this.#look(), left);
        return;
      }
      this.#waiting.delete(wait);
      wait.reject(wrong('TIMEOUT', `Redis did not answer in ${this.#ms} ms`));
    }
  }
}

const limits = new Map();               // milliseconds -> Limit

// What the promise becomes, or an error after that time.
function limited(promise, ms) {
  let limit = limits.get(ms);
  if (!limit) limits.set(ms, limit = new Limit(ms));
  return limit.of(promise);
}

const sleep = ms => new Promise(resolve => { setTimeout(resolve, ms); });

module.exports = { limited, sleep };
