"""Locks on side files: who excludes whom, how long one waits, what a death leaves."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from turnkeeper.errors import StoreUnavailableError
from turnkeeper.stores import filelock
from turnkeeper.stores.filelock import FileLock

HOLD = """
import sys
from pathlib import Path
from turnkeeper.stores.filelock import FileLock
lock = FileLock(Path(sys.argv[1]))
print(lock.acquire(exclusive=True, timeout=10), flush=True)
lock.note_owner(alone=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chats.db.lock"


@pytest.fixture
def lock(path: Path) -> Iterator[FileLock]:
    made = FileLock(path)
    yield made
    made.close()


@pytest.fixture
def other(path: Path) -> Iterator[FileLock]:
    made = FileLock(path)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("held", "wanted", "granted"),
    [(True, True, False), (True, False, False), (False, True, False), (False, False, True)],
)
def test_two_locks_exclude_each_other_in_one_process_too(
    lock: FileLock, other: FileLock, held: bool, wanted: bool, granted: bool
) -> None:
    assert lock.acquire(exclusive=held, timeout=0)
    assert other.acquire(exclusive=wanted, timeout=0) is granted


def test_it_is_free_after_release_and_after_close(lock: FileLock, other: FileLock) -> None:
    assert lock.acquire(exclusive=True, timeout=0)
    lock.release()
    assert other.acquire(exclusive=True, timeout=0)
    other.close()
    assert lock.acquire(exclusive=True, timeout=0)


def test_releasing_and_closing_what_was_never_taken_is_harmless(lock: FileLock) -> None:
    lock.release()
    lock.note_owner(alone=True)
    lock.close()
    lock.close()
    assert not lock.path.exists(), "naming a lock opens nothing"


def test_the_wait_is_bounded(lock: FileLock, other: FileLock) -> None:
    assert lock.acquire(exclusive=True, timeout=0)
    began = time.monotonic()
    assert not other.acquire(exclusive=True, timeout=0.1)
    assert 0.1 <= time.monotonic() - began < 5


def test_who_waits_gets_it_when_it_is_given_back(lock: FileLock, other: FileLock) -> None:
    assert lock.acquire(exclusive=True, timeout=0)
    granted: list[bool] = []
    waiting = threading.Thread(target=lambda: granted.append(other.acquire(exclusive=True, timeout=30)))
    waiting.start()
    lock.release()
    waiting.join()
    assert granted == [True]


def test_the_side_file_is_for_its_owner_alone(lock: FileLock, path: Path) -> None:
    before = os.umask(0)
    try:
        lock.acquire(exclusive=True, timeout=0)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_kernel_gives_it_back_when_its_process_is_killed(lock: FileLock, path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "True\n"
        assert not lock.acquire(exclusive=True, timeout=0)
        holder.kill()
        holder.wait()
    assert lock.acquire(exclusive=True, timeout=0)


def test_the_owner_is_who_noted_it_last(lock: FileLock, other: FileLock, path: Path) -> None:
    assert other.owner() == "?"
    lock.acquire(exclusive=True, timeout=0)
    assert other.owner() == "?"
    lock.note_owner(alone=True)
    assert other.owner() == str(os.getpid())
    lock.note_owner(alone=False)
    assert other.owner() == "?", "one of several is not named"
    path.write_bytes(b"\xff no number \x1b[2J")
    assert other.owner() == "?", "whatever else somebody wrote there is not repeated"


def test_a_side_file_that_can_not_be_opened_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailableError, match=r"nowhere/chats\.db\.lock: No such file"):
        FileLock(tmp_path / "nowhere" / "chats.db.lock").acquire(exclusive=True, timeout=0)


def test_a_platform_without_flock_is_a_typed_error(lock: FileLock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filelock, "fcntl", None)
    with pytest.raises(StoreUnavailableError, match="flock"):
        lock.acquire(exclusive=True, timeout=0)


def test_a_program_that_is_started_does_not_inherit_it(lock: FileLock, other: FileLock) -> None:
    assert lock.acquire(exclusive=True, timeout=0)
    command = [sys.executable, "-c", "print('running', flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, close_fds=False, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "running\n"
        lock.close()
        assert other.acquire(exclusive=True, timeout=0)
        child.kill()
