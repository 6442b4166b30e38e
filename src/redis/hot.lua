
-- =================================================================================================================
-- Hot keys and slots: which fences and slots take the most calls, by samples.
--
-- Owns: each space's `hot` and `hot_before`, and the random gaps between samples. The build joins this file to
-- fence.lua, whose functions count down to the next sample. The views fence.hot_keys and fence.hot_slots call list.
--
-- Memory is bounded: two periods, in each so many names, of MAX_NAME bytes at most. Nothing is told of old periods.
-- =================================================================================================================

do

local RATE = 100                       -- one call of so many is sampled, on average
local PERIOD = 30000                   -- ms
-- Names that are counted in a period. Not a power of two, nor close below one: a table of Lua that has no free place is
-- made anew for each name that takes the place of another.
local MOST = 48

-- Gaps of one length would meet a caller that repeats a pattern always, or never.
local seed = 1
local function gap()
  seed = seed * 16807 % 2147483647
  return seed % (2 * RATE - 1) + 1
end

-- list: entries {samples of each kind, name, rank}; of: name -> entry; no rank is below floor; at: see weakest().
local function new_top()
  return { list = {}, of = {}, floor = 1, at = 0 }
end

local function new_period(now)
  return { began = now, n = { 0, 0, 0 }, keys = new_top(), slots = new_top() }
end

function hot.begin(space, now)
  space.hot, space.hot_before = new_period(now), nil
end

-- Two periods take turns, so what is told is never older than both.
function hot.turn(space, now)
  if now - space.hot.began >= PERIOD or now < space.hot.began then
    space.hot, space.hot_before = new_period(now), space.hot
  end
end

-- Returns an entry with the lowest rank. Goes on where it has found the last one, so it seldom looks at the whole list.
local function weakest(top)
  local list, lowest = top.list, math.huge
  for _ = 1, MOST do
    top.at = top.at % MOST + 1
    local entry = list[top.at]
    if entry.rank <= top.floor then return entry end
    if entry.rank < lowest then lowest = entry.rank end
  end
  top.floor = lowest
  return weakest(top)
end

-- Counts a sample of the name. When the list is full, a new name takes the place of one with the lowest rank, and keeps
-- that rank, because it may have had as many samples unseen ("space saving"). So every name with more than one part in
-- MOST of all samples is in the list.
local function add(top, name, kind)
  local entry = top.of[name]
  if not entry then
    if #top.list < MOST then
      entry = { 0, 0, 0, rank = 0 }
      top.list[#top.list + 1] = entry
    else
      entry = weakest(top)
      top.of[entry.name] = nil
      entry[1], entry[2], entry[3] = 0, 0, 0
    end
    entry.name, top.of[name] = name, entry
  end
  entry.rank, entry[kind] = entry.rank + 1, entry[kind] + 1
end

-- Takes a sample, and returns after how many calls to take the next one. kind: see fence.lua.
function hot.sample(space, fence, kind)
  if #fence <= MAX_NAME then
    local period = space.hot
    period.n[kind] = period.n[kind] + 1
    add(period.keys, fence, kind)
    add(period.slots, slot_of(fence), kind)
  end
  return gap()
end

-- hot | namespace -> ms tokens gets writes (key|slot name tokens gets writes)...
-- Estimates for the last ms milliseconds, at least a second: how often fence_token and fence_check were asked about a
-- fence, how often fence_get was, and how often fences were reserved. What is told of a name is a lower bound. A name
-- may come twice; then the caller adds what is told.
local function list(_, args)
  if #args ~= 1 then return bad('fence_hot', 'expected a namespace') end
  local space, now, reply = spaces[args[1]], now_ms(), { '0', '0', '0', '0' }
  if not space then return reply end
  hot.turn(space, now)
  local before = space.hot_before or new_period(space.hot.began)
  -- one sample of a first moment would look like a high rate
  reply[1] = tostring(math.max(now - before.began, 1000))
  for kind = 1, 3 do reply[1 + kind] = tostring(RATE * (space.hot.n[kind] + before.n[kind])) end
  local function tell(what, top)
    for _, entry in ipairs(top.list) do
      local at = #reply
      reply[at + 1], reply[at + 2] = what, tostring(entry.name)
      for kind = 1, 3 do reply[at + 2 + kind] = tostring(RATE * entry[kind]) end
    end
  end
  for _, period in ipairs({ space.hot, before }) do
    tell('key', period.keys)
    tell('slot', period.slots)
  end
  return reply
end

register('fence_hot', list, { 'no-writes' })

end
