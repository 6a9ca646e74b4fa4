"""Transcripts: the recorded conversations that `turnkeeper replay` plays into a store.

What a file holds is decided by its content, not by its name:

- **JSON Lines**: one conversation a line, either `{"id": ..., "messages": [...]}` or a bare list of messages. Other
  fields of the object are ignored. Blank lines are skipped. Read line by line, however long the file is.
- **One JSON array**, on one line or many, read as a whole: an array of such objects or lists is one conversation an
  element, an array of messages is one conversation.

Both may be compressed with gzip and may begin with a UTF-8 byte order mark.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeGuard

from turnkeeper.errors import InvalidMemoryIdError, InvalidMessageError, TurnkeeperError
from turnkeeper.messages import Message, encode_messages
from turnkeeper.names import memory_name
from turnkeeper.wire import decode

__all__ = [
    "Place",
    "Summary",
    "Transcript",
    "TranscriptError",
    "check_transcripts",
    "decode_json",
    "lines_of",
    "read_transcripts",
    "transcript_at",
]

_GZIP_MAGIC: Final = b"\x1f\x8b"
_UTF8_BOM: Final = b"\xef\xbb\xbf"
_JSON_SPACE: Final = b" \t\r\n"

_Unit = Literal["line", "element"]


class TranscriptError(TurnkeeperError):
    """A transcript file can't be read, or holds what is no conversation.

    Attributes:
        path: the file.
        line: the line's number from 1, or the element's where `unit` says so; None when it is the file as a whole.
        reason: what is wrong, never any message content.
        unit: what `line` counts: "line", or "element" of a JSON array.
    """

    def __init__(self, path: Path, line: int | None, reason: str, unit: _Unit = "line") -> None:
        """Describe the place and what is wrong there."""
        super().__init__(path, line, reason, unit)
        self.path = path
        self.line = line
        self.reason = reason
        self.unit: _Unit = unit

    def __str__(self) -> str:
        """Name file, line and reason."""
        return f"{self.path if self.line is None else Place(self.path, self.line, self.unit)}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Transcript:
    """One recorded conversation.

    Attributes:
        id: a valid memory id, unlike any other id read with it.
        messages: what was said, oldest first; at least one message.
    """

    id: str
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Summary:
    """What a full pass over transcript files found.

    Attributes:
        conversations: number of conversations.
        messages: number of messages in all of them.
    """

    conversations: int
    messages: int


def read_transcripts(paths: Sequence[Path]) -> Iterator[Transcript]:
    """Read the conversations of all files in order, one at a time.

    A bare list, or an object without an id, is named `<file stem>-<line>` (or `-<element>`); the stem of
    `chats.jsonl.gz` is `chats`.

    Raises:
        TranscriptError: while iterating, at the first file that can't be read (missing, damaged gzip), the first line
            that is no conversation (bad UTF-8, bad JSON, no messages, an invalid message or id), or an id's second use
            in all the files. Whatever came before it was yielded.
    """
    seen: dict[str, Place] = {}
    for path in paths:
        for place, value in _conversations(path):
            transcript = transcript_at(place, value)
            first = seen.setdefault(transcript.id, place)
            if first is not place:
                raise place.error(f"id {transcript.id!r} is already used in {first}")
            yield transcript


def check_transcripts(paths: Sequence[Path]) -> Summary:
    """Read all files once and keep nothing but the ids: what passes here can be replayed whole.

    Raises:
        TranscriptError: as `read_transcripts` does.
    """
    conversations = messages = 0
    for transcript in read_transcripts(paths):
        conversations += 1
        messages += len(transcript.messages)
    return Summary(conversations, messages)


class Place(NamedTuple):
    """Where a conversation was found: a file, and the number of the line, or of the item of its array."""

    path: Path
    number: int
    unit: _Unit

    def __str__(self) -> str:
        return f"{self.path}, {self.unit} {self.number}"

    def error(self, reason: str) -> TranscriptError:
        """Make the error of what was found here."""
        return TranscriptError(self.path, self.number, reason, self.unit)


class _Fault(NamedTuple):
    """Why something is no JSON, in words of our own: the parser's errors carry the text they failed on."""

    reason: str
    line: int = 1
    at_end: bool = False


