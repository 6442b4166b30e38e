'use strict';
// What one block asks Redis, and what its answers mean for each read.
const { judge, permitOf } = require('./judge');
const { limited } = require('./time');

// Sends one block for these reads, which are all of one place, and sets the answer of each. A read is { place, fence, name, call }.
function answer(link, reads, ms) {
  const [{ call }] = reads;
  const { names, firsts, at } = call && reads.every(read => read.call === call) ? layoutOfOne(reads) : layout(reads);
  return limited(link.block(names, firsts), ms).then(([records, told]) => {
    const permits = told.map(permitOf);
    reads.forEach((read, n) => {
      const [record, first, value] = at(n);
      const beside = value === record ? undefined : { name: read.name, record: records[value] };
      const found = judge(records[record], permits[first], read.fence, beside);
      if (found.state === 'foreign') link.distrust(read.name);
      read.answer = found;
    });
  });
}

// What a block asks for. names: of fences and of values beside them. firsts: of each domain the first fence. at(n) has for a read
// the places of its fence in names, of its domain in firsts, and of what is read in names.
function layout(reads) {
  const names = new Map();              // each once, however many read it
  const firsts = new Map();             // by what the names of the domain begin with
  const placeIn = (map, key) => map.get(key) ?? map.set(key, map.size).size - 1;
  const firstFences = [];
  const places = reads.map(read => {
    const first = placeIn(firsts, read.place.prefix);
    if (first === firstFences.length) firstFences.push(read.fence);
    return [placeIn(names, read.fence), first, placeIn(names, read.name)];
  });
  return { names: [...names.keys()], firsts: firstFences, at: n => places[n] };
}

// The same for reads of one call: they are of one domain, and a caller seldom gives a key twice. The search for names that come
// twice would cost more than all else here.
function layoutOfOne(reads) {
  const names = reads.map(({ fence }) => fence);
  const first = reads[0];
  const beside = first.name === first.fence ? 0 : names.push(...reads.map(({ name }) => name)) - reads.length;
  return { names, firsts: [first.fence], at: n => [n, 0, beside + n] };
}

module.exports = { answer };
