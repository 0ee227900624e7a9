"""Tools: plain functions, and what the runtime has to know before it may call one on an agent's behalf.

A declaration is a contract: whether the function changes the world, how that can be seen, for how long the other side
remembers a key, what undoes it. Everything that can be wrong with one is said when it is declared, or at the latest by
`Registry.check`, and never in the middle of a run.

`Tool.validate` makes the recorded arguments of a call, and `Tool.bind` makes from those alone what the function is
called with, so that a call after a crash is the call that was recorded (see `arguments.py`).
"""

from __future__ import annotations

import copy
import difflib
import functools
import inspect
import math
import re
import string
import sys
import types
import typing
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final, Generic, Literal, NoReturn, ParamSpec, TypedDict, TypeVar, Unpack, overload

from walkback.arguments import (
    ANSWER,
    BadArguments,
    Misfit,
    Parameter,
    ToolDefinitionError,
    args_hash,
    cut,
    is_text,
    json_schema,
    named,
    normalise,
    short,
    type_name,
)
from walkback.errors import UnknownTool
from walkback.evidence import Evidence
from walkback.retries import READS, WRITES, Retry, exception_classes
from walkback_store.values import fingerprint
from walkback_store.words import Effect

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_TIMEOUT: Final = 30.0
MAX_TIMEOUT: Final = timedelta(days=365).total_seconds()
MAX_NAME: Final = 200
MAX_IDENTITY: Final = 160
RESULT: Final = "result"
"""The parameter of a compensation that is given what the operation it undoes answered."""

Trust = Literal["trusted", "untrusted"]


@dataclass(frozen=True, slots=True)
class Undone:
    """The operation that a compensation undoes."""

    step: str
    tool: str
    args: Mapping[str, object]
    result: object = None


@dataclass(frozen=True, slots=True)
class Op:
    """The operation a tool, its verify or its preconditions are called for."""

    run_id: str
    step: str
    tool: str
    key: str
    """The idempotency key: the same in every attempt. Hand it to the other side."""
    attempt: int
    """Counted from 1."""
    deadline: datetime
    """When this attempt is given up, in UTC."""
    args: Mapping[str, object]
    """As recorded."""
    timeout: float
    """In seconds."""
    output: object = None
    """For verify: what the attempt answered, if it did."""
    found_before: object = None
    """What `preconditions` found before the first attempt."""
    undoes: Undone | None = None
    """For a compensation: what it undoes."""


@dataclass(frozen=True, slots=True)
class Breaker:
    """After so many failures in a row a service is left alone for the cooldown."""

    failures: int = 5
    cooldown: timedelta = timedelta(seconds=30)

    def __post_init__(self) -> None:
        if type(self.failures) is not int or self.failures < 1:
            raise ValueError(f"failures is {self.failures!r}; write how many in a row open the breaker, from 1 up.")
        cooldown: object = self.cooldown
        if not isinstance(cooldown, timedelta) or cooldown <= timedelta(0):
            raise ValueError(f"cooldown is {self.cooldown!r}; write a timedelta, such as timedelta(seconds=30).")


class Options(TypedDict, total=False):
    """What a tool can be declared with; each is described in docs/tools.md."""

    effect: Effect | Literal["read", "write"]
    name: str | None
    version: str
    trust: Trust
    service: str | None
    timeout: timedelta | float | None
    retry: Retry | None
    idempotent: timedelta | bool
    identity: str | Callable[[dict[str, Any]], str] | None
    verify: Callable[[Op], Evidence | Awaitable[Evidence]] | None
    settle: timedelta | None
    definite: tuple[type[Exception], ...]
    compensate: str | Tool | None
    approval: bool | Callable[[dict[str, Any]], bool]
    approval_expires: timedelta | None
    describe: Callable[[dict[str, Any]], str] | None
    stake: Callable[[dict[str, Any]], str | float | Decimal] | None
    preconditions: Callable[[Op], object] | None
    expects: str | None
    concurrency: int | None
    repeatable: bool
    breaker: Breaker | Literal[False] | None


