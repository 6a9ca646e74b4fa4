"""What clients do, over and over: each workload is one operation, and what has to be there before."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Final

import anyio
import anyio.lowlevel
import msgspec

from turnkeeper.bench.checking import text_of
from turnkeeper.bench.clients import Client, Ledger
from turnkeeper.bench.spec import Spec
from turnkeeper.testing.prompts import prompt_problems

__all__ = ["WORKLOADS", "Workload"]


class Workload:
    """One operation of one client. Subclasses say which, and how the clients take turns at it.

    Attributes:
        spec: the run.
        ledger: what was sent.
        invalid: prompts that a provider would refuse.
    """

    name: ClassVar[str]
    about: ClassVar[str]
    """One line for the tables."""
    loop: ClassVar[str] = "closed"
    """"closed": each client sends its next operation when the last one is done, until the time is over. "open":
    operations begin at fixed times, whatever the others do. "once": each client does one. "all": until `step` says
    that there is nothing left to do."""
    threads: ClassVar[bool] = False
    """Clients are threads and use the blocking form."""
    reopen: ClassVar[bool] = False
    """The subject is closed and opened again before the clients start, so that nothing is in RAM."""
    tools: ClassVar[bool] = False
    """The subject has to keep tool calls."""
    weighs: ClassVar[bool] = False
    """RAM and the pause of a collection are measured at the end."""
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType({})
    """What the command line takes unless told otherwise: clients, conversations, messages, rate."""

    def __init__(self, spec: Spec, ledger: Ledger) -> None:
        self.spec: Spec = spec
        self.ledger: Ledger = ledger

    @property
    def window(self) -> int | None:
        """How many messages a read shows at most; None: all."""
        return None

    def before(self) -> int:
        """Return how many messages each conversation has before the clients start."""
        return 0

    async def prepare(self, subject: Any) -> None:
        """Make what has to be there; not measured."""
        if not (count := self.before()):
            return
        roles = itertools.cycle(("user", "assistant"))
        history = [
            {"role": role, "content": f"before {text_of('', self.spec.size)[1:]}"}
            for role in itertools.islice(roles, count)
        ]
        for number in range(self.spec.conversations):
            for start in range(0, count, 100):
                await subject.add(self.conversation(number), history[start : start + 100])

    async def step(self, client: Client) -> bool | None:
        """Do one operation; False: there is nothing left to do."""
        raise NotImplementedError

    def step_blocking(self, client: Client) -> bool | None:
        """Do one operation in a thread."""
        raise NotImplementedError

    def conversation(self, number: int) -> str:
        """Return a conversation's id."""
        return f"conversation-{number}"

    def own(self, client: Client) -> str:
        """Return the conversation that a client keeps to."""
        return self.conversation(client.number % self.spec.conversations)

    def judge(self, prompt: Any) -> None:
        """Count a prompt that a provider would refuse."""
        self.ledger.invalid += bool(prompt_problems(list(prompt)))


class Append(Workload):
    name = "append"
    about = "add one message"
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType({"clients": 256, "conversations": 256})

    async def step(self, client: Client) -> None:
        await client.add(self.own(client), client.messages("user"))


class ChatTurn(Workload):
    name = "chat-turn"
    about = "add the user's message, read the window, add the answer"
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType({"clients": 256, "conversations": 256, "messages": 20})

    @property
    def window(self) -> int | None:
        return self.spec.messages or None

    async def step(self, client: Client) -> None:
        conversation, turn = self.own(client), client.begin_turn()
        await client.add(conversation, client.messages("user"), turn)
        await client.subject.read(conversation)
        await client.add(conversation, client.messages("assistant"), turn)


class SharedTurns(ChatTurn):
    name = "shared-turns"
    about = "chat turns of many clients on few conversations, each kept whole where the subject can"
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType({"clients": 64, "conversations": 8, "messages": 20})

    async def step(self, client: Client) -> None:
        begin = getattr(client.subject, "turn", None)
        if begin is None:
            await super().step(client)
            return
        conversation, turn = self.own(client), client.begin_turn()
        notes = client.begin(conversation, messages := client.messages("user", "assistant"), turn)
        try:
            async with begin(conversation) as open_turn:
                await open_turn.add(messages[:1])
                await open_turn.messages()
                await open_turn.add(messages[1:])
        except Exception:
            client.end(notes, acknowledged=False)
            raise
        client.end(notes, acknowledged=True)


