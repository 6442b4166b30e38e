'use strict';
const { wrong } = require('./errors');

// What the promise becomes, or an error after that time.
function limited(promise, ms) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(wrong('TIMEOUT', `Redis did not answer in ${ms} ms`)), ms);
    promise.then(value => {
      clearTimeout(timer);
      resolve(value);
    }, error => {
      clearTimeout(timer);
      reject(error);
    });
  });
}

const sleep = ms => new Promise(resolve => { setTimeout(resolve, ms); });

module.exports = { limited, sleep };
