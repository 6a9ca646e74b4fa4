"""Tools for your own tests: a linearizability checker, stores that fail where told, control over residency."""

from turnkeeper.testing.control import unload
from turnkeeper.testing.faults import FaultStore, Stall
from turnkeeper.testing.history import Call, HistoryUndecidedError, HistoryViolation, check_history
from turnkeeper.testing.recorder import History, Recorder, SyncRecorder

__all__ = [
    "Call",
    "FaultStore",
    "History",
    "HistoryUndecidedError",
    "HistoryViolation",
    "Recorder",
    "Stall",
    "SyncRecorder",
    "check_history",
    "unload",
]
