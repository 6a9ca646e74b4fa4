"""Which file system a path lies on, and which are refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from turnkeeper.errors import StoreUnavailableError
from turnkeeper.stores import SQLiteStore, filesystems, sqlite
from turnkeeper.stores.filesystems import filesystem_of, is_network, parse_bsd_mounts, parse_mountinfo

MOUNTINFO = r"""
22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
23 22 0:21 / /proc rw,nosuid - proc proc rw
36 22 0:40 / /mnt/team\040share rw,relatime shared:20 master:3 - nfs4 server:/export rw,vers=4.2
37 22 0:41 / /mnt/back\134slash rw - cifs //server/share rw
38 22 0:42 / /srv rw - ext4 /dev/vdb rw
39 38 0:43 / /srv rw - fuse.sshfs user@host: rw
nonsense
40 22 0:44 / /home rw -
"""

BSD_MOUNTS = """/dev/disk3s1s1 on / (apfs, sealed, local, read-only, journaled)
map auto_home on /System/Volumes/Data/home (autofs, automounted, nobrowse)
//user@server/share on /Volumes/Team (old) (smbfs, nodev, nosuid, mounted by user)
server:/export on /Volumes/export (nfs, nodev)
nonsense
"""


class TestReadingMounts:
    def test_linux(self) -> None:
        assert parse_mountinfo(MOUNTINFO) == [
            (Path("/"), "ext4"),
            (Path("/proc"), "proc"),
            (Path("/mnt/team share"), "nfs4"),
            (Path("/mnt/back\\slash"), "cifs"),
            (Path("/srv"), "ext4"),
            (Path("/srv"), "fuse.sshfs"),
        ]

    def test_macos(self) -> None:
        assert parse_bsd_mounts(BSD_MOUNTS) == [
            (Path("/"), "apfs"),
            (Path("/System/Volumes/Data/home"), "autofs"),
            (Path("/Volumes/Team (old)"), "smbfs"),
            (Path("/Volumes/export"), "nfs"),
        ]

    @pytest.mark.parametrize(
        ("path", "kind"),
        [
            ("/var/lib/chats.db", "ext4"),
            ("/mnt/team share/deep/down/chats.db", "nfs4"),
            ("/mnt/team shared/chats.db", "ext4"),
            ("/srv/chats.db", "fuse.sshfs"),
        ],
    )
    def test_the_deepest_and_latest_mount_counts(self, path: str, kind: str) -> None:
        assert filesystems._longest(Path(path), parse_mountinfo(MOUNTINFO)) == kind


class TestThisMachine:
    @pytest.mark.skipif(sys.platform not in ("linux", "darwin"), reason="can't be told elsewhere")
    def test_the_temporary_directory_lies_on_something(self, tmp_path: Path) -> None:
        assert filesystem_of(tmp_path)
        assert filesystem_of(tmp_path / "not" / "there" / "yet")

    @pytest.mark.skipif(sys.platform != "linux", reason="Linux has /proc")
    def test_proc_is_proc(self) -> None:
        assert filesystem_of(Path("/proc/self")) == "proc"

    def test_macos_is_asked_with_a_time_limit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
            assert options["timeout"]
            return subprocess.CompletedProcess(command, 0, stdout=BSD_MOUNTS)

        monkeypatch.setattr(sys, "platform", "darwin")
        monkeypatch.setattr(subprocess, "run", run)
        assert filesystem_of(Path("/Volumes/export/chats.db")) == "nfs"

    def test_where_nobody_can_tell_nothing_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def run(*_: object, **__: object) -> None:
            raise subprocess.TimeoutExpired("mount", 5)

        monkeypatch.setattr(sys, "platform", "darwin")
        monkeypatch.setattr(subprocess, "run", run)
        assert filesystem_of(Path("/")) is None
        monkeypatch.setattr(sys, "platform", "sunos5")
        assert filesystem_of(Path("/")) is None
        assert not is_network(None)


class TestRefusal:
    @pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "ceph", "lustre"])
    @pytest.mark.parametrize("shared", [False, True])
    def test_a_network_file_system_is_refused_with_the_way_out(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, shared: bool
    ) -> None:
        monkeypatch.setattr(sqlite, "filesystem_of", lambda _path: kind)
        store = SQLiteStore(tmp_path / "chats.db", shared=shared)
        with pytest.raises(StoreUnavailableError, match=rf"network file system \({kind}\).*\?network_filesystem=true"):
            store.open(durability="full")
        assert list(tmp_path.iterdir()) == [], "nothing is left behind"

    def test_it_works_when_allowed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sqlite, "filesystem_of", lambda _path: "nfs4")
        store = SQLiteStore(tmp_path / "chats.db", network_filesystem=True)
        store.open(durability="full")
        store.close()

    @pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "zfs", "apfs", "tmpfs", "overlay", "fuse.mergerfs", None])
    def test_a_local_one_is_not_refused(self, kind: str | None) -> None:
        assert not is_network(kind)
