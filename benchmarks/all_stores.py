"""How fast adds through the runtime are on each store, beside the store's own commits without actors.

    python benchmarks/all_stores.py                          all stores, at 1, 32, 300 and 1 000 clients
    python benchmarks/all_stores.py --store redis-always     one of them; may be repeated
    python benchmarks/all_stores.py --postgres postgresql://host/db --store postgres

The servers are those of the tests, started for this and thrown away, with fsync on, unless a URL names others. Trust
ratios: each is the median of ratios within one round of one run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import measure
from core import show
from measure import BACKENDS, Result
from turnkeeper.stores import store_from_url
from workloads import notices, stores
from workloads.stores import Bench
from workloads.subjects import OURS

STORES: Final = ("memory", "sqlite", "postgres", "redis-always", "redis-everysec")
CLIENTS: Final = (1, 32, 300, 1_000)

_TESTS: Final = str(Path(__file__).parents[1] / "tests")  # which know how to start servers


def main() -> int:
    """Measure and print."""
    options = _options()
    about = measure.machine()
    print("  ".join(f"{key}: {value}" for key, value in about.items()))
    results: list[Result] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=options.directory, prefix="tk-")))
        for name in options.store:
            with _bench(name, folder, options) as bench:
                for backend in options.backend:
                    for clients in options.clients:
                        answers = stores.run(backend, bench, clients, rounds=options.rounds, seconds=options.seconds)
                        _show_load(*answers)
                        results += answers
                    if bench.url and options.notices:
                        answers = notices.run(backend, bench, rounds=options.rounds, seconds=options.seconds)
                        show(answers)
                        results += answers
    if options.json:
        report = {"about": about, "results": [result.as_json() for result in results]}
        options.json.write_text(json.dumps(report, indent=1))
    return 0


def _show_load(rates: Result, p50: Result, p99: Result) -> None:
    """Print a line for each subject: adds a second, ratio to ours with its range, latencies in milliseconds."""
    print(f"\n{rates.question}, {rates.backend}, {rates.case.split(',')[0]}: adds/s, ours over it, p50 and p99 in ms")
    for subject, values in rates.samples.items():
        ratios = rates.ratios(OURS, subject)
        span = f"{statistics.median(ratios):6.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
        verdicts = [f"{'met' if met else 'MISSED'} {t.limit:g}" for t, _, met in rates.judged() if t.over == subject]
        print(
            f"  {subject:<30}{statistics.median(values):9.0f} ({min(values):.0f}-{max(values):.0f})  {span:<20}"
            f"{p50.median(subject):9.2f}{p99.median(subject):9.2f}  {' '.join(verdicts)}".rstrip()
        )
    sys.stdout.flush()


@contextmanager
def _bench(name: str, folder: Path, options: argparse.Namespace) -> Iterator[Bench]:
    """Have a store of this kind, and its server, for as long as it is measured."""
    if name == "memory":
        yield Bench(name, partial(store_from_url, "memory:"))
    elif name == "sqlite":
        yield Bench(name, partial(store_from_url, f"sqlite:///{folder}/chats.db"))
    else:
        with _server(name, folder, options) as url:
            durability = "relaxed" if name == "redis-everysec" else "full"
            yield Bench(name, partial(store_from_url, url), durability, pooled=True, url=url)


@contextmanager
def _server(name: str, folder: Path, options: argparse.Namespace) -> Iterator[str]:
    given = options.postgres if name == "postgres" else options.redis
    if given:
        yield given
        return
    if _TESTS not in sys.path:
        sys.path.append(_TESTS)
    from servers.postgres import PostgresServer
    from servers.valkey import ValkeyServer

    place = folder / name
    place.mkdir()
    folder.chmod(0o755)  # PostgreSQL runs as another user when root starts it
    server = (
        PostgresServer(place, small=False)
        if name == "postgres"
        else ValkeyServer(place, appendfsync=name.removeprefix("redis-"))
    )
    try:
        yield server.url("bench")
    finally:
        server.close()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", action="append", choices=STORES, help="may be repeated; default all")
    parser.add_argument("--clients", action="append", type=int, help="may be repeated; default 1, 32, 300, 1000")
    parser.add_argument("--rounds", type=int, default=5, help="samples of each subject")
    parser.add_argument("--seconds", type=float, default=1.0, help="each sample takes")
    parser.add_argument("--backend", action="append", choices=list(BACKENDS), help="may be repeated; default asyncio")
    parser.add_argument("--postgres", metavar="URL", help="instead of a server of its own")
    parser.add_argument("--redis", metavar="URL", help="the same")
    parser.add_argument("--no-notices", dest="notices", action="store_false", help="leave out notices and watching")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write every sample there")
    parser.add_argument("--directory", type=Path, help="where data go: a real disk (default: the temporary one)")
    options = parser.parse_args()
    options.backend = options.backend or ["asyncio"]
    options.store = options.store or list(STORES)
    options.clients = options.clients or list(CLIENTS)
    return options


if __name__ == "__main__":
    sys.exit(main())
