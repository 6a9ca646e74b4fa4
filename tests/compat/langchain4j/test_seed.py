"""LangChain4j's document, sentence by sentence: each is a row of docs/langchain4j.md, with a test behind it."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
DOCUMENT = REPOSITORY.parent / "shared" / "seeds" / "langchain4j-chat-memory.txt"
PAGE = (REPOSITORY / "docs" / "langchain4j.md").read_text(encoding="utf-8")

PROOF = re.compile(r"`(tests/compat/langchain4j/\w+\.py)::(test_\w+)`")
ROW = re.compile(r"^\| (?P<row>\w+\.\d+) \|.*$", re.MULTILINE)
METHOD = re.compile(r" *• (?P<name>[a-zA-Z]+)$")

beside_the_document = pytest.mark.skipif(not DOCUMENT.is_file(), reason="the document is not beside this repository")

# Section and beginning of a sentence -> the rows that answer it. What only repeats a signature is left out below.
SENTENCES: dict[tuple[str, str], str] = {
    ("", "Represents the memory"): "class.1",
    ("", "Since language models"): "class.1",
    ("", "ChatMemory helps"): "class.2",
    ("", "MessageWindowChatMemory, TokenWindowChatMemory"): "class.3",
    ("id", "Object id()"): "id.1",
    ("id", "The ID of"): "id.1",
    ("add", "void add(ChatMessage message)"): "add.1",
    ("add", "Adds a message"): "add.1",
    ("add", "message - The"): "add.1",
    ("add", "default void add(ChatMessage..."): "add.2",
    ("add", "default void add(Iterable"): "add.2",
    ("add", "Adds messages"): "add.2",
    ("add", "messages - The"): "add.2",
    ("set", "default void set(ChatMessage..."): "set.2",
    ("set", "default void set(Iterable"): "set.2",
    ("set", "Replaces all messages"): "set.1",
    ("set", "Unlike add"): "set.1",
    ("set", "The default implementation delegates"): "set.2",
    ("set", "NOTE: This method"): "set.3",
    ("set", "messages - The ChatMessages to set"): "set.4",
    ("set", "Must not be null"): "set.4",
    ("set", "Implementations should override"): "set.5",
    ("set", "The default implementation calls clear()"): "set.6",
    ("set", "This method will typically"): "set.7",
    ("messages", "List<ChatMessage> messages()"): "messages.1",
    ("messages", "Retrieves messages"): "messages.1",
    ("messages", "Depending on the implementation"): "messages.2",
    ("messages", "A list of ChatMessage"): "messages.1",
    ("addAsync", "@Experimental"): "async.2",
    ("addAsync", "Non-blocking counterpart"): "async.1",
    ("addAsync", "It takes a list"): "async.2",
    ("addAsync", "The default implementation returns"): "async.3 async.4",
    ("addAsync", "Implementations should compose"): "async.5",
    ("addAsync", "Callers must not"): "async.6",
    ("addAsync", "The AI Service chains"): "async.7",
    ("addAsync", "Note that this race"): "async.8",
    ("addAsync", "messages - The"): "async.2",
    ("addAsync", "A future that completes"): "async.9",
    ("setAsync", "@Experimental"): "async.10",
    ("setAsync", "Non-blocking counterpart"): "async.1",
    ("setAsync", "Replaces the entire"): "async.10",
    ("setAsync", "Like the other async"): "async.6 async.10",
    ("setAsync", "The default implementation returns"): "async.3",
    ("setAsync", "messages - The"): "async.10",
    ("setAsync", "A future that completes"): "async.9",
    ("messagesAsync", "@Experimental"): "async.1",
    ("messagesAsync", "Non-blocking counterpart"): "async.1",
    ("messagesAsync", "The default implementation returns"): "async.3",
    ("messagesAsync", "A future that completes"): "async.9",
    ("clear", "void clear()"): "clear.1",
    ("clear", "Clears the chat memory"): "clear.1",
}
LABELS = {"Interface ChatMemory", "All Known Implementing Classes:", "public interface ChatMemory"}
LABELS |= {"• Method Details", "Parameters:", "Returns:", "Since:"}


def said() -> list[tuple[str, str]]:
    """Return the document's sentences, each with the method that it is about."""
    found, method = [], ""
    for line in DOCUMENT.read_text(encoding="utf-8").replace("\xa0", " ").splitlines():
        heading = METHOD.match(line)
        if heading is not None and heading["name"] not in ("Method",):
            method = heading["name"]
        elif (text := line.strip()) and text not in LABELS and not re.fullmatch(r"\d+\.\d+\.\d+", text):
            found += [(method, sentence) for sentence in re.split(r"(?<=[\w)]\.) +(?=[A-Z])", text)]
    return found


def rows() -> dict[str, str]:
    """Return the rows of the page's table by their names."""
    return {found["row"]: found[0] for found in ROW.finditer(PAGE)}


@cache
def defined_in(path: str) -> set[str]:
    tree = ast.parse((REPOSITORY / path).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@beside_the_document
def test_each_sentence_has_its_rows() -> None:
    sentences = said()
    assert len(sentences) == 59
    for method, sentence in sentences:
        answers = [key for key in SENTENCES if key[0] == method and sentence.startswith(key[1])]
        assert answers, f"nothing answers {method}: {sentence}"


@beside_the_document
def test_each_answer_has_its_sentence() -> None:
    sentences = said()
    for method, beginning in SENTENCES:
        assert any(about == method and sentence.startswith(beginning) for about, sentence in sentences), beginning


def test_each_row_is_there_and_answers_something() -> None:
    answering = {row for named in SENTENCES.values() for row in named.split()}
    assert answering == set(rows())


def test_each_row_names_a_test_that_exists() -> None:
    table = PAGE.partition("## What is different")[2].partition("## When to use")[0]
    differences = [line for line in table.splitlines() if line.startswith("| ") and "---" not in line][1:]
    assert len(differences) > 10
    for row in [*rows().values(), *differences]:
        proofs = PROOF.findall(row)
        assert len(proofs) == 1, row
        path, name = proofs[0]
        assert name in defined_in(path), f"{path} has no {name}"
