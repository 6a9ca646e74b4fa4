"""Tools for your own tests: a store suite, a linearizability checker, a prompt checker, stores that fail where told."""

import typing

from turnkeeper.errors import MissingExtraError as _MissingExtraError
from turnkeeper.testing.control import unload
from turnkeeper.testing.faults import FaultStore, Stall
from turnkeeper.testing.history import Call, HistoryUndecidedError, HistoryViolation, check_history
from turnkeeper.testing.prompts import PromptProblem, PromptRefusedError, PromptRule, check_prompt, prompt_problems
from turnkeeper.testing.recorder import History, Recorder, SyncRecorder

if typing.TYPE_CHECKING:
    from turnkeeper.testing.suite import StoreClock, StoreSuite

__all__ = [
    "Call",
    "FaultStore",
    "History",
    "HistoryUndecidedError",
    "HistoryViolation",
    "PromptProblem",
    "PromptRefusedError",
    "PromptRule",
    "Recorder",
    "Stall",
    "StoreClock",
    "StoreSuite",
    "SyncRecorder",
    "check_history",
    "check_prompt",
    "prompt_problems",
    "unload",
]


def __getattr__(name: str) -> typing.Any:
    """Import the store suite when it is asked for: it alone needs pytest."""
    if name not in ("StoreClock", "StoreSuite"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from turnkeeper.testing import suite
    except ModuleNotFoundError as error:
        if error.name != "pytest":
            raise
        raise _MissingExtraError(f"{__name__}.{name} is for tests in pytest: pip install pytest") from None
    return getattr(suite, name)
