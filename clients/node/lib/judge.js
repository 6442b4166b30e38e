'use strict';
// Decides what record and permit mean. The permit came after the record, from the same process. So a record that begins with
// the permit's token is the newest committed version (doc/protocol.md, "Reading").

const tokenOf = permit => permit.slice(0, Math.max(0, permit.indexOf(' ')));

// What Redis has told as a permit. Its token is '' if Redis gave none.
function permitOf(text) {
  const token = tokenOf(text);
  return { text, token, head: `${token} ` };
}

// { state: 'hit', token, version, payload }, { state: 'miss', permit } or { state: 'unarmed' }. beside: what the value beside
// the fence has, undefined where the fence itself is read.
function judge(record, { text, token, head }, beside) {
  if (token === '') return { state: 'unarmed' };
  if (record !== null && record.startsWith(head)) {
    const blank = record.indexOf(' ', head.length) + 1;
    const value = beside === undefined ? record : beside?.startsWith(record.slice(0, blank)) ? beside : '';
    const newline = value.indexOf('\n', blank);
    if (blank > 0 && newline >= 0) {
      return { state: 'hit', token, version: record.slice(head.length, blank - 1), payload: value.slice(newline + 1) };
    }
  }
  return { state: 'miss', permit: text };
}

// The same for the answer of fence_get, which has compared the token itself.
function judgeAnswer(answer) {
  if (answer[0] === 'hit') {
    const found = judge(answer[1], permitOf(answer[1]));
    return found.state === 'hit' ? found : { state: 'unavailable' };
  }
  if (answer[0] === 'miss') return { state: 'miss', permit: answer[1], busy: answer[2] === 'busy' ? Number(answer[3]) : 0 };
  return { state: answer[0] === 'pending' ? 'pending' : 'unarmed' };
}

module.exports = { judge, judgeAnswer, permitOf, tokenOf };
