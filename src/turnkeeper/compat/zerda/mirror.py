"""What this process knows of a memory: a list that is kept in step with the memory's actor."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeVar
from weakref import ref

from turnkeeper.compat.default_runtime import CompatRuntime, process
from turnkeeper.compat.zerda.exchanges import Exchange
from turnkeeper.compat.zerda.references import References, holding, references_for
from turnkeeper.compat.zerda.turns import is_fixed, new_id, read_turn, split_turns, token_of, write_exchange
from turnkeeper.log import Receipt, Version
from turnkeeper.messages import Message
from turnkeeper.names import MemoryName
from turnkeeper.sync import SyncChatMemory
from turnkeeper.windows import Messages, MessageWindow, Unbounded

__all__ = ["ALL", "Contents", "Kind", "Mirror", "Totals"]

T = TypeVar("T")

ALL: Final = Unbounded(on_unanswered="keep")
"""Everything as it lies in the log."""

_UNKNOWN: Final = Version(-1, -1)
_OUT_OF_REACH: Final = 2**62
_STRAY: Final = 64
"""Saved exchanges may wait for earlier ones, as many as are known and so many more: then others wrote those."""


class Kind(NamedTuple):
    """What kind of memory a list belongs to.

    Attributes:
        measure: what the statistics add up, of an exchange's input and output.
        most: exchanges in the window; None: all.
        prunes: what leaves the window leaves the store.
        timestamps: exchanges have one.
    """

    measure: Callable[[Any, Any], int]
    most: int | None = None
    prunes: bool = True
    timestamps: bool = True


class Contents(NamedTuple):
    """What a memory shows.

    Attributes:
        head: the messages before the first user message.
        exchanges: in order.
    """

    head: tuple[Message, ...]
    exchanges: list[Any]


class Totals(NamedTuple):
    """What a memory shows, in numbers.

    Attributes:
        head: the messages before the first user message.
        exchanges: how many there are.
        amount: what they measure.
    """

    head: tuple[Message, ...]
    exchanges: int
    amount: int


class Mirror(list[Any]):
    """The exchanges of a memory as this object knows them.

    `look` brings them up to date first. This object's own writes are there when they return, so as long as nobody else
    writes, the list's bare storage, which is what C code reads, is the present as well.

    Args:
        runtime: where the memory lives.
        name: the memory.
        kind: what kind it is.
        fresh: nobody else can know it yet.
    """

    __slots__ = (
        "__weakref__",
        "_head",
        "_loose",
        "_news",
        "_process",
        "_regular",
        "_runtime",
        "_total",
        "_version",
        "_window",
        "kind",
        "lock",
        "name",
        "references",
    )

    def __init__(self, runtime: CompatRuntime, name: MemoryName, kind: Kind, *, fresh: bool) -> None:
        """Start without knowing anything; no I/O."""
        super().__init__()
        self.name: MemoryName = name
        self.kind: Kind = kind
        self.references: References | None = references_for(runtime, name)
        # Reentrant, because the garbage collector may run a destructor of the user's in any place.
        self.lock: threading.RLock = threading.RLock()
        self._runtime = runtime
        # Only a window with a limit can prune, so "all" is a limit, too.
        most = _OUT_OF_REACH if kind.most is None else 2 * kind.most
        self._window = MessageWindow(most, on_overflow="evict", on_unanswered="keep")
        self._process = process()
        self._version = Version(0, 0) if fresh else _UNKNOWN
        self._news: dict[Version, Sequence[Exchange]] = {}
        self._head: tuple[Message, ...] = ()
        self._regular = True  # there is nothing but exchanges of two messages
        self._total = 0
        self._loose: dict[int, Exchange] = {}  # those whose size has to be asked each time

    def handle(self, instead: str = "await anyio.to_thread.run_sync(…)") -> SyncChatMemory:
        """Return the memory's native handle, in the runtime as it is now.

        Args:
            instead: what to call on the thread of the runtime's own loop, where a blocking call can't be.

        Raises:
            RuntimeUsageError: this is that thread.
        """
        self._runtime.check_thread(instead)
        if self._process is not process():
            self._start_anew()
        history: Literal["keep", "window"] = "window" if self.kind.prunes else "keep"
        return self._runtime.sync.memory(self.name.id, self.name.namespace, self._window, history=history)

    def _start_anew(self) -> None:
        """Distrust what was known: this is a forked child."""
        with process().lock:
            if self._process is not process():
                self.lock = threading.RLock()
                self._version = _UNKNOWN
                self._news = {}
                self._process = process()

    # Reading

    def look(self, read: Callable[[], T]) -> T:
        """Bring the list up to date and read it, in one step as far as this object's other users can tell."""
        handle = self.handle()
        if self.kind.prunes:  # then the actor holds everything, and its version costs the least
            version = handle.stats().version
            with self.lock:
                if self.knows(version):
                    return read()
        view = handle.messages()
        with self.lock:
            self.adopt(view)
            return read()

    def snapshot(self) -> list[Any]:
        """Return a plain list of the exchanges as they are now."""
        return self.look(lambda: list.copy(self))

    def contents(self) -> Contents:
        """Return the exchanges and what comes before them."""
        return self.look(lambda: Contents(self._head, list.copy(self)))

    def totals(self) -> Totals:
        """Return how many exchanges there are and what they measure; costs O(1) unless values are objects."""
        head, count, amount, loose = self.look(
            lambda: (self._head, list.__len__(self), self._total, list(self._loose.values()))
        )
        amount += sum([self.kind.measure(exchange["input"], exchange["output"]) for exchange in loose])
        return Totals(head, count, amount)

    # Keeping in step; the callers hold the lock

    def knows(self, version: Version) -> bool:
        """Tell whether this is as new as `version`; that of a memory which is not there tells nothing but itself."""
        return self._version == version or (self._version > version and version.mid != 0)

    def is_at(self, version: Version) -> bool:
        """Tell whether this is as it was at `version`."""
        return self._version == version

    def adopt(self, view: Messages) -> None:
        """Become what was read, unless this is newer."""
        if self.knows(view.version):
            return
        head, turns = split_turns(view)
        known = list.copy(self)
        by_id = {exchange.id: exchange for exchange in known if exchange.id is not None}
        # Places count within one life of the memory.
        by_place = {exchange.place: exchange for exchange in known} if view.version.mid == self._version.mid else {}
        exchanges = []
        for turn in turns:
            exchange = by_place.get(turn.place)
            if exchange is None:
                read = read_turn(turn, self.references, timestamps=self.kind.timestamps)
                exchange = by_id.get(read.id, read)
                exchange.take(read)
                exchange.place = turn.place
            by_id.pop(exchange.id, None)  # once: somebody may have copied the messages
            exchanges.append(exchange)
        regular = not head and len(view) == 2 * len(turns)
        self.replace(exchanges, view.version, head, regular=regular)

    def replace(
        self, exchanges: Iterable[Exchange], version: Version, head: Iterable[Message] = (), *, regular: bool
    ) -> None:
        """Hold these exchanges and messages before them."""
        gone = list.copy(self)  # as long as this runs: what they hold may have destructors
        list.clear(self)
        self._head = tuple(head)
        self._regular = regular
        self._total = 0
        self._loose = {}
        self._append(exchanges)
        self._version = version
        self._news = {later: news for later, news in self._news.items() if later > version}
        del gone

    def _append(self, exchanges: Iterable[Exchange]) -> None:
        owner = ref(self)
        for exchange in exchanges:
            exchange.owner = owner
            exchange.size = None
            values = [exchange[key] for key in ("input", "output") if key in exchange]
            if len(values) == 2 and is_fixed(values[0]) and is_fixed(values[1]):
                exchange.size = self.kind.measure(*values)
                self._total += exchange.size
            else:
                self._loose[id(exchange)] = exchange
            list.append(self, exchange)

    def _evict(self, count: int) -> list[Exchange]:
        leaving: list[Exchange] = list.__getitem__(self, slice(max(count, 0)))
        list.__delitem__(self, slice(len(leaving)))
        for exchange in leaving:
            self._total -= exchange.size or 0
            self._loose.pop(id(exchange), None)
        return leaving

    # Appending and clearing

    def save(self, many: Sequence[Mapping[Any, Any]], instead: str = "await anyio.to_thread.run_sync(…)") -> None:
        """Append exchanges, all of them in one entry or none.

        Raises:
            InvalidMessageError: the store can't carry a value; nothing was changed.
        """
        handle = self.handle(instead)
        with holding(self.references) as hold:
            written = [write_exchange(new_id(), values, hold) for values in many]
            receipt = handle.add([message for item in written for message in (item.question, item.answer)])
        evicted = self._note(receipt, [item.exchange for item in written])
        if self.references is not None:
            self.references.drop([exchange.token for exchange in evicted])
            self._prune(self.references, handle)

    def _note(self, receipt: Receipt, exchanges: Sequence[Exchange]) -> list[Exchange]:
        """Append what was saved, once all that came before it is here; return what left the store."""
        evicted: list[Exchange] = []
        with self.lock:
            version, most = receipt.version, self.kind.most
            if self.knows(version):
                return evicted
            if self._version == Version(0, 0):  # the memory has its number only now
                self._version = Version(version.mid, 0)
            self._news[version] = exchanges
            while most is None or self._regular:  # else what leaves is for the actor to say
                following = Version(self._version.mid, self._version.n + 1)
                if (news := self._news.pop(following, None)) is None:
                    break
                self._append(news)
                self._version = following
                if most is not None:
                    evicted += self._evict(list.__len__(self) - most)
            if len(self._news) > _STRAY + list.__len__(self):
                self._news = {}  # the next look reads it all
        return evicted if self.kind.prunes else []

    def _prune(self, references: References, handle: SyncChatMemory) -> None:
        """See now and then that no more is kept by reference than the log needs; somebody else may have cut it."""
        if references.wants_pruning:
            candidates = references.candidates()
            _, turns = split_turns(handle.messages(window=ALL))
            references.prune(candidates, {token_of(turn) for turn in turns})

    def wipe(self) -> None:
        """Empty the memory."""
        receipt = self.handle("await anyio.to_thread.run_sync(memory.clear)").clear()
        gone: list[Exchange] = []
        with self.lock:
            if self.is_at(receipt.version) or not self.knows(receipt.version):
                gone = list.copy(self)
                self.replace((), receipt.version, regular=True)
        if self.references is not None:
            self.references.drop([exchange.token for exchange in gone])
