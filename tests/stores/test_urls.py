"""From URLs to stores; what is no URL of ours is refused without repeating what may be secret."""

from __future__ import annotations

from pathlib import Path

import pytest

import turnkeeper
from turnkeeper.errors import InvalidStoreURLError
from turnkeeper.stores import InMemoryStore, SQLiteStore, store_from_url


def sqlite(url: str) -> SQLiteStore:
    store = store_from_url(url)
    assert isinstance(store, SQLiteStore)
    return store


class TestSQLite:
    def test_three_slashes_are_relative_to_the_working_directory(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        store = sqlite("sqlite:///chats.db")
        monkeypatch.chdir("/")
        assert store.path == tmp_path.resolve() / "chats.db", "relative to where the store was made"

    def test_four_slashes_are_absolute(self) -> None:
        assert sqlite("sqlite:////var/lib/chats.db").path == Path("/var/lib/chats.db").resolve()

    def test_percent_escapes_are_decoded(self, tmp_path: Path) -> None:
        assert sqlite(f"sqlite:///{tmp_path}/a%20b%3Fc%23d%25.db").path.name == "a b?c#d%.db"
        assert sqlite(f"sqlite:///{tmp_path}/caf%C3%A9.db").path.name == "café.db"

    def test_the_scheme_may_be_in_capitals(self) -> None:
        assert sqlite("SQLite:////tmp/chats.db").path.name == "chats.db"

    @pytest.mark.parametrize(("query", "shared"), [("", False), ("?shared=true", True), ("?shared=False", False)])
    def test_shared_is_an_option(self, query: str, shared: bool) -> None:
        assert sqlite(f"sqlite:////tmp/chats.db{query}").shared is shared

    def test_every_spelling_of_a_path_is_one_file(self, tmp_path: Path) -> None:
        """The side files lie beside the real file: otherwise two spellings would be two owners."""
        (tmp_path / "real").mkdir()
        (tmp_path / "link").symlink_to(tmp_path / "real")
        paths = {
            sqlite(f"sqlite:///{tmp_path}/{spelling}").path
            for spelling in ("real/chats.db", "link/chats.db", "real/../real/chats.db", "real/./chats.db")
        }
        assert paths == {(tmp_path / "real" / "chats.db").resolve()}

    def test_making_a_store_touches_nothing(self, tmp_path: Path) -> None:
        sqlite(f"sqlite:///{tmp_path}/chats.db")
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("name", ["a b?c#d%.db", "café 🙂.db", "'quoted'.db", "a&b=c.db", "-.db"])
    def test_awkward_file_names_work(self, tmp_path: Path, name: str) -> None:
        store = SQLiteStore(tmp_path / name)
        store.open(durability="full")
        store.close()
        assert (tmp_path / name).stat().st_size > 0

    def test_a_file_name_that_is_no_utf_8_works_or_is_refused_by_name(self, tmp_path: Path) -> None:
        store = SQLiteStore(tmp_path / "caf\udce9.db")
        try:
            store.open(durability="full")
        except turnkeeper.TurnkeeperError:
            pass
        finally:
            store.close()


@pytest.mark.parametrize("url", ["memory:", "memory://"])
def test_memory(url: str) -> None:
    assert isinstance(store_from_url(url), InMemoryStore)


WRONG = [
    ("", "unknown store scheme"),
    ("chats.db", "unknown store scheme"),
    ("/var/lib/chats.db", "unknown store scheme"),
    ("mysql://localhost/db", "unknown store scheme 'mysql'; known are memory:, sqlite:///"),
    ("http://localhost/", "unknown store scheme 'http'"),
    ("sqlite:", "three slashes"),
    ("sqlite:chats.db", "three slashes"),
    ("sqlite://chats.db", "three slashes"),
    ("sqlite:///", "three slashes"),
    ("sqlite://localhost/chats.db", "three slashes"),
    ("sqlite:///:memory:", "use 'memory:'"),
    ("sqlite:///chats.db?share=true", "unknown SQLite option 'share'; known are network_filesystem, search, shared"),
    ("sqlite:///chats.db?shared", "'true' or 'false'"),
    ("sqlite:///chats.db?shared=yes", "'true' or 'false'"),
    ("sqlite:///chats.db?shared=1", "'true' or 'false'"),
    ("sqlite:///chats.db?mode=memory", "unknown SQLite option 'mode'"),
]


@pytest.mark.parametrize(("url", "message"), WRONG)
def test_what_is_wrong_is_named(url: str, message: str) -> None:
    with pytest.raises(InvalidStoreURLError, match=message.replace("?", r"\?")):
        store_from_url(url)
    with pytest.raises(turnkeeper.InvalidArgumentError):
        turnkeeper.open_runtime(url)


@pytest.mark.parametrize(
    "url",
    [
        "postgres://user:s3cret[@localhost/db",
        "postgres://user:s3cret]@localhost/db",
        "redis://:[s3cret]@localhost/0",
        "postgres://user:s3cret\u2100@localhost/db",  # changes under NFKC, which urlsplit refuses
        "sqlite://user:s3cret[@localhost/chats.db",
        "sqlite:///a%00b.db",
    ],
)
def test_what_is_no_url_at_all_is_refused_in_the_same_way(url: str) -> None:
    with pytest.raises(InvalidStoreURLError) as raised:
        store_from_url(url)
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize(
    "url", ["sqlite:///chats#2.db", "sqlite:////tmp/a.db#fragment", "memory:chats.db", "memory:?shared=true"]
)
def test_nothing_of_a_url_is_ignored_in_silence(url: str) -> None:
    """`sqlite:///chats#2.db` must not be the file `chats`."""
    with pytest.raises(InvalidStoreURLError):
        store_from_url(url)
