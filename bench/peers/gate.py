"""How a process that takes durable steps is told when, and says how long they took.

It reads one JSON object from its standard input, what to do, and then numbers: take so many steps and say how long they
took. The clock runs from inside one step's effect to inside another's, so nothing but steps is counted. When the input
ends, the process ends.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

LAST = 1_000
"""A run that is to be resumed has this many steps behind it."""


class Gate:
    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)  # what libraries print is no answer
        self.order: dict[str, Any] = json.loads(sys.stdin.readline())
        self.address: str = self.order["address"]
        self._left = 0
        self._burst = 0
        self._start = self._cpu = 0.0

    @property
    def resumes(self) -> bool:
        return bool(self.order["mode"] == "resume")

    def state(self) -> dict[str, Any]:
        """What the run carries: the same text all the time, and numbers that change at each step."""
        return {"log": self.order["log"], "at": 0, "n": 0}

    def say(self, **answer: Any) -> None:
        self._out.write(json.dumps(answer) + "\n")

    def listen(self) -> int:
        line = sys.stdin.readline()
        if not line.strip():
            os._exit(0)
        return int(line)

    def begin(self) -> None:
        """Everything is imported; a resumed run's clock starts here."""
        self._start = time.perf_counter()

    def since_begin(self) -> float:
        return time.perf_counter() - self._start

    def before(self, i: int) -> None:
        """Between two steps, before step `i`: where a run that is to be resumed is killed."""
        if self.order["mode"] == "fill" and i > LAST:
            self.say(filled=LAST)
            time.sleep(600)

    def effect(self, i: int, **more: float) -> None:
        """What each step does. It takes no time, except between two bursts."""
        mode = self.order["mode"]
        if mode == "fill":
            return
        if mode == "resume":
            if i != LAST + 1:
                raise RuntimeError(f"step {i} was taken again")
            self.say(seconds=self.since_begin(), **more)
            os._exit(0)
        if self._left > 1:
            self._left -= 1
            return
        if self._burst:
            took, cpu = time.perf_counter() - self._start, time.process_time() - self._cpu
            self.say(steps=self._burst, seconds=took, cpu=cpu)
        else:
            self.say(ready=True)
        self._left = self._burst = self.listen()
        self._start, self._cpu = time.perf_counter(), time.process_time()
