r"""The lines of our export format, version 1: JSON Lines that can be proven whole, memory by memory. Pure.

    {"turnkeeper":"export","version":1,…}                                   the header
    {"memory":{…},"entries":[…],"count":2,"digest":"…"}                     a memory
    {"memory":{…},"entries":[…]}                                            a large one begins,
    {"entries":[…]}                                                         goes on,
    {"entries":[…],"count":3000,"digest":"…"}                               and ends
    {"abandoned":true}                                                      what began before does not count
    {"memories":2,"entries":3002,"digest":"…"}                              the end

A memory's digest is the SHA-256 of its lines up to the digest's own comma; that of the end covers the whole file before
it. An entry is the payload as it is stored, with `op` and `at` before it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from turnkeeper.log import Head, StoredEntry
from turnkeeper.names import MemoryName
from turnkeeper.wire import decode, encode

__all__ = [
    "ABANDONED",
    "FORMAT_VERSION",
    "Ending",
    "Finale",
    "LineWriter",
    "begins_memory",
    "describe_memory",
    "encode_entry",
    "encode_header",
    "ending_of",
    "entries_in",
    "finale_line",
    "finale_of",
    "goes_on",
    "header_of",
    "memory_in",
    "one_line",
]

FORMAT_VERSION: Final = 1

LINE_ENTRIES: Final = 1000
LINE_BYTES: Final = 2**20
"""A line is ended behind so much: who reads holds one line, and one entry at least."""

ABANDONED: Final = b'{"abandoned":true}\n'

_KIND: Final = "export"
_MEMORY: Final = b'{"memory":'
_ENTRIES: Final = b'{"entries":['
_ENDING: Final = re.compile(rb',"count":(\d{1,18}),"digest":"([0-9a-f]{64})"\}\n?$')
_FINALE: Final = re.compile(rb'^\{"memories":(\d{1,18}),"entries":(\d{1,18}),"digest":"([0-9a-f]{64})"\}\n?$')
_LONGEST_ENDING: Final = 120


class Ending(NamedTuple):
    """What the last line of a memory says, and how much of that line the digest covers."""

    entries: int
    digest: str
    covered: int


class Finale(NamedTuple):
    """What the last line of an export says."""

    memories: int
    entries: int
    digest: str


def one_line(data: bytes) -> bytes:
    """Return JSON as it is, if it stands on one line, else anew."""
    return encode(decode(data)) if b"\n" in data or b"\r" in data else data


def encode_header(fields: Mapping[str, Any]) -> bytes:
    """Return the first line."""
    return encode({"turnkeeper": _KIND, "version": FORMAT_VERSION, **fields}) + b"\n"


def header_of(line: bytes) -> dict[str, Any] | None:
    """Return what a first line says if it is an export's, of whatever version."""
    try:
        header = decode(line)
    except (ValueError, RecursionError):
        return None
    return header if isinstance(header, dict) and header.get("turnkeeper") == _KIND else None


def describe_memory(name: MemoryName, head: Head, pruned: int) -> bytes:
    """Return the JSON of what a memory is besides its log. Metadata stay as they are."""
    fields: dict[str, Any] = {
        "id": name.id,
        "namespace": name.namespace,
        "version": head.version,
        "created_at": head.created_at,
        "updated_at": head.updated_at,
    }
    if head.expires_at:
        fields["expires_at"] = head.expires_at
    if pruned:
        fields["pruned"] = pruned
    described = encode(fields)
    return described if head.meta is None else described[:-1] + b',"meta":' + one_line(head.meta) + b"}"


def encode_entry(op: str, at: int, payload: bytes) -> bytes:
    """Return the JSON of an entry, whose payload can be decoded."""
    payload = one_line(payload).strip()
    head = encode({"op": op, "at": at})
    return head[:-1] + b"," + payload[1:]


