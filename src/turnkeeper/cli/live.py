"""Recorded conversations played as live ones: many at once, message by message, with readers beside the writers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Final

import anyio
from anyio import to_thread
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from turnkeeper.cli.comparing import Difference, DifferenceError, first_difference
from turnkeeper.cli.copies import copied
from turnkeeper.cli.latency import Latencies
from turnkeeper.cli.transcripts import Transcript, read_transcripts
from turnkeeper.memory import ChatMemory
from turnkeeper.messages import Message
from turnkeeper.opening import Runtime

__all__ = ["LiveReplay"]

_READERS_PAUSE: Final = 0.001
"""Seconds between two reads of one reader: users look often, but not in a tight loop that would starve the writers."""


class _Live:
    """A conversation that is being written: its handle, all it will say, and how much of that is acknowledged."""

    __slots__ = ("acknowledged", "memory", "messages")

    def __init__(self, memory: ChatMemory, messages: Sequence[Message]) -> None:
        self.memory = memory
        self.messages = messages
        self.acknowledged = 0


class LiveReplay:
    """Plays transcripts into a runtime.

    `clients` tasks take one conversation each at a time; only those are in RAM. Readers look at the live ones all the
    while: a view must begin like the input, hold everything acknowledged before it was asked for, and nothing else.

    Args:
        runtime: an open one.
        namespace: where the conversations go.
        clients: how many conversations are live at the same time.
        replace: delete what is there under their ids.
        on_progress: called after each message is acknowledged.

    Attributes:
        adds: latencies of `add`, from call to durable.
        reads: latencies of `messages`.
        acknowledged: messages written.
        finished: conversations written to their end.
        deleted: conversations that `replace` removed.
        seconds: time from the first conversation's begin to the last one's end.
    """

    def __init__(
        self,
        runtime: Runtime,
        *,
        namespace: str,
        clients: int,
        replace: bool = False,
        on_progress: Callable[[], None] = lambda: None,
    ) -> None:
        self.adds: Latencies = Latencies()
        self.reads: Latencies = Latencies()
        self.acknowledged: int = 0
        self.finished: int = 0
        self.deleted: int = 0
        self.seconds: float = 0.0
        self._runtime = runtime
        self._namespace = namespace
        self._replace = replace
        self._on_progress = on_progress
        self._live: list[_Live | None] = [None] * clients

    async def run(self, paths: Sequence[Path], copies: int) -> None:
        """Play all conversations of the files, each `copies` times.

        Raises (in exception groups):
            DifferenceError: a reader, or a writer by its receipt, saw what must not be.
            TranscriptError: a file can't be read (any more).
            TurnkeeperError: an add or read failed.
        """
        send, receive = anyio.create_memory_object_stream[Transcript]()
        started = perf_counter()
        try:
            async with anyio.create_task_group() as readers:
                for number in range(max(1, len(self._live) // 10)):
                    readers.start_soon(self._read_for_ever, Random(number))
                async with anyio.create_task_group() as writers, receive:
                    writers.start_soon(self._feed, read_transcripts(paths), copies, send)
                    for slot in range(len(self._live)):
                        writers.start_soon(self._write_all, slot, receive.clone())
                readers.cancel_scope.cancel()
        finally:
            self.seconds = perf_counter() - started

    async def _feed(
        self, transcripts: Iterator[Transcript], copies: int, send: MemoryObjectSendStream[Transcript]
    ) -> None:
        async with send:
            # Decoding a long conversation in the loop would show up in everybody's latency.
            while (transcript := await to_thread.run_sync(next, transcripts, None)) is not None:
                for one in copied(transcript, copies):
                    await send.send(one)

    async def _write_all(self, slot: int, receive: MemoryObjectReceiveStream[Transcript]) -> None:
        async with receive:
            async for transcript in receive:
                memory = self._runtime.memory(transcript.id, self._namespace)
                if self._replace:
                    deleted = await memory.delete()
                    self.deleted += deleted
                live = self._live[slot] = _Live(memory, transcript.messages)
                try:
                    await self._write(live)
                finally:
                    self._live[slot] = None
                self.finished += 1

    async def _write(self, live: _Live) -> None:
        for number, message in enumerate(live.messages, start=1):
            started = perf_counter()
            receipt = await live.memory.add(message)
            self.adds.add(perf_counter() - started)
            if receipt.version.n != number:  # somebody else writes this conversation too
                raise DifferenceError(Difference(live.memory.id, number, "extra"))
            live.acknowledged = number
            self.acknowledged += 1
            self._on_progress()
        await self._read(live)

    async def _read_for_ever(self, random: Random) -> None:
        while True:
            await anyio.sleep(_READERS_PAUSE)
            live = random.choice(self._live)
            if live is not None:
                await self._read(live)

    async def _read(self, live: _Live) -> None:
        acknowledged = live.acknowledged
        started = perf_counter()
        view = await live.memory.messages()
        self.reads.add(perf_counter() - started)
        found = first_difference(
            live.memory.id, live.messages, (message.raw for message in view), at_least=acknowledged
        )
        if found is not None:
            raise DifferenceError(found)
