"""The only writer to stderr: errors, notes and progress."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Final

_INTERVAL_S: Final = 10.0
"""Seconds between progress lines where stderr is no terminal."""
_REFRESH_S: Final = 0.1


class Console:
    """Writes to stderr; `quiet` leaves only errors."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet

    def error(self, message: str) -> None:
        """Print an error as one line."""
        print(f"traceanalyzer: error: {one_line(message)}", file=sys.stderr)

    def note(self, message: str) -> None:
        """Print what the reader of the result should know."""
        if not self.quiet:
            print(f"traceanalyzer: {one_line(message)}", file=sys.stderr)


def one_line(message: str) -> str:
    """Return the message on one line, without control characters."""
    return "".join(c if c.isprintable() else " " for c in " ".join(message.split()))


class ProgressLine:
    """Shows how far an ingest is: a line that rewrites itself on a terminal, else a plain line now and then.

    Use as a context manager around the ingest. Safe for threads.
    """

    def __init__(self, console: Console, files: int) -> None:
        self._console = console
        self._files = files
        self._live = sys.stderr.isatty() and not console.quiet
        self._mutex = threading.Lock()
        self._started = time.monotonic()
        self._shown = self._started if not self._live else 0.0
        self._sizes: dict[Path, int] = {}
        self._positions: dict[Path, int] = {}
        self._events: dict[Path, int] = {}
        self._done = 0

    def file_started(self, path: Path, size: int) -> None:
        with self._mutex:
            self._sizes[path] = size

    def file_advanced(self, path: Path, position: int, events: int) -> None:
        with self._mutex:
            self._positions[path], self._events[path] = position, events
            if time.monotonic() - self._shown >= (_REFRESH_S if self._live else _INTERVAL_S):
                self._show(path)

    def file_done(self, path: Path) -> None:
        with self._mutex:
            self._positions[path] = self._sizes.get(path, 0)
            self._done += 1

    def _show(self, path: Path) -> None:
        self._shown = time.monotonic()
        if self._console.quiet:
            return
        read, size = sum(self._positions.values()), sum(self._sizes.values())
        speed = read / 1e6 / max(self._shown - self._started, 1e-9)
        text = (
            f"file {min(self._done + 1, self._files)} of {self._files}: {read / 1e6:,.0f} of {size / 1e6:,.0f} MB,"
            f" {speed:,.0f} MB/s, {sum(self._events.values()):,} events, {path.name}"
        )
        if self._live:
            print(f"\r\x1b[2K{one_line(text)[:100]}", end="", file=sys.stderr, flush=True)
        else:
            self._console.note(text)

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._live:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)
