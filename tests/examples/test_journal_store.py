"""What the page about writing a store prints is the store and the test class that are run here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from journal_store import JournalStore
from turnkeeper import open_runtime

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs" / "writing-a-store.md"
SOURCES = [REPOSITORY / "examples" / "journal_store.py", REPOSITORY / "tests" / "stores" / "test_suite_journal.py"]
BLOCKS = re.findall(r"^```py\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_the_page_prints_what_is_run() -> None:
    sources = [path.read_text(encoding="utf-8") for path in SOURCES]
    assert len(BLOCKS) == 6
    for block in BLOCKS:
        assert any(block in source for source in sources), f"the page prints what is nowhere:\n{block}"


@pytest.mark.anyio
async def test_a_runtime_keeps_its_conversations_in_it(tmp_path: Path) -> None:
    for said in ("first", "second"):
        async with open_runtime(JournalStore(tmp_path / "chats.journal")) as runtime:
            await runtime.memory("m").add({"role": "user", "content": said})
    async with open_runtime(JournalStore(tmp_path / "chats.journal")) as runtime:
        assert [message.text for message in await runtime.memory("m").messages()] == ["first", "second"]
