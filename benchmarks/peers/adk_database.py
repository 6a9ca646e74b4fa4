"""Google ADK: `DatabaseSessionService` on SQLite; every request loads its session, as a web server's do."""

from contextlib import asynccontextmanager

from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.events import Event
from google.adk.sessions.database_session_service import DatabaseSessionService
from google.genai import types

TITLE = "Google ADK DatabaseSessionService, SQLite"
PACKAGES = ("google-adk", "sqlalchemy[asyncio]", "aiosqlite")
DISTRIBUTIONS = ("google-adk", "sqlalchemy")
DURABILITY = "power cut"
BACKENDS = ("asyncio", "uvloop")


class Sessions:
    def __init__(self, service):
        self._service = service

    async def _load(self, conversation):
        key = {"app_name": "a", "user_id": "u", "session_id": conversation}
        if (session := await self._service.get_session(**key)) is None:
            try:
                session = await self._service.create_session(**key)
            except AlreadyExistsError:
                session = await self._service.get_session(**key)
        return session

    async def add(self, conversation, messages):
        session = await self._load(conversation)
        for message in messages:
            role = "user" if message["role"] == "user" else "model"
            content = types.Content(role=role, parts=[types.Part(text=message["content"])])
            await self._service.append_event(session, Event(author=role, invocation_id="i", content=content))

    async def read(self, conversation):
        events = (await self._load(conversation)).events
        return [{"role": event.content.role, "content": event.content.parts[0].text} for event in events]


@asynccontextmanager
async def opened(place, *, window):
    yield Sessions(DatabaseSessionService(f"sqlite+aiosqlite:///{place}/chats.db"))
