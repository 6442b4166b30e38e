#!lua name=pgcache_fence
--
-- pgcache_fence: the function library inside Redis (Redis >= 7.0, Valkey >= 7.2).
--
-- Owns: the fences and reservations of every namespace, and the right to answer for them (doc/protocol.md).
--   * A fence is a key, "<token> <version> [<stamp> ]<key>\n<payload>" (a mark, "<token> <version> ", stands for values
--     beside it). <key> is what follows the domain in the fence's name, so a reader sees whose record it has got.
--     The invariant: a fence that begins with its domain's present token is current. So a fence may vanish at any time
--     (eviction, expiry, FLUSHALL). But only this library may make a fence, and nothing may bring one back.
--   * A reservation says that a transaction may commit another version. It is a Lua variable, which lives and dies with
--     this process. So reservations can be trusted: a process that lost them has lost the right to answer, too.
-- Several processes may share the keys (Redis Cluster, shards). A process answers readers and grants reservations only
-- in the slots for which it was armed (arming.lua), whatever the cluster says about these slots meanwhile.
-- Rules every function keeps:
--   * Any redis.call may fail (READONLY, OOM), and variables are not rolled back. So a function records a reservation
--     before it deletes the fence, and removes it before it stores a fence. A failure in between leaves a needless
--     reservation, which the patrol ends, or a miss.
--   * Fences are in database 0. Writers' connections use it by default, which saves a SELECT in each call.
--   * Versions are text, and the library never compares them.
--   * Numbers that order events (reservations, ends, tokens) are drawn from one counter of this process.

local LIBRARY_VERSION = '1'
local MAX_NAME = 4096                  -- bytes in the name of a fence, value or domain
local MAX_FENCES = 1000                -- maximum in one call
local MAX_STAMP = 100
local MAX_PAYLOAD = 4 * 1024 * 1024    -- bytes of a payload that a reader puts
local MAX_LINE = MAX_NAME + 200        -- bytes of a line that names a source of a derived value
local LOOKED_AT = 65536                -- bytes of such a value that are looked at first
local LONGEST_TTL = 30 * 86400000      -- ms; or the default time to live, if that is longer
local GONE_KEPT = 1000                 -- see forget_domain()
local ENDS_KEPT = 10000                -- see note_end()
local USUAL_NAME = 200                 -- bytes; longer names count for several where the number of names is bounded
local MOST_RESERVED = 100000           -- reserved fences; beyond it, a domain that has more than ...
local FEW_RESERVED = 1000              -- ... this many is reserved as a whole
local LITTLE_KB, GARBAGE_KB = 4096, 16384 -- see collect_garbage()

local identity = nil                   -- of this process; the first hello sets it
local spaces = {}                      -- namespace -> see new_space()
local headers = {}                     -- "<namespace> <epoch>", as writers send it -> space
local routes = {}                      -- "<namespace>:f:<domain>:" -> domain; known domains only
local counter = 0                      -- of this process; goes up only
local buckets, fills, hot = {}, {}, {} -- functions of buckets.lua, fills.lua and hot.lua
local to_sample = 1                    -- calls until the next sample for hot.lua, of these kinds:
local TOKEN, GET, WRITE = 1, 2, 3

-- While a library loads, Redis 7.0 has no global but redis, and no redis.call. So get string's functions from a string.
-- register_keyed() and so arm() set redis.call and redis.pcall, before any function touches a key.
local find, match, sub, byte = ('').find, ('').match, ('').sub, ('').byte
local call, try = nil, nil

-- ---------------------------------------------------------------------------------------------------------------
-- Small tools
-- ---------------------------------------------------------------------------------------------------------------

local function bad(name, why)
  return redis.error_reply('ERR ' .. name .. ': ' .. why)
end

-- Returns the time of this node's clock in ms. Every deadline in this file has this unit and clock.
local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Runs a step of Lua's garbage collector, which takes some milliseconds at most, if much may be garbage. Lua itself
-- lets the memory double before it begins; and what a large transaction leaves behind would stay for hours.
-- in_use: kB after the last two collections; the first of them may have begun before something became garbage.
local in_use, collections = 0, 0
local function collect_garbage()
  local now = collectgarbage('count')
  in_use = math.min(in_use, now)
  if now <= math.min(math.max(1.5 * in_use, LITTLE_KB), GARBAGE_KB) then
    collections = 0
  elseif collectgarbage('step', 1000) then
    collections = collections + 1
    if collections == 2 then in_use, collections = collectgarbage('count'), 0 end
  end
end

-- A caller that has several calls in flight on one connection adds an echo to each: '#' and two digits. The reply names
-- it. A number becomes 100 times itself plus the digits, and an array ends with the echo. So the caller never takes the
-- reply to one call for the reply to another, even if a proxy has lost a call and has kept the connection.
local echoes = {}
for i = 0, 99 do echoes[('#%02d'):format(i)] = i end

local SMALL = {}
for i = 0, 64 do SMALL[i .. ''] = i end

-- Returns a non-negative whole number that a double can hold, or nil. Looking up small ones is cheaper.
local function whole(s)
  if SMALL[s] then return SMALL[s] end
  if not s or #s > 15 or not find(s, '^%d+$') then return nil end
  return tonumber(s)
end

local function is_version(s)
  return #s <= 19 and find(s, '^%d+$')
end

-- Stamps are stored in fences, where blanks and newlines are separators.
local function is_stamp(s)
  return #s <= MAX_STAMP and find(s, '^[!-~]+$')
end

local function is_domain(s)
  return #s <= MAX_NAME and find(s, '^[^:{}]+$')
end

-- Returns namespace and domain of the name of a fence; nil if it is not one.
local function parse(fence)
  if #fence > MAX_NAME then return nil end
  return match(fence, '^([%w_.-]+):f:([^:{}]+):{[^{}]+}')
