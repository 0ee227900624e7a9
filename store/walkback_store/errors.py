"""Every error the store raises, as one small tree.

A message says what happened, what it means for the run, and what to do next; callers branch on the class, people
read the text.
"""

from __future__ import annotations

from collections.abc import Iterable


class StoreError(Exception):
    """The root of everything raised by `walkback_store`."""


# --- opening a store ---------------------------------------------------------------------------------------------


class CannotOpen(StoreError):
    """The store could not be opened; nothing was created or changed."""


class BadStoreURL(CannotOpen):
    """The address is not one this package understands."""


class MissingDriver(CannotOpen):
    """The database driver for this kind of address is not installed."""


class NoPermission(CannotOpen):
    """The operating system or the database server refused access."""


class NotAStore(CannotOpen):
    """Something is there, but it is not a Walkback store."""


class SchemaTooNew(CannotOpen):
    """A newer Walkback wrote this store; older code must not touch it."""


class Unreachable(StoreError):
    """The database does not answer. What was committed before is safe; what was under way is reported separately."""


# --- using an open store -----------------------------------------------------------------------------------------


class StoreClosed(StoreError):
    """The store was closed. Nothing was read or written; open it again."""


class WrongProcess(StoreError):
    """The store was opened before this process was forked. Its connections are the parent's: open it again here."""


# --- reading -----------------------------------------------------------------------------------------------------


class TooSlow(StoreError):
    """A question took longer than a screen waits for its answer, so it was given up. Runs are not affected."""


# --- writing -----------------------------------------------------------------------------------------------------


class StoreBusy(StoreError):
    """Another writer held the store for longer than the configured wait. Nothing was written."""


class ReadOnly(StoreError):
    """The store, or the disk below it, cannot be written. Nothing was written."""


class DiskFull(StoreError):
    """There is no space left. The transaction was rolled back whole."""


class CommitUnknown(StoreError):
    """The connection was lost during COMMIT and the truth could not be read back in time.

    Resubmit the same transitions (they keep their ids): those that were applied are recognised, the others are applied.
    """

    def __init__(self, message: str, transition_ids: Iterable[bytes] = ()) -> None:
        super().__init__(message)
        self.transition_ids = tuple(transition_ids)


class NotAdopted(StoreError):
    """This store is a copy or a restored backup. It can be read; nothing runs until someone adopts it."""


# --- the state machine -------------------------------------------------------------------------------------------


class Refused(StoreError):
    """The state machine did not accept a transition. Nothing was written."""


class NotFound(Refused):
    """There is no such run, operation, approval, decision or snapshot."""


class NotAllowed(Refused):
    """The person's role is not enough for this; an admin can grant another."""

    def __init__(self, message: str, person: str, role: str, needed: str) -> None:
        super().__init__(message)
        self.person = person
        self.role = role
        self.needed = needed


class IllegalTransition(Refused):
    """The thing is not in a state from which this transition is legal."""

    def __init__(self, transition: str, subject: str, found: str, legal: Iterable[str], detail: str = "") -> None:
        self.transition = transition
        self.subject = subject
        self.found = found
        self.legal = tuple(sorted(legal))
        wanted = ", ".join(self.legal) or "nothing"
        message = f"{transition}: {subject} is {found}; this is legal only from {wanted}. Nothing was changed."
        super().__init__(f"{message} {detail}".rstrip())


class PreconditionFailed(Refused):
    """The state is right, but something else this transition needs does not hold."""


class StaleFence(Refused):
    """Another worker has taken this run over; whatever this one learned may only be appended as late evidence."""


class StaleView(Refused):
    """The run moved on since the caller looked at it, so the decision was not carried out."""


class Frozen(Refused):
    """An operator stopped dispatch of this tool, this agent or everything."""

    def __init__(self, message: str, scope: str | None = None, name: str | None = None) -> None:
        super().__init__(message)
        self.scope = scope
        self.name = name


class BreakerOpen(Frozen):
    """Calls of a service are stopped: it failed too often, or an operator said so.

    From `until` on, one call may probe it, see `ProbeService`; never, when that is None. `probe` is the one that does.
    """

    def __init__(self, message: str, service: str, freeze_no: int, until: int | None, probe: str | None) -> None:
        super().__init__(message, "service", service)
        self.service = service
        self.freeze_no = freeze_no
        self.until = until
        self.probe = probe


class NoToken(Refused):
    """The budget of retries is spent for now; `at` is when there will be a token again."""

    def __init__(self, message: str, at: int) -> None:
        super().__init__(message)
        self.at = at


class IdentityTaken(Refused):
    """Another operation does, or has done, what this one is about to do; `status` is that of the other operation."""

    def __init__(self, message: str, identity: str, run_id: str, step: str, status: str, generation: int) -> None:
        super().__init__(message)
        self.identity = identity
        self.run_id = run_id
        self.step = step
        self.status = status
        self.generation = generation


class StopRequested(Refused):
    """A person asked the run to pause or cancel, so nothing new is called; stop it at this boundary."""


class KeyConflict(Refused):
    """The same idempotency key was used before with other arguments. Nothing was called."""


class RunExists(Refused):
    """A run with this id exists already, with other input."""


class RunPruned(Refused):
    """A run with this id existed and was pruned; ids are never used twice."""


class TransitionConflict(Refused):
    """This transition id was used before for something else."""


# --- values and bytes --------------------------------------------------------------------------------------------


class ValueRefused(StoreError):
    """A value cannot be stored; `path` names the offending place, such as `$.cart[3].price`."""

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"cannot store the value at {path}: {reason}. Nothing was written.")


class CorruptData(StoreError):
    """Bytes in the store are not what this package wrote there. They were not interpreted."""
