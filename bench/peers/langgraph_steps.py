"""LangGraph: a graph of one node that is its own successor, its state saved before the next step ("sync")."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, TypedDict

from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph

from bench.peers.gate import Gate

gate = Gate()


class State(TypedDict):
    log: Any
    at: int
    n: int


def touch(state: State) -> dict[str, int]:
    i = state["n"] + 1
    gate.before(i)
    gate.effect(i)
    return {"at": i, "n": i}


def saver() -> AbstractContextManager[Any]:
    kept: AbstractContextManager[Any]
    if gate.address.startswith("postgresql:"):
        kept = PostgresSaver.from_conn_string(gate.address, pipeline=bool(gate.order.get("pipeline")))
    else:
        kept = SqliteSaver.from_conn_string(gate.address.removeprefix("sqlite:///"))
    return kept


def main() -> None:
    if gate.address.startswith("postgresql:"):
        with PostgresSaver.from_conn_string(gate.address) as once:  # its indexes cannot be made in a pipeline
            once.setup()
    gate.begin()
    with saver() as checkpointer:
        graph = StateGraph(State)
        graph.add_node("touch", touch)
        graph.add_edge(START, "touch")
        graph.add_conditional_edges("touch", lambda _: "touch", ["touch"])
        config = {"configurable": {"thread_id": "bench"}, "recursion_limit": 10_000_000}
        given = None if gate.resumes else gate.state()
        graph.compile(checkpointer=checkpointer).invoke(given, config, durability="sync")


if __name__ == "__main__":
    main()
