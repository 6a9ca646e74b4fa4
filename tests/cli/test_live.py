"""Conversations are live together, readers look at them all the while, and both notice what must not be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest
from anyio.lowlevel import checkpoint

from turnkeeper import Runtime, open_runtime
from turnkeeper.cli.comparing import Difference, DifferenceError
from turnkeeper.cli.live import LiveReplay
from turnkeeper.cli.transcripts import TranscriptError
from turnkeeper.messages import Message

pytestmark = pytest.mark.anyio

TALK = [{"role": "user", "content": f"message {number}"} for number in range(8)]


class FakeRuntime:
    """Keeps conversations in lists, each add taking a while, and may lie to readers.

    Attributes:
        live: conversations begun and not complete, by the number of messages they have.
        peak: most of them at once.
        reads: what was read, by id.
    """

    def __init__(self, lie: Any = tuple, version_offset: int = 0) -> None:
        self.logs: dict[str, list[Message]] = {}
        self.peak = 0
        self.reads: Counter[str] = Counter()
        self.reads_while_live = 0
        self.deleted: list[str] = []
        self._lie = lie
        self._offset = version_offset

    @property
    def live(self) -> int:
        return sum(0 < len(log) < len(TALK) for log in self.logs.values())

    def memory(self, memory_id: str, namespace: str = "") -> Any:
        log = self.logs.setdefault(f"{namespace}/{memory_id}" if namespace else memory_id, [])

        async def add(message: Message) -> Any:
            await anyio.sleep(0.003)
            log.append(message)
            self.peak = max(self.peak, self.live)
            return SimpleNamespace(version=SimpleNamespace(n=len(log) + self._offset))

        async def messages() -> Sequence[Message]:
            seen = self._lie(log)
            self.reads[memory_id] += 1
            self.reads_while_live += 0 < len(log) < len(TALK)
            await checkpoint()
            return cast("Sequence[Message]", seen)

        async def delete() -> bool:
            self.deleted.append(memory_id)
            return True

        return SimpleNamespace(id=memory_id, add=add, messages=messages, delete=delete)


def replay_of(runtime: FakeRuntime, clients: int, **options: Any) -> LiveReplay:
    return LiveReplay(cast(Runtime, runtime), namespace="", clients=clients, **options)


@pytest.fixture
def ten(chats: Any) -> Path:
    return cast(Path, chats(**{f"c{number}": TALK for number in range(10)}))


@pytest.mark.parametrize("clients", [1, 4, 10])
async def test_as_many_conversations_are_live_as_there_are_clients(ten: Path, clients: int) -> None:
    runtime = FakeRuntime()
    replay = replay_of(runtime, clients)
    await replay.run([ten], copies=2)
    assert clients - 1 <= runtime.peak <= clients  # at its first and last message one is not counted
    assert (replay.finished, replay.acknowledged) == (20, 160)
    assert set(runtime.logs) == {f"c{number}{copy}" for number in range(10) for copy in ("", "#1")}


async def test_readers_read_beside_the_writers(ten: Path) -> None:
    runtime = FakeRuntime()
    replay = replay_of(runtime, 4)
    await replay.run([ten], copies=1)
    assert runtime.reads_while_live > 10
    assert set(runtime.reads) == {f"c{number}" for number in range(10)}  # each at least when it was complete
    assert replay.reads.count == runtime.reads.total()
    assert replay.adds.count == 80
    assert replay.adds.percentile(50) >= 0.0025


async def failure_of(replay: LiveReplay, path: Path) -> BaseException:
    with pytest.raises(BaseExceptionGroup) as caught:
        await replay.run([path], copies=1)
    error: BaseException = caught.value
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


@pytest.mark.parametrize(
    ("lie", "kind"),
    [
        (lambda log: log[:-1], "missing"),
        (lambda log: log + log[-1:], "different"),
        (lambda log: log[::-1], "different"),
        (lambda log: [*log, *log[-1:]] if len(log) == len(TALK) else log, "extra"),
    ],
)
async def test_a_reader_notices_what_must_not_be(chats: Any, lie: Any, kind: str) -> None:
    error = await failure_of(replay_of(FakeRuntime(lie), 1), chats(a=TALK))
    assert isinstance(error, DifferenceError)
    assert error.difference.id == "a"
    assert error.difference.kind == kind


async def test_a_writer_notices_that_somebody_else_writes(chats: Any) -> None:
    error = await failure_of(replay_of(FakeRuntime(version_offset=1), 1), chats(a=TALK))
    assert isinstance(error, DifferenceError)
    assert error.difference == Difference("a", 1, "extra")


async def test_an_error_in_the_input_ends_it(chats: Any) -> None:
    path = chats(a=TALK)
    path.write_text(path.read_text() + "{")
    assert isinstance(await failure_of(replay_of(FakeRuntime(), 3), path), TranscriptError)


async def test_replacing_deletes_each_first(ten: Path) -> None:
    runtime = FakeRuntime()
    replay = replay_of(runtime, 4, replace=True)
    await replay.run([ten], copies=1)
    assert sorted(runtime.deleted) == sorted(f"c{number}" for number in range(10))
    assert replay.deleted == 10


async def test_progress_is_told_after_each_message(ten: Path) -> None:
    told: list[int] = []
    replay: LiveReplay = replay_of(FakeRuntime(), 4, on_progress=lambda: told.append(replay.acknowledged))
    await replay.run([ten], copies=1)
    assert told == list(range(1, 81))


async def test_it_works_on_a_real_runtime(ten: Path, tmp_path: Path) -> None:
    async with open_runtime(f"sqlite:///{tmp_path / 'chats.db'}") as runtime:
        replay = LiveReplay(runtime, namespace="n", clients=5)
        await replay.run([ten], copies=1)
        for number in range(10):
            assert (await runtime.memory(f"c{number}", "n").messages()).to_dicts() == TALK
    assert runtime.stats().commits == 80
