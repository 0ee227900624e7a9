"""The least that a Textual app with a list can be: an empty table. What the console's start is held against."""

from __future__ import annotations

from textual.app import App, ComposeResult
from textual.widgets import DataTable

COLUMN = "nothing in it"


class EmptyTable(App[None]):
    def compose(self) -> ComposeResult:
        yield DataTable()

    def on_mount(self) -> None:
        self.query_one(DataTable).add_column(COLUMN)


if __name__ == "__main__":
    EmptyTable().run()
