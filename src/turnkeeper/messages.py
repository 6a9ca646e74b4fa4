"""Messages: our types and plain dicts in OpenAI chat form, kept byte for byte as JSON.

A message is immutable and holds nothing but its encoded form, so nothing it hands out can change what is stored: each
access decodes afresh. Unknown fields and content parts, null content, odd Unicode: what goes in comes out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, Literal, NoReturn, cast

import msgspec

from turnkeeper.errors import InvalidMessageError
from turnkeeper.wire import Json, UnfaithfulError, decode, encode, encode_faithfully

__all__ = [
    "AssistantMessage",
    "Message",
    "MessageLike",
    "SystemMessage",
    "ToolCall",
    "ToolMessage",
    "UserMessage",
    "encode_messages",
    "known_count",
    "links_of",
    "make_lost_result",
    "make_place",
    "place_message",
    "place_of",
    "remember_count",
    "restore_message",
    "same",
    "split_place",
    "version_of",
]

_INDEX_BITS: Final = 24
"""A place packs version and index into one integer: a batch has fewer than 16 million messages."""

_NOWHERE: Final = -1
_MADE_UP: Final = -2
"""Places of what is not in a log: not yet, and never."""

_FUNCTION: Final = "function\0"
"""The old calls of functions have no ids: the function's name pairs call and result."""

_COUNTERS: Final = 4
"""Counters whose results a message keeps."""

_LOST: Final = "Error: this call has no result; it was interrupted, or its result was lost."


class ToolCall(msgspec.Struct, frozen=True):
    """One call of an assistant message.

    Args:
        id: the id that the answering tool message names.
        name: the tool's name.
        arguments: its arguments as JSON text (free text for a custom tool).
        type: "function" or "custom".
    """

    id: str
    name: str
    arguments: str = "{}"
    type: str = "function"

    def __repr__(self) -> str:
        """Show the tool, never what it is asked."""
        return f"ToolCall(id={self.id!r}, name={self.name!r}, <{len(self.arguments)} characters of arguments>)"

    def to_dict(self) -> dict[str, Any]:
        """Return the call in OpenAI chat form."""
        content = "input" if self.type == "custom" else "arguments"
        return {"id": self.id, "type": self.type, self.type: {"name": self.name, content: self.arguments}}


