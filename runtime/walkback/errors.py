"""What an agent may be told, and how a run leaves a worker.

Two families. `WalkbackError` is for the agent: a call failed, was denied, a wait timed out. An agent may catch these
and go on. `RunLeft` is not for the agent: the run parks, is handed over or was taken away, and the code above has to
unwind. It is a BaseException, so that neither `except Exception` nor a transaction takes it for a failure.
"""

from __future__ import annotations

from walkback_store.errors import RunExists, RunPruned, StoreError


class WalkbackError(Exception):
    """The root of what the runtime raises into an agent or its caller."""


class DefinitionError(WalkbackError, TypeError):
    """An agent or an app is declared in a way that cannot work. Nothing was started."""


class UnknownAgent(WalkbackError):
    """There is no such agent, or not in this version."""


class UnknownTool(WalkbackError):
    """There is no such tool in this app."""


class RunNotFinished(WalkbackError):
    """The run has no result yet."""


class RunFailed(WalkbackError):
    """The run ended without a result: it failed, or was cancelled or undone."""


# --- what a step may raise ---------------------------------------------------------------------------------------


class CallError(WalkbackError):
    """A call did not succeed, and that is certain. `tool` and `step` say which."""

    def __init__(self, message: str, *, tool: str = "", step: str = "") -> None:
        super().__init__(message)
        self.tool = tool
        self.step = step


class ToolFailed(CallError):
    """The tool failed for good: it said so, or it is proven that nothing happened and the budget is spent.

    The same on replay as the first time: `error_class` and `error` are what was recorded, not the exception itself.
    """

    def __init__(self, tool: str, step: str, error_class: str, error: str) -> None:
        super().__init__(f"{tool} failed at step {step}: {error_class}: {error}", tool=tool, step=step)
        self.error_class = error_class
        self.error = error


class Denied(CallError):
    """The call was not made: policy, a person or the runtime said no. `reason` says why."""

    def __init__(self, tool: str, step: str, reason: str) -> None:
        super().__init__(f"{tool} was not called at step {step}: {reason}", tool=tool, step=step)
        self.reason = reason


class ApprovalRefused(Denied):
    """A person refused it."""


class ApprovalExpired(Denied):
    """Nobody agreed in time."""


class KeyConflict(Denied):
    """The same business identity is in use with other arguments. Nothing was called."""


class WaitTimeout(WalkbackError):
    """No signal came in time."""


class TransactionUndone(WalkbackError):
    """A transaction was undone, as its record says, although the code did not fail this time."""


class ConcurrentCalls(WalkbackError):
    """Two steps of one run at once. Nothing was called; use `run.parallel`."""


# --- how a run leaves a worker -----------------------------------------------------------------------------------


class RunLeft(BaseException):
    """The run is not in this worker's hands any more. Let it pass."""


class Parked(RunLeft):
    """It waits, or a person has to look. Everything is in the store."""


class Stopping(RunLeft):
    """The worker is asked to stop; the run is handed back at this boundary."""


class LeaseLost(RunLeft):
    """Another worker has taken the run over, or nobody knows whether one has."""


__all__ = [
    "ApprovalExpired",
    "ApprovalRefused",
    "CallError",
    "ConcurrentCalls",
    "DefinitionError",
    "Denied",
    "KeyConflict",
    "LeaseLost",
    "Parked",
    "RunExists",
    "RunFailed",
    "RunLeft",
    "RunNotFinished",
    "RunPruned",
    "Stopping",
    "StoreError",
    "ToolFailed",
    "TransactionUndone",
    "UnknownAgent",
    "UnknownTool",
    "WaitTimeout",
    "WalkbackError",
]
