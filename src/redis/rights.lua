
-- =================================================================================================================
-- Rights: what the caller may not do, of all that the user of the servers must be able to do.
--
-- Owns nothing. A function runs with the rights of its caller, so Redis refuses a command only when a function uses it,
-- which may be long after the fences have opened. So the keeper asks before it opens them. The build joins this file to
-- fence.lua.
-- =================================================================================================================

do

-- What functions and servers use, without what this question needs itself: doc/operations.md, "Users and passwords".
local READS, WRITES = { 'exists', 'get', 'getrange', 'mget' }, { 'del', 'pexpire', 'rename', 'set' }
local OTHERS = { { 'fcall', 'x', '0' }, { 'info' }, { 'scan', '0' }, { 'select', '0' }, { 'time' } }
local KINDS = { 'f:', 'd:', 'e:', 'h:', 'heartbeat', 'm:', 'q:', 's:', 'v:' }

-- Arguments behind the key. Redis 7 reads behind the end of a command that has too few, and Redis 8 raises an error.
local BEHIND = { getrange = { '0', '0' }, pexpire = { '1' }, set = { 'x' }, publish = { 'x' },
                 spublish = { 'x' }, xadd = { '*', 'x', 'x' } }

-- Whether the user may use the command with the key, or with the channel.
local function may(command, key)
  if command == 'rename' then return redis.acl_check_cmd(command, key, key) end
  return redis.acl_check_cmd(command, key, unpack(BEHIND[command] or {}))
end

-- Which of the commands may not be used with the key. All of them: the user does not reach the key, and this does not
-- tell which commands it may use.
local function refused(commands, key)
  local list = {}
  for _, command in ipairs(commands) do
    if not may(command, key) then list[#list + 1] = command end
  end
  return list, #list == #commands
end

-- rights | namespace [events] -> right...
-- Each right that is missing, as ACL SETUSER takes it. events: also what is needed to tell subscribers of commits.
local function rights(_, args)
  if #args < 1 or #args > 2 or (args[2] and args[2] ~= 'events') then
    return bad('fence_rights', 'expected a namespace and perhaps "events"')
  end
  local missing, ns, out_of_reach = {}, args[1] .. ':', false
  local function add(commands)
    for _, command in ipairs(commands) do missing[#missing + 1] = '+' .. command end
  end
  for _, class in ipairs({ READS, WRITES }) do
    for i, kind in ipairs(KINDS) do
      local list, all = refused(class, ns .. kind .. 'x')
      out_of_reach = out_of_reach or all
      if i == 1 and not all then add(list) end
    end
  end
  for _, command in ipairs(OTHERS) do
    if not redis.acl_check_cmd(unpack(command)) then add({ command[1] }) end
  end
  if out_of_reach then missing[#missing + 1] = '~' .. ns .. '*' end
  if args[2] then
    local list, all = refused({ 'publish', 'spublish' }, ns .. 'e:x')
    add(list)
    if not may('xadd', ns .. 'e:x') then add({ 'xadd' }) end
    -- neither may be used with the channel: this does not tell whether the commands are missing, or the channel
    if all then missing[#missing + 1] = '&' .. ns .. 'e:*' end
  end
  return missing
end

register('fence_rights', rights, { 'no-writes' })

end
