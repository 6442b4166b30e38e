#!lua name=pgcache_fence
--
-- pgcache_fence: the function library inside Redis (Redis >= 7.0, Valkey >= 7.2).
--
-- Owns: the fences, values and reservations of every namespace, and the right to answer for them (doc/protocol.md).
-- Two kinds of state:
--   * keys: the fence "<token> <version> <stamp>" or "<token> - <ticket>", and values
--     "<token> <version> <stamp>\n<payload>". A key may vanish (eviction, FLUSHALL) or come back old (replica, RDB) at
--     any time; either only costs a miss.
--   * library locals: identity, arming, reservations, domain generations. They live and die with this process, which is
--     why a reservation can be trusted: a process that lost one has also lost the right to answer.
-- The keys may be spread over several processes (Redis Cluster, shards): a process answers readers, and grants
-- reservations, only in the slots that it was armed for, whatever the cluster says of them meanwhile.
-- Rules every function keeps:
--   * A function may fail at any redis.call (OOM, READONLY, WRONGTYPE) and locals are not rolled back. So a reservation
--     is added before, and dropped only after, every key write of the call has succeeded.
--   * Versions are decimal strings without leading zeros; they are compared by length, then bytes. Never as doubles.
--   * A fence without a version always has a ticket: deleting the ticket is deleting the fence, because the next reader
--     who finds no fence makes one with a new ticket.
--   * Every function that reads or writes keys does so in database 0, whatever the caller has selected: reservations
--     know no databases, so a fence in another one would never hear of a commit. The caller's own choice stays. Those
--     that are called most (get, current, check) look first where the caller is: what they find there under a current
--     token is in database 0.
--   * A reservation is dropped by its own stamp only: the versions of a truncated table restart.
--   * Arguments are checked before anything is changed.
--   * Replies are flat arrays of strings.

local LIBRARY_VERSION = '1'
local MAX_VERSION = '9223372036854775807'
local MAX_NAME = 4096                  -- bytes in a fence, value or domain name
local MAX_NONCE = 16
local MAX_FENCES = 1000                -- in one write
local MAX_STAMP = 100
local MAX_PAYLOAD = 4 * 1024 * 1024    -- bytes of what a reader puts
local TICKET_MS = 60000                -- how long a fence that has only a ticket stays, if a fill lease is not longer
local VERSIONS_KEPT = 1000             -- see version()
local MOST_RESERVED = 100000           -- fences with reservations; beyond it a domain that has more than ...
local FEW_RESERVED = 1000              -- ... these is reserved as a whole
local VISITED = 1000                   -- fences that one call lists, or passes over
local GARBAGE_KB = 16384               -- see collect_garbage()
local MOST_FILLS = 100000              -- fill leases since the last turn; beyond it nobody is told to wait

local identity = nil                   -- of this process: drawn once, by the first hello
local spaces = {}                      -- namespace -> see new_space()
local generation = 0                   -- source of gens; per process, never reused
local tickets = 0                      -- source of tickets; per process, never reused

-- While a library loads, Redis 7.0 knows no global but redis: string's functions are had through a string.
local find, match, sub, byte = ('').find, ('').match, ('').sub, ('').byte

-- ---------------------------------------------------------------------------------------------------------------
-- Small tools
-- ---------------------------------------------------------------------------------------------------------------

local function bad(name, why)
  return redis.error_reply('ERR ' .. name .. ': ' .. why)
end

-- Milliseconds of this node's clock; every deadline in this file is in this unit and on this clock.
local function ms_of(time)             -- what TIME answered
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function now_ms()
  return ms_of(redis.call('TIME'))
end

-- A step of Lua's garbage collector, some milliseconds at most. It keeps pace with what calls allocate, and Redis gives
-- it a little with every fifty calls: what a large transaction has left behind would stay for hours.
local function collect_garbage()
  if collectgarbage('count') > GARBAGE_KB then collectgarbage('step', 1000) end
end

-- A version, or nil. Readers' arguments come from outside, so the form is checked here and nowhere else. Those that
-- passed are remembered, for most come again and to look one up is cheaper; thrown away whole when there are many.
local good_versions, good_kept = {}, 0

local function version(s)
  if good_versions[s] then return s end
  if #s > 19 or not find(s, '^%d+$') or (#s > 1 and byte(s) == 48) then return nil end
  if #s == 19 and s > MAX_VERSION then return nil end
  if good_kept >= VERSIONS_KEPT then good_versions, good_kept = {}, 0 end
  good_versions[s], good_kept = true, good_kept + 1
  return s
end

local function below(a, b)             -- a < b
  if #a ~= #b then return #a < #b end
  return a < b
end

-- A non-negative whole number small enough for a double, or nil.
local SMALL = {}
for i = 0, 64 do SMALL[i .. ''] = i end

local function whole(s)
  if SMALL[s] then return SMALL[s] end
  if #s > 15 or not find(s, '^%d+$') then return nil end
  return tonumber(s)
end

local function epoch_number(epoch)
  return whole(match(epoch, '^(%d+)%-%x+$') or '')
end

-- Stamps are stored in fences and values, where blanks and newlines separate. The last good one is often the next.
local last_stamp = nil
local function is_stamp(s)
  if s == last_stamp then return true end
  if #s > MAX_STAMP or not find(s, '^[!-~]+$') then return false end
  last_stamp = s
  return true
end

-- The stamp of a transaction that wrote, or nil: a detached reservation's ("xid.nonce.id") names only who made it.
local function names_writer(stamp)
  return not find(stamp, '%.%x+%.') and stamp or nil
end

local function is_domain(s)
  return #s <= MAX_NAME and find(s, '^[^:{}]+$')
end

-- ---------------------------------------------------------------------------------------------------------------
-- Slots
-- ---------------------------------------------------------------------------------------------------------------

local SLOTS = 16384
local SLOTS_KEPT, TAG_KEPT = 10000, 100 -- tags whose slots are remembered, at most, and bytes of one

local crc_table = nil                  -- of CRC16/XMODEM; made by the first process that needs it
local slot_of_tag, slots_kept = {}, 0

-- The slot of a fence, as the cluster specification counts it: of what is between its first braces.
local function slot_of(fence)
  local tag = match(fence, '{([^{}]+)}')
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

-- The slots of arm and renew, "a-b,c,d-e", 'none', or '' for all: {[slot] = true}, or false for all; nil if malformed.
local function parse_slots(text)
  if text == '' or text == '0-16383' then return false end
  local slots = {}
  if text == 'none' then return slots end
  for range in (text .. ','):gmatch('(.-),') do
    local first, last = match(range, '^(%d+)%-(%d+)$')
    first, last = whole(first or range), whole(last or range)
    if not first or not last or last < first or last >= SLOTS then return nil end
    for slot = first, last do slots[slot] = true end
  end
  return slots
end

-- Whether the process was granted the fence's slot and serves it.
local function grants(space, fence)
  return not space.slots or space.slots[slot_of(fence)] == true
end

-- Whether readers there may be answered: in a slot that was granted while the epoch went on, only once the domain was
-- announced since, and with that all that was prepared or reserved detached before has been reserved here [c8].
local function answers_in(space, domain, fence)
  local slot = slot_of(fence)
  return space.slots[slot] == true and space.since[slot] <= domain.carried
end

-- ---------------------------------------------------------------------------------------------------------------
-- Namespaces, domains, names
-- ---------------------------------------------------------------------------------------------------------------

-- One cluster's view of this process. armed: {owner, timeline, server, epoch, number, until_ms, granted_ms, idle,
-- ticket, fill_ms, stream_max, safe_second}; granted_ms: until_ms as it was granted, whatever a disarm made of it;
-- safe_second: see lease_runs().
-- slots: false: all; else slot -> true: granted; false: was granted and is lost (see read_keys), and then
-- lost: slot -> a fence that was found elsewhere. since: slot -> number of the grant by which it came here last; of all
-- that this process was ever granted in the epoch.
-- pending: fence name -> the first of its reservations {stamp, w, gen, grant, time, raw, v, over, next}, in order of
-- arrival (time: what TIME answered; raw, v: what the fence held then, and the version that it told; over: that was not
-- below w); fences: how many there are in it;
-- most: how many there were since it was made; stopped, resume: where the last page of pending() ended, and
-- the fence that comes there now. domains: name -> see domain_of(). filling, filled_before, fills (how many in
-- filling), turned: see turn_fills().
-- A gen is a table of its own: it equals nothing but itself.
local function new_space(armed, slots, grant)
  local since = {}
  for slot in pairs(slots or {}) do since[slot] = grant end
  return { armed = armed, slots = slots, lost = {}, since = since, pending = {}, fences = 0, most = 0, domains = {},
           filling = {}, filled_before = {}, fills = 0, turned = 0 }
