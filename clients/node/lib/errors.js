'use strict';
// Errors say what to do. code is for programs, the message for people.

class FenceError extends Error {
  constructor(code, message, cause) {
    super(message, cause === undefined ? undefined : { cause });
    this.name = 'FenceError';
    this.code = code;
  }
}

const wrong = (code, message, cause) => new FenceError(`ERR_FENCE_${code}`, message, cause);

module.exports = { FenceError, wrong };
