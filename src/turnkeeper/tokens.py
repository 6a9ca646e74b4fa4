"""Token counters: what a message costs in a model's context.

Our counters do LangChain4j's arithmetic for OpenAI chat models around the tokens of each text, and differ in how they
count a text. Whatever a message holds is counted: what is not text has a price, and nothing in it makes them raise.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable
from operator import index
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, runtime_checkable

import msgspec

from turnkeeper.errors import InvalidArgumentError, MissingExtraError
from turnkeeper.messages import Message, ToolMessage
from turnkeeper.wire import decode

if TYPE_CHECKING:
    from splintr import AnyTokenizer

__all__ = ["BpeCounter", "CharacterCounter", "PartCosts", "TokenCounter"]

# The arithmetic of LangChain4j's OpenAiTokenCountEstimator, in tokens.
_LIST: Final = 3
_LIST_O_SERIES: Final = 2
_MESSAGE: Final = 3 + 1  # the frame and the role
_NAME: Final = 1
_O4_ASSISTANT: Final = 2
_ONLY_CALL: Final = 5
_PARALLEL_CALLS: Final = 21
_PARALLEL_CALL: Final = 7
_ARGUMENT: Final = 2

# Like LangChain4j every name in "o", but not the provider's name in "openai/gpt-4o".
_O_SERIES: Final = re.compile(r"o(?![a-z])")

# Types of content parts in OpenAI's, Anthropic's and LangChain's form, with the cost in `PartCosts`.
_MEDIA: Final = {
    "image": "image",
    "image_url": "image",
    "input_image": "image",
    "audio": "audio",
    "input_audio": "audio",
    "video": "video",
    "video_url": "video",
    "input_video": "video",
    "file": "file",
    "input_file": "file",
    "document": "file",
}
# Types of content parts whose text is in a field of another name than "text".
_TEXTS: Final = {"refusal": "refusal", "thinking": "thinking"}
# One thought under the name that this or that server gives it; some send it under both.
_REASONING: Final = ("reasoning_content", "reasoning")

_CACHED_CHARACTERS: Final = 4_000_000
"""splintr remembers the words it has met: limited in number (65 536), but not in length, and without spaces a text of a
megabyte is one word. Forgetting them all after this many characters keeps that below 100 MB, Latin script below 25 MB,
at no cost that could be measured."""


@runtime_checkable
class TokenCounter(Protocol):
    """What a window asks for the tokens of a message.

    A counter of your own is a value: equal counters count alike, and it can be hashed. It is asked from any task or
    thread, and does no I/O: counting happens on the event loop.
    """

    @property
    def list_overhead(self) -> int:
        """Tokens that a list of messages costs beside its messages."""
        ...

    def count(self, message: Message) -> int:
        """Return the tokens of one message in a list."""
        ...


class PartCosts(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True, cache_hash=True):
    """Tokens for content that is not text, whatever its size in bytes.

    Providers price media by pixels, seconds and pages, which no message tells. So each default is an example from a
    provider's price list; set what your model and your media cost.

    Args:
        image: 765, an image of 1024 x 1024 pixels in OpenAI's high detail (85 in low detail).
        audio: 300, half a minute at OpenAI's 10 tokens per second.
        video: 2 630, ten seconds at Gemini's 263 tokens per second.
        file: 2 048, LlamaIndex's estimate for a document.
        unknown: 256, LlamaIndex's estimate for a block of media, for a part of an unknown type without text.

    Raises:
        InvalidArgumentError: a cost is not a whole number of at least 0.
    """

    image: int = 765
    audio: int = 300
    video: int = 2_630
    file: int = 2_048
    unknown: int = 256

    def __post_init__(self) -> None:
        """Check the costs."""
        for part in self.__struct_fields__:
            cost = getattr(self, part)
            if type(cost) is not int or cost < 0:
                raise InvalidArgumentError(f"the cost of {part} must be a number of tokens of at least 0")


class _ChatCounter(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True, cache_hash=True):
    """The arithmetic around the tokens of a text, which a subclass counts."""

    model: str = ""
    part_costs: PartCosts = PartCosts()

    def __post_init__(self) -> None:
        """Check the arguments."""
        if not isinstance(self.model, str):
            raise InvalidArgumentError(f"model must be a str, not {type(self.model).__name__}")
        if not isinstance(self.part_costs, PartCosts):
            raise InvalidArgumentError(f"part_costs must be PartCosts, not {type(self.part_costs).__name__}")

    @property
    def list_overhead(self) -> int:
        """Tokens that a list costs beside its messages: 3, for OpenAI's o-series 2."""
        return _LIST_O_SERIES if _O_SERIES.match(self.model) else _LIST

    def count(self, message: Message) -> int:
        """Return the tokens of one message in a list."""
        fields = message.to_dict()
        tokens = _MESSAGE + self._content(fields.get("content"))
        for text in _further_texts(fields):
            tokens += self._text(text)
        if isinstance(fields.get("audio"), dict):  # an assistant's spoken answer
            tokens += self.part_costs.audio
        if message.role == "assistant" and self.model.startswith("o4"):
            tokens += _O4_ASSISTANT
        # LangChain4j doesn't count the name on a result; on any other message it is part of what the model reads.
        if message.role not in ToolMessage.roles and isinstance(name := fields.get("name"), str):
            tokens += _NAME + self._text(name)
        return tokens + self._calls(_calls(fields))

    def count_all(self, messages: Iterable[Message]) -> int:
        """Return the tokens of a list of messages, `list_overhead` included."""
        return self.list_overhead + sum(map(self.count, messages))

    def _text(self, text: str) -> int:
        raise NotImplementedError

    def _content(self, content: Any) -> int:
        if content is None:
            return 0
        return sum(map(self._part, content)) if isinstance(content, list) else self._part(content)

    def _part(self, part: Any) -> int:
        if isinstance(part, str):
            return self._text(part)
        if not isinstance(part, dict):
            return self.part_costs.unknown
        kind = part.get("type")
        kind = kind if isinstance(kind, str) else ""
        if kind in _MEDIA:
            cost: int = getattr(self.part_costs, _MEDIA[kind])
            return cost
        if kind == "tool_use":  # Anthropic's form of a call
            name, arguments = _call(part)
            return _PARALLEL_CALL + self._text(name) + self._text(arguments)
        if kind == "tool_result":
            return self._content(part.get("content"))
        text = part.get(_TEXTS.get(kind, "text"))
        return self._text(text) if isinstance(text, str) else self.part_costs.unknown

    def _calls(self, calls: list[tuple[str, str]]) -> int:
        if not calls:
            return 0
        if len(calls) == 1:
            ((name, arguments),) = calls
            return _ONLY_CALL + 2 * self._text(name) + self._text(arguments)
        return _PARALLEL_CALLS + sum(
            _PARALLEL_CALL + self._text(name) + self._arguments(arguments) for name, arguments in calls
        )

    def _arguments(self, arguments: str) -> int:
        pairs = _pairs(arguments)
        if pairs is None:  # LangChain4j fails on these
            return self._text(arguments)
        return sum(_ARGUMENT + self._text(key) + self._text(value) for key, value in pairs)


