"""One run in a worker's hands, from the claim to wherever it comes to rest.

First what is in the air: a person's decision, operations in flight, a compensation half-way. Only then does the agent's
own code run, from its beginning, on recorded steps. All of it is protocols; a driver runs them.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import orjson

from walkback import compensation, parking
from walkback.agents import Agent
from walkback.drivers.base import source_of, traceback_of, words_of
from walkback.errors import LeaseLost, RunLeft, Stopping, UnknownAgent
from walkback.flight import Flight, look_again, recover
from walkback.record import Record
from walkback.run import Driver, Run, fingerprint_of
from walkback.terms import Hold, Person, Rest, Stop, Waiting, commit, unknown_rest
from walkback.wishes import Branches, Look, Now, Protocol
from walkback_store.errors import IllegalTransition, PreconditionFailed, StaleFence, StoreError, ValueRefused
from walkback_store.log import Row
from walkback_store.machine.operations import CarryOutRetry
from walkback_store.machine.people import CarryOutResume
from walkback_store.machine.runs import FailRun, FinishRun, ReleaseRun, stop_requested
from walkback_store.values import decode, encode, plain
from walkback_store.words import OperationStatus, RunStatus, Why

O = OperationStatus  # noqa: E741
MAX_CRASHES = 3
"""A run that took so many workers with it, one after another, is looked at by a person before it gets another."""


class Execution:
    def __init__(self, hold: Hold, agent: Agent | None, driver: Driver) -> None:
        self.hold = hold
        self.agent = agent
        self.driver = driver
        self.lost = False
        """Somebody else has the run, or the store is in trouble."""

    # --- two ways to run the agent's code ------------------------------------------------------------------------

    def run(self) -> None:
        """Returns when the run has come to rest, whatever that is. Raises only what is a fault of ours."""
        try:
            run = self.driver.run(self._guarded(self._prepare()))
            try:
                output = run._agent.function(run, **run._record.input())
            except BaseException as error:
                self.driver.run(self._guarded(self._fail(run, self._failure(run, error))))
            else:
                self.driver.run(self._guarded(self._finish(run, output)))
        except Stopping:
            self.driver.run(self._release())
        except LeaseLost:
            self.lost = True
        except RunLeft:
            pass

    async def run_async(self) -> None:
        try:
            run = await self.driver.run(self._guarded(self._prepare()))
            try:
                output = await run._agent.function(run, **run._record.input())
            except BaseException as error:
                await self.driver.run(self._guarded(self._fail(run, self._failure(run, error))))
            else:
                await self.driver.run(self._guarded(self._finish(run, output)))
        except Stopping:
            await self.driver.run(self._release())
        except LeaseLost:
            self.lost = True
        except RunLeft:
            pass

    def _failure(self, run: Run, error: BaseException) -> BaseException:
        """What the agent failed with; or how its run left, however the agent wrapped that up."""
        if run._left is not None:
            raise run._left
        if isinstance(error, RunLeft) or (isinstance(error, asyncio.CancelledError) and self.driver.stopping):
            raise error
        if isinstance(error, Exception | asyncio.CancelledError | SystemExit):
            return error
        raise error

    @staticmethod
    def _guarded(protocol: Protocol[Any]) -> Protocol[Any]:
        try:
            return (yield from protocol)
        except (ValueRefused, IllegalTransition, PreconditionFailed):
            raise
        except StoreError as error:  # taken over, or the store is in trouble: it is taken up again
            raise LeaseLost(str(error)) from error

    def _release(self) -> Protocol[None]:
        """Hand the run back, so that another worker need not wait for a lease."""
        with contextlib.suppress(StaleFence, PreconditionFailed, IllegalTransition):  # it is not ours any more
            yield from commit(self.hold, ReleaseRun(**self.hold.by))

    # --- before the agent's code ---------------------------------------------------------------------------------

    def _prepare(self) -> Protocol[Run]:
        hold, agent = self.hold, self.agent
        if agent is None:
            raise UnknownAgent(f"{hold.row['agent']} v{hold.row['agent_version']}")
        if hold.row["crashes"] >= MAX_CRASHES:
            detail = (
                f"it took {hold.row['crashes']} workers with it, one after another, and nothing was settled between"
            )
            yield from parking.ask(hold, Person(Why.REVIEW, detail), None)
        record = yield from compensation.load(hold)
        if hold.row["decision"] is not None:
            yield from self._carry_out(record)
            record = yield from compensation.load(hold)
        if (yield from self._settle_what_is_in_the_air(record)):
            record = yield from compensation.load(hold)
        if hold.row["status"] == RunStatus.COMPENSATING:
            yield from compensation.carry_on(hold)
            record = yield from compensation.load(hold)
        if stop_requested(hold.row):
            yield from parking.stop(hold, None)
        state = yield from self._first_state(record, agent)
        return Run(hold, record, agent, self.driver, state)

    def _first_state(self, record: Record, agent: Agent) -> Protocol[object]:
        if record.run["last_snapshot"] is None:
            return agent.first_state()
        data = yield Look(lambda store: store.state_bytes(self.hold.run_id, 0))
        state: Any = decode(data)
        model = agent.state_model
        if model is None:
            return state
        return model.model_validate(state) if hasattr(model, "model_validate") else model(**state)

    def _carry_out(self, record: Record) -> Protocol[None]:
        """What a person decided, now that it can no longer be taken back."""
        hold = self.hold
        decision = next((d for d in record.history.decisions if d["seq"] == hold.row["decision"]), None)
        if decision is None:
            raise LeaseLost(f"another worker has carried out decision {hold.row['decision']} of run {hold.run_id!r}")
        try:
            if decision["action"] == "resume":
                yield from commit(hold, CarryOutResume(**hold.by, decision=decision["seq"]))
            elif decision["action"] == "retry":
                retry = CarryOutRetry(**hold.by, step=decision["step"], decision=decision["seq"])
                yield from commit(hold, retry)
            else:
                yield from self._compensate(record, decision)
        except PreconditionFailed as refused:
            detail = f"what was decided could not be carried out: {refused}"
            yield from parking.ask(hold, Person(Why.REVIEW, detail, decision["step"]), None)

    def _compensate(self, record: Record, decision: Row) -> Protocol[None]:
        scope, steps = orjson.loads(decision["what"])
        wanted = [row for row in (record.operation(step) for step in steps) if row is not None]
        left = [row for row in wanted if row["status"] == O.SUCCEEDED and row["compensate"] is None]
        over = record.run["finished_at"] is not None or scope == "run" or str(scope).startswith("after:")
        then = compensation.COMPENSATED if over else compensation.REVIEW
        if left:
            names = ", ".join(f"{row['tool']} at step {row['step']}" for row in left)
            detail = f"{names} has no compensation. Nothing was undone; decide about the others without it"
            yield from parking.ask(self.hold, Person(Why.REVIEW, detail), None)
        yield from compensation.begin_as_decided(
            self.hold, str(scope), list(steps), f"{decision['by']} decided it", then, decision["seq"]
        )

    def _settle_what_is_in_the_air(self, record: Record) -> Protocol[bool]:
        """Operations found in flight, with the recorded key, arguments and version. Whether anything changed."""
        hold = self.hold
        now = yield Now()
        pending = [row for row in record.operations() if row["status"] == O.PENDING]
        unknown = [row for row in record.operations() if row["status"] == O.UNKNOWN]
        if not pending and not unknown:
            return False
        rests: list[Rest] = []
        flights: list[Flight] = []
        for row in pending + [row for row in unknown if row["verify_requested"]]:
            flight = record.flight(row, hold.registry, now)
            if flight is None:
                detail = f"{row['tool']} v{row['tool_version']} is in flight, and this worker does not have it"
                rests.append(Person(Why.REVIEW, detail, row["step"]))
            else:
                flights.append(flight)
        settled_by_looking = {row["step"] for row in unknown}
        protocols = [
            look_again(hold, flight) if flight.step in settled_by_looking else recover(hold, flight, None)
            for flight in flights
        ]
        if len(protocols) == 1:
            rests.append((yield from protocols[0]))
        elif protocols:
            rests += yield Branches(protocols)
        for row in unknown:
            if not row["verify_requested"]:
                rests.append(unknown_rest(row["tool"], row["step"], row["error_class"], row["error"], row["evidence"]))
        if any(isinstance(r, Stop | Waiting | Person) for r in rests):
            yield from parking.rest(hold, rests, None)
        return True

    # --- after it ------------------------------------------------------------------------------------------------

    def _finish(self, run: Run, output: object) -> Protocol[None]:
        yield from run._quiet()
        left = run._unused_steps()
        if left:
            yield from run._diverged(left[0], run._record.described(left[0]), "the agent returned")
        try:
            given = plain(output)
        except ValueRefused as refused:
            yield from self._fail(run, refused)
            return
        yield from commit(self.hold, FinishRun(**self.hold.by, output=given, state=run._encoded()))

    def _fail(self, run: Run, error: BaseException) -> Protocol[None]:
        yield from run._quiet()
        left = run._unused_steps()
        if left:
            actual = f"the agent raised {type(error).__name__}: {words_of(error)}"
            yield from run._diverged(left[0], run._record.described(left[0]), actual)
        data: dict[str, Any] = {"step": str(run.step), "traceback": traceback_of(error)}
        if (source := source_of(error)) is not None:
            data["source"] = source
        for name in ("tool", "error_class", "error", "reason"):
            if isinstance(value := getattr(error, name, None), str) and value:
                data[f"of_{name}"] = value
        try:
            state: bytes | None = encode(run.state)
        except ValueRefused:
            state = None
        fail = FailRun(
            **self.hold.by,
            error_class=type(error).__name__,
            message=words_of(error),
            fingerprint=fingerprint_of(error),
            data=data,
            state=state,
        )
        yield from commit(self.hold, fail)


__all__ = ["MAX_CRASHES", "Execution"]