end

-- Returns whether value is beside this fence: the same name with v for f, a colon and a suffix, which is a word of the
-- record's header. Without this check a put could overwrite any key.
local function names_value_of(value, fence)
  local n = #fence
  return #value <= MAX_NAME and #value > n + 1 and byte(value, n + 1) == 58
    and sub(value, 1, n) == (fence:gsub(':f:', ':v:', 1)) and not find(value, '[ \n]', n + 2)
end

-- ---------------------------------------------------------------------------------------------------------------
-- Slots
-- ---------------------------------------------------------------------------------------------------------------

local SLOTS = 16384
local SLOTS_KEPT, TAG_KEPT = 10000, 100 -- maximum of remembered tags, and bytes of one

local crc_table = nil                  -- of CRC16/XMODEM; made at first use
local slot_of_tag, slots_kept = {}, 0

-- Returns a fence's slot by the cluster specification: of the text between its first braces. -1: no such text.
local function slot_of(fence)
  local tag = match(fence, '{([^{}]+)}')
  if not tag then return -1 end
  local slot = slot_of_tag[tag]
  if slot then return slot end
  local xor, left, both = bit.bxor, bit.lshift, bit.band
  if not crc_table then
    crc_table = {}
    for i = 0, 255 do
      local crc = left(i, 8)
      for _ = 1, 8 do
        crc = both(crc >= 0x8000 and xor(left(crc, 1), 0x1021) or left(crc, 1), 0xffff)
      end
      crc_table[i] = crc
    end
  end
  local crc = 0
  for i = 1, #tag do
    crc = xor(both(left(crc, 8), 0xffff), crc_table[xor(math.floor(crc / 256), byte(tag, i))])
  end
  if slots_kept >= SLOTS_KEPT then slot_of_tag, slots_kept = {}, 0 end
  slot = crc % SLOTS
  if #tag <= TAG_KEPT then slot_of_tag[tag], slots_kept = slot, slots_kept + 1 end
  return slot
end

-- Returns whether a key access failed because another process has the key: its slot has moved, or is moving and the key
-- is there (or nowhere). No other error has this text, not even one for a missing permission.
local function is_elsewhere(answer)
  return type(answer) == 'table' and answer.err and find(answer.err, 'non local key', 1, true)
end

-- ---------------------------------------------------------------------------------------------------------------
-- Namespaces and domains
-- ---------------------------------------------------------------------------------------------------------------

-- One PostgreSQL cluster's state in this process.
-- armed: {owner, timeline, server, epoch, number, lead, key, until_ms, granted_ms, ttl, fill_ms, warm_rate,
-- stream_max}; lead: see parse_epoch(); key: name of this process's heartbeat key; granted_ms: until_ms as it was
-- granted, even after a disarm.
-- slots: false: all; else slot -> true: granted; false: granted and lost (see delete_here()), and then lost has
-- slot -> a fence that was found elsewhere. since: slot -> number of the grant by which it last came here; includes all
-- slots that this process was ever granted in the epoch.
-- pending: fence -> the stamp that has reserved it, or {how many, [stamp] = true}; fences: number of its entries;
-- most: highest value of fences since pending was made. mine: stamp -> its fence, or {n = how many, fence, ...}.
-- ended, ended_before, floor, turn, ends; recent, recent_before: see note_end(). drawn: when the last token was drawn.
-- whole: number of whole-domain reservations made for rows, because too many rows were reserved (crowded). events:
-- whether any domain publishes. seen: see pending().
-- filling, filled_before, fills, turned, next_fill: see fills.lua. marks, marked_from, running: see marks.lua. hot,
-- hot_before: see hot.lua. domains: name -> see domain_of().
-- gone, gone_before, ngone, dropped: see forget_domain().
local function new_space(ns, armed, slots, grant)
  local since = {}
  for slot in pairs(slots or {}) do since[slot] = grant end
  return { ns = ns, armed = armed, slots = slots, lost = {}, since = since, domains = {}, drawn = counter, whole = 0,
           pending = {}, fences = 0, most = 0, mine = {}, seen = {}, events = false,
           ended = {}, ended_before = {}, recent = {}, recent_before = {}, floor = counter, turn = counter, ends = 0,
           filling = {}, filled_before = {}, fills = 0, turned = 0, next_fill = 0,
           gone = {}, gone_before = {}, ngone = 0, dropped = {},
           marks = {}, marked_from = counter, running = '0' }
end

-- Draws the token with which the domain's fences begin from now on (head: with a blank). Earlier fences are invalid.
local function new_token(space, d)
  counter = counter + 1
  local armed = space.armed
  d.token = armed.lead .. sub(redis.sha1hex(armed.epoch .. ' ' .. identity .. ' ' .. counter), 1, 16)
  d.head, d.born, d.permit_at = d.token .. ' ', counter, nil
  space.drawn, space.recent, space.recent_before = counter, {}, {}
end

-- gate: a key that exists while the lease runs. Set if readers need only it and the token: the domain is announced,
-- nothing pends for the whole domain, all slots are here. If gate is nil, functions must check all that.
local function set_gate(d)
  local armed = d.space.armed
  d.gate = d.id and d.pendings == 0 and not d.space.slots and armed.until_ms > 0 and armed.key or nil
end

local function database_of(name)
  return match(name, '^[^.]*')
end

-- Returns the newest attachment of this name that is known to have ended; 0: none. See forget_domain().
local function ended_of(space, name)
  local d = space.domains[name]
  return d and d.ended or space.gone[name] or space.gone_before[name] or space.dropped[database_of(name)] or 0
end

