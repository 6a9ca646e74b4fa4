"""The JSON of LangChain4j's `ChatMessageSerializer`, to and from our messages.

Text that it wrote is read, and text that `ChatMessageDeserializer` accepts is written. Nothing is lost either way:

- What LangChain4j has and OpenAI's chat form lacks goes into the unknown field `langchain4j` of the message, part or
  call that it belongs to.
- What our messages hold and LangChain4j has no place for goes into `attributes`, under the one key `turnkeeper`: the
  changes that make the message of its plain reading. Where they don't fit any more, since a Java program changed the
  message, its own content counts, and the key stays an attribute like any other.
- System messages have no attributes: what `SYSTEM` can't say is refused by name.

Source: langchain4j-core 1.18.0, package `dev.langchain4j.data.message`: `JacksonChatMessageJsonCodec` and its mixins,
the message and content classes, `ChatMessageSerializerTest`; pull request 6465 of September 2026 leaves what is written
and refused as it was. The discriminator is `type`; null is left out, in `USER` also what is empty; unknown properties
are refused. Older forms are read too: `text` in `USER` (before there were contents) and in `TOOL_EXECUTION_RESULT`
(before 1.13).
"""

from __future__ import annotations

import contextlib
import json
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from turnkeeper.compat.langchain4j.json_changes import change_of, changed
from turnkeeper.compat.langchain4j.json_checks import JAVA_BLANK, checked_message
from turnkeeper.compat.langchain4j.json_contents import contents_of, parts_of, picked, plain_text
from turnkeeper.compat.langchain4j.json_terms import MADE_UP, OURS, THEIRS, Fields, Unfit
from turnkeeper.errors import InvalidArgumentError, InvalidMessageError
from turnkeeper.messages import Message, MessageLike, encode_messages
from turnkeeper.wire import decode, encode

__all__ = [
    "UnsupportedByFormatError",
    "message_from_json",
    "message_to_json",
    "messages_from_json",
    "messages_from_values",
    "messages_to_json",
    "messages_to_values",
]


__all__ = [
    "UnsupportedByFormatError",
    "message_from_json",
    "message_to_json",
    "messages_from_json",
    "messages_from_values",
    "messages_to_json",
    "messages_to_values",
]


class UnsupportedByFormatError(InvalidMessageError):
    """A message holds what the format has no place for; nothing was written."""


def messages_from_json(text: str | bytes | None) -> list[Message]:
    """Read what `ChatMessageSerializer.messagesToJson` wrote; None, as there, is no message.

    A request or result without an id gets one that is made of the tool's name, so that they pair.

    Raises:
        InvalidArgumentError: this is no JSON, or no array.
        InvalidMessageError: an element is no message, by its index; unknown properties are refused, as in Java.
    """
    values = None if text is None else _parse(text)
    if values is None:
        return []
    if not isinstance(values, list):
        raise InvalidArgumentError(f"LangChain4j's messages are a JSON array, not {type(values).__name__}")
    return messages_from_values(values)


def message_from_json(text: str | bytes) -> Message:
    """Read what `ChatMessageSerializer.messageToJson` wrote.

    Raises:
        InvalidArgumentError: this is no JSON.
        InvalidMessageError: it is no message.
    """
    return messages_from_values([_parse(text)])[0]


def messages_from_values(values: Iterable[object]) -> list[Message]:
    """Read messages whose JSON is decoded already; otherwise as `messages_from_json`."""
    read = [_guarded(index, InvalidMessageError, _read, value) for index, value in enumerate(values)]
    _pair_without_ids(read)
    return list(encode_messages(read))


def messages_to_json(messages: Iterable[MessageLike]) -> str:
    """Write what `ChatMessageDeserializer.messagesFromJson` reads.

    Raises:
        InvalidMessageError: one is no message.
        UnsupportedByFormatError: LangChain4j has no place for a field of a message: the first one, by index and name.
    """
    return encode(messages_to_values(messages)).decode()


def message_to_json(message: MessageLike) -> str:
    """Write what `ChatMessageDeserializer.messageFromJson` reads; raises as `messages_to_json`."""
    return encode(messages_to_values([message])[0]).decode()


def messages_to_values(messages: Iterable[MessageLike]) -> list[dict[str, Any]]:
    """Return what `messages_to_json` encodes; raises as that."""
    return [
        _guarded(index, UnsupportedByFormatError, _write, message.to_dict())
        for index, message in enumerate(encode_messages(messages))
    ]


