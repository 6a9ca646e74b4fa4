"""A message as people read it: text, calls, placeholders for what is no text, and the names of whatever else it holds.

Nothing here is cleaned for a terminal; that is done where it is shown.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from turnkeeper.messages import Message

__all__ = ["escaped_bytes", "format_time", "message_body", "message_title"]

_SHOWN_FIELDS: Final = frozenset({"role", "content", "name", "id", "tool_calls", "tool_call_id", "refusal"})

_KINDS: Final = {
    "image_url": "image",
    "input_image": "image",
    "input_audio": "audio",
    "input_file": "file",
    "video_url": "video",
    "input_video": "video",
}

_LONGEST_KIND: Final = 40


def message_title(number: int, message: Message) -> str:
    """Return one line that says who speaks: number, role, name, id, and which call is answered."""
    fields = message.to_dict()
    parts = [f"{number}.", message.role]
    if isinstance(name := fields.get("name"), str):
        parts.append(f"name={name}")
    if isinstance(call := fields.get("tool_call_id"), str):
        parts.append(f"answers={call}")
    return " ".join([*parts, f"({message.id})" if message.id else ""]).rstrip()


def message_body(message: Message) -> str:
    """Return what is said, on as many lines as it takes."""
    fields = message.to_dict()
    lines = list(_content(fields.get("content")))
    if isinstance(refusal := fields.get("refusal"), str):
        lines.append(f"[refusal] {refusal}")
    lines.extend(_calls(message))
    if others := sorted(fields.keys() - _SHOWN_FIELDS):
        lines.append(f"[also holds: {', '.join(others)}]")
    return "\n".join(lines) or "[empty]"


def _calls(message: Message) -> Iterator[str]:
    for call in message.tool_calls:
        yield f"-> {call.name}({call.arguments})" + (f"  id={call.id}" if call.id else "")


def _content(content: object) -> Iterator[str]:
    if isinstance(content, str):
        if content:
            yield content
    elif isinstance(content, list):
        yield from map(_part, content)
    elif content is not None:
        yield json.dumps(content, ensure_ascii=False)


def _part(part: object) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        return f"[{type(part).__name__}]"
    kind = part.get("type")
    if isinstance(text := part.get("text"), str):
        return text if kind in ("text", "input_text", "output_text", None) else f"[{_kind(kind)}] {text}"
    return f"[{_kind(kind)}]"


def _kind(kind: Any) -> str:
    return _KINDS.get(kind, kind[:_LONGEST_KIND]) if isinstance(kind, str) and kind else "part"


def format_time(microseconds: int) -> str:
    """Write microseconds since the epoch as a UTC time; the number itself where it is out of range."""
    try:
        time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)
    except OverflowError:
        return str(microseconds)
    return time.strftime("%Y-%m-%d %H:%M:%SZ")


def escaped_bytes(data: bytes) -> str:
    r"""Write bytes in printable ASCII: a backslash as `\\`, others as `\n`, `\xNN`; reversible."""
    return data.decode("latin-1").encode("unicode_escape").decode("ascii")