class Message:
    """An immutable message in OpenAI chat form.

    Two messages are equal when their fields are, whatever the order of the keys. Reading a field decodes it afresh:
    keep the value where you need it often.

    Attributes:
        role: "system", "developer", "user", "assistant", "tool" or "function".
        raw: the encoded message, JSON in UTF-8.
    """

    __slots__ = ("_count", "_counter", "_links", "_place", "raw", "role")

    role: str
    raw: bytes
    _place: int
    _links: tuple[str, ...]
    _counter: object
    _count: int

    roles: ClassVar[tuple[str, ...]] = ()

    def __setattr__(self, name: str, value: object) -> NoReturn:
        """Refuse: messages are immutable."""
        raise AttributeError(f"messages are immutable; can't set {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        """Refuse: messages are immutable."""
        raise AttributeError(f"messages are immutable; can't delete {name!r}")

    def to_dict(self) -> dict[str, Any]:
        """Return a fresh dict in OpenAI chat form with every field that was given."""
        return cast("dict[str, Any]", decode(self.raw))

    @property
    def content(self) -> Json:
        """The content as it was given: text, a list of parts, or None."""
        return cast("Json", self.to_dict().get("content"))

    @property
    def text(self) -> str:
        """The content's text: itself, or the text parts joined; empty when there is none."""
        content = self.content
        if isinstance(content, str):
            return content
        if not isinstance(content, list):
            return ""
        texts = (part.get("text") for part in content if isinstance(part, dict))
        return "".join(text for text in texts if isinstance(text, str))

    @property
    def name(self) -> str | None:
        """The name field, where it is a string."""
        name = self.to_dict().get("name")
        return name if isinstance(name, str) else None

    @property
    def id(self) -> str | None:
        """The message's own id field, else `"<version>.<index>"` once it is stored, else None."""
        own = self.to_dict().get("id")
        if isinstance(own, str):
            return own
        return None if self._place < 0 else f"{self._place >> _INDEX_BITS}.{self._place & (1 << _INDEX_BITS) - 1}"

    @property
    def synthetic(self) -> bool:
        """Whether a window made it up: the result of a call that never got one. It is in no log."""
        return self._place == _MADE_UP

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls of an assistant message, in order; empty for other messages."""
        calls = self.to_dict().get("tool_calls")
        return tuple(_tool_call(call) for call in calls) if self.role == "assistant" and calls else ()

    @property
    def tool_call_id(self) -> str | None:
        """The id of the call that a tool message answers."""
        answered = self.to_dict().get("tool_call_id")
        return answered if isinstance(answered, str) else None

    def __eq__(self, other: object) -> bool:
        """Compare the fields, not the order of the keys."""
        if not isinstance(other, Message):
            return NotImplemented
        return self.raw == other.raw or bool(self.to_dict() == other.to_dict())

    def __hash__(self) -> int:
        """Agree with `==`."""
        return hash(msgspec.json.encode(_hashable(self.to_dict()), order="deterministic"))

    def __repr__(self) -> str:
        """Show role and size, never the content."""
        return f"<{type(self).__name__} role={self.role!r} bytes={len(self.raw)}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by the encoded form."""
        return restore_message, (self.raw, self._place)


class SystemMessage(Message):
    """An instruction; `role="developer"` round-trips as such.

    Args:
        content: text or a list of content parts.
        role: "system" or "developer".
        fields: any further field, such as `name=` or `id=`.

    Raises:
        InvalidMessageError: a field holds what JSON can't carry.
    """

    __slots__ = ()
    roles: ClassVar[tuple[str, ...]] = ("system", "developer")

    def __init__(
        self, content: object = None, *, role: Literal["system", "developer"] = "system", **fields: object
    ) -> None:
        """Encode the message."""
        _init(self, {"role": role, "content": content, **fields})


class UserMessage(Message):
    """What the user said.

    Args:
        content: text or a list of content parts (text, image, audio, file, anything).
        fields: any further field, such as `name=` or `id=`.

    Raises:
        InvalidMessageError: a field holds what JSON can't carry.
    """

    __slots__ = ()
    roles: ClassVar[tuple[str, ...]] = ("user",)

    def __init__(self, content: object = None, **fields: object) -> None:
        """Encode the message."""
        _init(self, {"role": "user", "content": content, **fields})


class AssistantMessage(Message):
    """What the model said, with the tools it calls.

    Args:
        content: text, a list of content parts, or None.
        tool_calls: `ToolCall`s or dicts in OpenAI chat form, in order.
        fields: any further field, such as `refusal=` or `id=`.

    Raises:
        InvalidMessageError: a field holds what JSON can't carry, or a call has no id.
    """

    __slots__ = ()
    roles: ClassVar[tuple[str, ...]] = ("assistant",)

    def __init__(
        self,
        content: object = None,
        *,
        tool_calls: Sequence[ToolCall | Mapping[str, object]] = (),
        **fields: object,
    ) -> None:
        """Encode the message."""
        message: dict[str, object] = {"role": "assistant", "content": content, **fields}
        if tool_calls:
            message["tool_calls"] = [call.to_dict() if isinstance(call, ToolCall) else call for call in tool_calls]
        _init(self, message)


class ToolMessage(Message):
    """The result of one call.

    Args:
        content: text or a list of content parts.
        tool_call_id: the id of the call that it answers.
        fields: any further field, such as `name=`.

    Raises:
        InvalidMessageError: no `tool_call_id`, or a field holds what JSON can't carry.
    """

    __slots__ = ()
    roles: ClassVar[tuple[str, ...]] = ("tool", "function")

    def __init__(self, content: object, *, tool_call_id: str, **fields: object) -> None:
        """Encode the message."""
        _init(self, {"role": "tool", "tool_call_id": tool_call_id, "content": content, **fields})


MessageLike = Message | Mapping[str, Any]
"""What the handles take: one of our messages, or a mapping in OpenAI chat form."""

# Each role as one shared string, so that a million messages hold no copies of it, with its class.
_ROLES: Final[dict[str, tuple[str, type[Message]]]] = {
    role: (role, message_class)
    for message_class in (SystemMessage, UserMessage, AssistantMessage, ToolMessage)
    for role in message_class.roles
}
_new = object.__new__
# The slots' own setters: __setattr__ refuses everybody else.
_set_role = Message.__dict__["role"].__set__
_set_raw = Message.__dict__["raw"].__set__
_set_place = Message.__dict__["_place"].__set__
_set_links = Message.__dict__["_links"].__set__
_set_counter = Message.__dict__["_counter"].__set__
_set_count = Message.__dict__["_count"].__set__


def encode_messages(messages: Iterable[object]) -> tuple[Message, ...]:
    """Validate and encode; the result shares nothing with what was given.

    Raises:
        InvalidMessageError: the first that is no message, by its index among those given.
    """
    return tuple([_encode_message(index, message) for index, message in enumerate(messages)])


def restore_message(raw: bytes, place: int = _NOWHERE) -> Message:
    """Rebuild a message from its encoded form.

    Raises:
        ValueError: this is not an encoded message.
    """
    fields = decode(raw)
    if not isinstance(fields, dict):
        raise ValueError("not an encoded message")
    role = _check(0, fields)
    return _build(role, raw, place, _find_links(role, fields))


def place_message(message: Message, version: int, index: int) -> None:
    """Note where in the log a message stands: only for messages that nobody outside the runtime has seen yet."""
    _set_place(message, version << _INDEX_BITS | index)


def place_of(message: Message) -> int:
    """Return a number that grows along the log."""
    return message._place


def make_place(version: int, index: int) -> int:
    """Return the place of a message in the log, as `place_of` does."""
    return version << _INDEX_BITS | index


def split_place(place: int) -> tuple[int, int]:
    """Return the entry's number and the index in there."""
    return place >> _INDEX_BITS, place & (1 << _INDEX_BITS) - 1


def version_of(message: Message) -> int:
    """Return the number of the entry that a placed message belongs to."""
    return message._place >> _INDEX_BITS


def links_of(message: Message) -> tuple[str, ...]:
    """Return what pairs calls with results: an assistant message's call ids in order, or the id a result answers."""
    return message._links


class _Counts(list[tuple[object, int]]):
    """What several counters found: seldom needed, since a process has one."""


def same(one: object, other: object) -> bool:
    """Tell whether two values of the user's are the same; a comparison of theirs that fails says no."""
    try:
        return one is other or bool(one == other)
    except Exception:
        return False


def known_count(message: Message, counter: object) -> int | None:
    """Return the tokens that this counter, or an equal one, found before."""
    try:
        known = message._counter
    except AttributeError:  # the slots stay empty until somebody counts
        return None
    if isinstance(known, _Counts):
        return next((count for other, count in known if same(other, counter)), None)
    return message._count if same(known, counter) else None


def remember_count(message: Message, counter: object, count: int) -> None:
    """Keep what a counter found; those of the last few counters are kept."""
    known = getattr(message, "_counter", None)
    if isinstance(known, _Counts):
        known[:] = [*known[1 - _COUNTERS :], (counter, count)]
    elif known is not None:
        _set_counter(message, _Counts([(known, message._count), (counter, count)]))
    else:
        _set_count(message, count)
        _set_counter(message, counter)


def make_lost_result(link: str) -> Message:
    """Make up the result of a call that got none: an error, marked as `synthetic`."""
    if link.startswith(_FUNCTION):
        fields = {"role": "function", "name": link.removeprefix(_FUNCTION), "content": _LOST}
    else:
        fields = {"role": "tool", "tool_call_id": link, "content": _LOST}
    return _build(fields["role"], encode(fields), _MADE_UP, (link,))


def _encode_message(index: int, message: object) -> Message:
    if isinstance(message, dict):
        given = message
    elif isinstance(message, Message):
        return _build(message.role, message.raw, _NOWHERE, message._links)
    elif isinstance(message, Mapping):
        given = dict(message)
    else:
        raise InvalidMessageError(index, None, f"is a {type(message).__name__}, not a message or a mapping")
    try:
        raw, fields = encode_faithfully(given)
    except UnfaithfulError as error:
        raise InvalidMessageError(index, error.path or None, error.reason) from None
    role = _check(index, fields)
    return _build(role, raw, _NOWHERE, _find_links(role, fields))


def _init(self: Message, fields: dict[str, object]) -> None:
    encoded = _encode_message(0, fields)
    _set_role(self, encoded.role)
    _set_raw(self, encoded.raw)
    _set_place(self, _NOWHERE)
    _set_links(self, encoded._links)


def _build(role: str, raw: bytes, place: int, links: tuple[str, ...]) -> Message:
    role, message_class = _ROLES[role]
    message = _new(message_class)
    _set_role(message, role)
    _set_raw(message, raw)
    _set_place(message, place)
    _set_links(message, links)
    return message


def _find_links(role: str, fields: dict[str, Any]) -> tuple[str, ...]:
    """Find what pairs a checked message with others; see `links_of`."""
    if role == "tool":
        return (fields["tool_call_id"],)
    if role == "function":
        return (_FUNCTION + fields["name"],)
    if role != "assistant":
        return ()
    links = tuple([call["id"] for call in fields.get("tool_calls") or ()])
    function = fields.get("function_call")
    if isinstance(function, dict) and isinstance(function.get("name"), str):
        links += (_FUNCTION + function["name"],)
    return links


def _check(index: int, fields: dict[str, Any]) -> str:
    """Judge decoded fields; return the role."""
    role = fields.get("role")
    if not isinstance(role, str):
        if role is None:
            raise InvalidMessageError(index, "role", "is missing")
        raise InvalidMessageError(index, "role", "is no text")
    if role == "assistant":
        if (calls := fields.get("tool_calls")) is not None:
            _check_calls(index, calls)
    elif role in ToolMessage.roles:
        field = "tool_call_id" if role == "tool" else "name"
        if not isinstance(fields.get(field), str):
            raise InvalidMessageError(index, field, "is missing: a result has to say which call it answers")
    elif role not in _ROLES:
        raise InvalidMessageError(index, "role", f"is none of {', '.join(_ROLES)}")
    return role


def _check_calls(index: int, calls: object) -> None:
    if not isinstance(calls, list):
        raise InvalidMessageError(index, "tool_calls", "is not a list")
    for position, call in enumerate(calls):
        if not isinstance(call, dict):
            raise InvalidMessageError(index, f"tool_calls[{position}]", "is not a mapping")
        if not isinstance(call.get("id"), str):
            raise InvalidMessageError(index, f"tool_calls[{position}].id", "is missing")


def _tool_call(call: Mapping[str, Any]) -> ToolCall:
    kind = call.get("type")
    kind = kind if isinstance(kind, str) else "function"
    body = call.get(kind)
    body = body if isinstance(body, dict) else {}
    name, arguments = body.get("name"), body.get("input" if kind == "custom" else "arguments")
    return ToolCall(
        id=str(call.get("id", "")),
        name=name if isinstance(name, str) else "",
        arguments=arguments if isinstance(arguments, str) else "" if arguments is None else encode(arguments).decode(),
        type=kind,
    )


def _hashable(value: Any) -> Any:
    """Make equal numbers of different types hash alike, as `==` has it: 1, 1.0 and True."""
    if isinstance(value, dict):
        return {_escaped(key): _hashable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_hashable(item) for item in value]
    if isinstance(value, (bool, int, float)):
        return hash(value)
    return _escaped(value) if isinstance(value, str) else value


def _escaped(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