end

local function add_first(space, fence, own)
  space.pending[fence] = own
  space.fences = space.fences + 1
  if space.fences > space.most then space.most = space.fences end
end

-- A Lua table never shrinks, and the garbage collector walks all of it in one go: after 100,000 reservations at once
-- every call would pay for them for ever. So it is made anew once it is mostly empty; there are never many more.
local function drop_last(space, fence)
  if space.resume == fence then space.resume = next(space.pending, fence) end
  space.pending[fence] = nil
  space.fences = space.fences - 1
  if space.most > 1000 and space.fences * 4 < space.most then
    local smaller = {}
    for name, first in pairs(space.pending) do smaller[name] = first end
    space.pending, space.most = smaller, space.fences
  end
end

-- head: what a fence of the token begins with; heads: see version_of_head().
local function new_gen(space, domain)
  generation = generation + 1
  domain.gen = { domain = domain }
  domain.token = space.armed.number .. '.' ..
    sub(redis.sha1hex(space.armed.epoch .. ' ' .. identity .. ' ' .. generation), 1, 16)
  domain.head = domain.token .. ' '
  domain.heads, domain.heads_kept = {}, 0
end

-- The domain's record, made on first use. id: the attachment that is announced (nil: not attached, readers are told
-- unarmed); ended: the newest attachment that is known to be over, so a late announcement of it changes nothing;
-- withdrawn (or nil): it was announced, and is not to be served any more;
-- carried: the number of the grant that it was announced for last.
-- pending: stamp -> {since, ended}, of reservations of the whole domain; pendings: how many. publish: see publish().
-- reserved: how many reservations of its rows there are; counts: what readers were answered since the last
-- fence_counts.
local function domain_of(space, name)
  local d = space.domains[name]
  if not d then
    d = { id = nil, ended = 0, carried = 0, pending = {}, pendings = 0, publish = false, reserved = 0 }
    d.counts = { 0, 0, 0, 0, 0, 0, 0 }
    new_gen(space, d)
    space.domains[name] = d
  end
  return d
end

-- namespace, domain name of a fence name; nil if it is no fence name.
local function parse(fence)
  if #fence > MAX_NAME then return nil end
  return match(fence, '^([%w_.-]+):f:([^:{}]+):{[^{}]+}')
end

-- What a fence name says before its tag ("<namespace>:f:<domain>:") -> {space, domain, values}, values being what the
-- names of its values begin with. Only of domains that are known, so what readers ask for does not make it grow.
local routes = {}

-- Whether there is a tag from there on, in a name that is not too long. Plain searches cost less than a pattern.
local function has_tag(fence, from)
  if #fence > MAX_NAME then return false end
  local closed, opened = find(fence, '}', from, true), find(fence, '{', from, true)
  return closed and closed > from and not (opened and opened < closed)
end

local function route_of(fence)
  local at = find(fence, ':{', 1, true)
  local r = at and routes[sub(fence, 1, at)]
  if r and has_tag(fence, at + 2) then return r end
  local ns, name = parse(fence)
  local space = ns and spaces[ns]
  local domain = space and space.domains[name]
  if not domain then return nil end
  r = { space = space, domain = domain, values = ns .. ':v:' .. name .. ':' }
  routes[sub(fence, 1, at)] = r
  return r
end

-- Whether value is a value name of this very fence: the same name with v for f, or that and a suffix after a colon.
-- Without it a put could overwrite any key.
local function names_value_of(value, fence, values)
  local n = #values
  if value == values .. sub(fence, n + 1) then return true end
  if #value > MAX_NAME or sub(value, 1, n) ~= values or sub(value, n + 1, #fence) ~= sub(fence, n + 1) then
    return false
  end
  return #value == #fence or (#value > #fence and byte(value, #fence + 1) == 58)
end

-- The route of a reader's fence and value (may be nil), nil if it takes reader_route() to tell. It does not look at the
-- tag: that costs as much as the rest. Who finds no fence of the name asks has_tag(fence, the second result) as well.
local function likely_route(fence, value)
  local at = find(fence, ':{', 1, true)
  local r = at and routes[sub(fence, 1, at)]
  if r and (not value or value == r.values .. sub(fence, at + 1)) then return r, at + 2 end
end

-- For a reader's fence and value (may be nil): the route, false if this process knows no such domain, or nil and the
-- error.
local function reader_route(function_name, fence, value)
  local r = route_of(fence) or false
  local values = r and r.values
  if not r then
    local ns, name = parse(fence)
    if not ns then return nil, bad(function_name, 'the first key is no fence') end
    values = ns .. ':v:' .. name .. ':'
  end
  if value and not names_value_of(value, fence, values) then
    return nil, bad(function_name, 'the second key is no value of this fence')
  end
  return r
end

-- Whether the lease runs, and what TIME answered. A second that it outlasts is remembered, as TIME writes it: within it
-- the text is enough.
local function lease_runs(armed)
  local time = redis.call('TIME')
  if time[1] == armed.safe_second then return true, time end
  local left = armed.until_ms - ms_of(time)
  if left > 1000 then armed.safe_second = time[1] end
  return left > 0, time
end

-- Whether this process may answer readers there now.
local function may_answer(r, fence)
  return r and r.domain.id and (not r.space.slots or answers_in(r.space, r.domain, fence))
    and lease_runs(r.space.armed)
end

-- The space if it is armed in this epoch. With a lease: only while the lease runs (reserve); without: for commit,
-- abort and settle, which stay right when they come late. With a lease also what TIME answered.
local function in_epoch(ns, epoch, lease)
  local space = ns and spaces[ns]
  if not space or space.armed.epoch ~= epoch then return nil end
  if not lease then return space end
  local runs, time = lease_runs(space.armed)
  if runs then return space, time end
end

-- ---------------------------------------------------------------------------------------------------------------
-- Fences (keys) and reservations (locals)
-- ---------------------------------------------------------------------------------------------------------------

-- Whether an error of a key access says that the key is another process's affair now: its slot has moved, or is moving
-- and the key has gone ahead (or never was). Nothing else says so, least of all a missing permission.
local function is_elsewhere(answer)
  return type(answer) == 'table' and answer.err and find(answer.err, 'non local key', 1, true)
end

-- What the keys hold (false: nothing), or 'elsewhere'. From the first time that a granted slot is found elsewhere it
-- is lost to this process until it is granted anew: fences there miss commits from now on, so if they ever come back
-- nobody may be answered from them. Writers are granted what they ask there all the same: no process was granted the
-- slot but this one, so nobody answers readers there.
local function read_keys(space, fences)
  if not space.slots then
    local all = redis.pcall('MGET', unpack(fences))
    if not all.err then return all end
  end
  local raws = {}
  for i, fence in ipairs(fences) do
    local slot = space.slots and slot_of(fence)
    local one = slot and not space.slots[slot] and 'elsewhere' or redis.pcall('MGET', fence)
    if slot and is_elsewhere(one) then
      space.slots[slot], space.lost[slot] = false, fence
      one = 'elsewhere'
    end
    if one == 'elsewhere' then
      raws[i] = one
    elseif one.err then
      error(one)
    else
      raws[i] = one[1]
    end
  end
  return raws
end

-- What fences and values begin with, "<token> <version> ": the version ('-' is one here), nil if the token is not the
-- domain's present one. Those of the present token are remembered, for many rows have the same version.
local function version_of_head(domain, head)
  local v = domain.heads[head]
  if v then return v end
  local n = #domain.head
  v = sub(head, n + 1, -2)
  if sub(head, 1, n) ~= domain.head or not (v == '-' or version(v)) then return nil end
  if domain.heads_kept >= VERSIONS_KEPT then domain.heads, domain.heads_kept = {}, 0 end
  domain.heads[head], domain.heads_kept = v, domain.heads_kept + 1
  return v
end