-- Returns the domain's record; makes it if necessary. id: the announced attachment (nil: not attached, so readers get
-- "unarmed"); ended: the newest attachment that is known to have ended, so a late announcement of it has no effect;
-- withdrawn (or nil): it was announced, and readers must not get answers any more; carried: grant of its last
-- announcement; born: when its token was drawn. pending: stamp -> {since, ended, rows}, reservations of the whole
-- domain; pendings: their number; few: its rows that were reserved although there were too many.
-- key_at: where the key begins in the name of a fence, or of a value beside it.
-- publish: see publish(). told: permits since the last fence_counts; counts: answers of get and put.
local function domain_of(space, name)
  local d = space.domains[name]
  if not d then
    d = { space = space, name = name, key_at = #space.ns + #name + 5, id = nil, ended = ended_of(space, name),
          carried = 0, pending = {}, pendings = 0, few = 0, publish = false, told = 0,
          counts = { 0, 0, 0, 0, 0, 0 } }
    new_token(space, d)
    space.domains[name] = d
  end
  return d
end

-- Forgets a domain that is not attached, so that tables that come and go leave nothing behind. A late announcement of
-- it must have no effect, so the number of the ended attachment stays: in two tables that take turns. Of those that are
-- in neither any more, the highest number for each database is kept. Up to that one, unknown names count as ended,
-- which is wrong only of an attachment whose transaction took longer than a thousand others that came and went.
local function forget_domain(d)
  local space = d.space
  if d.id or d.withdrawn or d.pendings > 0 then return end
  space.domains[d.name], routes[space.ns .. ':f:' .. d.name .. ':'] = nil, nil
  if d.ended == 0 then return end
  space.gone[d.name], space.ngone = d.ended, space.ngone + 1
  if space.ngone < GONE_KEPT then return end
  for name, id in pairs(space.gone_before) do
    local database = database_of(name)
    space.dropped[database] = math.max(space.dropped[database] or 0, id)
  end
  space.gone_before, space.gone, space.ngone = space.gone, {}, 0
end

-- Indexes into a domain's counts
local HIT, MISS, PENDING, UNARMED, STORED, REFUSED = 1, 2, 3, 4, 5, 6

local function count(d, what)
  d.counts[what] = d.counts[what] + 1
end

-- Returns the domain of a fence; nil if this process does not know it.
local function domain_of_fence(fence)
  local at = find(fence, ':{', 1, true)
  local d = at and routes[sub(fence, 1, at)]
  if d then return d end
  local ns, name = parse(fence)
  d = ns and spaces[ns] and spaces[ns].domains[name]
  if d then routes[sub(fence, 1, at)] = d end
  return d
end

-- Returns whether the lease runs. The heartbeat key expires with it, and EXISTS costs half of what TIME costs. If the
-- key is missing (evicted, in a slot that moved, not readable by this user), the clock decides.
local function lease_runs(armed)
  return armed.until_ms > 0 and (try('EXISTS', armed.key) == 1 or armed.until_ms > now_ms())
end

-- Returns whether readers of the fence may get answers. In a slot that came during the epoch, the domain must have been
-- announced since: that also reserves here what transactions prepared or detached before [c8].
local function is_served(d, fence)
  local space = d.space
  if not d.id then return false end
  if not space.slots then return true end
  local slot = slot_of(fence)
  return space.slots[slot] == true and space.since[slot] <= d.carried
end

-- Returns a permit. The token tells a reader which fences are current. The reader may put as long as nothing has ended
-- since the number. A permit is one text, because the reader hands it back unchanged when it puts.
local function permit(d)
  if d.permit_at ~= counter then d.permit, d.permit_at = d.head .. counter, counter end
  return d.permit
end

-- ---------------------------------------------------------------------------------------------------------------
-- Reservations
-- ---------------------------------------------------------------------------------------------------------------

-- A Lua table never shrinks, and the garbage collector walks all of it in one step. After 100,000 reservations at once,
-- every later call would pay for that. So copy mostly empty tables to new ones.
local function shrink(space)
  if space.most <= 1000 or space.fences * 4 >= space.most then return end
  local pending, mine = {}, {}
  for fence, p in next, space.pending do pending[fence] = p end
  for stamp, m in next, space.mine do mine[stamp] = m end
  space.pending, space.mine, space.most = pending, mine, space.fences
end

-- The numbers of ends are in two tables that take turns. Ends older than floor are in neither, so puts with older
-- permits are refused.
local function turn_ends(space)
  space.floor, space.turn, space.ends = space.turn, counter, 0
  space.ended_before, space.ended, space.recent_before, space.recent = space.ended, {}, space.recent, {}
end

-- From now on all permits and acknowledgements from before are worthless.
local function forget_ends(space)
  turn_ends(space)
  turn_ends(space)
end

