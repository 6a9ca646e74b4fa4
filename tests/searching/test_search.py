"""Full-text search on SQLite: what is found, what no longer is, and what a query can't do."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path
from typing import Any

import anyio
import pytest

import turnkeeper
from turnkeeper import AssistantMessage, InvalidArgumentError, Runtime, SearchPage, StoreError, UserMessage

pytestmark = pytest.mark.anyio


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chats.db"


def url_of(path: Path) -> str:
    return f"sqlite:///{path}"


def searchable(path: Path, **options: Any) -> Runtime:
    return turnkeeper.open_runtime(f"{url_of(path)}?search=true", **options)


def places(page: SearchPage) -> list[str]:
    return [f"{hit.namespace}/{hit.id}@{hit.entry.version.n}" for hit in page.hits]


class TestFinding:
    async def test_entries_that_have_all_the_words_the_newest_first(self, path: Path) -> None:
        async with searchable(path) as runtime:
            memory = runtime.memory("a")
            await memory.add(UserMessage("where is my blue suitcase"))
            await memory.add([AssistantMessage("your suitcase is in Oslo"), UserMessage("the blue one?")])
            await memory.add(UserMessage("thanks"))
            page = await runtime.search("suitcase blue")
            assert places(page) == ["/a@2", "/a@1"]
            assert [message.text for message in page.hits[0].entry.messages] == [
                "your suitcase is in Oslo",
                "the blue one?",
            ]

    async def test_case_and_diacritics_do_not_matter(self, path: Path) -> None:
        async with searchable(path) as runtime:
            await runtime.memory("a").add(UserMessage("Füchse in ZÜRICH"))
            assert places(await runtime.search("fuchse zurich")) == ["/a@1"]

    async def test_text_parts_are_found_and_other_parts_are_not(self, path: Path) -> None:
        parts = [
            {"type": "text", "text": "look at this zebra"},
            {"type": "image_url", "image_url": {"url": "https://giraffe.example"}},
        ]
        async with searchable(path) as runtime:
            await runtime.memory("a").add(UserMessage(parts))
            assert places(await runtime.search("zebra")) == ["/a@1"]
            assert places(await runtime.search("giraffe")) == []

    @pytest.mark.parametrize("text", ['AND OR NOT "NEAR"', "zebra*", "text:zebra", "(zebra)", "zebra AND lion", '"'])
    async def test_the_query_language_of_the_index_means_nothing(self, path: Path, text: str) -> None:
        """Only words count, and an operator is one."""
        async with searchable(path) as runtime:
            await runtime.memory("a").add(UserMessage("a zebra"))
            await runtime.memory("b").add(UserMessage(f"said {text}"))
            found = places(await runtime.search(text))
            words = re.findall(r"\w+", text)
            assert found == (["/b@1", "/a@1"] if words == ["zebra"] else ["/b@1"] if words else [])

    async def test_namespace_and_prefix_bound_it(self, path: Path) -> None:
        async with searchable(path) as runtime:
            for namespace, memory_id in (("", "user-1"), ("", "user-2"), ("", "uses"), ("other", "user-1")):
                await runtime.memory(memory_id, namespace).add(UserMessage("zebra"))
            assert len((await runtime.search("zebra")).hits) == 4
            assert places(await runtime.search("zebra", namespace="")) == ["/uses@1", "/user-2@1", "/user-1@1"]
            assert places(await runtime.search("zebra", namespace="", prefix="user-")) == ["/user-2@1", "/user-1@1"]
            assert places(await runtime.search("zebra", namespace="other")) == ["other/user-1@1"]

    @pytest.mark.parametrize("limit", [1, 2, 3, 7])
    async def test_pages_hold_every_hit_once(self, path: Path, limit: int) -> None:
        async with searchable(path) as runtime:
            for n in range(7):
                await runtime.memory(f"m{n % 3}").add(UserMessage(f"zebra {n}"))
            cursor, found = None, []
            while True:
                page = await runtime.search("zebra", limit=limit, cursor=cursor)
                found += [hit.entry.messages[0].text for hit in page.hits]
                if (cursor := page.cursor) is None:
                    break
            assert found == [f"zebra {n}" for n in reversed(range(7))]

    async def test_the_blocking_twin(self, path: Path) -> None:
        async with searchable(path) as runtime:
            await runtime.memory("a").add(UserMessage("zebra"))
            page = await anyio.to_thread.run_sync(lambda: runtime.sync.search("zebra", namespace=""))
            assert places(page) == ["/a@1"]


class TestWhatIsCurrent:
    async def test_the_whole_log_is_found_and_a_flag_tells_what_the_state_shows(self, path: Path) -> None:
        async with searchable(path) as runtime:
            memory = runtime.memory("a")
            await memory.add(UserMessage("zebra one"))
            await memory.add([AssistantMessage("yes"), UserMessage("zebra two")])
            await memory.undo()
            flags = {hit.entry.version.n: hit.current for hit in (await runtime.search("zebra")).hits}
            assert flags == {1: True, 2: True}, "of the second entry an answer is left"
            await memory.clear()
            flags = {hit.entry.version.n: hit.current for hit in (await runtime.search("zebra")).hits}
            assert flags == {1: False, 2: False}

    async def test_what_a_compaction_summed_up_is_found_in_the_log(self, path: Path) -> None:
        """`session.log.recall`: recalled by a keyword, though no view shows it."""
        async with searchable(path) as runtime:
            memory = runtime.memory("a")
            for n in range(4):
                await memory.add([UserMessage(f"zebra {n}"), AssistantMessage("ok")])
            await memory.compact(lambda messages, before: "animals", keep=2)
            flags = {hit.entry.version.n: hit.current for hit in (await runtime.search("zebra")).hits}
            assert flags == {1: False, 2: False, 3: False, 4: True}


class TestWhatIsGone:
    async def test_deleted_and_pruned_entries_are_not_found(self, path: Path) -> None:
        async with searchable(path) as runtime:
            await runtime.memory("a").add(UserMessage("zebra"))
            pruning = runtime.memory("b", window=turnkeeper.MessageWindow(1), history="window")
            await pruning.add(UserMessage("zebra old"))
            await pruning.add(UserMessage("zebra new"))
            await runtime.memory("a").delete()
            assert places(await runtime.search("zebra")) == ["/b@2"]

    async def test_after_an_erasure_no_word_is_left_in_any_file(self, path: Path) -> None:
        async with searchable(path) as runtime:
            for n in range(50):
                await runtime.memory(f"m{n}").add(UserMessage(f"xylophone{n} quetzalcoatl"))
            await runtime.memory("stays").add(UserMessage("an aardvark"))
            assert (await runtime.erase(prefix="m")).blocked is None
            held = b"".join([file.read_bytes() for file in path.parent.iterdir() if file.is_file()])
            assert b"aardvark" in held
            assert b"xylophone" not in held
            assert b"quetzalcoatl" not in held


class TestTheIndex:
    async def test_without_one_a_search_says_how_to_get_it(self, path: Path) -> None:
        async with turnkeeper.open_runtime(url_of(path)) as runtime:
            with pytest.raises(StoreError, match="search=true"):
                await runtime.search("zebra")
        async with turnkeeper.open_runtime("memory:") as runtime:
            with pytest.raises(StoreError, match="search=true"):
                await runtime.search("zebra")

    async def test_it_is_made_from_what_is_there_and_kept_whoever_writes(self, path: Path) -> None:
        async with turnkeeper.open_runtime(url_of(path)) as runtime:
            await runtime.memory("a").add(UserMessage("zebra before"))
        async with searchable(path) as runtime:
            await runtime.memory("a").add(UserMessage("zebra meanwhile"))
        async with turnkeeper.open_runtime(url_of(path)) as runtime:
            await runtime.memory("a").add(UserMessage("zebra after"))
            assert places(await runtime.search("zebra")) == ["/a@3", "/a@2", "/a@1"]
        with sqlite3.connect(path) as connection:
            connection.execute("INSERT INTO said (said) VALUES ('integrity-check')")

    async def test_an_entry_that_is_no_json_is_found_by_nothing_and_harms_nothing(self, path: Path) -> None:
        async with searchable(path) as runtime:
            await runtime.memory("a").add(UserMessage("zebra"))
        with sqlite3.connect(path) as connection:
            connection.execute(
                "INSERT INTO entry (mid, version, op, entry_id, payload, at) "
                "VALUES (99, 1, 'add', x'00', CAST('zebra' AS BLOB), 0)"
            )
        connection.close()
        async with searchable(path) as runtime:
            assert places(await runtime.search("zebra")) == ["/a@1"]


class TestRefusals:
    @pytest.mark.parametrize(
        "arguments",
        [
            {"text": ""},
            {"text": " \t"},
            {"text": 7},
            {"text": "a\0b"},
            {"text": "a", "limit": 0},
            {"text": "a", "limit": 1_001},
            {"text": "a", "limit": True},
            {"text": "a", "cursor": "x"},
            {"text": "a", "namespace": "\n"},
            {"text": "a", "prefix": 7},
        ],
    )
    async def test_bad_arguments(self, path: Path, arguments: dict[str, Any]) -> None:
        async with searchable(path) as runtime:
            with pytest.raises(InvalidArgumentError):
                await runtime.search(**arguments)

    async def test_nothing_said_is_in_a_repr(self, path: Path) -> None:
        async with searchable(path) as runtime:
            await runtime.memory("a").add(UserMessage("zebra"))
            assert "zebra" not in repr(await runtime.search("zebra"))