class Tool:
    """A function with its contract. Called directly it is that function and nothing else."""

    __name__: str
    __wrapped__: Callable[..., Any]

    def __init__(self, function: Callable[..., Any], **options: Unpack[Options]) -> None:
        given: Any = function
        if isinstance(given, Tool) or not callable(given):
            raise ToolDefinitionError(
                _called(given), "it is a tool already, or no function. Decorate a function, once."
            )
        functools.update_wrapper(self, function)
        self.function = function
        name = options.get("name")
        self.name: str = getattr(function, "__name__", "") if name is None else name
        declared = _Declaration(self.name, options)
        self.version: str = declared.text("version", "1")
        self.effect = declared.choice("effect", Effect, Effect.WRITE)
        self.trust: Trust = declared.trust()
        self.service: str | None = declared.text("service", None)
        self.timeout = declared.timeout()
        """Of one attempt, in seconds."""
        self.retry = declared.retry(self.effect)
        self.idempotent = declared.idempotent()
        self.verify: Callable[[Op], Evidence | Awaitable[Evidence]] | None = declared.function("verify", "op")
        self.settle = declared.span("settle", zero=True)
        self.definite = declared.definite()
        self.compensate = declared.compensate()
        self.approval: bool | Callable[[dict[str, Any]], bool] = declared.approval()
        self.approval_expires = declared.span("approval_expires")
        self.describe: Callable[[dict[str, Any]], str] | None = declared.function("describe", "args")
        self.stake: Callable[[dict[str, Any]], str | float | Decimal] | None = declared.function("stake", "args")
        self.preconditions: Callable[[Op], object] | None = declared.function("preconditions", "op")
        self.expects: str | None = declared.text("expects", None) or _promise(self.verify)
        self.concurrency = declared.count("concurrency")
        self.repeatable = declared.flag("repeatable")
        self.breaker = declared.breaker()
        declared.check_together(self.effect)

        self._signature = _read_signature(self.name, function)
        self.op_name = self._signature.op
        self.parameters = tuple(self._signature.parameters)
        """Names of the arguments, without the one for `Op`."""
        self.required = tuple(n for n, p in self._signature.parameters.items() if p.default is inspect.Parameter.empty)
        self.is_async = _is_async(function) or self._signature.answers_awaitable()
        self.identity = declared.identity(self.parameters)
        self._names = frozenset(self.parameters)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Tool {self.name} {self.version} ({self.effect})>"

    @property
    def takes_op(self) -> bool:
        """Whether the function has a parameter for `Op`."""
        return self.op_name is not None

    @property
    def compensate_name(self) -> str | None:
        """The name of the tool that undoes this one."""
        return self.compensate.name if isinstance(self.compensate, Tool) else self.compensate

    # --- arguments -----------------------------------------------------------------------------------------------

    def validate(self, args: Mapping[str, object]) -> dict[str, object]:
        """The arguments as they are recorded, with every default filled in; `BadArguments` if they do not fit."""
        recorded: dict[str, object] = {}
        problems: list[str] = []
        given = 0
        for parameter in self._inputs:
            name = parameter.name
            if name not in args:
                if parameter.required:
                    problems.append(f"{name}: missing")
                else:
                    recorded[name] = parameter.recorded_default()
                continue
            given += 1
            try:
                recorded[name] = parameter.record(args[name])
            except Misfit as misfit:
                problems += misfit.problems
        if given < len(args):
            problems += self._unknown(args)
        if problems:
            raise BadArguments(self.name, problems)
        return recorded

    def bind(self, recorded: Mapping[str, object], op: Op) -> dict[str, Any]:
        """The keyword arguments of the call, made from what was recorded: fresh objects of the annotated types."""
        if recorded.keys() != self._names:
            # Recorded by another version of the tool; what it lacks may have a default by now.
            recorded = self.validate(recorded)
        bound: dict[str, Any] = {}
        problems: list[str] = []
        for parameter in self._inputs:
            value = recorded[parameter.name]
            if type(value) in parameter.as_they_are:
                bound[parameter.name] = value
                continue
            try:
                bound[parameter.name] = parameter.revive(value)
            except Misfit as misfit:
                problems += misfit.problems
        if problems:
            raise BadArguments(self.name, problems)
        if self.op_name is not None:
            bound[self.op_name] = op
        return bound

    def args_hash(self, args: Mapping[str, object]) -> str:
        """The hash of recorded arguments; equal arguments have equal hashes."""
        return args_hash(args)

    def _unknown(self, args: Mapping[str, object]) -> Iterator[str]:
        takes = f"it takes {', '.join(self.parameters)}" if self.parameters else "it takes no arguments"
        names: Iterable[object] = args
        for name in names:
            if name == self.op_name:
                yield f"{name}: filled in by the runtime, so leave it out"
            elif name not in self._names:
                yield f"{name if isinstance(name, str) else short(name)}: unknown ({takes})"

    # On first use, because annotations may name what is defined further down in the module.
    @functools.cached_property
    def _inputs(self) -> tuple[Parameter, ...]:
        found = self._signature.resolve(self.name).items()
        return tuple(Parameter(self.name, name, p.annotation, p.default) for name, p in found)

    @functools.cached_property
    def _answer(self) -> Parameter:
        return Parameter(self.name, ANSWER, self._signature.resolve_answer(self.name))

    def check(self) -> None:
        """Build everything that is otherwise built on first use; `ToolDefinitionError` if that fails."""
        for parameter in (*self._inputs, self._answer):
            parameter.check()

    # --- what a planner and a person are shown -------------------------------------------------------------------

    @functools.cached_property
    def _schema(self) -> dict[str, Any]:
        description = inspect.getdoc(self.function) or ""
        return {"name": self.name, "description": description, "parameters": json_schema(self.name, self._inputs)}

    def schema(self) -> dict[str, Any]:
        """Name, description and the JSON Schema of the arguments, for a planner."""
        return copy.deepcopy(self._schema)

    def describe_call(self, args: Mapping[str, object]) -> str:
        """One line for people. It never fails: a `describe` that does is left out."""
        if self.describe is not None:
            try:
                said: object = self.describe(dict(args))
            except Exception:
                said = None
            if isinstance(said, str) and said.strip() and is_text(said):
                return cut(said)
        return cut(f"{self.name}({', '.join(f'{name}={short(value)}' for name, value in args.items())})")

    def stake_of(self, args: Mapping[str, object]) -> tuple[str | None, float | None]:
        """What is at stake, for people and for sorting. A `stake` that fails says nothing."""
        if self.stake is None:
            return None, None
        try:
            said: object = self.stake(dict(args))
            if isinstance(said, str):
                return (cut(said), _number_in(said)) if said.strip() and is_text(said) else (None, None)
            if isinstance(said, bool) or not isinstance(said, int | float | Decimal):
                return None, None
            number = float(said)
            return (f"{said}", number) if math.isfinite(number) else (None, None)
        except Exception:
            return None, None

    def needs_approval(self, args: Mapping[str, object]) -> bool:
        """Whether the tool itself wants a person to agree. Only a plain False means no: otherwise ask, never guess."""
        if not callable(self.approval):
            return self.approval
        try:
            return self.approval(dict(args)) is not False
        except Exception:
            return True

    def identity_of(self, args: Mapping[str, object]) -> str | None:
        """The business identity of recorded arguments, if the tool declares one."""
        if self.identity is None:
            return None
        try:
            text: object = self.identity(dict(args))
        except Exception as error:
            raise BadArguments(self.name, [f"identity: {named(error)}"]) from error
        if not isinstance(text, str) or not text.strip() or not is_text(text):
            raise BadArguments(self.name, [f"identity: it must be a text that says something, and is {short(text)}"])
        return text if len(text) <= MAX_IDENTITY else f"{text[:MAX_IDENTITY]}#{fingerprint(text)}"

    # --- answers -------------------------------------------------------------------------------------------------

    def check_output(self, value: object) -> tuple[object, list[str]]:
        """The answer as the annotated type and no problems, or as it came with every place where it does not fit."""
        if type(value) in self._answer.as_they_are:
            return value, []
        try:
            return self._answer.read(value), []
        except Misfit as misfit:
            return value, misfit.problems


