"""Promises of the test setup itself: a test runs where its id says, can't block its loop unseen, can't hang."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from support.backends import OPTIONS
from support.loop_guard import LIMIT_SECONDS, limit_of
from support.time_limit import LIMIT_SECONDS as TIME_LIMIT_SECONDS

TESTS = Path(__file__).parent

RunInner = Callable[..., pytest.RunResult]


@pytest.fixture
def run_inner(pytester: pytest.Pytester) -> RunInner:
    """Run a test file under this directory's conftest, in a process of its own."""

    def run(source: str, *args: str) -> pytest.RunResult:
        pytester.makeini(f"""
            [pytest]
            pythonpath = {TESTS}
            addopts = --import-mode=importlib -p no:cacheprovider
            strict_markers = true
            filterwarnings = error
        """)
        pytester.makeconftest((TESTS / "conftest.py").read_text(encoding="utf-8"))
        pytester.makepyfile(source)
        return pytester.runpytest_subprocess(*args, timeout=60)

    return run


def running_loop() -> tuple[str, str]:
    """Return package of the running loop and kind of its tasks."""
    if trio.lowlevel.in_trio_task():
        return "trio", "trio"
    loop = asyncio.get_running_loop()
    factory = loop.get_task_factory()
    eager = sys.version_info >= (3, 12) and factory is asyncio.eager_task_factory
    return type(loop).__module__.partition(".")[0], "eager" if eager else "lazy"


EXPECTED_LOOPS = {
    "asyncio": ("asyncio", "lazy"),
    "uvloop": ("uvloop", "lazy"),
    "trio": ("trio", "trio"),
    "asyncio-eager": ("asyncio", "eager"),
}


def id_of(request: pytest.FixtureRequest) -> str:
    """Return what a test's id says about its loop."""
    assert isinstance(request.node, pytest.Function)
    return request.node.callspec.id


class TestLoops:
    @pytest.mark.anyio
    async def test_a_test_runs_on_the_loop_its_id_names(self, request: pytest.FixtureRequest) -> None:
        assert running_loop() == EXPECTED_LOOPS[id_of(request)]

    def test_every_loop_is_covered(self) -> None:
        assert set(OPTIONS) == set(EXPECTED_LOOPS) - ({"asyncio-eager"} if sys.version_info < (3, 12) else set())

    @pytest.mark.anyio
    async def test_asyncio_runs_in_debug_mode(self, request: pytest.FixtureRequest) -> None:
        if id_of(request) in ("asyncio", "asyncio-eager"):
            assert asyncio.get_running_loop().get_debug()

    @pytest.mark.anyio
    @settings(max_examples=5)
    @given(number=st.integers())
    async def test_examples_of_hypothesis_run_on_the_loop_the_id_names(
        self, request: pytest.FixtureRequest, number: int
    ) -> None:
        assert running_loop() == EXPECTED_LOOPS[id_of(request)]

    @pytest.mark.trio
    async def test_a_test_marked_trio_runs_on_trio(self) -> None:
        assert running_loop() == ("trio", "trio")

    @pytest.mark.trio
    async def test_a_test_marked_trio_may_use_virtual_time(self, autojump_clock: MockClock) -> None:
        await trio.sleep(3600)
        assert trio.current_time() == autojump_clock.current_time() == 3600


class TestModes:
    def test_no_auto_mode_is_on(self, pytestconfig: pytest.Config) -> None:
        assert pytestconfig.getini("anyio_mode") == "strict"
        assert pytestconfig.getoption("anyio_mode") in (None, "strict")
        assert pytestconfig.getini("trio_mode") is False

    @pytest.mark.parametrize("mode", ["trio_mode=true", "anyio_mode=auto"])
    def test_an_auto_mode_is_refused(self, run_inner: RunInner, mode: str) -> None:
        result = run_inner("def test_nothing(): pass", "-o", mode)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines([f"ERROR: {mode.partition('=')[0]}*"])

    def test_an_async_test_without_a_mark_fails(self, run_inner: RunInner) -> None:
        result = run_inner("async def test_unmarked(): assert False")
        assert result.ret == pytest.ExitCode.TESTS_FAILED
        result.stdout.fnmatch_lines(["*async def functions are not natively supported*"])


