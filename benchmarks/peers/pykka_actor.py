"""Pykka: a threading actor for each conversation, as a floor for actors that are threads. Lists, no store."""

from contextlib import asynccontextmanager

import pykka
from anyio import to_thread

TITLE = "floor: Pykka actor"
PACKAGES = DISTRIBUTIONS = ("pykka",)
DURABILITY = "memory"


class _Actor(pykka.ThreadingActor):
    def __init__(self):
        super().__init__()
        self.kept = []

    def on_receive(self, message):
        self.kept.extend(message)
        return list(self.kept) if not message else None


class _Actors(dict):
    def __missing__(self, conversation):
        return self.setdefault(conversation, _Actor.start())

    async def add(self, conversation, messages):
        await to_thread.run_sync(self[conversation].ask, messages)

    async def read(self, conversation):
        return await to_thread.run_sync(self[conversation].ask, [])


@asynccontextmanager
async def opened(place, *, window):
    yield _Actors()
    pykka.ActorRegistry.stop_all()
