"""The PostgreSQL store's tables, the function that commits a group, and how a database gets them."""

from __future__ import annotations

from typing import Any, Final, LiteralString

import psycopg
from psycopg import sql

from turnkeeper.errors import StoreFormatError

__all__ = ["COLUMNS_OF_SLICE", "SCHEMA", "check_format", "migrate"]

SCHEMA: Final = 1

_LOCK: Final = 0x7475726E6B656570
"""Number of the advisory lock under which one process at a time makes tables: the bytes of "turnkeep"."""

COLUMNS_OF_SLICE: Final = (
    ("namespace", "text"),
    ("id", "text"),
    ("name_digest", "bytea"),
    ("mid", "bigint"),
    ("expected", "bigint"),
    ("entries", "bigint"),
    ("keys", "bigint"),
    ("base", "bigint"),
    ("system", "bigint"),
    ("delete", "boolean"),
    ("only_expired", "boolean"),
    ("not_before", "bigint"),
    ("prune", "bigint"),
    ("turn_id", "bytea"),
    ("of_its_turn", "boolean"),
    ("leased", "boolean"),
    ("lease_turn", "bytea"),
    ("lease_time", "bigint"),
    ("steal", "boolean"),
    ("described", "boolean"),
    ("meta", "bytea"),
    ("meta_expected", "bigint"),
    ("expires_after", "bigint"),
    ("base_was", "bigint"),
)
"""The arrays that a group of slices travels in, one for each of these, in this order. Times are microseconds; what is
absent is an empty value."""

# Names are compared by their bytes (COLLATE "C"), as every store does. Payloads and keys are bytes: text refuses NUL.
# `xid` is the transaction that wrote an entry: numbers from a sequence would become visible out of their order.
_TABLES: Final[LiteralString] = """
CREATE TABLE head (
  mid bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  namespace text COLLATE "C" NOT NULL,
  id text COLLATE "C" NOT NULL,
  version bigint NOT NULL,
  base bigint NOT NULL DEFAULT 0,
  system bigint NOT NULL DEFAULT 0,
  turn_id bytea,
  turn_until bigint,
  created_at bigint NOT NULL,
  updated_at bigint NOT NULL,
  expires_at bigint NOT NULL DEFAULT 0,
  meta bytea,
  meta_version bigint NOT NULL DEFAULT 0,
  UNIQUE (namespace, id)
) WITH (fillfactor = 80);
CREATE INDEX head_expiry ON head (expires_at, mid) WHERE expires_at > 0;
CREATE TABLE entry (
  mid bigint NOT NULL,
  version bigint NOT NULL,
  op text NOT NULL,
  entry_id bytea NOT NULL,
  turn_id bytea,
  payload bytea NOT NULL,
  at bigint NOT NULL,
  xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
  PRIMARY KEY (mid, version)
);
CREATE INDEX entry_order ON entry (xid);
CREATE TABLE receipt (
  name_digest bytea NOT NULL,
  key bytea NOT NULL,
  mid bigint NOT NULL,
  digest bytea NOT NULL,
  version bigint NOT NULL,
  count bigint NOT NULL,
  expires_at bigint NOT NULL,
  PRIMARY KEY (name_digest, key)
);
CREATE INDEX receipt_expiry ON receipt (expires_at);
CREATE TABLE about (application text NOT NULL, number bigint NOT NULL, first_row bigint NOT NULL);
"""

_NOW: Final[LiteralString] = """
CREATE FUNCTION now_micros() RETURNS bigint LANGUAGE sql VOLATILE
AS 'SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint';
"""

