"""Arguments: how they are checked, recorded, read back and recognised.

Arguments have two forms. *Recorded* are plain values, which are hashed, shown to people and stored. *Bound* are what
the function is called with, made from the recorded ones and from nothing else. So before a value is recorded it is
proven that it comes back as what was given.

The hash is made from a third form, `normalise`. Arguments that mean the same must give the same hash, or a repeated
call looks like a new one. Arguments that differ must not, or one call is taken for another. Every tuple becomes a list
there, so a tuple in that form is never the user's: it marks what the store's values cannot say.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import math
import reprlib
import types
import typing
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from json import dumps
from types import NoneType
from typing import Any, Final
from uuid import UUID

from pydantic_core import ValidationError, to_jsonable_python

from walkback.errors import DefinitionError, WalkbackError
from walkback_store.errors import ValueRefused
from walkback_store.values import MAX_DEPTH, decode, encode, fingerprint, plain

if typing.TYPE_CHECKING:
    from pydantic import TypeAdapter

MAX_LINE: Final = 200
MAX_PROBLEMS: Final = 20
ANSWER: Final = "$"
"""The name under which a function's answer is a parameter like the others."""


class ToolDefinitionError(DefinitionError):
    """A tool is declared in a way that cannot work. The message says which, what is wrong and what to write instead."""

    def __init__(self, tool: str, problem: str) -> None:
        super().__init__(f"tool {tool!r}: {problem}")
        self.tool = tool


class BadArguments(WalkbackError, ValueError):
    """The arguments do not fit the tool; `problems` has one line for each. Nothing was called."""

    def __init__(self, tool: str, problems: Iterable[str]) -> None:
        self.tool = tool
        self.problems = tuple(problems)
        super().__init__(f"{tool}: {'; '.join(self.problems)}. Nothing was called.")


# --- one call or two --------------------------------------------------------------------------------------------------

_AS_THEY_ARE: Final[frozenset[type]] = frozenset({str, int, bool, NoneType, bytes, date, UUID})
_SEQUENCES: Final[frozenset[type]] = frozenset({list, tuple})
_SETS: Final[frozenset[type]] = frozenset({set, frozenset})
_CONTAINERS: Final[frozenset[type]] = frozenset({dict}) | _SEQUENCES | _SETS
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def args_hash(args: Mapping[str, object]) -> str:
    """128 bits as hex; the same for the same call. Raises `ValueRefused` for what cannot be stored."""
    for value in args.values():
        if type(value) not in _AS_THEY_ARE:
            return fingerprint(normalise(dict(args)))
    return fingerprint(args if type(args) is dict else dict(args))


def normalise(value: object) -> object:
    """The form of a value in which equal arguments are equal.

    What cannot be stored is left as it is: `encode` refuses it, with the path of the offending value.
    """
    return _normalise(value, 1)


def _normalise(value: Any, depth: int) -> object:
    """Loops, not comprehensions: each level then takes one call of Python's stack."""
    kind = type(value)
    if kind in _AS_THEY_ARE:
        return value
    if kind is float:
        return int(value) if value.is_integer() else value
    if kind is dict and depth <= MAX_DEPTH:
        same_keys: dict[str, object] = {}
        for key, child in value.items():
            same_keys[key] = _normalise(child, depth + 1)
        return same_keys
    if kind in _SEQUENCES and depth <= MAX_DEPTH:
        items: list[object] = []
        for child in value:
            items.append(_normalise(child, depth + 1))
        return items
    if kind in _SETS and depth <= MAX_DEPTH:
        return _set(value, depth)
    if kind is datetime:
        return _datetime(value)
    if kind is Decimal:
        return _decimal(value)
    return value if kind in _CONTAINERS else _stranger(value, depth)


def _stranger(value: object, depth: int) -> object:
    """An enum, a dataclass, a model or a subclass, as the store gives it back; that is never a stranger again."""
    try:
        known = plain(value)
    except ValueRefused:
        return value
    return _normalise(known, depth)


