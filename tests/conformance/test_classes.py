"""Every vector has exactly one class, and a reason wherever it is not replayed as it is."""

from __future__ import annotations

import hashlib
import json
from collections import Counter

import pytest

from conformance.classes import (
    BROUGHT_BY,
    CLASSES,
    NAMED,
    REASONS,
    UNWANTED,
    VERDICTS,
    WINDOWS,
    Class,
    of_class,
)
from conformance.outcomes import ABOVE, DIFFERS, INVERTED, Run
from conformance.replaying import replayed
from conformance.rows import ROWS
from conformance.vectors import FOLDER, SOURCES, SYSTEMS, VECTORS, Vector

ALL = 337
SOURCE = FOLDER.parents[1] / "src"
COUNTS: dict[Class, int] = {"holds": 173, "inverted": 33, "differs": 30, "pending": 76, "not applicable": 25}
"""Whoever changes a class changes these, on purpose."""

OF_WINDOWS = {kind for kind in WINDOWS if kind not in ("quarkus", "ai_service")} | {"token_estimator"}
DIGEST = "eec27f9de14316d9b8e1cd6b9dde244a26de89d90e6ac246c58b51ce2e8bbdef"


def test_the_vectors_are_those_that_were_given() -> None:
    assert hashlib.sha256((FOLDER / "vectors.json").read_bytes()).hexdigest() == DIGEST
    assert len(VECTORS) == len(json.loads((FOLDER / "vectors.json").read_bytes())["vectors"]) == ALL


def test_each_vector_has_one_class() -> None:
    listed = Counter(vector.id for name in CLASSES for vector in of_class(name))
    assert listed == dict.fromkeys(VECTORS, 1)
    assert {name: len(of_class(name)) for name in CLASSES} == COUNTS
    assert sum(COUNTS.values()) == ALL


def test_no_vector_is_in_two_tables_and_none_is_unknown() -> None:
    named = [*INVERTED, *DIFFERS, *ABOVE]
    assert len(named) == len(set(named))
    assert set(named) <= set(VECTORS)
    assert not {vector.id for vector, _ in ROWS} & set(VECTORS)


def test_whatever_a_user_does_not_want_is_inverted() -> None:
    unwanted = {vector.id for vector in VECTORS.values() if vector.tags & UNWANTED}
    assert {vector.id for vector in of_class("inverted")} == unwanted


def test_only_the_history_and_what_is_in_a_store_is_pending() -> None:
    pending = {vector.kind for vector in of_class("pending")}
    assert pending == {"session_log", "session_registry", "spring_repository"}
    assert not pending & (OF_WINDOWS | NAMED)
    assert [vector.id for vector in of_class("pending") if vector.kind == "session_log"] == [
        "session.log.recall",
        "session.log.real_only",
    ]


@pytest.mark.parametrize("name", ["inverted", "differs", "pending", "not applicable"])
def test_whatever_is_not_as_it_is_has_a_reason(name: Class) -> None:
    assert of_class(name)
    assert all(VERDICTS[vector.id].why for vector in of_class(name))


@pytest.mark.parametrize(("vector", "runs"), [pytest.param(*each, id=each[0].id) for each in replayed()])
def test_whatever_is_replayed_says_what_is_to_be_seen(vector: Vector, runs: tuple[Run, ...]) -> None:
    for run in runs:
        steps = vector.steps if run.steps is None else run.steps
        assert len(steps) == len(run.expected)
        assert any(run.expected) or any(step.get("expect") for step in steps)


def test_no_vector_is_known_to_the_code() -> None:
    code = "".join(path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py"))
    assert "class MessageWindow" in code
    assert not [vector_id for vector_id in VECTORS if vector_id in code]


def test_every_kind_has_its_place() -> None:
    kinds = {vector.kind for vector in VECTORS.values()}
    assert kinds == {*WINDOWS, *NAMED, *BROUGHT_BY, *REASONS, "compaction", "session_log", "token_estimator"}


def test_every_system_has_a_source() -> None:
    assert {vector.system for vector in VECTORS.values()} == set(SYSTEMS)
    notice = (FOLDER / "NOTICE").read_text(encoding="utf-8")
    for name, repository in SYSTEMS.values():
        assert name in notice
        assert f"https://github.com/{repository}" in notice
        assert SOURCES[repository] in notice
    assert {vector.source["repo"] for vector in VECTORS.values()} <= {repository for _, repository in SYSTEMS.values()}