class CharacterCounter(_ChatCounter, frozen=True, repr_omit_defaults=True, cache_hash=True):
    """Estimates by size, without a dependency: a token for every 4 bytes of UTF-8, begun ones included.

    Of ASCII that is 4 characters, of Cyrillic or Arabic 2, of Chinese or Thai 1 1/3, of emoji 1: in most scripts
    between what OpenAI's two encodings need. The error on text in several scripts is measured in docs/tokens.md.

    Args:
        characters_per_token: ASCII characters to a token, from 0.1 to 1000; any other character weighs as many as it
            has bytes in UTF-8. 4 is the field's usual figure for English text; JSON has about 3.
        model: the model's name; OpenAI's o-series costs a little less or more.
        part_costs: tokens for content that is not text.

    Raises:
        InvalidArgumentError: an argument is out of its range.
    """

    characters_per_token: float = 4.0

    def __post_init__(self) -> None:
        """Check the arguments."""
        super().__post_init__()
        size = self.characters_per_token
        if isinstance(size, bool) or not isinstance(size, int | float):
            raise InvalidArgumentError(f"characters_per_token must be a number, not {type(size).__name__}")
        if not 0.1 <= size <= 1_000:
            raise InvalidArgumentError("characters_per_token must be from 0.1 to 1000")

    def _text(self, text: str) -> int:
        size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
        return math.ceil(size / self.characters_per_token)


