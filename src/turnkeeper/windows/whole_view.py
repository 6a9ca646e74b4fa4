"""The view of a window without a limit."""

from __future__ import annotations

from turnkeeper.log import Version
from turnkeeper.messages import Message
from turnkeeper.windows.base import Messages, Unbounded, Window
from turnkeeper.windows.rendering import render
from turnkeeper.windows.transcript import Transcript

__all__ = ["WholeView"]


class WholeView:
    """The view of a window without a limit: everything, made valid, and then what the window picks of it."""

    __slots__ = ("_flat", "_flat_end", "limit", "looked_at", "shown", "window")

    def __init__(self, window: Window, transcript: Transcript) -> None:
        self.window: Window = window
        self._flat: list[Message] = []
        self._flat_end: int = transcript.start
        self.looked_at: int = transcript.end
        self.limit: int | None = None
        self.shown: Messages | None = None

    def first(self, transcript: Transcript) -> int:
        """All are visible."""
        return transcript.start

    def needed(self, transcript: Transcript) -> int:
        """All are needed."""
        return transcript.start

    def appended(self, transcript: Transcript, number: int) -> None:
        """Take note of a new last unit."""
        self.shown = None

    def changed(self, transcript: Transcript, number: int) -> None:
        """Take note of a result that came or went."""
        self.shown = None
        if number < self._flat_end:
            self._forget(transcript)

    def removed(self, transcript: Transcript, number: int) -> None:
        """Take note that the last unit is gone: the one before it may be current again."""
        self.shown = None
        if number - 1 < self._flat_end:
            self._forget(transcript)

    def trimmed(self, transcript: Transcript, leaving: int) -> None:
        """Start over: what left was pruned."""
        self.shown = None
        self._forget(transcript)

    def _forget(self, transcript: Transcript) -> None:
        self._flat = []
        self._flat_end = transcript.start

    def settle(self, transcript: Transcript, limit: int | None) -> None:
        """Do nothing: there is no limit."""

    def covered(self, transcript: Transcript, complete: bool) -> bool:
        """Tell whether everything is there."""
        return complete

    def shows(self, transcript: Transcript, number: int, message: Message) -> bool:
        """Nothing is hidden for lack of room."""
        return True

    def look(self, transcript: Transcript, limit: int | None, complete: bool, version: Version) -> Messages | None:
        """Return everything that is valid, as the window has it."""
        self.looked_at = transcript.end
        if not complete:
            return None
        if self.shown is None or self.shown.version != version:
            flat = self._flat
            last = transcript.end - 1
            for number in range(self._flat_end, last):
                render(transcript.units[number - transcript.start], False, self.window, flat)
            self._flat_end = max(last, transcript.start)
            held = len(flat)
            if last >= transcript.start:
                render(transcript.units[-1], True, self.window, flat)
            everything = flat
            if transcript.summary or (transcript.system is not None and transcript.system_at < 0):
                # All that is left of what was pruned or summed up.
                system = () if transcript.system is None or transcript.system_at >= 0 else (transcript.system,)
                everything = [*system, *transcript.summary, *flat]
            try:
                shown = everything if isinstance(self.window, Unbounded) else self.window.view(tuple(everything))
                self.shown = Messages(shown, version)
            finally:
                del flat[held:]
        return self.shown