# One call is one transaction (the connection commits by itself) and one trip. Heads are locked in the order of `mid`,
# new ones made in the order of their names (the caller sorts), so that two groups never wait for each other in a ring.
# Each statement of the function sees what was committed before it, so what is read under the lock is the newest.
# Outcomes: 0 committed, 1 conflict, 2 held, 3 duplicate.
_COMMIT: Final[LiteralString] = """
CREATE FUNCTION commit_slices(
  p_now bigint, p_receipt_time bigint,
  s_namespace text[], s_id text[], s_name_digest bytea[], s_mid bigint[], s_expected bigint[], s_entries bigint[],
  s_keys bigint[], s_base bigint[], s_system bigint[], s_delete boolean[], s_only_expired boolean[],
  s_not_before bigint[], s_prune bigint[], s_turn_id bytea[], s_of_its_turn boolean[], s_leased boolean[],
  s_lease_turn bytea[], s_lease_time bigint[], s_steal boolean[], s_described boolean[], s_meta bytea[],
  s_meta_expected bigint[], s_expires_after bigint[], s_base_was bigint[],
  e_slice bigint[], e_version bigint[], e_op text[], e_entry_id bytea[], e_turn_id bytea[], e_payload bytea[],
  k_index bigint[], k_key bytea[], k_digest bytea[], k_count bigint[]
) RETURNS TABLE (
  outcome bigint, mid bigint, at bigint, stolen_from bigint,
  index bigint, old_mid bigint, old_version bigint, old_count bigint, old_digest bytea
) LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
  now bigint := coalesce(p_now, now_micros());
  s record;
  h head%ROWTYPE;
  there boolean;
  matches boolean;
  allowed boolean;
  lone_lease boolean;
  moment bigint;
  expiry bigint;
  row_mid bigint;
  stolen bigint;
  found_key record;
  done bigint[] := array_fill(0::bigint, ARRAY[cardinality(s_mid)]);
  pruned boolean := false;
  k_first bigint;
  k_last bigint := 0;
BEGIN
  PERFORM 1 FROM head WHERE head.mid = ANY (s_mid) ORDER BY head.mid FOR UPDATE;
  FOR s IN
    SELECT * FROM unnest(
      s_namespace, s_id, s_name_digest, s_mid, s_expected, s_entries, s_keys, s_base, s_system, s_delete,
      s_only_expired, s_not_before, s_prune, s_turn_id, s_of_its_turn, s_leased, s_lease_turn, s_lease_time, s_steal,
      s_described, s_meta, s_meta_expected, s_expires_after, s_base_was
    ) WITH ORDINALITY AS t (
      namespace, id, name_digest, mid, expected, entries, keys, base, system, deleted, only_expired, not_before,
      prune, turn_id, of_its_turn, leased, lease_turn, lease_time, steal, described, meta, meta_expected,
      expires_after, base_was, ord)
  LOOP
    outcome := 1; mid := 0; at := 0; stolen_from := -1;
    index := 0; old_mid := 0; old_version := 0; old_count := 0; old_digest := ''::bytea;
    moment := greatest(now, s.not_before);
    expiry := CASE WHEN s.expires_after > 0 THEN moment + s.expires_after ELSE 0 END;

    IF s.keys > 0 THEN
      k_first := k_last + 1;  -- the keys come in the order of the slices: each slice looks at its own only
      k_last := k_last + s.keys;
      SELECT k.index AS index, r.mid AS mid, r.version AS version, r.count AS count, r.digest AS digest INTO found_key
        FROM unnest(k_index[k_first:k_last], k_key[k_first:k_last]) AS k (index, key)
        JOIN receipt r ON r.name_digest = s.name_digest AND r.key = k.key
       WHERE r.expires_at > now ORDER BY k.index LIMIT 1;
      IF FOUND THEN
        outcome := 3; index := found_key.index; old_mid := found_key.mid; old_version := found_key.version;
        old_count := found_key.count; old_digest := found_key.digest;
        RETURN NEXT; CONTINUE;
      END IF;
    END IF;

    SELECT * INTO h FROM head WHERE head.namespace = s.namespace AND head.id = s.id FOR UPDATE;
    there := FOUND;
    matches := there AND h.mid = s.mid AND h.version = s.expected;
    lone_lease := NOT s.deleted AND s.entries = 0 AND NOT s.described AND s.prune = 0;

    IF lone_lease AND s.steal AND matches AND h.turn_id IS NOT NULL THEN
      -- One that has run out, or is the slice's own, is of a turn that is over: what it committed is nobody's to undo.
      IF h.turn_id <> s.turn_id AND h.turn_until > now THEN
        SELECT min(e.version) - 1 INTO stolen FROM entry e WHERE e.mid = h.mid AND e.turn_id = h.turn_id;
        stolen_from := coalesce(stolen, -1);
      END IF;
      UPDATE head SET turn_id = NULL, turn_until = NULL WHERE head.mid = h.mid;
      h.turn_id := NULL; h.turn_until := NULL;
    END IF;

    IF s.of_its_turn AND (s.entries > 0 OR s.described OR lone_lease) THEN
      allowed := there AND coalesce(h.turn_until > now AND h.turn_id = s.turn_id, false);
    ELSE
      allowed := NOT there OR h.turn_id IS NULL OR h.turn_until <= now OR h.turn_id = s.turn_id;
    END IF;

    IF s.mid = 0 THEN
      IF s.of_its_turn AND (s.entries > 0 OR lone_lease) THEN
        outcome := 2;  -- the row that its lease was for is gone
      ELSIF lone_lease AND s.leased AND s.lease_time = 0 THEN
        IF NOT there THEN outcome := 0; at := now; END IF;  -- nothing to give back
      ELSIF there OR s.deleted OR (s.entries = 0 AND s.described AND s.meta_expected > 0)
            OR (lone_lease AND NOT s.leased) OR (s.entries = 0 AND s.prune > 0 AND NOT s.described) THEN
        outcome := 1;
      ELSE
        INSERT INTO head (namespace, id, version, base, system, turn_id, turn_until, created_at, updated_at,
                          expires_at, meta, meta_version)
        VALUES (s.namespace, s.id, s.entries, CASE WHEN s.entries > 0 THEN s.base ELSE 0 END,
                CASE WHEN s.entries > 0 THEN s.system ELSE 0 END,
                CASE WHEN s.leased AND s.lease_time > 0 THEN s.lease_turn END,
                CASE WHEN s.leased AND s.lease_time > 0 THEN now + s.lease_time END,
                moment, moment, CASE WHEN lone_lease THEN 0 ELSE expiry END,
                CASE WHEN s.described THEN s.meta END, CASE WHEN s.described THEN 1 ELSE 0 END)
        ON CONFLICT DO NOTHING RETURNING head.mid INTO row_mid;
        IF FOUND THEN
          outcome := 0; mid := row_mid;
          at := CASE WHEN lone_lease AND s.not_before > 0 THEN s.not_before WHEN lone_lease THEN now ELSE moment END;
        END IF;
      END IF;

    ELSIF NOT matches THEN
      outcome := 1;

    ELSIF s.deleted THEN
      IF s.only_expired AND NOT (h.expires_at > 0 AND h.expires_at <= now) THEN
        outcome := 1;
      ELSIF NOT allowed THEN
        outcome := 2;
      ELSE
        DELETE FROM head WHERE head.mid = h.mid;
        DELETE FROM entry WHERE entry.mid = h.mid;
        done := array_replace(done, h.mid, 0::bigint);  -- what the same group had added goes as well
        outcome := 0; mid := h.mid; at := moment;
      END IF;

    ELSIF lone_lease AND NOT s.leased THEN
      outcome := 1;

    ELSIF s.base_was <> -1 AND s.base_was <> h.base AND (s.entries > 0 OR s.prune > 0 OR NOT allowed) THEN
      outcome := 1;

    ELSIF s.described AND h.meta_version <> s.meta_expected THEN
      outcome := 1;

    ELSIF NOT allowed THEN
      outcome := 2;

    ELSIF lone_lease THEN
      IF s.lease_time > 0 THEN
        UPDATE head SET turn_id = s.lease_turn, turn_until = now + s.lease_time WHERE head.mid = h.mid;
      ELSIF h.version = 0 AND h.meta_version = 0 THEN
        DELETE FROM head WHERE head.mid = h.mid;  -- it was there for the lease alone
      ELSE
        UPDATE head SET turn_id = NULL, turn_until = NULL WHERE head.mid = h.mid;
      END IF;
      outcome := 0; mid := h.mid; at := CASE WHEN s.not_before > 0 THEN s.not_before ELSE now END;

    ELSE
      UPDATE head SET
        version = h.version + s.entries,
        base = CASE WHEN s.entries > 0 OR s.prune > 0 THEN s.base ELSE h.base END,
        system = CASE WHEN s.entries > 0 OR s.prune > 0 THEN s.system ELSE h.system END,
        updated_at = CASE WHEN s.entries > 0 THEN moment ELSE h.updated_at END,
        expires_at = CASE WHEN s.entries > 0 OR s.described THEN expiry ELSE h.expires_at END,
        meta = CASE WHEN s.described THEN s.meta ELSE h.meta END,
        meta_version = h.meta_version + CASE WHEN s.described THEN 1 ELSE 0 END,
        turn_id = CASE WHEN NOT s.leased THEN h.turn_id WHEN s.lease_time > 0 THEN s.lease_turn END,
        turn_until = CASE WHEN NOT s.leased THEN h.turn_until WHEN s.lease_time > 0 THEN now + s.lease_time END
      WHERE head.mid = h.mid;
      outcome := 0; mid := h.mid; at := moment;
    END IF;

    IF outcome = 0 AND s.entries > 0 THEN
      done[s.ord] := mid;
      IF s.keys > 0 THEN
        DELETE FROM receipt WHERE ctid = ANY (ARRAY(
          SELECT r.ctid FROM receipt r WHERE r.expires_at <= now ORDER BY r.expires_at LIMIT 2 * s.keys
          FOR UPDATE SKIP LOCKED));
        INSERT INTO receipt (name_digest, key, mid, digest, version, count, expires_at)
        SELECT DISTINCT ON (k.key)
               s.name_digest, k.key, mid, k.digest, s.expected + k.index + 1, k.count, now + p_receipt_time
          FROM unnest(k_index[k_first:k_last], k_key[k_first:k_last], k_digest[k_first:k_last], k_count[k_first:k_last])
            AS k (index, key, digest, count)
         ORDER BY k.key, k.index DESC
        ON CONFLICT (name_digest, key) DO UPDATE SET mid = excluded.mid, digest = excluded.digest,
          version = excluded.version, count = excluded.count, expires_at = excluded.expires_at;
      END IF;
    END IF;
    IF outcome = 0 AND s.prune > 0 THEN
      pruned := true;
      done[s.ord] := mid;
    END IF;
    RETURN NEXT;
  END LOOP;

  INSERT INTO entry (mid, version, op, entry_id, turn_id, payload, at)
  SELECT done[e.slice], e.version, e.op, e.entry_id, nullif(e.turn_id, ''::bytea), e.payload,
         greatest(now, s_not_before[e.slice])
    FROM unnest(e_slice, e_version, e_op, e_entry_id, e_turn_id, e_payload)
      AS e (slice, version, op, entry_id, turn_id, payload)
   WHERE done[e.slice] > 0;
  IF pruned THEN
    DELETE FROM entry USING unnest(done, s_prune, s_base, s_system) AS p (mid, prune, base, system)
     WHERE p.prune > 0 AND p.mid > 0 AND entry.mid = p.mid AND entry.version < p.prune
       AND entry.version NOT IN (p.base, p.system);
  END IF;
END
$$;
"""

