"""Where a list gets its rows from: all of them at once, or page by page as they come into view."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

PAGE = 200
PAGES_KEPT = 50


class Source(Protocol[R_co]):
    """Rows by number, each with an id that stays its own when the numbers change."""

    @property
    def count(self) -> int: ...

    def row(self, index: int) -> R_co | None:
        """None while it is not loaded."""

    def key(self, index: int) -> str | None:
        """The id of a row; None while it is not loaded."""

    def index_of(self, key: str) -> int | None:
        """Where the row with this id is now; None if it is gone, or not loaded."""


class ListSource(Generic[R]):
    """Rows that are all there."""

    def __init__(self, rows: Sequence[R], key: Callable[[R], str]) -> None:
        self.rows = rows
        self._key = key
        self._indexes: dict[str, int] | None = None

    @property
    def count(self) -> int:
        return len(self.rows)

    def row(self, index: int) -> R | None:
        return self.rows[index]

    def key(self, index: int) -> str | None:
        return self._key(self.rows[index])

    def index_of(self, key: str) -> int | None:
        if self._indexes is None:  # most lists are shown and never asked
            self._indexes = {self._key(row): index for index, row in enumerate(self.rows)}
        return self._indexes.get(key)


class PagedSource(Generic[R]):
    """Rows of which only some pages are in memory: those that were put or looked at last.

    `count` may be set anew when rows were added at the end. `located` may be told where a row is whose page is not
    loaded, so that the cursor finds it again.
    """

    def __init__(
        self, count: int, page_size: int = PAGE, *, key: Callable[[R], str], pages_kept: int = PAGES_KEPT
    ) -> None:
        self.count = count
        self.page_size = page_size
        self.located: dict[str, int] = {}
        self._key = key
        self._pages_kept = pages_kept
        self._pages: OrderedDict[int, dict[int, R]] = OrderedDict()
        self._indexes: dict[str, int] = {}

    def put(self, offset: int, rows: Sequence[R]) -> None:
        for index, row in enumerate(rows, offset):
            page = self._pages.setdefault(index // self.page_size, {})
            self._forget(page.get(index), index)
            page[index] = row
            self._indexes[self._key(row)] = index
        for number in range(offset // self.page_size, (offset + len(rows)) // self.page_size + 1):
            if number in self._pages:
                self._pages.move_to_end(number)
        while len(self._pages) > self._pages_kept:
            _, page = self._pages.popitem(last=False)
            for index, row in page.items():
                self._forget(row, index)

    def row(self, index: int) -> R | None:
        number = index // self.page_size
        page = self._pages.get(number)
        if page is None:
            return None
        self._pages.move_to_end(number)
        return page.get(index)

    def key(self, index: int) -> str | None:
        row = self.row(index)
        return None if row is None else self._key(row)

    def index_of(self, key: str) -> int | None:
        found = self._indexes.get(key)
        return self.located.get(key) if found is None else found

    def missing(self, first: int, last: int) -> tuple[int, int] | None:
        """The offset and length to load, in whole pages, so that rows `first` to `last` are there; None if they are."""
        lacking = [n for n in range(max(0, first), min(last + 1, self.count)) if self.row(n) is None]
        if not lacking:
            return None
        offset = lacking[0] // self.page_size * self.page_size
        end = min(self.count, (lacking[-1] // self.page_size + 1) * self.page_size)
        return offset, end - offset

    def _forget(self, row: R | None, index: int) -> None:
        if row is not None and self._indexes.get(self._key(row)) == index:
            del self._indexes[self._key(row)]
