"""DBOS: one workflow, each of whose steps is given the state and gives it back, as its recorded result."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from typing import Any

from dbos import DBOS, SetWorkflowID

from bench.peers.gate import Gate

gate = Gate()


@DBOS.step()
def touch(state: dict[str, Any], i: int) -> dict[str, Any]:
    gate.effect(i)
    return {**state, "at": i, "n": i}


@DBOS.workflow()
def steps() -> None:
    state = gate.state()
    i = 0
    while True:
        i += 1
        gate.before(i)
        state = touch(state, i)


def main() -> None:
    if gate.order.get("wal"):  # it stays so: SQLite keeps it in the file
        with closing(sqlite3.connect(gate.address.removeprefix("sqlite:///"))) as db:
            db.execute("PRAGMA journal_mode = WAL")
    gate.begin()
    DBOS(config={"name": "bench", "system_database_url": gate.address, "log_level": "ERROR"})
    DBOS.launch()  # takes up what was under way
    if not gate.resumes:
        with SetWorkflowID("bench"):
            DBOS.start_workflow(steps)
    time.sleep(3600)


if __name__ == "__main__":
    main()
