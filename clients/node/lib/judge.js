'use strict';
// Decides what record and permit mean. The permit came after the record, from the same process. So a record that begins with
// the permit's token is the newest committed version (doc/protocol.md, "Reading").

const tokenOf = permit => permit.slice(0, permit.indexOf(' '));

// { state: 'hit', token, version, payload }, { state: 'miss', permit } or { state: 'unarmed' }. beside: what the value beside
// the fence has, undefined where the fence itself is read.
function judge(record, permit, beside) {
  const end = permit.indexOf(' ') + 1;
  if (end < 2) return { state: 'unarmed' };
  if (record !== null && record.startsWith(permit.slice(0, end))) {
    const blank = record.indexOf(' ', end) + 1;
    const value = beside === undefined ? record : beside;
    const newline = value !== null && value.startsWith(record.slice(0, blank)) ? value.indexOf('\n', blank) : -1;
    if (blank > 0 && newline >= 0) {
      return { state: 'hit', token: record.slice(0, end - 1), version: record.slice(end, blank - 1), payload: value.slice(newline + 1) };
    }
  }
  return { state: 'miss', permit };
}

// The same for the answer of fence_get, which has compared the token itself.
function judgeAnswer(answer) {
  if (answer[0] === 'hit') {
    const found = judge(answer[1], answer[1]);
    return found.state === 'hit' ? found : { state: 'unavailable' };
  }
  if (answer[0] === 'miss') return { state: 'miss', permit: answer[1], busy: answer[2] === 'busy' ? Number(answer[3]) : 0 };
  return { state: answer[0] === 'pending' ? 'pending' : 'unarmed' };
}

module.exports = { judge, judgeAnswer, tokenOf };
