"""The vectors as they were given; see README.md beside them for the format and the sources."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).parent

Given = dict[str, Any]
"""A message as a vector has it."""
Step = dict[str, Any]
"""One operation and what is to be seen afterwards."""


@dataclass(frozen=True)
class Vector:
    """One behaviour of one system.

    Attributes:
        kind: what it is the behaviour of, such as "message_window".
        behaviour: one sentence.
        config: how that thing is set up.
        source: repository, commit, suite and test that it was read from.
    """

    id: str
    system: str
    kind: str
    level: str
    behaviour: str
    config: dict[str, Any]
    steps: tuple[Step, ...]
    tags: frozenset[str]
    source: dict[str, Any]

    @property
    def ops(self) -> frozenset[str]:
        """The operations of its steps."""
        return frozenset(step["op"] for step in self.steps)

    @property
    def window(self) -> dict[str, Any]:
        """How its window is set up."""
        return self.config.get("memory") or self.config

    @property
    def limit(self) -> Any:
        """The window's limit: a number, None, or `{"by_id": {id: limit}, "otherwise": limit}`."""
        limits = ("max_messages", "max_tokens", "window_size")
        return next((self.window[name] for name in limits if name in self.window), None)

    def messages(self) -> Iterator[Given]:
        """Find every message in its configuration and steps."""
        return _messages([self.config, *self.steps])


def _messages(value: Any) -> Iterator[Given]:
    if isinstance(value, dict):
        if "role" in value:
            yield value
            return
        value = value.values()
    elif not isinstance(value, list):
        return
    for item in value:
        yield from _messages(item)


def _read() -> tuple[dict[str, Any], list[Vector]]:
    given = json.loads((FOLDER / "vectors.json").read_text(encoding="utf-8"))
    vectors = [
        Vector(
            id=vector["id"],
            system=vector["system"],
            kind=vector["config"]["kind"],
            level=vector["level"],
            behaviour=vector["behaviour"],
            config=vector["config"],
            steps=tuple(vector["steps"]),
            tags=frozenset(vector["tags"]),
            source=vector["source"],
        )
        for vector in given["vectors"]
    ]
    return given["generated_from"], vectors


SOURCES, _LISTED = _read()
"""Where the behaviours were read: repository -> commit."""
VECTORS: Final[dict[str, Vector]] = {vector.id: vector for vector in _LISTED}
"""All 337, by id, in the file's order."""

SYSTEMS: Final[dict[str, tuple[str, str]]] = {
    "langchain4j": ("LangChain4j", "langchain4j/langchain4j"),
    "spring-ai": ("Spring AI", "spring-projects/spring-ai"),
    "spring-ai-session": ("spring-ai-session", "spring-ai-community/spring-ai-session"),
    "quarkus-langchain4j": ("Quarkus LangChain4j", "quarkiverse/quarkus-langchain4j"),
    "koog": ("Koog", "JetBrains/koog"),
    "semantic-kernel-dotnet": ("Semantic Kernel", "microsoft/semantic-kernel"),
}
"""System -> its name and its repository."""
