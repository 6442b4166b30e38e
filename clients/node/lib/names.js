'use strict';
// Computes the names of fences like fence.fence_key, without asking PostgreSQL. If this file is not sure of the canonical text
// of a value, it returns null, and fence.fence_key must be asked.
const { wrong } = require('./errors');

const KEY_BYTES = 2000;                 // as in PostgreSQL: percent-encoded

const PLAIN = /^[A-Za-z0-9._~-]+$/;
const INTEGER = /^(?:0|-?[1-9]\d{0,18})$/;
const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;
const RANGES = {
  int2: [-32768n, 32767n], int4: [-2147483648n, 2147483647n], int8: [-(2n ** 63n), 2n ** 63n - 1n],
};

// Percent-encoded as in RFC 3986; the empty text is %00.
function encode(text) {
  if (PLAIN.test(text)) return text;
  if (text === '') return '%00';
  if (text.includes('\0')) throw wrong('KEY', 'a key has the character \\0, which no text of PostgreSQL can have');
  try {
    return encodeURIComponent(text).replace(/[!'()*]/g, c => '%' + c.charCodeAt(0).toString(16).toUpperCase());
  } catch (error) {
    throw wrong('KEY', `a key is no text: it has half a character (${JSON.stringify(text)})`, error);
  }
}

const decode = part => (part === '%00' ? '' : decodeURIComponent(part));

function integerText(value, type) {
  if (typeof value === 'number') {
    if (!Number.isSafeInteger(value)) {
      throw wrong('KEY', `the number ${value} names no row for sure: pass a bigint or a string`);
    }
    if (type === 'int8') return String(value);
  } else if (typeof value === 'string' ? !INTEGER.test(value) : typeof value !== 'bigint') {
    return null;
  }
  const [least, most] = RANGES[type];
  const number = typeof value === 'string' ? BigInt(value) : value;
  return number >= least && number <= most ? String(number) : null;     // PostgreSQL tells what is wrong with it
}

// How many characters PostgreSQL counts.
const characters = text => [...text].length;

const fits = (text, limit) => limit === null || text.length <= limit || characters(text) <= limit;

function textOf(value) {
  if (typeof value === 'number') {
    if (!Number.isSafeInteger(value)) throw wrong('KEY', `the number ${value} names no text for sure: pass a string`);
    return String(value);
  }
  return typeof value === 'string' || typeof value === 'bigint' ? String(value) : null;
}

// By the name of a type of PostgreSQL: the canonical text, or null.
const CANONICAL = {
  int2: value => integerText(value, 'int2'),
  int4: value => integerText(value, 'int4'),
  int8: value => integerText(value, 'int8'),
  numeric: value => (typeof value === 'bigint' || Number.isSafeInteger(value) ? String(value) : null),
  text: textOf,
  varchar(value, limit) {
    const text = textOf(value);
    return text !== null && fits(text, limit) ? text : null;
  },
  bpchar(value, limit) {
    const text = textOf(value)?.replace(/ +$/, '') ?? null;
    return text !== null && fits(text, limit) ? text : null;
  },
  uuid: value => (typeof value === 'string' && UUID.test(value) ? value.toLowerCase() : null),
  bool: value => (typeof value === 'boolean' ? (value ? 't' : 'f') : null),
  bytea: value => (value instanceof Uint8Array ? '\\x' + Buffer.from(value).toString('hex') : null),
  timestamptz(value) {
    if (!(value instanceof Date)) return null;
    const year = value.getUTCFullYear();                // NaN of an invalid one
    return year >= 1 && year <= 9999 ? value.toISOString().replace(/\.?0*Z$/, '+00:00') : null;
  },
};

// The text of a value that PostgreSQL must convert.
function inputText(value) {
  switch (typeof value) {
    case 'string': return value;
    case 'number':
    case 'bigint':
    case 'boolean': return String(value);
    default:
  }
  if (value instanceof Uint8Array) return '\\x' + Buffer.from(value).toString('hex');
  if (value instanceof Date && !Number.isNaN(value.getTime())) {
    throw wrong('KEY', 'a Date names no value of this key column for sure, because it depends on a time zone: pass a string');
  }
  throw wrong('KEY', `a key value is ${value === null || value === undefined ? value : `a ${typeof value}`}:`
    + ' pass a string, number, bigint, boolean, Date or Buffer');
}

// The values of a key as an array. Checks their number.
function valuesOf(place, key) {
  const values = Array.isArray(key) ? key : [key];
  const wanted = place.columns.length;
  if (values.length === 0 || (wanted > 0 && values.length !== wanted)) {
    throw wrong('KEY', `the key of domain "${place.domain}" is (${place.columns.map(c => c.name).join(', ')});`
      + ` ${values.length} values were given: pass them as an array in that order`);
  }
  return values;
}

// The encoded parts of a key, or null if PostgreSQL must be asked.
function partsOf(place, values) {
  const parts = new Array(values.length);
  for (let n = 0; n < values.length; n++) {
    const column = place.columns[n];
    const canonical = column ? column.canonical : textOf;
    const text = canonical ? canonical(values[n], column?.limit ?? null) : null;
    if (text === null) return null;
    parts[n] = encode(text);
  }
  return parts;
}

function nameOfParts(place, parts) {
  const key = parts.length === 1 ? parts[0] : parts.join(',');
  if (key.length > KEY_BYTES) {
    throw wrong('KEY', `a key of domain "${place.domain}" has ${key.length} bytes, percent-encoded; the limit is ${KEY_BYTES}`);
  }
  if (!place.tag) return `${place.prefix}:{${key}}`;
  return `${place.prefix}:{${place.tag.map(piece => (typeof piece === 'string' ? piece : parts[piece])).join('')}}:${key}`;
}

// A tag such as room/{room_id}: literal texts, and numbers of key columns.
function piecesOf(tag, columns) {
  return tag.match(/{[^}]+}|[^{]+/g)
    .map(piece => (piece[0] === '{' ? columns.findIndex(c => c.name === piece.slice(1, -1)) : piece));
}

// The canonical values that a fence's name has, as texts.
function textsOfName(place, fence) {
  const key = place.tag ? fence.slice(fence.indexOf('}:') + 2) : fence.slice(fence.indexOf('{') + 1, -1);
  return key.split(',').map(decode);
}

// A value beside the fence.
const beside = (fence, suffix) => `${fence.replace(':f:', ':v:')}:${suffix}`;

// A name of SQL.
const quoted = name => `"${name.replace(/"/g, '""')}"`;

// What a record of this fence or value names as its key (rule K in doc/protocol.md).
const keyOf = name => name.slice(name.indexOf(':{') + 1);

// What a cluster makes the slot of: the text between the first braces.
const slotText = name => name.slice(name.indexOf('{') + 1, name.indexOf('}'));

module.exports = {
  CANONICAL, encode, inputText, valuesOf, partsOf, nameOfParts, piecesOf, textsOfName, beside, keyOf, quoted, slotText,
};