class Idle(Workload):
    name = "idle"
    about = "conversations that were touched once: what each takes in RAM, and how long a collection pauses"
    loop = "all"
    weighs = True
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType({"clients": 100, "conversations": 10_000})

    def __init__(self, spec: Spec, ledger: Ledger) -> None:
        super().__init__(spec, ledger)
        self._numbers = iter(range(spec.conversations))

    async def step(self, client: Client) -> bool | None:
        number = next(self._numbers, None)
        if number is None:
            return False
        await client.add(self.conversation(number), client.messages("user", "assistant"))
        return None


class ReadMostly(Workload):
    name = "read-mostly"
    about = "read nine times, add once"
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType({"clients": 64, "conversations": 64, "messages": 20})

    def before(self) -> int:
        return self.spec.messages

    async def step(self, client: Client) -> None:
        conversation = self.own(client)
        if client.random.random() < 0.1:
            await client.add(conversation, client.messages("user"))
        else:
            await client.subject.read(conversation)


class ToolLoop(Workload):
    name = "tool-loop"
    about = "user, three times two parallel calls with results and a read, answer"
    tools = True
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType({"clients": 64, "conversations": 64, "messages": 40})

    @property
    def window(self) -> int | None:
        return self.spec.messages or None

    async def step(self, client: Client) -> None:
        conversation, turn = self.own(client), client.begin_turn()
        await client.add(conversation, client.messages("user"), turn)
        for round_ in range(3):
            ids = [f"call-{turn}-{round_}-{part}" for part in range(2)]
            call = client.messages("assistant")[0]
            call["tool_calls"] = [
                {"id": id_, "type": "function", "function": {"name": "look_up", "arguments": "{}"}} for id_ in ids
            ]
            await client.add(conversation, [call], turn)
            results = client.messages("tool", "tool")
            for id_, result in zip(ids, results, strict=True):
                result["tool_call_id"] = id_
            await client.add(conversation, results, turn)
            self.judge(await client.subject.read(conversation))
        await client.add(conversation, client.messages("assistant"), turn)


class Hot(Workload):
    name = "hot"
    about = "all clients add to one conversation"
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType({"clients": 100, "conversations": 1})

    async def step(self, client: Client) -> None:
        await client.add(self.conversation(0), client.messages("user"))


class Zipf(Workload):
    name = "zipf"
    about = "chat turns on many conversations, few of them busy (Zipf, 1.1)"
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType(
        {"clients": 256, "conversations": 10_000, "messages": 20}
    )

    def __init__(self, spec: Spec, ledger: Ledger) -> None:
        super().__init__(spec, ledger)
        weights = itertools.accumulate(1 / rank**1.1 for rank in range(1, spec.conversations + 1))
        self._bounds = list(weights)

    @property
    def window(self) -> int | None:
        return self.spec.messages or None

    async def step(self, client: Client) -> None:
        place = bisect.bisect(self._bounds, client.random.random() * self._bounds[-1])
        conversation = self.conversation(min(place, len(self._bounds) - 1))
        await client.add(conversation, client.messages("user"))
        await client.subject.read(conversation)
        await client.add(conversation, client.messages("assistant"))


class Cold(Workload):
    name = "cold"
    about = "one add to a conversation that nothing happens in, one client, one after the other"
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType({"clients": 1, "conversations": 1000})

    def __init__(self, spec: Spec, ledger: Ledger) -> None:
        super().__init__(spec, ledger)
        self._next = 0

    def before(self) -> int:
        return 1

    async def step(self, client: Client) -> None:
        # One conversation after the other, and three passes of the loop between two: whatever sleeps is asleep.
        self._next = (self._next + 1) % self.spec.conversations
        for _ in range(3):
            await anyio.lowlevel.checkpoint()
        await client.add(self.conversation(self._next), client.messages("user"))


