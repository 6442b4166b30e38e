
-- =================================================================================================================
-- Effects: changes of the users' own keys that live and die with a PostgreSQL transaction (doc/patterns.md).
-- The build joins this file to fence.lua: one library, one version.
--
-- Owns: for each key with effects under way a hash of *holds* in the same slot (<namespace>:h:{...}); a hold says what
-- a (sub)transaction will do to the key if it commits. Life cycle, the same for all kinds:
--   effect      checks, and adds the hold; readers of the key see nothing of it
--   apply       at COMMIT: does it and drops the hold, in one step
--   undo        at ROLLBACK: drops the hold
-- Both ends do nothing where the hold is gone, so they may come twice, late, or from the patrol. Holds are data: they
-- survive what the key itself survives, and need neither lease nor epoch.
-- Also <namespace>:d: (durable effects that were applied, until their row in PostgreSQL is gone), <namespace>:s:
-- (values that are being built) and <namespace>:q: (queues that have jobs), all in the key's slot.
-- A hold's name is "<system>.<xid>.<nonce>.<n>": the transaction or subtransaction whose fate decides, and a number in
-- the whole transaction. top: the whole transaction.
-- =================================================================================================================

do

local MAX_KEY = 1024                   -- bytes of an effect's key
local MOST_HOLDERS = 100               -- holds that a refusal names
local MARK_MS = 60000                  -- how long a mark of a durable effect stays at least
local EXACT = 9007199254740991         -- counters are exact up to here (2^53 - 1), either side of 0
local FIELDS = 1000                    -- of a hash, names and values, in one command: Lua's stack is small
local CLASS, COUNT, LESS, MORE = '!', '#', '-', '+'  -- fields of a hash of holds that are no holds

-- The name beside the key, in its slot: letter h, d, s or q. nil: no name can be in the slot of that key.
local function beside(ns, letter, key)
  local tag = match(key, '^[^{]*{([^}]+)}')
  if tag then return ns .. ':' .. letter .. ':{' .. tag .. '}:' .. key end
  if find(key, '}', 1, true) then return nil end
  return ns .. ':' .. letter .. ':{' .. key .. '}'
end

