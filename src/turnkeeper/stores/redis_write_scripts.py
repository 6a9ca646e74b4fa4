"""What changes data inside the Redis server, one script for each thing; `redis_scripts` lists the keys."""

from __future__ import annotations

from typing import Final

from turnkeeper.stores.redis_scripts import Script

__all__ = ["ADOPT", "COMMIT", "MARK", "PROBE", "RESEAL"]

# A mid's number and a change's place are never lower than the server's time, so that neither is given a second time by
# a server that lost its last writes, such as a replica that took over.
_WRITING: Final = """
local T, name = KEYS[1], ARGV[1]
local head = T .. ':h:' .. name
local clock = redis.call('TIME')
local function text(n) return string.format('%.0f', n) end
local function new_mid(buckets, bucket)
  local last = tonumber(redis.call('GET', T .. ':i') or 0)
  local number = math.max(last + 1, clock[1] * 1000 + math.floor(clock[2] / 1000))
  redis.call('SET', T .. ':i', text(number))
  return text(number * buckets + bucket)
end
local function note_change()
  local last = tonumber(redis.call('GET', T .. ':s') or 0)
  local place = text(math.max(last + 1, clock[1] * 1000000 + clock[2]))
  redis.call('SET', T .. ':s', place)
  redis.call('ZADD', T .. ':c', place, name)
end
local function in_chunks(command, key, values)
  for first = 1, #values, 1000 do
    redis.call(command, key, unpack(values, first, math.min(first + 999, #values)))
  end
end
local function keep_receipts(receipts, now, ttl)
  local values, order = T .. ':r:' .. name, T .. ':q:' .. name
  local over = redis.call('ZRANGEBYSCORE', order, '-inf', text(now), 'LIMIT', 0, 2 * #receipts)
  if #over > 0 then
    redis.call('HDEL', values, unpack(over))
    redis.call('ZREM', order, unpack(over))
  end
  local latest = now
  for _, receipt in ipairs(receipts) do
    redis.call('HSET', values, receipt[1], receipt[2])
    redis.call('ZADD', order, receipt[3], receipt[1])
    latest = math.max(latest, tonumber(receipt[3]))
  end
  local lives = math.ceil((latest - now) / 1000)
  if redis.call('PTTL', values) < lives then
    redis.call('PEXPIRE', values, text(lives))
    redis.call('PEXPIRE', order, text(lives))
  end
end
"""

