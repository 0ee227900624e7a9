"""The console's one thread that asks the store, and the one that listens to it.

A screen asks under a name. A newer question of the same name takes the place of one that waits, and an answer that has
been overtaken is dropped: however slow the store is, nothing queues up behind it. What a person decided is different:
it is carried out in order, and never dropped. Both threads are daemons, so that quitting waits for nobody.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from walkback_store import Store
    from walkback_store.feed import ChangeFeed

AGAIN_AFTER = 0.5
"""Seconds until a store that could not be opened is tried again."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a question; `error` is set when it could not be answered."""

    give: Callable[[Any], object]
    fail: Callable[[Exception], object] | None
    value: Any = None
    error: Exception | None = None
    current: Callable[[], bool] = lambda: True


@dataclass(frozen=True, slots=True)
class Heard:
    """The store was reached just now (`lost` is None), and perhaps something was committed; or it was not reached."""

    changed: bool = False
    lost: str | None = None


@dataclass(slots=True)
class _Question:
    ask: Callable[[Store], Any]
    give: Callable[[Any], object]
    fail: Callable[[Exception], object] | None
    number: int = 0


class StoreThread:
    """`tell` is called from the threads, with an `Answer` or something `Heard`."""

    def __init__(self, open_: Callable[[], Store], tell: Callable[[Answer | Heard], object]) -> None:
        self._open = open_
        self._tell = tell
        self._waiting: OrderedDict[str, _Question] = OrderedDict()
        self._deeds: deque[_Question] = deque()
        self._numbers: dict[str, int] = {}
        self._bell = threading.Condition()
        self._ended = False
        self._feed: ChangeFeed | None = None
        self.store: Store | None = None

    def start(self) -> None:
        threading.Thread(target=self._run, name="store", daemon=True).start()

    def ask(
        self,
        name: str,
        question: Callable[[Store], Any],
        give: Callable[[Any], object],
        fail: Callable[[Exception], object] | None = None,
    ) -> None:
        """Only the newest question of a name is answered."""
        with self._bell:
            number = self._numbers[name] = self._numbers.get(name, 0) + 1
            self._waiting[name] = _Question(question, give, fail, number)
            self._bell.notify()

    def forget(self, name: str) -> None:
        """No answer under this name is wanted any more."""
        with self._bell:
            self._numbers[name] = self._numbers.get(name, 0) + 1
            self._waiting.pop(name, None)

    def forget_all(self, *, but: Collection[str] = ()) -> None:
        """No answer is wanted any more, except under these names: whoever asked is gone."""
        with self._bell:
            for name in self._numbers.keys() - set(but):
                self._numbers[name] += 1
                self._waiting.pop(name, None)

    def do(
        self,
        deed: Callable[[Store], Any],
        give: Callable[[Any], object],
        fail: Callable[[Exception], object],
    ) -> None:
        """In order, each of them, before any question that waits."""
        with self._bell:
            self._deeds.append(_Question(deed, give, fail))
            self._bell.notify()

    def stop(self) -> None:
        """Ask both threads to end, and wait for neither."""
        with self._bell:
            self._ended = True
            self._bell.notify()
        if self._feed is not None:
            self._feed.wake()

    # --- the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while self.store is None and not self._ended:
            try:
                self.store = self._open()
            except Exception as error:
                self._tell(Heard(lost=str(error)))
                time.sleep(AGAIN_AFTER)
        if self.store is None:
            return
        threading.Thread(target=self._listen, args=(self.store,), name="feed", daemon=True).start()
        while (taken := self._next()) is not None:
            name, question = taken
            self._tell(self._answer(name, question, self.store))

    def _next(self) -> tuple[str | None, _Question] | None:
        with self._bell:
            while not (self._deeds or self._waiting or self._ended):
                self._bell.wait()
            if self._deeds:  # also when ending: a decision is not dropped
                return None, self._deeds.popleft()
            return None if self._ended else self._waiting.popitem(last=False)

    def _answer(self, name: str | None, question: _Question, store: Store) -> Answer:
        def current() -> bool:
            return name is None or self._numbers.get(name) == question.number

        try:
            value = question.ask(store)
        except Exception as error:
            return Answer(question.give, question.fail, error=error, current=current)
        return Answer(question.give, question.fail, value, current=current)

    def _listen(self, store: Store) -> None:
        from walkback_store.errors import StoreError

        while not self._ended:
            try:
                with store.feed() as feed:
                    self._feed = feed
                    self._tell(Heard(changed=True))  # what was committed before it listened has not been heard
                    while not self._ended:
                        self._tell(Heard(changed=feed.wait(1.0)))
            except (StoreError, OSError, ValueError) as error:
                self._tell(Heard(lost=str(error)))
                time.sleep(AGAIN_AFTER)
