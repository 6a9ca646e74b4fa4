"""The five examples of Zerda's document, read from it, run with only the import changed."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio

DOCUMENT = Path(__file__).parents[3] / "shared" / "seeds" / "zerda-conversation-buffer-memory.txt"
BLOCK = re.compile(r"^Examples\n\nPython · (?P<lines>\d+) lines\n(?P<source>.*)", re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.skipif(not DOCUMENT.is_file(), reason="the document is not beside this repository")


def examples() -> str:
    """Return the document's examples with the import changed."""
    found = BLOCK.search(DOCUMENT.read_text(encoding="utf-8"))
    assert found is not None
    source = "\n".join(found["source"].splitlines()[: int(found["lines"])])
    assert [int(number) for number in re.findall(r"^# (\d)\. ", source, re.MULTILINE)] == [1, 2, 3, 4, 5]
    changed, count = re.subn(r"^from zerda\.memory import", "from turnkeeper.compat.zerda import", source, flags=re.M)
    assert count == 1
    return changed


def run_examples() -> dict[str, Any]:
    """Run them, and check what their comments say and what they leave."""
    printed: list[Any] = []
    namespace: dict[str, Any] = {"print": printed.append}
    exec(examples(), namespace)
    assert printed == ["user: Hi\nassistant: Hello!", namespace["mem2"].chat_memory, None]
    (exchange,) = namespace["mem2"].chat_memory
    assert (exchange["input"], exchange["output"]) == ("2+2?", "4")
    assert namespace["mem3"].load_memory_variables({}) == {"history": "user: Capital of Italy?\nassistant: Rome"}
    assert namespace["stats"]["message_count"] == 1
    return namespace


def test_as_a_script(tmp_path: Path) -> None:
    script = tmp_path / "examples.py"
    script.write_text(examples(), encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COVERAGE"))}
    ran = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    first, second, third, fourth = ran.stdout.splitlines()
    assert (first, second, fourth) == ("user: Hi", "assistant: Hello!", "None")
    assert re.fullmatch(r"\[\{'input': '2\+2\?', 'output': '4', 'timestamp': [\d.]+\}\]", third)
    assert not ran.stderr


def test_in_threads() -> None:
    failed: list[BaseException] = []

    def run() -> None:
        try:
            run_examples()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


@pytest.mark.anyio
async def test_inside_a_running_loop() -> None:
    run_examples()
    async with anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(anyio.to_thread.run_sync, run_examples)


def test_inside_asyncio_and_trio_as_users_run_them() -> None:
    async def main() -> None:
        run_examples()

    asyncio.run(main())
    trio.run(main)
