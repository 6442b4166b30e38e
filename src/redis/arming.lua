
-- =================================================================================================================
-- Arming: who this process is, and for which epoch, lease, slots and attachments it may answer (doc/protocol.md).
--
-- Owns: `identity`, `newest` (which timeline has replaced which), and the entries of `spaces` and `headers`, each
-- space's `armed` and `slots`. The build joins this file to fence.lua, which declares the others. PostgreSQL's keeper
-- calls hello, arm, renew, resume and disarm. The backend that attaches a table, and the workers of the keeper, call
-- announce.
-- =================================================================================================================

do

local MAX_NONCE = 16                   -- hexadecimal digits

-- Returns the epoch's number, and the epoch's short name and a dot, with which its tokens and the row versions of puts
-- begin. (Two servers that have lost sight of each other may begin epochs of the same number.)
local function parse_epoch(epoch)
  local number, random = match(epoch, '^(%d+)%-(%x+)$')
  return whole(number or ''), number and number .. '-' .. sub(random, 1, 6) .. '.'
end

-- Parses the slots of arm and renew: "a-b,c,d-e", 'none', or '' for all. Returns {[slot] = true}, or false for all
-- slots; nil if malformed.
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

-- namespace -> { owner, timeline }: the newest timeline of the cluster that has armed or disarmed this process last
local newest = {}

-- Returns the timeline of the same cluster that has replaced this one, or nil. A server that was replaced by a standby
-- may not know it. It must not serve old rows while the new one is without a lease, either.
local function replaced_by(ns, owner, timeline)
  local known = newest[ns]
  return known and known.owner == owner and timeline < known.timeline and known.timeline
end

-- Returns why this process must not be armed by that run (server) of that cluster (owner) now, or nil.
local function claim(ns, a, owner, timeline, server, now)
  local later = replaced_by(ns, owner, timeline)
  if later then
    return 'timeline ' .. later .. ' of this cluster has replaced timeline ' .. timeline
  end
  if not a then return nil end
  if a.owner ~= owner and now < a.until_ms then
    return 'armed by cluster ' .. a.owner .. ', whose lease runs: two clusters use namespace "' .. ns .. '"'
  end
  -- A server that restarts waits until its last lease is over. So the server that armed us lives, and another one asks.
  if timeline == a.timeline and server ~= a.server and now < a.granted_ms then
    return 'armed by another server of this cluster and timeline, whose lease runs'
  end
end

