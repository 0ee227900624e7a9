"""The run, as an agent sees it: the steps it can take, and its state.

Every method that is a step is a protocol (`Protocol`, a generator without I/O) handed to the driver. In an async agent
the driver gives back something to await; in a plain one it gives the result.

On resume the agent's function starts from the beginning, and steps that are in the record answer from there. A step
that is not what the record says parks the run as diverged: it never runs a second time.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any
from typing import Protocol as Shape
from uuid import UUID

from walkback import compensation, parking
from walkback.agents import Agent
from walkback.errors import (
    ApprovalExpired,
    ApprovalRefused,
    ConcurrentCalls,
    DefinitionError,
    Denied,
    KeyConflict,
    LeaseLost,
    RunLeft,
    ToolFailed,
    TransactionUndone,
    UnknownTool,
    WaitTimeout,
)
from walkback.protocol import APPROVAL_EXPIRED, KEY_CONFLICT, Known
from walkback.protocol import call as perform
from walkback.record import Record
from walkback.terms import SECOND, Fold, Hold, Person, Request, Settled, Waiting, approval_rule, commit, micros, moment
from walkback.tools import Tool
from walkback.wishes import Await, Branches, Entropy, Jitter, Look, Now, Protocol, Wait
from walkback_store.errors import StaleFence
from walkback_store.log import Row
from walkback_store.machine.runs import ConsumeSignal, DeclarePlan, RecordStep, stop_requested
from walkback_store.values import encode, plain
from walkback_store.words import Effect, OperationStatus, Why

O = OperationStatus  # noqa: E741
SHORT = SECOND
"""A sleep up to this long keeps its thread."""


class Driver(Shape):
    """Runs a protocol: at once, or as something to await."""

    is_async: bool

    def run(self, protocol: Protocol[Any]) -> Any: ...


@dataclass(frozen=True, slots=True)
class CallOf:
    """A call that has not been made: a branch of `run.parallel`."""

    tool: Tool | str
    args: dict[str, Any]


def call(tool: Tool | str, /, **args: Any) -> CallOf:
    """A call to be made later, side by side with others: `run.parallel(wb.call(a, x=1), wb.call(b, y=2))`."""
    return CallOf(tool, args)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What a decision came to, with what it rests on. Return one from the function given to `run.decide`."""

    choice: object
    rationale: str | None = None
    model_input: object = None
    model_output: object = None


