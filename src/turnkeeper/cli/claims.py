"""A claim is a sentence with code behind it: the code returns its evidence, or says what does not hold."""

from __future__ import annotations

__all__ = ["ClaimFailedError", "require"]


class ClaimFailedError(Exception):
    """What a claim says does not hold; the text is ours and holds no content."""


def require(holds: bool, otherwise: str) -> None:
    """Go on when it holds, else raise `ClaimFailedError`. Unlike `assert` it is there under -O, too."""
    if not holds:
        raise ClaimFailedError(otherwise)