COMMIT: Final = Script(
    _WRITING
    + """
local mid, expected, now = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local not_before, base, system, base_was = tonumber(ARGV[5]), ARGV[6], ARGV[7], ARGV[8]
local delete, only_expired, prune, turn = ARGV[9] == '1', ARGV[10] == '1', tonumber(ARGV[11]), ARGV[12]
local of_turn, lease_turn, lease, steal = ARGV[13] == '1', ARGV[14], tonumber(ARGV[15]), ARGV[16] == '1'
local meta_was, meta, expires_after, ttl = ARGV[17], ARGV[18], tonumber(ARGV[19]), tonumber(ARGV[20])
local buckets, bucket, count, keyed = tonumber(ARGV[21]), tonumber(ARGV[22]), tonumber(ARGV[23]), tonumber(ARGV[24])
local first_key = 24 + 2 * count
if now < 0 then now = clock[1] * 1000000 + clock[2] end

for i = 0, keyed - 1 do
  local at = first_key + 4 * i
  local receipt = redis.call('HGET', T .. ':r:' .. name, ARGV[at + 2])
  if receipt and tonumber(string.match(receipt, '^%d+ %d+ %d+ (%d+)')) > now then
    return {3, tonumber(ARGV[at + 1]), receipt}
  end
end

local row = redis.call('HMGET', head, 'm', 'v', 'b', 'mv', 't', 'tu', 'x', 'ft', 'fv', 'lo', 'k')
local holder = row[5]
local version, old_expiry, low = tonumber(row[2] or 0), tonumber(row[7] or 0), tonumber(row[10] or 1)
local based = base_was == '-1' or base_was == row[3]
local there = row[1] == mid and version == expected
local lives = holder and tonumber(row[6]) > now
local free, own = not lives or holder == turn, lives and holder == turn
local function refusal()
  if not there or not based then return {1} end
  if meta_was == '-1' or meta_was == row[4] then return {2} end
  return {1}
end
local at = math.max(now, not_before)
local expires_at = 0
if expires_after > 0 then expires_at = at + expires_after end
local fields, expires = {}, false
local function set(field, value)
  fields[#fields + 1] = field
  fields[#fields + 1] = value
end
local function set_lease()
  if lease > 0 then
    set('t', lease_turn)
    set('tu', text(now + lease))
  elseif holder then
    redis.call('HDEL', head, 't', 'tu')
  end
end
local function create()
  if row[1] then return false end
  mid = new_mid(buckets, bucket)
  set('m', mid)
  set('mv', '0')
  set('c', text(at))
  redis.call('ZADD', T .. ':n', 0, name)
  return true
end
local function remove()
  redis.call('UNLINK', head, T .. ':e:' .. mid)
  redis.call('ZREM', T .. ':n', name)
  redis.call('ZREM', T .. ':x', name)
  redis.call('ZREM', T .. ':c', name)
end
local function written(stolen_from)
  if expires then
    set('x', text(expires_at))
    if expires_at > 0 then
      redis.call('ZADD', T .. ':x', text(expires_at), name)
    elseif old_expiry > 0 then
      redis.call('ZREM', T .. ':x', name)
    end
  end
  if prune > 0 then
    local key, gone, kept = T .. ':e:' .. mid, {}, {}
    for number in string.gmatch(row[11] or '', '%d+') do
      if tonumber(number) >= prune or number == base or number == system then
        kept[#kept + 1] = number
      else
        gone[#gone + 1] = number
      end
    end
    local until_ = math.min(prune - 1, version)
    for n = low, until_ do
      local number = text(n)
      if number == base or number == system then kept[#kept + 1] = number else gone[#gone + 1] = number end
    end
    if #gone > 0 then in_chunks('HDEL', key, gone) end
    set('lo', text(math.max(low, until_ + 1)))
    set('k', table.concat(kept, ' '))
  end
  if #fields > 0 then in_chunks('HSET', head, fields) end
  return {0, mid, text(at), stolen_from}
end

if count > 0 then
  if mid == '0' and of_turn then return {2} end
  if row[1] or mid ~= '0' then
    if not there or not based or (meta_was ~= '-1' and meta_was ~= row[4]) then return refusal() end
    if of_turn and not own or not of_turn and not free then return {2} end
  else
    create()
    set('lo', text(expected + 1))
    low = expected + 1
  end
  if meta_was ~= '-1' then
    set('md', meta)
    if mid == ARGV[2] then set('mv', text(tonumber(meta_was) + 1)) else set('mv', '1') end
  end
  local values, turn_of = {}, row[8] or ''
  if low > version then values = {'n', name} end
  for i = 1, count do
    local number = text(expected + i)
    values[#values + 1] = number
    values[#values + 1] = text(at) .. ' ' .. ARGV[23 + 2 * i]
    local entry_turn = ARGV[24 + 2 * i]
    if entry_turn ~= '' and entry_turn ~= turn_of then
      turn_of = entry_turn
      set('ft', turn_of)
      set('fv', number)
    end
  end
  in_chunks('HSET', T .. ':e:' .. mid, values)
  version = expected + count
  set('v', text(version))
  set('b', base)
  set('s', system)
  set('u', text(at))
  if lease >= 0 then set_lease() end
  note_change()
  if keyed > 0 then
    local receipts = {}
    for i = 0, keyed - 1 do
      local place = first_key + 4 * i
      local until_ = text(now + ttl)
      local number = text(expected + tonumber(ARGV[place + 1]) + 1)
      local line = mid .. ' ' .. number .. ' ' .. ARGV[place + 4] .. ' ' .. until_ .. '\\n' .. ARGV[place + 3]
      receipts[#receipts + 1] = {ARGV[place + 2], line, until_}
    end
    keep_receipts(receipts, now, ttl)
  end
  expires = expires_at ~= old_expiry
  return written(-1)
end

if delete then
  if only_expired and not (there and old_expiry > 0 and old_expiry <= now) then return {1} end
  if not there or not free then return refusal() end
  remove()
  return {0, mid, text(at), -1}
end

if meta_was ~= '-1' or prune > 0 then
  if mid == '0' then
    if meta_was ~= '0' or not create() then return {1} end
    for _, field in ipairs({'v', 'b', 's'}) do set(field, '0') end
    set('u', text(at))
  else
    if prune == 0 then based = true end
    if not there or not based or (meta_was ~= '-1' and meta_was ~= row[4]) then return refusal() end
    if meta_was ~= '-1' and of_turn and not own then return {2} end
    if (prune > 0 or not of_turn) and not free then return {2} end
  end
  if meta_was ~= '-1' then
    set('md', meta)
    set('mv', text(tonumber(meta_was) + 1))
    expires = expires_at ~= old_expiry
  end
  if prune > 0 then
    set('b', base)
    set('s', system)
  end
  if lease >= 0 then set_lease() end
  return written(-1)
end

if lease < 0 then return {1} end
local stolen_from = -1
if steal and there and holder then
  redis.call('HDEL', head, 't', 'tu')
  if lives and holder ~= turn and row[8] == holder then
    stolen_from = tonumber(row[9]) - 1
    if not string.find(' ' .. (row[11] or '') .. ' ', ' ' .. row[9] .. ' ', 1, true) then
      stolen_from = math.max(stolen_from, low - 1)
    end
  end
  holder, free, own = false, true, false
end
if not_before > 0 then at = not_before else at = now end
if mid == '0' then
  if of_turn then return {2} end
  if lease == 0 then
    if row[1] then return {1} end
    return {0, '0', text(now), -1}
  end
  local made = at
  at = math.max(now, not_before)
  if not create() then return refusal() end
  for _, field in ipairs({'v', 'b', 's'}) do set(field, '0') end
  set('u', text(at))
  at = made
elseif not there then
  return refusal()
elseif of_turn and not own or not of_turn and not free then
  return refusal()
elseif lease == 0 and version == 0 and row[4] == '0' then
  remove()
  return {0, mid, text(at), stolen_from}
end
set_lease()
return written(stolen_from)
""",
    writes=True,
)
"""Commits one slice. Says 0, mid, time and stolen_from; 1: a conflict; 2: held; 3, index and receipt: a duplicate."""

