
-- =================================================================================================================
-- Marks: how much WAL a standby must have replayed before its rows are good enough (doc/protocol.md, "Reading on a
-- standby").
--
-- Owns: each space's `marks`, `marked_from` and `running`. A mark is a number of this process and a position in the WAL
-- that PostgreSQL has read after it got the number. Whatever had ended by the number has its commit record before the
-- position. So if nothing of a fence has ended since the number, a standby that has replayed the position has the
-- newest row. running: the lowest number of a transaction that ran at the last mark. The build joins this file to
-- fence.lua; arming.lua forgets the marks where an epoch begins or slots come. PostgreSQL's keeper calls mark. Readers
-- on standbys call newest.
-- =================================================================================================================

do

local MARKS_KEPT = 100
local MAX_POSITION = 100               -- bytes; PostgreSQL's text, which is not looked into

-- Drops the mark whose neighbours are closest to each other, compared with their age. So the older marks are, the fewer
-- are left.
local function drop_one(marks)
  local last, least, drop = marks[#marks].at, math.huge, nil
  for i = 2, #marks - 1 do
    local gap = (marks[i + 1].at - marks[i - 1].at) / (last - marks[i - 1].at)
    if gap < least then least, drop = gap, i end
  end
  table.remove(marks, drop)
end

-- mark | header number position running -> marked number | unarmed
-- Notes the mark (number 0: none), and returns a number for the next one. The caller reads the position after it got
-- the number.
local function mark(_, args)
  local number, position = whole(args[2]), args[3]
  if #args ~= 4 or not number or not whole(args[4]) or #position > MAX_POSITION then
    return bad('fence_mark', 'expected header, number, position and transaction')
  end
  local space = headers[args[1]]
  if not space then return { 'unarmed' } end
  local marks = space.marks
  local last = marks[#marks] or { number = 0, at = 0 }
  if number > 0 and number >= space.marked_from and number <= counter and number >= last.number then
    if last.position == position then
      last.number = number
    else
      marks[#marks + 1] = { number = number, position = position, at = last.at + 1 }
      if #marks > MARKS_KEPT then drop_one(marks) end
    end
    space.running = args[4]
  end
  return { 'marked', tostring(counter) }
end

-- newest <fence> -> owner timeline permit position running recent | nothing
-- For a reader whose rows may be old. Its row is the newest if it has replayed the WAL of this cluster and timeline up
-- to the position, or sees the commit of the transaction `recent`. '': not known. The permit is good for what it reads
-- then. nothing: nobody can tell now. A standby that asks this has missed the fence, so its bucket is wanted.
local function newest(keys, args)
  if #keys ~= 1 or #args ~= 0 or not parse(keys[1]) then return bad('fence_newest', 'expected a fence') end
  local fence = keys[1]
  local d = domain_of_fence(fence)
  if not d or d.space.pending[fence] or not may_tell(d, fence) then return { 'nothing' } end
  local space, position = d.space, ''
  if space.share then buckets.want(space, fence) end
  local at = math.max(d.born, quiet_since(space, fence))
  for _, m in ipairs(space.marks) do
    if m.number >= at then
      position = m.position
      break
    end
  end
  local armed = space.armed
  return { armed.owner, tostring(armed.timeline), permit(d), position, space.running, recent_of(space, fence) }
end

register('fence_mark', mark, { 'allow-oom' }) -- not for FCALL_RO: standbys believe it
register_keyed('fence_newest', answering(newest), { 'no-writes', 'allow-cross-slot-keys' })

end
