"""A tool is a function with a contract: what is wrong with it is said early, and what is recorded is what is called."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import functools
import inspect
import ipaddress
import json
import re
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, NewType, Optional
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel, Field, SecretStr, computed_field, field_serializer, model_validator
from typing_extensions import TypedDict

from walkback.errors import UnknownTool, WalkbackError
from walkback.evidence import Evidence, absent, cannot_tell, happened, partial
from walkback.retries import READS, WRITES, Retry
from walkback.tools import BadArguments, Breaker, Op, Options, Registry, Tool, ToolDefinitionError, Undone, tool
from walkback_store import words
from walkback_store.values import plain

if TYPE_CHECKING:
    from decimal import Context as OnlyForTheTypeChecker

    import walkback.tools as wb

NO_INTEGER = "input should be a valid integer, unable to parse string as an integer"
EXTRA = "extra inputs are not permitted"
OP = Op(
    run_id="order-123",
    step="3",
    tool="create_invoice",
    key="order-123:3:create_invoice:abc",
    attempt=1,
    deadline=datetime(2025, 7, 1, 12, tzinfo=UTC),
    args={},
    timeout=30.0,
)


def invoice_exists(op: Op) -> Evidence:
    """An invoice with this key.

    Looked up in billing.
    """
    return happened({"key": op.key})


@tool(effect="write", verify=invoice_exists, settle=timedelta(seconds=5), compensate="void_invoice")
def create_invoice(order: str, cents: int = 100, *, op: Op) -> dict[str, Any]:
    """Make an invoice.

    It is sent by mail.
    """
    return {"order": order, "cents": cents, "key": op.key}


def called(it: Tool, /, **args: object) -> dict[str, Any]:
    """What the function is called with, by way of the record."""
    return it.bind(it.validate(args), OP)


def broken(function: Callable[..., Any], **options: Any) -> str:
    """What is said about a declaration that cannot work."""
    with pytest.raises(ToolDefinitionError) as refused:
        tool(**options)(function)
    return str(refused.value)


def anything(order: str = "", cents: int = 0) -> None: ...


# --- declaring -------------------------------------------------------------------------------------------------------


def test_a_tool_is_still_the_function_it_was() -> None:
    assert create_invoice("a", 5, op=OP) == {"order": "a", "cents": 5, "key": OP.key}
    assert create_invoice.__name__ == "create_invoice"
    assert (create_invoice.__doc__ or "").startswith("Make an invoice.")
    assert create_invoice.__module__ == __name__
    assert str(inspect.signature(create_invoice)).startswith("(order: 'str'")
    assert "create_invoice" in repr(create_invoice)


def test_without_options_a_tool_is_a_trusted_write_of_thirty_seconds() -> None:
    @tool
    def send(to: str) -> None: ...

    assert isinstance(send, Tool)
    assert (send.name, send.version, send.effect, send.trust) == ("send", "1", words.Effect.WRITE, "trusted")
    assert (send.timeout, send.retry, send.idempotent, send.definite) == (30.0, WRITES, False, ())
    assert (send.verify, send.settle, send.expects, send.identity) == (None, None, None, None)
    assert (send.compensate, send.compensate_name, send.approval, send.approval_expires) == (None, None, False, None)
    assert (send.service, send.breaker, send.concurrency, send.repeatable) == (None, None, None, False)
    assert (send.is_async, send.takes_op, send.parameters) == (False, False, ("to",))


def test_a_read_is_retried_as_reads_are() -> None:
    assert tool(effect="read")(anything).retry is READS
    assert tool(effect="read", retry=WRITES)(anything).retry is WRITES
    assert tool(effect=words.Effect.READ)(anything).effect is words.Effect.READ


def test_options_are_kept_as_they_were_given() -> None:
    made = tool(
        name="billing.create", version="2", trust="untrusted", service="billing", timeout=timedelta(minutes=1),
        idempotent=timedelta(hours=24), definite=(ValueError,), approval=True, approval_expires=timedelta(hours=1),
        concurrency=3, repeatable=True, retry=Retry(attempts=1),
    )(anything)  # fmt: skip
    assert (made.name, made.version, made.trust, made.service) == ("billing.create", "2", "untrusted", "billing")
    assert (made.timeout, made.idempotent, made.definite) == (60.0, timedelta(hours=24), (ValueError,))
    assert (made.approval, made.approval_expires, made.concurrency, made.repeatable) == (
        True,
        timedelta(hours=1),
        3,
        True,
    )


def test_a_named_service_gets_a_breaker_unless_told_otherwise() -> None:
    assert tool(service="billing")(anything).breaker == Breaker(failures=5, cooldown=timedelta(seconds=30))
    assert tool(service="billing", breaker=Breaker(failures=1))(anything).breaker == Breaker(failures=1)
    assert tool(service="billing", breaker=False)(anything).breaker is None
    assert "no service that it could guard" in broken(anything, breaker=Breaker())


@pytest.mark.parametrize("wrong", [{"failures": 0}, {"failures": True}, {"cooldown": timedelta(0)}, {"cooldown": 5}])
def test_a_breaker_that_could_never_work_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Breaker(**wrong)


def test_people_are_told_what_verify_will_look_for() -> None:
    def undocumented(op: Op) -> Evidence:
        return absent()

    assert create_invoice.expects == "An invoice with this key."
    assert tool(verify=undocumented)(anything).expects == "undocumented"
    assert tool(verify=functools.partial(invoice_exists))(anything).expects == "partial"
    assert tool(verify=invoice_exists, expects="a row in billing")(anything).expects == "a row in billing"


def test_async_tools_are_known_as_such() -> None:
    @tool
    async def fetch(url: str) -> dict[str, Any]:
        return {"url": url}

    def later(url: str) -> Awaitable[int]:
        raise NotImplementedError

    class Fetcher:
        async def __call__(self, url: str) -> int:
            return 1

    assert fetch.is_async
    assert asyncio.run(fetch(url="a")) == {"url": "a"}
    assert fetch.check_output({"url": "b"}) == ({"url": "b"}, [])
    assert tool(later).is_async
    assert tool(later).check_output("x")[1] != []
    assert tool(name="fetch")(Fetcher()).is_async
    assert not tool(anything).is_async


def test_bound_methods_partials_and_callables_can_be_tools() -> None:
    class Billing:
        def create(self, order: str, cents: int) -> str:
            return f"{order}:{cents}"

        def __call__(self, order: str) -> str:
            return order

    billing = Billing()
    assert called(tool(billing.create), order="a", cents="5") == {"order": "a", "cents": 5}
    assert tool(billing.create)(order="a", cents=5) == "a:5"
    assert called(tool(name="ship")(billing), order="a") == {"order": "a"}
    dime = tool(name="dime")(functools.partial(billing.create, cents=10))
    assert called(dime, order="a") == {"order": "a", "cents": 10}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"effect": "delete"}, "effect is 'delete'; write 'read' or 'write'"),
        ({"efect": "read"}, "no option 'efect'; did you mean 'effect'?"),
        ({"zzz": 1}, "there are effect, name"),
        ({"name": ""}, "give name="),
        ({"name": "a\nb"}, "give name="),
        ({"name": "x" * 201}, "1 to 200 printable characters"),
        ({"name": 7}, "give name="),
        ({"version": 2}, 'version is 2; write a text, such as version="1"'),
        ({"service": " "}, "service is ' '"),
        ({"trust": "maybe"}, "trust is 'maybe'; write 'trusted'"),
        ({"timeout": 0}, "timeout is 0; write more than 0"),
        ({"timeout": timedelta(seconds=-1)}, "write more than 0"),
        ({"timeout": float("inf")}, "timeout is inf"),
        ({"timeout": float("nan")}, "timeout is nan"),
        ({"timeout": "30"}, "write seconds, or a timedelta"),
        ({"timeout": True}, "write seconds, or a timedelta"),
        ({"retry": 3}, "retry is 3; write Retry(attempts=3"),
        ({"idempotent": timedelta(0)}, "how long the other side remembers a key"),
        ({"idempotent": timedelta(hours=-1)}, "how long the other side remembers a key"),
        ({"idempotent": 24}, "idempotent is 24"),
        ({"effect": "read", "verify": invoice_exists}, "verify is for writes"),
        ({"effect": "read", "compensate": "undo"}, "nothing to undo after a read"),
        ({"settle": timedelta(seconds=5)}, "there is no verify"),
        ({"expects": "a row"}, "there is no verify"),
        ({"verify": invoice_exists, "settle": 5}, "settle=timedelta(seconds=5)"),
        ({"verify": invoice_exists, "settle": timedelta(seconds=-1)}, "0 or more"),
        ({"verify": "invoice_exists"}, "write a function that takes op"),
        ({"verify": absent}, "callable as verify(op); change the parameters of absent"),
        ({"preconditions": lambda: None}, "callable as preconditions(op)"),
        ({"definite": (ValueError, "oops")}, "definite has 'oops'; write exception classes"),
        ({"definite": 404}, "definite has 404"),
        ({"definite": (Exception,)}, "Name the errors with which the other side says no"),
        ({"definite": (KeyboardInterrupt,)}, "do not say that nothing happened"),
        ({"compensate": 5}, "the tool that undoes it, or its name"),
        ({"approval": "yes"}, "approval is 'yes'; write True, or a function"),
        ({"approval_expires": timedelta(0)}, "more than 0"),
        ({"describe": "an invoice"}, "describe is 'an invoice'; write a function that takes args"),
        ({"stake": 5}, "stake is 5"),
        ({"concurrency": 0}, "concurrency is 0; write how many at once"),
        ({"concurrency": True}, "concurrency is True"),
        ({"repeatable": "no"}, "repeatable is 'no'; write True or False"),
        ({"breaker": 5}, "breaker is 5"),
        ({"identity": "invoice for {ordre}"}, "{ordre} is not a parameter of the tool; there is order, cents"),
        ({"identity": "invoice for {}"}, "is not a parameter"),
        ({"identity": "invoice for {op}"}, "is not a parameter"),
        ({"identity": "invoice for {order"}, "identity 'invoice for {order'"),
        ({"identity": "{order:{width}}"}, "{width} is not a parameter"),
        ({"identity": "{order}{cents}"}, "put something between"),
        ({"identity": "{order}%{cents}"}, "leave out the %"),
        ({"identity": 5}, "identity is 5"),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else str(value)[:60],
)
def test_a_wrong_option_is_refused_with_what_to_write(options: dict[str, Any], said: str) -> None:
    message = broken(anything, **options)
    assert said in message
    assert message.startswith("tool '")


def test_settle_may_be_nothing_at_all() -> None:
    assert tool(verify=invoice_exists, settle=timedelta(0))(anything).settle == timedelta(0)


@pytest.mark.parametrize("option", ["approval", "describe", "stake", "identity"])
def test_what_is_asked_for_at_once_cannot_be_async(option: str) -> None:
    async def later(args: dict[str, Any]) -> bool:
        return True

    assert f"{option} is async" in broken(anything, **{option: later})


def test_a_definition_error_is_a_type_error_and_one_of_ours() -> None:
    with pytest.raises(TypeError) as refused:
        tool(timeout=-1)(anything)
    assert isinstance(refused.value, WalkbackError)


def test_arguments_need_names_so_some_signatures_cannot_be_tools() -> None:
    def positional(order: str, /) -> None: ...
    def many(*orders: str) -> None: ...
    def keywords(**orders: str) -> None: ...
    def method(self: Any, order: str) -> None: ...
    def numbers() -> Iterator[int]:
        yield 1

    def with_field(order: str = Field(min_length=1)) -> None: ...

    assert "parameter 'order' is positional-only" in broken(positional)
    assert "it takes *orders" in broken(many)
    assert "it takes **orders" in broken(keywords)
    assert "it is a method" in broken(method)
    assert "a tool answers once" in broken(numbers)
    assert "Annotated[..., Field(...)]" in broken(with_field)
    assert "give name=" in broken(lambda order: order)
    assert "its signature cannot be read" in broken(max)


def test_a_tool_is_declared_once() -> None:
    assert "Decorate a function, once" in broken(tool(anything))
    not_a_function: Any = 5
    assert "no function" in broken(not_a_function)


# --- the operation ---------------------------------------------------------------------------------------------------


def test_the_operation_is_recognised_by_name_or_annotation() -> None:
    def by_name(order: str, op) -> None: ...  # type: ignore[no-untyped-def]
    def by_type(order: str, it: Op) -> None: ...
    def in_quotes(order: str, it: "Op") -> None: ...  # noqa: UP037
    def optional(order: str, op: Op | None = None) -> None: ...
    def old_optional(order: str, op: Optional[Op] = None) -> None: ...  # noqa: UP045
    def known_to_the_type_checker_only(order: str, op: wb.Op, mode: OnlyForTheTypeChecker) -> None: ...
    def other(order: str) -> None: ...

    for function in (by_name, by_type, in_quotes, optional, old_optional):
        made = tool(function)
        assert made.takes_op, function
        assert made.parameters == ("order",)
        assert OP in called(made, order="a").values()
    assert tool(known_to_the_type_checker_only).op_name == "op"
    assert not tool(other).takes_op
    assert called(tool(other), order="a") == {"order": "a"}


def test_what_is_called_op_must_be_the_operation() -> None:
    def wrong(op: str) -> None: ...
    def two(op: Op, it: Op) -> None: ...

    assert "op is annotated str" in broken(wrong)
    assert "op and it are both for the operation" in broken(two)


def test_an_operation_cannot_be_changed_by_a_tool() -> None:
    changed: Any = OP
    with pytest.raises(dataclasses.FrozenInstanceError):
        changed.key = "other"
    assert not hasattr(OP, "__dict__")
    undo = dataclasses.replace(OP, undoes=Undone(step="2", tool="create_invoice", args={}, result={"id": 7}))
    assert undo.undoes is not None
    assert undo.undoes.result == {"id": 7}


# --- arguments -------------------------------------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = "red"


class Item(BaseModel):
    sku: str
    price: Decimal = Field(alias="unitPrice")
    tags: list[str] = []


@dataclass
class Address:
    street: str
    since: date


class Size(NamedTuple):
    width: int
    height: int


class Window(TypedDict):
    title: str
    size: Size


OrderId = NewType("OrderId", str)


def test_an_omitted_default_and_the_same_value_given_are_one_call() -> None:
    def pay(order: str, amount: Decimal = 5, when: date = date(2025, 7, 1), tags: list[str] = ["a"]) -> None: ...  # type: ignore[assignment]  # noqa: B006

    made = tool(pay)
    omitted = made.validate({"order": "a"})
    given = made.validate({"order": "a", "amount": "5.0", "when": "2025-07-01", "tags": ["a"]})
    assert omitted == given
    assert made.args_hash(omitted) == made.args_hash(given)
    assert made.args_hash(omitted) != made.args_hash(made.validate({"order": "a", "amount": 6}))


def test_a_default_that_is_none_makes_the_parameter_optional() -> None:
    @tool
    def search(query: str, limit: int = None) -> None: ...  # type: ignore[assignment]  # noqa: RUF013

    assert search.validate({"query": "a"}) == search.validate({"query": "a", "limit": None})
    assert search.validate({"query": "a", "limit": "5"})["limit"] == 5


def test_arguments_are_recorded_as_the_annotated_types() -> None:
    assert create_invoice.validate({"order": "a", "cents": "5"}) == {"order": "a", "cents": 5}
    assert create_invoice.validate({"order": "a", "cents": 5.0})["cents"] == 5
    assert type(create_invoice.validate({"order": "a", "cents": True})["cents"]) is int

    @tool
    def scale(factor: float) -> None: ...

    assert type(scale.validate({"factor": 2})["factor"]) is float
    assert scale.args_hash(scale.validate({"factor": 2})) == scale.args_hash(scale.validate({"factor": "2.0"}))


@pytest.mark.parametrize(
    ("args", "problems"),
    [
        ({}, ["order: missing"]),
        ({"order": "a", "cents": "five"}, [f"cents: {NO_INTEGER}"]),
        ({"order": 5}, ["order: input should be a valid string"]),
        ({"order": "a", "orders": 1}, ["orders: unknown (it takes order, cents)"]),
        ({"order": "a", "op": OP}, ["op: filled in by the runtime, so leave it out"]),
        ({"order": "a", 5: 1}, ["5: unknown (it takes order, cents)"]),
        (
            {"cents": None, "x": 1},
            ["order: missing", "cents: input should be a valid integer", "x: unknown (it takes order, cents)"],
        ),
    ],
)  # fmt: skip
def test_arguments_that_do_not_fit_are_refused_with_every_problem(args: dict[str, Any], problems: list[str]) -> None:
    with pytest.raises(BadArguments) as refused:
        create_invoice.validate(args)
    assert list(refused.value.problems) == problems
    assert "\n" not in str(refused.value)
    assert str(refused.value).endswith("Nothing was called.")
    assert isinstance(refused.value, ValueError)


def test_a_problem_deep_inside_is_named_by_its_path() -> None:
    def ship(items: list[Item], to: Address | None, n: int | list[int]) -> None: ...

    with pytest.raises(BadArguments) as refused:
        tool(ship).validate({"items": [{"sku": "a", "price": 1}, {"sku": 5}], "to": {"street": "x"}, "n": [1, "b"]})
    assert list(refused.value.problems) == [
        "items[1].sku: input should be a valid string",
        "items[1].unitPrice: field required",
        "to.since: field required",
        "n: input should be a valid integer",
        "n[1]: input should be a valid integer, unable to parse string as an integer",
    ]


def test_a_flood_of_problems_is_cut_short() -> None:
    def sum_up(numbers: list[int]) -> None: ...

    with pytest.raises(BadArguments) as refused:
        tool(sum_up).validate({"numbers": ["x"] * 1000})
    assert len(refused.value.problems) == 21
    assert refused.value.problems[-1] == "numbers: and 980 more"


TYPED: list[tuple[Any, object, object, object]] = [
    (str, "é", "é", "é"),
    (int, 2**70, 2**70, 2**70),
    (bool, "yes", True, True),
    (float, 3, 3.0, 3.0),
    (int | None, None, None, None),
    (int | str, "5", "5", "5"),
    (OrderId, "a", "a", "a"),
    (Annotated[int, Field(gt=0)], "5", 5, 5),
    (Literal["a", "b"], "a", "a", "a"),
    (Colour, "red", "red", Colour.RED),
    (Colour, Colour.RED, "red", Colour.RED),
    (Decimal, "1.50", Decimal("1.50"), Decimal("1.50")),
    (date, "2025-07-01", date(2025, 7, 1), date(2025, 7, 1)),
    (datetime, "2025-07-01T12:00:00Z", datetime(2025, 7, 1, 12, tzinfo=UTC), datetime(2025, 7, 1, 12, tzinfo=UTC)),
    (timedelta, timedelta(seconds=90), "PT1M30S", timedelta(seconds=90)),
    (timedelta, 90, "PT1M30S", timedelta(seconds=90)),
    (UUID, str(UUID(int=1)), UUID(int=1), UUID(int=1)),
    (bytes, b"\xff", b"\xff", b"\xff"),
    (Path, "/tmp/x", "/tmp/x", Path("/tmp/x")),
    (ipaddress.IPv4Address, "10.0.0.1", "10.0.0.1", ipaddress.IPv4Address("10.0.0.1")),
    (list[int], ("1", 2), [1, 2], [1, 2]),
    (tuple[int, str], [1, "a"], (1, "a"), (1, "a")),
    (set[int], [2, 1, 2], {1, 2}, {1, 2}),
    (set[timedelta], [1, 2], {"PT1S", "PT2S"}, {timedelta(seconds=1), timedelta(seconds=2)}),
    (dict[str, int], {"a": "1"}, {"a": 1}, {"a": 1}),
    (dict[int, Decimal], {7: "1.50"}, {"7": Decimal("1.50")}, {7: Decimal("1.50")}),
    (dict[str, Any], {"a": Colour.RED, "b": (1, {2})}, {"a": "red", "b": (1, {2})}, {"a": "red", "b": (1, {2})}),
    (dict, {"a": Address("x", date(2025, 7, 1))}, {"a": {"street": "x", "since": date(2025, 7, 1)}},
     {"a": {"street": "x", "since": date(2025, 7, 1)}}),
    (Item, {"sku": "a", "unitPrice": "2.0"}, {"sku": "a", "price": Decimal("2.0"), "tags": []},
     Item(sku="a", unitPrice=Decimal("2.0"))),
    (Item, Item(sku="a", unitPrice=Decimal(2), tags=["x"]), {"sku": "a", "price": Decimal(2), "tags": ["x"]},
     Item(sku="a", unitPrice=Decimal(2), tags=["x"])),
    (Address, {"street": "x", "since": "2025-07-01"}, {"street": "x", "since": date(2025, 7, 1)},
     Address("x", date(2025, 7, 1))),
    (Window, {"title": "x", "size": [3, "4"]}, {"title": "x", "size": (3, 4)}, {"title": "x", "size": Size(3, 4)}),
    (object, Colour.RED, "red", "red"),
    (Any, [Colour.RED, {"b": 1, "a": frozenset({2})}], ["red", {"b": 1, "a": {2}}], ["red", {"b": 1, "a": {2}}]),
    (datetime, datetime(2024, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Berlin")),
     datetime.fromisoformat("2024-10-27T02:30+02:00"), datetime.fromisoformat("2024-10-27T02:30+02:00")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "given", "recorded", "bound"),
    TYPED,
    ids=lambda value: "set" if isinstance(value, set) else str(value)[:40],
)
def test_a_value_is_recorded_plain_and_bound_as_annotated(
    kind: Any, given: object, recorded: object, bound: object
) -> None:
    def function(value: Any) -> None: ...

    function.__annotations__["value"] = kind
    made = tool(function)
    record = made.validate({"value": given})["value"]
    assert (type(record), record) == (type(recorded), recorded)
    assert record == plain(record)
    revived = made.bind({"value": record}, OP)["value"]
    assert (type(revived), revived) == (type(bound), bound)
    again = made.validate({"value": record})
    assert again == {"value": record}, "what is recorded can be edited and validated once more"
    assert made.args_hash(again) == made.args_hash({"value": record})


@given(st.one_of(st.text(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.booleans(), st.none()))
def test_what_has_no_annotation_is_recorded_as_it_is(value: object) -> None:
    made = tool(name="any")(lambda value: None)
    recorded = made.validate({"value": value})["value"]
    assert (type(recorded), recorded) == (type(value), value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\ud800", object(), {"a": [timedelta(1)]}, {1: 2}])
@pytest.mark.parametrize("kind", [Any, float | str, dict])
def test_what_cannot_be_stored_is_refused_before_anything_is_called(kind: Any, value: object) -> None:
    def function(value: Any) -> None: ...

    function.__annotations__["value"] = kind
    with pytest.raises(BadArguments) as refused:
        tool(function).validate({"value": value})
    assert refused.value.problems[0].startswith("value")


class Card(BaseModel):
    number: str

    @field_serializer("number")
    def masked(self, number: str) -> str:
        return f"****{number[-4:]}"


class Total(BaseModel, extra="forbid"):
    net: int

    @computed_field  # type: ignore[prop-decorator]
    @property
    def gross(self) -> int:
        return self.net * 2


class Popping(BaseModel):
    a: int

    @model_validator(mode="before")
    @classmethod
    def pops(cls, data: Any) -> Any:
        return {"a": data.pop("a")}


def test_what_would_come_back_from_the_record_as_something_else_is_refused() -> None:
    def secret(value: SecretStr) -> None: ...
    def masked(value: Card) -> None: ...
    def growing(value: Annotated[str, AfterValidator(lambda text: text + "!")]) -> None: ...

    for function, value in ((secret, "hunter2"), (masked, {"number": "12345678"}), (growing, "a")):
        with pytest.raises(BadArguments, match="does not come back from the record as it was given"):
            tool(function).validate({"value": value})


def test_models_with_computed_fields_or_greedy_validators_come_back() -> None:
    def pay(total: Total, popping: Popping) -> None: ...

    bound = called(tool(pay), total={"net": 5}, popping={"a": 1})
    assert bound == {"total": Total(net=5), "popping": Popping(a=1)}


def test_more_than_the_annotation_says_is_not_lost_in_silence() -> None:
    class Heavy(Item):
        weight: int

    def ship(item: Item) -> None: ...

    with pytest.raises(BadArguments, match="does not come back"):
        tool(ship).validate({"item": Heavy(sku="a", unitPrice=Decimal(1), weight=5)})


def test_a_validator_that_breaks_is_a_bad_argument() -> None:
    def breaks(value: object) -> object:
        raise KeyError("oops")

    def function(value: Annotated[str, AfterValidator(breaks)]) -> None: ...

    with pytest.raises(BadArguments, match="its validator failed"):
        tool(function).validate({"value": "a"})


def test_a_function_that_changes_its_arguments_does_not_change_the_record() -> None:
    def greedy(items: list[Any], meta: Any, more: dict[str, Any]) -> None: ...

    made = tool(greedy)
    given = {"items": [{"a": 1}], "meta": {"b": [2]}, "more": {"c": [3]}}
    recorded = made.validate(given)
    bound = made.bind(recorded, OP)
    bound["items"][0].clear()
    bound["meta"]["b"].clear()
    bound["more"]["c"].clear()
    assert recorded == {"items": [{"a": 1}], "meta": {"b": [2]}, "more": {"c": [3]}} == given
    given["meta"].clear()  # type: ignore[attr-defined]
    assert recorded["meta"] == {"b": [2]}


def test_a_mutable_default_is_fresh_in_every_call() -> None:
    def collect(into: list[int] = []) -> None: ...  # noqa: B006

    made = tool(collect)
    called(made)["into"].append(1)
    typed: Any = made.validate({})["into"]
    typed.append(1)
    assert made.validate({}) == {"into": []}


def test_arguments_of_an_older_version_are_bound_where_they_still_fit() -> None:
    assert create_invoice.bind({"order": "a"}, OP) == {"order": "a", "cents": 100, "op": OP}
    for old in ({"order": "a", "cents": 5, "currency": "EUR"}, {"cents": 5}, {"order": 7, "cents": 5}):
        with pytest.raises(BadArguments):
            create_invoice.bind(old, OP)


def test_a_parameter_may_be_called_anything() -> None:
    def odd(schema: str, copy: str, model_config: str, self_: str, _hidden: int = 1, result: str = "") -> None: ...

    made = tool(odd)
    args = {"schema": "a", "copy": "b", "model_config": "c", "self_": "d"}
    assert called(made, **args) == {**args, "_hidden": 1, "result": ""}
    assert set(made.schema()["parameters"]["properties"]) == {*args, "_hidden", "result"}


def test_a_tool_without_parameters_takes_none() -> None:
    def tick() -> int:
        return 1

    made = tool(tick)
    assert called(made) == {}
    assert made.schema()["parameters"] == {
        "type": "object", "properties": {}, "required": [], "additionalProperties": False,
    }  # fmt: skip
    with pytest.raises(BadArguments, match="it takes no arguments"):
        made.validate({"x": 1})


def test_annotations_may_name_what_is_defined_later_or_nearby() -> None:
    class Local(BaseModel):
        n: int

    def near(value: Local) -> Local:
        return value

    assert called(tool(near), value={"n": "5"}) == {"value": Local(n=5)}
    assert tool(near).check_output({"n": 1}) == (Local(n=1), [])
    assert called(declared_elsewhere(near), value={"n": "5"}) == {"value": Local(n=5)}
    assert called(defined_too_early, value={"n": 5}) == {"value": DefinedLater(n=5)}
    assert defined_too_early.check_output([{"n": 1}]) == ([DefinedLater(n=1)], [])


def declared_elsewhere(function: Callable[..., Any]) -> Tool:
    Local = str  # A name of its own, which must not be taken for the function's.
    assert Local is str
    return tool(function)


@tool
def defined_too_early(value: DefinedLater) -> list[DefinedLater]:
    return [value]


class DefinedLater(BaseModel):
    n: int


def test_an_annotation_that_nobody_knows_is_named_on_first_use() -> None:
    def lost(value: OnlyForTheTypeChecker) -> None: ...

    made = tool(lost)
    for use in (made.check, made.schema, lambda: made.validate({"value": 1})):
        with pytest.raises(
            ToolDefinitionError, match="'value' is annotated OnlyForTheTypeChecker, which is not defined"
        ):
            use()


def test_a_type_that_cannot_be_recorded_is_named() -> None:
    class Connection: ...

    def takes(value: Connection) -> None: ...
    def answers() -> Connection:
        return Connection()

    with pytest.raises(
        ToolDefinitionError, match=r"parameter 'value' is annotated .*Connection, which cannot be recorded"
    ):
        tool(takes).check()
    with pytest.raises(ToolDefinitionError, match=r"its answer is annotated .*Connection"):
        tool(answers).check()


def test_a_default_that_does_not_fit_is_named() -> None:
    def wrong(n: int = "many") -> None: ...  # type: ignore[assignment]
    def odd(n=object()) -> None: ...  # type: ignore[no-untyped-def]  # noqa: B008

    for function in (wrong, odd):
        with pytest.raises(ToolDefinitionError, match="the default of parameter 'n' does not fit"):
            tool(function).check()


def test_threads_may_use_a_new_tool_at_once() -> None:
    def ship(item: Item, n: int = 5) -> None: ...

    made = tool(ship)
    start = threading.Barrier(8)
    seen: list[object] = []

    def use() -> None:
        start.wait()
        seen.append(called(made, item={"sku": "a", "unitPrice": 1}))

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [{"item": Item(sku="a", unitPrice=Decimal(1)), "n": 5}] * 8


def test_plain_scalars_need_no_pydantic() -> None:
    program = """
