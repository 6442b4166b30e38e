
-- =================================================================================================================
-- Fills: which reader of a missing fence is to fill it in, how long the others wait for it, and how many fences are
-- filled in per second (pgcache_fence.warm_rate).
--
-- Owns: each space's `filling`, `filled_before`, `fills`, `turned` and `next_fill`, and so the answer `busy` of
-- fence_get. The build joins this file to fence.lua. Nothing relies on it: a reader that does not wait is right, too.
-- =================================================================================================================

do

local MOST_FILLS = 100000              -- leases of usual names since the last turn; beyond it no reader is told to wait
local HOLD = 1000                      -- ms; the longest wait for the rate in one answer
local OPENING = 20                     -- ms; the longest wait for the opening of a bucket
local BURST = 100                      -- ms; fills that were not used in this time may come at once

-- Fill leases are in two tables: those given since the last turn, and those before. The next lease or heartbeat
-- discards the older table once all its leases have ended.
function fills.turn(space, now)
  local armed = space.armed
  local longest = armed.warm_rate > 0 and math.max(armed.fill_ms, HOLD) or armed.fill_ms
  if now - space.turned >= longest or now < space.turned then
    space.filled_before, space.filling, space.fills, space.turned = space.filling, {}, 0, now
  end
end

-- Puts one more fill in the line that keeps to the rate. Returns the ms until it is its turn, and whether it has a
-- place in the line; if the line is full, the reader asks again. next_fill: when the line ends.
local function stand_in_line(space, now)
  local gap = 1000 / space.armed.warm_rate
  if space.next_fill > now + HOLD + gap then space.next_fill = now end     -- the clock was set back, or the rate raised
  local at = math.max(space.next_fill, now - BURST)
  if at > now + HOLD then return HOLD, false end
  space.next_fill = at + gap
  return math.max(math.ceil(at - now), 0), true
end

-- Returns the milliseconds that the reader of a missing fence should wait, because another reader has them to fill it
-- in, or because it is not the fence's turn yet. nil: this reader has the lease now. A lease is void once a write has
-- ended since, because that reader's put will be refused; a place in the line is not. closed: so is the fence's bucket.
-- The put of the first reader will be refused, and the others wait for the bucket to open. They do so once.
function fills.busy_ms(space, fence, closed)
  local lease, now = space.armed.fill_ms, now_ms()
  if lease == 0 then return nil end
  local fill = space.filling[fence] or space.filled_before[fence]
  local counts = fill and (fill.held or closed and fill.closed or none_ended(space, fence, fill.since))
  local left = counts and fill.till - now or 0
  if left > 0 and left <= math.max(lease, HOLD) then return left end
  if closed and fill and fill.closed then return nil end
  fills.turn(space, now)
  if space.fills >= MOST_FILLS then return nil end
  local wait, placed = 0, false
  if space.armed.warm_rate > 0 and not (fill and fill.placed) then wait, placed = stand_in_line(space, now) end
  local held = wait > 0
  local till = now + (held and wait or closed and math.min(lease, OPENING) or lease)
  space.filling[fence] = { since = counter, till = till, held = held, placed = held and placed,
                           closed = closed and not held }
  space.fills = space.fills + math.max(1, #fence / USUAL_NAME)
  return held and wait or nil
end

-- release <fence> -> released. The reader that was to fill the fence in found no row, or gives up. So the readers that
-- wait for it need not wait any longer.
local function give_up(keys, args)
  if #keys ~= 1 or #args ~= 0 or not parse(keys[1]) then return bad('fence_release', 'expected a fence') end
  local d = domain_of_fence(keys[1])
  if d then d.space.filling[keys[1]], d.space.filled_before[keys[1]] = nil, nil end
  return { 'released' }
end

register('fence_release', give_up, { 'no-writes' })

end