def _set(value: set[object] | frozenset[object], depth: int) -> object:
    """Marked, because a normalised member may be a list, which no set can hold."""
    members = [_normalise(member, depth + 1) for member in value]
    try:
        return ("set", *sorted(members, key=encode))
    except ValueRefused:
        return value


def _datetime(value: datetime) -> object:
    """One moment in any zone is the same. One without a zone is no moment, and stays apart."""
    if value.utcoffset() is None:
        return value
    try:
        return value.astimezone(UTC)
    except OverflowError:
        # In UTC it is before the year 1 or after 9999.
        return ("datetime", (value - _EPOCH) // _MICROSECOND)


def _decimal(value: Decimal) -> Decimal:
    """Without trailing zeros. Not `Decimal.normalize`, which rounds to 28 digits and so makes two numbers one."""
    if not value.is_finite():
        return value
    sign, digits, exponent = value.as_tuple()
    if not value:
        return Decimal(0)
    end = len(digits)
    while digits[end - 1] == 0:
        end -= 1
    if end == len(digits):
        return value
    return Decimal((sign, digits[:end], int(exponent) + len(digits) - end))


# --- one parameter, or the answer ------------------------------------------------------------------------------------

_SCALARS: Final[frozenset[type]] = frozenset({str, int, float, bool, NoneType})
_ALWAYS_STORABLE: Final[frozenset[type]] = frozenset({int, bool, NoneType})
"""Not every text is, nor every float."""


class Misfit(Exception):
    """A value does not fit; one line for each place."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__(problems)
        self.problems = problems


class Parameter:
    """One parameter of a function, or under the name `$` what it answers."""

    def __init__(self, tool: str, name: str, annotation: object, default: object = inspect.Parameter.empty) -> None:
        self.tool = tool
        self.name = name
        self.required = default is inspect.Parameter.empty
        self.default = default
        if annotation is inspect.Parameter.empty or annotation is object:
            annotation = Any
        if default is None and annotation is not Any:
            annotation = typing.Optional[annotation]  # noqa: UP045
        self.annotation: Any = annotation
        self.as_they_are = _exact_types(annotation)
        """Types of values that validation would return as they are."""
        if name == ANSWER and annotation in (dict, list):
            self.as_they_are = frozenset({annotation})
        self._adapter: TypeAdapter[Any] | None = None
        self._default_data: bytes | None = None

    def check(self) -> None:
        """Find out now what would otherwise fail on first use. What lets some values pass as they are is sound."""
        if not self.as_they_are:
            self.adapter()
        if not self.required:
            self.recorded_default()

    def adapter(self) -> TypeAdapter[Any]:
        if self._adapter is None:
            # Here, because a tool of plain scalars never needs it.
            from pydantic import TypeAdapter

            try:
                self._adapter = TypeAdapter(self.annotation)
                if not self._adapter.pydantic_complete:
                    self._adapter.rebuild(raise_errors=True)
            except Exception as error:
                what = "its answer" if self.name == ANSWER else f"parameter {self.name!r}"
                raise ToolDefinitionError(
                    self.tool,
                    f"{what} is annotated {type_name(self.annotation)}, which cannot be recorded and read back "
                    f"({first_line(error)}). Use JSON types, a dataclass, a pydantic model, or Any.",
                ) from error
        return self._adapter

    def passes(self, value: object) -> bool:
        """Whether it is recorded, and the function called with it, as it is."""
        kind = type(value)
        return kind in self.as_they_are and (kind in _ALWAYS_STORABLE or _is_storable_scalar(value))

    def read(self, value: object) -> Any:
        """The value as the annotated type. A field's alias is read (planners see it) and its name (records have it)."""
        if self.annotation is Any:
            return value
        adapter = self.adapter()
        try:
            return adapter.validate_python(value, by_alias=True, by_name=True)
        except ValidationError as error:
            refusal = error
        except Exception as error:
            raise Misfit([f"{self.name}: its validator failed ({named(error)})"]) from error
        if self.name == ANSWER and all(e["type"] in _EXTRA for e in refusal.errors(include_url=False)):
            try:
                return adapter.validate_python(value, by_alias=True, by_name=True, extra="ignore")
            except ValidationError as error:
                refusal = error
        raise Misfit(_problems(self.name, value, refusal))

    def record(self, value: object) -> object:
        """The value as it is recorded: plain, and proven to come back as what the function is to be called with."""
        if self.passes(value):
            return value
        if self.annotation is Any:
            try:
                return plain(value)
            except ValueRefused as refused:
                raise Misfit([f"{self.name}{refused.path[1:]}: {refused.reason}"]) from refused
        typed = self.read(value)
        data = self._recorded(typed)
        try:
            again = self.read(decode(data))
        except Misfit as misfit:
            raise Misfit([f"{problem} (read back from the record)" for problem in misfit.problems]) from misfit
        if not _is_same(typed, again):
            raise Misfit(
                [
                    f"{self.name}: it does not come back from the record as it was given; "
                    f"{type_name(self.annotation)} needs a serializer whose output its validator reads back"
                ]
            )
        return decode(data)

    def _recorded(self, typed: object) -> bytes:
        try:
            dumped = self.adapter().dump_python(typed, round_trip=True, by_alias=False, warnings=False)
        except Exception as error:
            raise Misfit([f"{self.name}: it cannot be dumped ({named(error)})"]) from error
        try:
            return encode(dumped)
        except ValueRefused:
            pass
        try:
            return encode(_with_leaves_as_json(dumped))
        except ValueRefused as refused:
            raise Misfit([f"{self.name}{refused.path[1:]}: {refused.reason}"]) from refused

    def revive(self, value: object) -> Any:
        """What the function is called with; never the recorded object itself, which the function could change."""
        return self.read(plain(value))

    def recorded_default(self) -> object:
        if self._default_data is None:
            try:
                self._default_data = encode(self.record(self.default))
            except Misfit as misfit:
                raise ToolDefinitionError(
                    self.tool,
                    f"the default of parameter {self.name!r} does not fit its annotation: "
                    f"{'; '.join(misfit.problems)}. Correct one of them.",
                ) from misfit
        return decode(self._default_data)


def _exact_types(annotation: object) -> frozenset[type]:
    """The types of scalars that the annotation lets pass unchanged; empty if that is not plain to see."""
    while isinstance(annotation, typing.NewType):
        annotation = annotation.__supertype__
    if annotation is Any:
        return _SCALARS
    if annotation is None:
        return frozenset({NoneType})
    if isinstance(annotation, type) and annotation in _SCALARS:
        return frozenset({annotation})
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        members = [_exact_types(member) for member in typing.get_args(annotation)]
        if all(members):
            return frozenset().union(*members)
    return frozenset()


def _is_storable_scalar(value: Any) -> bool:
    """Whether the store takes this float or text."""
    return math.isfinite(value) if type(value) is float else value.isascii() or is_text(value)


def is_text(text: str) -> bool:
    """Whether UTF-8 can hold it: one half of a surrogate pair it cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _with_leaves_as_json(value: object) -> object:
    """Durations, paths, addresses and the like as the text that pydantic reads back; the rest keeps its type."""
    if isinstance(value, dict):
        return {_json_key(key): _with_leaves_as_json(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        items = [_with_leaves_as_json(child) for child in value]
        return tuple(items) if type(value) is tuple else items
    try:
        if isinstance(value, set | frozenset):
            return {_with_leaves_as_json(child) for child in value}
        return plain(value)
    except (ValueRefused, TypeError):
        pass
    try:
        return to_jsonable_python(value)
    except Exception:
        return value


def _json_key(key: object) -> object:
    if isinstance(key, str):
        return key
    try:
        (text,) = to_jsonable_python({key: None})
    except Exception:
        return key
    return text


def _is_same(given: Any, again: Any) -> bool:
    """Whether two values are the same argument. What is under Any comes back plain, and counts as the same."""
    try:
        if bool(given == again):
            return True
        if type(given) is type(again):
            if isinstance(given, list | tuple):
                return len(given) == len(again) and all(map(_is_same, given, again))
            mine, other = _fields(given), _fields(again)
            if mine is not None and other is not None:
                return mine.keys() == other.keys() and all(_is_same(mine[name], other[name]) for name in mine)
        return encode(normalise(given)) == encode(normalise(again))
    except Exception:
        return False


def _fields(value: Any) -> dict[Any, Any] | None:
    if isinstance(value, dict):
        return value
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    if hasattr(type(value), "model_fields"):
        return {**value.__dict__, **(value.__pydantic_extra__ or {})}
    return None


# --- the schema ------------------------------------------------------------------------------------------------------


def json_schema(tool: str, parameters: tuple[Parameter, ...]) -> dict[str, Any]:
    """The JSON Schema of an object with these parameters, as a planner is shown it."""
    from pydantic import TypeAdapter

    try:
        schemas, shared = TypeAdapter.json_schemas([(p.name, "validation", p.adapter()) for p in parameters])
    except ToolDefinitionError:
        raise
    except Exception as error:
        raise ToolDefinitionError(
            tool, f"no JSON Schema can be made of its parameters ({first_line(error)}). Use simpler types."
        ) from error
    properties: dict[str, Any] = {}
    for parameter in parameters:
        properties[parameter.name] = schemas[parameter.name, "validation"]
        if not parameter.required:
            # Bytes that are no text have no form in JSON; the parameter is optional all the same.
            with contextlib.suppress(ValueError):
                default = to_jsonable_python(parameter.recorded_default())
                properties[parameter.name] = {**properties[parameter.name], "default": default}
    schema: dict[str, Any] = {
        "type": "object",
        "properties": properties,
        "required": [parameter.name for parameter in parameters if parameter.required],
        "additionalProperties": False,
    }
    return {**schema, **shared}


# --- saying what is wrong --------------------------------------------------------------------------------------------

_EXTRA: Final = frozenset({"extra_forbidden", "unexpected_keyword_argument"})


def _problems(root: str, value: object, error: ValidationError) -> list[str]:
    problems: dict[str, None] = {}
    for each in error.errors(include_url=False, include_context=False, include_input=False):
        message = each["msg"][:1].lower() + each["msg"][1:]
        problems[cut(f"{_where(root, each['loc'], value, each['type'])}: {message}")] = None
    if len(problems) <= MAX_PROBLEMS:
        return list(problems)
    return [*list(problems)[:MAX_PROBLEMS], f"{root}: and {len(problems) - MAX_PROBLEMS} more"]


def _where(root: str, loc: tuple[int | str, ...], value: Any, kind: str) -> str:
    """The path in the value. Pydantic also names the branch of a union that it tried, which is no place in it."""
    path = root
    for position, step in enumerate(loc):
        if isinstance(value, dict) and step in value:
            path, value = path + _step(step), value[step]
        elif isinstance(step, int):
            path += f"[{step}]"
            value = value[step] if isinstance(value, list | tuple) and 0 <= step < len(value) else None
        elif kind.startswith("missing") and position == len(loc) - 1:
            path += _step(step)
    return path


def _step(key: int | str) -> str:
    return f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{dumps(key)}]"


def type_name(annotation: object) -> str:
    if isinstance(annotation, type) and not typing.get_args(annotation):
        return annotation.__qualname__
    return str(annotation).removeprefix("typing.")


def named(error: BaseException) -> str:
    return f"{type(error).__name__}: {first_line(error)}"


def first_line(error: BaseException) -> str:
    try:
        return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
    except Exception:
        return type(error).__name__


def cut(text: str) -> str:
    return text if len(text) <= MAX_LINE else text[: MAX_LINE - 1] + "…"


class _Repr(reprlib.Repr):
    """Short, and quick for values of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = self.maxlong = 60

    def repr_int(self, x: int, level: int) -> str:
        # Python refuses to write more than 4300 digits.
        return super().repr_int(x, level) if x.bit_length() < 4_000 else f"<int of {x.bit_length()} bits>"


_REPR: Final = _Repr()


def short(value: object) -> str:
    try:
        text = _REPR.repr(value)
    except Exception:
        return f"<{type(value).__name__}>"
    return text if is_text(text) else ascii(text)