def _guarded(index: int, kind: type[InvalidMessageError], function: Callable[[Any], Fields], value: object) -> Fields:
    # Raised outside the handlers: a chained error would lead to the values, and with them to what was said.
    try:
        return function(value)
    except Unfit as unfit:
        found = unfit.field, unfit.reason
    except RecursionError:
        found = None, "is nested too deeply"
    raise kind(index, *found)


def _parse(text: str | bytes) -> Any:
    place = ""
    try:
        # A lone surrogate can only stand in a string, where its escape means the same.
        return decode(text.encode("utf-8", "backslashreplace") if isinstance(text, str) else text)
    except json.JSONDecodeError as error:
        place = f" (line {error.lineno}, column {error.colno})"
    except (ValueError, RecursionError):
        pass
    raise InvalidArgumentError(f"this is not valid JSON{place}")


def _read(value: object) -> Fields:
    theirs = checked_message(value)
    attributes = theirs.get("attributes", {})
    if isinstance(attributes.get(OURS), dict):
        others = {key: item for key, item in attributes.items() if key != OURS}
        with contextlib.suppress(Unfit, LookupError, TypeError, ValueError, AttributeError):
            ours: Fields = changed(_to_ours({**theirs, "attributes": others}), attributes[OURS])
            if _write(ours) == theirs:
                encode_messages([ours])
                return ours
    return _to_ours(theirs)


def _pair_without_ids(messages: Iterable[Fields]) -> None:
    """Give calls of one tool in one message, and their results in order, ids of their own where all have none."""
    waiting: dict[str, deque[str]] = {}
    for message in messages:
        calls = message.get("tool_calls") or () if message["role"] == "assistant" else ()
        if calls:
            waiting = {}
        for call in calls:
            if _without_id(call):
                same = waiting.setdefault(call["id"], deque())
                same.append(call["id"] if not same else f"{call['id']}:{len(same) + 1}")
                call["id"] = same[-1]
        if message["role"] == "tool" and "id" in _own(message) and (open_ids := waiting.get(message["tool_call_id"])):
            message["tool_call_id"] = open_ids.popleft()


def _to_ours(theirs: Fields) -> Fields:
    kind, own = theirs["type"], {}
    attributes = theirs.get("attributes")
    if kind == "SYSTEM":
        return {"role": "system", "content": theirs["text"]}
    if kind == "USER":
        ours: Fields = {"role": "user", "content": parts_of(theirs["contents"])}
        if "name" in theirs:
            ours["name"] = theirs["name"]
    elif kind == "AI":
        ours = {"role": "assistant", "content": theirs.get("text")}
        if "thinking" in theirs:
            ours["reasoning_content"] = theirs["thinking"]
        if theirs["toolExecutionRequests"]:
            ours["tool_calls"] = [_call_of(request) for request in theirs["toolExecutionRequests"]]
    elif kind == "CUSTOM":
        ours, own = {"role": "assistant", "content": None}, {"type": kind, "attributes": attributes}
    else:
        name = {"name": theirs["toolName"]} if "toolName" in theirs else {}
        call_id = theirs["id"] if "id" in theirs else MADE_UP + name.get("name", "")
        ours = {"role": "tool", "tool_call_id": call_id, **name, "content": parts_of(theirs["contents"])}
        own = {**({} if "id" in theirs else {"id": None}), **picked(theirs, "isError")}
    if attributes:
        own["attributes"] = attributes
    return {**ours, THEIRS: own} if own else ours


def _to_theirs(ours: Fields) -> Fields:
    """Return what LangChain4j's form can say of a message that is no system message."""
    role, own, content = ours["role"], _own(ours), ours.get("content")
    attributes = own.get("attributes", {})
    if own.get("type") == "CUSTOM":
        return {"attributes": attributes, "type": "CUSTOM"}
    if role == "user":
        named = {"name": ours["name"]} if isinstance(ours.get("name"), str) and ours["name"] else {}
        given = {"attributes": attributes} if attributes else {}
        return {**named, "contents": contents_of(content), **given, "type": "USER"}
    if role == "assistant":
        texts = {"text": text} if (text := plain_text(content)) is not None else {}
        if isinstance(ours.get("reasoning_content"), str):
            texts["thinking"] = ours["reasoning_content"]
        return {**texts, "toolExecutionRequests": _requests_of(ours), "attributes": attributes, "type": "AI"}
    answered = {"id": ours["tool_call_id"]} if role == "tool" and "id" not in own else {}
    return {
        **answered,
        **({"toolName": ours["name"]} if isinstance(ours.get("name"), str) else {}),
        "contents": contents_of(content),
        **picked(own, "isError"),
        "attributes": attributes,
        "type": "TOOL_EXECUTION_RESULT",
    }


