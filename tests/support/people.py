"""The people in tests, ann and bob, may do everything: whoever opened the store, and so is admin, says so."""

from __future__ import annotations

import os
from typing import Any

import walkback_store
from walkback_store import Store
from walkback_store.machine.roles import EVERYONE, GrantRole
from walkback_store.people import operator_of
from walkback_store.words import Role


def let_everyone(store: Store) -> Store:
    """Once for each store; later it changes nothing."""
    if not any(row["person"] == EVERYONE for row in store.roles()):
        reason = "tests are about something else"
        store.do(GrantRole(actor=operator_of(store), person=EVERYONE, role=Role.ADMIN, reason=reason))
    return store


def open_store(url: str | os.PathLike[str] | None = None, **more: Any) -> Store:
    """As `walkback_store.open_store`, for tests in which people act."""
    return let_everyone(walkback_store.open_store(url, **more))
