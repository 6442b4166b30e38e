'use strict';
const { Fences } = require('./lib/fences');
const { FenceError } = require('./lib/errors');

module.exports = { Fences, FenceError };