class ToolOf(Tool, Generic[P, R]):
    """A tool whose function's signature a type checker knows."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        answer: R = self.function(*args, **kwargs)
        return answer


@overload
def tool(function: Callable[P, R], /) -> ToolOf[P, R]: ...


@overload
def tool(**options: Unpack[Options]) -> Callable[[Callable[P, R]], ToolOf[P, R]]: ...


def tool(function: Callable[..., Any] | None = None, /, **options: Unpack[Options]) -> Any:
    """Declare a function as a tool: `@tool`, or `@tool(effect="read", ...)`. Without an effect it is a write."""

    def declare(function: Callable[..., Any]) -> ToolOf[..., Any]:
        return ToolOf(function, **options)

    return declare if function is None else declare(function)


class Registry:
    """The tools of an app, by name and version; a name alone means the one that was added last."""

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._versions: dict[tuple[str, str], Tool] = {}
        self._latest: dict[str, Tool] = {}
        for each in tools:
            self.add(each)

    def __iter__(self) -> Iterator[Tool]:
        """The latest of each name, in the order in which the names were first added."""
        return iter(self._latest.values())

    def __contains__(self, name: object) -> bool:
        return name in self._latest

    def add(self, tool: Tool) -> None:
        """Add a tool, and the one that undoes it where that was given as a tool and not by name."""
        given: object = tool
        if not isinstance(given, Tool):
            raise ToolDefinitionError(_called(given), "it is not a tool. Decorate it with @tool.")
        known = self._versions.get((tool.name, tool.version))
        if known is not None and known is not tool:
            raise ToolDefinitionError(
                tool.name,
                f"{_place(known)} and {_place(tool)} both declare version {tool.version!r}. "
                "Give one of them another name=, or another version=.",
            )
        self._versions[tool.name, tool.version] = tool
        self._latest[tool.name] = tool
        if isinstance(tool.compensate, Tool) and tool.compensate is not tool:
            known = self._versions.get((tool.compensate.name, tool.compensate.version))
            if known is not tool.compensate:
                self.add(tool.compensate)

    def find(self, name: str, version: str | None = None) -> Tool | None:
        """The tool, or None."""
        return self._latest.get(name) if version is None else self._versions.get((name, version))

    def get(self, name: str, version: str | None = None) -> Tool:
        """The tool, or `UnknownTool` with the names that are known."""
        found = self.find(name, version)
        if found is not None:
            return found
        if name in self._latest:
            versions = ", ".join(v for n, v in self._versions if n == name)
            raise UnknownTool(f"tool {name!r} has no version {version!r} here; there is {versions}.")
        close = difflib.get_close_matches(str(name), self._latest, 1)
        hint = f"did you mean {close[0]!r}?" if close else f"there is {', '.join(self._latest) or 'none'}."
        raise UnknownTool(f"there is no tool {name!r} here; {hint}")

    def check(self) -> None:
        """Build every tool, and see that what undoes one is there and can be called with what is known by then."""
        for each in self._versions.values():
            each.check()
            if each.compensate_name is not None:
                self._check_undo(each, each.compensate_name)

    def _check_undo(self, undone: Tool, name: str) -> None:
        undoing = self.find(name)
        if undoing is None:
            close = difflib.get_close_matches(name, self._latest, 1)
            hint = f"Did you mean {close[0]!r}?" if close else "Add that tool too, or correct the name."
            raise ToolDefinitionError(undone.name, f"compensate names {name!r}, which is no tool here. {hint}")
        if undoing.effect is not Effect.WRITE:
            raise ToolDefinitionError(
                undone.name, f'{name!r} cannot undo it, being a read. Declare {name!r} with effect="write".'
            )
        known = {*undone.parameters, RESULT}
        missing = [parameter for parameter in undoing.required if parameter not in known]
        if missing:
            raise ToolDefinitionError(
                undone.name,
                f"{name!r} undoes it and needs {', '.join(missing)}, which is not known then. Known are "
                f"{', '.join([*undone.parameters, RESULT])}: use one of these names, or give a default.",
            )

    @staticmethod
    def undo_args(undoing: Tool, undone: Tool, args: Mapping[str, object], result: object) -> dict[str, object]:
        """The arguments with which `undoing` undoes a call of `undone`: its own by name, and its result."""
        known = {**args, RESULT: result}
        missing = [f"{name}: {undone.name} has no such argument" for name in undoing.required if name not in known]
        if missing:
            raise BadArguments(undoing.name, missing)
        return {name: known[name] for name in undoing.parameters if name in known}


_MONEY: Final = re.compile(r"([-\N{MINUS SIGN}]?)\s*[$€£¥₹]\s*([-\N{MINUS SIGN}]?)(\d[\d.,]*)")
_NUMBER: Final = re.compile(r"(?<![\w.,])([-\N{MINUS SIGN}]?)()(\d[\d.,]*)")


def _number_in(text: str) -> float | None:
    """The amount of money in a text, or else its first number: 1234.5 for `$1,234.50` and for `1.234,50 €`."""
    found = _MONEY.search(text) or _NUMBER.search(text)
    if found is None:
        return None
    before, inside, digits = found.groups()
    digits = digits.rstrip(".,")
    whole, mark, fraction = digits, "", ""
    if "," in digits and "." in digits:
        mark = max(".,", key=digits.rfind)
    elif digits.count(".") == 1:
        mark = "."
    elif digits.count(",") == 1 and len(digits) - digits.index(",") != 4:
        mark = ","
    if mark:
        whole, _, fraction = digits.rpartition(mark)
    number = float(f"{re.sub('[.,]', '', whole)}.{fraction or 0}")
    if not math.isfinite(number):
        return None
    return -number if before or inside else number


# --- reading a declaration -------------------------------------------------------------------------------------------


class _Declaration:
    """The options of one tool, each checked as it is read."""

    def __init__(self, name: str, options: Options) -> None:
        self.name = name
        self.options: dict[str, Any] = dict(options)
        given: object = name
        if not isinstance(given, str) or not 0 < len(name) <= MAX_NAME or not name.isprintable() or name == "<lambda>":
            self.fail(f"this cannot be its name: give name=, 1 to {MAX_NAME} printable characters.")
        for option in self.options:
            if option not in Options.__annotations__:
                close = difflib.get_close_matches(option, Options.__annotations__, 1)
                hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(Options.__annotations__)}."
                self.fail(f"there is no option {option!r}; {hint}")

    def fail(self, problem: str) -> NoReturn:
        raise ToolDefinitionError(str(self.name), problem)

    def text(self, option: str, default: Any) -> Any:
        value = self.options.get(option, default)
        if value is not default and not (isinstance(value, str) and value.strip() and value.isprintable()):
            self.fail(f'{option} is {value!r}; write a text, such as {option}="{default or "billing"}".')
        return value

    def choice(self, option: str, kind: type[Effect], default: Effect) -> Effect:
        value = self.options.get(option, default)
        try:
            return kind(value)
        except ValueError:
            self.fail(f"{option} is {value!r}; write {' or '.join(repr(str(member)) for member in kind)}.")

    def trust(self) -> Trust:
        value = self.options.get("trust", "trusted")
        if value not in ("trusted", "untrusted"):
            self.fail(f"trust is {value!r}; write 'trusted', or 'untrusted' if strangers write what it answers.")
        return typing.cast("Trust", value)

    def timeout(self) -> float:
        value = self.options.get("timeout")
        if value is None:
            return DEFAULT_TIMEOUT
        seconds = value.total_seconds() if isinstance(value, timedelta) else value
        if isinstance(seconds, bool) or not isinstance(seconds, int | float):
            self.fail(f"timeout is {value!r}; write seconds, or a timedelta.")
        if not 0 < seconds <= MAX_TIMEOUT:
            self.fail(
                f"timeout is {value}; write more than 0 and at most {MAX_TIMEOUT:.0f} seconds, such as timeout=30."
            )
        return float(seconds)

    def span(self, option: str, *, zero: bool = False) -> timedelta | None:
        value = self.options.get(option)
        if value is None:
            return None
        if not isinstance(value, timedelta):
            self.fail(f"{option} is {value!r}; write a timedelta, such as {option}=timedelta(seconds=5).")
        if value < timedelta(0) or (not zero and not value):
            self.fail(f"{option} is {value}; it must be {'0 or more' if zero else 'more than 0'}.")
        return value

    def retry(self, effect: Effect) -> Retry:
        value = self.options.get("retry")
        if value is None:
            return READS if effect is Effect.READ else WRITES
        if not isinstance(value, Retry):
            self.fail(f"retry is {value!r}; write Retry(attempts=3), or Retry(attempts=1) for no retries.")
        return value

    def idempotent(self) -> timedelta | bool:
        value = self.options.get("idempotent", False)
        if isinstance(value, bool) or (isinstance(value, timedelta) and value > timedelta(0)):
            return value
        self.fail(
            f"idempotent is {value}; write how long the other side remembers a key, such as timedelta(hours=24), "
            "or True if for ever, or False if it does not."
        )

    def flag(self, option: str) -> bool:
        value = self.options.get(option, False)
        if not isinstance(value, bool):
            self.fail(f"{option} is {value!r}; write True or False.")
        return value

    def count(self, option: str) -> int | None:
        value = self.options.get(option)
        if value is None or (type(value) is int and value >= 1):
            return value
        self.fail(f"{option} is {value!r}; write how many at once, from 1 up.")

    def function(self, option: str, given: str) -> Any:
        """A function of the user's that is called with one thing: `op`, or the recorded `args` (then never async)."""
        value = self.options.get(option)
        if value is None:
            return None
        if not callable(value):
            self.fail(f"{option} is {value!r}; write a function that takes {given}.")
        if given == "args" and _is_async(value):
            self.fail(f"{option} is async, and is asked for at once; write a plain function that takes the arguments.")
        try:
            inspect.signature(value).bind(None)
        except TypeError:
            self.fail(f"{option} must be callable as {option}({given}); change the parameters of {_called(value)}.")
        except (ValueError, NameError):
            pass  # Its signature is not to be had, so it is taken at its word.
        return value

    def approval(self) -> bool | Callable[[dict[str, Any]], bool]:
        value = self.options.get("approval", False)
        if isinstance(value, bool):
            return value
        if value is None or not callable(value):
            self.fail(f'approval is {value!r}; write True, or a function such as lambda args: args["cents"] > 50_000.')
        return typing.cast("Callable[[dict[str, Any]], bool]", self.function("approval", "args"))

    def definite(self) -> tuple[type[BaseException], ...]:
        try:
            classes = exception_classes("definite", self.options.get("definite", ()))
        except ValueError as error:
            self.fail(str(error))
        for each in classes:
            if each is Exception or not issubclass(each, Exception):
                self.fail(
                    f"definite has {each.__name__}, which also covers timeouts, lost connections or being stopped; "
                    "these do not say that nothing happened. Name the errors with which the other side says no."
                )
        return classes

    def compensate(self) -> str | Tool | None:
        value = self.options.get("compensate")
        if value is None or isinstance(value, Tool) or (isinstance(value, str) and value):
            return value
        self.fail(f"compensate is {value!r}; write the tool that undoes it, or its name.")

    def breaker(self) -> Breaker | None:
        value = self.options.get("breaker")
        has_service = self.options.get("service") is not None
        if value is None:
            return Breaker() if has_service else None
        if value is False:
            return None
        if not isinstance(value, Breaker):
            self.fail(f"breaker is {value!r}; write Breaker(failures=5), or False for none.")
        if not has_service:
            self.fail('breaker is given, but no service that it could guard; add service="billing".')
        return value

    def identity(self, parameters: tuple[str, ...]) -> Callable[[dict[str, Any]], str] | None:
        value = self.options.get("identity")
        if not isinstance(value, str):
            return typing.cast("Callable[[dict[str, Any]], str] | None", self.function("identity", "args"))
        try:
            return _IdentityFormat(value, parameters).of
        except ValueError as error:
            self.fail(f"identity {value!r}: {error}")

    def check_together(self, effect: Effect) -> None:
        given = {option for option, value in self.options.items() if value is not None}
        if effect is Effect.READ and "verify" in given:
            self.fail('verify is for writes, as a read changes nothing. Write effect="write", or leave verify out.')
        if effect is Effect.READ and "compensate" in given:
            self.fail('there is nothing to undo after a read. Write effect="write", or leave compensate out.')
        for option in ("settle", "expects"):
            if option in given and "verify" not in given:
                self.fail(
                    f"{option} says what verify will find, and there is no verify. Add it, or leave {option} out."
                )