import sys
from walkback.tools import Op, tool

@tool
def send(to: str, times: int = 1, note: str | None = None, *, op: Op | None = None) -> dict: ...

send.check()
send.bind(send.validate({"to": "a"}), None)
send.check_output({})
print(*(name for name in ("pydantic", "textual", "rich", "deepdiff", "typer", "alembic") if name in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


# --- what planners and people are shown ------------------------------------------------------------------------------


def test_a_planner_is_shown_a_json_schema() -> None:
    def ship(  # type: ignore[no-untyped-def]
        order: Annotated[str, Field(description="Its number", min_length=1)],
        items: list[Item],
        speed: Literal["slow", "fast"] = "slow",
        wait: timedelta = timedelta(seconds=90),
        note: str | None = None,
        anything=None,
        *,
        op: Op,
    ) -> None:
        """Ship an order.

        At once.
        """

    schema = tool(ship).schema()
    assert schema["name"] == "ship"
    assert schema["description"] == "Ship an order.\n\nAt once."
    parameters = schema["parameters"]
    assert parameters["required"] == ["order", "items"]
    assert parameters["additionalProperties"] is False
    properties = parameters["properties"]
    assert properties["order"] == {"type": "string", "description": "Its number", "minLength": 1}
    assert properties["items"] == {"type": "array", "items": {"$ref": "#/$defs/Item"}}
    assert "unitPrice" in parameters["$defs"]["Item"]["properties"]
    assert properties["speed"] == {"enum": ["slow", "fast"], "type": "string", "default": "slow"}
    assert properties["wait"]["default"] == "PT1M30S"
    assert properties["note"] == {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}
    assert properties["anything"] == {"default": None}
    assert "op" not in properties
    json.dumps(schema)


def test_a_planner_that_changes_its_schema_changes_nobody_elses() -> None:
    create_invoice.schema()["parameters"].clear()
    assert create_invoice.schema()["parameters"]["required"] == ["order"]


def test_a_schema_that_json_cannot_say_is_a_definition_error() -> None:
    def hook(callback: Callable[[], int]) -> None: ...

    with pytest.raises(ToolDefinitionError, match="no JSON Schema can be made"):
        tool(hook).schema()


def test_bytes_that_are_no_text_have_no_default_in_the_schema() -> None:
    def put(data: bytes = b"\xff") -> None: ...

    assert "default" not in tool(put).schema()["parameters"]["properties"]["data"]


def test_a_call_is_described_in_the_tools_own_words_or_by_its_arguments() -> None:
    described = tool(describe=lambda a: f"invoice order {a['order']}")(anything)
    assert described.describe_call({"order": "123", "cents": 5}) == "invoice order 123"
    assert create_invoice.describe_call({"order": "123", "cents": 5}) == "create_invoice(order='123', cents=5)"


@pytest.mark.parametrize(
    "bad", [lambda a: a["nothing"], lambda a: 5, lambda a: " ", lambda a: None, lambda a: "\ud800"]
)
def test_a_description_that_fails_is_left_out(bad: Any) -> None:
    assert tool(describe=bad)(anything).describe_call({"order": "1"}) == "anything(order='1')"


@pytest.mark.parametrize(
    "value",
    ["x" * 10**6, 10**5000, list(range(10**5)), {"a": {"b": "c" * 500}}, "\ud800", object()],
    ids=lambda value: type(value).__name__,
)
def test_a_description_is_short_whatever_the_arguments_are(value: object) -> None:
    text = create_invoice.describe_call({"order": value, "cents": value, "more": value, "yet more": value})
    assert text.startswith("create_invoice(order=")
    assert len(text) <= 200
    text.encode()
    long = tool(describe=lambda a: "y" * 1000)(anything)
    assert len(long.describe_call({})) == 200


@pytest.mark.parametrize(
    ("said", "stake"),
    [
        ("$1,234.50", ("$1,234.50", 1234.5)),
        ("-$5", ("-$5", -5.0)),
        ("$-5.25", ("$-5.25", -5.25)),
        ("12,50 €", ("12,50 €", 12.5)),
        ("1.234,50 €", ("1.234,50 €", 1234.5)),
        ("€ 1.234.567", ("€ 1.234.567", 1234567.0)),
        ("1,234,567 rows", ("1,234,567 rows", 1234567.0)),
        ("3 mails, $40.", ("3 mails, $40.", 40.0)),
        ("all of v2", ("all of v2", None)),
        ("the database", ("the database", None)),
        ("9" * 400, ("9" * 199 + "…", None)),
        (12, ("12", 12.0)),
        (1.5, ("1.5", 1.5)),
        (Decimal("1.50"), ("1.50", 1.5)),
        (0, ("0", 0.0)),
        (True, (None, None)),
        (None, (None, None)),
        ("", (None, None)),
        (float("nan"), (None, None)),
        (10**400, (None, None)),
    ],
)
def test_a_stake_is_a_text_for_people_and_a_number_for_sorting(said: Any, stake: tuple[Any, Any]) -> None:
    assert tool(stake=lambda a: said)(anything).stake_of({}) == stake


def test_no_stake_or_one_that_fails_says_nothing() -> None:
    assert tool(anything).stake_of({}) == (None, None)
    assert tool(stake=lambda a: a["nothing"])(anything).stake_of({}) == (None, None)


def test_when_in_doubt_a_person_is_asked() -> None:
    assert not tool(anything).needs_approval({})
    assert tool(approval=True)(anything).needs_approval({})
    assert tool(effect="read", approval=True)(anything).needs_approval({})
    costly = tool(approval=lambda a: a["cents"] > 50_000)(anything)
    assert costly.needs_approval({"cents": 50_001})
    assert not costly.needs_approval({"cents": 50_000})
    assert costly.needs_approval({}), "it raises KeyError"
    forgot_to_return: Any = lambda a: None  # noqa: E731
    assert tool(approval=forgot_to_return)(anything).needs_approval({})


def test_asking_cannot_change_the_arguments() -> None:
    made = tool(approval=lambda a: bool(a.pop("cents")), describe=lambda a: a.pop("order"))(anything)
    args = {"order": "1", "cents": 5}
    made.needs_approval(args)
    made.describe_call(args)
    assert args == {"order": "1", "cents": 5}


# --- identity --------------------------------------------------------------------------------------------------------


def test_an_identity_is_made_from_the_arguments() -> None:
    assert tool(anything).identity_of({"order": "1"}) is None
    assert tool(identity="invoice for {order}")(anything).identity_of({"order": "1", "cents": 5}) == "invoice for 1"
    assert tool(identity=lambda a: f"invoice {a['order']}")(anything).identity_of({"order": "1"}) == "invoice 1"
    assert (
        tool(identity="{order[id]} is {cents:05}")(anything).identity_of({"order": {"id": 7}, "cents": 3})
        == "7 is 00003"
    )


def test_equal_arguments_have_one_identity() -> None:
    by_time = tool(identity="report of {order}")(anything)
    noon = datetime(2025, 7, 1, 12, tzinfo=UTC)
    berlin = noon.astimezone(ZoneInfo("Europe/Berlin"))
    assert by_time.identity_of({"order": noon}) == by_time.identity_of({"order": berlin})
    assert by_time.identity_of({"order": Decimal("1.50")}) == by_time.identity_of({"order": Decimal("1.5")})


@given(st.tuples(st.text("-%25D", min_size=1), st.text("-%25D", min_size=1)), st.tuples(st.text("-%25D", min_size=1), st.text("-%25D", min_size=1)))  # fmt: skip  # noqa: E501
def test_no_two_identities_of_several_parts_are_the_same(one: tuple[str, str], other: tuple[str, str]) -> None:
    made = tool(identity="2-{order}-{cents}")(anything)
    texts = [made.identity_of({"order": order, "cents": cents}) for order, cents in (one, other)]
    assert (texts[0] == texts[1]) == (one == other)


def test_separators_are_escaped_only_where_that_is_needed() -> None:
    assert tool(identity="{order}-{cents}")(anything).identity_of({"order": "1-2", "cents": 3}) == "1%2D2-3"
    assert tool(identity="for {order}")(anything).identity_of({"order": "1-2 for 3%"}) == "for 1-2 for 3%"


def test_a_very_long_identity_is_shortened_and_stays_its_own() -> None:
    made = tool(identity="for {order}")(anything)
    one, other = made.identity_of({"order": "x" * 5000}), made.identity_of({"order": "x" * 5000 + "y"})
    assert one != other
    assert one is not None
    assert len(one) < 500


@pytest.mark.parametrize("args", [{"order": None}, {"order": ""}, {}])
def test_an_identity_with_a_hole_in_it_is_refused(args: dict[str, Any]) -> None:
    with pytest.raises(BadArguments, match="identity"):
        tool(identity="for {order}")(anything).identity_of(args)


@pytest.mark.parametrize("bad", [lambda a: None, lambda a: "", lambda a: 5, lambda a: a["nothing"], lambda a: "\ud800"])
def test_a_function_that_gives_no_identity_is_refused(bad: Any) -> None:
    with pytest.raises(BadArguments, match="identity"):
        tool(identity=bad)(anything).identity_of({})


# --- answers ---------------------------------------------------------------------------------------------------------


class Strict(BaseModel, extra="forbid"):
    total: int


class Open(BaseModel, extra="allow"):
    total: int


def answering(kind: Any) -> Tool:
    def function() -> Any: ...

    function.__annotations__["return"] = kind
    return tool(function)


@pytest.mark.parametrize(
    ("kind", "value", "typed"),
    [
        (Any, {"a": object}, {"a": object}),
        (object, 5, 5),
        (None, None, None),
        (dict, {"a": 1}, {"a": 1}),
        (list, [1], [1]),
        (int, "5", 5),
        (int | None, None, None),
        (dict[str, int], {"a": "1"}, {"a": 1}),
        (Strict, {"total": 1}, Strict(total=1)),
        (Strict, {"total": "1", "new": 2}, Strict(total=1)),
        (list[Strict], [{"total": 1, "new": 2}], [Strict(total=1)]),
        (Open, {"total": 1, "new": 2}, Open(total=1, new=2)),  # type: ignore[call-arg]
        (Item, {"sku": "a", "price": 1}, Item(sku="a", unitPrice=Decimal(1))),
        (Item, Item(sku="a", unitPrice=Decimal(1)), Item(sku="a", unitPrice=Decimal(1))),
        (Address, {"street": "x", "since": "2025-07-01", "new": 1}, Address("x", date(2025, 7, 1))),
        (Window, {"title": "x", "size": (1, 2), "new": 1}, {"title": "x", "size": Size(1, 2)}),
        (Awaitable[int], 5, 5),
        (Coroutine[Any, Any, Strict], {"total": 1}, Strict(total=1)),
    ],
)
def test_an_answer_that_fits_is_given_as_the_annotated_type(kind: Any, value: object, typed: object) -> None:
    assert answering(kind).check_output(value) == (typed, [])


@pytest.mark.parametrize(
    ("kind", "value", "problems"),
    [
        (Strict, {}, ["$.total: field required"]),
        (Strict, {"total": "x", "new": 1}, [f"$.total: {NO_INTEGER}", f"$.new: {EXTRA}"]),
        (Strict, None, ["$: input should be a valid dictionary or instance of Strict"]),
        (list[Strict], [{"total": 1}, {"new": 2}], ["$[1].total: field required", f"$[1].new: {EXTRA}"]),
        (dict[str, int], {"a b": None}, ['$["a b"]: input should be a valid integer']),
        (int | list[int], ["x"], ["$: input should be a valid integer", f"$[0]: {NO_INTEGER}"]),
        (dict, [1], ["$: input should be a valid dictionary"]),
        (None, 5, ["$: input should be None"]),
    ],
)  # fmt: skip
def test_an_answer_that_drifted_is_kept_as_it_came_with_every_place(kind: Any, value: Any, problems: list[str]) -> None:
    kept, found = answering(kind).check_output(value)
    assert kept is value
    assert found == problems


def test_without_an_annotation_every_answer_fits() -> None:
    made = tool(name="any")(lambda: None)
    odd = object()
    assert made.check_output(odd) == (odd, [])


@given(st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))  # fmt: skip  # noqa: E501
def test_whatever_is_answered_is_never_an_exception(value: object) -> None:
    for kind in (Strict, list[Item], int | Address, dict[str, Size]):
        typed, problems = answering(kind).check_output(value)
        assert problems == [] or typed is value


# --- the registry ----------------------------------------------------------------------------------------------------


def create(order: str, cents: int) -> dict[str, Any]:
    return {"id": 7}


def void(order: str, result: dict[str, Any], reason: str = "undone", *, op: Op) -> None: ...


def test_tools_are_found_by_name_and_version() -> None:
    one, two = tool(version="1")(create), tool(version="2")(create)
    registry = Registry([one, two])
    assert registry.get("create") is two
    assert registry.get("create", "1") is one
    assert registry.find("create", "2") is two
    assert registry.find("create", "3") is None
    assert registry.find("other") is None
    assert list(registry) == [two]
    assert "create" in registry
    assert "other" not in registry


def test_a_tool_that_is_not_there_is_an_error_that_says_what_is() -> None:
    registry = Registry([tool(create)])
    with pytest.raises(UnknownTool, match="no tool 'creat' here; did you mean 'create'"):
        registry.get("creat")
    with pytest.raises(UnknownTool, match="there is create"):
        registry.get("zzz")
    with pytest.raises(UnknownTool, match="no version '9' here; there is 1"):
        registry.get("create", "9")


def test_two_tools_cannot_share_a_name_and_a_version() -> None:
    one, other = tool(create), tool(name="create")(void)
    registry = Registry([one])
    registry.add(one)
    with pytest.raises(ToolDefinitionError, match=r"create and .*void both declare version '1'"):
        registry.add(other)
    not_a_tool: Any = create
    with pytest.raises(ToolDefinitionError, match="'create': it is not a tool"):
        registry.add(not_a_tool)


def test_what_undoes_a_tool_must_be_there() -> None:
    registry = Registry([tool(compensate="voyd")(create)])
    with pytest.raises(ToolDefinitionError, match="names 'voyd', which is no tool here"):
        registry.check()
    registry.add(tool(void))
    with pytest.raises(ToolDefinitionError, match="Did you mean 'void'"):
        registry.check()


def test_what_undoes_a_tool_must_be_callable_with_what_is_known() -> None:
    def wrong(order: str, invoice_id: int) -> None: ...

    Registry([tool(compensate="void")(create), tool(void)]).check()
    with pytest.raises(ToolDefinitionError, match="'wrong' undoes it and needs invoice_id") as refused:
        Registry([tool(compensate="wrong")(create), tool(wrong)]).check()
    assert "Known are order, cents, result" in str(refused.value)
    with pytest.raises(ToolDefinitionError, match="being a read"):
        Registry([tool(compensate="void")(create), tool(effect="read")(void)]).check()


def test_a_compensation_given_as_a_tool_is_registered_with_it() -> None:
    undo = tool(void)
    registry = Registry([tool(compensate=undo)(create)])
    registry.check()
    assert registry.get("void") is undo
    assert registry.get("create").compensate_name == "void"


def test_checking_a_registry_finds_what_would_fail_on_first_use() -> None:
    def lost(value: OnlyForTheTypeChecker) -> None: ...

    with pytest.raises(ToolDefinitionError, match="not defined"):
        Registry([tool(lost)]).check()


def test_a_compensation_gets_the_arguments_and_the_result_of_what_it_undoes() -> None:
    undone, undoing = tool(compensate="void")(create), tool(void)
    args = Registry.undo_args(undoing, undone, {"order": "a", "cents": 5}, {"id": 7})
    assert args == {"order": "a", "result": {"id": 7}}
    assert undoing.validate(args) == {"order": "a", "result": {"id": 7}, "reason": "undone"}
    with pytest.raises(BadArguments, match="order: create has no such argument"):
        Registry.undo_args(undoing, undone, {}, None)


# --- evidence --------------------------------------------------------------------------------------------------------


def test_evidence_is_one_of_four_words() -> None:
    assert happened({"id": 7}).kind is words.Evidence.HAPPENED
    assert absent().kind is words.Evidence.ABSENT
    assert cannot_tell("billing is down").kind is words.Evidence.CANNOT_TELL
    assert partial(["a"], ["b"]).kind is words.Evidence.PARTIAL
    text: Any = "happened"
    assert Evidence(text) == happened()
    for wrong in ("absent_so_far", words.Evidence.ABSENT_SO_FAR, "maybe", True, None):
        kind: Any = wrong
        with pytest.raises(ValueError, match="not what a verify function can answer"):
            Evidence(kind)


def test_evidence_is_recorded_as_what_was_found() -> None:
    assert happened({"id": 7}).record() == {"id": 7}
    assert happened().record() is None
    assert absent().record() is None
    assert cannot_tell("billing is down").record() == {"detail": "billing is down"}
    assert cannot_tell(TimeoutError("5 s")).record() == {"detail": "TimeoutError: 5 s"}
    assert partial(["a"], {"b"}).record() == {"done": ["a"], "missing": {"b"}}


def test_evidence_is_plain_so_a_replay_sees_the_same() -> None:
    item = Item(sku="a", unitPrice=Decimal(1))
    assert happened(item).found == {"sku": "a", "price": Decimal(1), "tags": []}
    assert partial([Colour.RED], None).done == ["red"]


def test_evidence_is_not_lost_because_it_cannot_be_stored() -> None:
    class Row:
        def __repr__(self) -> str:
            return "<row 7>"

    class Mute:
        def __repr__(self) -> str:
            raise RuntimeError

    assert happened(Row()).record() == "<row 7>"
    assert happened(Mute()).record() == "<Mute>"
    assert happened([Path("/tmp")]).kind is words.Evidence.HAPPENED
    assert cannot_tell("\ud800" * 5000).record() == {"detail": ("\\ud800" * 1000)[:1000]}


# --- the page about tools --------------------------------------------------------------------------------------------

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "tools.md").read_text()


