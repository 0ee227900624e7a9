"""The app: a store, the agents that may run in it, and the tools they use."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import uuid
from collections.abc import Iterable, Iterator
from types import CodeType, FrameType, ModuleType, TracebackType
from typing import Any

from walkback.agents import Agent
from walkback.errors import DefinitionError, RunFailed, RunNotFinished, UnknownAgent
from walkback.testing.faults import Faults
from walkback.tools import Registry, Tool
from walkback.worker import CONCURRENCY, GRACE, IDLE_WAIT, LEASE, Crew, Worker
from walkback_store.errors import NotAdopted
from walkback_store.housekeeping import is_adopted
from walkback_store.log import Row
from walkback_store.machine.runs import SendSignal, StartRun
from walkback_store.store import Store, open_store
from walkback_store.values import encode, plain
from walkback_store.words import FINISHED, RunStatus
from walkback_store.work import COPY


class App:
    """`app = wb.App("sqlite:///walkback.db", agents=[close_order])`

    Tools within reach of an agent's code need not be listed: those of its module, and those of other modules that it
    names. A tool that the app does not know is refused when it is called, because recovery could not find it. Opening
    the store waits for the first use, so an app can be made at import time.
    """

    def __init__(
        self,
        store: str | os.PathLike[str] | Store | None = None,
        *,
        agents: Iterable[Agent] = (),
        tools: Iterable[Tool] = (),
        policy: str | None = None,
        actor: str = "app",
        faults: Faults | None = None,
    ) -> None:
        if policy is not None:
            raise DefinitionError(
                "policy files are not supported yet, and nothing would enforce this one. Leave `policy` out, and gate "
                "calls with `approval=` on the tool."
            )
        self._store = store if isinstance(store, Store) else None
        self._mine = self._store is None
        self._url = None if isinstance(store, Store) else store
        self._actor = f"service:{actor}"
        self._faults = faults
        self._lock = threading.Lock()
        self.registry = Registry()
        self.crew = Crew()
        for tool in tools:
            self.registry.add(tool)
        for agent in agents:
            self._add(agent)
        self._check()

    def _add(self, agent: Agent) -> None:
        if not isinstance(agent, Agent):
            raise DefinitionError(f"{agent!r} is no agent: decorate the function with @wb.agent.")
        known = self.crew.get(agent.name, agent.version)
        if known is not None and known is not agent:
            raise DefinitionError(
                f"there are two agents called {agent.name!r} v{agent.version}; give one another version."
            )
        self.crew.agents[agent.name, agent.version] = agent
        for tool in mentioned(agent):
            if self.registry.find(tool.name, tool.version) is None:  # a call of another of that name is refused
                self.registry.add(tool)

    def _check(self) -> None:
        self.registry.check()

    # --- the store -----------------------------------------------------------------------------------------------

    @property
    def store(self) -> Store:
        with self._lock:
            if self._store is None:
                self._store = open_store(self._url)
            return self._store

    def use_store(self, url: str | os.PathLike[str]) -> None:
        """Another address than the one given, before the store is first used: `walkback work --store`."""
        with self._lock:
            if self._store is not None:
                raise DefinitionError("the store is open already; its address cannot be changed any more.")
            self._url = url

    def close(self) -> None:
        with self._lock:
            if self._store is not None and self._mine:
                self._store.close()
                self._store = None

    def __enter__(self) -> App:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # --- runs ----------------------------------------------------------------------------------------------------

    def start(
        self, agent: str | Agent, /, *, run_id: str | None = None, tags: Iterable[str] = (), **values: Any
    ) -> str:
        """Start a run, durably; its id. The same `run_id` with the same input is the same run, with other input an
        error.

        It runs when a worker takes it: `app.run_until_idle()`, `app.serve()` or `walkback work module:app`.
        """
        found = self._agent(agent)
        given = found.bind(values)
        name = run_id if run_id is not None else f"{found.name}-{uuid.uuid4().hex[:12]}"
        self.store.do(
            StartRun(
                actor=self._actor,
                run_id=name,
                agent=found.name,
                version=found.version,
                input=given,
                tags=list(tags),
                state=encode(found.first_state()),
            )
        )
        return name

    def _agent(self, agent: str | Agent) -> Agent:
        if isinstance(agent, Agent):
            return agent
        versions = self.crew.versions().get(agent)
        if not versions:
            known = ", ".join(sorted(self.crew.versions())) or "none"
            raise UnknownAgent(f"there is no agent {agent!r} in this app (there are: {known}). Nothing was started.")
        return self.crew.agents[agent, versions[-1]]

    def signal(self, run_id: str, name: str, payload: object = None, *, signal_id: str | None = None) -> None:
        """Send a run a message. It is kept until a step waits for it; the same `signal_id` twice counts once."""
        self.store.do(
            SendSignal(
                actor=self._actor,
                run_id=run_id,
                signal_id=signal_id or uuid.uuid4().hex,
                name=name,
                payload=plain(payload),
            )
        )

    def status(self, run_id: str) -> str:
        return str(self.store.run(run_id)["status"])

    def result(self, run_id: str) -> object:
        """What the agent returned. `RunNotFinished` before, `RunFailed` when it ended otherwise."""
        row: Row = self.store.run(run_id)
        status = row["status"]
        if status not in FINISHED:
            why = f" ({row['why']}: {row['why_detail']})" if row["why"] else ""
            raise RunNotFinished(f"run {run_id!r} is {status}{why}; it has no result yet.")
        last = self.store.events(run_id, before=row["head_seq"] + 1, limit=20)
        ended = [e for e in last if e.kind == "run_finished"]
        if status != RunStatus.SUCCEEDED or not ended:
            what = ended[-1].data if ended else {}
            raise RunFailed(
                f"run {run_id!r} is {status}: {what.get('error_class', '')} {what.get('message', '')}".rstrip()
            )
        return ended[-1].data.get("output")

    # --- working -------------------------------------------------------------------------------------------------

    def worker(self, *, concurrency: int = CONCURRENCY, lease: float = LEASE, name: str | None = None) -> Worker:
        """A worker on this app's store, for those who want to hold it themselves."""
        if not self.crew.agents:
            raise DefinitionError("this app has no agents, so there is nothing to work on: App(agents=[...]).")
        if not is_adopted(self.store):  # it would register, and be refused every run
            raise NotAdopted(f"{COPY} To let it run from here on: walkback adopt --reason '...'.")
        if concurrency < 1 or lease <= 0:
            raise DefinitionError("concurrency is at least 1, and a lease lasts longer than 0 seconds.")
        return Worker(
            self.store, self.crew, self.registry, concurrency=concurrency, lease=lease, faults=self._faults, name=name
        )

    def run_until_idle(self, *, concurrency: int = CONCURRENCY, wait: float = IDLE_WAIT, lease: float = LEASE) -> None:
        """Work here and now, until no run can go on: all have ended, or wait for a person, a signal or a distant time.

        What will be due by itself within `wait` seconds is waited for.
        """
        self.worker(concurrency=concurrency, lease=lease).work(until_idle=True, idle_wait=wait)

    def serve(self, *, concurrency: int = CONCURRENCY, lease: float = LEASE, grace: float = GRACE) -> None:
        """Work until SIGTERM or SIGINT: steps under way are finished, and their runs handed to other workers."""
        worker = self.worker(concurrency=concurrency, lease=lease)
        with stopped_by_signals(worker):
            worker.work(grace=grace)


@contextlib.contextmanager
def stopped_by_signals(worker: Worker) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        worker.stop()

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def mentioned(agent: Agent) -> list[Tool]:
    """Tools within reach of an agent's code, so that recovery knows them before that code has run again.

    Those of its own module, and those of other modules that the code names, such as `billing.create_invoice`.
    """
    found: dict[int, Tool] = {}
    within = dict(agent.function.__globals__)
    code = agent.function.__code__
    for name, cell in zip(code.co_freevars, agent.function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # a name that is not bound yet
            within[name] = cell.cell_contents
    said = _names(code)
    for name, value in within.items():
        values = [value]
        if isinstance(value, ModuleType):
            values = [vars(value).get(other) for other in said] if name in said else []
        found |= {id(tool): tool for tool in values if isinstance(tool, Tool)}
    return list(found.values())


def _names(code: CodeType) -> set[str]:
    inner = [const for const in code.co_consts if isinstance(const, CodeType)]
    return {*code.co_names, *code.co_freevars}.union(*map(_names, inner))