class _IdentityFormat(string.Formatter):
    """An identity such as `invoice for {order}`. Two different sets of values never give the same text.

    With several fields, what separates them is escaped in the values: otherwise `{a}-{b}` would say the same of
    ("1-2", "3") and ("1", "2-3"), and one call would be answered with the other's result.
    """

    def __init__(self, template: str, parameters: tuple[str, ...]) -> None:
        self.template = template
        self.parameters = parameters
        literals: list[str] = []
        fields = 0
        for literal, field, spec, _ in self.parse(template):
            literals.append(literal)
            if field is None:
                continue
            fields += 1
            if fields > 1 and not literal:
                raise ValueError("put something between its fields, such as a space.")
            self._check_field(field)
            for _, inner, _, _ in self.parse(spec or ""):
                if inner is not None:
                    self._check_field(inner)
        self.separators = frozenset("".join(literals)) if fields > 1 else frozenset()
        if "%" in self.separators:
            raise ValueError("leave out the %, which marks an escaped character.")

    def _check_field(self, field: str) -> None:
        name = re.split(r"[.\[]", field, maxsplit=1)[0]
        if name not in self.parameters:
            known = ", ".join(self.parameters) or "none"
            raise ValueError(f"{{{field}}} is not a parameter of the tool; there is {known}.")

    def of(self, args: dict[str, Any]) -> str:
        normal = typing.cast("dict[str, Any]", normalise(args))
        return self.vformat(self.template, (), normal)

    def format_field(self, value: Any, format_spec: str) -> str:
        if value is None or value == "":
            raise ValueError(f"it needs a value in {self.template!r} that is {value!r}")
        text: str = super().format_field(value, format_spec)
        if not self.separators:
            return text
        return "".join(_escaped(char) if char == "%" or char in self.separators else char for char in text)


