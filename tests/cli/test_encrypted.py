"""Commands on an encrypted store: what does not open is named and left alone; keys rotate; copies stay sealed."""

from __future__ import annotations

import json
import sqlite3
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from turnkeeper import open_sync_runtime
from turnkeeper.stores import EncryptedStore, Keyring, SQLiteStore

Invoke = Callable[..., Any]

CANARY = "canary-zanzibar"
OLD, NEW = b"o" * 32, b"n" * 32
URL = "sqlite:///chats.db"


def open_with(active: str, path: Path, **keys: bytes) -> Any:
    return open_sync_runtime(EncryptedStore(SQLiteStore(path), Keyring(keys, active=active), allow_plain=True))


def key_file(folder: Path, active: str, **keys: bytes) -> Path:
    file = folder / f"{active}-{len(keys)}.json"
    file.touch(mode=0o600)
    written = {key_id: b64encode(key).decode() for key_id, key in keys.items()}
    file.write_text(json.dumps({"active": active, "keys": written}))
    return file


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TURNKEEPER_KEYS", raising=False)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "chats.db"
    with open_with("old", path, old=OLD) as runtime:
        for memory_id in ("one", "two"):
            memory = runtime.memory(memory_id)
            memory.add([{"role": "system", "content": CANARY}, {"role": "user", "content": CANARY}])
            memory.add({"role": "user", "content": CANARY})
            memory.set_metadata(title=CANARY)
    return path


def test_doctor_names_what_does_not_open_without_keys_and_with_other_keys(
    invoke: Invoke, path: Path, tmp_path: Path
) -> None:
    for arguments in ((), ("--keys", key_file(tmp_path, "new", new=NEW))):
        ran = invoke("doctor", URL, *arguments)
        assert ran.status == 1
        for memory_id in ("one", "two"):
            assert f"corrupt\t'{memory_id}' (namespace ''), entry 0: sealed with key 'old'" in ran.out
        assert CANARY not in ran.out + ran.err


def test_doctor_with_the_right_keys_is_content(
    invoke: Invoke, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = key_file(tmp_path, "old", old=OLD)
    assert invoke("doctor", URL, "--keys", keys).status == 0
    monkeypatch.setenv("TURNKEEPER_KEYS", str(keys))
    assert invoke("doctor", URL).status == 0


def test_doctor_names_the_one_entry_that_was_altered(invoke: Invoke, path: Path, tmp_path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("UPDATE entry SET payload = CAST(replace(payload, '[0]', '[0,0]') AS BLOB) WHERE mid = 1")
    connection.commit()
    connection.close()
    ran = invoke("doctor", URL, "--keys", key_file(tmp_path, "old", old=OLD))
    assert ran.status == 1
    assert "'one' (namespace ''), entry 2: sealed with key 'old'" in ran.out
    assert "'two'" not in ran.out


def test_quarantine_leaves_alone_what_only_lacks_its_key(invoke: Invoke, path: Path) -> None:
    ran = invoke("doctor", URL, "--quarantine")
    assert ran.status == 1
    assert "moved '" not in ran.out
    assert "nothing is moved aside" in ran.out
    with open_with("old", path, old=OLD) as runtime:
        assert [message.text for message in runtime.memory("one").messages()] == [CANARY] * 3


def test_quarantine_moves_the_corrupt_one_and_not_its_sealed_neighbour(invoke: Invoke, path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("DELETE FROM entry WHERE mid = 1 AND version = 1")
    connection.execute("UPDATE head SET meta = NULL, meta_version = 0, system = 0 WHERE mid = 1")
    connection.execute("UPDATE entry SET payload = x'7b' WHERE mid = 1")
    connection.commit()
    connection.close()
    ran = invoke("doctor", URL, "--quarantine")
    assert "moved 'one'" in ran.out
    assert "moved 'two'" not in ran.out


def test_keys_that_others_can_read_are_refused(invoke: Invoke, path: Path, tmp_path: Path) -> None:
    keys = key_file(tmp_path, "old", old=OLD)
    keys.chmod(0o644)
    ran = invoke("doctor", URL, "--keys", keys)
    assert ran.status == 2
    assert "chmod 600" in ran.err


def test_rotate_seals_all_anew_and_the_old_key_can_go(invoke: Invoke, path: Path, tmp_path: Path) -> None:
    ran = invoke("rotate", URL, "--keys", key_file(tmp_path, "new", old=OLD, new=NEW))
    assert ran.status == 0
    assert "sealed 6 entries and metadata anew with key 'new'" in ran.out
    with open_with("new", path, new=NEW) as runtime:
        assert [message.text for message in runtime.memory("two").messages()] == [CANARY] * 3
        assert runtime.memory("two").metadata().title == CANARY


def test_rotate_says_what_is_left(invoke: Invoke, path: Path, tmp_path: Path) -> None:
    ran = invoke("rotate", URL, "--keys", key_file(tmp_path, "new", new=NEW))
    assert ran.status == 1
    assert "old\t6" in ran.out
    assert "'one'" in ran.err
    with open_with("old", path, old=OLD) as runtime:
        assert len(runtime.memory("one").messages()) == 3


def test_rotate_seals_plain_entries_when_told(invoke: Invoke, tmp_path: Path) -> None:
    with open_sync_runtime(SQLiteStore(tmp_path / "chats.db")) as runtime:
        runtime.memory("plain").add({"role": "user", "content": CANARY})
    keys = key_file(tmp_path, "new", new=NEW)
    assert invoke("rotate", URL, "--keys", keys).status == 1
    assert CANARY.encode() in (tmp_path / "chats.db").read_bytes()
    assert invoke("rotate", URL, "--keys", keys, "--plain").status == 0
    assert CANARY.encode() not in b"".join([file.read_bytes() for file in tmp_path.glob("chats.db*")])


def test_rotate_needs_keys(invoke: Invoke, path: Path) -> None:
    assert invoke("rotate", URL).status == 2


def test_a_copy_stays_sealed_and_opens_with_the_same_keys(invoke: Invoke, path: Path, tmp_path: Path) -> None:
    ran = invoke("copy", URL, "sqlite:///copied.db")
    assert ran.status == 0, ran.err
    assert CANARY.encode() not in (tmp_path / "copied.db").read_bytes()
    with open_with("old", tmp_path / "copied.db", old=OLD) as runtime:
        assert [message.text for message in runtime.memory("one").messages()] == [CANARY] * 3
        assert runtime.memory("one").metadata().title == CANARY
