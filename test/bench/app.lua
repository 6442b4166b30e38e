#!lua name=bench_app
-- The least that a service needs to keep a fence of its own: begin before the transaction, commit after it. One record
-- for each row, "<committed> <being written> <until>"; a writer that dies holds the row until its lease is over.

local LEASE = 120

local function read(key)
  local record = redis.call('GET', key)
  if not record then return 0, 0 end
  local committed, written = record:match('^(%d+) (%d+) ')
  return tonumber(committed), tonumber(written)
end

redis.register_function('app_begin', function(keys)
  local committed, written = read(keys[1])
  local w = math.max(committed, written) + 1
  local now = redis.call('TIME')[1]
  redis.call('SET', keys[1], committed .. ' ' .. w .. ' ' .. (now + LEASE))
  return w
end)

redis.register_function('app_commit', function(keys, args)
  local committed, written = read(keys[1])
  local w = tonumber(args[1])
  redis.call('SET', keys[1], math.max(committed, w) .. ' ' .. (written > w and written or 0) .. ' 0')
  return redis.status_reply('OK')
end)
