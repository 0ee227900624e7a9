"""What the others are held against: the bare loop and the store's own transitions, both of `bench_store`.

In a process of their own like everything they are compared with: a loop in the process that conducts the others is
not in the same position.
"""

from __future__ import annotations

from bench.bench_store import Runner, Subject, bare_loop, claimed, register
from bench.peers.gate import Gate
from walkback_store import open_store
from walkback_store.values import encode

gate = Gate()


def bare() -> None:
    kind = gate.order["kind"]
    address = gate.address.removeprefix("sqlite:///")
    with bare_loop(Subject("bare", kind, "", address, 0)) as step:
        i = 0
        while True:
            i += 1
            gate.effect(i)
            step()


def transitions() -> None:
    with open_store(gate.address) as store:
        register(store, "alone")
        ((run_id, fence),) = claimed(store, "alone", ["alone"], encode({})).items()
        step = Runner(store, "alone", run_id, fence, gate.order["log"]).step
        i = 0
        while True:
            i += 1
            gate.effect(i)
            step()


if __name__ == "__main__":
    bare() if gate.order["what"] == "bare" else transitions()
