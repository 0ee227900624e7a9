"""Absurd: one task, each of whose steps gives back the state, as its checkpoint. PostgreSQL only."""

from __future__ import annotations

from typing import Any

import psycopg
from absurd_sdk import Absurd
from absurdctl import BUNDLED_SCHEMA_SQL

from bench.peers.gate import Gate

gate = Gate()


def main() -> None:
    with psycopg.connect(gate.address, autocommit=True) as db:
        db.execute(BUNDLED_SCHEMA_SQL)
    app = Absurd(gate.address, queue_name="bench")
    app.create_queue("bench")

    @app.register_task(name="steps")
    def steps(params: Any, context: Any) -> None:
        state = gate.state()
        i = 0
        while True:
            i += 1

            def touch(state: dict[str, Any] = state, i: int = i) -> dict[str, Any]:
                gate.effect(i)
                return {**state, "at": i, "n": i}

            state = context.step(f"step-{i}", touch)

    app.spawn("steps", {})
    app.work_batch(claim_timeout=3600)


if __name__ == "__main__":
    main()
