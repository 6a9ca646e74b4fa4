"""A store around any other one, in which what was said, and metadata, lie encrypted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from turnkeeper.errors import DecryptionError, InvalidArgumentError, StoreError
from turnkeeper.log import (
    Entry,
    Head,
    Loaded,
    LoadQuery,
    NewMeta,
    Outcome,
    Slice,
    StoredEntry,
    StoredReceipt,
    encode_payload,
)
from turnkeeper.names import MemoryName
from turnkeeper.sealed import refused, sealed_of, shown_of, shown_of_meta
from turnkeeper.stores.base import Changes, Cursor, Found, KeptReceipt, Listed, Reseal, SearchQuery, Store, Transfer
from turnkeeper.stores.encrypted_names import NamesOfRows
from turnkeeper.stores.encrypted_rotation import RotationCursor, RotationStep, find_stale
from turnkeeper.stores.keyring import Keyring
from turnkeeper.stores.sealing import Sealer, entry_place, meta_place

__all__ = ["EncryptedStore"]

_STEP: Final = 200
"""Entries that a step of a rotation looks at."""


class EncryptedStore(Store):
    """Seals each entry and each memory's metadata with AES-256-GCM on the way into a store; see docs/encryption.md.

    What does not open is handed on as it lies there: its memory alone fails, with `DecryptionError`, and nothing of it
    is changed. It can still be deleted, and expires.

    Args:
        inner: the store that keeps what is sealed; nothing else may use this object.
        keys: those that open, and the one that seals.
        allow_plain: read also what was written before there was a key. Otherwise it is refused: whoever can write to
            the store could put plain content in the place of what is sealed.

    Attributes:
        inner: the store that keeps what is sealed.
        shared: as the inner one.
        announces: as the inner one.

    Raises:
        InvalidArgumentError: one of the arguments is of another type, or `inner` is encrypted already.
    """

    def __init__(self, inner: Store, keys: Keyring, *, allow_plain: bool = False) -> None:
        """Set up the ciphers; nothing is opened yet."""
        if not isinstance(inner, Store) or isinstance(inner, EncryptedStore):
            raise InvalidArgumentError("an encrypted store is put around a Store that is not encrypted")
        if not isinstance(keys, Keyring):
            raise InvalidArgumentError(f"keys are a Keyring, not a {type(keys).__name__}")
        self.inner: Store = inner
        self.shared: bool = inner.shared
        self.announces: bool = inner.announces
        self._sealer = Sealer(keys)
        self._allow_plain = allow_plain
        self._names = NamesOfRows(inner)

    @property
    def inline(self) -> bool:  # type: ignore[override]  # settled for each object here, not for the class
        """Whether calls need no thread: as the inner store."""
        return self.inner.inline

    def describe(self) -> str:
        """Name the inner store."""
        return f"{self.inner.describe()} (encrypted)"

    def open(self, *, durability: str) -> None:
        """Open the inner store."""
        self.inner.open(durability=durability)
        self.shared, self.announces = self.inner.shared, self.inner.announces

    def close(self) -> None:
        """Close the inner store."""
        self.inner.close()

    # Writing

    def commit(self, slices: Sequence[Slice], *, receipt_ttl: float) -> list[Outcome]:
        """Seal what the slices hold, and commit them.

        Raises:
            DecryptionError: an entry is sealed already.
        """
        return self.inner.commit([self._seal_slice(slice_) for slice_ in slices], receipt_ttl=receipt_ttl)

    def _seal_slice(self, slice_: Slice) -> Slice:
        if not slice_.entries and slice_.meta is None:
            return slice_
        entries = enumerate(slice_.entries, start=slice_.expected + 1)
        sealed = tuple([self._seal_entry(slice_.name, n, entry) for n, entry in entries])
        meta = slice_.meta
        if meta is not None:
            meta = NewMeta(meta.expected, self._seal_meta(slice_.name, meta.expected + 1, meta.data))
        return replace(slice_, entries=sealed, meta=meta)

    def _seal_entry(self, name: MemoryName, version: int, entry: Entry) -> Entry:
        content = encode_payload(entry)
        if entry.sealed and (found := sealed_of(content)) is not None:
            raise DecryptionError(name.id, name.namespace, version, found.key_id)
        place = entry_place(name, version, entry.op, entry.entry_id)
        return replace(entry, sealed=self._sealer.seal(place, shown_of(entry), content))

    def _seal_meta(self, name: MemoryName, revision: int, data: bytes) -> bytes:
        return self._sealer.seal(meta_place(name, revision), shown_of_meta(data), data)

    def adopt(self, transfers: Sequence[Transfer]) -> list[Outcome]:
        """Seal what comes from another store, plain or sealed for the same place with one of the keys, and take it in.

        Raises:
            DecryptionError: something is sealed and does not open.
        """
        return self.inner.adopt([self._seal_transfer(transfer) for transfer in transfers])

    def _seal_transfer(self, transfer: Transfer) -> Transfer:
        name, head = transfer.name, transfer.head
        entries = []
        for entry in transfer.entries:
            if sealed_of(entry.payload) is not None:
                content = self._sealer.open_entry(name, entry)
                entry = entry if content is None else replace(entry, payload=content)
            if (found := sealed_of(entry.payload)) is not None:
                raise DecryptionError(name.id, name.namespace, entry.version, found.key_id)
            place = entry_place(name, entry.version, entry.op, entry.entry_id)
            entries.append(replace(entry, payload=self._sealer.seal(place, shown_of(entry), entry.payload)))
        if head.meta is not None:
            head = head if sealed_of(head.meta) is None else self._open_head(name, head)
            assert head.meta is not None
            if (found := sealed_of(head.meta)) is not None:
                raise DecryptionError(name.id, name.namespace, 0, found.key_id)
            head = replace(head, meta=self._seal_meta(name, head.meta_version, head.meta))
        return replace(transfer, entries=tuple(entries), head=head)

    def reseal(self, changes: Sequence[Reseal]) -> list[bool]:
        """Let the inner store put sealed payloads into the place of others."""
        return self.inner.reseal(changes)

    def scrub(self) -> str | None:
        """Scrub the inner store."""
        return self.inner.scrub()

    # Reading

    def settle(self, slices: Sequence[Slice]) -> list[Outcome | None]:
        """Ask the inner store, and compare metadata here: sealed twice, the same ones are different bytes."""
        found = self.inner.settle(slices)  # entries are known by their ids
        doubtful = [place for place, slice_ in enumerate(slices) if not slice_.entries and slice_.meta is not None]
        doubtful = [place for place in doubtful if found[place] is None]
        if not doubtful:
            return found
        # After the inner store's answer nothing lands any more, so what is read now is final.
        rows = self.inner.load([LoadQuery(slices[place].name, newest=1) for place in doubtful])
        as_stored = list(slices)
        for place, row in zip(doubtful, rows, strict=True):
            slice_ = slices[place]
            if slice_.meta is not None and row.head is not None and row.head.meta is not None:
                opened = self._open_head(slice_.name, row.head)
                if (opened.meta_version, opened.meta) == (slice_.meta.expected + 1, slice_.meta.data):
                    as_stored[place] = replace(slice_, meta=NewMeta(slice_.meta.expected, row.head.meta))
        return self.inner.settle(as_stored)

    def load(self, queries: Sequence[LoadQuery]) -> list[Loaded]:
        """Read memories, and open what opens."""
        loads = self.inner.load(queries)
        return [self._open_loaded(query.name, loaded) for query, loaded in zip(queries, loads, strict=True)]

    def _open_loaded(self, name: MemoryName, loaded: Loaded) -> Loaded:
        if loaded.head is None:
            return loaded
        self._names.note(loaded.head.mid, name)
        return replace(
            loaded,
            head=self._open_head(name, loaded.head),
            entries=tuple([self._open_entry(name, entry) for entry in loaded.entries]),
            system=None if loaded.system is None else self._open_entry(name, loaded.system),
            start=None if loaded.start is None else self._open_entry(name, loaded.start),
        )

    def _open_entry(self, name: MemoryName, entry: StoredEntry) -> StoredEntry:
        content = self._sealer.open_entry(name, entry)
        if content is None:
            if self._allow_plain or sealed_of(entry.payload) is not None:
                return entry
            content = refused(shown_of(entry))
        return StoredEntry(entry.version, entry.op, entry.entry_id, content, entry.at)

    def _open_head(self, name: MemoryName, head: Head) -> Head:
        if head.meta is None:
            return head
        sealed = sealed_of(head.meta)
        if sealed is None:
            return head if self._allow_plain else replace(head, meta=refused(shown_of_meta(head.meta)))
        content = self._sealer.open(meta_place(name, head.meta_version), sealed)
        return head if content is None else replace(head, meta=content)

    def names(
        self,
        *,
        namespace: str | None,
        after: MemoryName | None,
        limit: int,
        prefix: str = "",
        updated_after: int = 0,
    ) -> list[Listed]:
        """List memories, and open their metadata."""
        listed = self.inner.names(
            namespace=namespace, after=after, limit=limit, prefix=prefix, updated_after=updated_after
        )
        for each in listed:
            self._names.note(each.head.mid, each.name)
        return [Listed(each.name, self._open_head(each.name, each.head)) for each in listed]

    def entries(self, mid: int, *, after: int, limit: int, before: int = 0, newest: bool = False) -> list[StoredEntry]:
        """Read a memory's log, and open what opens."""
        found = self.inner.entries(mid, after=after, limit=limit, before=before, newest=newest)
        name = self._names.name_of(mid) if found else None
        # A row that is gone by now has no name: nothing of it opens any more.
        return found if name is None else [self._open_entry(name, entry) for entry in found]

    def search(self, query: SearchQuery) -> list[Found]:
        """Refuse: nothing that the inner store could search is there in plain."""
        raise StoreError(f"{self.describe()} can't search: what was said is sealed, and an index of it would not be")

    def receipts(self, names_and_keys: Sequence[tuple[MemoryName, str]]) -> list[StoredReceipt | None]:
        """Ask the inner store."""
        return self.inner.receipts(names_and_keys)

    def receipts_of(self, name: MemoryName, *, after: str, limit: int) -> list[KeptReceipt]:
        """Ask the inner store."""
        return self.inner.receipts_of(name, after=after, limit=limit)

    def expired(self, limit: int) -> list[MemoryName]:
        """Ask the inner store."""
        return self.inner.expired(limit)

    def changes(self, after: Cursor | None, limit: int) -> Changes:
        """Ask the inner store."""
        return self.inner.changes(after, limit)

    def announce(self) -> None:
        """Let the inner store announce."""
        self.inner.announce()

    def listen(self, timeout: float) -> bool:
        """Let the inner store listen."""
        return self.inner.listen(timeout)

    def first_row(self) -> int:
        """Ask the inner store."""
        return self.inner.first_row()

    def now(self) -> int:
        """Ask the inner store."""
        return self.inner.now()

    # Rotation

    @property
    def active(self) -> str:
        """The id of the key that seals."""
        return self._sealer.active

    def stale(self, after: RotationCursor | None = None, *, limit: int = _STEP) -> RotationStep:
        """Look for what another key than the active one sealed, or none; a bounded step, from the reading thread.

        Args:
            after: the last step's cursor; None: from the beginning.
            limit: look at about so many entries.

        Returns:
            What `reseal` is to write, and where to go on.
        """
        return find_stale(self.inner, self._sealer, after, limit=limit, allow_plain=self._allow_plain)
