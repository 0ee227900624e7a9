"""Pages, counts and prefixes: what every list of the store has in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, func, literal_column, select
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from walkback_store.log import Row

PAGE = 50
MAX_PAGE = 1000
COUNT_LIMIT = 10_000
_LOWEST, _HIGHEST = -(2**63), 2**63 - 1


@dataclass(slots=True)
class Page:
    rows: list[Row]
    older: tuple[Any, ...] | None
    """Pass as `after` for the page behind this one; None when there is none."""
    newer: tuple[Any, ...] | None
    """Pass as `before` for the page in front of this one; None when this is the first."""


@dataclass(slots=True)
class Count:
    """Exact up to 10,000."""

    n: int
    more: bool

    @classmethod
    def of(cls, n: int) -> Count:
        """`n` was counted up to one above the limit."""
        return cls(min(n, COUNT_LIMIT), n > COUNT_LIMIT)

    def __str__(self) -> str:
        return f"{COUNT_LIMIT:,}+" if self.more else f"{self.n:,}"


def page_size(limit: int) -> int:
    return max(1, min(limit, MAX_PAGE))


def bounded(at: int) -> int:
    """A time that fits into a column: before everything and after everything stay what they are."""
    return max(_LOWEST, min(at, _HIGHEST))


def possible(text: str) -> bool:
    """Whether a text can be in the store at all. Asking a database for one that cannot is an error, not an answer."""
    return "\x00" not in text and not any("\ud800" <= c <= "\udfff" for c in text)


def above(prefix: str) -> str | None:
    """The smallest text above every text with this prefix, in byte order; None when there is none."""
    while prefix:
        last = ord(prefix[-1])
        if last < 0x10FFFF:
            following = 0xE000 if last == 0xD7FF else last + 1  # surrogates are not text
            return prefix[:-1] + chr(following)
        prefix = prefix[:-1]
    return None


def starts(column: ColumnElement[str], prefix: str) -> ColumnElement[bool]:
    end = above(prefix)
    return and_(column >= prefix, column < end) if end is not None else column >= prefix


class usually(FunctionElement[Any]):
    """A condition that the index in mind leaves out nothing by, and that is no reason to use another index.

    SQLite keeps no statistics here, and would take an equality for the best thing to search by.
    """

    inherit_cache = True


@compiles(usually)
def _usually(element: usually, compiler: SQLCompiler, **options: Any) -> str:
    return str(compiler.process(element.clauses, **options))


@compiles(usually, "sqlite")
def _usually_in_sqlite(element: usually, compiler: SQLCompiler, **options: Any) -> str:
    return f"likely({compiler.process(element.clauses, **options)})"


def sql(condition: str) -> ColumnElement[Any]:
    """A condition as it stands in the definition of an index of some rows only.

    Such an index is used when its condition can be read in the query itself, so it must not come as a parameter.
    """
    found: ColumnElement[Any] = literal_column(condition)  # not of a Boolean type: that is compared with 1
    return found


def distinct(
    column: ColumnElement[str], where: ColumnElement[bool] | None, limit: int, prefix: str = ""
) -> Select[Any]:
    """The values there are of an indexed column, in order, found by skipping from one to the next."""
    end = above(prefix)
    upper = [column < end] if end is not None else []
    upper += [where] if where is not None else []
    # One lower bound and never two: with two, SQLite searches by one and reads its way to the other.
    found = select(func.min(column).label("value")).where(column >= prefix, *upper).cte("found", recursive=True)
    following = select(func.min(column)).where(column > found.c.value, *upper).scalar_subquery()
    found = found.union_all(select(following).where(found.c.value.is_not(None)))
    return select(found.c.value).where(found.c.value.is_not(None)).limit(limit)
