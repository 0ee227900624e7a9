"""A command in a real pty, and what a terminal would show of it.

The bytes are read by a thread of their own, which does nothing else, so that the time of each is right; a terminal
emulator (pyte) gets them when somebody looks. Keys are bytes, as a terminal sends them. Nothing here sleeps: it waits
for output, and a condition is looked at only between two frames, never on half a screen.
"""

from __future__ import annotations

import codecs
import contextlib
import copy
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import pyte
from pyte.screens import Char
from wcwidth import wcwidth

COLS, ROWS = 80, 24
PATIENCE = 20.0
QUIET = 0.15

KEYS: dict[str, str] = {
    "enter": "\r",
    # As terminals with the kitty protocol send it. A bare ESC means nothing before a delay, and something else when
    # the next key comes within it.
    "esc": "\x1b[27u",
    "tab": "\t",
    "shift+tab": "\x1b[Z",
    "backspace": "\x7f",
    "delete": "\x1b[3~",
    "space": " ",
    "up": "\x1b[A",
    "down": "\x1b[B",
    "right": "\x1b[C",
    "left": "\x1b[D",
    "home": "\x1b[H",
    "end": "\x1b[F",
    "pgup": "\x1b[5~",
    "pgdn": "\x1b[6~",
    "f1": "\x1bOP",
    "f2": "\x1bOQ",
    "f3": "\x1bOR",
    "f4": "\x1bOS",
    "f5": "\x1b[15~",
    "f10": "\x1b[21~",
}
KEYS |= {f"ctrl+{letter}": chr(ord(letter) - 96) for letter in "abcdefghijklmnopqrstuvwxyz"}
KEYS |= {"escape": KEYS["esc"], "pageup": KEYS["pgup"], "pagedown": KEYS["pgdn"]}

_FOREIGN = re.compile(
    r"\x1b[P_^X].*?(?:\x1b\\|\x9c)"  # DCS, APC, PM, SOS: strings that are not for the screen
    r"|\x1b\].*?(?:\x07|\x1b\\|\x9c)"  # OSC
    r"|\x1b\[[<=>][0-9;:]*[ -/]*[@-~]"  # kitty keyboard and the like; pyte takes some for text and some for colours
    r"|\x1b\[\??[0-9;:]*[ -/]+[@-~]",  # requests for a mode, cursor shapes
    re.DOTALL,
)
_UNFINISHED = re.compile(r"\x1b(?:[P_^X\]](?:(?!\x07|\x1b\\|\x9c).)*|\[[<=>?]?[0-9;:]*[ -/]*)?\Z", re.DOTALL)
_FRAME = re.compile(r"(\x1b\[\?2026[hl])")
_ASKS_FOR_FRAMES = b"\x1b[?2026$p"
_HAS_FRAMES = b"\x1b[?2026;2$y"
_ALTERNATE = 1049 << 5
"""pyte keeps private modes apart from others by this shift."""


class Run(NamedTuple):
    """Neighbouring cells of one line that look the same."""

    column: int
    text: str
    fg: str
    bg: str
    marks: frozenset[str]
    """Of bold, italics, underscore, strikethrough, reverse, blink."""


class Screen(pyte.Screen):
    """pyte's, with three things mended: text after a joiner or a variation selector is not lost, half of a wide
    character never stays behind, and the screen from before a full-screen program comes back after it."""

    def __init__(self, columns: int, lines: int) -> None:
        self._before: Any = None
        super().__init__(columns, lines)

    def draw(self, data: str) -> None:
        super().draw("".join(c for c in data if wcwidth(c) > 0 or unicodedata.combining(c)))

    def set_mode(self, *modes: int, **how: Any) -> None:
        super().set_mode(*modes, **how)
        if _ALTERNATE in self.mode and self._before is None:
            self._before = copy.deepcopy((dict(self.buffer), self.cursor))
            self.erase_in_display(2)

    def reset_mode(self, *modes: int, **how: Any) -> None:
        super().reset_mode(*modes, **how)
        if _ALTERNATE not in self.mode and self._before is not None:
            lines, self.cursor = self._before
            self._before = None
            self.buffer.clear()
            self.buffer.update(lines)
            self.dirty.update(range(self.lines))

    def cells(self, y: int) -> list[tuple[int, Char]]:
        """The characters of a line, each with its column; a wide one once."""
        found = []
        x = 0
        while x < self.columns:
            cell = self.buffer[y][x]
            wide = bool(cell.data) and wcwidth(cell.data[0]) == 2
            if wide and x + 1 < self.columns and self.buffer[y][x + 1].data == "":
                found.append((x, cell))
                x += 2
                continue
            found.append((x, cell._replace(data=" ") if wide or not cell.data else cell))
            x += 1
        return found

    @property
    def display(self) -> list[str]:
        return ["".join(cell.data for _, cell in self.cells(y)) for y in range(self.lines)]


