"""Commits events to a store at a steady rate until its input ends: `python -m bench.chatter URL 50`.

What a worker does to a store while somebody looks at it: steps of runs that go on, one transaction each.
"""

from __future__ import annotations

import os
import select
import sys
import time

from walkback_store import open_store
from walkback_store.machine.runs import ClaimRun, RecordStep, StartRun
from walkback_store.machine.store_wide import RegisterWorker
from walkback_store.values import encode

RUNS = 5
LEASE = 3_600_000_000


def main(url: str, per_second: float) -> None:
    worker = f"chatter-{os.getpid()}"
    actor = f"worker:{worker}"
    with open_store(url) as store:
        store.do(
            RegisterWorker(
                actor=actor, worker=worker, host="here", boot_id="boot", pid=os.getpid(), process_started="1",
                agents={"chatter": ["1"]}, lease=LEASE,
            )
        )  # fmt: skip
        fences = {}
        for n in range(RUNS):
            run_id = f"{worker}-{n}"
            store.do(StartRun(actor="service:bench", run_id=run_id, agent="chatter", input=n, state=encode({})))
            claimed = store.do(ClaimRun(actor=actor, run_id=run_id, worker=worker)).run
            assert claimed is not None
            fences[run_id] = claimed["fence"]
        print("talking", flush=True)
        run_ids, began, said = list(fences), time.monotonic(), 0
        while True:
            wait = began + said / per_second - time.monotonic()
            if select.select([sys.stdin], [], [], max(0.0, wait))[0] and not os.read(0, 100):
                return
            run_id, step = run_ids[said % RUNS], said // RUNS + 1
            store.do(
                RecordStep(
                    actor=actor, run_id=run_id, fence=fences[run_id], step=str(step), step_kind="observe",
                    name="said", data={"value": said},
                )
            )  # fmt: skip
            said += 1


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
