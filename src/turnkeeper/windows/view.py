"""A window's place in a transcript, kept up to date step by step so that no read looks at the whole log."""

from __future__ import annotations

from typing import Final, Protocol

from turnkeeper.log import Version
from turnkeeper.messages import Message, same
from turnkeeper.windows.base import Messages, Window
from turnkeeper.windows.limited import LimitedWindow
from turnkeeper.windows.limited_view import LimitedView
from turnkeeper.windows.transcript import Transcript
from turnkeeper.windows.whole_view import WholeView

__all__ = ["View", "view_of"]

_MAX_VIEWS: Final = 4
"""Windows that one memory's state is kept for at a time; the one used longest ago goes first."""


class View(Protocol):
    """What a transcript tells its views, and what a log asks of them. Pure and synchronous.

    A view does not hold its transcript, which holds it: memories that leave RAM must not wait for the collector.
    """

    shown: Messages | None
    """What the last look found, None once that has changed."""

    looked_at: int
    """The number of the next unit at the last look."""

    limit: int | None
    """The limit at the last look."""

    @property
    def window(self) -> Window:
        """The window that this is the view of."""
        ...

    def appended(self, transcript: Transcript, number: int) -> None:
        """Take note of a new last unit."""

    def changed(self, transcript: Transcript, number: int) -> None:
        """Take note of a result that came or went."""

    def removed(self, transcript: Transcript, number: int) -> None:
        """Take note that the last unit is gone."""

    def trimmed(self, transcript: Transcript, leaving: int) -> None:
        """Take note that so many units left on the left."""

    def settle(self, transcript: Transcript, limit: int | None) -> None:
        """Evict and show again until the limit is kept as well as it can be."""

    def covered(self, transcript: Transcript, complete: bool) -> bool:
        """Tell whether no older unit could be visible; `complete`: there is none."""
        ...

    def shows(self, transcript: Transcript, number: int, message: Message) -> bool:
        """Tell whether a message that was just pushed, into the unit of this number, is visible."""
        ...

    def look(self, transcript: Transcript, limit: int | None, complete: bool, version: Version) -> Messages | None:
        """Settle and return what is visible, the same object until it changes; None when it is not covered."""
        ...

    def first(self, transcript: Transcript) -> int:
        """Number of the first visible unit."""
        ...

    def needed(self, transcript: Transcript) -> int:
        """Number of the first unit that is visible, or proves that no older one is."""
        ...


def view_of(window: Window, transcript: Transcript) -> View:
    """Return a window's view of a transcript; it is made at first use and kept for the windows used last."""
    views = transcript.views
    if views and views[0].window is window:
        return views[0]
    for place, view in enumerate(views):
        if same(view.window, window):
            if place:
                views.insert(0, views.pop(place))
            return view
    made: View
    made = LimitedView(window, transcript) if isinstance(window, LimitedWindow) else WholeView(window, transcript)
    views.insert(0, made)
    del views[_MAX_VIEWS:]
    return made
