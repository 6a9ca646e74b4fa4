"""Microsoft Agent Framework: `FileHistoryProvider`, JSON lines without a sync to the disk."""

import sys
from contextlib import asynccontextmanager
from pathlib import Path

from agent_framework import FileHistoryProvider

sys.path.insert(0, str(Path(__file__).parent))
from agent_framework_memory import Histories

TITLE = "Agent Framework FileHistoryProvider"
PACKAGES = DISTRIBUTIONS = ("agent-framework-core",)
DURABILITY = "process"
BACKENDS = ("asyncio", "uvloop")


@asynccontextmanager
async def opened(place, *, window):
    yield Histories(FileHistoryProvider(place))
