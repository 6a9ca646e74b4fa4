"""Gives each vector its class, by rules on its kind, operations and tags, and by the tables of `outcomes`."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias, get_args

from conformance.outcomes import ABOVE, DIFFERS, INVERTED, Profile
from conformance.vectors import VECTORS, Vector

Class: TypeAlias = Literal["holds", "inverted", "differs", "pending", "not applicable"]
CLASSES: Final[tuple[Class, ...]] = get_args(Class)


class Verdict(NamedTuple):
    """A vector's class, and why: what we do instead, what brings it, or why it says nothing about a memory."""

    name: Class
    why: str = ""


UNWANTED: Final = frozenset({"hazard", "contract_gap", "lossy", "surprising"})
"""Tags of what a user does not want."""

WINDOWS: Final[dict[str, Profile]] = {
    "message_window": "evict",
    "token_window": "evict",
    "spring_message_window": "turns",
    "koog_window": "turns",
    "turn_snap": "turns",
    "sk_reduction_index": "turns",
    "quarkus": "system first",
    "ai_service": "evict",
}
"""Kind -> the window of ours that shows the same."""

HISTORY = "history"
STORES = "stores"

NAMED: Final = frozenset({"default_methods", "registry", "store_in_memory", "store_single_slot", "store_variant"})
"""Kinds of what only LangChain4j's names have; `naming` runs them through these."""

BROUGHT_BY: Final[dict[str, str]] = {
    "spring_repository": STORES,
    "session_registry": STORES,
}
"""Kind -> the work that brings it."""

SERVED: Final = frozenset({"chat", "memory", "last_requests", "store_dump"})
"""What the tests' stand-in for a service can do: call a model, tools and checks, and keep all of it in a memory."""

REASONS: Final[dict[str, str]] = {
    "ai_service": "It is about how a service is built, or about what it adds to a prompt beside the memory.",
    "spring_advisor": "It is about an advisor that edits prompts around a memory.",
    "aggregator": "It is about putting the chunks of one streamed answer together, before there is a message.",
}
"""Kind -> why it says nothing about a memory."""

ASKED_OF_THE_HISTORY: Final = frozenset({"real", "search"})
"""Operations on a log that come with the history: leave out summaries, find by keyword."""

NO_BRANCHES = "It is about events of sub-agents in one log; here each agent has a memory, and a log has no branches."


def verdict(vector: Vector) -> Verdict:
    """Return the class of a vector."""
    for name, table in (("inverted", INVERTED), ("differs", DIFFERS), ("holds", ABOVE)):
        if vector.id in table:
            return Verdict(name, table[vector.id].why)  # type: ignore[arg-type]  # a Class
    if any("branch" in message for message in vector.messages()):
        return Verdict("not applicable", NO_BRANCHES)
    if is_named(vector):
        return Verdict("holds")
    if is_of_the_log(vector):
        return Verdict("holds")
    if vector.kind == "session_log":
        return Verdict("pending", HISTORY)
    if vector.kind in BROUGHT_BY:
        return Verdict("pending", BROUGHT_BY[vector.kind])
    if vector.kind in REASONS and not _is_served(vector):
        return Verdict("not applicable", REASONS[vector.kind])
    return Verdict("holds")


def is_named(vector: Vector) -> bool:
    """Tell whether a vector is about LangChain4j's names, and runs through them alone."""
    return vector.system == "langchain4j" and (
        vector.kind in NAMED or "async" in vector.tags or "evict" in vector.ops or _asks_for_the_default_id(vector)
    )


def is_of_the_log(vector: Vector) -> bool:
    """Tell whether a vector is about a log and its compaction; `compacting` runs those."""
    return vector.kind in ("compaction", "session_log") and not vector.ops & ASKED_OF_THE_HISTORY


def _asks_for_the_default_id(vector: Vector) -> bool:
    return any(step["op"] == "id" and step["expect"]["value"] == "default" for step in vector.steps)


def _is_served(vector: Vector) -> bool:
    return vector.kind == "ai_service" and vector.ops <= SERVED and "augment_suffix" not in vector.config


VERDICTS: Final[dict[str, Verdict]] = {vector.id: verdict(vector) for vector in VECTORS.values()}


def of_class(*names: Class) -> list[Vector]:
    """Return the vectors of these classes, in the file's order."""
    return [vector for vector in VECTORS.values() if VERDICTS[vector.id].name in names]