class TestLoopGuard:
    @pytest.mark.slow
    def test_blocking_the_loop_fails_a_test_on_every_loop(self, run_inner: RunInner) -> None:
        result = run_inner("""
            import time
            import anyio, pytest

            pytestmark = pytest.mark.anyio

            def read_slowly():
                time.sleep(1.5)

            async def test_blocks():
                read_slowly()

            @pytest.mark.may_block_loop(0.2)
            async def test_waits():
                await anyio.sleep(0.3)

            @pytest.mark.may_block_loop(0.2)
            async def test_works_in_a_thread():
                await anyio.to_thread.run_sync(time.sleep, 0.3)
        """)
        result.assert_outcomes(passed=2 * len(OPTIONS), failed=len(OPTIONS))
        result.stdout.fnmatch_lines_random([f"FAILED *::test_blocks?{name}?*" for name in OPTIONS])
        text = result.stdout.str()
        assert text.count("the test blocked the event loop for 1 s or longer") >= len(OPTIONS)
        assert text.count("in read_slowly") >= len(OPTIONS), "the message says where"

    @pytest.mark.slow
    def test_the_limit_can_be_set_by_a_mark(self, run_inner: RunInner) -> None:
        result = run_inner("""
            import time
            import anyio, pytest

            pytestmark = pytest.mark.anyio

            @pytest.mark.may_block_loop(0.2)
            async def test_blocks_longer():
                time.sleep(0.5)

            @pytest.mark.may_block_loop(60)
            async def test_blocks_shorter():
                time.sleep(0.5)

            @pytest.mark.may_block_loop
            @pytest.mark.parametrize("anyio_backend", ["asyncio"])
            async def test_blocks_as_long_as_it_likes():
                time.sleep(1.5)
        """)
        result.assert_outcomes(passed=1 + len(OPTIONS), failed=len(OPTIONS))
        result.stdout.fnmatch_lines_random([f"FAILED *::test_blocks_longer?{name}?*" for name in OPTIONS])

    @pytest.mark.slow
    def test_other_ways_to_block_the_loop_are_seen(self, run_inner: RunInner) -> None:
        result = run_inner("""
            import re, time
            import anyio, pytest
            from hypothesis import given, settings, strategies as st

            pytestmark = [pytest.mark.anyio, pytest.mark.may_block_loop(0.2)]

            async def test_in_another_task():
                async def block():
                    time.sleep(0.5)

                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(block)

            async def test_before_it_fails():
                time.sleep(0.5)
                raise LookupError("the real reason")

            async def test_within_one_c_call_that_holds_the_lock():
                started = time.thread_time()
                length = 20
                while time.thread_time() - started < 0.3:
                    started = time.thread_time()
                    assert not re.match("(a+)+b", "a" * length)
                    length += 1

            @settings(max_examples=1, database=None)
            @given(number=st.just(1))
            async def test_in_an_example(number):
                time.sleep(0.5)
        """)
        result.assert_outcomes(failed=4 * len(OPTIONS))
        text = result.stdout.str()
        assert text.count("the test blocked the event loop for 0.2 s or longer") >= 4 * len(OPTIONS)
        assert text.count("LookupError: the real reason") >= len(OPTIONS)
        assert text.count("held the interpreter lock") >= len(OPTIONS)

    def test_it_stays_away_from_virtual_time_sync_tests_and_pytest_trio(self, run_inner: RunInner) -> None:
        result = run_inner("""
            import threading, time
            import anyio, pytest, trio
            from support.virtual_time import VIRTUAL_TIME_BACKENDS

            def watchdogs():
                return [thread for thread in threading.enumerate() if thread.name == "loop-watchdog"]

            @pytest.mark.may_block_loop(0.1)
            def test_sync():
                assert not watchdogs()
                time.sleep(0.3)

            @pytest.mark.trio
            @pytest.mark.may_block_loop(0.1)
            async def test_trio():
                assert not watchdogs()
                time.sleep(0.3)

            @pytest.mark.anyio
            @pytest.mark.may_block_loop(0.1)
            @pytest.mark.parametrize("anyio_backend", VIRTUAL_TIME_BACKENDS)
            async def test_virtual():
                assert not watchdogs()
                time.sleep(0.3)

            @pytest.mark.anyio
            async def test_real():
                assert watchdogs()
        """)
        result.assert_outcomes(passed=4 + len(OPTIONS))

    @pytest.mark.anyio
    async def test_the_watchdog_keeps_no_one_from_being_idle(self) -> None:
        with anyio.fail_after(10):
            await anyio.wait_all_tasks_blocked()

    def test_no_watchdog_outlives_its_test(self) -> None:
        assert "loop-watchdog" not in {thread.name for thread in threading.enumerate()}

    def test_the_default_limit(self, request: pytest.FixtureRequest) -> None:
        assert LIMIT_SECONDS == 1.0
        assert isinstance(request.node, pytest.Item)
        assert limit_of(request.node) == LIMIT_SECONDS


