"""Nothing that users said, no metadata and no password shows in errors, logs, warnings, reprs or statistics.

A canary goes into every place where content may be, every error path that can be named is walked, and whatever comes
out is searched: the error with its arguments, attributes, notes, causes and contexts (also suppressed ones, which
error trackers send along), its traceback as text, log records with what they carry, warnings, and the process's output.
"""

from __future__ import annotations

import logging
import sqlite3
import traceback
import warnings
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Never

import anyio
import msgspec
import pytest

import turnkeeper
from support.schedule import Gate
from turnkeeper import (
    AssistantMessage,
    InvalidArgumentError,
    StoreUnavailableError,
    SystemMessage,
    ToolCall,
    ToolMessage,
    TurnkeeperError,
    UserMessage,
    Version,
)
from turnkeeper.compactable import Compactable
from turnkeeper.forking import Fork
from turnkeeper.history import HistoryEntry, HistoryPage
from turnkeeper.log import (
    Conflict,
    Details,
    Entry,
    Head,
    Key,
    NewMeta,
    Outcome,
    Removed,
    Slice,
    StoredEntry,
    StoredReceipt,
)
from turnkeeper.messages import encode_messages
from turnkeeper.metadata import StoredMetadata, describe, encode_metadata
from turnkeeper.names import MemoryName
from turnkeeper.requests import Request
from turnkeeper.stores import (
    EncryptedStore,
    InMemoryStore,
    Keyring,
    Loaded,
    LoadQuery,
    SearchQuery,
    SQLiteStore,
    store_from_url,
)

# Tokens that no identifier and no line of source can contain by chance: tracebacks are searched as well.
SECRETS = ("c4n4" + "ry77", "p455" + "w0rd")
CANARY, PASSWORD = [f"{secret}-and-so-on" for secret in SECRETS]

SAID: dict[str, Any] = {"role": "user", "content": CANARY, "metadata": {CANARY: [CANARY]}}
CALL: dict[str, Any] = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": CANARY, "type": "function", "function": {"name": CANARY, "arguments": CANARY}}],
}


class Searcher:
    """Walks what an error is made of and collects where a secret shows."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self._seen: set[int] = set()

    def text(self, where: str, text: str) -> None:
        """Search a text."""
        if any(secret.lower() in text.lower() for secret in SECRETS):
            self.found.append(where)

    def value(self, where: str, value: object) -> None:
        """Search a value and what is in it."""
        if id(value) in self._seen:
            return
        self._seen.add(id(value))
        if isinstance(value, BaseException):
            self.error(where, value)
        elif isinstance(value, (list, tuple, set, frozenset)):
            for item in value:
                self.value(where, item)
        elif isinstance(value, dict):
            for key, item in value.items():
                self.value(where, key)
                self.value(where, item)
        else:
            self.text(where, value if isinstance(value, str) else repr(value))

    def error(self, where: str, error: BaseException) -> None:
        """Search an error and everything that hangs on it."""
        self._seen.add(id(error))
        where = f"{where}{type(error).__name__}"
        self.text(f"str of {where}", str(error))
        self.text(f"repr of {where}", repr(error))
        self.text(f"traceback of {where}", "".join(traceback.format_exception(error)))
        self.value(f"arguments of {where}", error.args)
        self.value(f"attributes of {where}", vars(error))
        if isinstance(error, UnicodeError):
            self.value(f"object of {where}", getattr(error, "object", None))
        if isinstance(error, BaseExceptionGroup):
            self.value(f"{where} / ", error.exceptions)
        if error.__cause__ is not None:
            self.value(f"{where} < cause ", error.__cause__)
        if error.__context__ is not None:
            self.value(f"{where} < context ", error.__context__)


def leaks(error: BaseException) -> list[str]:
    """Return where an error shows a secret."""
    searcher = Searcher()
    searcher.error("", error)
    return searcher.found


@contextmanager
def silence(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Fail when logs at DEBUG, warnings or the process's output show a secret."""
    caplog.clear()
    with caplog.at_level(logging.DEBUG), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        yield
    searcher = Searcher()
    formatter = logging.Formatter("%(name)s %(levelname)s %(message)s")
    for record in caplog.records:
        searcher.text(f"log record of {record.name}", formatter.format(record))
        searcher.value(f"arguments of a log record of {record.name}", record.args)
        searcher.value(f"error of a log record of {record.name}", record.exc_info and record.exc_info[1])
    for warning in warned:
        searcher.value("warning ", warning.message)
    output = capfd.readouterr()
    searcher.text("standard output", output.out)
    searcher.text("standard error", output.err)
    assert not searcher.found, f"secrets found: {searcher.found}"


class Scenario:
    """One error path: what is done, in a directory of its own, until it raises."""

    def __init__(self, name: str, play: Callable[[Path], Awaitable[object]]) -> None:
        self.name = name
        self.play = play


SCENARIOS: list[Scenario] = []


def scenario(play: Callable[[Path], Awaitable[object]]) -> Callable[[Path], Awaitable[object]]:
    """Enter a scenario under its function's name."""
    SCENARIOS.append(Scenario(play.__name__, play))
    return play