ADOPT: Final = Script(
    _WRITING
    + """
local mid, expected, now = ARGV[2], ARGV[3], tonumber(ARGV[4])
local base_was, meta_was, has_meta = ARGV[5], ARGV[6], ARGV[16] == '1'
local buckets, bucket, count, receipts = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[18]), tonumber(ARGV[19])
if now < 0 then now = clock[1] * 1000000 + clock[2] end
local row = redis.call('HMGET', head, 'm', 'v', 'b', 'mv', 't', 'tu', 'lo', 'k')
if (row[1] or '0') ~= mid then return {1} end
if row[1] then
  if row[2] ~= expected or (base_was ~= '-1' and base_was ~= row[3]) or (meta_was ~= '-1' and meta_was ~= row[4]) then
    return {1}
  end
  if row[5] and tonumber(row[6]) > now then return {2} end
else
  mid = new_mid(buckets, bucket)
  redis.call('ZADD', T .. ':n', 0, name)
end
local last, low, kept = tonumber(row[2] or 0), tonumber(row[7] or 1), {}
local key = T .. ':e:' .. mid
for number in string.gmatch(row[8] or '', '%d+') do kept[#kept + 1] = number end
local function skip_to(version)
  if version > last + 1 then
    for n = low, last do kept[#kept + 1] = text(n) end
    low = version
  end
end
local values = {}
if count > 0 then values = {'n', name} end
for i = 1, count do
  local version = tonumber(ARGV[18 + 2 * i])
  skip_to(version)
  values[#values + 1] = text(version)
  values[#values + 1] = ARGV[19 + 2 * i]
  last = version
end
skip_to(tonumber(ARGV[9]) + 1)
in_chunks('HSET', key, values)
redis.call(
  'HSET', head, 'm', mid, 'v', ARGV[9], 'b', ARGV[10], 's', ARGV[11], 'c', ARGV[12], 'u', ARGV[13], 'x', ARGV[14],
  'mv', ARGV[15], 'lo', text(low), 'k', table.concat(kept, ' ')
)
if has_meta then redis.call('HSET', head, 'md', ARGV[17]) else redis.call('HDEL', head, 'md') end
if ARGV[14] ~= '0' then redis.call('ZADD', T .. ':x', ARGV[14], name) else redis.call('ZREM', T .. ':x', name) end
if count > 0 then note_change() end
local kept_receipts = {}
for i = 0, receipts - 1 do
  local place = 19 + 2 * count + 4 * i
  if tonumber(ARGV[place + 4]) > now then
    local of = '0'
    if ARGV[place + 2] ~= '0' then of = mid end
    kept_receipts[#kept_receipts + 1] = {ARGV[place + 1], of .. ' ' .. ARGV[place + 3], ARGV[place + 4]}
  end
end
if #kept_receipts > 0 then keep_receipts(kept_receipts, now) end
return {0, mid, text(now), -1}
""",
    writes=True,
)
"""Takes in a part of a memory as it is told."""