@pytest.mark.slow
class TestTimeLimit:
    def test_a_hanging_test_fails_with_the_stacks_and_the_next_one_runs(self, run_inner: RunInner) -> None:
        started = time.monotonic()
        result = run_inner("""
            import threading
            import anyio, pytest, trio

            pytestmark = pytest.mark.timeout_seconds(0.5)

            def wait_for_ever():
                threading.Event().wait()

            async def wait_for_nobody():
                await anyio.Event().wait()

            @pytest.fixture
            async def resource():
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(anyio.sleep_forever)
                    yield
                    tasks.cancel_scope.cancel()

            def test_sync_hangs():
                wait_for_ever()

            @pytest.mark.anyio
            async def test_hangs(resource):
                await wait_for_nobody()

            @pytest.mark.anyio
            async def test_next(resource):
                await anyio.sleep(0)
        """)
        assert time.monotonic() - started < 30
        result.assert_outcomes(passed=len(OPTIONS), failed=1 + len(OPTIONS))
        text = result.stdout.str()
        assert text.count("the call of the test took longer than its time limit of 0.5 s") >= 1 + len(OPTIONS)
        assert "in wait_for_ever" in text
        assert text.count("in wait_for_nobody") >= len(OPTIONS), "the message says where the task waits"

    def test_a_test_that_blocks_its_loop_is_interrupted(self, run_inner: RunInner) -> None:
        result = run_inner("""
            import time
            import anyio, pytest

            @pytest.mark.anyio
            @pytest.mark.may_block_loop
            @pytest.mark.timeout_seconds(0.5, grace=0.5)
            async def test_blocks():
                time.sleep(1000)

            @pytest.mark.anyio
            async def test_next():
                await anyio.sleep(0)
        """)
        result.assert_outcomes(passed=len(OPTIONS), failed=len(OPTIONS))

    def test_a_virtual_endless_test_is_interrupted(self, run_inner: RunInner) -> None:
        result = run_inner("""
            import anyio, pytest
            from support.virtual_time import VIRTUAL_TIME_BACKENDS

            @pytest.mark.anyio
            @pytest.mark.timeout_seconds(0.5)
            @pytest.mark.parametrize("anyio_backend", VIRTUAL_TIME_BACKENDS)
            async def test_ticks_for_ever():
                while True:
                    await anyio.sleep(60)

            @pytest.mark.anyio
            @pytest.mark.timeout_seconds(0.5)
            @pytest.mark.parametrize("anyio_backend", VIRTUAL_TIME_BACKENDS)
            async def test_waits_for_ever():
                await anyio.sleep_forever()
        """)
        result.assert_outcomes(failed=4)

    def test_setup_and_teardown_are_limited_too(self, run_inner: RunInner) -> None:
        result = run_inner("""
            import threading
            import pytest

            @pytest.fixture
            def hangs_before():
                threading.Event().wait()

            @pytest.fixture
            def hangs_after():
                yield
                threading.Event().wait()

            @pytest.mark.timeout_seconds(0.5)
            def test_before(hangs_before):
                pass

            @pytest.mark.timeout_seconds(0.5)
            def test_after(hangs_after):
                pass
        """)
        result.assert_outcomes(passed=1, errors=2)
        result.stdout.fnmatch_lines_random(["*the setup of the test took*", "*the teardown of the test took*"])

    @pytest.mark.parametrize("name", list(OPTIONS))
    def test_after_a_test_that_will_not_stop_no_test_runs_on_a_broken_loop(
        self, run_inner: RunInner, name: str
    ) -> None:
        started = time.monotonic()
        result = run_inner(
            """
            import anyio, pytest

            @pytest.mark.anyio
            @pytest.mark.timeout_seconds(0.5, grace=0.5)
            async def test_will_not_stop():
                while True:
                    with anyio.CancelScope(shield=True):
                        await anyio.sleep_forever()

            @pytest.mark.anyio
            async def test_next():
                await anyio.sleep(0)
            """,
            "-k",
            f"[{name}]",
        )
        assert time.monotonic() - started < 30
        assert result.ret != pytest.ExitCode.OK
        text = result.stdout.str() + result.stderr.str()
        assert "the call of the test took longer than its time limit of 0.5 s" in text
        assert "in test_will_not_stop" in text
        # asyncio's loops written in Python are left in order: anyio's runner cancels the task natively. On trio the run
        # is stopped; on uvloop, which waits outside of Python, the process ends.
        assert ("1 passed" in text) is name.startswith("asyncio")
        assert ("could not be stopped" in text) is (name == "trio")

    def test_the_process_ends_when_nothing_else_helps(self, run_inner: RunInner) -> None:
        result = run_inner("""
            import time
            import pytest

            @pytest.mark.timeout_seconds(0.5, grace=0.2)
            def test_catches_everything():
                while True:
                    try:
                        time.sleep(1000)
                    except BaseException:
                        pass
        """)
        assert result.ret == 1
        result.stderr.fnmatch_lines(["Timeout (*)!", "*in test_catches_everything"])

    def test_the_default_limit(self) -> None:
        assert TIME_LIMIT_SECONDS == 120.0


def test_warnings_are_errors(pytestconfig: pytest.Config) -> None:
    assert "error" in pytestconfig.getini("filterwarnings")
    assert pytestconfig.getini("strict_markers") or pytestconfig.getoption("strict_markers")