-- hello | namespace nonce [owner timeline server] -> identity, time, role, library version, owner, timeline, epoch,
--   until, refusal
-- owner and timeline: see `newest`. What is not known is empty. refusal: why arm would refuse this owner now. The first
-- hello sets the identity.
local function hello(_, args)
  if (#args ~= 2 and #args ~= 5) or not find(args[1], '^[%w_.-]+$') or not find(args[2], '^%x+$') or
     #args[2] > MAX_NONCE or (args[3] and not whole(args[4])) then
    return bad('fence_hello', 'expected a namespace, a nonce of up to 16 hexadecimal digits, and perhaps who asks')
  end
  if not identity then identity = args[2] end
  local role, now = match(redis.call('INFO', 'replication'), 'role:(%a+)') or '?', now_ms()
  local reply = { identity, tostring(now), role, LIBRARY_VERSION, '', '', '', '', '' }
  local space, known = spaces[args[1]], newest[args[1]]
  if known then reply[5], reply[6] = known.owner, tostring(known.timeline) end
  if space then
    local a = space.armed
    reply[7], reply[8] = a.epoch, tostring(a.until_ms)
  end
  if args[3] then
    reply[9] = claim(args[1], space and space.armed, args[3], whole(args[4]), args[5], now) or ''
  end
  return reply
end

-- What attach's option `publish` means for Redis. PostgreSQL itself sends NOTIFY.
local PUBLISH = { none = false, notify = false, pubsub = 'pubsub', stream = 'stream' }

-- Attaches a domain. Returns false if this attachment is known to have ended.
local function attach_domain(space, name, id, publish_how)
  if id <= ended_of(space, name) then return false end
  local d = domain_of(space, name)
  if d.id and id <= d.id then return true end
  -- The name was attached before, or writes may have bypassed its triggers. So no earlier fence may count as current.
  if d.id or d.withdrawn then new_token(space, d) end
  d.id, d.withdrawn, d.publish = id, nil, PUBLISH[publish_how]
  if d.publish then space.events = true end
  set_gate(d)
  return true
end

-- Writes may bypass the triggers of this attachment. Until it is announced again, its readers get "unarmed".
local function withdraw_domain(space, name, id)
  local d = space.domains[name]
  if not d or d.id ~= id then return end
  d.id, d.withdrawn = nil, true
  new_token(space, d)
  set_gate(d)
end

-- Parses the settings of the functions, "ttl_ms fill_ms stream_max grant [buckets warm_rate]". Returns nil if
-- malformed. ttl_ms is the default time to live of a fence. It stays a text, because Redis would convert a Lua number
-- to text in every call, and does so with great care. grant: see renew. buckets: how many there are, the same
-- throughout an epoch. warm_rate: see fills.lua.
local function parse_settings(text)
  local ttl, fill, most, grant, rest = match(text or '', '^(%d+) (%d+) (%d+) (%d+)(.*)$')
  local n, rate = match(rest == '' and ' 0 0' or rest or '', '^ (%d+) (%d+)$')
  n, rate = whole(n), whole(rate)
  if not ttl or not (whole(ttl) and whole(fill) and whole(most) and whole(grant)) or whole(ttl) == 0 then return nil end
  if not n or not buckets.is_number(n) or not rate then return nil end
  return { ttl = ttl, fill_ms = whole(fill), stream_max = most, grant = whole(grant), buckets = n, rate = rate }
end

-- After every fifty calls of a function, Redis lets the garbage collector take some steps, even if there is no garbage.
-- A table is one step, however large it is. At its usual pace (200) the collector walks through all remembered ends and
-- reservations about once per thousand calls, and each call takes twice as long. At this pace one round takes some
-- thousand calls. Allocations still drive the collector. Garbage stays below 20 MB, unless somebody puts payloads of
-- more than 100 kB through Lua.
local COLLECTOR_PACE = 6

local function use_settings(space, settings)
  collectgarbage('setstepmul', COLLECTOR_PACE)
  local armed = space.armed
  armed.ttl, armed.fill_ms, armed.warm_rate = settings.ttl, settings.fill_ms, settings.rate
  armed.stream_max = settings.stream_max
  if settings.fill_ms == 0 then                            -- fill leases are off: forget them
    space.filling, space.filled_before, space.fills = {}, {}, 0
  end
end

-- Extends the lease, and writes the heartbeat key. The write proves that this node accepts writes, and the key tells
-- readers whether the lease runs. A key exists until its time has passed, so it expires a millisecond before the lease.
-- Its name contains the identity, because a demoted master keeps its memory and gets the keys of its new master.
local function extend(armed, key, till)
  armed.key = key .. ':' .. identity
  if till > armed.until_ms then armed.until_ms = till end
  if till > armed.granted_ms then armed.granted_ms = till end
  local wrote = redis.pcall('SET', armed.key, armed.epoch, 'PXAT', string.format('%d', armed.until_ms - 1))
  if wrote.err and not is_elsewhere(wrote) then error(wrote) end
end

local function set_gates(space)
  for _, d in pairs(space.domains) do set_gate(d) end
end

-- arm <heartbeat-key> | identity epoch until slots owner timeline server settings -> armed|refused why now
-- until is absolute on this node's clock. So an arm that arrives later than that is refused: its lease has ended.
-- server identifies the run of the PostgreSQL server that asks.
local function arm(keys, args)
  if #keys ~= 1 or #args ~= 8 then return bad('fence_arm', 'expected 1 key and 8 arguments') end
  local ns = match(keys[1], '^([%w_.-]+):')
  local epoch, till, timeline = args[2], whole(args[3]), whole(args[6])
  local number, lead = parse_epoch(epoch)
  local slots, settings = parse_slots(args[4]), parse_settings(args[8])
  if not (ns and number and till and timeline and slots ~= nil and settings) then
    return bad('fence_arm', 'malformed argument')
  end
  local now, space = now_ms(), spaces[ns]
  local a = space and space.armed
  local why = args[1] ~= identity and 'another process answers here' or till <= now and 'the lease was over on arrival'
    or claim(ns, a, args[5], timeline, args[7], now)
    or a and a.epoch ~= epoch and number <= a.number and 'already armed in epoch ' .. a.epoch
  if why then return { 'refused', why, tostring(now) } end
  if a and a.epoch == epoch then
    extend(a, keys[1], till)
    set_gates(space)
  else
    local fresh = { owner = args[5], timeline = timeline, server = args[7], epoch = epoch, lead = lead,
                    number = number, until_ms = till, granted_ms = till }
    extend(fresh, keys[1], till)
    if a then headers[ns .. ' ' .. a.epoch] = nil end
    space = new_space(ns, fresh, slots, settings.grant)
    buckets.begin(space, settings.buckets)
    hot.begin(space, now)
    spaces[ns], headers[ns .. ' ' .. epoch], routes = space, space, {}
    newest[ns] = { owner = args[5], timeline = timeline }
  end
  use_settings(space, settings)
  return { 'armed', '', tostring(now) }
end

-- Returns whether this process serves a slot again that it had lost: it can access a fence there, which need not exist.
local function is_back(space)
  for _, fence in pairs(space.lost) do
    if not is_elsewhere(redis.pcall('EXISTS', fence)) then return true end
  end
  return false
end

-- Continues the epoch with these slots. This process may have had, or lost, one of them earlier in the epoch. Then
-- fences there may have missed reservations, and we replace the tokens, which makes all fences invalid in all slots. A
-- lost slot that another process still serves stays lost. Returns how many slots have come.
local function regrant(space, slots, grant)
  local came, again = 0, false
  for slot in pairs(space.slots) do
    if not slots[slot] then space.slots[slot], space.lost[slot] = nil, nil end
  end
  for slot in pairs(slots) do
    local fence = space.lost[slot]
    if not space.slots[slot] and not (fence and is_elsewhere(redis.pcall('EXISTS', fence))) then
      came, again = came + 1, again or space.since[slot] ~= nil
      space.slots[slot], space.lost[slot], space.since[slot] = true, nil, grant
    end
  end
  if came > 0 then
    buckets.close(space)
    -- what has ended in these slots so far was counted elsewhere, so it has no number here
    counter = counter + 1
    space.marks, space.marked_from = {}, counter
  end
  if again then
    for _, d in pairs(space.domains) do new_token(space, d) end
  end
  return came
end

-- renew | heartbeat-key identity epoch until settings [slots] -> renewed '' now back came | refused why now
-- back '1': slots that were lost could be granted again. came: how many slots the process did not have before.
-- Refused unless this process is armed in exactly that epoch: a renewal that was sent to the previous process at this
-- address must not extend the lease of this one [1]. The key is an argument and not a key of the call, so a process
-- whose slots are moving away continues to answer for the slots that it has.
-- slots: the process has these from now on, in the same epoch. Readers in the slots that came get answers only after
-- their domain was announced for this grant (whose number is in the settings) or a later one.
local function renew(_, args)
  local ns, till = args[1] and match(args[1], '^([%w_.-]+):'), whole(args[4])
  local settings, slots = parse_settings(args[5]), args[6] and parse_slots(args[6])
  if #args < 5 or #args > 6 or not ns or not till or not settings or (args[6] and slots == nil) then
    return bad('fence_renew', 'expected heartbeat key, identity, epoch, until, settings and perhaps slots')
  end
  local now, space = now_ms(), headers[ns .. ' ' .. args[3]]
  local why = args[2] ~= identity and 'another process answers here' or not space and 'not armed in this epoch'
    or till <= now and 'the lease was over on arrival'
    or args[6] and (not slots) ~= (not space.slots) and 'all slots, and some, are not of one epoch'
  if why then return { 'refused', why, tostring(now) } end
  extend(space.armed, args[1], till)
  set_gates(space)
  use_settings(space, settings)
  fills.turn(space, now)
  hot.turn(space, now)
  collect_garbage()
  local came = slots and regrant(space, slots, settings.grant) or 0
  return { 'renewed', '', tostring(now), is_back(space) and '1' or '0', tostring(came) }
end

-- resume | header identity timeline before server -> resumed | refused why
-- A server that was shut down cleanly goes on in this epoch after its restart. before: its run that armed this process,
-- or resumed last; server: its present run. Refused if another server has resumed since: a copy of the data directory.
-- Permits from before prove nothing any more: their readers may have read what only that other server has.
local function resume(_, args)
  if #args ~= 5 or not whole(args[3]) then
    return bad('fence_resume', 'expected header, identity, timeline, the run before and the present run')
  end
  local space = headers[args[1]]
  local a = space and space.armed
  local why = args[2] ~= identity and 'another process answers here' or not a and 'not armed in this epoch'
    or whole(args[3]) ~= a.timeline and 'armed by another timeline'
    or a.server ~= args[4] and a.server ~= args[5] and 'another server has gone on in this epoch'
  if why then return { 'refused', why } end
  if a.server ~= args[5] then
    a.server, counter = args[5], counter + 1
    forget_ends(space)
  end
  return { 'resumed' }
end

-- disarm | namespace owner timeline -> disarmed | refused | unarmed
-- Ends the lease now. Only the cluster that armed the process may do that, and not with an older timeline. A newer one
-- ends the epoch too: the server that armed us was replaced, and may go on with its renewals.
local function disarm(_, args)
  if #args ~= 3 or not find(args[1], '^[%w_.-]+$') or not whole(args[3]) then
    return bad('fence_disarm', 'expected namespace, owner and timeline')
  end
  local ns, owner, timeline = args[1], args[2], whole(args[3])
  local space = spaces[ns]
  if replaced_by(ns, owner, timeline) or space and space.armed.owner ~= owner then return { 'refused' } end
  newest[ns] = { owner = owner, timeline = timeline }
  if not space then return { 'unarmed' } end
  local a = space.armed
  a.until_ms = 0
  if timeline > a.timeline then headers[ns .. ' ' .. a.epoch] = nil end
  set_gates(space)
  return { 'disarmed' }
end

-- announce | namespace epoch (domain id publish)... grant [echo] -> announced refused | unarmed
-- These attachments are committed. Readers may get answers in slots that were granted with this number or a lower one.
-- publish 'withdrawn': readers of this attachment must not get answers (any more). refused: number of attachments that
-- are known to have ended. These stay ended.
local function announce(_, args)
  local grant = #args % 3 == 0 and whole(args[#args])
  if not grant then return bad('fence_announce', 'expected namespace, epoch, triples and the number of a grant') end
  for i = 3, #args - 1, 3 do
    if not is_domain(args[i]) or not whole(args[i + 1]) or
       (PUBLISH[args[i + 2]] == nil and args[i + 2] ~= 'withdrawn') then
      return bad('fence_announce', 'malformed domain, id or publish')
    end
  end
  local space = headers[args[1] .. ' ' .. args[2]]
  if not space then return { 'unarmed' } end
  local refused = 0
  for i = 3, #args - 1, 3 do
    if args[i + 2] == 'withdrawn' then
      withdraw_domain(space, args[i], whole(args[i + 1]))
    elseif not attach_domain(space, args[i], whole(args[i + 1]), args[i + 2]) then
      refused = refused + 1
    else
      local d = space.domains[args[i]]
      d.carried = math.max(d.carried, grant)
    end
  end
  return { 'announced', tostring(refused) }
end

register('fence_hello', hello, { 'no-writes' })
register_keyed('fence_arm', arm, { 'allow-oom' })
register_keyed('fence_renew', renew, { 'allow-cross-slot-keys', 'allow-oom' })
register('fence_resume', resume, { 'no-writes' })
register('fence_disarm', disarm, { 'no-writes' })
register('fence_announce', echoing(announce), { 'no-writes' })

end