def transcript_at(place: Place, value: object) -> Transcript:
    """Judge one decoded conversation."""
    own_id: object = f"{_stem(place.path)}-{place.number}"
    messages = value
    if isinstance(value, dict):
        own_id = value.get("id", own_id)
        if "messages" not in value:
            raise place.error("has no 'messages'")
        messages = value["messages"]
        if not isinstance(messages, list):
            raise place.error(f"'messages' is not a list: found {type(messages).__name__}")
    if not isinstance(messages, list):
        raise place.error(f"is neither an object nor a list of messages: found {type(messages).__name__}")
    if not messages:
        raise place.error("has an empty list of messages")
    try:
        # The id comes from a file and may be anything: memory_name refuses what is no str.
        name = memory_name(own_id)  # type: ignore[arg-type]
        return Transcript(name.id, encode_messages(messages))
    except (InvalidMemoryIdError, InvalidMessageError) as error:
        raise place.error(str(error)) from None


def _stem(path: Path) -> str:
    return Path(path.name.removesuffix(".gz")).stem


def _conversations(path: Path) -> Iterator[tuple[Place, object]]:
    """Find out what the file is from its first line; yield its conversations, not judged yet."""
    lines = lines_of(path)
    filled = ((number, line) for number, line in lines if line.strip())
    first = next(filled, None)
    if first is None:
        return
    number, line = first
    value, fault = decode_json(line)
    if fault is not None and fault.at_end and line.lstrip().startswith(b"["):
        # It ends in the middle of an array: one array over many lines. Only then the whole file is read at once.
        value, fault = decode_json(line + b"".join(rest for _, rest in lines))
        if fault is not None:
            raise TranscriptError(path, number - 1 + fault.line, f"{fault.reason}, read as one array")
    if fault is not None:
        raise TranscriptError(path, number, fault.reason)

    if _is_array_of_conversations(value):
        for element, conversation in enumerate(value, 1):
            yield Place(path, element, "element"), conversation
        for number, _ in filled:
            raise TranscriptError(path, number, "follows a JSON array of conversations, which has to be the whole file")
        return

    yield Place(path, number, "line"), value
    for number, line in filled:
        value, fault = decode_json(line)
        if fault is not None:
            raise TranscriptError(path, number, fault.reason)
        yield Place(path, number, "line"), value


def _is_array_of_conversations(value: object) -> TypeGuard[list[object]]:
    """Tell it from a list of messages: a message is an object and has a role."""
    return isinstance(value, list) and any(
        isinstance(item, list) or (isinstance(item, dict) and "messages" in item and "role" not in item)
        for item in value
    )


def decode_json(data: bytes) -> tuple[object, _Fault | None]:
    """Decode JSON. A fault is returned, not raised, so that no error's context leads to the text."""
    # Without the last line break, a string that isn't closed fails where it begins, not at the end.
    data = data.rstrip(_JSON_SPACE)
    try:
        return decode(data), None
    except json.JSONDecodeError as error:
        at_end = error.pos >= len(error.doc)
        return None, _Fault(f"is not valid JSON (column {error.colno})", error.lineno, at_end)
    except UnicodeDecodeError as error:
        column = error.start - data.rfind(b"\n", 0, error.start)
        return None, _Fault(f"is not valid UTF-8 (byte {column})", data.count(b"\n", 0, error.start) + 1)
    except RecursionError:
        return None, _Fault("is nested too deeply")
    except ValueError:
        return None, _Fault("is not valid JSON: holds NaN, Infinity or a number of too many digits")


def lines_of(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield all lines with their numbers, unzipped, without a byte order mark."""
    number: int | None = None
    try:
        with path.open("rb") as raw:
            number = 1
            for line in _unzipped(path, raw):
                yield number, line.removeprefix(_UTF8_BOM) if number == 1 else line
                number += 1
        return
    except EOFError:
        reason = "ends early: the gzip data is truncated"
    except (gzip.BadGzipFile, zlib.error):
        reason = "is damaged, or no gzip data"
    except OSError as error:
        reason = f"can't be read: {error.strerror or type(error).__name__}"
    raise TranscriptError(path, number, reason)


def _unzipped(path: Path, raw: BufferedReader) -> Iterable[bytes]:
    if raw.peek(len(_GZIP_MAGIC)).startswith(_GZIP_MAGIC):
        return gzip.GzipFile(fileobj=raw)
    if path.suffix == ".gz":  # also an empty one: gzip would read a download that never began as "no conversations"
        raise gzip.BadGzipFile
    return raw
