"""`runtime.memories`: pages by id with stable cursors, whatever comes and goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from anyio import to_thread
from hypothesis import given, settings
from hypothesis import strategies as st

from keeping.tools import KINDS, Clock, listed, opened, pages, store_of
from turnkeeper import InvalidArgumentError, InvalidMemoryIdError, Runtime, open_runtime, open_sync_runtime
from turnkeeper.stores import InMemoryStore, SQLiteStore
from turns.tools import user

pytestmark = pytest.mark.anyio


@pytest.fixture
async def runtime(store_url: str) -> Any:
    async with open_runtime(store_url) as one:
        yield one


# Ids that are hard to sort and to cut: neighbours in bytes, of one to four bytes, and the greatest there is.
letters = st.sampled_from(
    ["a", "b", "B", "~", "\u00e9", "\u00ea", "\ue000", "\ud7ff", "\U00010000", "\U0010ffff", "%", "_"]
)
ids = st.text(letters, min_size=1, max_size=3)
names = st.tuples(st.sampled_from(["", "a", "a\u00e9", "\U0010ffff"]), ids)
step = st.one_of(
    st.tuples(st.just("add"), names),
    st.tuples(st.just("meta"), names),
    st.tuples(st.just("delete"), names),
    st.tuples(st.just("page"), st.none()),
)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@given(
    before=st.sets(names, max_size=12),
    steps=st.lists(step, max_size=14),
    namespace=st.none() | st.sampled_from(["", "a", "a\u00e9", "b"]),
    prefix=st.just("") | st.text(letters, max_size=2),
    limit=st.integers(1, 4),
)
@settings(max_examples=40)
def test_what_is_there_all_the_while_is_listed_once_in_byte_order(
    tmp_path_factory: pytest.TempPathFactory,
    kind: str,
    before: set[tuple[str, str]],
    steps: list[tuple[str, Any]],
    namespace: str | None,
    prefix: str,
    limit: int,
) -> None:
    store = InMemoryStore() if kind == "memory" else SQLiteStore(tmp_path_factory.mktemp("list") / "chats.db")

    def wanted(name: tuple[str, str]) -> bool:
        return (namespace is None or name[0] == namespace) and name[1].encode().startswith(prefix.encode())

    def key(name: tuple[str, str]) -> tuple[bytes, bytes]:
        return name[0].encode(), name[1].encode()

    with open_sync_runtime(store, sweep_interval=1e9) as runtime:
        there, seen, always = set(before), [], set(before)
        for space, name in before:
            runtime.memory(name, space).add(user("1"))
        cursor, over = None, False

        def turn_over() -> None:
            nonlocal cursor, over
            start = cursor
            page = runtime.memories(namespace, prefix, limit=limit, cursor=start)
            found = [(each.namespace, each.id) for each in page.memories]
            assert found == sorted(found, key=key)
            rest = sorted(filter(wanted, there), key=key)
            rest = [name for name in rest if not seen or key(name) > key(seen[-1])] if start is not None else rest
            assert found == rest[:limit]
            assert (page.cursor is None) == (len(rest) <= limit)
            seen.extend(found)
            cursor, over = page.cursor, page.cursor is None

        for op, name in steps:
            if op == "page":
                if not over:
                    turn_over()
                continue
            handle = runtime.memory(name[1], name[0])
            if op == "add":
                handle.add(user("2"))
            elif op == "meta":
                handle.set_metadata(title="t")
            else:
                handle.delete()
            (there.discard if op == "delete" else there.add)(name)
            always &= there
        while not over:
            turn_over()
        assert len(set(seen)) == len(seen)
        assert set(filter(wanted, always)) <= set(seen)


class TestOrdinarily:
    async def test_it_says_of_each_what_metadata_says(self, runtime: Runtime) -> None:
        for number in range(5):
            memory = runtime.memory(f"m{number}", "n")
            await memory.add(user("1"))
            await memory.set_metadata(title=f"{number}", data={"n": number}, expires_after=number)
        page = await runtime.memories("n", "m", limit=3)
        assert page.memories == tuple([await runtime.memory(f"m{number}", "n").metadata() for number in range(3)])
        assert await listed(runtime, namespace="n", limit=2) == [f"m{number}" for number in range(5)]

    async def test_the_last_page_knows_that_it_is(self, runtime: Runtime) -> None:
        for number in range(4):
            await runtime.memory(f"{number}").add(user("1"))
        first = await runtime.memories(limit=2)
        assert first.cursor is not None
        second = await runtime.memories(limit=2, cursor=first.cursor)
        assert ([each.id for each in second.memories], second.cursor) == (["2", "3"], None)

    async def test_a_cursor_outlives_the_memory_it_stands_at_and_the_runtime(self, durable_url: str) -> None:
        async with open_runtime(durable_url) as runtime:
            for number in range(4):
                await runtime.memory(f"{number}").add(user("1"))
            cursor = (await runtime.memories(limit=2)).cursor
            await runtime.memory("1").delete()
            await runtime.memory("0").delete()
        async with open_runtime(durable_url) as runtime:
            page = await runtime.memories(limit=2, cursor=cursor)
            assert [each.id for each in page.memories] == ["2", "3"]

    @pytest.mark.parametrize("kind", KINDS)
    async def test_updated_after(self, kind: str, tmp_path: Path) -> None:
        clock = Clock()
        async with opened(store_of(kind, tmp_path, clock)) as runtime:
            for number in range(6):
                clock.now += 1
                await runtime.memory(f"{number}").add(user("1"))
            middle = (await runtime.memory("3").metadata()).updated_at
            assert await listed(runtime, updated_after=middle, limit=1) == ["4", "5"]
            clock.now += 1
            await runtime.memory("0").add(user("2"))
            await runtime.memory("1").set_metadata(title="no entry")
            assert await listed(runtime, updated_after=middle) == ["0", "4", "5"]
            assert await listed(runtime, updated_after=2**63 - 1) == []

    async def test_all_namespaces_or_one(self, runtime: Runtime) -> None:
        for space in ("", "a", "b"):
            for name in ("x", "y"):
                await runtime.memory(name, space).add(user("1"))
        found = [(each.namespace, each.id) for each in await pages(runtime, limit=1)]
        assert found == [(space, name) for space in ("", "a", "b") for name in ("x", "y")]
        assert [each.namespace for each in await pages(runtime, prefix="y", limit=2)] == ["", "a", "b"]
        assert await listed(runtime, namespace="") == ["x", "y"]

    async def test_nothing_is_loaded(self, runtime: Runtime) -> None:
        async with open_runtime("memory:"):
            before = runtime.stats().resident
            await runtime.memories()
            assert runtime.stats().resident == before

    @pytest.mark.parametrize(
        "query",
        [
            {"limit": 0},
            {"limit": 10_001},
            {"limit": True},
            {"limit": 1.0},
            {"updated_after": -1},
            {"updated_after": 2**63},
            {"updated_after": 1.5},
            {"cursor": ""},
            {"cursor": "x"},
            {"cursor": "é"},
            {"cursor": 7},
            {"cursor": "WzEsMl0="},
            {"prefix": None},
            {"prefix": b"a"},
            {"prefix": "\ud83d"},
            {"prefix": "a\0"},
            {"namespace": 7},
            {"namespace": "\n"},
        ],
        ids=repr,
    )
    async def test_what_is_no_query_is_refused(self, query: dict[str, Any]) -> None:
        async with open_runtime("memory:") as runtime:
            with pytest.raises((InvalidArgumentError, InvalidMemoryIdError)):
                await runtime.memories(**query)
            with pytest.raises((InvalidArgumentError, InvalidMemoryIdError)):
                await to_thread.run_sync(lambda: runtime.sync.memories(**query))