_MIGRATIONS: Final[tuple[LiteralString, ...]] = (_TABLES + _NOW + _COMMIT,)


def check_format(connection: psycopg.Connection[Any], schema: str, described: str) -> int:
    """Return the number of the schema that the database has, 0 for none.

    Raises:
        StoreFormatError: the schema holds another program's tables, or those of a newer version of this one.
    """
    tables = [
        row[0]
        for row in connection.execute(
            "SELECT c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname = %s AND c.relkind IN ('r', 'p', 'v', 'm')",
            (schema,),
        )
    ]
    if not tables:
        return 0
    row = None
    if "about" in tables and "head" in tables:
        row = connection.execute("SELECT application, number FROM about").fetchone()
    if row is None or row[0] != "turnkeeper":
        raise StoreFormatError(
            f"{described}: this schema holds another program's tables; name one of its own with '?schema='"
        )
    if row[1] > SCHEMA:
        raise StoreFormatError(
            f"{described} has schema {row[1]}, and this version of turnkeeper knows up to {SCHEMA}; upgrade turnkeeper"
        )
    return int(row[1])


def migrate(connection: psycopg.Connection[Any], schema: str, described: str) -> None:
    """Bring the database to the present schema, in one transaction; who comes second finds it done."""
    if check_format(connection, schema, described) == SCHEMA:
        return
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        there = connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (schema,)).fetchone()
        if there is None:
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
        number = check_format(connection, schema, described)
        for statements in _MIGRATIONS[number:]:
            connection.execute(statements)
        if number == 0:
            # Rows are numbered from the time on, so that those of a new database are above those of any before it.
            row = connection.execute("SELECT now_micros()").fetchone()
            assert row is not None
            connection.execute(
                sql.SQL("ALTER TABLE head ALTER COLUMN mid RESTART WITH {}").format(sql.Literal(int(row[0])))
            )
            connection.execute("INSERT INTO about VALUES ('turnkeeper', %s, %s)", (SCHEMA, row[0]))
        else:
            connection.execute("UPDATE about SET number = %s", (SCHEMA,))