class BpeCounter(_ChatCounter, frozen=True, repr_omit_defaults=True, cache_hash=True):
    """Counts with a vocabulary: one of OpenAI's, offline, or whatever function counts a text.

    A vocabulary is loaded once per process, here and not at the first message: a missing extra shows where it was
    asked for, and no request waits for it. Special tokens in a text, such as `<|endoftext|>`, count as the text they
    are; lone surrogates as a question mark each.

    Args:
        encoding: "o200k_base" (GPT-4o and later), "cl100k_base" (GPT-4, GPT-3.5), or a function that returns the
            tokens of a text, such as `lambda text: len(encoding.encode_ordinary(text))`. It is called from any task
            or thread; counters with the same function are equal. What it raises comes out of `count`.
        model: the model's name; OpenAI's o-series costs a little less or more.
        part_costs: tokens for content that is not text.

    Raises:
        InvalidArgumentError: an argument is out of its range, or the function can't be hashed.
        MissingExtraError: splintr is not installed.
    """

    encoding: Literal["o200k_base", "cl100k_base"] | Callable[[str], int] = "o200k_base"

    def __post_init__(self) -> None:
        """Check the arguments and load the vocabulary."""
        super().__post_init__()
        if isinstance(self.encoding, str):
            if self.encoding not in ("o200k_base", "cl100k_base"):
                raise InvalidArgumentError(f"unknown encoding {self.encoding!r}; known are 'o200k_base', 'cl100k_base'")
            _vocabulary(self.encoding)
        elif not callable(self.encoding):
            raise InvalidArgumentError(f"an encoding is a name or a function, not a {type(self.encoding).__name__}")
        try:
            hash(self.encoding)
        except TypeError:
            raise InvalidArgumentError(f"an encoding must be hashable, {type(self.encoding).__name__} is not") from None

    def _text(self, text: str) -> int:
        tokens = _vocabulary(self.encoding).count if isinstance(self.encoding, str) else self.encoding
        try:
            counted = tokens(text)
        except UnicodeEncodeError:
            counted = tokens(text.encode("utf-8", "replace").decode())
        return index(counted)  # a function that returns the tokens themselves is found out here


class _Vocabulary:
    """A vocabulary of splintr, whose memory of words is kept small. It holds the GIL while it counts."""

    def __init__(self, name: str) -> None:
        try:
            from splintr import Tokenizer
        except ImportError as error:
            raise MissingExtraError(f"{name} is in an extra: pip install 'turnkeeper[tokens]'") from error
        self._tokenizer: AnyTokenizer = Tokenizer.from_pretrained(name)
        self._remembered: int = 0

    def count(self, text: str) -> int:
        tokens = len(self._tokenizer.encode_ordinary(text))
        self._remembered += len(text)
        if self._remembered > _CACHED_CHARACTERS:
            self._tokenizer.clear_cache()
            self._remembered = 0
        return tokens


_vocabularies: Final[dict[str, _Vocabulary]] = {}


def _vocabulary(name: str) -> _Vocabulary:
    # Threads that meet at the first use may both load, which takes 0.05 s; all of them get the one that was kept.
    return _vocabularies.get(name) or _vocabularies.setdefault(name, _Vocabulary(name))


def _further_texts(fields: dict[str, Any]) -> list[str]:
    """Find what the model reads besides the content: a refusal, and its reasoning once."""
    read = [fields.get("refusal"), next((text for text in map(fields.get, _REASONING) if isinstance(text, str)), None)]
    return [text for text in read if isinstance(text, str)]


def _calls(fields: dict[str, Any]) -> list[tuple[str, str]]:
    """Return name and arguments of each call; OpenAI's older `function_call` is one."""
    calls = fields.get("tool_calls")
    calls = [*calls, fields.get("function_call")] if isinstance(calls, list) else [fields.get("function_call")]
    return [_call(call) for call in calls if isinstance(call, dict)]


def _call(call: dict[str, Any]) -> tuple[str, str]:
    body = next(body for body in (call.get("function"), call.get("custom"), call) if isinstance(body, dict))
    name = body.get("name")
    arguments = next((body[key] for key in ("arguments", "input", "args") if body.get(key) is not None), "")
    return name if isinstance(name, str) else "", _as_text(arguments)


def _pairs(arguments: str) -> list[tuple[str, str]] | None:
    """Return the arguments as texts, or None when they are no JSON object that can be read."""
    try:
        pairs = decode(arguments.encode())
        return [(key, _as_text(value)) for key, value in pairs.items()] if isinstance(pairs, dict) else None
    except (ValueError, RecursionError):
        return None


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
