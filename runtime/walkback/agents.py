"""Agents: plain functions whose first parameter is the run."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import update_wrapper
from typing import Any, overload

from walkback.errors import DefinitionError
from walkback_store.machine.base import MAX_NAME
from walkback_store.values import plain


class Agent:
    """A function that takes a run, and what it was started with. Calling it directly calls the function."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        version: str = "1",
        state: type[Any] | None = None,
        concurrency: int | None = None,
    ) -> None:
        self.function = function
        self.name = name or function.__name__
        self.version = version
        self.state_model = state
        self.concurrency = concurrency
        self.is_async = inspect.iscoroutinefunction(function)
        update_wrapper(self, function)
        self._check()
        parameters = list(inspect.signature(function).parameters.values())[1:]
        self._signature = inspect.Signature(parameters)

    def _check(self) -> None:
        found = list(inspect.signature(self.function).parameters.values())
        if not found:
            raise DefinitionError(f"agent {self.name!r} takes no run: its first parameter is the run, `run: wb.Run`.")
        odd = [p.name for p in found if p.kind in {p.VAR_POSITIONAL, p.VAR_KEYWORD}]
        if odd:
            raise DefinitionError(
                f"agent {self.name!r} takes *{odd[0]}: its input is stored and compared, so every parameter has a name."
            )
        for what, text in (("name", self.name), ("version", self.version)):
            if not 0 < len(text) <= MAX_NAME or not text.isprintable():
                raise DefinitionError(
                    f"the {what} of agent {self.name!r} must be 1 to {MAX_NAME} printable characters."
                )
        if self.concurrency is not None and self.concurrency < 1:
            raise DefinitionError(f"agent {self.name!r}: concurrency is at least 1, not {self.concurrency}.")
        if inspect.isgeneratorfunction(self.function) or inspect.isasyncgenfunction(self.function):
            raise DefinitionError(f"agent {self.name!r} is a generator; an agent is a function or an async function.")

    def bind(self, values: dict[str, Any]) -> dict[str, Any]:
        """The input as it is stored: every parameter by name, defaults filled in, plain values."""
        try:
            bound = self._signature.bind(**values)
        except TypeError as error:
            raise DefinitionError(
                f"agent {self.name!r} cannot be started with this: {error}. Nothing was started."
            ) from error
        bound.apply_defaults()
        found: Any = plain(dict(bound.arguments))
        return dict(found)

    def first_state(self) -> object:
        return {} if self.state_model is None else self.state_model()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<agent {self.name} v{self.version}>"


@overload
def agent(function: Callable[..., Any], /) -> Agent: ...
@overload
def agent(
    *, name: str | None = None, version: str = "1", state: type[Any] | None = None, concurrency: int | None = None
) -> Callable[[Callable[..., Any]], Agent]: ...
def agent(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    version: str = "1",
    state: type[Any] | None = None,
    concurrency: int | None = None,
) -> Agent | Callable[[Callable[..., Any]], Agent]:
    """Make a function an agent: `@wb.agent` or `@wb.agent(version="2", state=OrderState, concurrency=10)`.

    `version` says which code a run belongs to; raise it when the steps change, and workers take only what they have.
    `state` is a pydantic model or dataclass for `run.state`, which is a dict otherwise. `concurrency` is how many
    runs of it one worker carries at once.
    """

    def make(function: Callable[..., Any]) -> Agent:
        return Agent(function, name=name, version=version, state=state, concurrency=concurrency)

    return make if function is None else make(function)
