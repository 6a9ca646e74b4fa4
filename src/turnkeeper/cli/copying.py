"""`turnkeeper copy`: memories from one store into another, as they lie there, also while both are in use.

What the target has decides what is left to do, not a note of how far it was: so any interrupted copy is gone on with by
running it again, on any machine, however long after.
"""

from __future__ import annotations

from contextlib import ExitStack
from time import perf_counter
from typing import Final

import click

from turnkeeper.cli.copy_judging import AHEAD, PRESENT, Stores
from turnkeeper.cli.copy_running import DELETED, Copier, Counts
from turnkeeper.cli.copy_writing import COPIED, EXTENDED, GONE, REPLACED, UPDATED
from turnkeeper.cli.interrupts import status_of, terminated_as_interrupted
from turnkeeper.cli.meter import count_meter
from turnkeeper.cli.terminal import Stop, say, say_table
from turnkeeper.cli.walking import store_to_look_at
from turnkeeper.errors import StoreError
from turnkeeper.names import memory_name
from turnkeeper.stores import InMemoryStore, store_from_url

__all__ = ["copy"]

_TOLD: Final = (
    (COPIED, "copied"),
    (EXTENDED, "extended"),
    (UPDATED, "brought up to date"),
    (REPLACED, "replaced"),
    (PRESENT, "there already"),
    (AHEAD, "there with more"),
    (GONE, "gone meanwhile"),
    (DELETED, "deleted in the target"),
)


@click.command(
    epilog="Exit status: 0 all is in the target; 1 some memory is not; 2 it can't be done as asked; 130 or 143 "
    "interrupted."
)
@click.argument("source", metavar="SOURCE_URL")
@click.argument("target", metavar="TARGET_URL")
@click.option("--namespace", help="Only this one; all by default.")
@click.option("--prefix", default="", help="Only memories whose ids begin with it.")
@click.option("--replace", "replaces", is_flag=True, help="Delete what else the target has under a memory's name.")
@click.option("--check", "checks", is_flag=True, help="Compare every entry of what is there already, too.")
@click.option(
    "--delete-gone",
    "deletes",
    is_flag=True,
    help="Delete copies of what the source has deleted since, if nobody has touched them.",
)
@click.option(
    "--durability",
    default="full",
    show_default=True,
    type=click.Choice(["full", "relaxed"]),
    help="How the target is opened.",
)
def copy(
    source: str,
    target: str,
    namespace: str | None,
    prefix: str,
    replaces: bool,
    checks: bool,
    deletes: bool,
    durability: str,
) -> None:
    """Copy memories from one store into another: history, metadata and receipts, as they lie there.

    The source is only read, and a server may go on using it. What is written is read back through another connection
    and compared. The same command goes on where an interrupted one ended, and brings what has come since. A memory
    that the target has with another history is refused, the others go on.
    """
    if namespace is not None or prefix:
        memory_name(prefix or "any", namespace or "")
    stores = _stores(source, target)
    started = perf_counter()
    counts = Counts()
    try:
        with ExitStack() as stack:
            stack.enter_context(terminated_as_interrupted())
            for store in (stores.source, stores.target, stores.reader):
                stack.callback(store.close)
                store.open(durability=durability)
            meter = stack.enter_context(count_meter("copying", counts))
            copier = Copier(
                stores,
                counts,
                replaces=replaces,
                checks=checks,
                tell=lambda reason: meter.complain(f"not copied: {reason}"),
                show=meter.show,
            )
            copier.run(namespace=namespace, prefix=prefix)
            if deletes:
                copier.delete_gone(namespace=namespace, prefix=prefix)
    except KeyboardInterrupt as interrupt:
        raise Stop(f"interrupted; {_so_far(counts)}", status_of(interrupt)) from None
    except StoreError as error:
        raise Stop(f"{error}; {_so_far(counts)}" if counts.memories else str(error)) from None
    _report(stores, counts, perf_counter() - started)


def _stores(source: str, target: str) -> Stores:
    stores = Stores(store_to_look_at(source), store_from_url(target), store_from_url(target, read_only=True))
    if isinstance(stores.target, InMemoryStore):
        raise Stop("a store in memory is gone with this process: name a file, such as sqlite:///chats.db")
    if stores.source.describe() == stores.target.describe():
        raise Stop(f"source and target are the same: {stores.source.describe()}")
    return stores


def _so_far(counts: Counts) -> str:
    return (
        f"{counts.memories} memories are in the target as they are in the source, {counts.entries} entries were "
        "written; the same command goes on from here"
    )


def _report(stores: Stores, counts: Counts, seconds: float) -> None:
    rows = [("source", stores.source.describe()), ("target", stores.target.describe())]
    rows += [(title, f"{counts.what[what]} memories") for what, title in _TOLD]
    rows += [
        ("not copied", f"{counts.failed} memories"),
        ("entries", str(counts.entries)),
        ("receipts", str(counts.receipts)),
        ("time", f"{seconds:.2f} s"),
    ]
    say_table(rows)
    if counts.failed:
        raise Stop(f"{counts.failed} of {counts.failed + counts.memories} memories were not copied", status=1)
    say(
        f"checked: {counts.memories} memories; what was written was read back, and is what the source has",
        style="green",
    )
