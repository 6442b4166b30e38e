
-- =================================================================================================================
-- Buckets: in which parts of the key space something may be stored (doc/protocol.md, "Buckets").
--
-- Owns: each space's `share`, `open`, `opened`, `turn_of_buckets`, `wanted`, `nwanted`, `longest` and `former`. The
-- build joins this file to fence.lua, whose proof of a put asks here, and to arming.lua, which closes all buckets where
-- an epoch begins or slots come. PostgreSQL's courier calls open.
--
-- A writer in PostgreSQL reserves nothing in a closed bucket. So nothing may be stored there, and a number from before
-- the opening proves nothing. PostgreSQL computes the same hash (base/buckets.c).
-- =================================================================================================================

do

local MOST_WANTED = 1000               -- buckets noted between two calls of fence_open; and named in one call
local WORD = 4294967296                -- 2^32
local MOST_BUCKETS = 268435456
local BITS = 52                        -- of a number in `open`; a double has so many exactly

-- Takes four bytes of the name at a time, and eight zeros after them. The product is below 2^53, so a double has it
-- exactly.
-- The shift mixes high bits into low ones; without it the rows of two tables would meet in whole groups.
local function hash(fence)
  local xor, right, word = bit.bxor, bit.rshift, WORD
  local h, len = #fence, #fence
  for i = 1, len + -len % 4 + 8, 4 do
    local a, b, c, d = byte(fence, i, i + 3)
    h = (h + (a or 0) * 16777216 + (b or 0) * 65536 + (c or 0) * 256 + (d or 0)) * 1000003 % word
    h = xor(h, right(h, 13)) % word
  end
  return h
end

local function bucket_of(space, fence)
  return math.floor(hash(fence) / space.share)
end

-- open: index -> its 52 buckets as bits; opened: index -> the number when the last of these opened. Who committed last
-- is not known any more: others may write without a reservation from now on.
local function close_all(space)
  space.open, space.opened, space.recent, space.recent_before = {}, {}, {}, {}
end

-- Returns the index of the bucket's bits, and the value of its bit among them.
local function place(bucket)
  return math.floor(bucket / BITS), 2 ^ (bucket % BITS)
end

local function is_open(space, index, mask)
  local bits = space.open[index]
  return bits and math.floor(bits / mask) % 2 == 1
end

-- How many buckets there may be: a power of two; 0: PostgreSQL reserves everything.
function buckets.is_number(n)
  return n == 0 or (n >= 64 and MOST_BUCKETS % n == 0)
end

function buckets.begin(space, n)
  if n == 0 then return end
  space.share, space.turn_of_buckets, space.wanted, space.nwanted = WORD / n, 0, {}, 0
  space.longest, space.former = 0, {}
  close_all(space)
end

-- Slots have come. This process was not asked for its turn while it had none.
function buckets.close(space)
  if space.share then close_all(space) end
end

-- Returns the number from which on something that was read or reserved may be stored as this fence; nil: the bucket is
-- closed.
function buckets.opened(space, fence)
  local index, mask = place(bucket_of(space, fence))
  if is_open(space, index, mask) then return space.opened[index] end
end

-- A reader misses the fence, and would fill it in. Returns whether the bucket is closed.
function buckets.want(space, fence)
  if buckets.opened(space, fence) then return false end
  local bucket = bucket_of(space, fence)
  if space.nwanted < MOST_WANTED and not space.wanted[bucket] then
    space.wanted[bucket], space.nwanted = true, space.nwanted + 1
  end
  return true
end

-- Something is stored that lives that long (ms). What closes the buckets within a turn changes nothing of this.
function buckets.note_ttl(space, ttl)
  if ttl > space.longest then space.longest = ttl end
end

-- former: turn -> by when everything has run out that was stored in it. Returns those of which something may be left by
-- this clock, and margin ms more, and forgets the others.
local function former_turns(space, margin)
  local left = {}
  for turn, by in pairs(space.former) do
    if now_ms() > by + margin then space.former[turn] = nil else left[#left + 1] = string.format('%d', turn) end
  end
  return left
end

local function begin_turn(space, turn)
  space.former[space.turn_of_buckets] = now_ms() + space.longest
  space.turn_of_buckets, space.longest = turn, 0
  close_all(space)
end

-- open | header turn margin buckets [echo] -> opened former longest wanted | unarmed
-- Opens these buckets (separated by commas). former: see former_turns. longest: the longest time to live in this turn
-- so far (ms). wanted: what readers have missed since the last call. A turn that is newer than the last closes all
-- buckets first; an older one does nothing.
local function open(_, args)
  local space, turn, margin = headers[args[1] or ''], whole(args[2]), whole(args[3])
  if #args ~= 4 or not turn or not margin then
    return bad('fence_open', 'expected header, turn, margin and buckets')
  end
  if not space or not space.share or turn < space.turn_of_buckets then return { 'unarmed' } end
  if turn > space.turn_of_buckets then begin_turn(space, turn) end
  if args[4] ~= '' then counter = counter + 1 end
  for text in args[4]:gmatch('%d+') do
    local bucket = whole(text)
    if bucket and bucket < WORD / space.share then
      local index, mask = place(bucket)
      if not is_open(space, index, mask) then
        space.open[index], space.opened[index] = (space.open[index] or 0) + mask, counter
      end
    end
  end
  local wanted = {}
  for bucket in pairs(space.wanted) do wanted[#wanted + 1] = string.format('%d', bucket) end
  space.wanted, space.nwanted = {}, 0
  return { 'opened', table.concat(former_turns(space, margin), ','), string.format('%d', space.longest),
    table.concat(wanted, ',') }
end

-- sweep | header fence... -> how many of these were removed, one of them
-- PostgreSQL's patrol has found that nobody may store these fences. This process stores nothing in a closed bucket. So
-- what is there under its domain's present token was stored by somebody else, and no writer would end it.
local function sweep(_, args)
  local space, removed, one = headers[args[1] or ''], 0, ''
  if not args[2] or #args > MAX_FENCES + 1 then return bad('fence_sweep', 'expected header and 1 to 1000 fences') end
  for i = 2, space and space.share and #args or 0 do
    local fence = args[i]
    local d = domain_of_fence(fence)
    if d and d.space == space and try('GETRANGE', fence, 0, #d.head - 1) == d.head and not buckets.opened(space, fence)
      and try('DEL', fence) == 1 then
      removed, one = removed + 1, fence
    end
  end
  return { tostring(removed), one }
end

register('fence_open', echoing(open), { 'no-writes' })
register_keyed('fence_sweep', sweep, { 'allow-cross-slot-keys', 'allow-oom' })

end