-- The letter and the key of such a name.
local function beside_what(ns, name)
  local letter, rest = sub(name, #ns + 2, #ns + 2), sub(name, #ns + 5)
  local close = find(rest, '}', 1, true)
  if close == #rest then return letter, sub(rest, 1, -2) end
  return letter, sub(rest, close + 2)
end

-- Whether effects may touch the key: not what belongs to a namespace, except its commit markers.
local function is_effect_key(ns, key)
  if #key == 0 or #key > MAX_KEY or not beside(ns, 'h', key) then return false end
  local first = match(key, '^([%w_.-]+):')
  if first and (first == ns or spaces[first]) then return sub(key, 1, #ns + 3) == ns .. ':m:' end
  return true
end

local function is_namespace(ns)
  return ns and find(ns, '^[%w_.-]+$')
end

local function is_hold(id)
  return #id <= MAX_STAMP and find(id, '^%d+%.%d+%.%x+%.%d+$')
end

local function place_of(id)            -- a hold's number in its transaction
  return tonumber(match(id, '(%d+)$'))
end

-- ---------------------------------------------------------------------------------------------------------------
-- What the patrol looks at: names of this process that it has seen or made. Lost with the process and found again by
-- SCAN, which goes on slowly for ever, because slots may move here.
-- ---------------------------------------------------------------------------------------------------------------

local known = {}                       -- namespace -> {names: name -> true, cursor, complete}

local function known_of(ns)
  local k = known[ns]
  if not k then
    k = { names = {}, cursor = '0', complete = false }
    known[ns] = k
  end
  return k
end

local function learn(ns, name)
  known_of(ns).names[name] = true
end

local function look_around(ns)
  local k = known_of(ns)
  local steps, most = k.complete and 1 or 20, k.complete and 100 or 1000
  repeat
    local found = redis.call('SCAN', k.cursor, 'MATCH', ns .. ':[hdq]:{*', 'COUNT', most)
    k.cursor, steps = found[1], steps - 1
    for _, name in ipairs(found[2]) do k.names[name] = true end
    if k.cursor == '0' then k.complete = true end
  until steps == 0 or k.cursor == '0'
end

-- ---------------------------------------------------------------------------------------------------------------
-- Holds
-- ---------------------------------------------------------------------------------------------------------------

local kinds = {}

-- c: the call, see effect().
local function add_hold(c, key, kind, arguments)
  local name = beside(c.ns, 'h', key)
  local hold = { k = kind, top = c.top, at = now_ms(), a = arguments, d = c.durable ~= '' and c.durable or nil }
  redis.call('HSET', name, c.id, cmsgpack.pack(hold), CLASS, kinds[kind].class)
  redis.call('HINCRBY', name, COUNT, 1)
  if kinds[kind].class == 'counter' then
    local delta = kinds[kind].delta(arguments)
    redis.call('HINCRBY', name, delta < 0 and LESS or MORE, string.format('%.0f', delta))
  end
  learn(c.ns, name)
end

local function drop_hold(name, id, hold)
  if redis.call('HDEL', name, id) == 0 then return end
  if redis.call('HINCRBY', name, COUNT, -1) <= 0 then
    redis.call('DEL', name)
  elseif kinds[hold.k].class == 'counter' then
    local delta = kinds[hold.k].delta(hold.a)
    redis.call('HINCRBY', name, delta < 0 and LESS or MORE, string.format('%.0f', -delta))
  end
end

local function read_hold(name, id)
  local raw = redis.call('HGET', name, id)
  return raw and cmsgpack.unpack(raw)
end

-- The holds of a name in the order in which their transactions made them: {id, hold}.
local function holds_of(name)
  local all, list = redis.call('HGETALL', name), {}
  for i = 1, #all, 2 do
    if is_hold(all[i]) then list[#list + 1] = { id = all[i], hold = cmsgpack.unpack(all[i + 1]) } end
  end
  table.sort(list, function(a, b) return place_of(a.id) < place_of(b.id) end)
  return list
end

-- Who has holds there, up to MOST_HOLDERS of them, behind the word: the caller knows whose transactions are over.
local function refused_by_holders(word, name)
  local reply = { word }
  local found = redis.call('HSCAN', name, 0, 'COUNT', 2 * MOST_HOLDERS)[2]
  for i = 1, #found, 2 do
    if is_hold(found[i]) and #reply <= MOST_HOLDERS then reply[#reply + 1] = found[i] end
  end
  return reply
end

-- For kinds of which only one transaction at a time has holds on a key: its own holds, or nil and what to answer.
local function own_holds(c)
  local own = holds_of(c.name)
  for _, h in ipairs(own) do
    if h.hold.top ~= c.top then return nil, refused_by_holders('busy', c.name) end
  end
  return own
end

local function set_value(key, value, ttl)           -- ttl in ms; '' keeps the present one, '0' is none
  if ttl == '' then
    redis.call('SET', key, value, 'KEEPTTL')
  elseif ttl == '0' then
    redis.call('SET', key, value)
  else
    redis.call('SET', key, value, 'PX', ttl)
  end
end

-- ---------------------------------------------------------------------------------------------------------------
-- The kinds. class: a key has holds of one class at a time. ordered: one transaction's are applied in its order.
-- prepare(c, arguments, checks) answers 'held ...' after add_hold, else why not; apply(key, arguments, id, ns) may
-- answer 'lost'; undo(key, id, ns) if there is more to undo than the hold.
-- ---------------------------------------------------------------------------------------------------------------

-- once | ttl_ms -> held | own [result] | done result | busy holder...
kinds.once = { class = 'value', ordered = true }

function kinds.once.prepare(c, a)
  local own, busy = own_holds(c)
  if busy then return busy end
  if #own > 0 then
    local last = own[#own].hold
    return { 'own', last.k == 'result' and last.a[1] or nil }
  end
  local result = redis.call('GET', c.key)
  if result then return { 'done', result } end
  add_hold(c, c.key, 'once', a)
  return { 'held' }
end

function kinds.once.apply(key, a)
  redis.call('SET', key, 'null', 'PX', a[1])
end

-- result | text -> held | none. The result of the once before.
kinds.result = { class = 'value', ordered = true }

function kinds.result.prepare(c, a)
  local own, busy = own_holds(c)
  if busy then return busy end
  if #own == 0 then return { 'none' } end
  add_hold(c, c.key, 'result', a)
  return { 'held' }
end

function kinds.result.apply(key, a)
  redis.call('SET', key, a[1], 'XX', 'KEEPTTL')
end

-- set | how value ttl_ms ; expects expected -> held found value | differs found value | nothing | busy holder...
-- how: 'set', 'del', or 'ttl' (the value stays); expects: '' (anything), '=' (that text), '0' (no key). value in the
-- answer: what the key had as this transaction sees it, with what it will do itself.
kinds.set = { class = 'value', ordered = true }

function kinds.set.prepare(c, a, checks)
  local own, busy = own_holds(c)
  if busy then return busy end
  local value = redis.call('GET', c.key)
  for _, h in ipairs(own) do
    if h.hold.k ~= 'set' then return { 'mixed' } end
    if h.hold.a[1] == 'set' then value = h.hold.a[2] elseif h.hold.a[1] == 'del' then value = false end
  end
  local answer = { 'held', value and '1' or '0', value or '' }
  if (checks[1] == '=' and value ~= checks[2]) or (checks[1] == '0' and value) then
    answer[1] = 'differs'
  elseif not value and a[1] ~= 'set' then
    answer[1] = 'nothing'
  else
    add_hold(c, c.key, 'set', a)
  end
  return answer
end

function kinds.set.apply(key, a)
  if a[1] == 'set' then
    set_value(key, a[2], a[3])
  elseif a[1] == 'del' then
    redis.call('DEL', key)
  elseif a[3] == '0' then
    redis.call('PERSIST', key)
  else
    redis.call('PEXPIRE', key, a[3])
  end
end

-- counter | delta ; min max -> held value | bound value holder... | inexact
-- The bounds hold whatever becomes of the other holds; value: with all holds in that direction.
kinds.counter = { class = 'counter' }

function kinds.counter.delta(a)
  return tonumber(a[1])
end

-- nil if the bounds forbid it; what the counter can come to in the direction of delta. Second: not to be counted.
local function counter_after(ns, key, delta, min, max)
  local value = tonumber(redis.call('GET', key) or '0')
  local name = beside(ns, 'h', key)
  local held = tonumber(redis.call('HGET', name, delta < 0 and LESS or MORE) or '0')
  if not value or value ~= math.floor(value) or math.abs(value) > EXACT then return nil, nil, true end
  local after = value + held + delta
  if math.abs(after) > EXACT then return nil, nil, true end
  if (delta < 0 and min and after < min) or (delta > 0 and max and after > max) then return nil, value end
  return after, value
end

local function whole_number(s)
  return find(s, '^-?%d+$') and #s <= 17 and tonumber(s) or nil
end

function kinds.counter.prepare(c, a, checks)
  local min, max = whole_number(checks[1]), whole_number(checks[2])
  local after, value, inexact = counter_after(c.ns, c.key, tonumber(a[1]), min, max)
  if inexact then return { 'inexact' } end
  if not after then
    local reply = refused_by_holders('bound', c.name)
    table.insert(reply, 2, string.format('%.0f', value))
    return reply
  end
  add_hold(c, c.key, 'counter', a)
  return { 'held', string.format('%.0f', after) }
end

function kinds.counter.apply(key, a)
  redis.call('INCRBY', key, a[1])
end

-- transfer <from> <to> | to amount ; min max -> held value | bound value holder... | full value holder... | inexact
-- The hold of `to` (received) only counts there: both end together with that of `from`.
kinds.transfer = { class = 'counter' }
kinds.received = { class = 'counter' }

function kinds.transfer.delta(a) return -tonumber(a[2]) end
function kinds.received.delta(a) return tonumber(a[2]) end

function kinds.transfer.prepare(c, a, checks)
  local to, amount = a[1], tonumber(a[2])
  local left, value, inexact = counter_after(c.ns, c.key, -amount, whole_number(checks[1]), nil)
  local name, word = c.name, 'bound'
  if left then
    left, word, name = left, 'full', beside(c.ns, 'h', to)
    local arrives
    arrives, value, inexact = counter_after(c.ns, to, amount, nil, whole_number(checks[2]))
    if not arrives then left = nil end
  end
  if inexact then return { 'inexact' } end
  if not left then
    local reply = refused_by_holders(word, name)
    table.insert(reply, 2, string.format('%.0f', value))
    return reply
  end
  add_hold(c, c.key, 'transfer', a)
  add_hold(c, to, 'received', { c.key, a[2] })
  return { 'held', string.format('%.0f', left) }
end

local function drop_received(a, id, ns)
  local name = beside(ns, 'h', a[1])
  local other = read_hold(name, id)
  if other then drop_hold(name, id, other) end
end

function kinds.transfer.apply(key, a, id, ns)
  redis.call('DECRBY', key, a[2])
  redis.call('INCRBY', a[1], a[2])
  drop_received(a, id, ns)
end

function kinds.transfer.undo(_, a, id, ns)
  drop_received(a, id, ns)
end

-- append | form entry stamp most -> held. form: list, zset, stream, or queue (then most is the lease of a job, in ms).
-- An entry is "<stamp> <n> <text>", in a stream the fields stamp, n and entry.
kinds.append = { class = 'log', ordered = true }

local FORM_TYPES = { list = 'list', queue = 'list', zset = 'zset', stream = 'stream' }

function kinds.append.prepare(c, a)
  local there = redis.call('TYPE', c.key).ok
  if there ~= 'none' and there ~= FORM_TYPES[a[1]] then return { 'type', there } end
  add_hold(c, c.key, 'append', a)
  return { 'held' }
end

function kinds.append.apply(key, a, id, ns)
  local form, entry, stamp, most = a[1], a[2], a[3], a[4]
  local n = match(id, '(%d+)$')
  local text = stamp .. ' ' .. n .. ' ' .. entry
  if form == 'list' then
    redis.call('RPUSH', key, text)
    if most ~= '' then redis.call('LTRIM', key, '-' .. most, -1) end
  elseif form == 'queue' then
    redis.call('LPUSH', key, text)
    redis.call('HSET', beside(ns, 'q', key), 'lease', most)
    learn(ns, beside(ns, 'q', key))
  elseif form == 'zset' then
    redis.call('ZADD', key, now_ms(), text)
    if most ~= '' then redis.call('ZREMRANGEBYRANK', key, 0, '-' .. (tonumber(most) + 1)) end
  else
    redis.call('XADD', key, '*', 'stamp', stamp, 'n', n, 'entry', entry)
    if most ~= '' then redis.call('XTRIM', key, 'MAXLEN', '~', most) end
  end
end

-- publish | ttl_ms form -> held. Then pieces, see effect_piece(). form: string or hash. One that has no shadow brings
-- the whole value (from a[3] on): a small one, or a durable one whose shadow was lost.
kinds.publish = { class = 'value', ordered = true }

local function shadow_of(ns, key, id)
  return beside(ns, 's', key) .. ':' .. id
end

function kinds.publish.prepare(c, a)
  local own, busy = own_holds(c)
  if busy then return busy end
  for _, h in ipairs(own) do
    if h.hold.k ~= 'publish' then return { 'mixed' } end
  end
  add_hold(c, c.key, 'publish', a)
  return { 'held' }
end

function kinds.publish.apply(key, a, id, ns)
  local shadow, ttl = shadow_of(ns, key, id), a[1]
  if redis.call('EXISTS', shadow) == 0 then
    if not a[3] then return 'lost' end -- the old value stays
    if a[2] == 'hash' then
      for i = 3, #a, FIELDS do redis.call('HSET', shadow, unpack(a, i, math.min(i + FIELDS - 1, #a))) end
    else
      redis.call('SET', shadow, a[3])
    end
  end
  if ttl == '' then ttl = redis.call('PTTL', key) end
  redis.call('RENAME', shadow, key)
  if tonumber(ttl) > 0 then redis.call('PEXPIRE', key, ttl) end
end

function kinds.publish.undo(key, _, id, ns)
  redis.call('UNLINK', shadow_of(ns, key, id))
end

-- ---------------------------------------------------------------------------------------------------------------
-- The life cycle
-- ---------------------------------------------------------------------------------------------------------------

-- A durable effect was applied: nobody applies it again. The mark outlives the row by a while: a redo that was sent
-- before may arrive after the one that was answered.
local function mark_done(ns, key, id, database)
  local name = beside(ns, 'd', key)
  redis.call('HSET', name, id, database .. ' ' .. string.format('%.0f', now_ms()))
  learn(ns, name)
end

-- Whether a hold of the same transaction has to be applied before.
local function has_earlier(name, id, hold)
  for _, h in ipairs(holds_of(name)) do
    if h.id == id then return false end
    if h.hold.top == hold.top then return true end
  end
end

-- Whether a durable effect was applied: a hold of it that arrives afterwards is nothing any more.
local function is_done(ns, key, id)
  return redis.call('HEXISTS', beside(ns, 'd', key), id) == 1
end

-- Ends one hold: 'ended', 'none' (it is gone) or 'later' (another has to be applied before).
local function end_one(ns, key, id, verb)
  local name = beside(ns, 'h', key)
  local hold = read_hold(name, id)
  if not hold then return 'none' end
  if hold.k == 'received' then
    local answer = end_one(ns, hold.a[1], id, verb)
    if answer == 'none' then drop_hold(name, id, hold) end
    return answer
  end
  local kind = kinds[hold.k]
  if verb == 'apply' and not (hold.d and is_done(ns, key, id)) then
    if kind.ordered and has_earlier(name, id, hold) then return 'later' end
    local answer = kind.apply(key, hold.a, id, ns)
    if hold.d and answer ~= 'lost' then mark_done(ns, key, id, hold.d) end
  elseif kind.undo then
    kind.undo(key, hold.a, id, ns)
  end
  drop_hold(name, id, hold)
  return 'ended'
end

local function are_strings(function_name, ns, keys)
  if not is_namespace(ns) then return bad(function_name, 'expected a namespace') end
  for _, key in ipairs(keys) do
    if not is_effect_key(ns, key) then return bad(function_name, 'no effect may touch this key') end
  end
end

-- effect <key> [<key>] | namespace hold top durable kind n argument... check... -> held ... | why not ...
-- durable: the database that has a row of it, '' if none has. A call that comes twice counts once.
local function effect(keys, args)
  local kind, n = kinds[args[5] or ''], whole(args[6] or '')
  if #keys < 1 or not n or #args < 6 + n or not kind or not kind.prepare or not is_hold(args[2]) then
    return bad('fence_effect', 'expected keys, namespace, hold, transaction, durable, kind and arguments')
  end
  local wrong = are_strings('fence_effect', args[1], keys)
  if wrong then return wrong end
  local c = { ns = args[1], id = args[2], top = args[3], durable = args[4], key = keys[1] }
  c.name = beside(c.ns, 'h', c.key)
  end_one(c.ns, c.key, c.id, 'undo')
  for _, key in ipairs(keys) do
    local name = beside(c.ns, 'h', key)
    local class = redis.call('HGET', name, CLASS)
    if class and class ~= kind.class then return refused_by_holders('busy', name) end
  end
  return kind.prepare(c, { unpack(args, 7, 6 + n) }, { unpack(args, 7 + n) })
end

-- effect_piece <key> | namespace hold offset piece... -> built. One more piece of what is published under the hold: of
-- a string, or field, value, ... of a hash. A piece that comes twice counts once.
local function effect_piece(keys, args)
  local ns, id, offset = args[1], args[2], whole(args[3] or '')
  if #keys ~= 1 or #args < 4 or not is_hold(id) or not offset then
    return bad('fence_effect_piece', 'expected a key, namespace, hold, offset and piece')
  end
  local wrong = are_strings('fence_effect_piece', ns, keys)
  if wrong then return wrong end
  local hold = read_hold(beside(ns, 'h', keys[1]), id)
  if not hold or hold.k ~= 'publish' then return bad('fence_effect_piece', 'the hold is gone') end
  local shadow = shadow_of(ns, keys[1], id)
  if hold.a[2] == 'hash' then
    redis.call('HSET', shadow, unpack(args, 4))
  elseif offset == 0 then
    redis.call('SET', shadow, args[4])
  else
    redis.call('SETRANGE', shadow, offset, args[4])
  end
  return { 'built' }
end

-- effects_end | namespace apply|undo (key hold)... -> ended. Keys are arguments: they are of many slots. All others are
-- ended even if one cannot be; then the answer is the error.
local function effects_end(_, args)
  local ns, verb, failed = args[1], args[2], nil
  if #args < 4 or #args % 2 ~= 0 or not is_namespace(ns) or (verb ~= 'apply' and verb ~= 'undo') then
    return bad('fence_effects_end', 'expected namespace, apply or undo, and pairs of key and hold')
  end
  for i = 3, #args, 2 do
    if not is_effect_key(ns, args[i]) or not is_hold(args[i + 1]) then
      failed = bad('fence_effects_end', 'malformed key or hold')
    else
      local ok, answer = pcall(end_one, ns, args[i], args[i + 1], verb)
      if not ok then
        failed = type(answer) == 'table' and answer.err and answer or redis.error_reply(tostring(answer))
      elseif answer == 'later' then
        failed = bad('fence_effects_end', 'another effect has to be applied before')
      end
    end
  end
  return failed or { 'ended' }
end

-- effect_redo <key> [<key>] | namespace hold database kind argument... -> done. The row of a durable effect whose
-- transaction has committed: applied, unless it was.
local function effect_redo(keys, args)
  local ns, id, kind = args[1], args[2], kinds[args[4] or '']
  if #keys < 1 or not kind or not is_hold(id) then
    return bad('fence_effect_redo', 'expected key, namespace, hold, database, kind and arguments')
  end
  local wrong = are_strings('fence_effect_redo', ns, keys)
  if wrong then return wrong end
  if is_done(ns, keys[1], id) then return { 'done' } end
  local answer = end_one(ns, keys[1], id, 'apply')
  if answer == 'later' then return bad('fence_effect_redo', 'another effect has to be applied before') end
  if answer == 'none' or not is_done(ns, keys[1], id) then
    local arguments = {}
    for i = 5, #args do arguments[i - 4] = args[i] end
    kind.apply(keys[1], arguments, id, ns)
    mark_done(ns, keys[1], id, args[3])
  end
  return { 'done' }
end

-- effects_forget | namespace (key hold)... -> forgotten. Marks whose rows are gone.
local function effects_forget(_, args)
  if #args % 2 ~= 1 or not is_namespace(args[1]) then
    return bad('fence_effects_forget', 'expected namespace and pairs of key and hold')
  end
  for i = 2, #args, 2 do
    if not is_effect_key(args[1], args[i]) then return bad('fence_effects_forget', 'malformed key') end
    redis.call('HDEL', beside(args[1], 'd', args[i]), args[i + 1])
  end
  return { 'forgotten' }
end

-- effect_read <key> -> value | none
local function effect_read(keys, args)
  if #keys ~= 1 or #args ~= 0 then return bad('fence_effect_read', 'expected a key') end
  local value = redis.call('GET', keys[1])
  return value and { 'value', value } or { 'none' }
end

-- log_stamps <key> | most -> stamp... of the last entries, newest first
local function log_stamps(keys, args)
  local most = args[1] and whole(args[1])
  if #keys ~= 1 or not most or most < 1 then return bad('fence_log_stamps', 'expected a key and a number') end
  local form, stamps, entries = redis.call('TYPE', keys[1]).ok, {}, {}
  if form == 'list' then
    entries = redis.call('LRANGE', keys[1], -most, -1)
  elseif form == 'zset' then
    entries = redis.call('ZRANGE', keys[1], -most, -1)
  elseif form == 'stream' then
    for _, entry in ipairs(redis.call('XREVRANGE', keys[1], '+', '-', 'COUNT', most)) do
      stamps[#stamps + 1] = entry[2][1] == 'stamp' and entry[2][2] or nil
    end
  end
  for i = #entries, 1, -1 do stamps[#stamps + 1] = match(entries[i], '^(%S+) %d+ ') end
  return stamps
end

-- ---------------------------------------------------------------------------------------------------------------
-- For the patrol
-- ---------------------------------------------------------------------------------------------------------------

-- What there is to settle in a hash of holds, or of done effects (kind: 'done <database>'), goes to the reply.
local function list_name(ns, name, reply, min_age)
  local letter, key = beside_what(ns, name)
  local now = now_ms()
  local function list(id, kind, top, since)
    local n = #reply
    reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4] = key, id, kind, top
    reply[n + 5] = string.format('%.0f', math.max(now - since, 0))
  end
  if letter == 'd' then
    local all = redis.call('HGETALL', name)
    for i = 1, #all, 2 do
      local database, since = match(all[i + 1], '^(%d+) (%d+)$')
      if tonumber(since) <= now - MARK_MS then list(all[i], 'done ' .. database, '', since) end
    end
    return #all > 0
  end
  local holds = holds_of(name)
  for _, h in ipairs(holds) do
    if h.hold.at <= now - min_age then list(h.id, h.hold.k, h.hold.top, h.hold.at) end
  end
  return #holds > 0
end

-- effects | namespace min_age_ms limit cursor -> cursor (key hold kind transaction age_ms)... A cursor '' starts; '' in
-- the reply ends.
local function effects(_, args)
  local min_age, limit = args[2] and whole(args[2]), args[3] and whole(args[3])
  if #args ~= 4 or not is_namespace(args[1]) or not min_age or not limit or limit < 1 then
    return bad('fence_effects', 'expected namespace, age, limit and cursor')
  end
  local ns, reply = args[1], { '' }
  if args[4] == '' then look_around(ns) end
  local names = known_of(ns).names
  local name = next(names, names[args[4]] and args[4] or nil)
  while name do
    local here = name
    if sub(here, #ns + 2, #ns + 2) ~= 'q' and not list_name(ns, here, reply, min_age) then names[here] = false end
    name = next(names, here)
    if #reply >= 5 * limit then
      reply[1] = here
      break
    end
  end
  for n, is in pairs(names) do
    if not is and n ~= reply[1] then names[n] = nil end
  end
  return reply
end

-- The list into which consumers move the jobs that they work at.
local function processing_of(queue)
  return match(queue, '^[^{]*{[^}]+}') and queue .. ':processing' or '{' .. queue .. '}:processing'
end

-- Jobs that were taken get a deadline when they are first seen; those whose time is over go back to where they are
-- taken next.
local function look_at_queue(name, queue)
  local processing, now, returned = processing_of(queue), now_ms(), 0
  local lease = tonumber(redis.call('HGET', name, 'lease') or '0')
  local taken, is_taken = redis.call('LRANGE', processing, 0, 999), { lease = true }
  for _, job in ipairs(taken) do
    local till = tonumber(redis.call('HGET', name, job) or nil)
    is_taken[job] = true
    if not till then
      redis.call('HSET', name, job, string.format('%.0f', now + lease))
    elseif till <= now then
      redis.call('LREM', processing, 1, job)
      redis.call('RPUSH', queue, job)
      redis.call('HDEL', name, job)
      returned = returned + 1
    end
  end
  if #taken < 1000 then
    for _, job in ipairs(redis.call('HKEYS', name)) do
      if not is_taken[job] then redis.call('HDEL', name, job) end
    end
  end
  if #taken == 0 and redis.call('EXISTS', queue) == 0 then redis.call('DEL', name) end
  return returned
end

-- queues | namespace -> returned. How many abandoned jobs went back to their queues.
local function queues(_, args)
  if #args ~= 1 or not is_namespace(args[1]) then return bad('fence_queues', 'expected a namespace') end
  local names, returned = known_of(args[1]).names, 0
  for name in pairs(names) do
    local letter, queue = beside_what(args[1], name)
    local ok, n = true, 0
    if letter == 'q' then ok, n = pcall(look_at_queue, name, queue) end
    if ok then returned = returned + n end
    if letter == 'q' and (not ok or redis.call('EXISTS', name) == 0) then names[name] = nil end
  end
  return { tostring(returned) }
end

register_keyed('fence_effect', effect)
register_keyed('fence_effect_piece', effect_piece)
register_keyed('fence_effects_end', effects_end, { 'allow-cross-slot-keys' })
register_keyed('fence_effect_redo', effect_redo)
register_keyed('fence_effects_forget', effects_forget, { 'allow-cross-slot-keys' })
register_keyed('fence_effect_read', effect_read, { 'no-writes' })
register_keyed('fence_log_stamps', log_stamps, { 'no-writes' })
register_keyed('fence_effects', effects, { 'no-writes', 'allow-cross-slot-keys' })
register_keyed('fence_queues', queues, { 'allow-cross-slot-keys' })

end
