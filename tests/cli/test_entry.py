"""The command as a whole: it loads late, says what is missing, and ends every error in one line and a status."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import turnkeeper
from turnkeeper.cli import commands, terminal
from turnkeeper.errors import StoreUnavailableError

PASSWORD = "hunter2"


@pytest.mark.parametrize("module", ["click", "rich", "ddsketch"])
def test_without_the_extra_it_says_what_to_install(module: str) -> None:
    block = f"import sys; sys.modules[{module!r}] = None; from turnkeeper.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", block, "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == f"turnkeeper's command line needs {module}: pip install 'turnkeeper[cli]'\n"


def test_without_the_extra_the_library_still_works() -> None:
    block = "import sys\nfor name in ('click', 'rich', 'ddsketch'): sys.modules[name] = None\n"
    subprocess.run([sys.executable, "-c", f"{block}import turnkeeper.cli"], check=True)


def test_a_missing_module_of_our_own_is_not_mistaken_for_the_extra() -> None:
    block = "import sys; sys.modules['turnkeeper.cli.demo'] = None; from turnkeeper.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "turnkeeper[cli]" not in done.stderr


def test_it_runs_as_a_module_and_knows_its_version(run: Callable[..., Any]) -> None:
    assert run("--version")[:2] == (0, f"turnkeeper {turnkeeper.__version__}\n")


def test_help_lists_the_commands_but_not_the_check(invoke: Callable[..., Any]) -> None:
    shown = invoke("-h")
    assert shown.status == 0
    for name in ("copy", "demo", "doctor", "import", "inspect", "replay"):
        assert f"\n  {name} " in shown.out
    assert "replay-check" not in shown.out


@pytest.mark.parametrize("command", ["copy", "demo", "doctor", "import", "inspect", "replay", "replay-check"])
def test_every_command_has_help_with_its_exit_statuses(invoke: Callable[..., Any], command: str) -> None:
    shown = invoke(command, "--help")
    assert shown.status == 0
    assert "xit status" in shown.out


@pytest.mark.parametrize(
    "args",
    [
        ["bogus"],
        ["replay"],
        ["replay", "x.jsonl", "--clients", "0"],
        ["replay", "x.jsonl", "--copies", "0"],
        ["replay", "x.jsonl", "--backend", "curio"],
        ["demo", "extra"],
        ["inspect"],
    ],
)
def test_wrong_usage_is_2(invoke: Callable[..., Any], args: list[str]) -> None:
    ran = invoke(*args)
    assert ran.status == 2
    assert "Usage: " in ran.err
    assert ran.out == ""


@pytest.mark.parametrize(
    "args",
    [
        ["doctor", "sqlite:///a.db", f"postgres://user:{PASSWORD}@host/db"],
        [f"postgres://user:{PASSWORD}@host/db"],
        ["inspect", f"postgres://user:{PASSWORD}@host/db"],
        ["inspect", f"sqlite://user:{PASSWORD}@host/db"],
        ["doctor", f"redis://:{PASSWORD}@host"],
        ["replay", "chats.jsonl", "--store", f"postgres://user:{PASSWORD}@host/db"],
        ["replay", f"postgres://user:{PASSWORD}@host/db"],
        ["replay-check", "chats.jsonl", "--store", f"postgres://user:{PASSWORD}@host/db"],
    ],
)
def test_no_error_repeats_a_password(invoke: Callable[..., Any], args: list[str]) -> None:
    ran = invoke(*args)
    assert ran.status == 2
    assert ran.err
    assert PASSWORD not in ran.out + ran.err


def fails_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(commands.cli.commands["demo"], "callback", fail)


def test_an_interrupt_is_130(invoke: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    fails_with(monkeypatch, KeyboardInterrupt())
    assert invoke("demo") == (130, "", "turnkeeper: interrupted\n")


def test_an_error_of_the_library_is_one_line_and_2(invoke: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    fails_with(monkeypatch, StoreUnavailableError("the disk is full"))
    assert invoke("demo") == (2, "", "turnkeeper: the disk is full\n")


def test_an_error_of_the_system_is_one_line_and_2(invoke: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    fails_with(monkeypatch, PermissionError(13, "Permission denied", "/var/x\x1b[31m"))
    assert invoke("demo") == (2, "", "turnkeeper: Permission denied: /var/x\n")


def test_a_bug_names_its_place_but_no_content(
    invoke: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, canary: str
) -> None:
    fails_with(monkeypatch, KeyError(canary))
    ran = invoke("demo")
    assert ran.status == 70
    assert "KeyError" in ran.err
    assert canary not in ran.err
    assert "Traceback" not in ran.err
    assert ran.err.count("\n") == 1


def test_a_reader_that_leaves_ends_it_quietly(fill: Callable[..., str], tmp_path: Path) -> None:
    url = fill(a=[{"role": "user", "content": "x" * 100_000}] * 3)
    command = f"{sys.executable} -m turnkeeper inspect {url} a | head -n 1"
    done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1


def test_what_the_screen_cannot_show_is_escaped(run: Callable[..., Any], fill: Callable[..., str]) -> None:
    ran = run("inspect", fill(a=[{"role": "user", "content": "天気"}]), "a", env={"PYTHONIOENCODING": "latin-1"})
    assert ran.status == 0
    assert "\\u5929\\u6c17" in ran.out


def test_stop_carries_its_status() -> None:
    assert (terminal.Stop("x").status, terminal.Stop("x", status=1).status) == (2, 1)
