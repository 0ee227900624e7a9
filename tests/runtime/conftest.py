"""Fixtures for the tests of the runtime."""

from __future__ import annotations

from tests.runtime.shop import shop

__all__ = ["shop"]
