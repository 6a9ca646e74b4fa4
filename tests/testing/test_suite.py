"""The public store suite finds what is broken and says which promise that is; it alone needs pytest."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest

from support.broken_stores import BROKEN
from turnkeeper.testing import StoreSuite

MODULE = """
import pytest
from support.broken_stores import BROKEN, SOUND
from turnkeeper.testing import StoreSuite

STORES = SOUND | {{name: made for name, (made, _, _) in BROKEN.items()}}


@pytest.fixture(scope="module", params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


class TestStore(StoreSuite):
    durable = {durable}

    def make_store(self, place, clock):
        return STORES[{store!r}](place, clock)
"""


def run(pytester: pytest.Pytester, store: str, test: str, *, durable: bool) -> pytest.RunResult:
    """Run one test of the suite on a store."""
    pytester.makepyfile(test_store=MODULE.format(store=store, durable=durable))
    assert hasattr(StoreSuite, test), f"the suite has no {test}"
    # Not `-k`, which takes every test whose name holds it.
    return pytester.runpytest_inprocess("-p", "no:cacheprovider", f"test_store.py::TestStore::{test}")


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_store_fails_the_test_of_the_promise_that_it_breaks(pytester: pytest.Pytester, name: str) -> None:
    _, sound, test = BROKEN[name]
    found = run(pytester, name, test, durable=sound != "memory")
    outcomes = found.parseoutcomes()
    assert outcomes.get("failed", 0) > 0, f"{test} did not find {name}"
    assert outcomes.get("errors", 0) == 0
    found.stdout.fnmatch_lines(["*What a store promises: *"])


@pytest.mark.parametrize(("sound", "test"), sorted({(sound, test) for _, sound, test in BROKEN.values()}))
def test_the_store_that_it_was_made_from_passes(pytester: pytest.Pytester, sound: str, test: str) -> None:
    outcomes = run(pytester, sound, test, durable=sound != "memory").parseoutcomes()
    assert outcomes.get("passed", 0) > 0
    assert set(outcomes) <= {"passed"}


def test_no_part_of_the_suite_hides_a_test_of_another() -> None:
    names = Counter(name for part in StoreSuite.__mro__[1:] for name in vars(part) if name.startswith("test_"))
    assert len(names) > 150
    assert [name for name, count in names.items() if count > 1] == []


def test_each_part_says_what_it_promises() -> None:
    parts = [part for part in StoreSuite.__bases__ if any(name.startswith("test_") for name in vars(part))]
    assert len(parts) > 25
    for part in parts:
        promise = (part.__doc__ or "").partition("\n")[0]
        assert promise.endswith("."), f"{part.__name__} promises nothing"


def test_who_does_not_say_how_the_store_is_made_is_told_so(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("from turnkeeper.testing import StoreSuite\n\n\nclass TestNothing(StoreSuite): ...")
    found = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-k", "test_it_says_what_it_is")
    assert found.parseoutcomes()["errors"] == 1
    found.stdout.fnmatch_lines(["*TestNothing has to say how its store is made: override make_store*"])


WITHOUT_PYTEST = """
import sys
sys.modules["pytest"] = None
import turnkeeper.testing
from turnkeeper import MissingExtraError
turnkeeper.testing.FaultStore
try:
    turnkeeper.testing.StoreSuite
except MissingExtraError as error:
    print(error)
"""


def test_without_pytest_the_other_tools_can_be_imported_and_the_suite_says_what_it_needs() -> None:
    code = WITHOUT_PYTEST
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == "turnkeeper.testing.StoreSuite is for tests in pytest: pip install pytest\n"


def test_the_other_tools_import_no_pytest() -> None:
    code = "import sys, turnkeeper.testing; sys.exit('pytest' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_an_unknown_name_is_no_attribute() -> None:
    import turnkeeper.testing

    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        turnkeeper.testing.nothing  # noqa: B018