def table_below(heading: str) -> list[list[str]]:
    rows = re.findall(r"^\|(.+)\|$", PAGE.split(heading, 1)[1].split("\n## ", 1)[0].split("\n### ", 1)[0], re.MULTILINE)
    return [[cell.strip() for cell in row.split(" | ")] for row in rows[2:]]


def test_every_option_is_on_the_page_and_every_one_there_exists() -> None:
    assert [row[0].strip("`") for row in table_below("## Options")] == list(Options.__annotations__)


def test_the_fields_of_an_operation_are_on_the_page() -> None:
    listed = [name for row in table_below("### What a tool is told") for name in re.findall(r"`(\w+)`", row[0])]
    assert sorted(listed) == sorted(field.name for field in dataclasses.fields(Op))


def test_the_policies_on_the_page_are_those_of_the_code() -> None:
    def seconds(text: str) -> float:
        number, unit = text.split()
        return float(number) * (60 if unit == "min" else 1)

    for row, policy in zip(table_below("### Retries"), (READS, WRITES), strict=True):
        _, attempts, elapsed, base, cap, tokens, per_second = row
        assert (int(attempts), float(tokens), float(per_second)) == (
            policy.attempts, policy.tokens, policy.tokens_per_second,
        )  # fmt: skip
        assert [seconds(text) for text in (elapsed, base, cap)] == [
            span.total_seconds() for span in (policy.elapsed, policy.base, policy.cap)
        ]


def test_the_example_on_the_page_works_and_has_the_schema_it_is_shown_with() -> None:
    (source,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {"billing": None, "__name__": "example"}
    exec(compile(source, "docs/tools.md", "exec"), names)
    Registry(each for each in names.values() if isinstance(each, Tool)).check()
    (shown,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    assert names["create_invoice"].schema() == json.loads(shown)
    assert names["create_invoice"].stake_of({"cents": 123450}) == ("$1234.50", 1234.5)
