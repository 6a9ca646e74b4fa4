"""The conversations a replay makes of its input: ids, copies, and whether they are there already."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from turnkeeper.cli.terminal import Stop
from turnkeeper.cli.transcripts import Transcript, read_transcripts
from turnkeeper.errors import InvalidMemoryIdError
from turnkeeper.names import MemoryName, memory_name
from turnkeeper.stores import InMemoryStore, SQLiteStore, Store, store_from_url

__all__ = ["Survey", "copied", "refuse_existing", "replayable_store", "survey"]

_PAGE = 1000


@dataclass(frozen=True, slots=True)
class Survey:
    """What a full pass over the input found; of the conversations only the ids are kept.

    Attributes:
        ids: ids in the input.
        copies: how often each is replayed.
        messages: messages to write, copies included.
    """

    ids: frozenset[str]
    copies: int
    messages: int

    @property
    def conversations(self) -> int:
        """Conversations to write, copies included."""
        return len(self.ids) * self.copies

    def has(self, memory_id: str) -> bool:
        """Tell whether this id is one that the replay writes."""
        return memory_id in self.ids or _original(memory_id, self.ids, self.copies) is not None


def copied(transcript: Transcript, copies: int) -> Iterator[Transcript]:
    """Yield the conversation `copies` times: the first under its own id, the others with `#1`, `#2`, … behind it."""
    yield transcript
    for number in range(1, copies):
        yield Transcript(f"{transcript.id}#{number}", transcript.messages)


def survey(paths: Sequence[Path], copies: int) -> Survey:
    """Read all input once, so that nothing is begun that can't be finished.

    Raises:
        TranscriptError: a file or line is malformed.
        Stop: a file can be read only once, there is nothing in them, or the copies' ids are too long or not unique.
    """
    for path in paths:
        if path.exists() and not path.is_file():
            raise Stop(f"{path} is not a regular file, and the input is read several times: before, during and after")
    ids: set[str] = set()
    messages = 0
    for transcript in read_transcripts(paths):
        ids.add(transcript.id)
        messages += len(transcript.messages)
    if not ids:
        raise Stop(f"no conversation in {', '.join(map(str, paths))}")
    for memory_id in ids:
        if (original := _original(memory_id, ids, copies)) is not None:
            raise Stop(f"the id {memory_id!r} of the input is also that of a copy of {original!r}; use fewer --copies")
        try:
            memory_name(f"{memory_id}#{copies - 1}" if copies > 1 else memory_id)
        except InvalidMemoryIdError:
            raise Stop(f"the id {memory_id!r} leaves no room for the copies' numbers (512 bytes in all)") from None
    return Survey(frozenset(ids), copies, messages * copies)


def replayable_store(url: str, *, read_only: bool) -> Store:
    """Make the store that a URL names, unless it is one that no other process could check.

    Raises:
        InvalidStoreURLError: the URL names no store.
        Stop: it is in memory.
    """
    store = store_from_url(url, read_only=read_only)
    if isinstance(store, InMemoryStore):
        raise Stop(
            "a store in memory is gone with this process, so no other could check what was stored: "
            "name a file, such as --store sqlite:///replay.db"
        )
    return store


def refuse_existing(url: str, namespace: str, wanted: Survey) -> None:
    """Look into the store, without writing, for ids that the replay would add to.

    Raises:
        Stop: there are some.
        StoreError: the store can't be read.
    """
    store = replayable_store(url, read_only=True)
    if isinstance(store, SQLiteStore) and not (store.path.exists() and store.path.stat().st_size):
        return
    try:
        store.open(durability="full")
        existing = [name.id for name in _names(store, namespace) if wanted.has(name.id)]
    finally:
        store.close()
    if existing:
        others = f" and {len(existing) - 1} more of the input" if len(existing) > 1 else ""
        raise Stop(
            f"namespace {namespace!r} of the store already has {existing[0]!r}{others}; nothing was written. "
            "Use --namespace NAME to keep both, or --replace to delete the old ones first"
        )


def _names(store: Store, namespace: str) -> Iterator[MemoryName]:
    after: MemoryName | None = None
    while page := store.names(namespace=namespace, after=after, limit=_PAGE):
        for listed in page:
            yield listed.name
        after = page[-1].name


def _original(memory_id: str, ids: set[str] | frozenset[str], copies: int) -> str | None:
    """Return the id in `ids` that `memory_id` is a copy of."""
    original, _, number = memory_id.rpartition("#")
    if original not in ids or not number.isascii() or not number.isdigit() or len(number) > len(str(copies)):
        return None
    return original if number[0] != "0" and int(number) < copies else None