class PtyScreen:
    """`with PtyScreen(command("--store", url)) as screen: screen.wait_for("Inbox")`

    The environment is clean: no variable of whoever runs the tests, a home of its own when `home` is given.
    """

    def __init__(
        self,
        args: Sequence[str],
        *,
        cols: int = COLS,
        rows: int = ROWS,
        env: Mapping[str, str] | None = None,
        home: Path | None = None,
        cwd: Path | None = None,
        frames: bool = True,
    ) -> None:
        """`frames`: whether the terminal says that it can keep a frame together."""
        self.keys_pressed = 0
        """By `press`; what was typed does not count."""
        self.bytes_at: list[tuple[float, int]] = []
        """For each read: when (`time.perf_counter`), and how many bytes there were then in all."""
        self.seen_at = 0.0
        """When the newest byte was read of what `display` showed last."""
        self._raw = bytearray()
        self._fed = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._unfinished = ""
        self._frames = 0
        self._mid_frame = False
        self._answers = frames
        self._ended = False
        self._more = threading.Condition()
        self._screen = Screen(cols, rows)
        self._stream = pyte.Stream(self._screen)
        self._fd, theirs = pty.openpty()
        try:
            _set_size(theirs, cols, rows)
            self.started = time.perf_counter()
            self.process = subprocess.Popen(
                args,
                stdin=theirs,
                stdout=theirs,
                stderr=theirs,
                env=clean_environment(home) | dict(env or {}),
                cwd=cwd,
                start_new_session=True,
            )
        except BaseException:
            os.close(self._fd)
            raise
        finally:
            os.close(theirs)
        self._stop_reading, self._tell_reader = os.pipe()
        self._reader = threading.Thread(target=self._read, name="pty-reader", daemon=True)
        self._reader.start()

    def __enter__(self) -> PtyScreen:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # --- what is on the screen ------------------------------------------------------------------------------------

    @property
    def display(self) -> list[str]:
        """The lines, as wide as the screen; a wide character is one character of its line."""
        self._feed()
        return self._screen.display

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.display)

    def colours_stripped(self) -> str:
        """What somebody sees who sees no colour and no other attribute."""
        return self.text

    @property
    def raw(self) -> bytes:
        """Every byte that the command has sent so far."""
        with self._more:
            return bytes(self._raw)

    @property
    def received(self) -> int:
        """How many bytes the command has sent so far."""
        with self._more:
            return len(self._raw)

    @property
    def cursor(self) -> tuple[int, int]:
        """Column and line."""
        self._feed()
        return self._screen.cursor.x, self._screen.cursor.y

    @property
    def frames(self) -> int:
        """How many frames were painted; of a command that knows of none, 1 as soon as it has said anything."""
        self._feed()
        return self._frames or int(bool(self._fed) and not self._mid_frame)

    def attributes(self, line: int) -> list[Run]:
        """The style runs of a line."""
        self._feed()
        found: list[Run] = []
        for column, cell in self._screen.cells(line):
            marks = frozenset(name for name in _MARKS if getattr(cell, name))
            last = found[-1] if found else None
            if last is not None and (last.fg, last.bg, last.marks) == (cell.fg, cell.bg, marks):
                found[-1] = last._replace(text=last.text + cell.data)
            else:
                found.append(Run(column, cell.data, cell.fg, cell.bg, marks))
        return found

    # --- keys -----------------------------------------------------------------------------------------------------

    def press(self, *keys: str) -> None:
        for key in keys:
            if key not in KEYS and len(key) != 1:
                raise ValueError(f"there is no key {key!r}; there are single characters and: {', '.join(KEYS)}")
            self.keys_pressed += 1
            self._send(KEYS.get(key, key))

    def type(self, text: str) -> None:
        self._send(text)

    def click(self, column: int, line: int) -> None:
        """The left button, pressed and let go."""
        for end in "Mm":
            self._send(f"\x1b[<0;{column + 1};{line + 1}{end}")

    def resize(self, cols: int, rows: int) -> None:
        self._feed()
        self._screen.resize(rows, cols)
        _set_size(self._fd, cols, rows)
        # The terminal would do it for the session that it controls; here it controls none.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGWINCH)

    # --- waiting --------------------------------------------------------------------------------------------------

    def wait_for(self, wanted: str | Callable[[PtyScreen], object], timeout: float = PATIENCE) -> str:
        """Until a text is on the screen, or a condition holds for it; the screen as text."""
        what = f"{wanted!r}" if isinstance(wanted, str) else getattr(wanted, "__name__", "a condition")
        self._until(lambda: _holds(wanted, self), timeout, f"{what} never came")
        return self.text

    def wait_gone(self, text: str, timeout: float = PATIENCE) -> str:
        self._until(lambda: text not in self.text, timeout, f"{text!r} never went away")
        return self.text

    def settle(self, timeout: float = PATIENCE) -> str:
        """Until there was a frame, and then neither output nor a key for a moment; the screen as text."""
        until = time.monotonic() + timeout
        while True:
            with self._more:
                had = len(self._raw)
                quiet = not self._more.wait_for(lambda had=had: len(self._raw) > had or self._ended, QUIET)  # type: ignore[misc]
                ended = self._ended
            self._feed()
            if ended or (quiet and self.frames and not self._mid_frame):
                return self.text
            if time.monotonic() > until:
                raise AssertionError(f"it never settled\n{self._shown()}")

    def quiet_after(self, had: int, quiet: float, at_most: float) -> float:
        """Waits for more than `had` bytes, and then until none comes for `quiet` seconds; when the last one was read.

        Without any it is now, which is `at_most` seconds later. For measuring: nothing is emulated meanwhile.
        """
        until = time.perf_counter() + at_most
        with self._more:
            self._more.wait_for(lambda: len(self._raw) > had or self._ended, at_most)
            if len(self._raw) == had:
                return time.perf_counter()
            while (now := time.perf_counter()) < until:
                left = self.bytes_at[-1][0] + quiet - now
                if left <= 0 or self._ended:
                    break
                self._more.wait(left)
            return self.bytes_at[-1][0]

    def exit_code(self, timeout: float = PATIENCE) -> int:
        """Waits until the command has ended by itself."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end within {timeout:g} s\n{self._shown()}") from None
        self._reader.join(PATIENCE)
        return code

    def close(self) -> None:
        """Whatever still runs in the session of the command is killed."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if self._tell_reader < 0:
            return
        os.write(self._tell_reader, b"x")
        self._reader.join()
        for fd in (self._fd, self._stop_reading, self._tell_reader):
            os.close(fd)
        self._tell_reader = -1

    # --- inside ---------------------------------------------------------------------------------------------------

    def _until(self, true: Callable[[], object], timeout: float, otherwise: str) -> None:
        until = time.monotonic() + timeout
        while True:
            with self._more:
                had, ended = len(self._raw), self._ended
            self._feed()
            if (ended or not self._mid_frame) and true():
                return
            if ended:
                raise AssertionError(f"{otherwise}, and the command has ended\n{self._shown()}")
            with self._more:
                self._more.wait_for(
                    lambda had=had: len(self._raw) > had or self._ended,  # type: ignore[misc]
                    max(0.0, min(0.5, until - time.monotonic())),
                )
                nothing_new = len(self._raw) == had and not self._ended
            if nothing_new and time.monotonic() >= until:
                raise AssertionError(f"{otherwise} within {timeout:g} s\n{self._shown()}")

    def _send(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def _read(self) -> None:
        """A thread of its own."""
        while True:
            ready, _, _ = select.select([self._fd, self._stop_reading], [], [])
            try:
                data = os.read(self._fd, 1 << 16) if self._fd in ready else b""
            except OSError:  # how Linux says that the last holder of the other end is gone
                data = b""
            now = time.perf_counter()
            with self._more:
                start = len(self._raw)
                self._raw += data
                if data:
                    self.bytes_at.append((now, len(self._raw)))
                else:
                    self._ended = True
                asked = self._answers and _ASKS_FOR_FRAMES in self._raw[max(0, start - len(_ASKS_FOR_FRAMES) + 1) :]
                self._more.notify_all()
            if not data:
                return
            if asked:
                with contextlib.suppress(OSError):
                    os.write(self._fd, _HAS_FRAMES)

    def _feed(self) -> None:
        with self._more:
            new = bytes(self._raw[self._fed :])
            self._fed = len(self._raw)
            self.seen_at = self.bytes_at[-1][0] if self.bytes_at else self.started
        if not new:
            return
        text = self._unfinished + self._decoder.decode(new)
        unfinished = _UNFINISHED.search(text)
        cut = unfinished.start() if unfinished else len(text)
        text, self._unfinished = text[:cut], text[cut:]
        for part in _FRAME.split(_FOREIGN.sub("", text)):
            if part == "\x1b[?2026h":
                self._mid_frame = True
            elif part == "\x1b[?2026l":
                self._mid_frame = False
                self._frames += 1
            elif part:
                self._stream.feed(part)

    def _shown(self) -> str:
        self._feed()
        rule = "+" + "-" * self._screen.columns + "+"
        lines = [f"|{line}|" for line in self._screen.display]
        ended = f"\n(it ended with {self.process.returncode})" if self.process.poll() is not None else ""
        return "\n".join([rule, *lines, rule]) + ended


_MARKS = ("bold", "italics", "underscore", "strikethrough", "reverse", "blink")


def clean_environment(home: Path | None = None) -> dict[str, str]:
    """What a command needs to run at all, and what a terminal tells it. Not one colour switch, and no store."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "TMPDIR", "VIRTUAL_ENV") if name in os.environ}
    return kept | {
        "HOME": str(home or Path(sys.executable).parent / "nobody"),
        "LANG": "C.UTF-8",
        "TERM": "xterm-256color",
    }


def _holds(wanted: str | Callable[[PtyScreen], object], screen: PtyScreen) -> bool:
    return wanted in screen.text if isinstance(wanted, str) else bool(wanted(screen))


def _set_size(fd: int, cols: int, rows: int) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))
