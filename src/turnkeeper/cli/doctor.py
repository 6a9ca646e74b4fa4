"""`turnkeeper doctor`: is this machine, and is this store, as it should be?"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import click

from turnkeeper.cli.checkup import (
    Corrupt,
    Finding,
    check_durability,
    check_file,
    check_integrity,
    check_versions,
    find_corrupt,
    quarantine,
)
from turnkeeper.cli.keys import keys_given, with_keys
from turnkeeper.cli.terminal import Stop, complain, say, say_table, spinning
from turnkeeper.cli.walking import store_to_look_at
from turnkeeper.errors import DecryptionError, StoreError
from turnkeeper.stores import Keyring, SQLiteStore

__all__ = ["doctor"]

_SHOWN: Final = 20
"""Corrupt memories named one by one; the rest is counted."""

_STYLES: Final = {"ok": "", "note": "yellow", "problem": "bold red"}


@click.command(epilog="Exit status: 0 healthy; 1 problems found (also when they were put aside); 2 can't look.")
@click.argument("url", required=False)
@click.option("--quarantine", "put_aside", is_flag=True, help="Move corrupt memories out of the way.")
@click.option(
    "--keys",
    "keys_file",
    type=click.Path(path_type=Path),
    help="File with the keys of an encrypted store; or set TURNKEEPER_KEYS.",
)
def doctor(url: str | None, put_aside: bool, keys_file: Path | None) -> None:
    """Report versions and SQLite's known bugs; with URL, examine the store.

    Reads while a server runs. The durability in force can be seen only on a connection that writes, so a file that is
    free is opened as a runtime would, for a moment; nothing is changed. --quarantine needs the file to be free (or
    shared): it gives corrupt memories a new name, under which their entries stay as they are.
    """
    if put_aside and url is None:
        raise click.UsageError("--quarantine needs a URL.")
    say("Versions", style="bold")
    healthy = _tell(check_versions())
    if url is not None:
        healthy = _examine(url, keys_given(keys_file), put_aside=put_aside) and healthy
    say()
    if not healthy:
        say("problems found", style="bold red")
        raise Stop("", status=1)
    say("healthy", style="bold green")


def _examine(url: str, keys: Keyring | None, *, put_aside: bool) -> bool:
    store = store_to_look_at(url)
    try:
        store.open(durability="full")
        say()
        say(store.describe(), style="bold")
        with spinning("looking through every memory"):
            findings: list[Finding] = []
            if isinstance(store, SQLiteStore):  # a server looks after its files itself
                findings += [*check_file(store), *check_durability(url, store), *check_integrity(store)]
            corrupt = find_corrupt(with_keys(store, keys, allow_plain=True))
        healthy = _tell(findings + corrupt.findings(_SHOWN))
    finally:
        store.close()
    if all(isinstance(error, DecryptionError) for error in corrupt.errors):
        if corrupt.errors or corrupt.closed:
            say("what does not open needs its key (--keys FILE, TURNKEEPER_KEYS); nothing is moved aside for that")
    elif put_aside and isinstance(store, SQLiteStore):
        _put_aside(url, corrupt)
    elif isinstance(store, SQLiteStore):
        say("--quarantine moves corrupt memories aside; 'turnkeeper inspect URL ID --raw' shows their entries")
    return healthy


def _put_aside(url: str, corrupt: Corrupt) -> None:
    try:
        for old, new in quarantine(url, corrupt.errors):
            say(f"moved {old.id!r} (namespace {old.namespace!r}) to {new.id!r} (namespace {new.namespace!r})")
    except StoreError as error:
        complain(f"not moved: {error}")


def _tell(findings: Iterable[Finding]) -> bool:
    """Show findings, and tell whether none of them is a problem."""
    told = list(findings)
    say_table(
        [(finding.level, finding.what, finding.found) for finding in told],
        styles=[_STYLES[finding.level] for finding in told],
    )
    return all(finding.level != "problem" for finding in told)