class LineWriter:
    """Makes the lines of one memory, of entries that come one after the other.

    Attributes:
        count: entries so far.
    """

    def __init__(self, memory: bytes) -> None:
        self.count: int = 0
        self._digest = hashlib.sha256()
        self._parts = [_MEMORY + memory + b',"entries":[']
        self._size = self._held = 0

    def add(self, entry: bytes) -> bytes:
        """Take an entry; return a line if one is full."""
        line = b""
        if self._held and (self._held == LINE_ENTRIES or self._size + len(entry) > LINE_BYTES):
            line = self._join() + b"]}\n"
            self._digest.update(line)
            self._parts, self._size, self._held = [_ENTRIES], 0, 0
        if self._held:
            self._parts.append(b",")
        self._parts.append(entry)
        self._size += len(entry)
        self._held += 1
        self.count += 1
        return line

    def end(self) -> bytes:
        """Return the last line."""
        line = self._join() + b'],"count":%d' % self.count
        self._digest.update(line)
        return line + b',"digest":"%b"}\n' % self._digest.hexdigest().encode()

    def _join(self) -> bytes:
        return b"".join(self._parts)


def begins_memory(line: bytes) -> bool:
    """Tell whether a line is a memory's first one."""
    return line.startswith(_MEMORY)


def goes_on(line: bytes) -> bool:
    """Tell whether a line belongs to a memory that began before."""
    return line.startswith(_ENTRIES)


def ending_of(line: bytes) -> Ending | None:
    """Return what is said behind a memory's last entry; None: the line is not the last one."""
    found = _ENDING.search(line, max(0, len(line) - _LONGEST_ENDING))
    if found is None:
        return None
    covered = found.start() + len(b',"count":') + len(found[1])
    return Ending(int(found[1]), found[2].decode(), covered)


def finale_line(memories: int, entries: int, digest: str) -> bytes:
    """Return the last line of an export."""
    return b'{"memories":%d,"entries":%d,"digest":"%b"}\n' % (memories, entries, digest.encode())


def finale_of(line: bytes) -> Finale | None:
    """Return what the last line of an export says; None: it is another line."""
    found = _FINALE.match(line) if len(line) < _LONGEST_ENDING + 60 else None
    return None if found is None else Finale(int(found[1]), int(found[2]), found[3].decode())


class _Line(msgspec.Struct):
    entries: list[msgspec.Raw]
    memory: msgspec.Raw | None = None


_decode_line = msgspec.json.Decoder(_Line).decode


def entries_in(line: bytes, before: int) -> list[StoredEntry]:
    """Return the entries of a line, the first one numbered `before + 1`; not judged yet.

    Raises:
        ValueError: they are no entries.
    """
    try:
        raws = [bytes(raw) for raw in _decode_line(line).entries]
    except msgspec.DecodeError:  # also where there are lone surrogates
        fields = decode(line)
        if not isinstance(fields, dict) or not isinstance(fields.get("entries"), list):
            raise ValueError("no entries") from None
        raws = [encode(entry) for entry in fields["entries"]]
    return [_stored(number, raw) for number, raw in enumerate(raws, before + 1)]


class _Named(msgspec.Struct):
    op: str
    at: int = 0


_decode_named = msgspec.json.Decoder(_Named).decode


def _stored(number: int, raw: bytes) -> StoredEntry:
    try:
        named = _decode_named(raw)
    except msgspec.DecodeError:
        fields = decode(raw)
        if not isinstance(fields, dict):
            raise ValueError("no entry") from None
        named = msgspec.convert({name: fields[name] for name in ("op", "at") if name in fields}, _Named)
    return StoredEntry(number, named.op, b"", raw, named.at)


def memory_in(line: bytes) -> tuple[dict[str, Any], bytes | None]:
    """Return what a memory's first line says about it, and its metadata as they were stored.

    Raises:
        ValueError: it says nothing.
    """
    try:
        raw = _decode_line(line).memory
        fields = decode(bytes(raw)) if raw is not None else None
        meta = _decode_meta(bytes(raw)).meta if raw is not None else None
        data = None if meta is None else bytes(meta)
    except msgspec.DecodeError:
        whole = decode(line)
        fields = whole.get("memory") if isinstance(whole, dict) else None
        data = encode(fields["meta"]) if isinstance(fields, dict) and "meta" in fields else None
    if not isinstance(fields, dict):
        raise ValueError("no memory")
    return fields, data


class _Meta(msgspec.Struct):
    meta: msgspec.Raw | None = None


_decode_meta = msgspec.json.Decoder(_Meta).decode
