"""The driver for async functions: many runs on one event loop, their commits gathered by one thread.

A commit blocks, so it is made elsewhere: the committer takes along whatever runs have asked for meanwhile, in one
transaction. Plain tools of an async agent run in threads of their own.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import queue
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from walkback.drivers import base
from walkback.drivers.base import Workplace
from walkback.errors import LeaseLost, RunLeft, Stopping
from walkback.evidence import Evidence
from walkback.testing.faults import What
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
from walkback_store.errors import StoreError
from walkback_store.values import plain
from walkback_store.words import Answer

LOOK_EVERY = 0.05
"""Seconds between two looks at whether the worker has to stop, while a run waits."""


class EventLoop:
    """One loop in a thread of its own, started when it is first needed."""

    TIMED_OUT = "walkback: the time of this call is over"

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="walkback-loop", daemon=True)
                self._thread.start()
            return self._loop

    def spawn(self, work: Callable[[], Any]) -> concurrent.futures.Future[Any]:
        return asyncio.run_coroutine_threadsafe(work(), self.loop)

    def wait_for(self, awaitable: Awaitable[Any], seconds: float | None) -> Any:
        """From another thread: what it gives; `TimeoutError(TIMED_OUT)` when its time is over."""

        async def work() -> Any:
            try:
                async with asyncio.timeout(seconds) as limit:
                    return await awaitable
            except TimeoutError:
                if limit.expired():
                    raise TimeoutError(self.TIMED_OUT) from None
                raise

        return self.spawn(work).result()

    def close(self) -> None:
        """Whatever is still on the loop is cancelled: its runs are in the store, and others take them over."""
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None:
            return
        asyncio.run_coroutine_threadsafe(_cancel_the_others(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _cancel_the_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_default_executor()


class Committer:
    """Makes the commits of all runs on a loop, as many in one transaction as have come meanwhile."""

    MOST = 200

    def __init__(self, place: Workplace) -> None:
        self._place = place
        self._queue: queue.SimpleQueue[tuple[Commit, asyncio.Future[list[Committed]]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="walkback-committer", daemon=True)
        self._thread.start()

    async def commit(self, wish: Commit) -> list[Committed]:
        future: asyncio.Future[list[Committed]] = asyncio.get_running_loop().create_future()
        self._queue.put((wish, future))
        return await asyncio.shield(future)  # a run that is cancelled meanwhile does not undo a commit

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (first := self._queue.get()) is not None:
            batch = [first]
            ended = False
            while len(batch) < self.MOST and not self._queue.empty():
                more = self._queue.get()
                if more is None:
                    ended = True
                    break
                batch.append(more)
            self._serve(batch)
            if ended:
                return

    def _serve(self, batch: list[tuple[Commit, asyncio.Future[list[Committed]]]]) -> None:
        together = Commit(tuple(t for wish, _ in batch for t in wish.transitions))
        try:
            results: list[Committed | StoreError] | BaseException = self._place.submit(together)
        except BaseException as error:
            results = error
        start = 0
        for wish, future in batch:
            end = start + len(wish.transitions)
            mine = results if isinstance(results, BaseException) else results[start:end]
            start = end
            future.get_loop().call_soon_threadsafe(_tell, future, mine)


def _tell(future: asyncio.Future[list[Committed]], results: list[Committed | StoreError] | BaseException) -> None:
    if future.done():
        return
    if isinstance(results, BaseException):
        future.set_exception(results if isinstance(results, Exception) else LeaseLostInCommit(str(results)))
        return
    refused = next((r for r in results if isinstance(r, StoreError)), None)
    if refused is not None:
        future.set_exception(refused)
    else:
        future.set_result([r for r in results if isinstance(r, Committed)])


class LeaseLostInCommit(Exception):
    """The store stayed away for too long; the run is left to whoever takes it."""


class AsyncDriver:
    is_async = True

    def __init__(self, place: Workplace, committer: Committer) -> None:
        self._place = place
        self._committer = committer
        self._entered: list[Tool] = []

    def run(self, protocol: Protocol[Any]) -> Any:
        return self._run(protocol)

    async def _run(self, protocol: Protocol[Any]) -> Any:
        try:
            wish: Wish = next(protocol)
            while True:
                try:
                    answer = await self._grant(wish)
                except LeaseLostInCommit as lost:
                    raise LeaseLost(str(lost)) from lost
                except Exception as error:
                    wish = protocol.throw(error)
                else:
                    wish = protocol.send(answer)
        except StopIteration as end:
            return end.value
        finally:
            while self._entered:
                self._place.leave(self._entered.pop())

    async def _grant(self, wish: Wish) -> Any:
        place = self._place
        match wish:
            case Commit():
                return await self._commit(wish)
            case Now():
                return place.now()
            case Jitter():
                return place.random.random()
            case Entropy():
                return place.random.randbytes(16)
            case Invoke():
                place_taken = bool(self._entered)
                self._entered.clear()
                return await self._invoke(wish, _Taken(place, wish.tool) if place_taken else None)
            case Verify():
                return await self._verify(wish)
            case Observe():
                return await self._observe(wish)
            case Look():
                return await asyncio.to_thread(wish.question, place.store)
            case Wait():
                return await self._wait(wish)
            case Await():
                return await wish.awaitable
            case IsDead():
                return await asyncio.to_thread(place.is_dead, wish.worker)
            case Enter():
                return await self._enter(wish)
            case Branches():
                return await self._branches(wish)

    async def _commit(self, wish: Commit) -> list[Committed]:
        faults = self._place.faults
        step = getattr(wish.transitions[0], "step", None) if faults else None
        if faults:
            await self._slow(faults.at(wish.point, "before", step=step))
        done = await self._committer.commit(wish)
        if faults:
            fault = faults.at(wish.point, "after", step=step)
            if fault is not None and fault.what is What.LOSE_COMMIT:
                done = await self._committer.commit(wish)
            await self._slow(fault)
        return done

    @staticmethod
    async def _slow(fault: Any) -> None:
        if fault is not None and fault.what is What.DELAY:
            await asyncio.sleep(fault.seconds)

    async def _invoke(self, wish: Invoke, taken: _Taken | None) -> Answered:
        try:
            return await self._called(wish, taken)
        finally:
            if taken is not None and not taken.hangs:
                taken.leave()

    async def _called(self, wish: Invoke, taken: _Taken | None) -> Answered:
        place, tool, step = self._place, wish.tool, wish.op.step
        before = place.faults.at("call", "before", tool.name, step) if place.faults else None
        await self._slow(before)
        left = (wish.deadline - place.now()) / base.SECONDS
        if left <= 0:
            return base.not_sent()
        if before is not None and before.what is What.LOSE_REQUEST:
            await asyncio.sleep(left)
            return base.no_answer(tool)
        try:
            given = tool.bind(wish.args, wish.op)
        except BadArguments as bad:
            return Answered(Answer.REJECTED, error_class="BadArguments", error=str(bad), sent=False)
        try:
            if before is not None and before.what is What.RAISE and before.error is not None:
                raise before.error()
            async with asyncio.timeout(left) as limit:
                if tool.is_async:
                    output = await tool.function(**given)
                else:
                    output = await in_thread(tool.function, given, late=lambda f: self._came_late(wish, f, taken))
                if place.faults:
                    after = place.faults.at("call", "after", tool.name, step)
                    await self._slow(after)
                    if after is not None and after.what is What.RAISE and after.error is not None:
                        raise after.error()
                if before is not None and before.what is What.LOSE_ANSWER:
                    await asyncio.sleep(left + 1)
        except RunLeft:
            raise
        except TimeoutError as error:
            if not limit.expired():
                return base.raised(tool, error)
            if not tool.is_async:  # its thread goes on, and counts until it ends
                place.left_behind += 1
                if taken is not None:
                    taken.hangs = True
            return base.no_answer(tool)
        except asyncio.CancelledError as cancelled:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return base.raised(tool, cancelled)
        except BaseException as error:
            return base.raised(tool, error)
        return base.acknowledged(output)

    def _came_late(self, wish: Invoke, ended: Callable[[], Any], taken: _Taken | None) -> None:
        """A plain tool came back after its time was over. What it says is evidence, and nothing else."""
        self._place.left_behind -= 1
        if taken is not None:
            taken.leave()
        try:
            answer = base.acknowledged(ended())
        except BaseException as error:
            answer = base.raised(wish.tool, error)
        task = asyncio.get_running_loop().create_task(_kept(self._run(wish.late(answer))))
        _late.add(task)
        task.add_done_callback(_late.discard)

    async def _verify(self, wish: Verify) -> Evidence:
        place, tool, step = self._place, wish.tool, wish.op.step
        fault = place.faults.at("verify", "before", tool.name, step) if place.faults else None
        await self._slow(fault)
        try:
            if fault is not None and fault.what is What.RAISE and fault.error is not None:
                raise fault.error()
            evidence = base.found(await self._ask(tool, tool.verify, wish.op))
            if place.faults:
                await self._slow(place.faults.at("verify", "after", tool.name, step))
            return evidence
        except RunLeft:
            raise
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            return base.could_not_look(error)

    async def _observe(self, wish: Observe) -> object:
        try:
            return plain(await self._ask(wish.tool, wish.tool.preconditions, wish.op))
        except (RunLeft, asyncio.CancelledError):
            raise
        except BaseException as error:
            raise CannotObserve(f"{type(error).__name__}: {error}") from error

    async def _ask(self, tool: Tool, function: Any, op: Any) -> object:
        async with asyncio.timeout(tool.timeout):
            if asyncio.iscoroutinefunction(function):
                return await function(op)
            given = await in_thread(function, {"op": op}, positional=True)
            return await given if base.is_awaitable(given) else given

    async def _wait(self, wish: Wait) -> None:
        place = self._place
        while not place.stopping.is_set():
            left = (wish.until - place.now()) / base.SECONDS if wish.until else 0.0
            if left <= 0:
                return
            await asyncio.sleep(min(left, LOOK_EVERY))
        raise Stopping("the worker is asked to stop")

    async def _enter(self, wish: Enter) -> None:
        while not self._place.enter(wish.tool, wait=False):
            if self._place.stopping.is_set():
                raise Stopping("the worker is asked to stop")
            await asyncio.sleep(LOOK_EVERY / 5)
        self._entered.append(wish.tool)

    async def _branches(self, wish: Branches) -> list[Any]:
        work = [AsyncDriver(self._place, self._committer)._run(protocol) for protocol in wish.protocols]
        results = await asyncio.gather(*(_kept(one) for one in work))
        errors = [r.error for r in results if r.error is not None]
        for error in sorted(errors, key=lambda e: not isinstance(e, RunLeft)):
            raise error
        return [r.value for r in results]


class _Taken:
    """A place of a tool with limited concurrency, taken for one call."""

    def __init__(self, place: Workplace, tool: Tool) -> None:
        self._place = place
        self._tool = tool
        self.hangs = False

    def leave(self) -> None:
        self._place.leave(self._tool)


_late: set[asyncio.Task[Any]] = set()
"""The loop itself keeps no hold on its tasks."""


class _Kept:
    def __init__(self, value: Any = None, error: BaseException | None = None) -> None:
        self.value = value
        self.error = error


async def _kept(work: Awaitable[Any]) -> _Kept:
    """Its end, whatever it is: asyncio must not see a BaseException go by, or it tears down the loop."""
    try:
        return _Kept(await work)
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        return _Kept(error=error)


async def in_thread(
    function: Callable[..., Any],
    given: dict[str, Any],
    *,
    positional: bool = False,
    late: Callable[[Callable[[], Any]], None] | None = None,
) -> Any:
    """In a daemon thread of its own, so that one that hangs holds up neither the loop nor the end of the process.

    `late` is told, on the loop, what came of it after nobody waited any more.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def tell(ended: Callable[[], Any]) -> None:
        if future.done():
            if late is not None:
                late(ended)
            return
        try:
            future.set_result(ended())
        except Exception as error:
            future.set_exception(error)
        except BaseException as error:
            future.set_exception(RuntimeError(repr(error)))

    def work() -> None:
        try:
            result = function(*given.values()) if positional else function(**given)
        except BaseException as error:
            failure = error
            ended: Callable[[], Any] = lambda: _raise(failure)  # noqa: E731
        else:
            ended = lambda: result  # noqa: E731
        with contextlib.suppress(RuntimeError):  # the loop is gone, and so is whoever asked
            loop.call_soon_threadsafe(tell, ended)

    threading.Thread(target=work, daemon=True).start()
    return await future


def _raise(error: BaseException) -> None:
    raise error