@pytest.mark.anyio
async def test_no_error_shows_what_was_said(
    error_path: Scenario, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with silence(caplog, capfd), pytest.raises(TurnkeeperError) as raised:
        await error_path.play(tmp_path)
    assert leaks(raised.value) == []


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Hand out the scenarios, which are defined below."""
    if "error_path" in metafunc.fixturenames:
        metafunc.parametrize("error_path", SCENARIOS, ids=[each.name for each in SCENARIOS])


# What is no message


class Secretive:
    """An object whose repr tells everything."""

    def __repr__(self) -> str:
        return CANARY


def cyclic() -> list[Any]:
    items: list[Any] = [CANARY]
    items.append(items)
    return items


def deep() -> list[Any]:
    items: list[Any] = [CANARY]
    for _ in range(100_000):
        items = [items]
    return items


@scenario
async def an_entry_that_another_key_sealed(_: Path) -> None:
    inner = InMemoryStore()
    async with turnkeeper.open_runtime(EncryptedStore(inner, Keyring({"k": b"1" * 32}, active="k"))) as runtime:
        await runtime.memory("m").add({"role": "user", "content": CANARY})
    async with turnkeeper.open_runtime(EncryptedStore(inner, Keyring({"k": b"2" * 32}, active="k"))) as runtime:
        await runtime.memory("m").messages()


NO_MESSAGES: dict[str, Callable[[], Any]] = {
    "text": lambda: [CANARY],
    "bytes": lambda: CANARY.encode(),
    "object": lambda: [Secretive()],
    "no role": lambda: {"content": CANARY},
    "unknown role": lambda: SAID | {"role": CANARY},
    "role that is a list": lambda: SAID | {"role": [CANARY]},
    "role that is a mapping": lambda: SAID | {"role": {CANARY: CANARY}},
    "result without call id": lambda: SAID | {"role": "tool"},
    "call id that is a mapping": lambda: SAID | {"role": "tool", "tool_call_id": {CANARY: 1}},
    "function without name": lambda: SAID | {"role": "function"},
    "calls that are text": lambda: {"role": "assistant", "tool_calls": CANARY},
    "call that is text": lambda: {"role": "assistant", "tool_calls": [CANARY]},
    "call without id": lambda: {"role": "assistant", "tool_calls": [{"function": {"arguments": CANARY}}]},
    "call with an odd id": lambda: {"role": "assistant", "tool_calls": [{"id": [CANARY]}]},
    "second is wrong": lambda: [SAID, CALL, {"content": CANARY}],
    "value that is an object": lambda: SAID | {"more": Secretive()},
    "value deep inside": lambda: SAID | {"more": {CANARY: [{CANARY: Secretive()}]}},
    "part that is an object": lambda: SAID | {"content": [CANARY, Secretive()]},
    "value that is bytes": lambda: SAID | {"more": CANARY.encode()},
    "value that is a set": lambda: SAID | {"more": {CANARY}},
    "value that is not a number": lambda: SAID | {"more": [CANARY, float("nan")]},
    "value that is infinite": lambda: SAID | {"more": {CANARY: float("inf")}},
    "number too large": lambda: SAID | {"more": [CANARY, 10**5000]},
    "key that is a number": lambda: SAID | {"more": {CANARY: {1: CANARY}}},
    "key that is a tuple": lambda: SAID | {"more": {(CANARY,): CANARY}},
    "key that is bytes": lambda: SAID | {"more": {CANARY.encode(): 1}},
    "key that is an object": lambda: SAID | {"more": {Secretive(): 1}},
    "cycle": lambda: SAID | {"more": cyclic()},
    "too deep": lambda: SAID | {"more": deep()},
    "surrogate and an object": lambda: SAID | {"more": [CANARY + "\ud83d", Secretive()]},
    "surrogate and bytes": lambda: SAID | {"more": [CANARY + "\ud83d", CANARY.encode()]},
    "surrogate and no number": lambda: SAID | {"more": [CANARY + "\ud83d", float("nan")]},
    "surrogate and a numeric key": lambda: SAID | {"more": [CANARY + "\ud83d", {1: CANARY}]},
    "surrogate and a tuple key": lambda: SAID | {"more": [CANARY + "\ud83d", {(1, CANARY): CANARY}]},
    "surrogate and a cycle": lambda: SAID | {"more": [CANARY + "\ud83d", cyclic()]},
    "surrogate in a key and an object": lambda: SAID | {"more": {CANARY + "\ud83d": Secretive()}},
    "surrogate and a role": lambda: SAID | {"role": CANARY + "\ud83d"},
}


def _no_message_scenarios() -> None:
    for name, make in NO_MESSAGES.items():

        async def play_add(directory: Path, make: Callable[[], Any] = make) -> None:
            async with turnkeeper.open_runtime(f"sqlite:///{directory}/chats.db") as runtime:
                await runtime.memory("m").add(make())

        async def play_set(directory: Path, make: Callable[[], Any] = make) -> None:
            async with turnkeeper.open_runtime("memory:") as runtime:
                await runtime.memory("m").set(make(), idempotency_key=CANARY)

        SCENARIOS.append(Scenario(f"add: {name}", play_add))
        SCENARIOS.append(Scenario(f"set: {name}", play_set))


_no_message_scenarios()


@scenario
async def a_message_class_with_an_object(_: Path) -> None:
    UserMessage(CANARY, more=Secretive())


@scenario
async def a_message_class_with_a_surrogate_and_an_object(_: Path) -> None:
    SystemMessage(CANARY + "\ud83d", more=Secretive())


@scenario
async def an_assistant_message_with_an_odd_call(_: Path) -> None:
    AssistantMessage(CANARY, tool_calls=[{"function": {"arguments": CANARY}}])


@scenario
async def a_tool_message_with_an_odd_call_id(_: Path) -> None:
    ToolMessage(CANARY, tool_call_id=[CANARY])  # type: ignore[arg-type]


# Arguments beside messages


@scenario
async def setting_nothing(_: Path) -> None:
    async with turnkeeper.open_runtime("memory:") as runtime:
        await runtime.memory("m").add(SAID)
        await runtime.memory("m").set([])


@scenario
async def a_message_larger_than_the_window(_: Path) -> None:
    async with turnkeeper.open_runtime("memory:", window=turnkeeper.TokenWindow(5)) as runtime:
        await runtime.memory("m").add(SAID)


@scenario
async def a_text_as_a_version(_: Path) -> None:
    async with turnkeeper.open_runtime("memory:") as runtime:
        await runtime.memory("m").set(SAID, if_version=CANARY)  # type: ignore[arg-type]


@scenario
async def a_text_that_is_no_version(_: Path) -> None:
    Version.parse(CANARY)


@scenario
async def a_key_that_is_no_text(_: Path) -> None:
    async with turnkeeper.open_runtime("memory:") as runtime:
        await runtime.memory("m").add(SAID, idempotency_key=[CANARY])  # type: ignore[arg-type]


@scenario
async def a_key_with_a_surrogate(_: Path) -> None:
    async with turnkeeper.open_runtime("memory:") as runtime:
        await runtime.memory("m").add(SAID, idempotency_key=CANARY + "\ud83d")


@scenario
async def a_store_that_fell_back(directory: Path) -> None:
    store = SQLiteStore(directory / "back.db")
    async with turnkeeper.open_runtime(store) as runtime:
        memory = runtime.memory("m")
        await memory.add(SAID)
        async with turnkeeper.open_runtime(SQLiteStore(directory / "other.db")) as other:
            version = (await other.memory("m").add([SAID, SAID])).version
        await memory.set([SAID], if_version=turnkeeper.Version(version.mid, version.n + 5))


@scenario
async def a_key_that_is_too_long(_: Path) -> None:
    async with turnkeeper.open_runtime("memory:") as runtime:
        await runtime.memory("m").add(SAID, idempotency_key=CANARY * 100)


@scenario
async def a_memory_id_with_a_control_character(_: Path) -> None:
    async with turnkeeper.open_runtime("memory:") as runtime:
        runtime.memory(CANARY + "\n")


@scenario
async def a_memory_id_with_a_surrogate(_: Path) -> None:
    async with turnkeeper.open_runtime("memory:") as runtime:
        runtime.memory(CANARY + "\ud83d")


@scenario
async def a_namespace_that_is_too_long(_: Path) -> None:
    async with turnkeeper.open_runtime("memory:") as runtime:
        runtime.memory("m", namespace=CANARY * 100)


# Conflicts and limits


@scenario
async def a_version_that_is_old(directory: Path) -> None:
    async with turnkeeper.open_runtime(f"sqlite:///{directory}/chats.db") as runtime:
        receipt = await runtime.memory("m").add(SAID)
        await runtime.memory("m").add(CALL)
        await runtime.memory("m").set(SAID, if_version=receipt.version)


@scenario
async def a_key_for_other_content(directory: Path) -> None:
    async with turnkeeper.open_runtime(f"sqlite:///{directory}/chats.db") as runtime:
        await runtime.memory("m").add(SAID, idempotency_key=CANARY)
        await runtime.memory("m").add(CALL, idempotency_key=CANARY)


@scenario
async def other_writers_that_always_win(directory: Path) -> None:
    class Contended(InMemoryStore):
        def commit(self, slices: Sequence[Slice], *, receipt_ttl: float) -> list[Outcome]:
            return [Conflict() for _ in slices]

    async with turnkeeper.open_runtime(Contended(), conflict_attempts=2) as runtime:
        await runtime.memory("m").add(SAID)


@scenario
async def too_much_at_once(directory: Path) -> None:
    with Gate() as gate:
        store = Failing(directory, commit=gate.stop_thread)
        async with (
            turnkeeper.open_runtime(store, max_pending=1, on_overload="reject") as runtime,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(runtime.memory("m").add, SAID)
            await gate.arrival()
            try:
                await runtime.memory("m").add(CALL)
            except TurnkeeperError as error:
                overloaded = error
            gate.open()
    raise overloaded


# Turns and compaction


@scenario
async def a_turn_in_a_turn(_: Path) -> None:
    async with turnkeeper.open_runtime("memory:") as runtime, runtime.memory("m").turn() as turn:
        await turn.add(SAID)
        await runtime.memory("m").add(CALL)


@scenario
async def a_turn_that_is_rejected(_: Path) -> None:
    async with turnkeeper.open_runtime("memory:") as runtime, anyio.create_task_group() as tasks:
        opened = anyio.Event()

        async def hold() -> None:
            async with runtime.memory("m").turn(commit="each") as turn:
                await turn.add(SAID)
                opened.set()
                await anyio.sleep_forever()

        tasks.start_soon(hold)
        await opened.wait()
        try:
            async with runtime.memory("m").turn(on_busy="reject", idempotency_key=CANARY):
                pass
        except TurnkeeperError as error:
            busy = error
        tasks.cancel_scope.cancel()
    raise busy


def _interruption_scenarios() -> None:
    for on_busy in ("interrupt", "rollback", "expired"):

        async def play(directory: Path, on_busy: Any = on_busy) -> None:
            errors: list[TurnkeeperError] = []
            async with turnkeeper.open_runtime(f"sqlite:///{directory}/chats.db") as runtime:
                opened, over = anyio.Event(), anyio.Event()

                async def first() -> None:
                    try:
                        async with runtime.memory("m").turn(commit="each", max_duration=0.01) as turn:
                            await turn.add(SAID, CALL)
                            opened.set()
                            await over.wait()
                            await turn.add(SAID)
                    except TurnkeeperError as error:
                        errors.append(error)

                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(first)
                    await opened.wait()
                    async with runtime.memory("m").turn(on_busy="enqueue" if on_busy == "expired" else on_busy) as turn:
                        await turn.add(SAID)
                    over.set()
            raise errors[0]

        SCENARIOS.append(Scenario(f"a turn that is over: {on_busy}", play))


_interruption_scenarios()


@scenario
async def a_turn_that_was_left(_: Path) -> None:
    async with turnkeeper.open_runtime("memory:") as runtime:
        async with runtime.memory("m").turn() as turn:
            await turn.add(SAID)
        await turn.add(CALL)


@scenario
async def a_turn_that_was_committed(_: Path) -> None:
    async with turnkeeper.open_runtime("memory:") as runtime:
        for _attempt in range(2):
            async with runtime.memory("m").turn(idempotency_key=CANARY) as turn:
                await turn.add(SAID, CALL)


@scenario
async def an_edit_of_a_message_that_is_not_there(_: Path) -> None:
    async with turnkeeper.open_runtime("memory:") as runtime:
        await runtime.memory("m").add(SAID)
        await runtime.memory("m").edit(CANARY, SAID)


@scenario
async def an_edit_that_changes_the_role(_: Path) -> None:
    async with turnkeeper.open_runtime("memory:") as runtime:
        await runtime.memory("m").add(SAID)
        await runtime.memory("m").edit("1.0", {"role": "assistant", "content": CANARY})


@scenario
async def a_fork_to_a_name_that_is_in_use(_: Path) -> None:
    async with turnkeeper.open_runtime("memory:") as runtime:
        await runtime.memory("m").set_metadata(title=CANARY, data={"secret": CANARY})
        await runtime.memory("m").add(SAID)
        await runtime.memory("other").add(SAID)
        await runtime.memory("m").fork("other")


@scenario
async def a_version_that_was_pruned(_: Path) -> None:
    async with turnkeeper.open_runtime("memory:", window=turnkeeper.MessageWindow(1), history="window") as runtime:
        memory = runtime.memory("m")
        first = await memory.add(SAID)
        for _again in range(3):
            await memory.add(SAID)
        await memory.messages(at=first.version)


@scenario
async def metadata_that_json_can_not_carry(_: Path) -> None:
    async with turnkeeper.open_runtime("memory:") as runtime:
        await runtime.memory("m").set_metadata(data={CANARY: {1, 2}})


@scenario
async def a_summary_of_what_was_replaced(_: Path) -> None:
    async with turnkeeper.open_runtime("memory:") as runtime:
        memory = runtime.memory("m")

        async def summarize(*_: object) -> str:
            await memory.clear()
            return CANARY

        for _exchange in range(3):
            await memory.add(SAID, {"role": "assistant", "content": CANARY})
        await memory.compact(summarize, keep=2)


@scenario
async def a_summariser_without_a_summary(_: Path) -> None:
    async with turnkeeper.open_runtime("memory:") as runtime:
        memory = runtime.memory("m")
        for _exchange in range(3):
            await memory.add(SAID, {"role": "assistant", "content": CANARY})
        await memory.compact(lambda *_: "", keep=2)


@scenario
async def a_summary_that_is_no_message(_: Path) -> None:
    async with turnkeeper.open_runtime("memory:") as runtime:
        memory = runtime.memory("m")
        for _exchange in range(3):
            await memory.add(SAID, {"role": "assistant", "content": CANARY})
        await memory.compact(lambda *_: {"role": CANARY, "content": CANARY}, keep=2)


@pytest.mark.anyio
async def test_of_a_turn_that_others_wrote_into_only_the_attribute_for_it_holds_content(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Paid work is handed back, where whoever asks for it finds it and nothing else shows it."""
    url = f"sqlite:///{tmp_path}/chats.db?shared=true"

    async def write_into_a_turn() -> None:
        async with (
            turnkeeper.open_runtime(url) as here,
            turnkeeper.open_runtime(url) as there,
            here.memory("m").turn() as turn,
        ):
            await turn.add(SAID, CALL)
            async with there.memory("m").turn(on_busy="interrupt") as other:
                await other.add(SAID)

    with silence(caplog, capfd), pytest.raises(turnkeeper.TurnConflictError) as raised:
        await write_into_a_turn()
    assert raised.value.messages == [SAID, CALL]
    raised.value.messages.clear()
    assert leaks(raised.value) == []


# Stores that fail


class ForeignError(Exception):
    """What a driver raises: its text has the statement's parameters in it, as many drivers do."""


def foreign() -> Never:
    """Raise a foreign error with a cause, full of content."""
    try:
        raise ValueError(f"can't bind {CANARY}")
    except ValueError as error:
        wrapped = ForeignError(f"INSERT … {CANARY}, connected as user:{PASSWORD}@host", {"parameters": [CANARY]})
        wrapped.add_note(CANARY)
        raise wrapped from error


class Failing(SQLiteStore):
    """Does something else first, where told."""

    def __init__(self, directory: Path, **first: Callable[[], object]) -> None:
        super().__init__(directory / "chats.db")
        self.first = first

    def _before(self, method: str) -> None:
        self.first.get(method, lambda: None)()

    def open(self, *, durability: str) -> None:
        self._before("open")
        super().open(durability=durability)

    def close(self) -> None:
        super().close()
        self._before("close")

    def commit(self, slices: Sequence[Slice], *, receipt_ttl: float) -> list[Outcome]:
        self._before("commit")
        outcomes = super().commit(slices, receipt_ttl=receipt_ttl)
        self._before("committed")
        return outcomes

    def settle(self, slices: Sequence[Slice]) -> list[Outcome | None]:
        self._before("settle")
        return super().settle(slices)

    def load(self, queries: Sequence[LoadQuery]) -> list[Loaded]:
        self._before("load")
        return super().load(queries)

    def receipts(self, names_and_keys: Sequence[tuple[MemoryName, str]]) -> list[StoredReceipt | None]:
        self._before("receipts")
        return super().receipts(names_and_keys)


@scenario
async def a_foreign_error_at_opening(directory: Path) -> None:
    async with turnkeeper.open_runtime(Failing(directory, open=foreign)):
        pass


@scenario
async def a_foreign_error_before_the_commit(directory: Path) -> None:
    async with turnkeeper.open_runtime(Failing(directory, commit=foreign)) as runtime:
        await runtime.memory("m").add(SAID, CALL)


@scenario
async def a_foreign_error_of_a_group(directory: Path) -> None:
    errors: list[TurnkeeperError] = []

    async def add(memory: turnkeeper.ChatMemory) -> None:
        try:
            await memory.add(SAID)
        except TurnkeeperError as error:
            errors.append(error)

    store = Failing(directory, commit=foreign)
    async with turnkeeper.open_runtime(store) as runtime, anyio.create_task_group() as tasks:
        for number in range(10):
            tasks.start_soon(add, runtime.memory(str(number)))
    assert len(errors) == 10
    raise errors[-1]


@scenario
async def an_outcome_that_nobody_knows(directory: Path) -> None:
    async with turnkeeper.open_runtime(Failing(directory, committed=foreign, settle=foreign)) as runtime:
        await runtime.memory("m").add(SAID)


@scenario
async def a_commit_that_takes_too_long(directory: Path) -> None:
    with Gate() as gate:
        store = Failing(directory, commit=gate.stop_thread)
        try:
            async with turnkeeper.open_runtime(store, commit_timeout=0.01, close_timeout=0.01) as runtime:
                await runtime.memory("m").add(SAID)
        finally:
            gate.open()


@scenario
async def a_foreign_error_at_loading(directory: Path) -> None:
    async with turnkeeper.open_runtime(Failing(directory, load=foreign)) as runtime:
        await runtime.memory("m").add(SAID)


@scenario
async def a_foreign_error_at_reading(directory: Path) -> None:
    async with turnkeeper.open_runtime(Failing(directory, load=foreign)) as runtime:
        await runtime.memory("m").messages()


@scenario
async def a_foreign_error_at_looking_up_a_key(directory: Path) -> None:
    async with turnkeeper.open_runtime(Failing(directory, receipts=foreign)) as runtime:
        receipt = await runtime.memory("m").add(SAID)
        await runtime.memory("m").add(SAID)
        await runtime.memory("m").set(SAID, if_version=receipt.version, idempotency_key=CANARY)


class InlineFailing(InMemoryStore):
    """Fails without a thread between it and the caller."""

    def commit(self, slices: Sequence[Slice], *, receipt_ttl: float) -> list[Outcome]:
        foreign()

    def load(self, queries: Sequence[LoadQuery]) -> list[Loaded]:
        if queries[0].name.id == "unreadable":
            foreign()
        return super().load(queries)


@scenario
async def a_foreign_error_of_an_inline_store(_: Path) -> None:
    async with turnkeeper.open_runtime(InlineFailing()) as runtime:
        await runtime.memory("m").add(SAID)


@scenario
async def a_foreign_error_of_an_inline_store_at_loading(_: Path) -> None:
    async with turnkeeper.open_runtime(InlineFailing()) as runtime:
        await runtime.memory("unreadable").messages()


class InlineStrange(InMemoryStore):
    """Fails at opening or closing without a thread between it and the caller."""

    def __init__(self, at: str) -> None:
        super().__init__()
        self.at = at

    def open(self, *, durability: str) -> None:
        if self.at == "open":
            foreign()

    def close(self) -> None:
        if self.at == "close":
            foreign()


@scenario
async def a_foreign_error_of_an_inline_store_at_opening(_: Path) -> None:
    async with turnkeeper.open_runtime(InlineStrange("open")):
        pass


@pytest.mark.anyio
@pytest.mark.parametrize("inline", [False, True])
async def test_an_error_at_closing_is_told_without_content(
    tmp_path: Path, inline: bool, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """As an error or as a warning in the log, but told: somebody may have to look after that store."""
    store = InlineStrange("close") if inline else Failing(tmp_path, close=foreign)
    told = False
    found: list[str] = []
    with silence(caplog, capfd):
        try:
            async with turnkeeper.open_runtime(store) as runtime:
                await runtime.memory("m").add(SAID)
        except TurnkeeperError as error:
            told, found = True, leaks(error)
    assert found == []
    warned = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert told or any("ForeignError" in message for message in warned)


# SQLite's own errors


def change(directory: Path, statement: str, *values: object) -> None:
    """Change the database behind the runtime's back."""
    with closing(sqlite3.connect(directory / "chats.db")) as connection, connection:
        connection.execute(statement, values)


@scenario
async def a_constraint_that_fails(directory: Path) -> None:
    async with turnkeeper.open_runtime(f"sqlite:///{directory}/chats.db") as runtime:
        trigger = "CREATE TRIGGER t BEFORE INSERT ON entry BEGIN SELECT RAISE(ABORT, 'no " + CANARY + "'); END"
        await anyio.to_thread.run_sync(change, directory, trigger)
        await runtime.memory("m").add(SAID)


@scenario
async def a_table_that_is_gone(directory: Path) -> None:
    async with turnkeeper.open_runtime(f"sqlite:///{directory}/chats.db") as runtime:
        await runtime.memory("m").add(SAID)
        await anyio.to_thread.run_sync(change, directory, "DROP TABLE entry")
        await runtime.memory("m").add(SAID)


@scenario
async def a_disk_that_is_full(directory: Path) -> None:
    store = SQLiteStore(directory / "chats.db")
    async with turnkeeper.open_runtime(store) as runtime:
        await runtime.memory("m").add(SAID)
        assert store._writer is not None
        store._writer.execute("PRAGMA max_page_count = 1")
        await runtime.memory("m").add(SAID | {"content": CANARY * 10_000})


@scenario
async def a_file_that_is_locked(directory: Path) -> None:
    async with turnkeeper.open_runtime(SQLiteStore(directory / "chats.db", busy_timeout=0.01)) as runtime:
        await runtime.memory("m").add(SAID)
        with closing(sqlite3.connect(directory / "chats.db", isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                await runtime.memory("m").add(SAID)
            finally:
                connection.execute("ROLLBACK")


# Rows that can't be read

RAW = CANARY.encode()
PAYLOADS = {
    "no JSON": RAW,
    "no UTF-8": b'{"messages":[{"role":"user","content":"' + RAW + b'\xff"}]}',
    "torn": b'{"messages":[{"role":"user","content":"' + RAW,
    "unknown role": b'{"messages":[{"role":"' + RAW + b'"}]}',
    "odd role": b'{"messages":[{"role":["' + RAW + b'"]}]}',
    "no list": b'{"messages":"' + RAW + b'"}',
    "no mapping": b'{"messages":["' + RAW + b'"]}',
    "surrogate and torn": b'{"messages":[{"role":"user","content":"\\ud83d' + RAW,
    "surrogate and no mapping": b'{"messages":["\\ud83d' + RAW + b'"]}',
    "surrogate and no number": b'{"messages":[{"role":"user","content":"\\ud83d' + RAW + b'","x":NaN}]}',
    "not a number": b'{"messages":[{"role":"user","content":"' + RAW + b'","x":NaN}]}',
    "too deep": b'{"messages":[{"role":"user","content":' + b"[" * 100_000 + b'"' + RAW,
    "another structure": b'{"' + RAW + b'":1}',
}
DAMAGES: dict[str, tuple[str, tuple[object, ...]]] = {
    f"payload: {name}": ("UPDATE entry SET payload = ?", (payload,)) for name, payload in PAYLOADS.items()
} | {
    "unknown kind": ("UPDATE entry SET op = ?", (CANARY,)),
    "kind that is no UTF-8": ("UPDATE entry SET op = CAST(? AS TEXT)", (RAW + b"\xff",)),
    "missing entry": ("DELETE FROM entry", ()),
    "head elsewhere": ("UPDATE head SET version = 7", ()),
}


def _damage_scenarios() -> None:
    for name, (statement, values) in DAMAGES.items():

        async def play(directory: Path, statement: str = statement, values: tuple[object, ...] = values) -> None:
            async with turnkeeper.open_runtime(f"sqlite:///{directory}/chats.db") as runtime:
                await runtime.memory("m").add(SAID)
            await anyio.to_thread.run_sync(change, directory, statement, *values)
            async with turnkeeper.open_runtime(f"sqlite:///{directory}/chats.db") as runtime:
                await runtime.memory("m").messages()

        SCENARIOS.append(Scenario(f"corrupt, {name}", play))


_damage_scenarios()


# Life and death of the runtime


@scenario
async def a_runtime_that_is_not_open(_: Path) -> None:
    await turnkeeper.open_runtime("memory:").memory("m").add(SAID)


@scenario
async def a_runtime_that_is_closed(_: Path) -> None:
    async with turnkeeper.open_runtime("memory:") as runtime:
        await runtime.memory("m").add(SAID)
    await runtime.memory("m").add(SAID)


@scenario
async def a_runtime_that_closes_while_the_store_stands_still(directory: Path) -> None:
    errors: list[TurnkeeperError] = []

    async def add(memory: turnkeeper.ChatMemory) -> None:
        try:
            await memory.add(SAID)
        except TurnkeeperError as error:
            errors.append(error)

    with Gate() as gate:
        async with anyio.create_task_group() as tasks:
            store = Failing(directory, commit=gate.stop_thread)
            async with turnkeeper.open_runtime(store, close_timeout=0.01) as runtime:
                for _ in range(5):
                    tasks.start_soon(add, runtime.memory("m"))
                await gate.arrival()
        gate.open()
    assert len(errors) == 5
    raise errors[-1]


@scenario
async def a_blocking_call_on_the_loops_own_thread(_: Path) -> None:
    async with turnkeeper.open_runtime("memory:") as runtime:
        runtime.sync.memory("m").add(SAID)


@scenario
async def a_call_from_a_foreign_thread(_: Path) -> None:
    async with turnkeeper.open_runtime("memory:") as runtime:
        await anyio.to_thread.run_sync(lambda: anyio.run(runtime.memory("m").add, SAID))


@scenario
async def an_invalid_message_from_a_thread(_: Path) -> None:
    async with turnkeeper.open_runtime("memory:") as runtime:
        await anyio.to_thread.run_sync(runtime.sync.memory("m").add, SAID | {"more": Secretive()})


@scenario
async def a_foreign_error_in_a_thread(directory: Path) -> None:
    async with turnkeeper.open_runtime(Failing(directory, commit=foreign)) as runtime:
        await anyio.to_thread.run_sync(runtime.sync.memory("m").add, SAID)


# Options and URLs


@pytest.mark.parametrize(
    "url",
    [
        f"postgres://user:{PASSWORD}@host/db?nonsense={PASSWORD}",
        f"postgres://user:{PASSWORD}@host/db?schema={PASSWORD}",
        f"postgresql+psycopg://user:{PASSWORD}@host:5432/db?sslmode=require",
        f"redis://:{PASSWORD}@host:6379/0?nonsense={PASSWORD}",
        f"rediss://user:{PASSWORD}@host/{PASSWORD}",
        f"mysql://user:{PASSWORD}@host/db",
        f"mongodb+srv://user:{PASSWORD}@host/db",
        f"http://user:{PASSWORD}@host/",
        f"sqlite://user:{PASSWORD}@host/chats.db",
        f"sqlite://{PASSWORD}@/chats.db",
        f"sqlite:user:{PASSWORD}@host/chats.db",
        f"sqlite:///chats.db?password={PASSWORD}",
        f"sqlite:///chats.db?key={PASSWORD}&shared=true",
        f"sqlite:///chats.db?shared={PASSWORD}",
        f"postgres://user:{PASSWORD}[@host/db",
        f"postgres://user:{PASSWORD}]@host/db",
        f"postgres://user:[{PASSWORD}]@host/db",
        f"postgres://[{PASSWORD}]/db",
        f"postgres://user:{PASSWORD}\u2100@host/db",
        f"postgres://user:{PASSWORD}\ud83d@host/db",
        f"postgres://user:{PASSWORD}@host:port/db",
        f"//user:{PASSWORD}@host/db",
        f"user:{PASSWORD}@host/db",
        f" mysql://user:{PASSWORD}@host/db",
        f"1://user:{PASSWORD}@host/db",
    ],
)
@pytest.mark.parametrize("front", [store_from_url, turnkeeper.open_runtime, turnkeeper.open_sync_runtime])
def test_no_error_repeats_a_urls_password(url: str, front: Callable[[str], Any]) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        front(url).__enter__()  # the blocking runtime looks at its arguments when it is entered
    assert leaks(raised.value) == []


@pytest.mark.parametrize("url", [f"postgresql://user:{PASSWORD}@127.0.0.1:1/db", f"redis://:{PASSWORD}@127.0.0.1:1/0"])
def test_a_server_that_is_not_there_is_told_without_the_password(url: str) -> None:
    store = store_from_url(url)
    with pytest.raises(StoreUnavailableError) as raised:
        store.open(durability="full")
    store.close()
    assert leaks(raised.value) == []


@pytest.mark.parametrize("option", ["durability", "consistency", "on_overload", "linger", "max_pending", "window"])
@pytest.mark.parametrize("value", [CANARY, [CANARY], Secretive()], ids=["text", "list", "object"])
def test_no_error_repeats_the_value_of_an_option(option: str, value: object) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        turnkeeper.open_runtime("memory:", **{option: value})  # type: ignore[arg-type]
    assert leaks(raised.value) == []


@pytest.mark.parametrize(
    "store", [Secretive(), [CANARY], CANARY.encode(), Path(CANARY)], ids=lambda one: type(one).__name__
)
def test_no_error_repeats_what_is_no_store(store: object) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        turnkeeper.open_runtime(store)  # type: ignore[arg-type]
    assert leaks(raised.value) == []


# What objects show of themselves


@pytest.mark.anyio
async def test_no_repr_and_no_statistics_show_content(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    store = SQLiteStore(tmp_path / "chats.db")
    with silence(caplog, capfd):
        async with turnkeeper.open_runtime(store) as runtime:
            memory = runtime.memory("m")
            receipt = await memory.add(SAID, CALL, idempotency_key="k")
            messages = await memory.messages()
            async with memory.turn() as turn:
                await turn.add(SAID)
            shown: list[object] = [
                runtime,
                turn,
                turn._session,
                turn._session._turn,
                runtime.sync.memory("m").turn(idempotency_key=CANARY),
                runtime.sync,
                runtime.sync.memory("m"),
                memory,
                receipt,
                receipt.version,
                messages,
                *messages,
                await memory.stats(),
                runtime.stats(),
                store,
                store.load([LoadQuery(MemoryName("", "m"))]),
                store.entries(receipt.version.mid, after=0, limit=10),
                store.names(namespace=None, after=None, limit=10),
                store.receipts([(MemoryName("", "m"), "k")]),
            ]
        for one in shown:
            for text in (repr(one), str(one), f"{one}"):
                assert not any(secret in text for secret in SECRETS), (
                    f"the repr of a {type(one).__name__} shows content"
                )


MESSAGES = encode_messages([SAID, CALL])


@pytest.mark.parametrize(
    "one",
    [
        SystemMessage(CANARY, name=CANARY),
        UserMessage([{"type": "text", "text": CANARY}], metadata=CANARY),
        AssistantMessage(CANARY, tool_calls=[ToolCall(CANARY, CANARY, CANARY)]),
        ToolMessage(CANARY, tool_call_id=CANARY),
        ToolCall("1", "name", CANARY),
        turnkeeper.Messages(MESSAGES, Version(1, 1)),
        turnkeeper.Unbounded(),
        Entry("add", b"", MESSAGES, Key("k", b"")),
        Slice(MemoryName("", "m"), 0, 0, (Entry("add", b"", MESSAGES),)),
        StoredEntry(1, "add", b"", RAW, 0),
        Loaded(None, 0, (StoredEntry(1, "add", b"", RAW, 0),)),
        Request("add", MESSAGES, key=Key("k", b"")),
        Compactable(MESSAGES, MESSAGES, 1, 1, 0, MESSAGES, 2),
        Details(stays=(1, 0, RAW.decode())),
        Entry("edit", b"", MESSAGES, None, Details(stays=(1, 0, RAW.decode()))),
        NewMeta(0, RAW),
        Slice(MemoryName("", "m"), 0, 0, (), meta=NewMeta(0, RAW)),
        Head(1, 1, 0, 0, 0, 0, 0, 1, RAW),
        Removed(Version(1, 1), MESSAGES),
        Fork(Version(1, 1), MESSAGES, False, 0),
        HistoryPage((HistoryEntry(Version(1, 1), 0.0, "add", MESSAGES),), None),
        describe(MemoryName("", "m"), Head(1, 1, 0, 0, 0, 0, 0, 1, encode_metadata(StoredMetadata(title=CANARY)))),
        SearchQuery(CANARY, None, "", 1, 0),
    ],
    ids=lambda one: type(one).__name__,
)
def test_no_record_shows_content(one: object) -> None:
    assert not any(secret in text for text in (repr(one), str(one)) for secret in SECRETS)


def test_the_fields_of_statistics_are_numbers_and_versions() -> None:
    for kind in (turnkeeper.MemoryStats, turnkeeper.RuntimeStats):
        assert {field.type for field in msgspec.structs.fields(kind)} <= {int, Version}


# The search itself


class TestTheSearch:
    """It finds what it should: a search that can't fail proves nothing."""

    def test_a_text(self) -> None:
        assert leaks(ValueError(f"bad {CANARY}"))

    def test_an_argument_that_str_does_not_show(self) -> None:
        class QuietError(Exception):
            def __str__(self) -> str:
                return "quiet"

            __repr__ = __str__

        assert leaks(QuietError({"parameters": [RAW]}))

    def test_an_attribute(self) -> None:
        error = ValueError("quiet")
        error.detail = CANARY  # type: ignore[attr-defined]
        assert leaks(error)

    def test_a_note(self) -> None:
        error = ValueError("quiet")
        error.add_note(CANARY)
        assert leaks(error)

    def test_the_object_of_a_unicode_error(self) -> None:
        with pytest.raises(UnicodeEncodeError) as raised:
            (CANARY + "\ud83d").encode()
        assert leaks(raised.value)

    @pytest.mark.parametrize("how", ["cause", "context", "suppressed context"])
    def test_what_hangs_on_it(self, how: str) -> None:
        def fail() -> Never:
            try:
                raise KeyError(CANARY)
            except KeyError as inner:
                if how == "cause":
                    raise ValueError("quiet") from inner
                if how == "context":
                    raise ValueError("quiet")  # noqa: B904
                raise ValueError("quiet") from None

        with pytest.raises(ValueError, match="quiet") as raised:
            fail()
        assert leaks(raised.value)

    def test_an_error_in_a_group(self) -> None:
        assert leaks(ExceptionGroup("quiet", [ValueError(CANARY)]))

    def test_a_password(self) -> None:
        assert leaks(ValueError(f"postgres://user:{PASSWORD}@host"))

    @pytest.mark.parametrize("way", ["message", "argument", "error", "warning", "output"])
    def test_logs_warnings_and_output(
        self, way: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
    ) -> None:
        def tell() -> None:
            logger = logging.getLogger("turnkeeper")
            if way == "message":
                logger.debug(CANARY)
            elif way == "argument":
                logger.debug("quiet %.0s", CANARY)
            elif way == "error":
                logger.debug("quiet", exc_info=ValueError(CANARY))
            elif way == "warning":
                warnings.warn(CANARY, stacklevel=1)
            else:
                print(CANARY)  # noqa: T201

        with pytest.raises(AssertionError, match="secrets found"), silence(caplog, capfd):
            tell()

    def test_silence_is_fine(self, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
        with silence(caplog, capfd):
            logging.getLogger("turnkeeper").debug("quiet")
        assert leaks(ValueError("quiet")) == []


def test_every_kind_of_error_is_walked(request: pytest.FixtureRequest) -> None:
    """A new error class needs a scenario: this list says which one raises it."""
    raised_by = {
        "AcknowledgedDataLostError": "a_store_that_fell_back",
        "CompactionAbandonedError": "a_summary_of_what_was_replaced",
        "CompactionError": "a_summariser_without_a_summary",
        "ConflictError": "a_version_that_is_old",
        "ContentionError": "other_writers_that_always_win",
        "DecryptionError": "an_entry_that_another_key_sealed",
        "HistoryPrunedError": "a_version_that_was_pruned",
        "IdempotencyMismatchError": "a_key_for_other_content",
        "InvalidArgumentError": "setting_nothing",
        "InvalidMemoryIdError": "a_memory_id_with_a_surrogate",
        "InvalidMessageError": "add: no role",
        "InvalidStoreURLError": "test_no_error_repeats_a_urls_password",
        "MemoryCorruptError": "corrupt, payload: no JSON",
        "MemoryExistsError": "a_fork_to_a_name_that_is_in_use",
        "MessageNotFoundError": "an_edit_of_a_message_that_is_not_there",
        "MissingExtraError": "raised for a missing package: nothing is known of any content",
        "NestedTurnError": "a_turn_in_a_turn",
        "OutcomeUnknownError": "an_outcome_that_nobody_knows",
        "OverloadedError": "too_much_at_once",
        "RuntimeClosedError": "a_runtime_that_is_closed",
        "RuntimeUsageError": "a_blocking_call_on_the_loops_own_thread",
        "StoreError": "a_foreign_error_before_the_commit",
        "StoreFormatError": "raised at opening: nothing is known of any content",
        "StoreInUseError": "raised at opening: nothing is known of any content",
        "StoreUnavailableError": "a_disk_that_is_full",
        "TurnAlreadyCommittedError": "a_turn_that_was_committed",
        "TurnBusyError": "a_turn_that_is_rejected",
        "TurnConflictError": "test_of_a_turn_that_others_wrote_into_only_the_attribute_for_it_holds_content",
        "TurnEndedError": "a_turn_that_was_left",
        "TurnInterruptedError": "a turn that is over: interrupt",
        "TurnkeeperError": "the base",
        "WindowOverflowError": "a_message_larger_than_the_window",
    }
    assert set(raised_by) == {name for name in turnkeeper.__all__ if name.endswith("Error")}


def test_the_logger_is_silent_until_somebody_listens() -> None:
    handlers = logging.getLogger("turnkeeper").handlers
    assert any(isinstance(handler, logging.NullHandler) for handler in handlers)
