"""The example is what the page prints, and does what it says: over real HTTP, as a script of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
EXAMPLE = REPOSITORY / "examples" / "retrying_client.py"


def test_a_client_that_sends_again_has_its_exchange_stored_exactly_once(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLE], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    stored = "sent more than once, asked the model once, stored ['Is it stored once?', 'Is it stored once? Yes.']"
    assert ran.stdout.splitlines() == [f"slow model: {stored}", f"slow answer: {stored}"]
    assert list(tmp_path.iterdir()) == []


def test_the_page_prints_the_example() -> None:
    page = (REPOSITORY / "docs" / "retries.md").read_text(encoding="utf-8")
    printed = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert EXAMPLE.read_text(encoding="utf-8") in printed
