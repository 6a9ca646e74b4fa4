"""What `turnkeeper demo` claims about one conversation in use by many: each function checks it and returns evidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
from anyio import to_thread

from turnkeeper.cli.claims import require
from turnkeeper.cli.live import LiveReplay
from turnkeeper.cli.loops import installed_backends, run_on
from turnkeeper.cli.replay_check import check_in_fresh_process
from turnkeeper.errors import ConflictError, RuntimeUsageError
from turnkeeper.opening import Runtime, open_runtime
from turnkeeper.sync import SyncRuntime, open_sync_runtime

__all__ = [
    "cancelled_adds",
    "idempotent_retry",
    "many_senders",
    "plain_script",
    "replayed_sample",
    "stale_writer",
    "two_at_once",
]

_TASKS: Final = 200
_THREADS: Final = 16
_EACH: Final = 10
_CANCELS: Final = 60


def replayed_sample(directory: Path, sample: Path) -> str:
    """Play the sample on every event loop there is, and have a new process compare the logs."""
    url = _url(directory, "sample.db")
    counts: list[tuple[int, int, int]] = []

    async def play(backend: str) -> None:
        async with open_runtime(url) as runtime:
            replay = LiveReplay(runtime, namespace=backend, clients=31)
            await replay.run([sample], copies=1)
        counts.append((replay.finished, replay.acknowledged, replay.reads.count))

    for backend in installed_backends():
        run_on(backend, play, backend)
    checked = check_in_fresh_process([sample], url, namespace=installed_backends()[-1], copies=1)
    require(checked.startswith("checked by process"), "a new process did not confirm the logs")
    require(len({count[:2] for count in counts}) == 1, "the loops did not store the same")
    conversations, messages, reads = counts[-1]
    return (
        f"{conversations} conversations at once, {messages} messages one by one, {reads} reads beside them, on "
        f"{', '.join(installed_backends())}; then a new process found every log equal to its input"
    )


async def two_at_once(runtime: Runtime) -> str:
    """Send two messages to one conversation at the same moment."""
    memory = runtime.memory("two-at-once")
    await memory.add({"role": "user", "content": "Which trains run on Sunday?"})
    start = anyio.Event()

    async def send(text: str) -> None:
        await start.wait()
        await memory.add({"role": "user", "content": text})

    async with anyio.create_task_group() as group:
        group.start_soon(send, "from the phone: to Lyon, please")
        group.start_soon(send, "from the laptop: and back on Monday")
        await anyio.sleep(0.01)
        start.set()
    said = [message.text.partition(":")[0] for message in await memory.messages()][1:]
    require(sorted(said) == ["from the laptop", "from the phone"], "one of the two is lost or doubled")
    return f"both are there, once each, one behind the other: {said[0]}, then {said[1]}"


async def many_senders(runtime: Runtime) -> str:
    """Let tasks and threads write to one conversation at once."""
    memory = runtime.memory("many-senders")
    start = anyio.Event()

    async def task(number: int) -> None:
        await start.wait()
        for step in range(2):
            await memory.add({"role": "user", "content": f"task {number} {step}"})

    def thread(number: int) -> None:
        blocking = runtime.sync.memory("many-senders")
        for step in range(_EACH):
            blocking.add({"role": "user", "content": f"thread {number} {step}"})

    async with anyio.create_task_group() as group:
        limiter = anyio.CapacityLimiter(_THREADS)
        for number in range(_TASKS):
            group.start_soon(task, number)
        for number in range(_THREADS):
            group.start_soon(partial(to_thread.run_sync, limiter=limiter), thread, number)
        await anyio.sleep(0.01)
        start.set()
    senders: dict[str, list[int]] = {}
    view = await memory.messages()
    for message in view:
        sender, _, step = message.text.rpartition(" ")
        senders.setdefault(sender, []).append(int(step))
    expected = {f"task {number}": list(range(2)) for number in range(_TASKS)}
    expected |= {f"thread {number}": list(range(_EACH)) for number in range(_THREADS)}
    require(senders == expected, "a message is lost, doubled or out of its sender's order")
    return (
        f"{_TASKS} tasks and {_THREADS} threads wrote {len(view)} messages to one conversation: nothing lost, nothing "
        "doubled, each sender's order kept"
    )


async def cancelled_adds(runtime: Runtime) -> str:
    """Cancel adds before they are taken, and then at many moments on their way."""
    memory = runtime.memory("cancelled")
    with anyio.CancelScope() as scope:
        scope.cancel()
        await memory.add({"role": "user", "content": "never mind"})
    require(not await memory.messages(), "an add that was cancelled before it was taken left a trace")
    acknowledged: set[str] = set()
    for number in range(_CANCELS):
        with anyio.move_on_after(number * 5e-5):
            await memory.add([{"role": "user", "content": f"{number}"} for _ in range(3)])
            acknowledged.add(f"{number}")
    found = Counter(message.text for message in await memory.messages())
    require(set(found.values()) <= {3}, "an add that was cancelled on its way is there in part")
    require(acknowledged <= found.keys(), "an acknowledged add is gone")
    return (
        f"cancelled at {_CANCELS} different moments, {len(found)} batches of 3 are there whole and "
        f"{_CANCELS - len(found)} left no trace; none is there in part"
    )


async def stale_writer(runtime: Runtime) -> str:
    """Replace a conversation from an old view of it."""
    memory = runtime.memory("stale-writer")
    await memory.add({"role": "user", "content": "first"})
    seen = await memory.messages()
    await memory.add({"role": "user", "content": "second"})
    refused = await _refusal(memory.set({"role": "system", "content": "a summary"}, if_version=seen.version))
    require(refused, "a stale writer was not refused")
    now = await memory.messages()
    require([message.text for message in now] == ["first", "second"], "a refused set changed the conversation")
    await memory.set({"role": "system", "content": "a summary"}, if_version=now.version)
    return "set(if_version=) from an old view was refused and changed nothing; from a fresh view it went through"


async def _refusal(attempt: Awaitable[Any]) -> bool:
    try:
        await attempt
    except ConflictError:
        return True
    return False


async def idempotent_retry(directory: Path) -> str:
    """Repeat a request, at once and after a restart."""
    url, message = _url(directory, "retry.db"), {"role": "user", "content": "Pay the invoice"}
    receipts = []
    for _ in range(2):
        async with open_runtime(url) as runtime:
            memory = runtime.memory("retry")
            receipts += [await memory.add(message, idempotency_key="request-1") for _ in range(2)]
            require(len(await memory.messages()) == 1, "a repeated request was stored twice")
    require(len(set(map(str, (receipt.version for receipt in receipts)))) == 1, "the receipts differ")
    return "sent four times with one idempotency_key, twice of them after a restart: stored once, the same receipt"


async def plain_script(runtime: Runtime, directory: Path) -> str:
    """Use blocking calls: in a plain script, and where they could never return."""
    try:
        runtime.sync.memory("blocking").add({"role": "user", "content": "Hi"})
    except RuntimeUsageError:
        pass
    else:
        require(False, "a blocking call on the event loop's thread was not refused")
    count = await to_thread.run_sync(_script, _url(directory, "script.db"))
    require(count == 2, "a plain script's messages are not there")
    return "a script without async wrote and read; a blocking call that would hang the event loop is refused instead"


def _script(url: str) -> int:
    for text in ("Hi", "Hi again"):
        with open_sync_runtime(url) as runtime:
            _add(runtime, text)
    with open_sync_runtime(url) as runtime:
        return len(runtime.memory("script").messages())


def _add(runtime: SyncRuntime, text: str) -> None:
    runtime.memory("script").add({"role": "user", "content": text})


def _url(directory: Path, name: str) -> str:
    return f"sqlite:///{directory / name}"
