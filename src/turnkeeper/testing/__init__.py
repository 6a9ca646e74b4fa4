"""Tools for your own tests: a linearizability checker, a prompt checker, stores that fail where told."""

from turnkeeper.testing.control import unload
from turnkeeper.testing.faults import FaultStore, Stall
from turnkeeper.testing.history import Call, HistoryUndecidedError, HistoryViolation, check_history
from turnkeeper.testing.prompts import PromptProblem, PromptRefusedError, PromptRule, check_prompt, prompt_problems
from turnkeeper.testing.recorder import History, Recorder, SyncRecorder

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
    "SyncRecorder",
    "check_history",
    "check_prompt",
    "prompt_problems",
    "unload",
]
