"""Walkback: durable runs for agents that change the world.

    import walkback as wb

    @wb.tool(effect="write", verify=invoice_exists, settle=timedelta(seconds=5))
    def create_invoice(order: str, cents: int, *, op: wb.Op) -> dict: ...

    @wb.agent
    def close_order(run: wb.Run, order: str): ...

    app = wb.App("sqlite:///walkback.db", agents=[close_order])

Read `protocol.py` first: it is what happens around every call.
"""

from __future__ import annotations

from walkback.agents import Agent, agent
from walkback.app import App
from walkback.errors import (
    ApprovalExpired,
    ApprovalRefused,
    CallError,
    ConcurrentCalls,
    DefinitionError,
    Denied,
    KeyConflict,
    RunExists,
    RunFailed,
    RunLeft,
    RunNotFinished,
    RunPruned,
    StoreError,
    ToolFailed,
    TransactionUndone,
    UnknownAgent,
    UnknownTool,
    WaitTimeout,
    WalkbackError,
)
from walkback.evidence import Evidence, absent, cannot_tell, happened, partial
from walkback.retries import Retry
from walkback.run import Chosen, Run, call
from walkback.tools import BadArguments, Breaker, Op, Tool, ToolDefinitionError, tool

__all__ = [
    "Agent",
    "App",
    "ApprovalExpired",
    "ApprovalRefused",
    "BadArguments",
    "Breaker",
    "CallError",
    "Chosen",
    "ConcurrentCalls",
    "DefinitionError",
    "Denied",
    "Evidence",
    "KeyConflict",
    "Op",
    "Retry",
    "Run",
    "RunExists",
    "RunFailed",
    "RunLeft",
    "RunNotFinished",
    "RunPruned",
    "StoreError",
    "Tool",
    "ToolDefinitionError",
    "ToolFailed",
    "TransactionUndone",
    "UnknownAgent",
    "UnknownTool",
    "WaitTimeout",
    "WalkbackError",
    "absent",
    "agent",
    "call",
    "cannot_tell",
    "happened",
    "partial",
    "tool",
]