-- version, ticket, exists, at. version is nil when there is none that may be trusted: no fence, one of another token
-- (another epoch, generation or process), one with a ticket only (then the ticket is the second result). at: where the
-- blank behind the version is. raw is what the key holds (false: nothing), nil if it is to be read. MGET: a key of
-- another type reads as absent instead of failing.
local function read_fence(fence, domain, raw)
  if raw == nil then raw = redis.call('MGET', fence)[1] end
  if not raw then return nil, nil, false end
  local at = find(raw, ' ', #domain.head + 1, true)
  if not at or (at < #raw and find(raw, '%s', at + 1)) then return nil, nil, true end
  local v = version_of_head(domain, sub(raw, 1, at))
  if v == '-' then return nil, sub(raw, at + 1), true, at end
  return v, nil, true, at
end

-- Whether this call has read fences before it chose a database; only write does.
local read_anywhere = false

-- version and raw: for a writer, whose raw counts only if it has a version, unless it was read in database 0.
local function read_for_writer(fence, domain, raw)
  local v = read_fence(fence, domain, raw)
  if v or not read_anywhere then return v, raw end
  redis.call('SELECT', '0')
  raw = redis.call('MGET', fence)[1]
  return read_fence(fence, domain, raw), raw
end

-- Returns what the key holds now.
local function write_fence(space, fence, domain, v, rest)
  local raw = domain.head .. v .. ' ' .. rest
  redis.call('SET', fence, raw, 'PX', v == '-' and space.armed.ticket or space.armed.idle)
  return raw
end

local function own_pending(first, stamp)
  local own = first
  while own and own.stamp ~= stamp do own = own.next end
  return own
end

-- Drops the own reservation (nil: there is none), and no other: whose version is lower than what is committed now may
-- still be live, for versions restart when a table is truncated.
local function drop_pending(space, fence, own)
  if not own then return end
  local domain, first = own.gen.domain, space.pending[fence]
  domain.reserved = domain.reserved - 1
  if first == own then
    if own.next then space.pending[fence] = own.next else drop_last(space, fence) end
  else
    while first.next ~= own do first = first.next end
    first.next = own.next
  end
end

local function store_value(value, token, v, stamp, payload, ttl_ms)
  local record = token .. ' ' .. v .. ' ' .. stamp .. '\n' .. payload
  if ttl_ms > 0 then
    redis.call('SET', value, record, 'PX', ttl_ms)
  else
    redis.call('SET', value, record)
  end
end

-- Whether this Redis is part of a cluster.
local clustered = nil
local function in_cluster()
  if clustered == nil then
    clustered = find(redis.call('INFO', 'cluster'), 'cluster_enabled:1', 1, true) ~= nil
  end
  return clustered
end

-- Tells those who listen that the transaction has committed w of the fence; both '-': of any rows of the domain. Where:
-- <namespace>:e:<domain>, in a cluster with the fence's tag, which brings it to the fence's slot. Nothing relies on
-- an event, so what fails here (no right to publish, out of memory) is let go.
local function publish(space, domain, ns, name, fence, w, stamp)
  local channel = ns .. ':e:' .. name
  local sharded = fence ~= '-' and in_cluster()
  if sharded then channel = channel .. ':' .. match(fence, '{[^{}]+}') end
  if domain.publish == 'stream' then
    redis.pcall('XADD', channel, 'MAXLEN', '~', space.armed.stream_max, '*',
                'domain', name, 'fence', fence, 'version', w, 'stamp', stamp)
    redis.pcall('PEXPIRE', channel, space.armed.idle)
  else
    redis.pcall(sharded and 'SPUBLISH' or 'PUBLISH', channel, name .. ' ' .. fence .. ' ' .. w .. ' ' .. stamp)
  end
end

-- The end of a reservation (nil: there is none) that was committed: drops it and publishes w. A word that comes twice
-- publishes once. The domain may be nil if there is no reservation.
local function end_committed(space, domain, fence, own, w)
  drop_pending(space, fence, own)
  local other = space.pending[fence]
  while other do
    other.grant = nil
    other = other.next
  end
  if own and domain.publish then
    local ns, name = parse(fence)
    publish(space, domain, ns, name, fence, w, own.stamp)
  end
end

-- commit and settle(u): the transaction's version w is in PostgreSQL. A fence that has a version is raised; one that
-- has none keeps none: a late commit must not revive what an eviction took [4], only a reader with the current ticket
-- may, or a commit that brings the row and proves that it is the newest. A reservation of an older generation proves
-- nothing today: the fence goes. So does one that was not below the version when that was reserved: it is wrong, and
-- counts as evicted just now. The fence names the transaction only if the version is certainly its own: settle's may
-- be of a later one.
-- value: the value's name if the transaction tells of the row, nil if not. payload: the row, nil if there is none any
-- more. It is stored, and gives a fence without a version its own, only if this holds: the own reservation is still
-- there, granted in the domain's present generation and under this very grant, so that nobody else's commit of the row
-- has ended here since: whoever has committed a newer version is still pending. Without that a late commit from before
-- a TRUNCATE, whose reservation may have come late as well, would store what it wrote then, under a version that
-- another row has today. And what the fence knows must not be newer.
-- raw: see read_fence; returned as it is afterwards.
local function commit_one(space, domain, fence, stamp, w, raw, value, payload, ttl_ms, grant)
  local own = own_pending(space.pending[fence], stamp)
  if raw == nil then raw = read_keys(space, { fence })[1] end
  if raw == 'elsewhere' then
    drop_pending(space, fence, own)
    return raw
  end
  local v
  if own and raw and own.raw == raw and own.gen == domain.gen then v = own.v end
  if not v then v, raw = read_for_writer(fence, domain, raw) end
  if own and own.over then v = nil end
  local newest = (v and below(w, v)) and v or w
  local author = own and own.w == newest and names_writer(stamp) or ''
  local proves = payload and own and own.gen == domain.gen and own.grant == grant
  if not v and proves then
    raw = write_fence(space, fence, domain, w, author)
    store_value(value, domain.token, w, stamp, payload, ttl_ms)
  elseif raw and (not v or (own and own.gen ~= domain.gen)) then
    redis.call('DEL', fence)
    raw = false
  elseif v then
    if v ~= newest then
      raw = write_fence(space, fence, domain, newest, author)
    end
    if proves and newest == w then
      store_value(value, domain.token, w, stamp, payload, ttl_ms)
    end
  end
  if value and not payload and newest == w then redis.call('DEL', value) end
  end_committed(space, domain, fence, own, w)
  return raw
end

-- ---------------------------------------------------------------------------------------------------------------
-- The process: hello, arm, renew, disarm, announce
-- ---------------------------------------------------------------------------------------------------------------

-- hello <namespace> <nonce> -> identity, time, role, library version, owner, timeline, epoch, until
-- The last four are empty if this process was never armed for the namespace.
local function hello(_, args)
  if #args ~= 2 or not find(args[1], '^[%w_.-]+$') or not find(args[2], '^%x+$') or #args[2] > MAX_NONCE then
    return bad('fence_hello', 'expected a namespace and a nonce of up to 16 hexadecimal digits')
  end
  if not identity then identity = args[2] end
  local role = match(redis.call('INFO', 'replication'), 'role:(%a+)') or '?'
  local reply = { identity, tostring(now_ms()), role, LIBRARY_VERSION, '', '', '', '' }
  local space = spaces[args[1]]
  if space then
    local a = space.armed
    reply[5], reply[6], reply[7], reply[8] = a.owner, tostring(a.timeline), a.epoch, tostring(a.until_ms)
  end
  return reply
end

-- What attach's publish means here: notify is PostgreSQL's affair.
local PUBLISH = { none = false, notify = false, pubsub = 'pubsub', stream = 'stream' }

-- False: that attachment is taken for ended.
local function attach_domain(space, name, id, publish_how)
  local d = domain_of(space, name)
  if id <= d.ended then return false end
  if d.id and id <= d.id then return true end
  -- another attachment of the name, or writes that passed its triggers by: nothing of before is trusted
  if d.id or d.withdrawn then new_gen(space, d) end
  d.id, d.withdrawn = id, nil
  d.publish = PUBLISH[publish_how]
  return true
end

-- Writes may pass the triggers of that attachment by: its readers are told unarmed until it is announced again.
local function withdraw_domain(space, name, id)
  local d = domain_of(space, name)
  if d.id ~= id then return end
  d.id, d.withdrawn = nil, true
  new_gen(space, d)
end

-- Records a reservation of a whole domain. ended: the attachment that ends if it is committed, 0 if none.
local function domain_pend(d, stamp, ended, now)
  local p = d.pending[stamp]
  if not p then
    d.pending[stamp] = { since = now, ended = ended }
    d.pendings = d.pendings + 1
  elseif ended > p.ended then
    p.ended = ended
  end
end

-- The settings of arm and renew, or nil if they are malformed: JSON {idle_ms, fill_ms, stream_max, server: "...",
-- grant, domains: [[name, id], ...], reservations: [[domain, stamp], ...]}, all but the first optional. server: the run
-- of a PostgreSQL server that asks. grant: see renew.
local function arm_settings(json)
  local ok, settings = pcall(cjson.decode, json)
  if not ok or type(settings) ~= 'table' then return nil end
  local idle_ms, domains, reservations = settings.idle_ms, settings.domains or {}, settings.reservations or {}
  local fill_ms, stream_max, grant = settings.fill_ms or 0, settings.stream_max or 1000, settings.grant or 0
  if type(idle_ms) ~= 'number' or idle_ms < 1 or idle_ms > 1e14 then return nil end
  if type(fill_ms) ~= 'number' or fill_ms < 0 or fill_ms > 1e14 then return nil end
  if type(stream_max) ~= 'number' or stream_max < 1 or stream_max > 1e14 then return nil end
  if type(grant) ~= 'number' or grant < 0 or grant > 1e14 then return nil end
  if type(domains) ~= 'table' or type(reservations) ~= 'table' then return nil end
  if settings.server ~= nil and type(settings.server) ~= 'string' then return nil end
  for _, d in ipairs(domains) do
    if type(d) ~= 'table' or type(d[1]) ~= 'string' or not is_domain(d[1]) or type(d[2]) ~= 'number' then return nil end
  end
  for _, r in ipairs(reservations) do
    if type(r) ~= 'table' or type(r[1]) ~= 'string' or not is_domain(r[1]) then return nil end
    if type(r[2]) ~= 'string' or not is_stamp(r[2]) then return nil end
  end
  return { idle_ms = math.floor(idle_ms), fill_ms = math.floor(fill_ms), stream_max = math.floor(stream_max),
           server = settings.server, grant = math.floor(grant), domains = domains, reservations = reservations }
end

local function use_settings(space, settings)
  -- idle: as text, for Redis writes a number of Lua as text with great care, again in every call
  space.armed.idle, space.armed.fill_ms = string.format('%d', settings.idle_ms), settings.fill_ms
  -- anybody who may read makes tickets, of keys that there may never be
  space.armed.ticket = string.format('%d', math.min(settings.idle_ms, math.max(TICKET_MS, settings.fill_ms)))
  if settings.fill_ms == 0 then                            -- switched off: none is remembered
    space.filling, space.filled_before, space.fills = {}, {}, 0
  end
  space.armed.stream_max = settings.stream_max
end

local function extend(armed, till)
  if till > armed.until_ms then armed.until_ms = till end
  if till > armed.granted_ms then armed.granted_ms = till end
end

-- arm <heartbeat key> | identity epoch until slots owner timeline settings
-- until is absolute on this node's clock: an arm that was delayed past it is over before it starts, and refused.
local function arm(keys, args)
  if #keys ~= 1 or #args ~= 7 then return bad('fence_arm', 'expected 1 key and 7 arguments') end
  local ns = match(keys[1], '^([%w_.-]+):')
  local epoch, number, till, timeline = args[2], epoch_number(args[2]), whole(args[3]), whole(args[6])
  local slots, settings = parse_slots(args[4]), arm_settings(args[7])
  if not (ns and number and till and timeline and slots ~= nil and settings) then
    return bad('fence_arm', 'malformed argument')
  end
  local now, space = now_ms(), spaces[ns]
  local a = space and space.armed
  if args[1] ~= identity then return { 'refused', 'another process answers here', tostring(now) } end
  if till <= now then return { 'refused', 'the lease was over on arrival', tostring(now) } end
  if a and a.owner ~= args[5] and now < a.until_ms then
    return { 'refused', 'armed by cluster ' .. a.owner .. ', whose lease runs', tostring(now) }
  end
  if a and timeline < a.timeline and now < a.until_ms then
    return { 'refused', 'armed by timeline ' .. a.timeline .. ', whose lease runs', tostring(now) }
  end
  -- A server that was started again has waited until its last lease was over: this one lives, and another one asks.
  if a and timeline == a.timeline and settings.server ~= a.server and now < a.granted_ms then
    return { 'refused', 'armed by another server of this cluster and timeline, whose lease runs', tostring(now) }
  end
  if a and a.epoch ~= epoch and number <= a.number then
    return { 'refused', 'already armed in epoch ' .. a.epoch, tostring(now) }
  end
  redis.call('SET', keys[1], epoch, 'PX', 3600000)     -- proves that this node takes writes
  if a and a.epoch == epoch then
    extend(a, till)
  else
    space = new_space({ owner = args[5], timeline = timeline, server = settings.server, epoch = epoch, number = number,
                        until_ms = till, granted_ms = till }, slots, settings.grant)
    spaces[ns] = space
    routes = {}
  end
  use_settings(space, settings)
  for _, d in ipairs(settings.domains) do attach_domain(space, d[1], d[2], 'none') end
  for _, r in ipairs(settings.reservations) do domain_pend(domain_of(space, r[1]), r[2], 0, now) end
  return { 'armed', '', tostring(now) }
end

-- Whether a slot that was lost is served here again: its fence can be touched, or could be if there was one.
local function is_back(space)
  for _, fence in pairs(space.lost) do
    if not is_elsewhere(redis.pcall('MGET', fence)) then return true end
  end
  return false
end

-- The epoch goes on with these slots. In one that this process had before in the epoch, or has lost, may be fences
-- that have missed commits since: then what it has, of any slot, is not trusted any more. A lost slot that is still
-- elsewhere stays lost. Returns how many have come.
local function regrant(space, slots, grant)
  local came, again = 0, false
  for slot in pairs(space.slots) do
    if not slots[slot] then space.slots[slot], space.lost[slot] = nil, nil end
  end
  for slot in pairs(slots) do
    local fence = space.lost[slot]
    if not space.slots[slot] and not (fence and is_elsewhere(redis.pcall('MGET', fence))) then
      came, again = came + 1, again or space.since[slot] ~= nil
      space.slots[slot], space.lost[slot], space.since[slot] = true, nil, grant
    end
  end
  if again then
    for _, d in pairs(space.domains) do new_gen(space, d) end
  end
  return came
end

-- Fill leases (busy_ms) are kept in two tables, those given since the last turn and those before it, which are thrown
-- away whole: a Lua table never shrinks, and every round of the garbage collector walks through it. So a turn comes as
-- soon as all of the older have run out, with the next lease or the next heartbeat.
local function turn_fills(space, now)
  if now - space.turned >= space.armed.fill_ms or now < space.turned then
    space.filled_before, space.filling, space.fills, space.turned = space.filling, {}, 0, now
  end
end

-- renew | heartbeat-key identity epoch until settings [slots] -> renewed '' now back came. back '1': slots that were
-- lost could be granted again. Refused unless armed in exactly that epoch: a renewal that was sent to the process
-- before this one must not bring this one to life [1]. The key is an argument: a process whose slots are moving away
-- goes on answering for those that it has.
-- slots: from now on these, in the same epoch; came: how many the process has not had until now. Readers are not
-- answered in those before their domain is announced for this grant, whose number is in the settings, or a later one.
local function renew(_, args)
  local ns, till = args[1] and match(args[1], '^([%w_.-]+):'), args[4] and whole(args[4])
  local settings, slots = args[5] and arm_settings(args[5]), args[6] and parse_slots(args[6])
  if #args < 5 or #args > 6 or not ns or not till or not settings or (args[6] and slots == nil) then
    return bad('fence_renew', 'expected heartbeat key, identity, epoch, until, settings and perhaps slots')
  end
  local now, space = now_ms(), in_epoch(ns, args[3], false)
  if args[2] ~= identity then return { 'refused', 'another process answers here', tostring(now) } end
  if not space then return { 'refused', 'not armed in this epoch', tostring(now) } end
  if till <= now then return { 'refused', 'the lease was over on arrival', tostring(now) } end
  if args[6] and (not slots) ~= (not space.slots) then
    return { 'refused', 'all slots, and some, are not of one epoch', tostring(now) }
  end
  local wrote = redis.pcall('SET', args[1], args[3], 'PX', 3600000)   -- proves that this node takes writes
  if wrote.err and not is_elsewhere(wrote) then error(wrote) end
  extend(space.armed, till)
  use_settings(space, settings)
  turn_fills(space, now)
  collect_garbage()
  local came = slots and regrant(space, slots, settings.grant) or 0
  return { 'renewed', '', tostring(now), is_back(space) and '1' or '0', tostring(came) }
end

-- disarm <namespace> <owner> <timeline>: the lease ends now. Only its own cluster, and no older timeline, may ask.
local function disarm(_, args)
  if #args ~= 3 or not whole(args[3]) then return bad('fence_disarm', 'expected namespace, owner and timeline') end
  local space = spaces[args[1]]
  if not space then return { 'unarmed' } end
  if space.armed.owner ~= args[2] or whole(args[3]) < space.armed.timeline then return { 'refused' } end
  space.armed.until_ms, space.armed.safe_second = 0, nil
  return { 'disarmed' }
end

-- announce <namespace> <epoch> (<domain> <id> <publish>)... [grant] -> announced refused | unarmed
-- These attachments are committed; readers may be answered: in slots that were granted by that number or a lower one.
-- publish 'withdrawn': this one is not, or no longer, to be served. refused: how many are taken for ended, and stay so.
local function announce(_, args)
  local named, grant = #args % 3 == 0, 0
  if named then grant = whole(args[#args] or '') end
  if #args < 2 or #args % 3 == 1 or not grant then
    return bad('fence_announce', 'expected namespace, epoch, triples and perhaps the number of a grant')
  end
  local last = named and #args - 1 or #args
  for i = 3, last, 3 do
    if not is_domain(args[i]) or not whole(args[i + 1]) or
       (PUBLISH[args[i + 2]] == nil and args[i + 2] ~= 'withdrawn') then
      return bad('fence_announce', 'malformed domain, id or publish')
    end
  end
  local space = in_epoch(args[1], args[2], false)
  if not space then return { 'unarmed' } end
  local refused = 0
  for i = 3, last, 3 do
    local d = domain_of(space, args[i])
    if args[i + 2] == 'withdrawn' then
      withdraw_domain(space, args[i], whole(args[i + 1]))
    elseif not attach_domain(space, args[i], whole(args[i + 1]), args[i + 2]) then
      refused = refused + 1
    elseif grant > d.carried then
      d.carried = grant
    end
  end
  return { 'announced', tostring(refused) }
end

-- ---------------------------------------------------------------------------------------------------------------
-- Writers
-- ---------------------------------------------------------------------------------------------------------------

-- The namespace that all the fences belong to, or nil: there are too many, or they are of several.
local function common_namespace(keys)
  if #keys > MAX_FENCES then return nil end
  local ns
  for _, fence in ipairs(keys) do
    local n = parse(fence)
    if not n or (ns and n ~= ns) then return nil end
    ns = n
  end
  return ns
end

-- The domain of a fence of that space: made if this is the first that is heard of it.
local function domain_in(space, fence)
  local r = route_of(fence)
  if r then return r.domain end
  local _, name = parse(fence)
  return domain_of(space, name)
end

-- observed may be nil; raw: see read_keys, nil if it is to be read. Returns '' (granted) or '-' (this process was never
-- granted the slot), and raw as it is afterwards. time: what TIME answered.
-- A fence that is not below w is remembered, see commit_one. It need not be wrong: INSERT reserves before it finds the
-- row. No number from here counts in PostgreSQL: whoever may put, or write keys here, can make a fence say anything.
local function reserve_one(space, domain, fence, stamp, observed, w, time, raw, grant)
  if raw == nil then raw = read_keys(space, { fence })[1] end
  if raw == 'elsewhere' then return space.slots[slot_of(fence)] == nil and '-' or '', raw end
  local v
  local head = observed and raw and domain.head .. observed .. ' '
  if head and sub(raw, 1, #head) == head then
    v = observed                       -- as it is mostly
  else
    v, raw = read_for_writer(fence, domain, raw)
    if v and observed and below(v, observed) then
      raw = write_fence(space, fence, domain, observed, '')
      v = observed
    end
  end
  local first = space.pending[fence]
  local own = own_pending(first, stamp)
  if not own and space.fences >= MOST_RESERVED and domain.reserved >= FEW_RESERVED then
    domain_pend(domain, stamp, 0, ms_of(time))             -- the patrol ends it
  elseif own then
    if below(own.w, w) then own.w = w end
    own.gen, own.grant, own.raw, own.v = domain.gen, grant, raw, v
  else
    own = { stamp = stamp, w = w, gen = domain.gen, grant = grant, time = time, raw = raw, v = v }
    if first then
      while first.next do first = first.next end
      first.next = own
    else
      add_first(space, fence, own)
    end
    domain.reserved = domain.reserved + 1
  end
  if own then own.over = v and not below(v, w) end
  if not v and raw then
    redis.call('DEL', fence)
    raw = false
  end
  return '', raw
end

-- How many arguments an operation of write has, besides its letter
local WRITE_ARGUMENTS = { r = 3, g = 4, c = 2, d = 2, v = 5, a = 1 }

-- For each fence its domain (false: not known yet), nil if a fence or its operation is malformed, or is of another
-- namespace. Whose reservation is found needs no other look at its name and stamp.
local function domains_of(ns, space, keys, args)
  local pending, domains, at, most = space and space.pending or {}, {}, #keys + 3, #args
  for i = 1, #keys do
    local fence, op, stamp = keys[i], args[at], args[at + 1]
    local n = WRITE_ARGUMENTS[op]
    if not n or most < at + n then return nil end
    local own, w = own_pending(pending[fence], stamp), args[at + 2]
    if own then
      domains[i] = own.gen.domain
    else
      local r = route_of(fence)
      domains[i] = r and r.space == space and r.domain
      if not is_stamp(stamp) or not (domains[i] or parse(fence) == ns) then return nil end
    end
    if op == 'r' or op == 'g' then
      if not (w == '' or version(w)) or not version(args[at + 3]) then return nil end
      if op == 'g' and not whole(args[at + 4]) then return nil end
    elseif op ~= 'a' and not (own and own.w == w) and not version(w) then
      return nil
    elseif op == 'v' and not (whole(args[at + 3]) and whole(args[at + 5])) then
      return nil
    end
    at = at + n + 1
  end
  return at == most + 1 and domains
end

-- write | number fence... epoch operation... -> written answer... | unarmed
-- What many transactions have to say, in one call: for each fence one operation, done in that order. The fences are
-- arguments, not keys: they are of many slots, and what is said of one that has moved away is still said here.
--   r stamp observed w   reserve; answered '' (granted) or '-' (the lease is over, or was not for this slot). observed
--                        is '' unless it is a committed version of that very key [2, 2b, 6d].
--   g stamp observed w grant   the same; the commit may bring the row if it names this number, which the transaction
--                        uses for no other reservation
--   c stamp w            commit
--   d stamp w            commit, and there is no row: the value goes
--   v stamp w ttl_ms payload grant   commit, and this is the row: the value, which is named like the fence with v for f
--   a stamp              abort: drops the own reservation and touches nothing else
local function write(_, args)
  local n = args[1] and whole(args[1])
  if not n or n == 0 or n > MAX_FENCES or #args < n + 2 then
    return bad('fence_write', 'expected the number of fences, fences, epoch and an operation for each fence')
  end
  local keys, epoch = { unpack(args, 2, n + 1) }, args[n + 2]
  local ns = sub(keys[1], 1, (find(keys[1], ':', 1, true) or 1) - 1)
  local space = spaces[ns]
  local domains = domains_of(ns, space, keys, args)
  if not domains then
    return bad('fence_write', 'expected the number of fences, fences, epoch and an operation for each fence')
  end
  if not space or space.armed.epoch ~= epoch then return { 'unarmed' } end
  -- few: as in get, a fence that is found under a current token is in database 0
  read_anywhere = n <= 4
  if not read_anywhere then redis.call('SELECT', '0') end
  local raws, changed, leased, time = read_keys(space, keys), {}, nil, nil
  local reply, answers, at = { 'written' }, 1, n + 3
  for i = 1, n do
    local fence, op, stamp = keys[i], args[at], args[at + 1]
    local was = changed[fence]
    if was == nil then was = raws[i] end
    local raw = was
    if op == 'r' or op == 'g' then
      if leased == nil then leased, time = lease_runs(space.armed) end
      local answer, observed = '-', args[at + 2]
      if leased then
        answer, raw = reserve_one(space, domains[i] or domain_in(space, fence), fence, stamp,
                                  observed ~= '' and observed, args[at + 3], time, raw,
                                  op == 'g' and args[at + 4] or nil)
      end
      answers = answers + 1
      reply[answers] = answer
    elseif op == 'c' then
      raw = commit_one(space, domains[i] or domain_in(space, fence), fence, stamp, args[at + 2], raw)
    elseif op == 'a' then
      drop_pending(space, fence, own_pending(space.pending[fence], stamp))
    else
      local is_row = op == 'v'
      raw = commit_one(space, domains[i] or domain_in(space, fence), fence, stamp, args[at + 2], raw,
                       ns .. ':v:' .. sub(fence, #ns + 4), is_row and args[at + 4] or nil,
                       is_row and whole(args[at + 3]), is_row and args[at + 5] or nil)
    end
    if raw ~= was and i < n then changed[fence] = raw end
    at = at + WRITE_ARGUMENTS[op] + 1
  end
  return reply
end

-- reserve <fence>... | epoch stamp (observed w)... -> reserved (''|'-')... | unarmed
-- Per fence what write answers to r.
-- observed is '' unless it is a committed version of that very key [2, 2b, 6d].
local function reserve(keys, args)
  local ns = common_namespace(keys)
  if not ns or #args ~= 2 + 2 * #keys or not is_stamp(args[2]) then
    return bad('fence_reserve', 'expected fences, epoch, stamp and two versions for each fence')
  end
  for i = 1, #keys do
    if not version(args[2 + 2 * i]) or not (args[1 + 2 * i] == '' or version(args[1 + 2 * i])) then
      return bad('fence_reserve', 'malformed version')
    end
  end
  local space, time = in_epoch(ns, args[1], true)
  if not space then return { 'unarmed' } end
  local reply = { 'reserved' }
  for i, fence in ipairs(keys) do
    local observed = args[1 + 2 * i]
    reply[i + 1] = (reserve_one(space, domain_in(space, fence), fence, args[2], observed ~= '' and observed or nil,
                                args[2 + 2 * i], time))
  end
  return reply
end

-- commit <fence>... | epoch stamp w... -> committed | unarmed
local function commit(keys, args)
  local ns = common_namespace(keys)
  if not ns or #args ~= 2 + #keys or not is_stamp(args[2]) then
    return bad('fence_commit', 'expected fences, epoch, stamp and a version for each fence')
  end
  for i = 1, #keys do
    if not version(args[2 + i]) then return bad('fence_commit', 'malformed version') end
  end
  local space = in_epoch(ns, args[1], false)
  if not space then return { 'unarmed' } end
  for i, fence in ipairs(keys) do
    commit_one(space, domain_in(space, fence), fence, args[2], args[2 + i])
  end
  return { 'committed' }
end

-- abort <fence>... | epoch stamp -> aborted | unarmed. Drops the own reservations and touches nothing else.
local function abort(keys, args)
  local ns = common_namespace(keys)
  if not ns or #args ~= 2 then return bad('fence_abort', 'expected fences, epoch and stamp') end
  local space = in_epoch(ns, args[1], false)
  if not space then return { 'unarmed' } end
  for _, fence in ipairs(keys) do drop_pending(space, fence, own_pending(space.pending[fence], args[2])) end
  return { 'aborted' }
end

-- settle | namespace fence epoch stamp u -> settled | unarmed (patrol). u is the version of the row or tombstone, read
-- after the transaction's fate was known; '' if there is neither: then nothing is known of the fence, and it goes.
-- The fence is an argument, not a key: the message goes to the process that listed the reservation, even if the slot
-- has moved away since; then only the reservation is dropped.
local function settle(_, args)
  if #args ~= 5 or parse(args[2]) ~= args[1] or not is_stamp(args[4])
    or not (args[5] == '' or version(args[5])) then
    return bad('fence_settle', 'expected namespace, fence, epoch, stamp and version')
  end
  local space = in_epoch(args[1], args[3], false)
  if not space then return { 'unarmed' } end
  local fence, stamp = args[2], args[4]
  local _, name = parse(fence)
  local raw = read_keys(space, { fence })[1]
  local own = own_pending(space.pending[fence], stamp)
  if raw == 'elsewhere' then
    drop_pending(space, fence, own)
  elseif args[5] ~= '' then
    commit_one(space, domain_of(space, name), fence, stamp, args[5], raw)
  else
    redis.call('DEL', fence)
    end_committed(space, space.domains[name], fence, own, '-')
  end
  return { 'settled' }
end

-- repair <fence> | epoch seen u -> repaired | unchanged | unarmed (audit). Raises a version, or removes one that is
-- ahead of PostgreSQL if it is still the one seen; never lowers it. u '' means neither row nor tombstone.
local function repair(keys, args)
  local ns = #keys == 1 and parse(keys[1])
  if not ns or #args ~= 3 or not version(args[2]) or not (args[3] == '' or version(args[3])) then
    return bad('fence_repair', 'expected fence, epoch, version seen and version of the row')
  end
  local space = in_epoch(ns, args[1], false)
  if not space or not grants(space, keys[1]) then return { 'unarmed' } end
  local _, name = parse(keys[1])
  local domain = domain_of(space, name)
  local v = read_fence(keys[1], domain)
  local u = args[3]
  if not v or space.pending[keys[1]] or domain.pendings > 0 then return { 'unchanged' } end
  if u ~= '' and below(v, u) then
    write_fence(space, keys[1], domain, u, '')
    return { 'repaired' }
  end
  if v == args[2] and (u == '' or below(u, v)) then
    redis.call('DEL', keys[1])
    return { 'repaired' }
  end
  return { 'unchanged' }
end

-- ---------------------------------------------------------------------------------------------------------------
-- Whole domains: bulk changes, attach, detach. One reservation, whatever the number of rows.
-- ---------------------------------------------------------------------------------------------------------------

local function domain_drop(d, stamp)
  if not d.pending[stamp] then return end
  d.pending[stamp] = nil
  d.pendings = d.pendings - 1
end

-- domain_reserve | namespace domain epoch stamp ended -> reserved | unarmed
-- ended: the id of the attachment that the transaction ends (detach, DROP), '' if it only changes many rows.
local function domain_reserve(_, args)
  local ended = args[5] and (args[5] == '' and 0 or whole(args[5]))
  if #args ~= 5 or not is_domain(args[2]) or not is_stamp(args[4]) or not ended then
    return bad('fence_domain_reserve', 'expected namespace, domain, epoch, stamp and ended attachment')
  end
  local space, time = in_epoch(args[1], args[3], true)
  if not space then return { 'unarmed' } end
  domain_pend(domain_of(space, args[2]), args[4], ended, ms_of(time))
  return { 'reserved' }
end

-- domain_commit | namespace domain epoch stamp -> committed | unarmed
-- Only if the stamp is still pending: a new generation, so that nothing cached before is trusted [6b]; and the end of
-- the attachment, if the reservation says so: rows may change unfenced until the name is attached again.
local function domain_commit(_, args)
  if #args ~= 4 or not is_domain(args[2]) then
    return bad('fence_domain_commit', 'expected namespace, domain, epoch and stamp')
  end
  local space = in_epoch(args[1], args[3], false)
  if not space then return { 'unarmed' } end
  local d = domain_of(space, args[2])
  local p = d.pending[args[4]]
  if p then
    if p.ended > d.ended then d.ended = p.ended end
    if d.id and d.id <= d.ended then d.id = nil end
    new_gen(space, d)
    domain_drop(d, args[4])
    if d.publish then publish(space, d, args[1], args[2], '-', '-', args[4]) end
  end
  return { 'committed' }
end

-- domain_abort | namespace domain epoch stamp -> aborted | unarmed
local function domain_abort(_, args)
  if #args ~= 4 or not is_domain(args[2]) then
    return bad('fence_domain_abort', 'expected namespace, domain, epoch and stamp')
  end
  local space = in_epoch(args[1], args[3], false)
  if not space then return { 'unarmed' } end
  domain_drop(domain_of(space, args[2]), args[4])
  return { 'aborted' }
end

-- ---------------------------------------------------------------------------------------------------------------
-- Readers
-- ---------------------------------------------------------------------------------------------------------------

-- Places in a domain's counts
local HIT, MISS, PENDING, UNARMED, STORED, STALE, REFUSED = 1, 2, 3, 4, 5, 6, 7

local function count(domain, what)
  domain.counts[what] = domain.counts[what] + 1
end

-- Fill leases. Milliseconds for which another reader has been asked to fill in the value of what the fence says now (a
-- version, or '-' and a ticket); nil: this reader is it from now on.
local function busy_ms(space, fence, what)
  local lease, now = space.armed.fill_ms, now_ms()
  if lease == 0 then return nil end
  local fill = space.filling[fence] or space.filled_before[fence]
  local left = fill and fill.what == what and fill.till - now or 0
  if left > 0 and left <= lease then return left end
  turn_fills(space, now)
  if space.fills < MOST_FILLS then
    space.filling[fence] = { what = what, till = now + lease }
    space.fills = space.fills + 1
  end
end

-- get <fence> <value> -> hit token version payload | miss token ticket [busy ms] | pending | unarmed
-- busy: another reader is about to put this value; who gets again within that time spares PostgreSQL a read.
-- Besides, for get_many: the stamp of the transaction that committed the version of a hit, '' if it is not known.
-- how: nil, 'read only' (see get_ro), or 'many': who reads several keys neither waits for others nor makes them wait.
local function get(keys, args, how)
  if #keys ~= 2 or #args ~= 0 then return bad('fence_get', 'expected 2 keys (fence, value) and no argument') end
  local fence, value = keys[1], keys[2]
  local r, tag = likely_route(fence, value)
  if not r then
    local wrong
    r, wrong = reader_route('fence_get', fence, value)
    if wrong then return wrong end
  end
  local armed = may_answer(r, fence)
  local space, domain = r and r.space, r and r.domain
  local is_pending = armed and (space.pending[fence] or domain.pendings > 0)
  local both, v, ticket, _, at
  if armed and not is_pending then
    both = redis.call('MGET', fence, value)
    v, ticket, _, at = read_fence(fence, domain, both[1])
  end
  if not v then
    if tag and not has_tag(fence, tag) then return bad('fence_get', 'the first key is no fence') end
    if not armed then
      if r then count(domain, UNARMED) end
      return { 'unarmed' }
    elseif is_pending then
      count(domain, PENDING)
      return { 'pending' }
    end
    -- Nobody but these functions writes a fence of the token, and only in database 0: so one that was found is there,
    -- and hits need not ask where they are.
    redis.call('SELECT', '0')
    both = redis.call('MGET', fence, value)
    v, ticket, _, at = read_fence(fence, domain, both[1])
  end
  local token = domain.token
  if v then
    -- token and version: both are what the texts begin with
    local raw, held = both[1], both[2]
    local newline = held and sub(held, 1, at) == sub(raw, 1, at) and find(held, '\n', at, true)
    if newline then
      count(domain, HIT)
      return { 'hit', token, v, sub(held, newline + 1) }, how == 'many' and sub(raw, at + 1)
    end
    ticket = ''
  elseif how == 'read only' then
    ticket = ''
  elseif not ticket then
    tickets = tickets + 1
    ticket = tostring(tickets)
    write_fence(space, fence, domain, '-', ticket)
  end
  count(domain, MISS)
  local busy = not how and busy_ms(space, fence, v or '-' .. ticket)
  if busy then return { 'miss', token, ticket, 'busy', tostring(busy) } end
  return { 'miss', token, ticket }
end

-- get_ro <fence> <value> -> hit token version payload | miss token '' | pending | unarmed
-- The same for readers who may not write, not even a ticket: they cannot fill a cache, nor make others trust anything.
local function get_ro(keys, args)
  return get(keys, args, 'read only')
end

-- The error if one of the keys is no fence or, with values, is not followed by a value of it.
local function wrong_keys(function_name, keys, with_values)
  local step = with_values and 2 or 1
  for i = 1, #keys, step do
    local _, wrong = reader_route(function_name, keys[i], with_values and keys[i + 1] or nil)
    if wrong then return wrong end
  end
end

-- get_many (<fence> <value>)... -> (n answer)... in the order of the keys: what get answers, preceded by the number of
-- its strings; a hit has one string more, the stamp of the transaction that committed the version, '' if it is unknown.
-- The call is one moment: if all are hits, they are one snapshot.
local function get_many(keys, args)
  if #keys == 0 or #keys % 2 ~= 0 or #keys > 2 * MAX_FENCES or #args ~= 0 then
    return bad('fence_get_many', 'expected 1 to 1000 pairs of keys (fence, value) and no argument')
  end
  local wrong = wrong_keys('fence_get_many', keys, true)
  if wrong then return wrong end
  local reply, n = {}, 0
  for i = 1, #keys, 2 do
    local answer, stamp = get({ keys[i], keys[i + 1] }, args, 'many')
    answer[#answer + 1] = stamp
    reply[n + 1] = tostring(#answer)
    for j, s in ipairs(answer) do reply[n + 1 + j] = s end
    n = n + 1 + #answer
  end
  return reply
end

-- release <fence> -> released. The reader who was asked to fill the value in found no row, or gives up: whoever waits
-- need not wait to the end.
local function release(keys, args)
  if #keys ~= 1 or #args ~= 0 then return bad('fence_release', 'expected 1 key and no argument') end
  local r, wrong = reader_route('fence_release', keys[1], nil)
  if wrong then return wrong end
  if r then r.space.filling[keys[1]], r.space.filled_before[keys[1]] = nil, nil end
  return { 'released' }
end

-- The version of the fence, if readers may be told of it now. It is looked for as get does.
local function servable(r, fence)
  if not may_answer(r, fence) or r.space.pending[fence] or r.domain.pendings > 0 then return nil end
  local v = read_fence(fence, r.domain)
  if not v then
    redis.call('SELECT', '0')
    v = read_fence(fence, r.domain)
  end
  return v
end

-- The domain and the version of the fence, the latter only if readers may be told of it now; or nil, nil and the error.
local function look_up(function_name, fence)
  local r, tag = likely_route(fence)
  local v = r and servable(r, fence)
  if not v and not (tag and has_tag(fence, tag)) then
    local wrong
    r, wrong = reader_route(function_name, fence, nil)
    if wrong then return nil, nil, wrong end
    v = r and servable(r, fence)
  end
  return r and r.domain, v or nil
end

-- current <fence> -> token version | (nothing)
-- What a value must name to be served now. Who got the value before it asks this, in the same round trip, makes the
-- comparison of get by itself, and the payload does not go through Lua.
local function current(keys, args)
  if #keys ~= 1 or #args ~= 0 then return bad('fence_current', 'expected 1 key and no argument') end
  local domain, v, wrong = look_up('fence_current', keys[1])
  if wrong then return wrong end
  if not v then return {} end
  return { domain.token, v }
end

-- check <fence> | token version -> 1 | 0
local function check(keys, args)
  if #keys ~= 1 or #args ~= 2 then return bad('fence_check', 'expected 1 key, token and version') end
  local domain, v, wrong = look_up('fence_check', keys[1])
  if wrong then return wrong end
  if not version(args[2]) then return bad('fence_check', 'malformed version') end
  return v == args[2] and domain.token == args[1] and 1 or 0
end

-- check_many <fence>... | (token version)... -> for each 1 | 0. The call is one moment.
local function check_many(keys, args)
  if #keys == 0 or #keys > MAX_FENCES or #args ~= 2 * #keys then
    return bad('fence_check_many', 'expected 1 to 1000 keys, and token and version for each')
  end
  local wrong = wrong_keys('fence_check_many', keys, false)
  if wrong then return wrong end
  for i = 2, #args, 2 do
    if not version(args[i]) then return bad('fence_check_many', 'malformed version') end
  end
  local reply = {}
  for i, fence in ipairs(keys) do reply[i] = check({ fence }, { args[2 * i - 1], args[2 * i] }) end
  return reply
end

-- peek <fence> <value> -> freshness token version payload stamp newest | none
-- The value as it is, never a strong read: what may be old is served, and said to be.
--   fresh    get would hit
--   pending  a write is on its way, or the whole domain's
--   stale    the fence knows a newer version
--   unknown  nothing here can tell: no lease, another epoch or generation, no version in the fence, a replica
-- newest: the committed version that the fence knows, '' if none.
local function peek(keys, args)
  if #keys ~= 2 or #args ~= 0 then return bad('fence_peek', 'expected 2 keys (fence, value) and no argument') end
  local r, wrong = reader_route('fence_peek', keys[1], keys[2])
  if wrong then return wrong end
  local both = redis.call('MGET', keys[1], keys[2])
  local token, v, stamp, at = match(both[2] or '', '^(%S+) (%d+) (%S*)\n()')
  if not token or not version(v) then return { 'none' } end
  local freshness, newest = 'unknown', nil
  if may_answer(r, keys[1]) and token == r.domain.token then
    newest = read_fence(keys[1], r.domain, both[1])
    if newest and below(v, newest) then
      freshness = 'stale'
    elseif r.space.pending[keys[1]] or r.domain.pendings > 0 then
      freshness = 'pending'
    elseif newest == v then
      freshness = 'fresh'
    end
  end
  return { freshness, token, v, sub(both[2], at), stamp, newest or '' }
end

local function refuse(domain, why)
  count(domain, REFUSED)
  return { 'refused', why }
end

-- put <fence> <value> | token ticket version payload ttl_ms -> stored | stale version | refused why
-- The only way by which a fence without a version gets one, and only with the ticket that get gave out since the last
-- change: that is what keeps a slow reader from storing what it read before a write [2, 4, 6c].
local function put(keys, args)
  if #keys ~= 2 or #args ~= 5 then
    return bad('fence_put', 'expected 2 keys (fence, value) and token, ticket, version, payload, ttl_ms')
  end
  local fence, w, ttl = keys[1], version(args[3]), whole(args[5])
  local r, wrong = reader_route('fence_put', fence, keys[2])
  if wrong then return wrong end
  if not w then return bad('fence_put', 'malformed version') end
  if not ttl then return bad('fence_put', 'malformed ttl_ms') end
  if not may_answer(r, fence) then return { 'refused', 'unarmed' } end
  local space, domain = r.space, r.domain
  if args[1] ~= domain.token then return refuse(domain, 'token') end
  if #args[4] > MAX_PAYLOAD then return refuse(domain, 'too large') end
  local v, ticket, exists = read_fence(fence, domain)
  if v then
    if below(w, v) then
      count(domain, STALE)
      return { 'stale', v }
    end
  elseif not exists then
    return refuse(domain, 'no fence')
  elseif not ticket or ticket ~= args[2] then
    return refuse(domain, 'ticket')
  end
  store_value(keys[2], domain.token, w, '', args[4], ttl)
  if v ~= w then write_fence(space, fence, domain, w, '') end
  count(domain, STORED)
  return { 'stored' }
end

-- ---------------------------------------------------------------------------------------------------------------
-- Listings, for the patrol and the views
-- ---------------------------------------------------------------------------------------------------------------

-- status <fence> -> armed|unarmed current-token version|'' stamp|ticket reservations (stamp w age_ms)...
-- Also those of the whole domain, whose w is ''.
local function status(keys, args)
  local ns, name = nil, nil
  if #keys == 1 and #args == 0 then ns, name = parse(keys[1]) end
  if not ns then return bad('fence_status', 'expected a fence') end
  local space = spaces[ns]
  local domain = space and space.domains[name]
  if not domain then return { 'unarmed', '', '', '', '0' } end
  local raw = redis.call('MGET', keys[1])[1]
  local v, rest, _, at = read_fence(keys[1], domain, raw)
  if v then rest = sub(raw, at + 1) end
  local now = now_ms()
  local armed = may_answer(route_of(keys[1]), keys[1])
  local reply = { armed and 'armed' or 'unarmed', domain.token, v or '', rest or '', '' }
  local own = space.pending[keys[1]]
  while own do
    reply[#reply + 1] = own.stamp
    reply[#reply + 1] = own.w
    reply[#reply + 1] = tostring(now - ms_of(own.time))
    own = own.next
  end
  reply[5] = tostring((#reply - 5) / 3 + domain.pendings)
  for stamp, p in pairs(domain.pending) do
    reply[#reply + 1] = stamp
    reply[#reply + 1] = ''
    reply[#reply + 1] = tostring(now - p.since)
  end
  return reply
end

-- pending | namespace min_age_ms limit cursor -> cursor epoch (kind name stamp w age_ms)...
-- kind is row or domain (w is ''). A cursor '' starts; a cursor '' in the reply ends, else it is the fence that comes
-- next. A page may be empty. A fence is listed whole, so limit may be passed by a few. What changes meanwhile may be
-- listed or not: the next round sees it.
local function pending(_, args)
  local min_age, limit = args[2] and whole(args[2]), args[3] and whole(args[3])
  if #args ~= 4 or not min_age or not limit or limit < 1 then
    return bad('fence_pending', 'expected namespace, age, limit and cursor')
  end
  local space = spaces[args[1]]
  if not space then return { '', '' } end
  collect_garbage()
  local now, reply = now_ms(), { '', space.armed.epoch }
  local function list(kind, name, stamp, w, since)
    if now - since < min_age then return end
    local n = #reply
    reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4], reply[n + 5] = kind, name, stamp, w, tostring(now - since)
  end
  local fence = args[4]
  if fence == '' then
    for name, d in pairs(space.domains) do
      for stamp, p in pairs(d.pending) do list('domain', name, stamp, '', p.since) end
    end
    fence = next(space.pending)
  elseif fence == space.stopped then
    fence = space.resume
  elseif not space.pending[fence] then
    fence = next(space.pending)        -- settled meanwhile: its place in the table is lost, start again
  end
  local visited = 0
  while fence and visited < VISITED and #reply < 5 * limit do
    local p = space.pending[fence]
    while p do
      list('row', fence, p.stamp, p.w, ms_of(p.time))
      p = p.next
    end
    fence, visited = next(space.pending, fence), visited + 1
  end
  reply[1] = fence or ''
  space.stopped, space.resume = fence, fence
  return reply
end

-- counts | namespace -> (domain reservations hit miss pending unarmed stored stale refused)...
-- For the patrol alone: what readers were answered is told once, then counting begins anew. Reservations are those that
-- there are. Domains of which there is nothing to tell are left out.
local function counts(_, args)
  if #args ~= 1 then return bad('fence_counts', 'expected a namespace') end
  local space, reply = spaces[args[1]], {}
  for name, d in pairs(space and space.domains or {}) do
    local reserved, any = d.reserved + d.pendings, 0
    for _, n in ipairs(d.counts) do any = any + n end
    if reserved + any > 0 then
      reply[#reply + 1], reply[#reply + 2] = name, tostring(reserved)
      for i, n in ipairs(d.counts) do
        reply[#reply + 1] = tostring(n)
        d.counts[i] = 0
      end
    end
  end
  return reply
end

-- ---------------------------------------------------------------------------------------------------------------

local function register(name, callback, flags)
  redis.register_function{
    function_name = name,
    callback = callback,
    flags = flags or {},
    description = 'pgcache_fence library version ' .. LIBRARY_VERSION,
  }
end

-- The same for functions that read or write keys, except those that look by themselves. SELECT inside a function ends
-- with it.
local function register_keyed(name, callback, flags)
  register(name, function(keys, args)
    read_anywhere = false
    redis.call('SELECT', '0')
    return callback(keys, args)
  end, flags)
end

register('fence_hello', hello, { 'no-writes' })
register_keyed('fence_arm', arm)
register_keyed('fence_renew', renew, { 'allow-cross-slot-keys' })
register('fence_disarm', disarm, { 'no-writes' })
register('fence_announce', announce, { 'no-writes' })
register('fence_write', write, { 'allow-cross-slot-keys' })
register_keyed('fence_reserve', reserve)
register_keyed('fence_commit', commit)
register('fence_abort', abort, { 'no-writes' })
register_keyed('fence_settle', settle)
register_keyed('fence_repair', repair)
register('fence_domain_reserve', domain_reserve, { 'no-writes' })
register_keyed('fence_domain_commit', domain_commit, { 'allow-oom' })
register('fence_domain_abort', domain_abort, { 'no-writes' })
register('fence_get', get)
register('fence_get_ro', get_ro, { 'no-writes' })
register('fence_get_many', get_many)
register('fence_release', release, { 'no-writes' })
register('fence_current', current, { 'no-writes' })
register('fence_check', check, { 'no-writes' })
register('fence_check_many', check_many, { 'no-writes' })
register_keyed('fence_peek', peek, { 'no-writes' })
register_keyed('fence_put', put)
register_keyed('fence_status', status, { 'no-writes' })
register('fence_pending', pending, { 'no-writes' })
register('fence_counts', counts, { 'no-writes' })
