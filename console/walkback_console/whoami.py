"""Who the operator is; the store knows, because it says who may do what."""

from __future__ import annotations

from walkback_store.people import operator_of

__all__ = ["operator_of"]
