"""OpenAI Agents SDK: `SQLiteSession` on a file, one session object for each conversation, as its guide shows."""

from contextlib import asynccontextmanager

from agents.memory.sqlite_session import SQLiteSession

TITLE = "OpenAI Agents SQLiteSession, file"
PACKAGES = DISTRIBUTIONS = ("openai-agents",)
DURABILITY = "power cut"  # WAL with synchronous=FULL
BACKENDS = ("asyncio", "uvloop")
PLACE = "chats.db"


class Sessions:
    def __init__(self, make):
        self._make, self.all = make, {}

    def _session(self, conversation):
        if conversation not in self.all:
            self.all[conversation] = self._make(conversation)
        return self.all[conversation]

    async def add(self, conversation, messages):
        await self._session(conversation).add_items(list(messages))

    async def read(self, conversation):
        return await self._session(conversation).get_items()


@asynccontextmanager
async def opened(place, *, window):
    sessions = Sessions(lambda conversation: SQLiteSession(conversation, place / PLACE))
    yield sessions
    for session in sessions.all.values():
        session.close()
