"""Google ADK: `SqliteSessionService`; every request loads its session, as a web server's do."""

import sys
from contextlib import asynccontextmanager
from pathlib import Path

from google.adk.sessions.sqlite_session_service import SqliteSessionService

sys.path.insert(0, str(Path(__file__).parent))
from adk_database import Sessions

TITLE = "Google ADK SqliteSessionService"
PACKAGES = ("google-adk", "sqlalchemy[asyncio]", "aiosqlite")
DISTRIBUTIONS = ("google-adk",)
DURABILITY = "power cut"
BACKENDS = ("asyncio", "uvloop")


@asynccontextmanager
async def opened(place, *, window):
    yield Sessions(SqliteSessionService(str(place / "chats.db")))
