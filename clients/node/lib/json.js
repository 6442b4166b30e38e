'use strict';
// Parses JSON from PostgreSQL, whose numbers may have more digits than those of JavaScript.

const TOKEN = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?/g;
const LONG = /\d[\d.]{15}/;             // at least 16 characters: fewer digits are exact

const trimmed = text => (text.includes('.') ? text.replace(/\.?0+$/, '') : text);
const isExact = text => text.length < 16 || String(Number(text)) === trimmed(text);

// The value of a JSON text. A number that JavaScript would round becomes the string that PostgreSQL printed.
function parse(text) {
  if (!LONG.test(text)) return JSON.parse(text);
  return JSON.parse(text.replace(TOKEN, token => (token[0] === '"' || isExact(token) ? token : `"${token}"`)));
}

// The same, but every number becomes a string, for callers that know the types.
function parseTexts(text) {
  return JSON.parse(text.replace(TOKEN, token => (token[0] === '"' ? token : `"${token}"`)));
}

module.exports = { parse, parseTexts };
