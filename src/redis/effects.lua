
-- =================================================================================================================
-- Effects: changes of users' own keys that take effect if and only if a PostgreSQL transaction commits
-- (doc/patterns.md). The build joins this file to fence.lua: one library, one version.
--
-- Owns these keys, each in the slot of the user's key:
--   <namespace>:h:  a hash with the *holds* on a key. A hold says what a (sub)transaction will do to it if it commits
--   <namespace>:d:  marks of durable effects that were applied, until their rows in PostgreSQL are deleted
--   <namespace>:s:  values that are being built
--   <namespace>:q:  queues that have jobs
-- All kinds of effects have the same life cycle:
--   effect      checks the request and adds the hold; readers of the key do not see it
--   apply       at COMMIT: executes the effect and drops the hold, in one step
--   undo        at ROLLBACK: drops the hold
-- apply and undo do nothing if the hold is gone. So they may arrive twice, or late, or from the patrol. Holds are data:
-- they survive what the key itself survives, and need neither lease nor epoch.
-- A hold's name is "<system>.<xid>.<nonce>.<n>": the (sub)transaction whose fate decides, and a number that is unique
-- in the whole transaction. `top` is the whole transaction. A hold names the previous hold of its transaction on the
-- key, if that was not rolled back by then. So the transaction commits either both or neither.
-- The cost of a call depends on its arguments only, not on the number of holds of a key. Only listings walk through the
-- holds of a key. They stop after a bounded amount of work, and return the place where the next call continues.
-- =================================================================================================================

do

local MAX_KEY = 1024                   -- bytes of an effect's key
local MOST_HOLDERS = 100               -- holds that a refusal names
local MARK_MS = 60000                  -- a mark of a durable effect stays at least so long
local EXACT = 9007199254740991         -- Lua counts exactly from -EXACT to EXACT (2^53 - 1)
local FIELDS = 1000                    -- names and values of a hash in one command, because Lua's stack is small
local MOST_ENDS = 1000                 -- pairs of key and hold in one call
local MOST_NAMES = 50000               -- names of each kind that are remembered for a namespace
local LOOKS = 20                       -- steps of SCAN before a listing, while names may be missing
local STEPS = 200                      -- steps of HSCAN in one call
local BYTES = 1024 * 1024              -- bytes that one call reads in such steps before it stops
local LOGGED = 8192                    -- a longer old value of a field is not logged, only its length
local ROW_SHADOW_MS = 3600000          -- an unfinished value that is being built for a row expires after this time
local TRIMMED = 1000                   -- entries that one append removes, at most, from a log that is too long
-- Fields of a hash of holds that are not holds. With a colon and a field's name they are about the holds on that field.
local CLASS, COUNT, LESS, MORE, OWNER = '!', '#', '-', '+', '@'

-- The name of our key with that letter (h, d, s, q) in the slot of the user's key. nil: there can be no such name.
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

-- Whether effects may change the key. They must not change keys of a namespace, except its commit markers.
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

-- ---------------------------------------------------------------------------------------------------------------
-- The names that the patrol looks at: those that this process has seen or made. They are lost when the process ends,
-- and SCAN finds them again. SCAN continues slowly for ever, because slots may move to this process, and because it
-- remembers at most MOST_NAMES.
-- ---------------------------------------------------------------------------------------------------------------

local known = {}                       -- namespace -> {holds, queues, cursor, complete, missed}

-- A list of names in no order: their number n, names[1 .. n], and at[name], the place of each. forget_deadlines() keeps
-- its cursors here. Loops go from the end to the start, and may drop the name at which they are: the last name fills
-- the gap, and new names are added at the end.
local function new_list()
  return { n = 0, names = {}, at = {}, cursors = {} }
end

local function known_of(ns)
  local k = known[ns]
  if not k then
    k = { holds = new_list(), queues = new_list(), cursor = '0', complete = false, missed = false }
    known[ns] = k
  end
  return k
end

