"""What the protocol speaks of: a run in hand, a request, how a step can come to rest; keys, digests and contracts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias
from typing import Protocol as Shape

from walkback.tools import Op, Registry, Tool, Undone
from walkback.wishes import (
    Commit,
    Protocol,
)
from walkback_store.log import Row
from walkback_store.machine.base import Transition
from walkback_store.machine.operations import (
    Call,
)
from walkback_store.values import fingerprint
from walkback_store.words import Effect, OperationStatus, Why

O = OperationStatus  # noqa: E741
SECOND = 1_000_000
PATIENCE = 5 * SECOND
"""A wait longer than this holds no thread: the run parks and is woken."""
FOREVER = 1 << 62


# --- who, what, and how it can end ----


@dataclass(slots=True)
class Hold:
    """A run in a worker's hands. The fence goes with every write."""

    run_id: str
    worker: str
    row: Row
    """The run as the last commit left it."""
    registry: Registry
    troubled: set[str] = field(default_factory=set)
    """Services that did not answer lately, as far as this worker knows: an answer of theirs is worth recording."""

    @property
    def by(self) -> dict[str, Any]:
        return {"actor": self.actor, "run_id": self.run_id, "fence": self.row["fence"]}

    @property
    def actor(self) -> str:
        return f"worker:{self.worker}"


@dataclass(slots=True, kw_only=True)
class Request:
    """One call, as the agent asks for it."""

    step: str
    tool: Tool
    args: dict[str, object]
    scope: str | None = None
    rule: str | None = None
    """Why a person must agree first; None when nobody has to."""
    undoes: Undone | None = None

    @property
    def args_hash(self) -> str:
        return self.tool.args_hash(self.args)


@dataclass(slots=True, kw_only=True)
class Settled:
    """The operation has an outcome, and it is in the log."""

    step: str
    tool: str
    status: str
    result: object = None
    error_class: str | None = None
    error: str | None = None
    rule: str | None = None
    """Of a call that was denied: what denied it."""
    drift: Sequence[str] = ()


@dataclass(slots=True)
class Waiting:
    """Nothing can be done now. The run parks, and holds no thread."""

    waits_for: str
    wake_at: int | None


@dataclass(slots=True)
class Person:
    """A person has to look."""

    why: Why
    detail: str
    step: str | None = None
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Stop:
    """Somebody asked the run to pause or cancel, and this is a boundary."""


Rest: TypeAlias = Settled | Waiting | Person | Stop
Fold: TypeAlias = Callable[[object], bytes] | None
"""The agent's state with a result in it, for `into=`."""


def commit(hold: Hold, *transitions: Transition) -> Protocol[None]:
    done = yield Commit(transitions)
    for committed in done:
        if committed.run is not None and committed.run["run_id"] == hold.run_id:
            hold.row = committed.run


def unknown_rest(tool: str, step: str, error_class: str | None, error: str | None, evidence: str | None) -> Person:
    detail = f"nobody can say whether {tool} happened: {error_class}: {error}"
    return Person(Why.UNKNOWN, detail, step, {"evidence": evidence})


# --- keys and digests ----


def _escaped(part: str) -> str:
    return part.replace("%", "%25").replace(":", "%3A")


def key_of(run_id: str, step: str, tool: str, args_hash: str) -> str:
    """The same across retries, restarts and handovers; no two operations share one."""
    return ":".join((_escaped(run_id), _escaped(step), _escaped(tool), args_hash[:16]))


def identity_key(tool: str, identity: str, generation: int) -> str:
    """No run's id begins with `@`, so it never meets the key of an operation without an identity."""
    return f"@{_escaped(tool)}:{_escaped(identity)}:{generation}"


def digest_of(request: Request, run_id: str, args: dict[str, object], preconditions: object) -> str:
    """What a person agrees to."""
    tool = request.tool
    said = [tool.name, tool.version, tool.args_hash(args), run_id, request.step, request.rule, preconditions]
    return fingerprint(said)


def approval_rule(tool: Tool) -> str:
    """Why a person is asked: what the condition says of itself, where it says anything."""
    condition = tool.approval
    words = (condition.__doc__ or "").strip() if callable(condition) else ""
    return words.splitlines()[0] if words else f"{tool.name} asks for approval"


class Asked(Shape):
    """A call, whether it is only asked for or under way."""

    @property
    def step(self) -> str: ...
    @property
    def tool(self) -> Tool: ...
    @property
    def undoes(self) -> Undone | None: ...


# --- what is written down, and what a tool is given ----


def contract(request: Request, args: dict[str, object], key: str, now: int, identity: str | None, seen: object) -> Call:
    tool = request.tool
    write = tool.effect == Effect.WRITE
    stake, stake_value = tool.stake_of(args)
    return Call(
        tool=tool.name,
        tool_version=tool.version,
        effect=Effect(tool.effect),
        service=tool.service,
        args=args,
        args_hash=tool.args_hash(args),
        key=key if write else None,
        key_until=key_until_of(tool, now) if write else None,
        identity=identity,
        description=tool.describe_call(args),
        stake=stake,
        stake_value=stake_value,
        can_verify=tool.verify is not None,
        compensate=tool.compensate_name,
        scope=request.scope,
        compensates=None if request.undoes is None else request.undoes.step,
        preconditions=seen,
        expects=tool.expects if tool.verify is not None else None,
    )


def key_until_of(tool: Tool, now: int) -> int | None:
    if tool.idempotent is True:
        return FOREVER
    return now + micros(tool.idempotent) if isinstance(tool.idempotent, timedelta) else None


def timeout_of(tool: Tool) -> int:
    return int(tool.timeout * SECOND)


def op_for(
    hold: Hold,
    request: Asked,
    args: dict[str, object],
    key: str | None,
    attempt: int,
    deadline: int,
    output: object,
    seen: object = None,
) -> Op:
    return Op(
        run_id=hold.run_id,
        step=request.step,
        tool=request.tool.name,
        key=key or "",
        attempt=attempt,
        deadline=moment(deadline),
        args=args,
        timeout=request.tool.timeout,
        output=output,
        found_before=seen,
        undoes=request.undoes,
    )


def micros(span: timedelta) -> int:
    return span // timedelta(microseconds=1)


def moment(at: int) -> datetime:
    return datetime.fromtimestamp(min(at, 253_402_300_799 * SECOND) / SECOND, UTC)
