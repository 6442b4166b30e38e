'use strict';
// The errors of the library. Programs use code; the message tells people what to do.

class FenceError extends Error {
  constructor(code, message, cause) {
    super(message, cause === undefined ? undefined : { cause });
    this.name = 'FenceError';
    this.code = code;
  }
}

const wrong = (code, message, cause) => new FenceError(`ERR_FENCE_${code}`, message, cause);

module.exports = { FenceError, wrong };
