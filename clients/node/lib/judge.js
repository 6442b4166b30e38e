'use strict';
// Decides what record and permit mean. The permit came after the record, from the same process. So a record that begins with
// the permit's token is the newest committed version (doc/protocol.md, "Reading"), of the key that it names (rule K).

const { keyOf } = require('./names');

const tokenOf = permit => permit.slice(0, Math.max(0, permit.indexOf(' ')));

// What Redis has told as a permit. Its token is '' if Redis gave none.
function permitOf(text) {
  const token = tokenOf(text);
  return { text, token, head: `${token} ` };
}

// Whether the header names the key of this fence or value. blank: where the word behind the version begins. A mark names none.
function isOf(record, blank, name) {
  const newline = record.indexOf('\n', blank);
  if (newline < 0) return true;
  const key = keyOf(name);
  const at = newline - key.length;
  return at >= blank && record.startsWith(key, at) && record[at - 1] === ' ';
}

// { state: 'hit', token, version, payload }, { state: 'miss', permit } or { state: 'unarmed' }; { state: 'foreign' } if the record is of
// another name. fence: the name of the record. beside: the name and the record of the value beside the fence, if that is read.
function judge(record, { text, token, head }, fence, beside) {
  if (token === '') return { state: 'unarmed' };
  if (record !== null && record.startsWith(head)) {
    const blank = record.indexOf(' ', head.length) + 1;
    const value = beside === undefined ? record : beside.record?.startsWith(record.slice(0, blank)) ? beside.record : '';
    const newline = value.indexOf('\n', blank);
    if (blank > 0 && newline >= 0) {
      if (!isOf(record, blank, fence) || (beside && !isOf(value, blank, beside.name))) return { state: 'foreign' };
      return { state: 'hit', token, version: record.slice(head.length, blank - 1), payload: value.slice(newline + 1) };
    }
  }
  return { state: 'miss', permit: text };
}

// The same for the answer of fence_get, which has compared the token itself.
function judgeAnswer(answer, name) {
  if (answer[0] === 'hit') {
    const found = judge(answer[1], permitOf(answer[1]), name);
    return found.state === 'miss' ? { state: 'unavailable' } : found;
  }
  if (answer[0] === 'miss') return { state: 'miss', permit: answer[1], busy: answer[2] === 'busy' ? Number(answer[3]) : 0 };
  return { state: answer[0] === 'pending' ? 'pending' : 'unarmed' };
}

module.exports = { judge, judgeAnswer, permitOf, tokenOf };
