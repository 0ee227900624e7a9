"""Parameters that need no validation library: Typer loads one for every value, which takes a tenth of a second.

A text that is wanted as a text, a default that stands, and what was not given are used as they are. Everything else (a
number, a path, a word out of a list) is left to Typer. Should Typer one day ask in another way, this is not asked at
all, and everything is left to it.
"""

from __future__ import annotations

from typing import Any, get_args, get_origin

from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption


class _AsItIs:
    """In place of Typer's own conversion, which is made only when something has to be converted."""

    def __init__(self, parameter: Any, make: Any) -> None:
        self._parameter = parameter
        self._make = make

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        descriptor = self._parameter.type_descriptor
        many = param.multiple or param.nargs == -1
        if value is None:
            return () if many else None
        wanted = descriptor.annotation
        if not many and descriptor.parameter_info.parser is None and type(value) is wanted and wanted in (str, int):
            return value
        texts = (get_origin(wanted), get_args(wanted)) == (list, (str,))
        if many and not isinstance(value, str) and (not value or (texts and all(type(part) is str for part in value))):
            return list(value)
        return self._make().coerce(value, param=param, ctx=ctx)


class LightOption(TyperOption):
    def get_runtime_param(self) -> Any:
        return _AsItIs(self, super().get_runtime_param)


class LightArgument(TyperArgument):
    def get_runtime_param(self) -> Any:
        return _AsItIs(self, super().get_runtime_param)


def _light(parameters: list[Any]) -> list[Any]:
    for parameter in parameters:
        if type(parameter) is TyperOption:
            parameter.__class__ = LightOption
        elif type(parameter) is TyperArgument:
            parameter.__class__ = LightArgument
    return parameters


class LightCommand(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        return _light(super().get_params(ctx))


class LightGroup(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _light(super().get_params(ctx))
