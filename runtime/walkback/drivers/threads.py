"""The driver for plain functions: the protocol and the tool run in the thread of the agent, with no hop in between.

A tool that does not come back cannot be stopped. Its thread is watched instead (`Watch`): when the deadline has passed,
the worker takes the run away from it, and the run goes on in another thread, from its record. If the old thread ever
wakes, its fence is stale, and all that it can do is to leave its answer as late evidence.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from walkback.drivers import base
from walkback.drivers.aio import EventLoop
from walkback.drivers.base import Workplace
from walkback.errors import RunLeft, Stopping
from walkback.evidence import Evidence, cannot_tell
from walkback.testing.faults import Fault, What
from walkback.tools import BadArguments, Tool
from walkback.wishes import (
    Answered,
    Await,
    Branches,
    CannotObserve,
    Commit,
    Enter,
    Entropy,
    Invoke,
    IsDead,
    Jitter,
    Look,
    Now,
    Observe,
    Protocol,
    Verify,
    Wait,
    Wish,
)
from walkback_store.engine import Committed
from walkback_store.values import plain
from walkback_store.words import Answer


class Watch:
    """The calls of one run that are under way, and when each should have ended. Seen by the worker's own thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: dict[int, tuple[int, str, str]] = {}
        self.hung: frozenset[str] = frozenset()
        """Steps whose verify did not come back in an earlier thread of this run."""

    @contextmanager
    def over(self, deadline: int, what: str, step: str) -> Iterator[None]:
        token = threading.get_ident()
        with self._lock:
            self._calls[token] = (deadline, what, step)
        try:
            yield
        finally:
            with self._lock:
                self._calls.pop(token, None)

    def overdue(self, now: int) -> list[tuple[str, str]]:
        """What and which step, of every call whose deadline has passed."""
        with self._lock:
            return [(what, step) for deadline, what, step in self._calls.values() if deadline <= now]


