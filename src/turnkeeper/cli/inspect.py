"""`turnkeeper inspect`: look at memories, also while a server uses them."""

from __future__ import annotations

import json
from base64 import b64encode
from collections import deque
from itertools import islice
from typing import Any, Final

import click

from turnkeeper.cli.inspect_history import Shown, follow, missing, named, show_history
from turnkeeper.cli.rendering import escaped_bytes, format_time, message_body, message_title
from turnkeeper.cli.terminal import Stop, complain, say, say_block, say_table
from turnkeeper.cli.walking import log_entries, look_at, memories, store_to_look_at
from turnkeeper.errors import MemoryCorruptError
from turnkeeper.log import Head, StoredEntry
from turnkeeper.names import MemoryName, memory_name
from turnkeeper.state import Log
from turnkeeper.stores import LoadQuery, Store

__all__ = ["inspect"]

_LISTED: Final = 100
"""Memories listed unless --limit says otherwise: a few screens, read in no time."""

_COLUMNS: Final = ("NAMESPACE", "ID", "VERSION", "MESSAGES", "UPDATED")

_ROLE_STYLES: Final = {"system": "magenta", "developer": "magenta", "user": "cyan", "assistant": "green"}


@click.command(epilog="Exit status: 0 shown; 1 no such memory, or it is corrupt; 2 the store can't be read.")
@click.argument("url")
@click.argument("memory_id", metavar="[ID]", required=False)
@click.option("--namespace", help="List only this one; with ID, where it is (by default the unnamed one).")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    help=f"First N memories ({_LISTED}); with ID, last N messages; with --history, N entries.",
)
@click.option("--json", "as_json", is_flag=True, help="JSON Lines in ASCII, for programs.")
@click.option("--raw", is_flag=True, help="With ID: the log's entries as they are stored, readable or not.")
@click.option(
    "--history", is_flag=True, help="With ID: the log, an entry a line: version, time, kind, roles and bytes."
)
@click.option("--follow", "following", is_flag=True, help="With ID: the log's last entries, and those that come.")
@click.option("--reverse", is_flag=True, help="With --history: the newest entries first.")
@click.option("--content", is_flag=True, help="With --history or --follow: what the messages say, too.")
def inspect(
    url: str,
    memory_id: str | None,
    namespace: str | None,
    limit: int | None,
    as_json: bool,
    raw: bool,
    history: bool,
    following: bool,
    reverse: bool,
    content: bool,
) -> None:
    """List the memories at URL, or show the one named ID.

    Only reads, and takes no lock. Terminal escapes and control characters are stripped from all that is shown. --raw
    shows the whole log, with payloads in escaped ASCII; it works for a corrupt memory too. --history shows it without
    what was said, unless --content is given. --follow goes on until Ctrl-C.
    """
    given = {"--raw": raw, "--history": history, "--follow": following}
    modes = [option for option, value in given.items() if value]
    if modes and memory_id is None:
        raise click.UsageError(f"{modes[0]} needs an ID.")
    if len(modes) > 1:
        raise click.UsageError(f"{modes[0]} and {modes[1]} don't go together.")
    if reverse and not history:
        raise click.UsageError("--reverse is for --history.")
    if content and not (history or following):
        raise click.UsageError("--content is for --history and --follow.")
    store = store_to_look_at(url)
    name = memory_name(memory_id or "any", namespace or "")
    try:
        store.open(durability="full")
        if memory_id is None:
            _list(store, namespace, limit or _LISTED, as_json=as_json)
        elif history:
            shown = Shown(as_json=as_json, content=content)
            show_history(store, name, limit, reverse=reverse, shown=shown)
        elif following:
            follow(store, name, limit, shown=Shown(as_json=as_json, content=content))
        elif raw:
            _show_entries(store, name, limit, as_json=as_json)
        else:
            _show(store, name, limit, as_json=as_json)
    finally:
        store.close()


def _list(store: Store, namespace: str | None, limit: int, *, as_json: bool) -> None:
    found = memories(store, namespace=namespace)
    rows = []
    for listed in islice(found, limit):
        seen = look_at(store, listed.name)
        if as_json:
            _say_json(_described(listed.name, listed.head, seen))
        else:
            count = "corrupt" if isinstance(seen, MemoryCorruptError) else str(seen.count)
            updated = format_time(listed.head.updated_at)
            rows.append((listed.name.namespace, listed.name.id, str(listed.head.version), count, updated))
    if not as_json:
        say_table(rows, header=_COLUMNS)
    if next(found, None) is not None:
        complain(f"only the first {limit} are listed; see --limit and --namespace")


def _described(name: MemoryName, head: Head, seen: Log | MemoryCorruptError) -> dict[str, Any]:
    described: dict[str, Any] = {"namespace": name.namespace, "id": name.id, "version": head.version}
    if isinstance(seen, MemoryCorruptError):
        described["corrupt"] = {"entry": seen.version, "reason": seen.reason}
    else:
        described["messages"] = seen.count
    return described | {"created_at": head.created_at, "updated_at": head.updated_at}


def _show(store: Store, name: MemoryName, limit: int | None, *, as_json: bool) -> None:
    seen = look_at(store, name)
    if isinstance(seen, MemoryCorruptError):
        raise Stop(f"{seen}; --raw shows its entries", status=1)
    if not seen.mid:
        raise missing(store, name)
    messages = list(enumerate(seen.messages, start=1))[-(limit or 0) :]
    if as_json:
        for _, message in messages:
            _say_json(message.to_dict())
        return
    shown = "" if len(messages) == seen.count else f"the last {len(messages)} of "
    updated = format_time(seen.updated_at)
    say(f"{named(name)}: version {seen.n}, {shown}{seen.count} messages, updated {updated}", style="bold")
    for number, message in messages:
        say()
        say(message_title(number, message).replace("\n", " "), style=_ROLE_STYLES.get(message.role, "yellow"))
        say_block(message_body(message))


def _show_entries(store: Store, name: MemoryName, limit: int | None, *, as_json: bool) -> None:
    head = store.load([LoadQuery(name)])[0].head
    if head is None:
        raise missing(store, name)
    entries = log_entries(store, head.mid)
    for entry in entries if limit is None else deque(entries, maxlen=limit):
        if as_json:
            _say_json(_described_entry(entry))
        else:
            op = escaped_bytes(entry.op.encode("utf-8", "surrogatepass"))
            click.echo(f"{entry.version}\t{op}\t{format_time(entry.at)}\t{escaped_bytes(entry.payload)}")


def _described_entry(entry: StoredEntry) -> dict[str, Any]:
    described: dict[str, Any] = {"version": entry.version, "op": entry.op, "entry_id": entry.entry_id.hex()}
    try:
        described["payload"] = entry.payload.decode()
    except UnicodeDecodeError:
        described["payload_base64"] = b64encode(entry.payload).decode("ascii")
    return described | {"at": entry.at}


def _say_json(value: object) -> None:
    """Write one line of JSON in printable ASCII."""
    click.echo(json.dumps(value, ensure_ascii=True))
