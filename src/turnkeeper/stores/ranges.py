"""Listing along an index on (namespace, id): a prefix is a range of it, and never a pattern."""

from __future__ import annotations

from typing import Final

from turnkeeper.names import MemoryName

__all__ = ["end_of_prefix", "listing"]

_LAST: Final = "\U0010ffff"
_BEFORE_SURROGATES: Final = "\ud7ff"
_BEHIND_SURROGATES: Final = "\ue000"


def end_of_prefix(prefix: str) -> str | None:
    """Return the first text, by code points and so by the bytes of UTF-8, that is behind all with this prefix.

    None: there is no such text.
    """
    stem = prefix.rstrip(_LAST)  # nothing is behind its last character
    if not stem:
        return None
    last = stem[-1]
    return stem[:-1] + (_BEHIND_SURROGATES if last == _BEFORE_SURROGATES else chr(ord(last) + 1))


def listing(
    mark: str, *, namespace: str | None, after: MemoryName | None, limit: int, prefix: str, updated_after: int
) -> tuple[str, list[str | int]]:
    """Return the rest of a SELECT that lists names in SQL, from WHERE on, and its values; see `Store.names`.

    Args:
        mark: what stands for a value in the driver's SQL, such as "?".
        namespace: only that one; None: all.
        after: only those behind this name.
        limit: at most so many.
        prefix: only ids that begin with it.
        updated_after: only those whose `updated_at` is later.
    """
    conditions = [f"(namespace, id) > ({mark}, {mark})"]
    values: list[str | int] = [*max(after or MemoryName("", ""), MemoryName(namespace or "", ""))]
    if namespace is not None:
        conditions.append(f"namespace = {mark}")
        values.append(namespace)
    if prefix:
        conditions.append(f"id >= {mark}")
        values.append(prefix)
        if (end := end_of_prefix(prefix)) is not None:
            conditions.append(f"id < {mark}")
            values.append(end)
    if updated_after:
        conditions.append(f"updated_at > {mark}")
        values.append(updated_after)
    return f"WHERE {' AND '.join(conditions)} ORDER BY namespace, id LIMIT {mark}", [*values, limit]
