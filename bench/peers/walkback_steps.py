"""Walkback: one run, or many at once, of an agent that calls a tool that does nothing."""

from __future__ import annotations

import asyncio
import functools
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import walkback as wb
from bench.peers.gate import Gate
from walkback_store.store import open_store

gate = Gate()
runs = int(gate.order.get("runs", 1))
claimed_at = 0.0
opened_at = 0.0


# --- one run -----------------------------------------------------------------------------------------------------


@wb.tool(effect="write", timeout=3600)
def touch(order: int) -> dict[str, int]:
    gate.effect(order, from_claim=time.perf_counter() - claimed_at, from_opened=time.perf_counter() - opened_at)
    return {"ok": order}


@wb.agent
def alone(run: wb.Run) -> None:
    run.state.update(gate.state())
    i = 0
    while True:
        i += 1
        gate.before(i)
        run.state["at"] = i
        run.call(touch, order=i)
        run.state["n"] = i


# --- many at once ------------------------------------------------------------------------------------------------

line = threading.Barrier(runs + 1)
waiters = ThreadPoolExecutor(max_workers=runs)
each = 1


@wb.tool(effect="write")
def idle(order: int) -> dict[str, int]:
    return {"ok": order}


@wb.tool(effect="write")
async def idle_async(order: int) -> dict[str, int]:
    return {"ok": order}


@wb.agent
def one_of_many(run: wb.Run, number: int) -> None:
    run.state.update(gate.state())
    i = 0
    while True:
        line.wait()
        for _ in range(each):
            i += 1
            run.state["at"] = i
            run.call(idle, order=i)
            run.state["n"] = i
        line.wait()


@wb.agent
async def one_of_many_async(run: wb.Run, number: int) -> None:
    run.state.update(gate.state())
    loop = asyncio.get_running_loop()
    i = 0
    while True:
        await loop.run_in_executor(waiters, line.wait)
        for _ in range(each):
            i += 1
            run.state["at"] = i
            await run.call(idle_async, order=i)
            run.state["n"] = i
        await loop.run_in_executor(waiters, line.wait)


def conduct(app: wb.App) -> None:
    """Lets all of them go at once, and stops the clock when the last has come in."""
    global each
    line.wait(), line.wait()  # the first step of each, which is not timed
    gate.say(ready=True)
    while True:
        each = gate.listen() // runs
        commits, start = app.store.engine.strict_commits, time.perf_counter()
        line.wait(), line.wait()
        took = time.perf_counter() - start
        gate.say(steps=each * runs, seconds=took, cpu=0.0, commits=app.store.engine.strict_commits - commits)


# --- what was asked for ------------------------------------------------------------------------------------------


def main() -> None:
    global opened_at
    gate.begin()
    store = open_store(gate.address)
    opened_at = time.perf_counter()
    if gate.resumes:
        _time_claims(store)
    many = one_of_many_async if gate.order.get("async") else one_of_many
    app = wb.App(store, agents=[alone, many])
    if runs == 1:
        if not gate.resumes:
            app.start(alone, run_id="alone")
        app.serve()
    for number in range(runs):
        app.start(many, run_id=f"run-{number}", number=number)
    threading.Thread(target=conduct, args=(app,), daemon=True).start()
    app.serve(concurrency=runs)
    os._exit(0)


def _time_claims(store: Any) -> None:
    claim = store.claim

    @functools.wraps(claim)
    def timed(*args: Any, **kwargs: Any) -> Any:
        global claimed_at
        start = time.perf_counter()
        claims = claim(*args, **kwargs)
        if claims:
            claimed_at = start
        return claims

    store.claim = timed


if __name__ == "__main__":
    main()
