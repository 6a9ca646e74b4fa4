"""Judging JSON that claims to be LangChain4j's: which fields a message, a content and a request may have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from turnkeeper.compat.langchain4j.json_contents import CONTENTS, DETAILS, PDF, ordered
from turnkeeper.compat.langchain4j.json_terms import Fields, Unfit

__all__ = ["JAVA_BLANK", "checked_message"]


JAVA_BLANK: Final = "".join(map(chr, range(0x21)))
"""What Java's `trim` takes away."""


def checked_message(value: object) -> Fields:
    """Return the message as LangChain4j 1.18 would write it."""
    kind = _type_of(value, "", _MESSAGES)
    given = _checked_object(value, "", _MESSAGES[kind])
    attributes = given.pop("attributes", {})
    if not isinstance(attributes, dict):
        raise Unfit("attributes", "is no object")
    made: Fields = {}
    for key in ("id", "name", "toolName", "text", "thinking"):
        if key in given:
            made[key] = _text(given[key], key)
    if kind == "SYSTEM" and "text" not in made:
        raise Unfit("text", "is missing")
    if kind == "USER" and not made.get("name"):
        made.pop("name", None)
    if kind in ("USER", "TOOL_EXECUTION_RESULT"):
        made["contents"] = _checked_contents(made.pop("text", None), given.get("contents"))
    if kind == "AI":
        made["toolExecutionRequests"] = _checked_requests(given.get("toolExecutionRequests", []))
    if "isError" in given:
        if not isinstance(given["isError"], bool):
            raise Unfit("isError", "is neither true nor false")
        made["isError"] = given["isError"]
    if attributes or kind not in ("SYSTEM", "USER"):
        made["attributes"] = attributes
    return {**made, "type": kind}


def _checked_contents(text: str | None, contents: object) -> list[Fields]:
    if text is not None:
        if contents:
            raise Unfit("contents", "is given beside 'text'; LangChain4j takes only one of them")
        return [{"text": text, "type": "TEXT"}]
    if not contents:
        raise Unfit("contents", "is missing or empty")
    if not isinstance(contents, list):
        raise Unfit("contents", "is no list")
    return [_checked_content(content, f"contents[{index}]") for index, content in enumerate(contents)]


def _checked_content(value: object, where: str) -> Fields:
    kind = _type_of(value, where, CONTENTS)
    form = CONTENTS[kind]
    given = _checked_object(value, where, ("type", form.key, *(("detailLevel",) if kind == "IMAGE" else ())))
    if kind == "TEXT":
        return {"text": _text(given.get("text"), f"{where}.text"), "type": kind}
    made: Fields = {}
    if form.key in given:
        inside = f"{where}.{form.key}"
        media = _checked_object(given[form.key], inside, form.properties)
        media = {key: _text(item, f"{inside}.{key}") for key, item in media.items()}
        made[form.key] = ordered(form, {"mimeType": PDF, **media} if kind == "PDF" else media)
    if kind == "IMAGE":
        if form.key not in given:
            raise Unfit(f"{where}.{form.key}", "is missing")
        if given.get("detailLevel") not in DETAILS.values():
            raise Unfit(f"{where}.detailLevel", f"is none of {', '.join(DETAILS.values())}")
        made["detailLevel"] = given["detailLevel"]
    return {**made, "type": kind}


def _checked_requests(requests: object) -> list[Fields]:
    if not isinstance(requests, list):
        raise Unfit("toolExecutionRequests", "is no list")
    made: list[Fields] = []
    for index, request in enumerate(requests):
        where = f"toolExecutionRequests[{index}]"
        given = _checked_object(request, where, _REQUEST)
        made.append({key: _text(given[key], f"{where}.{key}") for key in _REQUEST if key in given})
    return made


def _checked_object(value: object, where: str, known: Iterable[str]) -> Fields:
    """Return the properties that are not null."""
    if not isinstance(value, dict):
        raise Unfit(where or None, "is no object")
    for key in value:
        if key not in known:
            # Below the top, a key may be the user's data and stays out of errors.
            raise Unfit(f"{where}.*" if where else key, "is no property that LangChain4j knows")
    return {key: item for key, item in value.items() if item is not None}


def _type_of(value: object, where: str, known: Mapping[str, object]) -> str:
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(value, dict):
        raise Unfit(where or None, "is no object")
    if not isinstance(kind, str) or kind not in known:
        raise Unfit(f"{where}.type" if where else "type", f"is none of {', '.join(known)}")
    return kind


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise Unfit(where, "is missing" if value is None else "is no text")
    return value


_MESSAGES: Final[dict[str, tuple[str, ...]]] = {
    "SYSTEM": ("text", "type"),
    "USER": ("name", "text", "contents", "attributes", "type"),
    "AI": ("text", "thinking", "toolExecutionRequests", "attributes", "type"),
    "TOOL_EXECUTION_RESULT": ("id", "toolName", "text", "contents", "isError", "attributes", "type"),
    "CUSTOM": ("attributes", "type"),
}


_REQUEST: Final = ("id", "name", "arguments")