def _own(ours: Fields) -> Fields:
    """Return the message's field `langchain4j` where it is one that reading makes."""
    own = ours.get(THEIRS)
    if not isinstance(own, dict):
        return {}
    role, known = ours["role"], {"attributes"}
    if role == "tool":
        known |= {"id", "isError"}
    elif role == "assistant" and own.get("type") == "CUSTOM":
        known.add("type")
    elif role not in ("user", "assistant"):
        return {}
    fits = (
        own.keys() <= known
        and isinstance(own.get("attributes", {}), dict)
        and own.get("id") is None
        and isinstance(own.get("isError", False), bool)
    )
    return own if fits else {}


def _call_of(request: Fields) -> Fields:
    function = picked(request, "name", "arguments")
    if "id" in request:
        return {"id": request["id"], "type": "function", "function": function}
    made_up = MADE_UP + request.get("name", "")
    return {"id": made_up, "type": "function", "function": function, THEIRS: {"id": None}}


def _requests_of(ours: Fields) -> list[Fields]:
    requests = []
    for call in ours.get("tool_calls") or ():
        body = call.get("custom" if call.get("type") == "custom" else "function")
        request = {} if _without_id(call) else {"id": call["id"]}
        requests.append(request | _request_of(body, "input" if call.get("type") == "custom" else "arguments"))
    if isinstance(ours.get("function_call"), dict):
        requests.append(_request_of(ours["function_call"], "arguments"))
    return requests


def _request_of(body: object, arguments: str) -> Fields:
    found = {"name": body.get("name"), "arguments": body.get(arguments)} if isinstance(body, dict) else {}
    return {key: item for key, item in found.items() if isinstance(item, str)}


def _without_id(call: Fields) -> bool:
    return call.get(THEIRS) == {"id": None}


def _write(ours: Fields) -> Fields:
    if ours["role"] in ("system", "developer"):
        return _written_system(ours)
    theirs = _to_theirs(ours)
    attributes = theirs.get("attributes", {})
    change = change_of(_with_ids(_to_ours(theirs), ours), ours)
    if OURS in attributes and (change or _with_ids(_read(theirs), ours) != ours):
        raise Unfit(f"{THEIRS}.attributes", f"has the key {OURS!r}, which this message needs for its own fields")
    if change:
        kind = theirs.pop("type")
        theirs |= {"attributes": {**attributes, OURS: change}, "type": kind}
    return theirs


def _written_system(ours: Fields) -> Fields:
    if ours["role"] != "system":
        raise Unfit("role", "is 'developer'; LangChain4j only has system messages")
    for field in ours:
        if field not in ("role", "content"):
            raise Unfit(field, "has no place in a system message of LangChain4j")
    text = ours.get("content")
    if not isinstance(text, str):
        raise Unfit("content", "is no text, which is all that a system message of LangChain4j holds")
    if not text.strip(JAVA_BLANK):
        raise Unfit("content", "is blank, which LangChain4j refuses in a system message")
    return {"text": text, "type": "SYSTEM"}


def _with_ids(back: Fields, ours: Fields) -> Fields:
    """Let ids that were made up, and so are not written, be those that `ours` has: pairing may have numbered them."""
    calls = [call for call in ours.get("tool_calls") or () if _without_id(call)]
    for call, own in zip(filter(_without_id, back.get("tool_calls", ())), calls, strict=False):
        call["id"] = _numbered(call["id"], own["id"])
    if ours["role"] == "tool" and "id" in _own(ours):
        back["tool_call_id"] = _numbered(back["tool_call_id"], ours["tool_call_id"])
    return back


def _numbered(made_up: str, own: str) -> str:
    """Return the own id where it is the one made up, with a number behind it."""
    number = own.removeprefix(f"{made_up}:")
    return own if number != own and number.isascii() and number.isdigit() else made_up