def _escaped(char: str) -> str:
    return "".join(f"%{byte:02X}" for byte in char.encode())


def _promise(verify: Callable[..., object] | None) -> str | None:
    """What people are told to expect: the first line of the docstring of verify, or its name."""
    if verify is None:
        return None
    documented = inspect.getdoc(verify) if hasattr(verify, "__name__") else None
    return documented.splitlines()[0] if documented else _called(verify)


def _called(function: object) -> str:
    return getattr(function, "__name__", None) or type(function).__name__


def _place(tool: Tool) -> str:
    function = inspect.unwrap(tool.function)
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', tool.name)}"


_CALL: Final = "__call__"


def _is_async(function: object) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, _CALL, None))


# --- reading a signature ---------------------------------------------------------------------------------------------

_OP_AS_TEXT: Final = re.compile(r"(?:\w+\.)*(?:Optional\[\s*)?(?:\w+\.)*Op\s*(?:\]|\|\s*None)?")


@dataclass(slots=True)
class _Signature:
    """Parameters and answer of a function, with annotations that may still have to be resolved."""

    parameters: dict[str, inspect.Parameter]
    answer: Any
    op: str | None
    globals: dict[str, Any]
    locals: Mapping[str, Any]

    def answers_awaitable(self) -> bool:
        return typing.get_origin(self.answer) in (Awaitable, Coroutine)

    def resolve(self, tool: str) -> dict[str, inspect.Parameter]:
        """Once more, now that the module is complete; what cannot be resolved now never can."""
        return {
            name: parameter.replace(annotation=self._resolved(tool, f"parameter {name!r}", parameter.annotation))
            for name, parameter in self.parameters.items()
        }

    def resolve_answer(self, tool: str) -> object:
        answer = self._resolved(tool, "its answer", self.answer)
        return typing.get_args(answer)[-1] if typing.get_origin(answer) in (Awaitable, Coroutine) else answer

    def _resolved(self, tool: str, what: str, annotation: object) -> object:
        if not isinstance(annotation, str | typing.ForwardRef):
            return annotation
        try:
            return _evaluated({"it": annotation}, self.globals, self.locals)["it"]
        except Exception as error:
            text = annotation if isinstance(annotation, str) else annotation.__forward_arg__
            raise ToolDefinitionError(
                tool,
                f"{what} is annotated {text}, which is not defined where the function is ({named(error)}). "
                "Import it there for real, not only for the type checker.",
            ) from error


