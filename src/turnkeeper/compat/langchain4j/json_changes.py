"""The smallest change that makes one JSON value of another."""

from __future__ import annotations

from typing import Any

from turnkeeper.compat.langchain4j.json_terms import Fields

__all__ = ["change_of", "changed"]


def change_of(old: Any, new: Any) -> Fields:
    """Return what makes `new` of `old`; empty when they are the same: `old` is a plain reading, without numbers.

    `is`: the new value. For an object `set`, `remove`, `inside` (by key); for a list `insert` or `inside` (by index);
    for a text that is to be a list, `parts`: what to change in the list that holds it as its one text part.
    """
    if old == new:
        return {}
    if isinstance(old, str) and isinstance(new, list):
        change = change_of([{"type": "text", "text": old}], new)
        return change if "is" in change else {"parts": change}
    if isinstance(old, dict) and isinstance(new, dict):
        change = {
            "set": {key: item for key, item in new.items() if key not in old},
            "remove": [key for key in old if key not in new],
            "inside": {key: inner for key in old if key in new and (inner := change_of(old[key], new[key]))},
        }
        return {key: item for key, item in change.items() if item}
    if isinstance(old, list) and isinstance(new, list):
        if len(old) == len(new):
            pairs = enumerate(zip(old, new, strict=True))
            return {"inside": {str(index): inner for index, (one, two) in pairs if (inner := change_of(one, two))}}
        if (inserted := _inserted(old, new)) is not None:
            return {"insert": inserted}
    return {"is": new}


def _inserted(old: list[Any], new: list[Any]) -> Fields | None:
    """Return what stands in `new` between the items of `old`, by its index there; None when they are not all there."""
    kept, inserted = 0, {}
    for index, item in enumerate(new):
        if kept < len(old) and old[kept] == item:
            kept += 1
        else:
            inserted[str(index)] = item
    return inserted if kept == len(old) else None


def changed(old: Any, change: Fields) -> Any:
    """Apply what `change_of` returned.

    Raises:
        LookupError, TypeError, ValueError, AttributeError: it does not fit.
    """
    if not change:
        return old
    if "is" in change:
        return change["is"]
    if "parts" in change:
        return changed([{"type": "text", "text": old}], change["parts"])
    if isinstance(old, list):
        new = list(old)
        for index, item in change.get("insert", {}).items():
            new.insert(int(index), item)
        for index, inner in change.get("inside", {}).items():
            new[int(index)] = changed(new[int(index)], inner)
        return new
    made = {key: item for key, item in old.items() if key not in change.get("remove", ())}
    made.update(change.get("set", {}))
    made.update({key: changed(old[key], inner) for key, inner in change.get("inside", {}).items()})
    return made
