"""A small Textual app with a table, for the tests of what drives and pictures the real one."""

from __future__ import annotations

from typing import ClassVar

from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.events import Resize
from textual.widgets import DataTable, Footer, Input, Static

ROWS = (
    ("charge the card", "$1,250.00", "unknown"),
    ("寿司を注文する", "¥98,000", "asked"),
    ("deploy 🚀 to production", "", "stuck"),
    ("naïve café", "€3.20", "failed"),
)


class TableApp(App[int]):
    """`enter` says what is selected, `q` ends with 7, `o` opens an input whose text is then shown."""

    BINDINGS: ClassVar[list[BindingType]] = [("q", "leave", "Quit"), ("o", "other", "Other"), ("f1", "help", "Help")]
    CSS = "#said { color: #ff005f; text-style: bold; } Input { display: none; }"

    def compose(self) -> ComposeResult:
        yield Static("nothing yet", id="said", markup=False)
        table: DataTable[str] = DataTable(cursor_type="row")
        yield table
        yield Input()
        yield Footer()

    def on_mount(self) -> None:
        table = self.query_one(DataTable)
        table.add_columns("what", "stake", "why")
        table.add_rows(ROWS)
        table.focus()

    def say(self, text: str) -> None:
        self.query_one("#said", Static).update(text)

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        self.say(f"chosen: {ROWS[event.cursor_row][0]}")

    def on_resize(self, event: Resize) -> None:
        self.say(f"size: {event.size.width}x{event.size.height}")

    def action_other(self) -> None:
        box = self.query_one(Input)
        box.display = True
        box.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.input.display = False
        self.query_one(DataTable).focus()
        self.say(f"typed: {event.value}")

    def key_escape(self) -> None:
        self.say("escaped")

    def action_help(self) -> None:
        self.say("helped")

    def action_leave(self) -> None:
        self.exit(return_code=7)


if __name__ == "__main__":
    import sys

    app = TableApp()
    app.run()
    print("goodbye")
    sys.exit(app.return_code)
