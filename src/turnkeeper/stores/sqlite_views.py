"""The SQLite store's views, for people with `sqlite3` and nothing else: the store itself reads none of them.

The time they take grows with what is looked at, and not with its square: an entry finds what was done to it later by
one look into an index, whatever the number of later entries.
"""

from __future__ import annotations

from typing import Final

__all__ = ["VIEWS"]

_TEXT: Final = "CASE WHEN json_valid(CAST({0}.payload AS TEXT)) THEN CAST({0}.payload AS TEXT) ELSE '{{}}' END"
_PAYLOAD: Final = _TEXT.format("entry")
_START: Final = _TEXT.format("start")
_SYSTEM: Final = "('system', 'developer')"

# A place is entry and index in one number, as in messages.py. What an entry is told by the undos that follow it is the
# lowest place that one of them took off: that of the next one, or of those behind that.
VIEWS: Final = f"""
CREATE INDEX entry_undo ON entry (mid, version) WHERE op IN ('undo', 'pop');
CREATE INDEX entry_change ON entry (mid, version) WHERE op IN ('edit', 'remove');
CREATE VIEW undone AS
  SELECT mid, version,
         min((coalesce(json_extract({_PAYLOAD}, '$.to'), -1) + 1 << 24)
             + coalesce(json_extract({_PAYLOAD}, '$.part'), 0))
           OVER (PARTITION BY mid ORDER BY version DESC) AS place
  FROM entry WHERE op IN ('undo', 'pop');
CREATE VIEW changed AS
  SELECT mid, (json_extract(part.value, '$[0]') << 24) + json_extract(part.value, '$[1]') AS place,
         max(version) AS version
  FROM entry, json_each({_PAYLOAD}, '$.places') AS part WHERE op IN ('edit', 'remove') GROUP BY 1, 2;
CREATE VIEW placed AS
  SELECT head.namespace, head.id, entry.mid, entry.version, entry.op, part.key AS position,
         CASE WHEN part.type = 'object' AND json_extract(part.value, '$.role')
                IN ('system', 'developer', 'user', 'assistant', 'tool', 'function')
              THEN json_extract(part.value, '$.role') END AS role, part.value AS json,
         CASE WHEN entry.op = 'edit'
              THEN (json_extract({_PAYLOAD}, '$.places[0][0]') << 24) + json_extract({_PAYLOAD}, '$.places[0][1]')
              ELSE (entry.version << 24) + part.key END AS place,
         coalesce(json_extract({_START}, '$.to') + 1, head.base) << 24 AS first,
         head.system, coalesce(json_extract({_START}, '$.system'), 0) AS summed_up, entry.at
  FROM head JOIN entry ON entry.mid = head.mid
       LEFT JOIN entry AS start ON start.mid = head.mid AND start.version = head.base AND start.op = 'compact',
       json_each({_PAYLOAD}, '$.messages') AS part;
CREATE VIEW message AS
  SELECT namespace, id, placed.version, op, position, role, json,
         CASE WHEN placed.version < changed.version OR placed.place >= undone.place THEN 0
              WHEN placed.place >= first THEN 1
              ELSE role IN {_SYSTEM}
                   AND (placed.version IN (system, summed_up) OR placed.place >> 24 IN (system, summed_up))
         END AS visible, at
  FROM placed
       LEFT JOIN changed ON changed.mid = placed.mid AND changed.place = placed.place
       LEFT JOIN undone ON undone.mid = placed.mid AND undone.version = (
         SELECT version FROM entry AS next
         WHERE next.mid = placed.mid AND next.op IN ('undo', 'pop') AND next.version > placed.version
         ORDER BY next.version LIMIT 1)
  ORDER BY namespace, id, placed.version, position;
"""
