"""For tests of agents, and of Walkback itself: faults on purpose, a simulator with virtual time, a ledger of effects.

`Faults` are given to an app, and strike in its real workers. `Simulation` runs the same agents without real time or
real processes. `Ledger` and `Service` are a world outside that counts what really happened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from walkback.testing.faults import Fault, Faults

if TYPE_CHECKING:
    from walkback.testing.ledger import Effect, Ledger, Service
    from walkback.testing.simulator import Clock, DefiniteError, Plan, SimulatedError, Simulation

_LATER = {
    "Effect": "ledger",
    "Ledger": "ledger",
    "Service": "ledger",
    "Clock": "simulator",
    "DefiniteError": "simulator",
    "Plan": "simulator",
    "SimulatedError": "simulator",
    "Simulation": "simulator",
}


def __getattr__(name: str) -> Any:
    """The drivers import this package for its faults; the simulator imports the drivers."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)


__all__ = [
    "Clock",
    "DefiniteError",
    "Effect",
    "Fault",
    "Faults",
    "Ledger",
    "Plan",
    "Service",
    "SimulatedError",
    "Simulation",
]
