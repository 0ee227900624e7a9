"""Keys are dealt with one at a time, each to its end, before the next one is looked at.

A key may open a dialog, move the focus or change what is selected, and all of that takes the toolkit a few rounds of
its message queues. Somebody who types fast, pastes, or whose connection stalls sends the next keys before that; unless
they wait, the letters of a reason arrive as actions on the screen below. So a key that comes while another is under way
is held, in order, until the first has been dealt with and the screen it led to can be used.
"""

from __future__ import annotations

import time
from collections import deque

from textual import events
from textual.app import App
from textual.message import Message
from textual.widget import Widget

ROUNDS = 2
"""The messages that a key causes cause messages themselves; the second round comes after those."""
POLL = 0.01
PATIENCE = 3.0
"""Seconds for which a screen that cannot be used yet holds keys up; then they are dropped, and that is said."""
LOST = 0.5
"""Seconds after which a round that has not come back never will: its widget is gone."""
ALWAYS = frozenset({"escape", "q", "ctrl+q", "ctrl+c"})
"""Keys that get somebody out, and so are not held up by a screen that waits for the store."""


class Fence(Message):
    """Follows a key through the queues: when it is back, the key has been dealt with."""

    def __init__(self, number: int, rounds: int) -> None:
        super().__init__()
        self.number = number
        self.rounds = rounds


class OneKeyAtATime(App[None]):
    def __init__(self) -> None:
        super().__init__()
        self._held: deque[events.Key | events.Paste] = deque()
        self._number = 0
        self._rounds = 0
        self._under_way = False
        self._waits_since: float | None = None
        """Since when the screen that a key led to cannot be used."""

    def usable(self) -> bool:
        """Whether the uppermost screen shows what a key would be about."""
        return True

    def dropped(self, count: int) -> None:
        """So many keys were not looked at."""

    def forget_keys(self) -> None:
        """What was typed behind a key that came to nothing was meant for what it did not open."""
        self._held.clear()

    async def on_event(self, event: events.Event) -> None:
        if not isinstance(event, events.Key | events.Paste) or event.is_forwarded:
            await super().on_event(event)
            return
        if self._under_way:
            if self._waits_since is None or not isinstance(event, events.Key) or event.key not in ALWAYS:
                self._held.append(event)
                return
            self._held.clear()
        await self._begin(event)

    async def _begin(self, event: events.Key | events.Paste) -> None:
        self._under_way, self._waits_since = True, None
        self._number += 1
        self._rounds = ROUNDS
        target = self.focused or self.screen
        await super().on_event(event)
        self._send(target)

    def _send(self, target: Widget) -> None:
        number, rounds = self._number, self._rounds
        target.post_message(Fence(number, rounds))
        self.set_timer(LOST, lambda: self._back(number, rounds))

    async def _on_key(self, event: events.Key) -> None:
        """A key that no widget stopped. Textual calls the app's own handler next, which looks at the bindings; after
        that the widget that the key went to may be gone, and the fence with it.
        """
        self.call_later(self._back, self._number, ROUNDS)

    def on_fence(self, fence: Fence) -> None:
        self._back(fence.number, fence.rounds)

    def _back(self, number: int, rounds: int) -> None:
        if not self._under_way or (number, rounds) != (self._number, self._rounds):
            return
        self._rounds -= 1
        if self._rounds:
            self._send(self.focused or self.screen)
        else:
            self._waits_since = time.monotonic()
            self._go_on(number)

    def _go_on(self, number: int) -> None:
        if number != self._number or self._waits_since is None:
            return
        if not self.usable():
            if time.monotonic() - self._waits_since < PATIENCE:
                self.set_timer(POLL, lambda: self._go_on(number))
                return
            if self._held:
                self.dropped(len(self._held))
                self._held.clear()
        self._waits_since = None
        self._under_way = bool(self._held)
        if self._held:
            self.call_later(self._begin, self._held.popleft())
