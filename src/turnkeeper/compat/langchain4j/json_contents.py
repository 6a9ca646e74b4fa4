"""Contents of LangChain4j's messages and content parts of ours: texts, images, audio, video, documents."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

from turnkeeper.compat.langchain4j.json_terms import THEIRS, Fields

__all__ = ["CONTENTS", "DETAILS", "PDF", "contents_of", "ordered", "parts_of", "picked", "plain_text"]


_IN_AUTHORITY: Final = r"(?:[\w.!~*'();:@&=+$,-]|%[0-9A-Fa-f]{2})"


_IN_URI: Final = r"(?:[\w.!~*'();:@&=+$,/?-]|%[0-9A-Fa-f]{2})"


_URI: Final = re.compile(
    rf"[A-Za-z][A-Za-z0-9+.-]*:(?://{_IN_AUTHORITY}+(?=[/?#]|\Z)|//(?=/)|(?!//|\#|\Z)){_IN_URI}*(?:\#{_IN_URI}*)?"
)
"""URLs that `java.net.URI` is sure to take; it also takes some that this leaves out."""


def plain_text(content: object) -> str | None:
    """Return a content that is nothing but text, else None."""
    if not isinstance(content, list):
        return content if isinstance(content, str) else None
    texts = [made["text"] for part in content if (made := _content_of(part)) and made["type"] == "TEXT"]
    return "".join(texts) if texts else None


class _Form(NamedTuple):
    """A type of content: key and properties of what it holds, and how that becomes a part of ours and comes back."""

    key: str
    properties: tuple[str, ...] = ()
    part: Callable[[Fields], Fields] = lambda media: media
    media: Callable[[Fields, bool], Fields | None] = lambda _, __: None


def parts_of(contents: list[Fields]) -> str | list[Fields]:
    """Return our content for LangChain4j's contents: a lone text as such, else parts."""
    if len(contents) == 1 and contents[0]["type"] == "TEXT":
        text: str = contents[0]["text"]
        return text
    return [_part_of(content) for content in contents]


def contents_of(content: object) -> list[Fields]:
    """Return what can be shown of any content; LangChain4j wants at least one."""
    parts = content if isinstance(content, list) else [content]
    return [made for part in parts if (made := _content_of(part))] or [{"text": "", "type": "TEXT"}]


def _part_of(content: Fields) -> Fields:
    if content["type"] == "TEXT":
        return {"type": "text", "text": content["text"]}
    form = CONTENTS[content["type"]]
    held: Fields = content.get(form.key, {})
    part = form.part(held)
    if "detailLevel" in content and content["detailLevel"] != DETAILS[None]:
        part["image_url"]["detail"] = content["detailLevel"].lower()
    if form.key not in content:
        return {**part, THEIRS: None}
    if _content_of(part) == content:
        return part
    plain = form.media(part, True) or {}
    gone = {key: None for key in plain if key not in held}
    return {**part, THEIRS: gone | {key: item for key, item in held.items() if plain.get(key) != item}}


def _content_of(part: object) -> Fields | None:
    """Return LangChain4j's content, or None where it has none for such a part."""
    if isinstance(part, str):
        return {"text": part, "type": "TEXT"}
    if not isinstance(part, dict):
        return None
    if part.get("type") == "text":
        return {"text": part["text"], "type": "TEXT"} if isinstance(part.get("text"), str) else None
    kind = _PARTS.get(part["type"]) if isinstance(part.get("type"), str) else None
    if kind is None:
        return None
    form = CONTENTS[kind]
    if kind != "IMAGE" and part.get(THEIRS, part) is None:
        return {"type": kind}  # the only one that needs what it holds is the image
    own = _own_media(part, form)
    media = form.media(part, own is not None)
    if media is None:
        return None
    merged = {key: item for key, item in {**media, **(own or {})}.items() if item is not None}
    made: Fields = {form.key: ordered(form, merged)}
    if kind == "IMAGE":
        detail = part["image_url"].get("detail")
        made["detailLevel"] = DETAILS.get(detail if isinstance(detail, str) else None, DETAILS[None])
    return {**made, "type": kind}


def _own_media(part: Fields, form: _Form) -> Fields | None:
    own = part.get(THEIRS)
    if not isinstance(own, dict) or not all(
        key in form.properties and (item is None or isinstance(item, str)) for key, item in own.items()
    ):
        return None
    return own


