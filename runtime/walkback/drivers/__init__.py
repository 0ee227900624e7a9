"""The drivers: what grants the protocol's wishes. Threads here, an event loop there; the simulator is in `testing`."""
