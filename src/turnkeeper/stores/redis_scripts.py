"""What runs inside the Redis server: one script for each thing that has to happen at one instant, and the keys.

All keys of a memory, and the indexes that it is in, begin with the tag of its bucket, `{prefix:17}`, and so lie in one
slot of a cluster. A script is given the tag, and makes the keys from it. The tag itself is no key that there is: named
together with another one, it keeps a cluster from running a script while it moves the slot's keys one by one.

- `tag:h:name` hash, a memory's row. m: mid, v: version, b: base, s: system, c: created_at, u: updated_at,
  x: expires_at, mv: meta_version, md: metadata, t and tu: the lease's turn and end, ft and fv: the last turn that
  wrote and the number of its first entry, lo: the entry from which on none was pruned, k: numbers of those before it
  that stay
- `tag:e:mid` hash, its entries by number; and n: the name
- `tag:r:name` hash, receipts by key; `tag:q:name` sorted set, the same keys by the end of their time
- `tag:n` sorted set, all names in byte order; `tag:x`, by the time at which they expire; `tag:c`, by their last change
- `tag:i` the last mid's number; `tag:s` the last change

A name is namespace, NUL, id. Lua's numbers are doubles, exact up to 2^53, which every number here stays below;
`%.0f` writes them without an exponent.
"""

from __future__ import annotations

import hashlib
from typing import Final

__all__ = ["CHANGES", "LOAD", "PAGE", "SETTLE", "Script"]


class Script:
    """A script and the name that the server knows it by."""

    def __init__(self, text: str, *, writes: bool) -> None:
        self.text: str = text
        self.sha: str = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
        self.writes: bool = writes


_READING: Final = """
local function numbers(low, kept, version, first, last, limit, newest)
  local found = {}
  for number in string.gmatch(kept, '%d+') do
    local n = tonumber(number)
    if n >= first and n <= last then found[#found + 1] = n end
  end
  first, last = math.max(first, low), math.min(last, version)
  if limit > 0 and newest then first = math.max(first, last - limit + 1) end
  if limit > 0 and not newest then last = math.min(last, first + limit - 1) end
  for n = first, last do found[#found + 1] = n end
  if limit > 0 and #found > limit then
    local some, offset = {}, 0
    if newest then offset = #found - limit end
    for i = 1, limit do some[i] = found[offset + i] end
    return some
  end
  return found
end
local function read(key, wanted)
  local found = {}
  for first = 1, #wanted, 1000 do
    local last = math.min(first + 999, #wanted)
    local names = {}
    for i = first, last do names[#names + 1] = string.format('%.0f', wanted[i]) end
    local values = redis.call('HMGET', key, unpack(names))
    for i, value in ipairs(names) do
      if values[i] then
        found[#found + 1] = value
        found[#found + 1] = values[i]
      end
    end
  end
  return found
end
"""

LOAD: Final = Script(
    _READING
    + """
local T, name, known_mid, known, newest = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local head = redis.call('HMGET', T .. ':h:' .. name, 'm', 'v', 'b', 's', 'c', 'u', 'x', 'mv', 'md', 'lo', 'k')
if not head[1] then return false end
local version, base, system = tonumber(head[2]), tonumber(head[3]), tonumber(head[4])
local low, kept, key = tonumber(head[10] or 1), head[11] or '', T .. ':e:' .. head[1]
if known_mid == head[1] and base <= known then
  if known >= version then return {head, 1, {}} end
  return {head, 1, read(key, numbers(low, kept, version, known + 1, version, 0, false))}
end
local first, start = math.max(base, 1), false
if base > 0 then
  start = redis.call('HGET', key, head[3])
  if start then
    local to, op = string.match(start, '^%d+ (%-?%d+) (%d+) %d+\\n')
    local from = string.find(start, '\\n', 1, true)
    if string.sub(start, from + 1, from + op) == 'compact' then first = tonumber(to) + 1 end
  end
end
local before = 0
if first > 1 then before = redis.call('HEXISTS', key, string.format('%.0f', first - 1)) end
local entries = read(key, numbers(low, kept, version, first, version, newest, true))
local said = false
if system > 0 and (#entries == 0 or system < tonumber(entries[1])) then said = redis.call('HGET', key, head[4]) end
return {head, 0, entries, first, start, before, said}
""",
    writes=False,
)
"""Reads a memory: its row, whether the entries follow what is known, and the entries; see `redis_reading.loaded`."""

PAGE: Final = Script(
    _READING
    + """
local T, mid, after, before = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local key = T .. ':e:' .. mid
local name = redis.call('HGET', key, 'n')
if not name then return {} end
local head = redis.call('HMGET', T .. ':h:' .. name, 'm', 'v', 'lo', 'k')
if head[1] ~= mid then return {} end
local version = tonumber(head[2])
local last = version
if before > 0 then last = math.min(version, before - 1) end
local low, limit, newest = tonumber(head[3] or 1), tonumber(ARGV[4]), ARGV[5] == '1'
return read(key, numbers(low, head[4] or '', version, after + 1, last, limit, newest))
""",
    writes=False,
)
"""Reads a part of a log: numbers and entries."""

SETTLE: Final = Script(
    """
local head = redis.call('HMGET', KEYS[1] .. ':h:' .. ARGV[1], 'm', 'v', 'b', 'u', 'mv', 'md', 't', 'lo', 'k')
if not head[1] then return false end
return {head, redis.call('HGET', KEYS[1] .. ':e:' .. head[1], ARGV[2])}
""",
    writes=False,
)
"""Reads a row and one entry."""

CHANGES: Final = Script(
    """
local T = KEYS[1]
local found = redis.call('ZRANGEBYSCORE', T .. ':c', '(' .. ARGV[1], '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[2])
local told = {}
for i = 1, #found, 2 do
  local row = redis.call('HMGET', T .. ':h:' .. found[i], 'm', 'v')
  if row[1] then told[#told + 1] = {found[i], found[i + 1], row[1], row[2]} end
end
return told
""",
    writes=False,
)
"""Reads which memories got entries, each with its place, mid and version."""