local function list_of(ns, name)
  local k = known_of(ns)
  return sub(name, #ns + 2, #ns + 2) == 'q' and k.queues or k.holds, k
end

local function learn(ns, name)
  local list, k = list_of(ns, name)
  if list.at[name] then return end
  if list.n >= MOST_NAMES then
    k.complete, k.missed = false, true
    return
  end
  list.n = list.n + 1
  list.names[list.n], list.at[name] = name, list.n
end

local function unlearn(ns, name)
  local list = list_of(ns, name)
  local at, last = list.at[name], list.names[list.n]
  if not at then return end
  list.names[at], list.at[last] = last, at
  list.names[list.n], list.at[name], list.cursors[name] = nil, nil, nil
  list.n = list.n - 1
  if list.n == 0 then list.names, list.at, list.cursors = {}, {}, {} end   -- a Lua table never shrinks
end

-- One step of SCAN.
local function look_around(ns, k)
  local found = redis.call('SCAN', k.cursor, 'MATCH', ns .. ':[hdq]:{*', 'COUNT', k.complete and 100 or 1000)
  k.cursor = found[1]
  for _, name in ipairs(found[2]) do learn(ns, name) end
  if k.cursor == '0' then k.complete, k.missed = not k.missed, false end
end

-- ---------------------------------------------------------------------------------------------------------------
-- Holds
-- ---------------------------------------------------------------------------------------------------------------

local kinds = {}

-- What follows CLASS and the other names for holds of that kind: nothing, or a colon and the field of the hash.
local function part_of(kind, arguments)
  return kinds[kind].of_field and ':' .. arguments[1] or ''
end

-- Adds to (or with sign -1, subtracts from) the sum of what holds will add to the counter in the direction of delta.
local function add_held(name, part, delta, sign)
  local sum = (delta < 0 and LESS or MORE) .. part
  local left = redis.call('HINCRBY', name, sum, string.format('%.0f', 0 + sign * delta))
  if left == 0 then redis.call('HDEL', name, sum) end
end

-- c is the call, see effect(). made_by is what kinds.set keeps, or nil.
local function add_hold(c, key, kind, arguments, made_by)
  local name, of_kind, part = beside(c.ns, 'h', key), kinds[kind], part_of(kind, arguments)
  local hold = { k = kind, top = c.top, at = now_ms(), a = arguments, d = c.durable ~= '' and c.durable or nil,
                 before = of_kind.ordered and c.before ~= '' and c.before or nil, made_by = made_by }
  redis.call('HSET', name, c.id, cmsgpack.pack(hold), CLASS, of_kind.class)
  if of_kind.alone then redis.call('HSET', name, OWNER .. part, c.top) end
  redis.call('HINCRBY', name, COUNT, 1)
  if of_kind.of_field then
    redis.call('HSET', name, CLASS .. part, kind)
    redis.call('HINCRBY', name, COUNT .. part, 1)
  end
  if of_kind.delta then add_held(name, part, of_kind.delta(arguments), 1) end
  learn(c.ns, name)
end

local function drop_hold(ns, name, id, hold)
  local part = part_of(hold.k, hold.a)
  if redis.call('HDEL', name, id) == 0 then return end
  if redis.call('HINCRBY', name, COUNT, -1) <= 0 then
    redis.call('UNLINK', name)
    unlearn(ns, name)
    return
  end
  if kinds[hold.k].delta then add_held(name, part, kinds[hold.k].delta(hold.a), -1) end
  if part ~= '' and redis.call('HINCRBY', name, COUNT .. part, -1) <= 0 then
    redis.call('HDEL', name, CLASS .. part, COUNT .. part, OWNER .. part)
  end
end

local function read_hold(name, id)
  local raw = redis.call('HGET', name, id)
  return raw and cmsgpack.unpack(raw)
end

-- A reply with the word and the names of up to MOST_HOLDERS holds on the key, or on that field of the hash. The caller
-- knows which of these transactions have ended.
local function refused_by_holders(word, name, field)
  local reply, cursor, steps, bytes = { word }, '0', STEPS, BYTES
  repeat
    local found = redis.call('HSCAN', name, cursor, 'COUNT', 10)
    cursor, steps = found[1], steps - 1
    for i = 1, #found[2], 2 do
      if is_hold(found[2][i]) and #reply <= MOST_HOLDERS
        and (not field or cmsgpack.unpack(found[2][i + 1]).a[1] == field) then
        reply[#reply + 1] = found[2][i]
      end
      bytes = bytes - #found[2][i + 1]
    end
  until cursor == '0' or #reply > MOST_HOLDERS or steps == 0 or bytes < 0
  return reply
end

-- For kinds that are `alone`: whether this transaction has holds on the key. If another one has, nil and the reply.
local function is_owner(c)
  local owner = redis.call('HGET', c.name, OWNER)
  if owner and owner ~= c.top then return nil, refused_by_holders('busy', c.name) end
  return owner == c.top
end

-- ttl is in ms. '' keeps the present one, '0' means none, and with '@' in front it is a point in time.
local function set_value(key, value, ttl)
  if ttl == '' then
    redis.call('SET', key, value, 'KEEPTTL')
  elseif ttl == '0' then
    redis.call('SET', key, value)
  elseif sub(ttl, 1, 1) == '@' then
    redis.call('SET', key, value, 'PXAT', sub(ttl, 2))
  else
    redis.call('SET', key, value, 'PX', ttl)
  end
end

local function set_ttl(key, ttl)
  if ttl == '0' then
    redis.call('PERSIST', key)
  elseif sub(ttl, 1, 1) == '@' then
    redis.call('PEXPIRE', key, string.format('%.0f', tonumber(sub(ttl, 2)) - now_ms()))
  elseif ttl ~= '' then
    redis.call('PEXPIRE', key, ttl)
  end
end

-- ---------------------------------------------------------------------------------------------------------------
-- The kinds of effects. At one time all holds on a key are of one class.
--   alone     only one transaction at a time has holds on the key (with of_field: on the field)
--   of_field  the holds are on fields of a hash, and those on one field are of one kind
--   ordered   the holds of one transaction are applied in their order
--   delta     for counters: returns what the hold adds
--   prepare   (c, arguments, checks): calls add_hold and returns 'held ...', or returns why not
--   apply     (key, arguments, id, ns): executes the effect; may return 'lost'
--   undo      (key, arguments, id, ns): only for kinds that must undo more than the hold
--   takes     the types of the first arguments, see TAKES
--   other     the first argument is the second key
--   checks    the least number of checks
-- ---------------------------------------------------------------------------------------------------------------

-- m: milliseconds or ''; e: an expiry, see set_value(); n: an integer; t: any text.
local TAKES = { m = '^%d*$', e = '^@?%d*$', n = '^%-?%d+$', t = '' }

local function takes(kind, keys, arguments, checks)
  if keys[2] ~= (kind.other and arguments[1] or nil) then return false end
  for i = 1, #kind.takes do
    local what = sub(kind.takes, i, i)
    if not arguments[i] or not find(arguments[i], TAKES[what]) then return false end
    if what == 'e' and arguments[i] == '@' then return false end
  end
  return not checks or #checks >= (kind.checks or 0)
end

-- once | ttl -> held | own [result] | done result | busy holder...
kinds.once = { class = 'once', alone = true, ordered = true, takes = 'e' }

function kinds.once.prepare(c, a)
  local own, busy = is_owner(c)
  if busy then return busy end
  if own and c.before ~= '' then
    local last = read_hold(c.name, c.before)
    return { 'own', last and last.k == 'result' and last.a[1] or nil }
  end
  local result = redis.call('GET', c.key)
  if result then return { 'done', result } end
  add_hold(c, c.key, 'once', a)
  return { 'held' }
end

function kinds.once.apply(key, a)
  set_value(key, 'null', a[1])
end

-- result | text -> held | none. Sets the result of the `once` that the transaction made before.
kinds.result = { class = 'once', alone = true, ordered = true, takes = 't' }

function kinds.result.prepare(c, a)
  local own, busy = is_owner(c)
  if busy then return busy end
  if not own then return { 'none' } end
  add_hold(c, c.key, 'result', a)
  return { 'held' }
end

function kinds.result.apply(key, a)
  redis.call('SET', key, a[1], 'XX', 'KEEPTTL')
end

-- set | how value ttl ; expects expected -> held found value | differs found value | nothing | busy holder...
-- how: 'set', 'del', or 'ttl' (the value stays); expects: '' (anything), '=' (that text), '0' (no key). The value in
-- the answer is the one that this transaction sees, so it includes what the transaction itself will do. made_by is the
-- hold that makes the value: this one, or an earlier one if this is a 'ttl'.
kinds.set = { class = 'set', alone = true, ordered = true, takes = 'tte', checks = 1 }

function kinds.set.prepare(c, a, checks)
  local own, busy = is_owner(c)
  if busy then return busy end
  local value = redis.call('GET', c.key)
  local last = own and c.before ~= '' and read_hold(c.name, c.before)
  local made_by = last and last.made_by
  local maker = made_by and (made_by == c.before and last or read_hold(c.name, made_by))
  if maker then value = maker.a[1] == 'set' and maker.a[2] end
  local answer = { 'held', value and '1' or '0', value or '' }
  if (checks[1] == '=' and value ~= checks[2]) or (checks[1] == '0' and value) then
    answer[1] = 'differs'
  elseif not value and a[1] ~= 'set' then
    answer[1] = 'nothing'
  else
    add_hold(c, c.key, 'set', a, a[1] == 'ttl' and made_by or c.id)
  end
  return answer
end

function kinds.set.apply(key, a)
  if a[1] == 'set' then
    set_value(key, a[2], a[3])
  elseif a[1] == 'del' then
    redis.call('UNLINK', key)
  else
    set_ttl(key, a[3])
  end
end

-- counter | delta ; min max clamp -> held value delta | bound value holder... | inexact
-- The counter stays within its bounds, whichever of the other holds are applied. value includes all holds in that
-- direction. If clamp is not '', as much of delta is held as the bounds allow; the answer says how much, and the row of
-- a durable effect keeps that.
kinds.counter = { class = 'counter', takes = 'n', checks = 3 }

function kinds.counter.delta(a)
  return tonumber(a[1])
end

local function whole_number(s)
  return find(s, '^-?%d+$') and #s <= 17 and tonumber(s) or nil
end

-- The value of the counter; nil if INCRBY could not count it.
local function count_of(key, field)
  local text = (field and redis.call('HGET', key, field) or not field and redis.call('GET', key)) or '0'
  local value = (text == '0' or find(text, '^%-?[1-9]%d*$')) and whole_number(text)
  return value and math.abs(value) <= EXACT and value or nil
end

-- Returns the highest (or lowest) value that the counter can reach with delta, and the delta that the bounds allow. If
-- the bounds forbid it: nil and the present value. If the value cannot be counted: nil.
local function counter_after(ns, key, field, delta, bounds)
  local value = count_of(key, field)
  if not value then return nil end
  local part = field and ':' .. field or ''
  local held = tonumber(redis.call('HGET', beside(ns, 'h', key), (delta < 0 and LESS or MORE) .. part) or '0')
  local bound, excess = delta < 0 and bounds.min or delta > 0 and bounds.max or nil, 0
  if bound then excess = delta < 0 and bound - (value + held + delta) or value + held + delta - bound end
  if excess > 0 then
    if not bounds.clamp then return nil, value end
    local amount = math.max(math.abs(delta) - excess, 0)
    delta = delta < 0 and 0 - amount or amount
  end
  if math.abs(value + held + delta) > EXACT then return nil end
  return value + held + delta, delta
end

local function bounds_of(checks)
  return { min = whole_number(checks[1]), max = whole_number(checks[2]), clamp = checks[3] ~= '' }
end

local function refused_by_bound(word, value, name, field)
  if not value then return { 'inexact' } end
  local reply = refused_by_holders(word, name, field)
  table.insert(reply, 2, string.format('%.0f', value))
  return reply
end

-- Holds as much of arguments[place] as the bounds allow. If the call comes twice, holds what it held the first time.
local function hold_counter(c, kind, field, arguments, place, checks)
  if c.again then arguments[place] = c.again.a[place] end
  local after, delta = counter_after(c.ns, c.key, field, tonumber(arguments[place]), bounds_of(checks))
  if not after then return refused_by_bound('bound', delta, c.name, field) end
  arguments[place] = string.format('%.0f', delta)
  add_hold(c, c.key, kind, arguments)
  return { 'held', string.format('%.0f', after), arguments[place] }
end

function kinds.counter.prepare(c, a, checks)
  return hold_counter(c, 'counter', nil, a, 1, checks)
end

function kinds.counter.apply(key, a)
  redis.call('INCRBY', key, a[1])
end

-- transfer <from> <to> | to amount ; min max clamp -> held value amount | bound value holder... |
-- full value holder... | inexact
-- The hold on `to` (received) only reserves the amount there. Both holds end when that on `from` does.
kinds.transfer = { class = 'counter', takes = 'tn', other = true, checks = 3 }
kinds.received = { class = 'counter' }

function kinds.transfer.delta(a) return 0 - tonumber(a[2]) end
function kinds.received.delta(a) return tonumber(a[2]) end

function kinds.transfer.prepare(c, a, checks)
  local to, bounds = a[1], bounds_of(checks)
  if c.again then a[2] = c.again.a[2] end
  local left, less = counter_after(c.ns, c.key, nil, 0 - tonumber(a[2]), { min = bounds.min, clamp = bounds.clamp })
  if not left then return refused_by_bound('bound', less, c.name) end
  local arrives, more = counter_after(c.ns, to, nil, math.abs(less), { max = bounds.max, clamp = bounds.clamp })
  if not arrives then return refused_by_bound('full', more, beside(c.ns, 'h', to)) end
  a[2] = string.format('%.0f', more)
  add_hold(c, c.key, 'transfer', a)
  add_hold(c, to, 'received', { c.key, a[2] })
  return { 'held', string.format('%.0f', left - less - more), a[2] }
end

local function drop_received(a, id, ns)
  local name = beside(ns, 'h', a[1])
  local other = read_hold(name, id)
  if other then drop_hold(ns, name, id, other) end
end

function kinds.transfer.apply(key, a, id, ns)
  redis.call('INCRBY', a[1], a[2])
  local answer = redis.pcall('DECRBY', key, a[2])
  if type(answer) == 'table' and answer.err then
    redis.call('DECRBY', a[1], a[2])   -- both counters change, or none; the transfer is tried again
    error(answer)
  end
  drop_received(a, id, ns)
end

function kinds.transfer.undo(_, a, id, ns)
  drop_received(a, id, ns)
end

-- append | form entry stamp most -> held. form: list, zset, stream, or queue (then most is the lease of a job, in ms).
-- An entry is "<stamp> <n> <text>". In a stream it is the fields stamp, n and entry.
kinds.append = { class = 'log', ordered = true, takes = 'tttm' }

local FORM_TYPES = { list = 'list', queue = 'list', zset = 'zset', stream = 'stream' }

function kinds.append.prepare(c, a)
  local there = redis.call('TYPE', c.key).ok
  if there ~= 'none' and there ~= FORM_TYPES[a[1]] then return { 'type', c.key } end
  add_hold(c, c.key, 'append', a)
  return { 'held' }
end

-- How many entries one append removes from a log of that length. If more are too many, the next append removes them.
local function to_trim(length, most)
  return most ~= '' and math.min(length - tonumber(most), TRIMMED) or 0
end

local function entry_text(id, stamp, entry)
  return stamp .. ' ' .. match(id, '(%d+)$') .. ' ' .. entry
end

-- Appends nothing twice: commands that may fail run before the entry is appended, or their failure does not matter.
function kinds.append.apply(key, a, id, ns)
  local form, entry, stamp, most = a[1], a[2], a[3], a[4]
  local text = entry_text(id, stamp, entry)
  if form == 'list' then
    local excess = to_trim(redis.call('RPUSH', key, text), most)
    if excess > 0 then redis.pcall('LTRIM', key, excess, -1) end
  elseif form == 'queue' then
    redis.call('HSET', beside(ns, 'q', key), 'lease', most)
    learn(ns, beside(ns, 'q', key))
    redis.call('LPUSH', key, text)
  elseif form == 'zset' then
    redis.call('ZADD', key, now_ms(), text)
    local excess = to_trim(most ~= '' and redis.call('ZCARD', key) or 0, most)
    if excess > 0 then redis.pcall('ZREMRANGEBYRANK', key, 0, excess - 1) end
  else
    redis.call('XADD', key, '*', 'stamp', stamp, 'n', match(id, '(%d+)$'), 'entry', entry)
    if most ~= '' then redis.pcall('XTRIM', key, 'MAXLEN', '~', most, 'LIMIT', TRIMMED) end
  end
end

-- hash_set | field log stamp how value -> held | busy holder... | type key. how: 'set' or 'del'.
-- hash_add | field log stamp delta ; min max clamp -> as counter, busy or type.
-- log: '' or a list in the key's slot, to which the old value of the field is appended, in the form of append.
kinds.hash_set = { class = 'hash', of_field = true, alone = true, ordered = true, takes = 'ttttt' }
kinds.hash_add = { class = 'hash', of_field = true, ordered = true, takes = 'tttn', checks = 3 }

function kinds.hash_add.delta(a) return tonumber(a[4]) end

-- The reply that says why the field cannot get a hold of that kind; nil if it can.
local function field_refused(c, kind, a)
  local field, log, part = a[1], a[2], ':' .. a[1]
  local there = redis.call('TYPE', c.key).ok
  if there ~= 'none' and there ~= 'hash' then return { 'type', c.key } end
  there = log ~= '' and redis.call('TYPE', log).ok
  if there and there ~= 'none' and there ~= 'list' then return { 'type', log } end
  local present, owner = unpack(redis.call('HMGET', c.name, CLASS .. part, OWNER .. part))
  if not present or (present == kind and (owner or c.top) == c.top) then return nil end
  return owner == c.top and { 'mixed' } or refused_by_holders('busy', c.name, field)
end

function kinds.hash_set.prepare(c, a)
  local refused = field_refused(c, 'hash_set', a)
  if refused then return refused end
  add_hold(c, c.key, 'hash_set', a)
  return { 'held' }
end

function kinds.hash_add.prepare(c, a, checks)
  return field_refused(c, 'hash_add', a) or hold_counter(c, 'hash_add', a[1], a, 4, checks)
end

-- The log entry for a field that is about to change.
local function old_of_field(key, field)
  local bytes = redis.call('HSTRLEN', key, field)
  if bytes > LOGGED then return string.format('{"field":%s,"bytes":%d}', cjson.encode(field), bytes) end
  local old = redis.call('HGET', key, field)
  return '{"field":' .. cjson.encode(field) .. ',"old":' .. (old and cjson.encode(old) or 'null') .. '}'
end

-- Changes the field and appends to its log. If the change fails, removes the log entry; the effect is tried again.
local function change_field(key, a, id, command, ...)
  local field, log, stamp = a[1], a[2], a[3]
  if log ~= '' then redis.call('RPUSH', log, entry_text(id, stamp, old_of_field(key, field))) end
  local answer = redis.pcall(command, key, field, ...)
  if type(answer) == 'table' and answer.err then
    if log ~= '' then redis.call('LTRIM', log, 0, -2) end
    error(answer)
  end
end

function kinds.hash_set.apply(key, a, id)
  if a[4] == 'set' then change_field(key, a, id, 'HSET', a[5]) else change_field(key, a, id, 'HDEL') end
end

function kinds.hash_add.apply(key, a, id)
  change_field(key, a, id, 'HINCRBY', a[4])
end

-- publish | ttl form -> held. form: string or hash. The pieces of the value follow, see effect_piece(). A small value
-- comes with the request (from a[3] on), and is not built in a shadow key.
kinds.publish = { class = 'publish', alone = true, ordered = true, takes = 'et' }

local function shadow_of(ns, key, id)
  return beside(ns, 's', key) .. ':' .. id
end

function kinds.publish.prepare(c, a)
  local _, busy = is_owner(c)
  if busy then return busy end
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
  if ttl == '' then ttl = string.format('%.0f', math.max(redis.call('PTTL', key), 0)) end
  -- RENAME would free the old value at once, which takes long if it is large
  local old = redis.call('EXISTS', key) == 1 and shadow .. ':old'
  if old then redis.call('RENAME', key, old) end
  redis.call('RENAME', shadow, key)
  if old then redis.call('UNLINK', old) end
  set_ttl(key, ttl)
end

function kinds.publish.undo(key, _, id, ns)
  redis.call('UNLINK', shadow_of(ns, key, id))
end

-- ---------------------------------------------------------------------------------------------------------------
-- The life cycle
-- ---------------------------------------------------------------------------------------------------------------

-- Marks a durable effect as applied, so that nobody applies it again. The mark outlives the row for a while, because a
-- redo that was sent earlier may arrive after the one that was answered.
local function mark_done(ns, key, id, database)
  local name = beside(ns, 'd', key)
  redis.call('HSET', name, id, database .. ' ' .. string.format('%.0f', now_ms()))
  learn(ns, name)
end

-- Whether another hold of the same transaction must be applied first. Each hold is applied after the previous one, so
-- only that one matters.
local function has_earlier(name, hold)
  return hold.before and redis.call('HEXISTS', name, hold.before) == 1
end

-- Whether a durable effect was applied. A hold of it that arrives later has no effect.
local function is_done(ns, key, id)
  return redis.call('HEXISTS', beside(ns, 'd', key), id) == 1
end

-- Ends one hold. Returns 'ended', 'none' (there is no such hold) or 'later' (another hold must be applied first).
local function end_one(ns, key, id, verb)
  local name = beside(ns, 'h', key)
  local hold = read_hold(name, id)
  if not hold then return 'none' end
  if hold.k == 'received' then
    local answer = end_one(ns, hold.a[1], id, verb)
    if answer == 'none' then drop_hold(ns, name, id, hold) end
    return answer
  end
  local kind = kinds[hold.k]
  if verb == 'apply' and not (hold.d and is_done(ns, key, id)) then
    if has_earlier(name, hold) then return 'later' end
    local answer = kind.apply(key, hold.a, id, ns)
    if hold.d and answer ~= 'lost' then mark_done(ns, key, id, hold.d) end
  elseif kind.undo then
    kind.undo(key, hold.a, id, ns)
  end
  drop_hold(ns, name, id, hold)
  return 'ended'
end

local function are_strings(function_name, ns, keys)
  if not is_namespace(ns) then return bad(function_name, 'expected a namespace') end
  for _, key in ipairs(keys) do
    if not is_effect_key(ns, key) then return bad(function_name, 'no effect may touch this key') end
  end
end

-- All keys that an effect of that kind changes.
local function touched(kind, keys, arguments)
  return kind.of_field and arguments[2] ~= '' and { keys[1], arguments[2] } or keys
end

-- effect <key> [<key>] | namespace hold top before durable kind n argument... check... -> held ... | why not ...
-- before: the previous hold of the transaction on the (first) key that it has not rolled back, or ''. durable: the
-- database that has the effect's row, or ''. A call that comes twice counts once.
local function effect(keys, args)
  local kind, n = kinds[args[6] or ''], whole(args[7] or '')
  if #keys < 1 or #keys > 2 or not n or #args < 7 + n or not kind or not kind.prepare or not is_hold(args[2]) then
    return bad('fence_effect', 'expected keys, namespace, hold, transaction, hold before, durable, kind and arguments')
  end
  local arguments, checks = { unpack(args, 8, 7 + n) }, { unpack(args, 8 + n) }
  if not takes(kind, keys, arguments, checks) then return bad('fence_effect', 'malformed argument of this kind') end
  local wrong = are_strings('fence_effect', args[1], touched(kind, keys, arguments))
  if wrong then return wrong end
  local c = { ns = args[1], id = args[2], top = args[3], before = args[4], durable = args[5], key = keys[1] }
  c.name = beside(c.ns, 'h', c.key)
  c.again = read_hold(c.name, c.id)
  end_one(c.ns, c.key, c.id, 'undo')
  for _, key in ipairs(keys) do
    local name = beside(c.ns, 'h', key)
    local class, owner = unpack(redis.call('HMGET', name, CLASS, OWNER))
    if class and class ~= kind.class then
      return owner == c.top and { 'mixed' } or refused_by_holders('busy', name)
    end
  end
  return kind.prepare(c, arguments, checks)
end

-- effect_piece <key> | namespace hold offset form piece... -> built. Adds a piece to the value that the hold publishes:
-- a part of a string, or field, value, ... of a hash. A piece that comes twice counts once. form: '' if the hold must
-- exist; string or hash if effect_redo has asked for the value.
local function effect_piece(keys, args)
  local ns, id, offset = args[1], args[2], whole(args[3] or '')
  local form = args[4]
  if #keys ~= 1 or #args < 5 or not is_hold(id) or not offset then
    return bad('fence_effect_piece', 'expected a key, namespace, hold, offset, form and piece')
  end
  local wrong = are_strings('fence_effect_piece', ns, keys)
  if wrong then return wrong end
  local hold = form == '' and read_hold(beside(ns, 'h', keys[1]), id)
  if form == '' and (not hold or hold.k ~= 'publish') then return bad('fence_effect_piece', 'the hold is gone') end
  local shadow = shadow_of(ns, keys[1], id)
  if (hold and hold.a[2] or form) == 'hash' then
    redis.call('HSET', shadow, unpack(args, 5))
  elseif offset == 0 then
    redis.call('SET', shadow, args[5])
  else
    redis.call('SETRANGE', shadow, offset, args[5])
  end
  if not hold then redis.call('PEXPIRE', shadow, ROW_SHADOW_MS) end
  return { 'built' }
end

-- effects_end | namespace apply|undo (key hold)... [echo] -> ended
-- The keys are arguments, because they are in many slots. If one effect cannot be ended, the others are ended
-- nevertheless, and the reply is the error.
local function effects_end(_, args)
  local ns, verb, failed = args[1], args[2], nil
  if #args < 4 or #args > 2 + 2 * MOST_ENDS or #args % 2 ~= 0 or not is_namespace(ns)
    or (verb ~= 'apply' and verb ~= 'undo') then
    return bad('fence_effects_end', 'expected namespace, apply or undo, and 1 to 1000 pairs of key and hold')
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

-- effect_redo <key> [<key>] | namespace hold database kind argument... -> done | value. Applies a durable effect from
-- its row, after its transaction has committed, unless it was applied before. value: the caller must first send the
-- value that is to be published.
local function effect_redo(keys, args)
  local ns, id, kind = args[1], args[2], kinds[args[4] or '']
  local arguments = {}
  for i = 5, #args do arguments[i - 4] = args[i] end      -- too many for unpack
  if #keys < 1 or not kind or not kind.apply or not is_hold(id) or not takes(kind, keys, arguments) then
    return bad('fence_effect_redo', 'expected key, namespace, hold, database, kind and arguments')
  end
  local wrong = are_strings('fence_effect_redo', ns, touched(kind, keys, arguments))
  if wrong then return wrong end
  if is_done(ns, keys[1], id) then return { 'done' } end
  local answer = end_one(ns, keys[1], id, 'apply')
  if answer == 'later' then return bad('fence_effect_redo', 'another effect has to be applied before') end
  if answer == 'none' or not is_done(ns, keys[1], id) then
    if kind.apply(keys[1], arguments, id, ns) == 'lost' then return { 'value' } end
    mark_done(ns, keys[1], id, args[3])
  end
  return { 'done' }
end

-- effects_forget | namespace (key hold)... -> forgotten. Deletes the marks of durable effects whose rows are deleted.
local function effects_forget(_, args)
  if #args % 2 ~= 1 or #args > 1 + 2 * MOST_ENDS or not is_namespace(args[1]) then
    return bad('fence_effects_forget', 'expected namespace and up to 1000 pairs of key and hold')
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

-- The entries of a log from a place on, newest first, and the place after them ('' at the end). A place is a number of
-- entries, counted from the newest; in a stream it is the id of the last entry that was seen.
local function entries_from(key, form, place, n)
  local found
  if form == 'stream' then
    found = redis.call('XREVRANGE', key, place == '0' and '+' or '(' .. place, '-', 'COUNT', n)
    return found, #found == n and found[n][1] or ''
  end
  local from = whole(place) or 0
  found = redis.call(form == 'list' and 'LRANGE' or 'ZRANGE', key, -from - n, -from - 1)
  local newest_first = {}
  for i = #found, 1, -1 do newest_first[#newest_first + 1] = found[i] end
  return newest_first, #found == n and string.format('%d', from + n) or ''
end

-- log_stamps <key> | most place -> place stamp... The stamps of up to `most` entries, newest first; '' for an entry
-- without a stamp. Begin with place '0', and continue with the place in the reply, until that is ''.
local function log_stamps(keys, args)
  local most = args[1] and whole(args[1])
  if #keys ~= 1 or #args ~= 2 or not most or most < 1 or not find(args[2], '^%d+%-?%d*$') then
    return bad('fence_log_stamps', 'expected a key, a number and a place')
  end
  local form, reply, place, bytes = redis.call('TYPE', keys[1]).ok, { '' }, args[2], BYTES
  if form ~= 'list' and form ~= 'zset' and form ~= 'stream' then return reply end
  most = math.min(most, FIELDS)
  repeat
    local entries
    entries, place = entries_from(keys[1], form, place, math.min(10, most - #reply + 1))
    for _, entry in ipairs(entries) do
      local fields = form == 'stream' and entry[2]
      if fields then
        reply[#reply + 1] = fields[1] == 'stamp' and fields[2] or ''
      else
        reply[#reply + 1] = match(entry, '^(%S+) %d+ ') or ''
      end
      bytes = bytes - #(fields and fields[#fields] or entry)
    end
  until place == '' or #reply > most or bytes < 0
  reply[1] = place
  return reply
end

-- ---------------------------------------------------------------------------------------------------------------
-- For the patrol
-- ---------------------------------------------------------------------------------------------------------------

-- Goes one step through a hash of holds, or of marks (kind 'done <database>'). Adds to the reply what the patrol must
-- settle, in no order. Returns the cursor of the next step, '0' at the end, and the number of bytes that it has read.
local function list_name(ns, name, cursor, reply, min_age)
  local letter, key = beside_what(ns, name)
  local now, bytes = now_ms(), 0
  local found = redis.pcall('HSCAN', name, cursor, 'COUNT', 10)
  if found.err or (cursor == '0' and found[1] == '0' and #found[2] == 0) then
    unlearn(ns, name)                  -- it is gone, in another process, or of another type
    return '0', 0
  end
  local function list(id, kind, top, since)
    local n = #reply
    reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4] = key, id, kind, top
    reply[n + 5] = string.format('%.0f', math.max(now - since, 0))
  end
  for i = 1, #found[2], 2 do
    local id, raw = found[2][i], found[2][i + 1]
    bytes = bytes + #raw
    if letter == 'd' then
      local database, since = match(raw, '^(%d+) (%d+)$')
      if since and tonumber(since) <= now - MARK_MS then list(id, 'done ' .. database, '', since) end
    elseif is_hold(id) then
      local hold = cmsgpack.unpack(raw)
      if hold.at <= now - min_age then list(id, hold.k, hold.top, hold.at) end
    end
  end
  return found[1], bytes
end

-- effects | namespace min_age_ms limit cursor -> cursor (key hold kind transaction age_ms)... Begin with cursor '', and
-- continue until the reply has ''. A page may be empty. A hold that changes meanwhile may be listed twice, or not
-- before the next round. Cursors: "look <steps>" while SCAN finds names, then "<place in the list of names> <cursor of
-- HSCAN>".
local function effects(_, args)
  local min_age, limit = args[2] and whole(args[2]), args[3] and whole(args[3])
  if #args ~= 4 or not is_namespace(args[1]) or not min_age or not limit or limit < 1 then
    return bad('fence_effects', 'expected namespace, age, limit and cursor')
  end
  local ns, reply, steps, bytes = args[1], { '' }, STEPS, BYTES
  local k = known_of(ns)
  local looks = args[4] == '' and LOOKS or whole(match(args[4], '^look (%d+)$') or '')
  if looks then
    look_around(ns, k)
    if looks > 1 and not k.complete and k.cursor ~= '0' then return { 'look ' .. (looks - 1) } end
  end
  local place, cursor = match(args[4], '^(%d+) (%d+)$')
  place = place and whole(place) or k.holds.n
  if place > k.holds.n then place, cursor = k.holds.n, '0' end
  cursor = cursor or '0'
  while place > 0 and #reply < 5 * limit and steps > 0 and bytes > 0 do
    local read
    cursor, read = list_name(ns, k.holds.names[place], cursor, reply, min_age)
    steps, bytes = steps - 1, bytes - read
    if cursor == '0' then place = place - 1 end
  end
  if place > 0 then reply[1] = place .. ' ' .. cursor end
  return reply
end

-- The list into which consumers move the jobs on which they work.
local function processing_of(queue)
  return match(queue, '^[^{]*{[^}]+}') and queue .. ':processing' or '{' .. queue .. '}:processing'
end

-- The field with a job's deadline. Its name is "<stamp> <n>", the beginning of the entry that enqueue made.
local function field_of(job)
  return match(job, '^(%S+ %d+) ') or redis.sha1hex(job)
end

-- Up to 1,000 jobs, those that were taken first, or fewer if they have many bytes; and whether these are all. Consumers
-- add jobs in front (LMOVE ... LEFT).
local function jobs_taken(processing)
  local taken, bytes = {}, 4 * BYTES
  repeat
    local some = redis.call('LRANGE', processing, -#taken - 10, -#taken - 1)
    for i = #some, 1, -1 do
      taken[#taken + 1] = some[i]
      bytes = bytes - #some[i]
    end
    if #some < 10 then return taken, true end
  until #taken >= 1000 or bytes < 0
  return taken, false
end

-- Drops deadlines of jobs that no consumer has any more. If `is_taken` has all taken jobs, these are the jobs that it
-- does not have; else only those whose deadlines passed long ago. Goes one step with each call.
local function forget_deadlines(name, cursor, is_taken, all, long_ago)
  local found = redis.call('HSCAN', name, cursor, 'COUNT', 1000)
  for i = 1, #found[2], 2 do
    local field = found[2][i]
    if field ~= 'lease' and not is_taken[field] and (all or (tonumber(found[2][i + 1]) or 0) < long_ago) then
      redis.call('HDEL', name, field)
    end
  end
  return found[1]
end

-- Gives each taken job a deadline when it sees the job first. Returns a job to the queue, as the next one, when its
-- deadline has passed. Returns the number of these jobs, the next cursor of forget_deadlines(), and how many jobs it
-- saw.
local function look_at_queue(name, queue, cursor)
  local processing, now, returned = processing_of(queue), now_ms(), 0
  local lease = tonumber(redis.call('HGET', name, 'lease') or '0')
  local taken, all = jobs_taken(processing)
  local is_taken = {}
  for _, job in ipairs(taken) do
    local field = field_of(job)
    local till = tonumber(redis.call('HGET', name, field) or nil)
    is_taken[field] = true
    if not till then
      redis.call('HSET', name, field, string.format('%.0f', now + lease))
    elseif till <= now then
      redis.call('LREM', processing, -1, job)
      redis.call('RPUSH', queue, job)
      redis.call('HDEL', name, field)
      returned = returned + 1
    end
  end
  cursor = forget_deadlines(name, cursor, is_taken, all, now - lease)
  if #taken == 0 and redis.call('EXISTS', queue) == 0 then redis.call('UNLINK', name) end
  return returned, cursor, #taken
end

-- queues | namespace cursor -> returned cursor. Returns abandoned jobs to their queues, and replies how many. Begin
-- with cursor '', and continue until the reply has ''.
local function queues(_, args)
  if #args ~= 2 or not is_namespace(args[1]) then return bad('fence_queues', 'expected a namespace and a cursor') end
  local list = known_of(args[1]).queues
  local place = math.min(whole(args[2]) or list.n, list.n)
  local returned, looked, last = 0, 0, place - 50
  while place > 0 and place > last and looked < 100 do
    local name = list.names[place]
    local _, queue = beside_what(args[1], name)
    local ok, n, cursor, jobs = pcall(look_at_queue, name, queue, list.cursors[name] or '0')
    if ok then
      returned, looked, list.cursors[name] = returned + n, looked + jobs, cursor
    end
    if not ok or redis.call('EXISTS', name) == 0 then unlearn(args[1], name) end
    place = place - 1
  end
  return { tostring(returned), place > 0 and tostring(place) or '' }
end

register_keyed('fence_effect', effect)
register_keyed('fence_effect_piece', effect_piece)
register_keyed('fence_effects_end', echoing(effects_end), { 'allow-cross-slot-keys' })
register_keyed('fence_effect_redo', effect_redo)
register_keyed('fence_effects_forget', effects_forget, { 'allow-cross-slot-keys' })
register_keyed('fence_effect_read', effect_read, { 'no-writes' })
register_keyed('fence_log_stamps', log_stamps, { 'no-writes' })
register_keyed('fence_effects', effects, { 'no-writes', 'allow-cross-slot-keys' })
register_keyed('fence_queues', queues, { 'allow-cross-slot-keys' })

end
