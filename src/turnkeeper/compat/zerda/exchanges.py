"""One exchange: the dict that Zerda's users see."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import ref

if TYPE_CHECKING:
    from turnkeeper.compat.zerda.editing import EditableMirror

__all__ = ["Exchange"]

T = TypeVar("T")


class Exchange(dict[Any, Any]):
    """One exchange of a memory, as a dict: changes go through the memory's actor.

    Reading is what it is for every dict, and so is everything once the exchange has left its memory.

    Attributes:
        id: names the exchange across changes; None for messages that were not written by these classes.
        place: where its user message and its answer stand in the log.
        token: the number under which its values are kept by reference; 0: none are.
        size: what the memory's measure finds; None: it has to be asked again each time, as values may have changed.
        owner: the list that it belongs to.
    """

    __slots__ = ("id", "owner", "place", "size", "token")

    def __init__(self, values: Mapping[Any, Any], exchange_id: str | None, token: int = 0) -> None:
        """Hold these values, in no memory yet."""
        super().__init__(values)
        self.id: str | None = exchange_id
        self.place: tuple[int, int] = (-1, -1)
        self.token: int = token
        self.size: int | None = None
        self.owner: ref[Any] | None = None

    def _change(self, change: Callable[[dict[Any, Any]], T]) -> T:
        owner: EditableMirror | None = None if self.owner is None else self.owner()
        if owner is not None:
            return owner.rewrite(self, change)
        values = dict(self)
        result = change(values)
        self.become(values)
        return result

    def become(self, values: Mapping[Any, Any]) -> None:
        """Take these values, and tell no actor; readers find each key old or new, never missing."""
        for key, value in values.items():
            super().__setitem__(key, value)
        for key in [key for key in self if key not in values]:
            super().__delitem__(key)

    def take(self, other: Exchange) -> None:
        """Become another exchange, as far as one can."""
        if other is not self:
            self.become(other)
            self.id, self.token = other.id, other.token

    def __setitem__(self, key: Any, value: Any) -> None:
        self._change(lambda values: values.__setitem__(key, value))

    def __delitem__(self, key: Any) -> None:
        self._change(lambda values: values.__delitem__(key))

    def __ior__(self, other: Any) -> Exchange:  # type: ignore[misc]  # a dict's own has overloads
        self.update(other)
        return self

    def update(self, *args: Any, **values: Any) -> None:
        """Change several values at once."""
        self._change(lambda present: present.update(*args, **values))

    def setdefault(self, key: Any, default: Any = None) -> Any:
        """Return a value; set it if there is none."""
        return self[key] if key in self else self._change(lambda values: values.setdefault(key, default))

    def pop(self, key: Any, *default: Any) -> Any:
        """Remove a key and return its value."""
        return self._change(lambda values: values.pop(key, *default))

    def popitem(self) -> tuple[Any, Any]:
        """Remove the last key and return it with its value."""
        return self._change(lambda values: values.popitem())

    def clear(self) -> None:
        """Remove all keys; the exchange stays."""
        self._change(lambda values: values.clear())

    def __copy__(self) -> dict[Any, Any]:
        return dict(self)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Pickle and deep-copy as a plain dict."""
        return dict, (dict(self),)
