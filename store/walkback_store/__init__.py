"""The shared store of Walkback: an append-only event log, the state machine over it, snapshots and a change feed.

Runtime and console share nothing but this. Every change goes through a transition; see `walkback_store.machine`.
"""

from __future__ import annotations

from walkback_store.engine import Committed
from walkback_store.store import Store, open_store

__all__ = ["Committed", "Store", "open_store"]