class ThreadDriver:
    is_async = False

    def __init__(self, place: Workplace, watch: Watch, loop: EventLoop) -> None:
        self._place = place
        self._watch = watch
        self._loop = loop
        self._entered: list[Tool] = []
        self._grants = {
            Commit: self._commit,
            Invoke: self._invoke,
            Verify: self._verify,
            Observe: self._observe,
            Look: self._look,
            Wait: self._wait,
            Now: lambda _: place.now(),
            Jitter: lambda _: place.random.random(),
            Entropy: lambda _: place.random.randbytes(16),
            Await: lambda wish: loop.wait_for(wish.awaitable, None),
            IsDead: lambda wish: place.is_dead(wish.worker),
            Enter: self._enter,
            Branches: self._branches,
        }

    def run(self, protocol: Protocol[Any]) -> Any:
        grants: dict[type[Any], Any] = self._grants
        try:
            wish: Wish = next(protocol)
            while True:
                try:
                    answer = grants[type(wish)](wish)
                except Exception as error:
                    wish = protocol.throw(error)
                else:
                    wish = protocol.send(answer)
        except StopIteration as end:
            return end.value
        finally:
            while self._entered:
                self._leave(self._entered.pop())

    # --- the store -----------------------------------------------------------------------------------------------

    def _commit(self, wish: Commit) -> list[Committed]:
        faults = self._place.faults
        if not faults:
            return self._place.commit(wish)
        step = getattr(wish.transitions[0], "step", None)
        self._slow(faults.at(wish.point, "before", step=step))
        done = self._place.commit(wish)
        fault = faults.at(wish.point, "after", step=step)
        if fault is not None and fault.what is What.LOSE_COMMIT:
            done = self._place.commit(wish)  # the answer was lost: the same transitions again
        self._slow(fault)
        return done

    def _look(self, wish: Look) -> object:
        return wish.question(self._place.store)

    # --- the world -----------------------------------------------------------------------------------------------

    def _invoke(self, wish: Invoke) -> Answered:
        try:
            return self._called(wish)
        finally:
            if self._entered:
                self._leave(self._entered.pop())

    def _called(self, wish: Invoke) -> Answered:
        place, tool, step = self._place, wish.tool, wish.op.step
        before = place.faults.at("call", "before", tool.name, step) if place.faults else None
        self._slow(before)
        if place.now() >= wish.deadline:
            return base.not_sent()
        if before is not None and before.what is What.LOSE_REQUEST:
            return self._silence(wish)
        try:
            given = tool.bind(wish.args, wish.op)
        except BadArguments as bad:
            return Answered(Answer.REJECTED, error_class="BadArguments", error=str(bad), sent=False)
        try:
            if before is not None and before.what is What.RAISE and before.error is not None:
                raise before.error()
            with self._watch.over(wish.deadline, "call", step):
                output = tool.function(**given)
                if tool.is_async:
                    output = self._loop.wait_for(output, tool.timeout)
                if place.faults:
                    after = place.faults.at("call", "after", tool.name, step)
                    self._slow(after)
                    if after is not None and after.what is What.RAISE and after.error is not None:
                        raise after.error()
        except RunLeft:
            raise
        except TimeoutError as error:
            if tool.is_async and error.args == (EventLoop.TIMED_OUT,):
                return base.no_answer(tool)
            return base.raised(tool, error)
        except BaseException as error:
            return base.raised(tool, error)
        if before is not None and before.what is What.LOSE_ANSWER:
            return self._silence(wish)
        return base.acknowledged(output)

    def _silence(self, wish: Invoke) -> Answered:
        left = (wish.deadline - self._place.now()) / base.SECONDS
        threading.Event().wait(max(0.0, left))
        return base.no_answer(wish.tool)

    def _verify(self, wish: Verify) -> Evidence:
        place, tool, step = self._place, wish.tool, wish.op.step
        if step in self._watch.hung:
            return cannot_tell(f"verify did not answer within {tool.timeout:g} s")
        fault = place.faults.at("verify", "before", tool.name, step) if place.faults else None
        self._slow(fault)
        try:
            if fault is not None and fault.what is What.RAISE and fault.error is not None:
                raise fault.error()
            evidence = base.found(self._ask(tool, tool.verify, wish, "verify"))
            if place.faults:
                self._slow(place.faults.at("verify", "after", tool.name, step))
            return evidence
        except RunLeft:
            raise
        except BaseException as error:
            return base.could_not_look(error)

    def _observe(self, wish: Observe) -> object:
        try:
            return plain(self._ask(wish.tool, wish.tool.preconditions, wish, "observe"))
        except RunLeft:
            raise
        except BaseException as error:
            raise CannotObserve(f"{type(error).__name__}: {error}") from error

    def _ask(self, tool: Tool, function: Any, wish: Verify | Observe, what: str) -> object:
        deadline = self._place.now() + int(tool.timeout * base.SECONDS)
        with self._watch.over(deadline, what, wish.op.step):
            given = function(wish.op)
            return self._loop.wait_for(given, tool.timeout) if base.is_awaitable(given) else given

    # --- waiting -------------------------------------------------------------------------------------------------

    def _wait(self, wish: Wait) -> None:
        stopping = self._place.stopping
        left = (wish.until - self._place.now()) / base.SECONDS if wish.until else 0.0
        if stopping.wait(left) if left > 0 else stopping.is_set():
            raise Stopping("the worker is asked to stop")

    @staticmethod
    def _slow(fault: Fault | None) -> None:
        if fault is not None and fault.what is What.DELAY:
            threading.Event().wait(fault.seconds)

    # --- side by side --------------------------------------------------------------------------------------------

    def _enter(self, wish: Enter) -> None:
        if self._place.enter(wish.tool):
            self._entered.append(wish.tool)

    def _leave(self, tool: Tool) -> None:
        self._place.leave(tool)

    def _branches(self, wish: Branches) -> list[Any]:
        results: list[Any] = [None] * len(wish.protocols)
        errors: list[BaseException] = []

        def work(i: int) -> None:
            try:
                results[i] = ThreadDriver(self._place, self._watch, self._loop).run(wish.protocols[i])
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(1, len(wish.protocols))]
        for thread in threads:
            thread.start()
        work(0)
        for thread in threads:
            thread.join()
        for error in sorted(errors, key=lambda e: not isinstance(e, RunLeft)):
            raise error
        return results