def _read_signature(tool: str, function: Callable[..., Any]) -> _Signature:
    def fail(problem: str) -> NoReturn:
        raise ToolDefinitionError(tool, problem)

    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        fail("it yields, and a tool answers once. Return a list.")
    try:
        signature = _signature_of(function)
    except (TypeError, ValueError, NameError) as error:
        fail(f"its signature cannot be read ({error}). Wrap it in a function of your own.")
    target = function
    while isinstance(target, functools.partial):
        target = target.func
    target = inspect.unwrap(target)
    if not hasattr(target, "__globals__"):
        target = getattr(type(target), "__call__", target)  # noqa: B004
    written = {name: p.annotation for name, p in signature.parameters.items() if p.annotation is not p.empty}
    if signature.return_annotation is not signature.empty:
        written["return"] = signature.return_annotation
    names = getattr(target, "__globals__", {})
    around = _names_around(target) if any(isinstance(a, str) for a in written.values()) else {}
    hints = _evaluated_where_possible(written, names, around)

    parameters: dict[str, inspect.Parameter] = {}
    ops: list[str] = []
    for position, (name, parameter) in enumerate(signature.parameters.items()):
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            star = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
            fail(f"it takes {star}{name}, so its arguments have no fixed names. Name each of them.")
        if parameter.kind is parameter.POSITIONAL_ONLY:
            fail(f"parameter {name!r} is positional-only, and tools are called by name. Remove the / behind it.")
        if position == 0 and name == "self":
            fail("it is a method. Declare a function, or a method that is bound: tool(...)(billing.create).")
        if type(parameter.default).__module__.startswith("pydantic.fields"):
            fail(f"the default of {name!r} is a pydantic Field. Write {name}: Annotated[..., Field(...)] = default.")
        annotation = hints.get(name, parameter.empty)
        is_op = _is_op(annotation)
        if name == "op" and not is_op and annotation is not parameter.empty:
            fail(
                f"op is annotated {type_name(annotation)}; that name is for the operation: write op: Op, or rename it."
            )
        if is_op or name == "op":
            ops.append(name)
        else:
            parameters[name] = parameter.replace(annotation=annotation)
    if len(ops) > 1:
        fail(f"{' and '.join(ops)} are both for the operation. Keep one.")
    unresolved = any(isinstance(hint, str | typing.ForwardRef) for hint in hints.values())
    return _Signature(
        parameters=parameters,
        answer=hints.get("return", inspect.Parameter.empty),
        op=ops[0] if ops else None,
        globals=names,
        locals=around if unresolved else {},
    )


