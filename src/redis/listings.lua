
-- =================================================================================================================
-- Listings for the patrol and the views: what is reserved, by whom, for how long, and how readers were answered.
--
-- Owns: each space's `seen`. Resets the counts of each domain. The build joins this file to fence.lua.
-- =================================================================================================================

do

-- Milliseconds since pending() first saw the stamp. To store a time in each reservation would cost a third more.
local function age_of(space, stamp, now)
  return tostring(now - (space.seen[stamp] or now))
end

-- status <fence> -> armed|unarmed permit recent (stamp row|domain age_ms)...
-- permit: '' if the domain is unknown. recent: the stamp of the transaction that committed the newest version; '' if it
-- is unknown or something is pending.
local function status(keys, args)
  if #keys ~= 1 or #args ~= 0 or not parse(keys[1]) then return bad('fence_status', 'expected a fence') end
  local fence = keys[1]
  local d, now = domain_of_fence(fence), now_ms()
  local space = d and d.space or spaces[parse(fence)]
  if not space then return { 'unarmed', '', '' } end
  local armed = d and is_served(d, fence) and lease_runs(space.armed)
  local p, reply = space.pending[fence], { armed and 'armed' or 'unarmed', d and permit(d) or '', '' }
  local function list(stamp, kind, age)
    local n = #reply
    reply[n + 1], reply[n + 2], reply[n + 3] = stamp, kind, age
  end
  if p and not p[1] then
    list(p, 'row', age_of(space, p, now))
  elseif p then
    for stamp in pairs(p) do
      if stamp ~= 1 then list(stamp, 'row', age_of(space, stamp, now)) end
    end
  end
  for stamp, of in pairs(d and d.pending or {}) do list(stamp, 'domain', tostring(now - of.since)) end
  if #reply == 3 then reply[3] = recent_of(space, fence) end
  return reply
end

-- pending | namespace limit cursor -> cursor epoch (row|domain name stamp fences age_ms)...
-- For each stamp with reservations of rows: one of its fences, and their number. The cursor is '' for the first page,
-- and '' in the reply after the last. What changes meanwhile may be listed once, twice or not at all.
local function pending(_, args)
  local limit = whole(args[2])
  if #args ~= 3 or not limit or limit < 1 then return bad('fence_pending', 'expected namespace, limit and cursor') end
  local space = spaces[args[1]]
  if not space then return { '', '' } end
  collect_garbage()
  local now, reply, stamp = now_ms(), { '', space.armed.epoch }, args[3]
  local function list(kind, name, who, n, age)
    local at = #reply
    reply[at + 1], reply[at + 2], reply[at + 3], reply[at + 4], reply[at + 5] = kind, name, who, tostring(n), age
  end
  if not space.mine[stamp] then                            -- first page; or the stamp has ended: start again
    local seen = {}
    for who in pairs(space.mine) do seen[who] = space.seen[who] or now end
    space.seen = seen
    for name, d in pairs(space.domains) do
      for who, of in pairs(d.pending) do list('domain', name, who, 0, tostring(now - of.since)) end
    end
    stamp = next(space.mine)
  end
  while stamp and #reply < 5 * limit do
    local m = space.mine[stamp]
    list('row', m.n and m[1] or m, stamp, m.n or 1, age_of(space, stamp, now))
    stamp = next(space.mine, stamp)
  end
  reply[1] = stamp or ''
  return reply
end

-- counts | namespace -> (domain told hit miss pending unarmed stored refused)...
-- Only for the patrol: returns the counts of readers' answers and resets them. Domains without new counts are left out.
local function counts(_, args)
  if #args ~= 1 then return bad('fence_counts', 'expected a namespace') end
  local space, reply = spaces[args[1]], {}
  for name, d in pairs(space and space.domains or {}) do
    local any = d.told
    for _, n in ipairs(d.counts) do any = any + n end
    if any > 0 then
      reply[#reply + 1], reply[#reply + 2] = name, tostring(d.told)
      d.told = 0
      for i, n in ipairs(d.counts) do
        reply[#reply + 1] = tostring(n)
        d.counts[i] = 0
      end
    end
  end
  return reply
end

register_keyed('fence_status', answering(status), { 'no-writes', 'allow-cross-slot-keys' })
register('fence_pending', pending, { 'no-writes' })
register('fence_counts', counts, { 'no-writes' })

end
