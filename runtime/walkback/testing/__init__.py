"""For tests of agents, and of Walkback itself: faults on purpose, a simulator with virtual time, a ledger of effects."""
