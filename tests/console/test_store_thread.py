"""The console's thread to the store."""

from __future__ import annotations

import queue
import threading

from walkback_console.store_thread import Answer, Heard, StoreThread
from walkback_store import open_store


def test_what_was_committed_before_it_listened_is_read_again(store_url: str) -> None:
    """The first screen is read before the feed is open; what came in between would be unseen until the next commit."""
    said: queue.Queue[Answer | Heard] = queue.Queue()
    with open_store(store_url) as store:
        thread = StoreThread(lambda: store, said.put)
        thread.start()
        try:
            assert said.get(timeout=20) == Heard(changed=True)
        finally:
            thread.stop()
            for other in threading.enumerate():
                if other.name in {"store", "feed"}:
                    other.join(20)
