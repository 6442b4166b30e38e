'use strict';
// Parses JSON from PostgreSQL, whose numbers may have more digits than those of JavaScript.

const TOKEN = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?/g;
const EXACT = 15;                       // so many digits are always exact
const LONG = /[\d.]{16}/;

// Whether the text may have a number of more characters. Such a number covers at least one of the places at which this looks.
function mayRound(text) {
  for (let n = EXACT; n < text.length; n += EXACT + 1) {
    const code = text.charCodeAt(n);
    if (code >= 46 && code <= 57 && LONG.test(text.slice(n - EXACT, n + EXACT + 1))) return true;      // . / 0 to 9
  }
  return false;
}

const trimmed = text => (text.includes('.') ? text.replace(/\.?0+$/, '') : text);
const isExact = text => text.length <= EXACT || String(Number(text)) === trimmed(text);

// The value of a JSON text. A number that JavaScript would round becomes the string that PostgreSQL printed.
function parse(text) {
  if (!mayRound(text)) return JSON.parse(text);
  return JSON.parse(text.replace(TOKEN, token => (token[0] === '"' || isExact(token) ? token : `"${token}"`)));
}

// The same, but every number becomes a string, for callers that know the types.
function parseTexts(text) {
  return JSON.parse(text.replace(TOKEN, token => (token[0] === '"' ? token : `"${token}"`)));
}

module.exports = { parse, parseTexts };
