"""Writes docs/conformance.md: `PYTHONPATH=tests python -m conformance.report`. A test compares them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from conformance.classes import CLASSES, VERDICTS, WINDOWS, of_class
from conformance.rows import ROWS
from conformance.vectors import SOURCES, SYSTEMS, VECTORS, Vector

PAGE: Final = Path(__file__).parents[2] / "docs" / "conformance.md"
COMMAND: Final = "PYTHONPATH=tests python -m conformance.report"

INTRODUCTION: Final = """\
# Conformance

What other systems do with the memory of a conversation, as data, and what turnkeeper does with each of these
behaviours. There are {count} vectors, read from the tests and the code of {systems} systems; [their
README](../tests/conformance/README.md) has the format, the sources and the licences. The tests run every vector that
says something about a memory through handle, actor and store: in memory, on SQLite, and on SQLite with the memory
dropped from RAM before each read; on asyncio, uvloop and trio.

This page is written from the vectors and the tests' tables by
`{command}`; a test compares it.

| Class | What it means |
|---|---|
| holds | The vector is replayed as it is, and everything it expects is seen. |
| inverted | It shows what a user does not want. The test asserts what is promised instead. |
| differs | It is not what turnkeeper promises, for a reason. The test asserts what is shown instead. |
| pending | It needs a part of turnkeeper that is not there yet. |
| not applicable | It says nothing about a memory. |
"""

_EVICT = '`on_overflow="evict"`'
STANDS_FOR: Final[dict[str, tuple[str, str]]] = {
    "message_window": (
        f"`MessageWindow` with {_EVICT}",
        'By default, with `"error"`, the same vectors hold up to the first message that would leave at once: that add '
        "is refused.",
    ),
    "token_window": (f"`TokenWindow` with {_EVICT}", "Likewise. Each message costs what the vector says."),
    "spring_message_window": ("`TurnWindow`", "As it is."),
    "koog_window": (
        "`TurnWindow`",
        "Results bundled in one message come apart, and stand before the text beside them.",
    ),
    "turn_snap": ("`TurnWindow`", "The limit is the one that cuts where the vector cuts."),
    "sk_reduction_index": ("`TurnWindow`", "The limit is target and threshold together: what may be shown at most."),
    "quarkus": (
        f"`MessageWindow` with `system_first=True` and {_EVICT}",
        "What is stored is a log, so it is what a read shows that is compared.",
    ),
    "ai_service": (
        f"`MessageWindow` with {_EVICT}",
        "The tests have a stand-in for the service: it calls a model and tools, has answers checked, and keeps what "
        "was said, as it comes or in a turn.",
    ),
}
"""Kind -> the window of ours that is to show the same, and how."""

NAMES: Final[dict[str, str]] = {
    "default_methods": "`ChatMemory`, with a class that defines what it has to",
    "registry": "`ChatMemoryService`",
    "store_in_memory": "`InMemoryChatMemoryStore`",
    "store_single_slot": "`SingleSlotChatMemoryStore`",
    "store_variant": "`StoreChatMemoryStore`: turnkeeper's stores",
}
"""Kind -> the name of LangChain4j's that is to do the same."""


def render() -> str:
    """Return the page."""
    return "\n".join(_page())


def _page() -> Iterator[str]:
    yield INTRODUCTION.format(count=len(VECTORS), systems=len(SYSTEMS), command=COMMAND)
    yield "## System by system\n"
    yield _table(("System", "Vectors", *CLASSES), _counts())
    yield (
        "Where a vector counts calls of a store, the numbers are upper bounds: a read of a memory at rest makes none.\n"
        "A log has one call that writes: what others delete counts as a write.\n"
    )
    yield "## Which window stands for theirs\n"
    yield _table(
        ("Vectors", "Window", "How"),
        [(f"`{kind}`", *STANDS_FOR[kind]) for kind in WINDOWS],
    )
    yield (
        "The vectors of these kinds, and those that ask for LangChain4j's default id, async methods or evicting of a\n"
        "memory, run through `turnkeeper.compat.langchain4j`. So do all vectors of `message_window` and\n"
        "`token_window` that hold, once more: without a store, on a store of the user's own, and on turnkeeper's.\n"
    )
    yield _table(("Vectors", "Name"), [(f"`{kind}`", name) for kind, name in NAMES.items()])
    yield (
        "The vectors of `token_estimator` run against `BpeCounter` with a tokenizer that counts words: what is\n"
        "compared is the arithmetic around it.\n"
    )
    yield (
        "The vectors of `compaction` and `session_log` compact through `memory.compact`, with `keep=` the\n"
        "`TurnWindow` of their strategy. A summary of ours stands where theirs leaves nothing. The last n\n"
        "messages are what a `MessageWindow` shows.\n"
    )
    yield "## Inverted\n"
    yield _outcomes(of_class("inverted"))
    yield "These cases have no vector; they come from the list of what users don't want that came with the vectors.\n"
    yield _table(("Case", "Here"), [(f"`{vector.id}`", ours.why) for vector, ours in ROWS])
    yield "## Differs\n"
    yield _outcomes(of_class("differs"))
    yield "## Pending\n"
    yield from _by_reason(of_class("pending"), "Comes with {}:")
    yield "## Not applicable\n"
    yield from _by_reason(of_class("not applicable"), "{}")
    yield "## Holds\n"
    for system, (name, _) in SYSTEMS.items():
        yield f"{name}: {_ids(vector for vector in of_class('holds') if vector.system == system)}.\n"


def _counts() -> Iterator[tuple[str, ...]]:
    for system, (name, repository) in SYSTEMS.items():
        counts = Counter(VERDICTS[vector.id].name for vector in VECTORS.values() if vector.system == system)
        link = f"[{name}](https://github.com/{repository}/tree/{SOURCES[repository]})"
        yield link, str(counts.total()), *(str(counts[name]) for name in CLASSES)
    yield "all", str(len(VECTORS)), *(str(len(of_class(name))) for name in CLASSES)


def _outcomes(vectors: Iterable[Vector]) -> str:
    rows = [(f"`{vector.id}`", vector.behaviour, VERDICTS[vector.id].why) for vector in vectors]
    return _table(("Vector", "There", "Here"), rows)


def _by_reason(vectors: list[Vector], heading: str) -> Iterator[str]:
    for reason, count in Counter(VERDICTS[vector.id].why for vector in vectors).items():
        ids = _ids(vector for vector in vectors if VERDICTS[vector.id].why == reason)
        yield f"{heading.format(reason)} {count} vectors.\n\n{ids}.\n"


def _ids(vectors: Iterable[Vector]) -> str:
    return ", ".join(f"`{vector.id}`" for vector in vectors)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