def _url_of(media: Fields) -> str:
    if "base64Data" in media:
        return f"data:{media.get('mimeType', '')};base64,{media['base64Data']}"
    url: str = media.get("url", "")
    return url


def _media_of_url(url: object, forced: bool) -> Fields | None:
    """Return where a picture, film or file is, or what it is; None for what Java could not read, unless forced."""
    if not isinstance(url, str):
        return None
    head, separator, data = url.partition(";base64,")
    if separator and head.startswith("data:"):
        mime = head.removeprefix("data:")
        return {"base64Data": data, **({"mimeType": mime} if mime else {})}
    return {"url": url} if forced or _URI.fullmatch(url) else None


def _held(part: Fields, key: str) -> Fields:
    held = part.get(key)
    return held if isinstance(held, dict) else {}


def _audio_part(media: Fields) -> Fields:
    if "url" in media and not {"base64Data", "binaryData"} & media.keys():
        return {"type": "audio_url", "audio_url": {"url": media["url"]}}
    mime = media.get("mimeType", "")
    kind = _SOUNDS.get(mime, mime.removeprefix("audio/") if mime.startswith("audio/") else "")
    data = media.get("base64Data", media.get("binaryData", ""))
    return {"type": "input_audio", "input_audio": {"data": data, **({"format": kind} if kind else {})}}


def _audio_media(part: Fields, forced: bool) -> Fields | None:
    if part["type"] == "audio_url":
        return _media_of_url(_held(part, "audio_url").get("url"), forced)
    held = _held(part, "input_audio")
    if not isinstance(held.get("data"), str):
        return None
    kind = held.get("format")
    return {"base64Data": held["data"], **({"mimeType": f"audio/{kind}"} if isinstance(kind, str) else {})}


def _pdf_media(part: Fields, forced: bool) -> Fields | None:
    media = _media_of_url(_held(part, "file").get("file_data"), forced)
    if media is not None and "url" in media:
        return {**media, "mimeType": PDF}
    return media if media is not None and (forced or media.get("mimeType") == PDF) else None


PDF: Final = "application/pdf"


_SOUNDS: Final = {"audio/mpeg": "mp3", "audio/x-wav": "wav", "audio/wave": "wav", "audio/vnd.wave": "wav"}
"""The formats of OpenAI's `input_audio` where they are not what follows `audio/`."""


DETAILS: Final[dict[str | None, str]] = {
    None: "AUTO",
    "low": "LOW",
    "medium": "MEDIUM",
    "high": "HIGH",
    "ultra_high": "ULTRA_HIGH",
}
"""Without a detail, OpenAI chooses; so does `AUTO`."""


CONTENTS: Final[dict[str, _Form]] = {
    "TEXT": _Form("text"),
    "IMAGE": _Form(
        "image",
        ("url", "base64Data", "mimeType", "revisedPrompt"),
        lambda media: {"type": "image_url", "image_url": {"url": _url_of(media)}},
        lambda part, forced: _media_of_url(_held(part, "image_url").get("url"), forced),
    ),
    "AUDIO": _Form("audio", ("url", "binaryData", "base64Data", "mimeType"), _audio_part, _audio_media),
    "VIDEO": _Form(
        "video",
        ("url", "base64Data", "mimeType"),
        lambda media: {"type": "video_url", "video_url": {"url": _url_of(media)}},
        lambda part, forced: _media_of_url(_held(part, "video_url").get("url"), forced),
    ),
    "PDF": _Form(
        "pdfFile",
        ("url", "base64Data", "mimeType"),
        lambda media: {"type": "file", "file": {"file_data": _url_of(media)}},
        _pdf_media,
    ),
}


_PARTS: Final = {
    "image_url": "IMAGE",
    "input_audio": "AUDIO",
    "audio_url": "AUDIO",
    "video_url": "VIDEO",
    "file": "PDF",
}


def ordered(form: _Form, media: Fields) -> Fields:
    """Put properties into the order in which LangChain4j writes them."""
    return picked(media, *form.properties)


def picked(fields: Fields, *keys: str) -> Fields:
    """Return those of the fields that are there."""
    return {key: fields[key] for key in keys if key in fields}