-- Remembers that a reservation of the fence has ended, which makes older permits and acknowledgements worthless. stamp:
-- the transaction that committed the newest version, nil if unknown. The tables have a bound in bytes: callers choose
-- the names.
local function note_end(space, fence, stamp)
  counter = counter + 1
  space.ended[fence] = counter
  if stamp or space.recent[fence] then space.recent[fence] = stamp end
  space.ends = space.ends + (#fence <= USUAL_NAME and 1 or #fence / USUAL_NAME)
  if space.ends >= ENDS_KEPT then turn_ends(space) end
end

-- Returns the lowest number since which no reservation of the fence has ended and its bucket is open; infinite if the
-- bucket is closed.
local function quiet_since(space, fence)
  local ended = space.ended[fence] or space.ended_before[fence] or 0
  if ended < space.floor then ended = space.floor end
  if not space.share then return ended end
  local opened = buckets.opened(space, fence) or math.huge
  return opened > ended and opened or ended
end

-- If so, and if no other reservation is pending, what was read from PostgreSQL after the number was given is the newest
-- version.
local function none_ended(space, fence, since)
  return quiet_since(space, fence) <= since
end

-- Returns the stamp of the transaction that committed the newest version; '' if that is not known. Call it only while
-- nothing is pending.
local function recent_of(space, fence)
  return space.recent[fence] or space.recent_before[fence] or ''
end

-- Returns whether this stamp alone has reserved the fence.
local function is_alone(p, stamp)
  return p == stamp or (p and p[1] == 1 and p[stamp])     -- indexing a string is cheaper than asking for its type
end

local function holds(p, stamp)
  return p == stamp or (p and p[1] and p[stamp])
end

local function add_mine(space, stamp, fence)
  local m = space.mine[stamp]
  if m.n then
    m.n = m.n + 1
    m[m.n] = fence
  else
    space.mine[stamp] = { n = 2, m, fence }
  end
end

-- Records a reservation of a whole domain. ended: the attachment that ends if the transaction commits, else 0. rows: it
-- replaces reservations of rows.
local function domain_pend(d, stamp, ended, rows)
  local p = d.pending[stamp]
  if not p then
    d.pending[stamp] = { ended = ended, rows = rows, since = now_ms() }
    d.pendings = d.pendings + 1
    set_gate(d)
    if rows then d.space.whole = d.space.whole + 1 end
  elseif ended > p.ended then
    p.ended = ended
  end
end

-- Called when there are too many reservations. Reserves the whole domain, and returns true, if it has too many rows.
local function is_too_many(space, fence, stamp)
  local ns, name = parse(fence)
  local d = ns == space.ns and domain_of(space, name)
  if not d then return false end
  space.crowded, d.few = true, d.few + 1
  if d.few <= FEW_RESERVED then return false end
  domain_pend(d, stamp, 0, true)
  return true
end

-- Deletes args[4 .. n + 3] when this process does not have all slots. Returns false if it was never granted one. When
-- it first finds a granted slot elsewhere, that slot is lost until it is granted again: fences there miss reservations
-- from now on, so if they come back, no reader may get them. Writers are granted their reservations in a lost slot.
-- That is safe: no other process was granted it, so nobody answers readers there.
local function delete_here(space, args, n)
  for i = 4, n + 3 do
    local slot = slot_of(args[i])
    if space.slots[slot] == nil then return false end
    if space.slots[slot] then
      local answer = try('DEL', args[i])
      if is_elsewhere(answer) then
        space.slots[slot], space.lost[slot] = false, args[i]
      elseif type(answer) == 'table' then
        error(answer)
      end
    end
  end
  return true
end

-- Reserves args[4 .. n + 3] for the stamp and deletes them. Deletes also what is already reserved, because the first
-- attempt may have failed before it did. Reservations in a lost slot end like all others.
local function reserve(space, stamp, args, n)
  local pending, recent, before = space.pending, space.recent, space.recent_before
  local room = space.fences + n <= MOST_RESERVED
  for i = 4, n + 3 do
    local fence = args[i]
    local p = pending[fence]
    if p ~= stamp and not (p and p[1] and p[stamp]) and (room or not is_too_many(space, fence, stamp)) then
      if not p then
        pending[fence] = stamp
        space.fences = space.fences + 1
      elseif p[1] then
        p[1], p[stamp] = p[1] + 1, true
      else
        pending[fence] = { 2, [p] = true, [stamp] = true }
      end
      if space.mine[stamp] then add_mine(space, stamp, fence) else space.mine[stamp] = fence end
    end
    -- now, and not at the end: the tables may take turns before that
    if recent[fence] then recent[fence] = nil end
    if before[fence] then before[fence] = nil end
  end
  if space.fences > space.most then space.most = space.fences end
  if space.slots then return delete_here(space, args, n) end
  if n == 1 then call('DEL', args[4]) else call('DEL', unpack(args, 4, n + 3)) end
  return true
end

-- Returns whether this Redis is part of a cluster.
local clustered = nil
local function in_cluster()
  if clustered == nil then
    clustered = find(redis.call('INFO', 'cluster'), 'cluster_enabled:1', 1, true) ~= nil
  end
  return clustered
end

-- Tells subscribers that the transaction has committed version v of the fence ('-': unknown); fence '-': of any rows of
-- the domain. The channel is <namespace>:e:<domain>; in a cluster the fence's tag follows, so that it is in the same
-- slot. Nothing relies on events, so errors here (no right to publish, out of memory) are ignored.
local function publish(d, fence, v, stamp)
  local space = d.space
  local channel = space.ns .. ':e:' .. d.name
  local sharded = fence ~= '-' and in_cluster()
  if sharded then channel = channel .. ':' .. match(fence, '{[^{}]+}') end
  if d.publish == 'stream' then
    try('XADD', channel, 'MAXLEN', '~', space.armed.stream_max, '*',
        'domain', d.name, 'fence', fence, 'version', v, 'stamp', stamp)
    try('PEXPIRE', channel, space.armed.ttl)
  elseif d.publish then
    try(sharded and 'SPUBLISH' or 'PUBLISH', channel, d.name .. ' ' .. fence .. ' ' .. v .. ' ' .. stamp)
  end
end

-- Ends the stamp's reservation of the fence, and returns whether there was one. since: nil if the transaction was
-- rolled back, else the number of the reservation (0: unknown). Other transactions' reservations stay.
local function release(space, fence, stamp, since)
  local p = space.pending[fence]
  if not holds(p, stamp) then return false end
  local newest = since and is_alone(p, stamp) and since >= space.drawn and none_ended(space, fence, since)
  if p == stamp or p[1] == 1 then
    space.pending[fence] = nil
    space.fences = space.fences - 1
  else
    p[stamp], p[1] = nil, p[1] - 1
  end
  note_end(space, fence, newest and stamp or nil)
  return true
end

-- Ends a reservation of a whole domain. A commit draws a new token, so that earlier fences are invalid [6b], and ends
-- the attachment if the reservation says so: then rows may change unfenced until the name is attached again.
local function domain_finish(d, stamp, committed)
  local p = d.pending[stamp]
  if not p then return end
  if committed then
    if p.ended > d.ended then d.ended = p.ended end
    if d.id and d.id <= d.ended then d.id = nil end
    new_token(d.space, d)
  end
  d.pending[stamp], d.pendings = nil, d.pendings - 1
  set_gate(d)
  if p.rows then d.space.whole = d.space.whole - 1 end
  if committed and d.publish then publish(d, '-', '-', stamp) end
  forget_domain(d)
end

local function end_of_fence(space, fence, stamp, since)
  if release(space, fence, stamp, since) and since and space.events then
    local d = domain_of_fence(fence)
    if d and d.publish then publish(d, fence, '-', stamp) end
  end
end

-- Ends a transaction: "<stamp>" has committed, "-<stamp>" was rolled back, "=<number> <stamp>" has committed and its
-- first reservation has this number.
local function end_transaction(space, what)
  local since, stamp, first = 0, what, byte(what)
  if first == 45 then
    since, stamp = nil, sub(what, 2)
  elseif first == 61 then
    since, stamp = match(what, '^=(%d+) (.+)$')
    since = whole(since) or 0
  end
  local m = space.mine[stamp or '']
  if m then
    space.mine[stamp] = nil
    if not m.n then
      end_of_fence(space, m, stamp, since)
    else
      local plain, pending = (since or 0) == 0 and not space.events, space.pending
      for i = 1, m.n do
        local fence = m[i]
        if plain and pending[fence] == stamp then
          pending[fence] = nil
          space.fences = space.fences - 1
          note_end(space, fence, nil)
        else
          end_of_fence(space, fence, stamp, since)
        end
      end
    end
  end
  if space.whole > 0 then
    for _, d in pairs(space.domains) do domain_finish(d, stamp, since) end
  end
end

-- Ends transactions, args[at ..]; touches no key. The common case, one fence that nobody else has reserved, is first.
local function ends(space, args, at)
  local pending, mine, what = space.pending, space.mine, args[at]
  while what do
    local fence = mine[what]
    if fence and pending[fence] == what and space.whole == 0 and not space.events then
      mine[what], pending[fence] = nil, nil
      space.fences = space.fences - 1
      note_end(space, fence, nil)
    else
      end_transaction(space, what)
    end
    at = at + 1
    what = args[at]
  end
  if space.most > 1000 then shrink(space) end
  if space.crowded and space.fences < MOST_RESERVED / 2 then
    space.crowded = false
    for _, d in pairs(space.domains) do d.few = 0 end
  end
end

-- ---------------------------------------------------------------------------------------------------------------
-- Writers. They send the epoch. The lease does not matter to them: the epoch is enough, and late ends do no harm.
-- ---------------------------------------------------------------------------------------------------------------

-- Does what ends() and reserve() do in the common case, with a tenth fewer instructions: the transaction `ended` had
-- reserved one fence, and the stamp reserves one, perhaps the same. Otherwise does nothing, and returns false.
local function replace(space, stamp, fence, ended)
  local pending, mine = space.pending, space.mine
  local gone = mine[ended]
  if not gone or pending[gone] ~= ended or mine[stamp] or (pending[fence] and fence ~= gone) or space.recent[fence]
    or space.recent_before[fence] or space.most > 1000 or space.slots or space.whole > 0 or space.events then
    return false
  end
  mine[ended], pending[gone] = nil, nil
  note_end(space, gone, nil)
  mine[stamp], pending[fence] = fence, stamp
  call('DEL', fence)
  return true
end

-- n[echo] of a call of write() with one fence -> the echo; false: there is none
local ONE = { ['1'] = false }
for i = 0, 99 do ONE[('1#%02d'):format(i)] = i end

-- Returns the number in "<number>" or "<number><echo>", and the echo. nil: it is neither.
local function counted(word)
  local n, echo = match(word or '', '^(%d+)(#%d%d)$')
  return whole(n or word), echoes[echo or '']
end

-- write | header stamp n[echo] fence... [echo] ended... -> number | 0. The connection must be in database 0.
-- header: "<namespace> <epoch>". Ends the transactions at the end of the arguments (see end_transaction), then reserves
-- the n fences for the stamp. What PostgreSQL returns to reads after the number was given, or has stored itself, may be
-- stored here as long as nothing has ended since. 0: not armed in the epoch, or a slot was never granted.
-- The echo stands behind n, which saves an argument, and so 1,750 instructions. In a command that the courier forwards,
-- it stands behind the fences.
local function write(_, args)
  local space, n, echo = headers[args[1]], 1, ONE[args[3]]
  if echo == nil or args[6] or not space or not args[5] or not replace(space, args[2], args[4], args[5]) then
    n, echo = counted(args[3])
    if not n or n > MAX_FENCES or not args[n + 3] then
      return bad('fence_write', 'expected header, stamp, number of fences, fences, and what has ended')
    end
    local at = n + 4
    if echoes[args[at]] then echo, at = echoes[args[at]], at + 1 end
    if not space then return echo or 0 end
    if args[at] then ends(space, args, at) end
    if n > 0 and not reserve(space, args[2], args, n) then return echo or 0 end
  end
  to_sample = to_sample - n
  while to_sample <= 0 do to_sample = to_sample + hot.sample(space, args[3 + n + to_sample], WRITE) end
  counter = counter + 1
  return echo and counter * 100 + echo or counter
end

-- Returns the time to live, a text, of what is about to be stored. A fence may vanish at any time, so a long one is
-- cut: until it ends, PostgreSQL cannot forget which buckets were open.
local function lifetime(space, default, ttl)
  if default then ttl = space.armed.ttl end
  local ms = whole(ttl)
  if ms > LONGEST_TTL then
    ms = math.min(ms, math.max(LONGEST_TTL, whole(space.armed.ttl)))
    ttl = string.format('%d', ms)
  end
  if space.share then buckets.note_ttl(space, ms) end
  return ttl
end

-- Stores a row that its transaction sends, if the number of its reservation proves that the row is the newest and
-- nothing else is pending. Ends the reservation first, so a failure after that is only a miss.
local function store(space, stamp, fence, since, v, ttl, payload)
  local d, proven = domain_of_fence(fence), false
  if d and d.space ~= space then return 0 end
  if d and ttl ~= '' and is_served(d, fence) then
    proven = is_alone(space.pending[fence], stamp) and d.born <= since and none_ended(space, fence, since)
  end
  if not release(space, fence, stamp, since) then return 0 end
  if proven then
    ttl = lifetime(space, ttl == '0', ttl)
    local header = d.head .. v .. ' ' .. stamp .. ' ' .. sub(fence, d.key_at) .. '\n'
    call('SET', fence, header .. payload, 'PX', ttl)
  end
  if d and d.publish then publish(d, fence, v, stamp) end
  return proven and 1 or 0
end

-- store | header stamp n (fence since version ttl_ms payload)... ended... [echo] -> 1 + how many were stored | 0
-- Stores the rows of a committed transaction. ttl_ms '' only publishes the version, '0' means the default.
-- 0: not armed in the epoch. The connection must be in database 0.
local function store_rows(_, args)
  local n = whole(args[3])
  if not n or n > MAX_FENCES or #args < 5 * n + 3 or not is_stamp(args[2]) then
    return bad('fence_store', 'expected header, stamp, number of rows, five arguments for each, and what has ended')
  end
  for i = 4, 5 * n + 3, 5 do
    if not whole(args[i + 1]) or not is_version(args[i + 2]) or not (args[i + 3] == '' or whole(args[i + 3])) then
      return bad('fence_store', 'malformed number, version or time to live')
    end
  end
  local space, stored = headers[args[1]], 1
  if not space then return 0 end
  for i = 4, 5 * n + 3, 5 do
    stored = stored + store(space, args[2], args[i], whole(args[i + 1]), args[i + 2], args[i + 3], args[i + 4])
  end
  if args[5 * n + 4] then ends(space, args, 5 * n + 4) end
  return stored
end

-- domain_reserve | header domain stamp ended [echo] -> 1 | 0
-- ended: id of the attachment that the transaction ends (detach, DROP); '0' if it only changes many rows.
local function domain_reserve(_, args)
  if #args ~= 4 or not is_domain(args[2]) or not is_stamp(args[3]) or not whole(args[4]) then
    return bad('fence_domain_reserve', 'expected header, domain, stamp and ended attachment')
  end
  local space = headers[args[1]]
  if not space then return 0 end
  domain_pend(domain_of(space, args[2]), args[3], whole(args[4]), false)
  return 1
end

-- domain_end | header domain stamp committed|aborted [echo] -> 1 | 0
local function domain_end(_, args)
  if #args ~= 4 or not is_domain(args[2]) or not (args[4] == 'committed' or args[4] == 'aborted') then
    return bad('fence_domain_end', 'expected header, domain, stamp, and committed or aborted')
  end
  local space = headers[args[1]]
  if not space then return 0 end
  local d = space.domains[args[2]]
  if d then domain_finish(d, args[3], args[4] == 'committed') end
  return 1
end

-- remove <fence> | header seen -> 1 | 0 (audit): removes the fence if it begins with `seen`; refuses older permits.
local function remove(keys, args)
  if #keys ~= 1 or #args ~= 2 or not parse(keys[1]) or args[2] == '' then
    return bad('fence_remove', 'expected a fence, header and how it begins')
  end
  local space = headers[args[1]]
  if not space or parse(keys[1]) ~= space.ns then return 0 end
  local raw = call('GET', keys[1])
  if not raw or sub(raw, 1, #args[2]) ~= args[2] then return 0 end
  call('DEL', keys[1])
  note_end(space, keys[1], nil)
  space.recent_before[keys[1]] = nil
  return 1
end

-- ---------------------------------------------------------------------------------------------------------------
-- Readers
-- ---------------------------------------------------------------------------------------------------------------

local function may_tell(d, fence)
  return d.pendings == 0 and is_served(d, fence) and lease_runs(d.space.armed)
end

-- token <fence>... -> permit (of several fences an array); '' if no fence may count as current
-- nonce: see answering().
-- The second half of a strong read. The caller names one fence of each slot and domain that it has read *before* from
-- this same process. These fences are current if they begin with the permit's token and a blank. See permit().
local function token_of(fence)
  local at = find(fence, ':{', 1, true)
  local d = at and routes[sub(fence, 1, at)] or domain_of_fence(fence)
  if not d or not (d.gate and try('EXISTS', d.gate) == 1 or may_tell(d, fence)) then return '' end
  d.told, to_sample = d.told + 1, to_sample - 1
  if to_sample == 0 then to_sample = hot.sample(d.space, fence, TOKEN) end
  return d.permit_at == counter and d.permit or permit(d)
end

local function token(keys, args)
  local nonce = args[1]
  if not keys[2] then
    local told = keys[1] and token_of(keys[1]) or ''
    return nonce and told .. ' ' .. nonce or told
  end
  if #keys > MAX_FENCES then return bad('fence_token', 'expected 1 to 1000 fences') end
  local reply = {}
  for i = 1, #keys do reply[i] = token_of(keys[i]) end
  reply[#keys + 1] = nonce
  return reply
end

-- Returns "<token> <version> ", the start of a current fence; nil if it is not current. raw: what the key holds.
local function current_head(d, raw)
  if not raw or sub(raw, 1, #d.head) ~= d.head then return nil end
  local blank = find(raw, ' ', #d.head + 1, true)
  return blank and sub(raw, 1, blank)
end

-- get <fence> [<value>] -> hit record | miss permit [busy ms] | pending | unarmed
-- The slow path of a strong read: says why there is no hit, and asks one of many readers to fill it in. busy: another
-- reader is doing so, or too many fill in others (fills.lua); a reader that gets again within that time can save
-- PostgreSQL a read. With a value beside the fence (its name with v for f, and a suffix), returns that one: it is
-- current if it has the fence's token and version.
local function get(keys, args)
  local fence, value = keys[1], keys[2]
  local d = fence and domain_of_fence(fence)
  if #keys > 2 or #args > 0 or not (d or fence and parse(fence)) or (value and not names_value_of(value, fence)) then
    return bad('fence_get', 'expected a fence, or a fence and a value of it')
  end
  if not d then return { 'unarmed' } end
  to_sample = to_sample - 1
  if to_sample == 0 then to_sample = hot.sample(d.space, fence, GET) end
  if not is_served(d, fence) or not lease_runs(d.space.armed) then
    count(d, UNARMED)
    return { 'unarmed' }
  elseif d.pendings > 0 or d.space.pending[fence] then
    count(d, PENDING)
    return { 'pending' }
  end
  local both = call('MGET', fence, value or fence)
  local head = current_head(d, both[1])
  if head and both[2] and sub(both[2], 1, #head) == head and (value or find(both[2], '\n', #head, true)) then
    count(d, HIT)
    return { 'hit', both[2] }
  end
  count(d, MISS)
  local busy = fills.busy_ms(d.space, fence, d.space.share and buckets.want(d.space, fence))
  if busy then return { 'miss', permit(d), 'busy', tostring(busy) } end
  return { 'miss', permit(d) }
end

-- check <fence>... | (token version)... -> one text with 1 or 0 for each, all at one moment. For callers that keep
-- values, or compute one from several rows: the token and version of a fence name one content.
local function check(keys, args)
  if #keys == 0 or #keys > MAX_FENCES or #args ~= 2 * #keys then
    return bad('fence_check', 'expected 1 to 1000 fences, and token and version for each')
  end
  local reply = {}
  for i, fence in ipairs(keys) do
    local d = domain_of_fence(fence)
    local head = args[2 * i - 1] .. ' ' .. args[2 * i] .. ' '
    local same = d and may_tell(d, fence) and sub(head, 1, #d.head) == d.head
      and try('GETRANGE', fence, 0, #head - 1) == head
    reply[i], to_sample = same and '1' or '0', to_sample - 1
    if to_sample == 0 then to_sample = d and hot.sample(d.space, fence, TOKEN) or 1 end
  end
  return table.concat(reply)
end

local SOURCE = '^(%S+) (%S+ %d+)$'

-- Returns the value, '' if there is none. One that is long without a source in its first line is not read at all.
local function derived_value(key)
  local raw = call('GETRANGE', key, 0, LOOKED_AT - 1)
  if #raw < LOOKED_AT then return raw end
  local stop = find(raw, '\n', 1, true)
  if not stop or stop > MAX_LINE or not match(sub(raw, 1, stop - 1), SOURCE) then return '' end
  return call('GET', key) or ''
end

-- get_derived <value> -> hit payload | miss | elsewhere record
-- A value computed from rows: a line "<fence> <token> <version>" for each row, an empty line, the payload.
-- A hit if all rows are current. elsewhere: the caller must ask other processes for some of them.
local function get_derived(keys, args)
  if #keys ~= 1 or #args ~= 0 then return bad('fence_get_derived', 'expected 1 key') end
  local raw, at, lines, elsewhere = derived_value(keys[1]), 1, 0, false
  while true do
    local stop = find(raw, '\n', at, true)
    if not stop or stop - at > MAX_LINE or lines > MAX_FENCES then return { 'miss' } end
    if stop == at and lines > 0 then break end
    local fence, head = match(sub(raw, at, stop - 1), SOURCE)
    local d = fence and domain_of_fence(fence)
    at, lines = stop + 1, lines + 1
    if not d then return { 'miss' } end
    if d.space.slots and d.space.slots[slot_of(fence)] ~= true then
      elsewhere = true
    else
      local is = may_tell(d, fence) and sub(head, 1, #d.head) == d.head and try('GETRANGE', fence, 0, #head)
      if is_elsewhere(is) then elsewhere = true elseif is ~= head .. ' ' then return { 'miss' } end
    end
  end
  if elsewhere then return { 'elsewhere', raw } end
  return { 'hit', sub(raw, at + 1) }
end

-- Returns why a put of the fence with this permit is refused, or nil. The token must be the domain's, nothing may be
-- pending, and nothing may have ended since. So a slow reader cannot store what it read before a write. The lease must
-- run: what is read later may be a bypass of a server that has not resumed the epoch, while another one will.
local function refusal_of_put(d, fence, told)
  if not (d.gate or is_served(d, fence)) or not lease_runs(d.space.armed) then return 'unarmed' end
  if d.space.share and buckets.want(d.space, fence) then return 'closed' end
  if told ~= d.permit or d.permit_at ~= counter then       -- the permit is older than this moment
    local since = sub(told, 1, #d.head) == d.head and whole(sub(told, #d.head + 1))
    if not since or since > counter then return 'token' end
    if not none_ended(d.space, fence, since) then return 'late' end
  end
  if d.space.pending[fence] then return 'pending' end
end

-- Stores the payload, or the record in the key `side`, as the fence or as a value beside it. With a value, the fence
-- becomes a mark of the version unless it has that version. told: the permit. word: the row version, in which the
-- server that was read names its epoch. It must be the one that armed us: a primary that was replaced still has the old
-- rows. The record has only what follows, because its token has the epoch. ttl: a text.
local function store_read(name, fence, value, told, word, ttl, payload, side)
  local d, ms = fence and domain_of_fence(fence), whole(ttl)
  if not (d or fence and parse(fence)) or (value and not names_value_of(value, fence)) then
    return bad(name, 'expected a fence, perhaps a value of it')
  end
  local lead = d and d.space.armed.lead
  local here = lead and sub(word, 1, #lead) == lead
  local v = here and sub(word, #lead + 1) or match(word, '^%d+%-%x+%.(%d+)$')
  if not v or not is_version(v) then
    return bad(name, 'expected a row version, "<epoch>.<version>", as fence.row_version returns it')
  end
  if not ms then return bad(name, 'malformed ttl_ms') end
  if not d then return 'refused unarmed' end
  local head, place = d.head .. v .. ' ', value or fence
  local header = head .. sub(place, d.key_at) .. '\n'
  local why = payload and #payload > MAX_PAYLOAD and 'too large' or refusal_of_put(d, fence, told)
    or not here and 'epoch'
    or side and call('GETRANGE', side, 0, #header - 1) ~= header and 'lost'
  if why then
    count(d, REFUSED)
    return 'refused ' .. why
  end
  ttl = lifetime(d.space, ms == 0, ttl)
  if side then
    call('RENAME', side, place)
    call('PEXPIRE', place, ttl)
  else
    call('SET', place, header .. payload, 'PX', ttl)
  end
  if value and try('GETRANGE', fence, 0, #head - 1) ~= head then call('SET', fence, head, 'PX', ttl) end
  count(d, STORED)
  return 'stored'
end

-- put <fence> [<value>] | permit row-version payload ttl_ms -> stored | refused why
-- Stores what was read from PostgreSQL in a snapshot taken after the permit was given. ttl_ms 0: the default.
local function put(keys, args)
  if #keys > 2 or #args ~= 4 then return bad('fence_put', 'expected 1 or 2 keys and 4 arguments') end
  return store_read('fence_put', keys[1], keys[2], args[1], args[2], args[4], args[3])
end

-- put_from <fence> <side> [<value>] | permit row-version ttl_ms -> stored | refused why
-- The same for a large payload, which does not pass through Lua. The caller has stored the whole record under a unique
-- name (that of a value, with a short time to live). This function renames that key after the same proof.
local function put_from(keys, args)
  local side, value = keys[2], keys[3]
  if not side or #keys > 3 or #args ~= 3 or side == value or not names_value_of(side, keys[1]) then
    return bad('fence_put_from', 'expected a fence, one or two values of it, and permit, version, ttl_ms')
  end
  return store_read('fence_put_from', keys[1], value, args[1], args[2], args[3], nil, side)
end

local function register(name, callback, flags)
  redis.register_function{ function_name = name, callback = callback, flags = flags or {},
                           description = 'pgcache_fence library version ' .. LIBRARY_VERSION }
end

-- For functions whose callers may be in any database: selects database 0, where the keys are, until the call ends.
local function register_keyed(name, callback, flags)
  register(name, function(keys, args)
    if not call then call, try = redis.call, redis.pcall end
    call('SELECT', '0')
    return callback(keys, args)
  end, flags)
end

-- For functions whose last argument may be an echo. (write() does the same by itself, because a wrapper costs a tenth.)
local function echoing(callback)
  return function(keys, args)
    local echo = args[#args]
    local digits = echoes[echo]
    if not digits then return callback(keys, args) end
    args[#args] = nil
    local reply = callback(keys, args)
    if type(reply) == 'number' then return reply * 100 + digits end
    if not reply.err then reply[#reply + 1] = echo end
    return reply
  end
end

-- For questions of readers, who may name them: the last argument may be a nonce, '#' and up to 20 letters and digits.
-- The answer ends with it: an array has it as its last element, a text behind a blank. So a reader never takes an
-- answer to another question, or to the same one that was asked earlier, for its own, even if a client library or a
-- proxy has lost count of the answers. (token() does the same by itself, because a wrapper costs a tenth.)
local function answering(callback)
  return function(keys, args)
    local nonce = args[#args]
    if not nonce or #nonce > 21 or not find(nonce, '^#%w+$') then return callback(keys, args) end
    args[#args] = nil
    local reply = callback(keys, args)
    if type(reply) == 'string' then return reply .. ' ' .. nonce end
    if not reply.err then reply[#reply + 1] = nonce end
    return reply
  end
end

register('fence_write', write, { 'allow-cross-slot-keys', 'allow-oom' })
register('fence_store', echoing(store_rows), { 'allow-cross-slot-keys' })
register('fence_domain_reserve', echoing(domain_reserve), { 'allow-oom' })
register('fence_domain_end', echoing(domain_end), { 'allow-oom' })
register_keyed('fence_remove', remove, { 'allow-oom' })
register('fence_token', token, { 'no-writes', 'allow-cross-slot-keys' })
register_keyed('fence_get', answering(get), { 'no-writes', 'allow-cross-slot-keys' })
register_keyed('fence_check', answering(check), { 'no-writes', 'allow-cross-slot-keys' })
register_keyed('fence_get_derived', answering(get_derived), { 'no-writes', 'allow-cross-slot-keys' })
register_keyed('fence_put', put)
register_keyed('fence_put_from', put_from)
