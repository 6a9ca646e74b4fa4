"""What an import reads: conversations of other programs, a line each, or an export of ours."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from turnkeeper.cli.export_format import header_of
from turnkeeper.cli.export_reading import EndsEarlyError, Exported, read_memories, refuse_newer
from turnkeeper.cli.transcripts import Place, Transcript, TranscriptError, decode_json, lines_of, transcript_at
from turnkeeper.compat.langchain4j.serialization import messages_from_json, messages_from_values
from turnkeeper.errors import InvalidArgumentError
from turnkeeper.messages import Message, encode_messages

__all__ = ["FORMATS", "Item", "Source"]

_Read: TypeAlias = Callable[[object], Sequence[Message]]


def _openai(messages: object) -> Sequence[Message]:
    return encode_messages(_list(messages))


def _langchain4j(messages: object) -> Sequence[Message]:
    """Read what `ChatMessageSerializer` wrote: the array, or its text, as a store's column may hold it."""
    return messages_from_json(messages) if isinstance(messages, str) else messages_from_values(_list(messages))


FORMATS: Final[dict[str, _Read]] = {"openai": _openai, "langchain4j": _langchain4j}
"""By name, what makes messages of a conversation's decoded `messages`, or raises `InvalidArgumentError`."""


def _list(messages: object) -> list[object]:
    if not isinstance(messages, list):
        raise InvalidArgumentError(f"'messages' is not a list: found {type(messages).__name__}")
    return messages


class Item(NamedTuple):
    """A conversation of the input, or why there is none, and how many bytes of input it is."""

    place: str
    found: Transcript | Exported | str
    size: int


@dataclass(slots=True)
class Source:
    """The input, one conversation at a time.

    Attributes:
        path: the file.
        read: makes messages of what a conversation's `messages` hold.
        id_field: where its id is.
        memory_id: the id of the one conversation that the file is; None: it is JSON Lines.
        only_transcripts: an option that was given, and means nothing for an export of ours.
        exported: whether the file turned out to be one.
        ignored: names of other fields that were seen.
    """

    path: Path
    read: _Read
    id_field: str
    memory_id: str | None
    only_transcripts: str | None = None
    exported: bool = False
    ignored: set[str] = field(default_factory=set)

    def items(self) -> Generator[Item, None, None]:
        """Yield what the lines hold.

        Raises:
            TranscriptError: while iterating: the file can't be read, or not any further.
        """
        if self.memory_id is not None:
            data = b"".join(line for _, line in lines_of(self.path))
            yield Item(str(self.path), self._found(data, Place(self.path, 1, "line")), len(data))
            return
        lines = lines_of(self.path)
        filled = ((number, line) for number, line in lines if line.strip())
        first = next(filled, None)
        if first is None:
            return
        if first[1].lstrip().startswith(b"{") and (header := header_of(first[1])) is not None:
            yield from self._export(header, first, lines)
            return
        for count, (number, line) in enumerate(chain([first], filled)):
            place = Place(self.path, number, "line")
            found = self._found(line, place)
            if count == 0 and not isinstance(found, Transcript) and line.lstrip().startswith(b"["):
                raise place.error(f"{found}; a file that is one array of messages needs --id")
            yield Item(str(place), found, len(line))

    def _export(
        self, header: dict[str, Any], first: tuple[int, bytes], others: Iterator[tuple[int, bytes]]
    ) -> Iterator[Item]:
        """Yield the memories of an export, each proven whole."""
        place = Place(self.path, first[0], "line")
        if (reason := refuse_newer(header)) is not None:
            raise place.error(reason)
        if self.only_transcripts is not None:
            raise place.error(
                f"is an export of turnkeeper, for which {self.only_transcripts} means nothing: leave it out"
            )
        self.exported = True
        try:
            for memory in read_memories(chain([first], others)):
                found = str(Place(self.path, memory.line, "line"))
                yield Item(found, memory.problem or memory, memory.size)
        except EndsEarlyError as error:
            raise Place(self.path, error.line, "line").error(error.reason) from None
        except OSError as error:
            raise TranscriptError(self.path, None, f"can't be kept aside: {error.strerror}") from None

    def _found(self, data: bytes, place: Place) -> Transcript | str:
        value, fault = decode_json(data)
        if fault is not None:
            return fault.reason
        try:
            return self._conversation(value, place)
        except TranscriptError as error:
            return error.reason
        except InvalidArgumentError as error:
            return str(error)

    def _conversation(self, value: object, place: Place) -> Transcript:
        own_id: object = self.memory_id
        if not isinstance(value, dict):
            if self.memory_id is None:
                raise place.error(f"is no object with 'id' and 'messages': found {type(value).__name__}")
            value = {"messages": value}
        elif self.memory_id is None:
            if self.id_field not in value:
                raise place.error(f"has no {self.id_field!r}")
            own_id = value[self.id_field]
        if "messages" not in value:
            raise place.error("has no 'messages'")
        self.ignored |= value.keys() - {"messages", self.id_field}
        return transcript_at(place, {"id": own_id, "messages": list(self.read(value["messages"]))})
