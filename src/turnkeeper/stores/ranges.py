"""Where the texts that begin with a prefix end, so that a prefix is a range of an index and never a pattern."""

from __future__ import annotations

from typing import Final

__all__ = ["end_of_prefix"]

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
