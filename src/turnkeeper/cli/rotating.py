"""`turnkeeper rotate`: seal everything in a store with the active key."""

from __future__ import annotations

from pathlib import Path

import click

from turnkeeper.cli.keys import keys_given, with_keys
from turnkeeper.cli.terminal import Stop, complain, say, say_table, spinning
from turnkeeper.rotating import rotate_store
from turnkeeper.stores import InMemoryStore, store_from_url

__all__ = ["rotate"]


@click.command(
    epilog="Exit status: 0 the active key seals everything; 1 something is left; 2 it can't be done; 130 interrupted."
)
@click.argument("url", metavar="STORE_URL")
@click.option(
    "--keys", "keys_file", type=click.Path(path_type=Path), help="File with the keys; or set TURNKEEPER_KEYS."
)
@click.option("--plain", is_flag=True, help="Seal also what was written before there was a key.")
def rotate(url: str, keys_file: Path | None, plain: bool) -> None:
    """Seal everything with the active key, so that older keys can be dropped.

    Interrupted, it leaves everything readable; the same command goes on with what is left. Every process that writes to
    the store must have the new active key before.
    """
    keys = keys_given(keys_file)
    if keys is None:
        raise click.UsageError("Name the keys: --keys FILE, or TURNKEEPER_KEYS.")
    inner = store_from_url(url)
    if isinstance(inner, InMemoryStore):
        raise Stop("a store in memory belongs to its process alone: there is nothing to rotate from here")
    store = with_keys(inner, keys, allow_plain=plain)
    try:
        store.open(durability="full")
        with spinning("sealing anew"):
            rotation = rotate_store(store)
    finally:
        store.close()
    say(f"sealed {rotation.resealed} entries and metadata anew with key {keys.active!r}")
    say_table([(key_id or "(plain)", str(count)) for key_id, count in rotation.left.items()])
    for each in rotation.unopened:
        where = f"{each.name.id!r} (namespace {each.name.namespace!r}), entry {each.version}"
        complain(f"not opened: {where}, key {each.key_id!r}" if each.key_id else f"plain: {where}; --plain seals it")
    if rotation.left:
        raise Stop("something is left that the active key did not seal", status=1)
