"""Which file systems a database may lie on: SQLite's WAL needs shared memory, which no network file system has."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

__all__ = ["filesystem_of", "is_network", "parse_bsd_mounts", "parse_mountinfo"]

_NETWORK: Final = frozenset(
    {
        "9p",
        "acfs",
        "afpfs",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "fuse.cephfs",
        "fuse.glusterfs",
        "fuse.s3fs",
        "fuse.sshfs",
        "gfs2",
        "glusterfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "ocfs2",
        "orangefs",
        "pvfs2",
        "smb",
        "smb2",
        "smb3",
        "smbfs",
        "webdav",
    }
)


def filesystem_of(path: Path) -> str | None:
    """Return the type of the file system that `path` lies on (or will), or None where that can't be told."""
    try:
        if sys.platform == "linux":
            mounts = parse_mountinfo(Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace"))
        elif sys.platform == "darwin":
            listing = subprocess.run(["/sbin/mount"], capture_output=True, text=True, timeout=5, check=True)
            mounts = parse_bsd_mounts(listing.stdout)
        else:
            return None
    except (OSError, subprocess.SubprocessError):
        return None
    return _longest(path.resolve(), mounts)


def is_network(filesystem: str | None) -> bool:
    """Tell whether several hosts may see this type of file system, or it lacks shared memory between processes."""
    return filesystem in _NETWORK


def parse_mountinfo(text: str) -> list[tuple[Path, str]]:
    """Read Linux's mountinfo into (mount point, type); later mounts hide earlier ones."""
    mounts = []
    for line in text.splitlines():
        before, separator, behind = line.partition(" - ")
        fields = before.split()
        if separator and len(fields) > 4 and behind:
            mounts.append((Path(_unescaped(fields[4])), behind.split()[0]))
    return mounts


def parse_bsd_mounts(text: str) -> list[tuple[Path, str]]:
    """Read what macOS's mount prints, `device on /path (type, options)`, into (mount point, type)."""
    mounts = []
    for line in text.splitlines():
        where, separator, options = line.rpartition(" (")
        if separator and " on " in where:
            mounts.append((Path(where.split(" on ", 1)[1]), options.rstrip(")").split(",")[0].strip()))
    return mounts


def _longest(path: Path, mounts: Iterable[tuple[Path, str]]) -> str | None:
    best: tuple[int, str] | None = None
    for point, kind in mounts:
        depth = len(point.parts)
        if (best is None or depth >= best[0]) and path.is_relative_to(point):
            best = depth, kind
    return best[1] if best else None


def _unescaped(field: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(code, character)
    return field