class Activation(Workload):
    name = "activation"
    about = "the first read of a conversation after a restart"
    loop = "all"
    reopen = True
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType({"clients": 1, "conversations": 200, "messages": 100})

    def __init__(self, spec: Spec, ledger: Ledger) -> None:
        super().__init__(spec, ledger)
        self._numbers = iter(range(spec.conversations))

    def before(self) -> int:
        return self.spec.messages

    async def step(self, client: Client) -> bool | None:
        number = next(self._numbers, None)
        if number is None:
            return False
        await client.subject.read(self.conversation(number))
        return None


class Long(ChatTurn):
    name = "long"
    about = "chat turns with a window of 20 on conversations of 10 000 messages"
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType({"clients": 4, "conversations": 4, "messages": 10_000})

    @property
    def window(self) -> int | None:
        return 20

    def before(self) -> int:
        return self.spec.messages


class FullWindow(Workload):
    name = "full-window"
    about = "add and read with a window that is full"
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType({"clients": 16, "conversations": 16, "messages": 100})

    @property
    def window(self) -> int | None:
        return self.spec.messages

    def before(self) -> int:
        return self.spec.messages

    async def step(self, client: Client) -> None:
        conversation = self.own(client)
        await client.add(conversation, client.messages("user"))
        await client.subject.read(conversation)


class OpenLoop(ChatTurn):
    name = "open-loop"
    about = "chat turns that begin at a fixed rate; latency from when they should have begun"
    loop = "open"
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType(
        {"clients": 256, "conversations": 256, "messages": 20, "rate": 500}
    )


class CancelStorm(Workload):
    name = "cancel-storm"
    about = "adds of which every second one is cancelled at a random time"
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType({"clients": 256, "conversations": 64})

    async def step(self, client: Client) -> None:
        with anyio.CancelScope() as scope:
            if client.random.random() < 0.5:
                scope.deadline = anyio.current_time() + client.random.random() * 0.01
            await client.add(self.own(client), client.messages("user"))
        if scope.cancelled_caught:
            self.ledger.cancelled += 1


class Herd(Workload):
    name = "herd"
    about = "a server that has just started gets all its requests at once"
    loop = "once"
    reopen = True
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType({"clients": 1000, "conversations": 200, "messages": 20})

    def before(self) -> int:
        return self.spec.messages

    async def step(self, client: Client) -> None:
        conversation = self.own(client)
        await client.add(conversation, client.messages("user"))
        await client.subject.read(conversation)


class Threads(Workload):
    name = "threads"
    about = "chat turns through the blocking form, from threads"
    threads = True
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType({"clients": 16, "conversations": 16, "messages": 20})

    @property
    def window(self) -> int | None:
        return self.spec.messages or None

    def step_blocking(self, client: Client) -> None:
        conversation, turn = self.own(client), client.begin_turn()
        client.add_blocking(conversation, client.messages("user"), turn)
        client.subject.read(conversation)
        client.add_blocking(conversation, client.messages("assistant"), turn)


class Replay(Workload):
    name = "replay"
    about = "the conversations of a file, message by message, many at once"
    loop = "all"
    tools = True
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType({"clients": 64, "conversations": 1})

    def __init__(self, spec: Spec, ledger: Ledger) -> None:
        super().__init__(spec, ledger)
        self._lines = enumerate(_lines(spec.transcript))

    async def step(self, client: Client) -> bool | None:
        number, line = next(self._lines, (0, ""))
        if not line:
            return False
        read = msgspec.json.decode(line)
        messages = read["messages"] if isinstance(read, dict) else read
        for place, message in enumerate(messages):
            tagged = {
                **message,
                "content": f"c{client.number}.{number * 100_000 + place}¦{message.get('content') or ''}",
            }
            await client.add(self.conversation(number), [tagged])
        self.judge(await client.subject.read(self.conversation(number)))
        return None


def _lines(path: str) -> Iterator[str]:
    with open(path, encoding="utf-8") as file:
        yield from file


_ALL: Final[tuple[type[Workload], ...]] = (
    Activation,
    Append,
    CancelStorm,
    ChatTurn,
    Cold,
    FullWindow,
    Herd,
    Hot,
    Idle,
    Long,
    OpenLoop,
    ReadMostly,
    Replay,
    SharedTurns,
    Threads,
    ToolLoop,
    Zipf,
)
WORKLOADS: Final[Mapping[str, type[Workload]]] = {workload.name: workload for workload in _ALL}
"""By name."""
