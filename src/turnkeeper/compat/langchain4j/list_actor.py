"""Our actors over a store of the user's own: each reads the list of its id, applies what was asked, and writes it.

Nothing is kept between two batches, since others may write to such a store and there is no version to tell. Mailbox,
bounds, cancellation and closing are those of every runtime.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar, cast

import anyio

from turnkeeper.actor import Actor
from turnkeeper.compat.langchain4j.drafts import Draft
from turnkeeper.compat.langchain4j.stores import ChatMemoryStore
from turnkeeper.errors import (
    InvalidMessageError,
    OutcomeUnknownError,
    StoreError,
    StoreUnavailableError,
    TurnkeeperError,
    fresh,
)
from turnkeeper.lane import Job, Lane
from turnkeeper.messages import Message, encode_messages
from turnkeeper.names import MemoryName
from turnkeeper.requests import DONE, Request
from turnkeeper.services import Inbox, Services

__all__ = ["ListActor", "ListRequest", "Place"]

T = TypeVar("T")


class Place(NamedTuple):
    """Where a conversation's list is.

    Attributes:
        store: the user's store.
        memory_id: the id as the user gave it.
        lane: which thread makes the store's blocking calls; requests of one id always have the same.
    """

    store: ChatMemoryStore
    memory_id: Hashable
    lane: int


class ListRequest(Request):
    """A request to a conversation whose list is in a store of the user's own.

    Attributes:
        place: where.
        awaited: by the store's async twins.
    """

    __slots__ = ("awaited", "place")

    def __init__(self, place: Place, request: Request, *, awaited: bool) -> None:
        """Make it of a plain request."""
        super().__init__(request.op, request.messages, window=request.window)
        self.place: Place = place
        self.awaited: bool = awaited


class _LateError(Exception):
    """A store did not answer in time.

    Attributes:
        started: its method was called.
    """

    def __init__(self, *, started: bool) -> None:
        super().__init__(started)
        self.started = started


class ListActor(Actor):
    """Serves one id of one store.

    Args:
        late: calls that were not waited for any longer, by memory: nothing else is asked until they have ended.
    """

    __slots__ = ("_lanes", "_late")

    def __init__(
        self, name: MemoryName, services: Services, lanes: Sequence[Lane], late: dict[MemoryName, Job[Any]]
    ) -> None:
        super().__init__(name, services)
        self._lanes = lanes
        self._late = late

    async def _serve(self, first: Request, inbox: Inbox) -> int:
        """Answer a batch and return its size; each run of blocking or awaited requests together."""
        batch = cast("list[ListRequest]", self._take(first, inbox))
        for _, requests in groupby(batch, key=attrgetter("awaited")):
            await self._answer_together(list(requests))
        self._services.doubtful.discard(self.name)
        self._services.residency.settle(self)
        return len(batch)

    async def _answer_together(self, requests: list[ListRequest]) -> None:
        """Answer requests with one read and one write at most; what one of them makes fail fails alone."""
        draft, failure = Draft(), None
        answers: list[tuple[ListRequest, Any]] = []
        writers: list[Request] = []
        for request in requests:
            if failure is None and draft.needs(request):
                try:
                    draft.read(await self._read(request))
                except TurnkeeperError as error:
                    failure = error
            if failure is not None and draft.needs(request):
                answers.append((request, _again(failure)))
                continue
            changed, draft.changed = draft.changed, False
            try:
                answers.append((request, draft.apply(request, self.name.id)))
            except Exception as error:  # of a limit's function, which is the user's code
                answers.append((request, error))
            if draft.changed:
                writers.append(request)
            draft.changed |= changed
        if draft.changed and not self._services.stopping:
            self._writing = writers
            refusal = await self._write(requests[0], draft.stored(), draft.given)
            self._writing = None
            if refusal is not None:
                await self._settle_refused(requests, writers, refusal)
                return
        for request, answer in answers:
            self._answer(request, answer)

    async def _settle_refused(
        self, requests: list[ListRequest], writers: list[Request], refusal: TurnkeeperError
    ) -> None:
        """Answer after a write that failed: nobody has seen what it was to bring."""
        if len(writers) == 1 or isinstance(refusal, OutcomeUnknownError):
            for request in writers:
                self._answer(request, _again(refusal))
        for request in requests:  # one of several is refused for a reason of its own, and reads have to be made again
            if request.state != DONE:
                await self._answer_together([request])

    def _unknown(self) -> OutcomeUnknownError:
        self._services.unknown_outcomes += 1
        return OutcomeUnknownError(
            f"memory {self.name.id!r}: its store did not say whether the change was written, and has no way to ask; "
            "read the memory"
        )

    # The store

    async def _read(self, request: ListRequest) -> tuple[Message, ...]:
        """Read the list.

        Raises:
            TurnkeeperError: it can't be read; nothing was changed.
        """
        store, memory_id, _ = request.place
        timeout = self._services.settings.load_timeout
        try:
            await self._wait_for_late(timeout)
            if request.awaited:
                given = list(await _in_time(store.get_messages_async(memory_id), timeout) or ())
            else:
                given = await self._blocking(request, lambda: list(store.get_messages(memory_id) or ()), timeout)
        except _LateError:
            failure: TurnkeeperError = StoreUnavailableError(f"{self._of(store)} did not answer within {timeout} s")
        except Exception as error:
            failure = self._failed(store, error)
        else:
            try:
                return encode_messages(given)
            except InvalidMessageError as error:
                failure = StoreError(f"{self._of(store)} returned what is no list of messages: {error}")
        raise failure

    async def _write(
        self, request: ListRequest, messages: tuple[Message, ...], given: tuple[Message, ...] | None
    ) -> TurnkeeperError | None:
        """Write the list, which was `given` before if that is known; return why it was not written, or may not be."""
        store, memory_id, _ = request.place
        timeout = self._services.settings.commit_timeout
        try:
            await self._wait_for_late(timeout)
            if request.awaited:
                twin = store.update_messages_async(memory_id, list(messages)) if messages else None
                await _in_time(twin or store.delete_messages_async(memory_id), timeout)
            elif messages:
                await self._blocking(request, partial(store.update_messages, memory_id, list(messages)), timeout)
            else:
                await self._blocking(request, partial(store.delete_messages, memory_id), timeout)
        except _LateError as late:
            if not late.started:
                return StoreUnavailableError(f"{self._of(store)} did not get to the write within {timeout} s")
            return self._unknown()
        except Exception as error:
            return await self._found_out(request, messages, given, error)
        return None

    async def _found_out(
        self,
        request: ListRequest,
        messages: tuple[Message, ...],
        given: tuple[Message, ...] | None,
        error: Exception,
    ) -> TurnkeeperError | None:
        """Read what became of a write that raised."""
        found = None
        with contextlib.suppress(TurnkeeperError):
            found = await self._read(request)
        if found == messages:
            return None
        failure = self._failed(request.place.store, error)
        if found is not None and found == given:
            return failure
        unknown = self._unknown()
        unknown.__cause__ = failure.__cause__
        return unknown

    async def _blocking(self, request: ListRequest, function: Callable[[], T], timeout: float) -> T:
        if request.place.store.inline:
            return function()
        job = self._lanes[request.place.lane % len(self._lanes)].post(function)
        never = False
        try:
            with anyio.move_on_after(timeout):
                await job.done.wait()
        finally:
            if not job.done.is_set() and not (never := job.cancel()):
                self._late[self.name] = job
        if not job.done.is_set():
            raise _LateError(started=not never)
        if job.error is not None:
            raise job.error
        return cast(T, job.result)

    async def _wait_for_late(self, timeout: float) -> None:
        """See to it that no two calls for one id overlap, whichever way they are made."""
        late = self._late.get(self.name)
        if late is None:
            return
        with anyio.move_on_after(timeout):
            await late.done.wait()
        if not late.done.is_set():
            raise _LateError(started=False)
        del self._late[self.name]

    def _of(self, store: ChatMemoryStore) -> str:
        return f"memory {self.name.id!r}: {type(store).__name__}"

    def _failed(self, store: ChatMemoryStore, error: Exception) -> TurnkeeperError:
        """Make a store's error ours: what it raised stays its cause."""
        if isinstance(error, TurnkeeperError):
            return fresh(error)
        failure = StoreError(f"{self._of(store)} failed with {type(error).__name__}; nothing was changed")
        failure.__cause__ = error
        return failure


async def _in_time(awaitable: Any, timeout: float) -> Any:
    with anyio.move_on_after(timeout):
        return await awaitable
    raise _LateError(started=True)


def _again(error: TurnkeeperError) -> TurnkeeperError:
    """Copy an error, so that no two callers raise the same object, and keep what caused it."""
    copy = fresh(error)
    copy.__cause__ = error.__cause__
    return copy
