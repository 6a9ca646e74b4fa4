"""Google ADK: `InMemorySessionService`; every request loads its session, as a web server's do."""

import sys
from contextlib import asynccontextmanager
from pathlib import Path

from google.adk.sessions import InMemorySessionService

sys.path.insert(0, str(Path(__file__).parent))
from adk_database import Sessions

TITLE = "Google ADK InMemorySessionService"
PACKAGES = ("google-adk", "sqlalchemy[asyncio]", "aiosqlite")
DISTRIBUTIONS = ("google-adk",)
DURABILITY = "memory"
BACKENDS = ("asyncio", "uvloop", "trio")


@asynccontextmanager
async def opened(place, *, window):
    yield Sessions(InMemorySessionService())