def _signature_of(function: Callable[..., Any]) -> inspect.Signature:
    if sys.version_info >= (3, 14):
        from annotationlib import Format

        return inspect.signature(function, annotation_format=Format.FORWARDREF)
    return inspect.signature(function)


def _names_around(function: Any) -> Mapping[str, Any]:
    """The local names where the function is defined: inside another, annotations may be written in terms of them."""
    scope, _, _ = getattr(function, "__qualname__", "").rpartition(".<locals>.")
    frame: types.FrameType | None = sys._getframe(1) if scope else None
    while frame is not None:
        if frame.f_code.co_qualname == scope and frame.f_globals is function.__globals__:
            return dict(frame.f_locals)
        frame = frame.f_back
    return {}


def _evaluated(written: dict[str, Any], names: dict[str, Any], around: Mapping[str, Any]) -> dict[str, Any]:
    holder = types.SimpleNamespace(__annotations__=written)
    return typing.get_type_hints(holder, names, dict(around), include_extras=True)


def _evaluated_where_possible(
    written: dict[str, Any], names: dict[str, Any], around: Mapping[str, Any]
) -> dict[str, Any]:
    try:
        return _evaluated(written, names, around)
    except Exception:
        hints: dict[str, Any] = {}
        for name, annotation in written.items():
            try:
                hints |= _evaluated({name: annotation}, names, around)
            except Exception:
                hints[name] = annotation
        return hints


def _is_op(annotation: object) -> bool:
    if isinstance(annotation, typing.ForwardRef):
        annotation = annotation.__forward_arg__
    if isinstance(annotation, str):
        return _OP_AS_TEXT.fullmatch(annotation.strip()) is not None
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return Op in typing.get_args(annotation)
    return annotation is Op


__all__ = [
    "BadArguments",
    "Breaker",
    "Op",
    "Options",
    "Registry",
    "Tool",
    "ToolDefinitionError",
    "ToolOf",
    "Undone",
    "tool",
]