class Run:
    """Handed to an agent as its first argument."""

    def __init__(self, hold: Hold, record: Record, agent: Agent, driver: Driver, state: Any) -> None:
        self.state = state
        self._hold = hold
        self._record = record
        self._agent = agent
        self._driver = driver
        self._n = 0
        self._busy = False
        self._left: RunLeft | None = None
        self._scopes: list[str] = []
        self._twins: dict[tuple[str, str], str] = {}
        self._undone = {
            str(u["scope"]).removeprefix("transaction:")
            for u in record.undoings()
            if str(u["scope"]).startswith("transaction:")
        }

    @property
    def id(self) -> str:
        return self._hold.run_id

    @property
    def agent(self) -> str:
        return self._agent.name

    @property
    def step(self) -> int:
        """The number of the step taken last."""
        return self._n

    # --- tool calls ----------------------------------------------------------------------------------------------

    def call(self, tool: Tool | str | CallOf, /, *, into: str | None = None, **args: Any) -> Any:
        """Call a tool, durably. With `into`, the result lands in the state in the very commit that records it.

        Raises `ToolFailed` when it failed for good, `Denied` when it was not called. It does not return while the
        outcome is in doubt: the run parks instead.
        """
        wanted = tool if isinstance(tool, CallOf) else CallOf(tool, args)
        return self._do(self._call(wanted.tool, wanted.args, into))

    def _call(self, name: Tool | str, args: dict[str, Any], into: str | None) -> Protocol[Any]:
        tool = self._tool(name)
        valid = tool.validate(args)
        self._check_into(into)
        step, row = yield from self._next("call", tool.name)
        known = yield from self._known(step, row, tool, valid)
        request = self._request(step, tool, valid, known)
        to_do = known is None or known.operation["status"] == O.AWAITING_APPROVAL
        state = self._encoded() if to_do else None  # a replay would encode it once a step, for nothing
        rest = yield from perform(self._hold, request, state, self._fold(tool, into), known)
        if isinstance(rest, Settled):
            settled = rest
        else:
            (settled,) = yield from parking.rest(self._hold, [rest], self._encoded() if state is None else state)
        self._note(request, settled)
        result = yield from self._result(tool, settled)
        if into is not None:
            self._put(self.state, into, result)
        return result

    def parallel(self, *calls: CallOf, into: str | None = None, return_errors: bool = False) -> Any:
        """Make these calls side by side; their results in the same order. They are steps 6.1, 6.2 and so on.

        All of them come to an end before anything is raised, and the first error, in their order, is. With
        `return_errors` errors are among the results instead.
        """
        return self._do(self._parallel(calls, into, return_errors))

    def _parallel(self, calls: Sequence[CallOf], into: str | None, return_errors: bool) -> Protocol[list[Any]]:
        if not calls or not all(isinstance(c, CallOf) for c in calls):
            raise DefinitionError("run.parallel takes calls: run.parallel(wb.call(tool, x=1), wb.call(other)).")
        self._check_into(into)
        prepared = [(self._tool(c.tool), c.args) for c in calls]
        valid = [(tool, tool.validate(args)) for tool, args in prepared]
        block = yield from self._block(len(valid))
        requests, knowns = [], []
        for i, (tool, args) in enumerate(valid, 1):
            step = f"{block}.{i}"
            row = self._record.step(step)
            if row is not None:
                yield from self._match(step, row, "call", tool.name)
            known = yield from self._known(step, row, tool, args)
            knowns.append(known)
            requests.append(self._request(step, tool, args, known))
        state = self._encoded()
        branches = [
            perform(self._hold, request, state, None, known) for request, known in zip(requests, knowns, strict=True)
        ]
        rests = yield Branches(branches)
        settled = yield from parking.rest(self._hold, rests, state)
        results: list[Any] = []
        for (tool, _), one, request in zip(valid, settled, requests, strict=True):
            self._note(request, one)
            try:
                results.append((yield from self._result(tool, one)))
            except (ToolFailed, Denied) as error:
                results.append(error)
        if not return_errors:
            for found in results:
                if isinstance(found, ToolFailed | Denied):
                    raise found
        if into is not None:
            self._put(self.state, into, results)
        return results

    def _block(self, width: int) -> Protocol[str]:
        self._n += 1
        block = str(self._n)
        recorded = self._record.branches(block)
        if self._record.step(block) is not None or any(int(s.partition(".")[2]) > width for s in recorded):
            yield from self._diverged(block, self._record.described(block), f"{width} calls side by side")
        if len(recorded) < width:
            if self._n < self._record.reached:
                yield from self._diverged(block, self._record.described(block), f"{width} calls side by side")
            yield from self._boundary(block)
        return block

    def _tool(self, name: Tool | str) -> Tool:
        registry = self._hold.registry
        if isinstance(name, Tool):
            known = registry.find(name.name, name.version)
            if known is None:
                registry.add(name)
            elif known is not name:
                raise DefinitionError(
                    f"there are two tools called {name.name!r} v{name.version} in this app, and recovery could call "
                    "the wrong one. Nothing was called; give one of them another name or version."
                )
            return name
        found = registry.find(name)
        if found is None:
            raise UnknownTool(f"there is no tool {name!r} in this app. Nothing was called; add it to App(tools=[...]).")
        return found

    def _request(self, step: str, tool: Tool, args: dict[str, object], known: Known | None) -> Request:
        rule = None
        if known is not None and known.approval is not None:
            rule = str(known.approval["rule"])
        elif known is None:
            rule = self._rule(step, tool, args)
        return Request(step=step, tool=tool, args=args, scope="/".join(self._scopes) or None, rule=rule)

    def _rule(self, step: str, tool: Tool, args: dict[str, object]) -> str | None:
        if tool.needs_approval(args):
            return approval_rule(tool)
        if tool.effect == Effect.WRITE and not tool.repeatable and tool.identity is None:
            twin = self._twins.get((tool.name, tool.args_hash(args)))
            if twin is not None and twin != step:
                return f"the same call as step {twin} of this run"
        return None

    def _note(self, request: Request, settled: Settled) -> None:
        """A write that stands: the same one again is asked about."""
        if request.tool.effect == Effect.WRITE and settled.status == O.SUCCEEDED:
            self._twins.setdefault((request.tool.name, request.args_hash), settled.step)

    def _known(self, step: str, row: Row | None, tool: Tool, args: dict[str, object]) -> Protocol[Known | None]:
        if row is None:
            return None
        known = self._record.known(step)
        recorded = self._record.requested_args(step)
        same = known is not None and (
            known.operation["args_hash"] == tool.args_hash(args)
            or (isinstance(recorded, dict) and tool.args_hash(recorded) == tool.args_hash(args))
        )
        if not same:
            yield from self._diverged(step, {"tool": row["name"], "args": recorded}, {"tool": tool.name, "args": args})
        return known

    def _result(self, tool: Tool, settled: Settled) -> Protocol[Any]:
        step = settled.step
        if settled.status in {O.SUCCEEDED, O.COMPENSATED}:
            typed, problems = tool.check_output(settled.result)
            problems = [*settled.drift, *problems]
            if problems and not self._record.reviewed(step, Why.DRIFT):
                detail = f"{tool.name} answered with something else than it declares: {'; '.join(problems)}"[:1000]
                person = Person(Why.DRIFT, detail, step, {"fields": problems})
                yield from parking.ask(self._hold, person, self._encoded())
            return settled.result if problems else typed
        if settled.status == O.DENIED:
            kind = {APPROVAL_EXPIRED: ApprovalExpired, "approval refused": ApprovalRefused, KEY_CONFLICT: KeyConflict}
            raise kind.get(settled.rule or "", Denied)(tool.name, step, settled.error or "no reason was recorded")
        raise ToolFailed(tool.name, step, settled.error_class or "Failed", settled.error or "it did not happen")

    # --- what the agent decides, sees and plans ------------------------------------------------------------------

    def decide(self, name: str, choose: Any, *, rationale: str | None = None) -> Any:
        """Make a decision once. `choose` is what was chosen, or a function that chooses, which may return `wb.Chosen`.

        Choice and rationale are recorded; on replay the recorded choice is given and nothing is chosen again.
        """
        return self._do(self._decide(name, choose, rationale))

    def _decide(self, name: str, choose: Any, rationale: str | None) -> Protocol[Any]:
        def make() -> Protocol[dict[str, Any]]:
            found = yield from self._value(choose)
            if not isinstance(found, Chosen):
                found = Chosen(choice=found, rationale=rationale)
            data = {"choice": plain(found.choice), "rationale": found.rationale or rationale}
            if found.model_input is not None or found.model_output is not None:
                data |= {"model_input": found.model_input, "model_output": found.model_output}
            return data

        data = yield from self._recorded("decide", name, make)
        return data["choice"]

    def observe(
        self,
        name: str,
        value: Any,
        *,
        source: str | None = None,
        trust: str = "trusted",
        as_of: datetime | None = None,
    ) -> Any:
        """Put down what was seen: where it came from, how far it is trusted, and as of when. Gives the value back."""
        return self._do(self._observe(name, value, source, trust, as_of))

    def _observe(self, name: str, value: Any, source: str | None, trust: str, as_of: datetime | None) -> Protocol[Any]:
        if trust not in {"trusted", "untrusted"}:
            raise DefinitionError(f"run.observe: trust is 'trusted' or 'untrusted', not {trust!r}.")

        def make() -> Protocol[dict[str, Any]]:
            found = yield from self._value(value)
            when = as_of if as_of is not None else moment((yield Now()))
            return {"value": plain(found), "source": source, "trust": trust, "as_of": when}

        data = yield from self._recorded("observe", name, make)
        return data["value"]

    def plan(self, steps: Iterable[str]) -> Any:
        """Say which steps are meant to be taken, so that a screen can say "6 of 9"."""
        return self._do(self._plan(list(steps)))

    def _plan(self, steps: list[str]) -> Protocol[None]:
        if str(self._n + 1) in self._record.tops:  # what came after it is in the record, so it was said
            return
        if self._hold.row["plan"] != encode(steps).decode():
            yield from commit(self._hold, DeclarePlan(**self._hold.by, steps=steps))

    def now(self) -> Any:
        """The time, the same on replay."""
        return self._do(self._of_value("now", lambda: self._time()))

    def random(self) -> Any:
        """A number from 0 up to 1, the same on replay."""
        return self._do(self._of_value("random", lambda: self._chance()))

    def uuid(self) -> Any:
        """A random UUID, the same on replay."""
        return self._do(self._of_value("uuid", lambda: self._identifier()))

    @staticmethod
    def _time() -> Protocol[datetime]:
        return moment((yield Now()))

    @staticmethod
    def _chance() -> Protocol[float]:
        chance: float = yield Jitter()
        return chance

    @staticmethod
    def _identifier() -> Protocol[UUID]:
        return UUID(bytes=(yield Entropy()), version=4)

    def _of_value(self, name: str, make: Callable[[], Protocol[Any]]) -> Protocol[Any]:
        def data() -> Protocol[dict[str, Any]]:
            return {"value": (yield from make())}

        found = yield from self._recorded("step", name, data)
        return found["value"]

    def _value(self, given: Any) -> Protocol[Any]:
        """A value, what a function gives, or what an async function gives."""
        found = given() if callable(given) else given
        if inspect.isawaitable(found):
            found = yield Await(found)
        return found

    def _recorded(self, kind: str, name: str, make: Callable[[], Protocol[dict[str, Any]]]) -> Protocol[dict[str, Any]]:
        step, row = yield from self._next(kind, name)
        if row is not None:
            return self._record.facts(step)
        data = yield from make()
        record = RecordStep(**self._hold.by, step=step, step_kind=kind, name=name, data=data, state=self._encoded())
        yield from commit(self._hold, record)
        return data

    # --- waiting -------------------------------------------------------------------------------------------------

    def sleep(self, span: timedelta | float) -> Any:
        """Let time pass. A long sleep holds no thread, and goes on counting while no worker is there."""
        return self._do(self._sleep(span if isinstance(span, timedelta) else timedelta(seconds=span)))

    def _sleep(self, span: timedelta) -> Protocol[None]:
        def make() -> Protocol[dict[str, Any]]:
            return {"until": (yield Now()) + max(0, micros(span))}

        until = int((yield from self._recorded("step", "sleep", make))["until"])
        now = yield Now()
        if until - now > SHORT:
            yield from parking.rest(self._hold, [Waiting("sleep", until)], self._encoded())
        if until > now:
            yield Wait(until)

    def wait_for(self, name: str, *, timeout: timedelta | float | None = None) -> Any:
        """Wait for a signal of this name: its payload. `WaitTimeout` when none came in time.

        A signal that came before anybody waited is taken at once; one that comes twice, with the same id, counts once.
        """
        span = timedelta(seconds=timeout) if isinstance(timeout, int | float) else timeout
        return self._do(self._wait_for(name, span))

    def _wait_for(self, name: str, timeout: timedelta | None) -> Protocol[Any]:
        step, row = yield from self._next(None, f"wait for {name}" if timeout is not None else name)
        until: int | None = None
        if timeout is not None:
            if row is None:
                until = (yield Now()) + max(0, micros(timeout))
                start = RecordStep(
                    **self._hold.by,
                    step=step,
                    name=f"wait for {name}",
                    data={"signal": name, "until": until},
                    state=self._encoded(),
                )
                yield from commit(self._hold, start)
            else:
                until = int(self._record.facts(step)["until"])
            step = f"{step}.1"
            row = self._record.step(step)
        if row is not None:
            return self._taken(step, row, name)
        while True:
            waiting: list[Row] = yield Look(lambda store: store.waiting_signals(self.id, name))
            if waiting:
                take = ConsumeSignal(
                    **self._hold.by, signal_id=waiting[0]["signal_id"], step=step, state=self._encoded()
                )
                yield from commit(self._hold, take)
                return (yield from self._payload(waiting[0]["seq"]))
            now = yield Now()
            if until is not None and until <= now:
                late = RecordStep(
                    **self._hold.by, step=step, name=f"no {name} in time", data={"timeout": True}, state=self._encoded()
                )
                yield from commit(self._hold, late)
                raise WaitTimeout(f"no signal {name!r} came in time")
            yield from parking.rest(self._hold, [Waiting(f"signal:{name}", until)], self._encoded())

    def _payload(self, seq: int) -> Protocol[Any]:
        (event,) = yield Look(lambda store: store.events(self.id, after=seq - 1, limit=1))
        return event.data["payload"]

    def _taken(self, step: str, row: Row, name: str) -> Any:
        if row["kind"] == "wait":
            return self._record.payload(step)
        raise WaitTimeout(f"no signal {name!r} came in time")

    # --- transactions --------------------------------------------------------------------------------------------

    def transaction(self, name: str) -> Transaction:
        """`with run.transaction("billing"):` — on an exception, what was done inside is undone, the latest first.

        In an async agent, `async with`. Parking, a handover and a lost lease pass through and undo nothing.
        """
        return Transaction(self, name)

    def _enter(self, name: str) -> str:
        self._scopes.append(f"{name}@{self._n}")
        return "/".join(self._scopes)

    def _leave(self, scope: str, error: BaseException | None) -> Protocol[None]:
        self._scopes.pop()
        if scope in self._undone:
            if error is None:
                raise self._as_recorded(scope)
            return
        if error is None or not isinstance(error, Exception) or self._left is not None:
            return
        record = yield from compensation.load(self._hold)
        within = compensation.in_scope(record.operations(), scope)
        cause = f"{type(error).__name__}: {error}"[:500]
        rows = yield from compensation.begin(self._hold, f"transaction:{scope}", within, cause)
        self._undone.add(scope)
        for key in [key for key, step in self._twins.items() if any(row["step"] == step for row in rows)]:
            del self._twins[key]

    def _as_recorded(self, scope: str) -> TransactionUndone:
        return TransactionUndone(f"transaction {scope.rpartition('/')[2]!r} was undone; its record says so")

    # --- steps and their record ----------------------------------------------------------------------------------

    def _do(self, protocol: Protocol[Any]) -> Any:
        return self._driver.run(self._guarded(protocol))

    def _guarded(self, protocol: Protocol[Any]) -> Protocol[Any]:
        if self._left is not None:  # somebody caught what was not theirs to catch
            protocol.close()
            raise self._left
        if self._busy:
            protocol.close()
            raise ConcurrentCalls(
                f"run {self.id!r} is in the middle of a step. Nothing was called; use run.parallel for calls at once."
            )
        self._busy = True
        try:
            return (yield from protocol)
        except StaleFence as stale:
            self._left = LeaseLost(str(stale))
            raise self._left from stale
        except RunLeft as left:
            self._left = left
            raise
        finally:
            self._busy = False

    def _next(self, kind: str | None, name: str) -> Protocol[tuple[str, Row | None]]:
        """The next step's number, and its record; whatever is in the record must be the same step."""
        self._n += 1
        step = str(self._n)
        row = self._record.step(step)
        if row is None:
            if self._n <= self._record.reached:
                yield from self._diverged(step, self._record.described(step), {"kind": kind, "name": name})
            yield from self._boundary(step)
        else:
            yield from self._match(step, row, kind, name)
        return step, row

    def _unused_steps(self) -> list[str]:
        """Steps of the record that the agent did not come to this time."""
        return sorted((step for step in self._record.tops if int(step) > self._n), key=int)

    def _match(self, step: str, row: Row, kind: str | None, name: str) -> Protocol[None]:
        recorded = row["kind"]
        if row["name"] != name or (kind is not None and recorded != kind):
            yield from self._diverged(step, self._record.described(step), {"kind": kind or recorded, "name": name})
        if step == self._record.last and row["before"] is not None:
            before = row["before"]
            there = yield Look(lambda store: store.state_bytes(self.id, before))
            if there != self._encoded():
                recorded_state, actual = differing(there, self._encoded())
                yield from self._diverged(step, {"state": recorded_state}, {"state": actual})

    def _boundary(self, step: str) -> Protocol[None]:
        """Before a step that is new: a good moment to stop."""
        for depth in range(len(self._scopes)):
            scope = "/".join(self._scopes[: depth + 1])
            if scope in self._undone:
                self._n -= 1
                raise self._as_recorded(scope)
        yield Wait(0)
        if stop_requested(self._hold.row):
            yield from parking.stop(self._hold, self._encoded())

    def _diverged(self, step: str, recorded: object, actual: object) -> Protocol[None]:
        detail = (
            f"step {step} is not what the record says; nothing was called. Run the code that made the record, or fork"
        )
        person = Person(Why.DIVERGED, detail, step, {"recorded": recorded, "actual": plain(actual)})
        yield from parking.ask(self._hold, person, None)

    # --- state ---------------------------------------------------------------------------------------------------

    def _encoded(self) -> bytes:
        return encode(self.state)

    def _fold(self, tool: Tool, into: str | None) -> Fold:
        if into is None:
            return None

        def fold(result: object) -> bytes:
            typed, problems = tool.check_output(result)
            state: Any = {**self.state} if isinstance(self.state, dict) else plain(self.state)
            state[into] = result if problems else typed
            return encode(state)

        return fold

    def _check_into(self, into: str | None) -> None:
        if into is not None and not isinstance(self.state, dict) and not hasattr(self.state, into):
            raise DefinitionError(
                f"into={into!r}: the state of run {self.id!r}, a {type(self.state).__name__}, has no such field. "
                "Nothing was called."
            )

    def _quiet(self) -> Protocol[None]:
        """Wait for a step that the agent left under way, in another task or thread of its own."""
        while self._busy:
            yield Wait((yield Now()) + SECOND // 50)
        if self._left is not None:
            raise self._left

    @staticmethod
    def _put(state: Any, name: str, value: object) -> None:
        if isinstance(state, dict):
            state[name] = value
        else:
            setattr(state, name, value)


class Transaction:
    """An explicit boundary: what is done inside is undone in reverse order when an exception leaves it."""

    def __init__(self, run: Run, name: str) -> None:
        self._run = run
        self._name = name
        self._scope = ""

    def __enter__(self) -> Run:
        if self._run._driver.is_async:
            raise DefinitionError(
                "in an async agent write `async with run.transaction(...)`: undoing has to be awaited."
            )
        self._scope = self._run._enter(self._name)
        return self._run

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if isinstance(error, RunLeft) or self._run._left is not None:
            return
        self._run._do(self._run._leave(self._scope, error))

    async def __aenter__(self) -> Run:
        self._scope = self._run._enter(self._name)
        return self._run

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        if isinstance(error, RunLeft) or self._run._left is not None:
            return
        await self._run._do(self._run._leave(self._scope, error))


def differing(recorded: bytes, actual: bytes, limit: int = 20) -> tuple[dict[str, object], dict[str, object]]:
    """The places where two encoded states differ, side by side."""
    from walkback_store.values import decode

    left: dict[str, object] = {}
    right: dict[str, object] = {}
    missing = "(not there)"

    def compare(path: str, a: object, b: object) -> None:
        if len(left) >= limit or (a == b and type(a) is type(b)):
            return
        if isinstance(a, dict) and isinstance(b, dict):
            for key in sorted({*a, *b}):
                compare(f"{path}.{key}", a.get(key, missing), b.get(key, missing))
        elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
            for i, (x, y) in enumerate(zip(a, b, strict=True)):
                compare(f"{path}[{i}]", x, y)
        else:
            left[path], right[path] = a, b

    compare("$", decode(recorded), decode(actual))
    return left, right


def fingerprint_of(error: BaseException) -> str:
    """The same for the same failure: its class and where it came from, not its words."""
    places = []
    tb = error.__traceback__
    while tb is not None:
        code = tb.tb_frame.f_code
        places.append(f"{code.co_name}")
        tb = tb.tb_next
    text = "|".join([type(error).__qualname__, *places[-8:]])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


__all__ = ["CallOf", "Chosen", "Run", "Transaction", "call", "differing", "fingerprint_of"]
