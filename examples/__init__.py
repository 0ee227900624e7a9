"""Agents that run, against real local services."""