RESEAL: Final = Script(
    """
local T, name, mid, version, old, new = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local head = T .. ':h:' .. name
local row = redis.call('HMGET', head, 'm', 'md')
if row[1] ~= mid then return 0 end
if version == '0' then
  if row[2] ~= old then return 0 end
  redis.call('HSET', head, 'md', new)
  return 1
end
local key = T .. ':e:' .. mid
local value = redis.call('HGET', key, version)
if not value then return 0 end
local op, id = string.match(value, '^%d+ %-?%d+ (%d+) (%d+)\\n')
local start = string.find(value, '\\n', 1, true) + op + id
if string.sub(value, start + 1) ~= old then return 0 end
redis.call('HSET', key, version, string.sub(value, 1, start) .. new)
return 1
""",
    writes=True,
)
"""Puts a payload or metadata into the place of what is there, if that is what is said."""

MARK: Final = Script(
    """
if redis.call('EXISTS', KEYS[1]) == 0 then
  local clock = redis.call('TIME')
  local first = clock[1] * 1000 + math.floor(clock[2] / 1000) - ARGV[4]
  redis.call('HSET', KEYS[1], 'format', ARGV[1], 'schema', ARGV[2], 'buckets', ARGV[3],
    'first', string.format('%.0f', first * ARGV[3]))
end
return redis.call('HMGET', KEYS[1], 'format', 'schema', 'buckets', 'first')
""",
    writes=True,
)
"""Says what a prefix is used for, where nothing says so yet."""

PROBE: Final = Script(
    """
local T = KEYS[1]
local key, order, text = T .. ':probe', T .. ':probe-order', T .. ':probe-text'
redis.call('SET', text, '1')
redis.call('HSET', key, 'a', '1', 'b', '2')
redis.call('HMGET', key, 'a')
redis.call('HGET', key, 'a')
redis.call('HEXISTS', key, 'a')
redis.call('HDEL', key, 'a')
redis.call('ZADD', order, 0, 'a', 0, 'b')
redis.call('ZRANGEBYSCORE', order, '-inf', '+inf')
redis.call('ZREM', order, 'a')
redis.call('PTTL', key)
redis.call('PEXPIRE', key, '1000')
redis.call('GET', text)
redis.call('TIME')
redis.call('UNLINK', key, order, text)
return 1
""",
    writes=True,
)
"""Does once all that the others do, so that a right that is missing is found before one of them stops half-way."""
