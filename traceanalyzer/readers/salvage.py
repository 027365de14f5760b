"""Takes a refused block apart: keeps every sound event, repairs what can be repaired, rejects the rest one by one.

A block is refused because it was cut inside an event, or because an event in it is damaged. DuckDB finds the pieces
that are not sound (`pieces`), and only those are looked at here. A damaged event ends where the next sound one begins,
so one bad event costs one event.

Positions are found with the standard library's decoder, which says where a value ends, on the text read as Latin-1:
there a position is a byte, and JSON's structure is the same as in UTF-8.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

import orjson

from traceanalyzer.errors import InputError
from traceanalyzer.readers.base import Reject
from traceanalyzer.readers.document import BOUNDARY
from traceanalyzer.readers.json_stream import Block
from traceanalyzer.readers.pieces import Pieces, cut_in_pieces
from traceanalyzer.readers.repair import is_sound, masked, repaired

if TYPE_CHECKING:
    import duckdb

_EVENT_START: Final = re.compile(r'\{\s*"(?:ph|name|cat|pid|tid|ts|dur|args|id|s|bp)"\s*:')
_BEHIND_EVENT: Final = re.compile(r"\}\s*,\s*\Z")
_BEHIND_ELEMENT: Final = re.compile(r"\s*(?:[,\]{]|\Z)")
_SEPARATORS: Final = re.compile(r"[\s,]*")
_DOCUMENT: Final = re.compile(rb'"traceEvents"\s*:\s*\[')
_PHASE: Final = re.compile(r'"ph"\s*:')
_LONGEST_EVENT: Final = 64 << 20
"""Bytes of a sound text that may still turn out to be one event."""
_LONGEST_DAMAGE: Final = 4 << 20
"""Bytes behind a damaged place in which the next event is looked for."""
_WINDOW: Final = 16 << 10
_LONGEST_WORD: Final = 8
"""Characters of a word or escape that the end of a window can have cut."""
_SAMPLE: Final = 200

_decoder: Final = json.JSONDecoder()


class _UndecodableError(Exception):
    """No JSON value begins at a place; `place` is where the text went wrong."""

    def __init__(self, why: str, place: int) -> None:
        super().__init__(why)
        self.why = why
        self.place = place


@dataclass
class Salvaged:
    """What a block held: sound events as pieces of JSON, rejected ones, and where its text was left."""

    pieces: list[bytes] = field(default_factory=list)
    """Events, one or several with commas between them, each valid JSON."""
    ordinals: list[int] = field(default_factory=list)
    """The ordinal of each sound event among all events of the block."""
    rejects: list[Reject] = field(default_factory=list)
    repairs: Counter[str] = field(default_factory=Counter)
    first_repair: int | None = None
    """Byte of the document where the first repair was made."""
    events: int = 0
    consumed: int = 0
    """Bytes of the block that were dealt with; what follows is the beginning of an event that ends elsewhere."""
    array_ended: bool = False
    false_end: bool = False
    """What looked like the array's end stands inside an event: the file is cut."""

    @property
    def array(self) -> bytes:
        """The sound events as one JSON array."""
        return b"[%b]" % b",".join(self.pieces)

    def keep(self, piece: bytes, count: int = 1) -> None:
        """Note sound events."""
        self.pieces.append(piece)
        self.ordinals.extend(range(self.events, self.events + count))
        self.events += count

    def reject(self, offset: int, text: bytes, reason: str) -> None:
        """Note an event that cannot be stored."""
        self.rejects.append(Reject(self.events, offset, reason, masked(text[:_SAMPLE])))
        self.events += 1

    def repair(self, offset: int, kinds: Counter[str]) -> None:
        """Note what was repaired at a byte of the document."""
        self.repairs += kinds
        if self.first_repair is None:
            self.first_repair = offset


class Depth(Enum):
    """What must be looked at byte by byte."""

    DAMAGED = auto()
    """What is no sound event."""
    KEYS = auto()
    """Also objects that hold a key twice, of which DuckDB takes the first value and JSON the last."""
    EVERY_EVENT = auto()
    """All, since the parser minds something that nobody foresaw."""


def salvage(block: Block, connection: duckdb.DuckDBPyConnection, depth: Depth = Depth.DAMAGED) -> Salvaged:
    """Return the events of a block that the parser refused."""
    return _Salvage(block, connection, depth).run()


class _Salvage:
    def __init__(self, block: Block, connection: duckdb.DuckDBPyConnection, depth: Depth) -> None:
        self.block = block
        self.connection = connection
        self.depth = depth
        self.text = block.text()
        self.latin = self.text.decode("latin-1")
        self.behind_sound = False
        self.found = Salvaged()

    def run(self) -> Salvaged:
        """Keep the runs of sound pieces as they are; look at the events of the others one by one."""
        if self.depth is Depth.EVERY_EVENT:
            self._singly(0, len(self.text))
            return self.found
        pieces = cut_in_pieces(self.text, self.connection, keys_once=self.depth is Depth.KEYS)
        first = 0
        for suspect in pieces.suspects:
            if first <= suspect:  # else an event reached over this piece
                self._keep_run(pieces, first, suspect)
                first = self._look_at(pieces, suspect)
        self._keep_run(pieces, first, pieces.count)
        return self.found

    def _keep_run(self, pieces: Pieces, first: int, until: int) -> None:
        """Keep sound pieces from `first` up to `until`."""
        if first < until:
            self.found.keep(self.text[pieces.starts[first] : pieces.end(until - 1)], until - first)
            self.found.consumed = pieces.starts[until]
            self.behind_sound = True

    def _look_at(self, pieces: Pieces, suspect: int) -> int:
        """Look at the events of a suspect and on to the next start of a piece; return its number.

        A number behind all pieces means that the block is dealt with.
        """
        at = pieces.starts[suspect]
        while self._singly(at, pieces.starts[bisect_right(pieces.starts, at)]):
            at = self.found.consumed
            number = bisect_left(pieces.starts, at)
            if pieces.starts[number] == at:
                return number
        return len(pieces.starts)

    def _singly(self, at: int, until: int) -> bool:
        """Look at the events that start before `until` one by one; False when the block is dealt with."""
        first = at == 0
        while True:
            at = self._step_over_separators(at, first)
            first = False
            if at >= len(self.text):
                self.found.consumed = len(self.text)
                return False
            if self.latin[at] == "]" and self._is_array_end(at):
                self.found.consumed = at + 1
                self.found.array_ended = True
                return False
            if at >= until:
                self.found.consumed = at
                return True
            end = self._event(at)
            if end is None:
                self.found.consumed = at
                return False
            at = end

    def _step_over_separators(self, at: int, first: bool) -> int:
        """Return where the next element begins; between two there must be one comma, before `]` none."""
        match = _SEPARATORS.match(self.latin, at)
        assert match is not None
        end = match.end()
        wanted = 0 if first or end == len(self.text) or self.latin[end] == "]" else 1
        commas = match.group().count(",")
        if commas > wanted and end < len(self.text):
            self.found.repair(self.block.offset + at, Counter({"stray comma": commas - wanted}))
        elif commas < wanted and self.latin[at - 1] == "}":
            self.found.repair(self.block.offset + at, Counter({"missing comma": 1}))
        return end

    def _is_array_end(self, at: int) -> bool:
        """Say whether the `]` at `at`, where an event should begin, closes the array of events.

        It does when the rest is what a document needs to be complete, and nothing or another document follows; or,
        right behind a sound event, when that is so as far as the text goes and the array's end is not known otherwise.
        """
        rest = '{"":0' + self.latin[at + 1 :]
        try:
            _, end = _decoder.raw_decode(rest)
        except json.JSONDecodeError as error:
            ran_out = error.pos >= len(rest.rstrip()) - _LONGEST_WORD or error.msg.startswith("Unterminated")
            return ran_out and self.behind_sound and not self.block.after
        except (RecursionError, ValueError):  # nested too deeply, or a number of thousands of digits
            return False
        return rest[end:].lstrip()[:1] in ("", "{", "[")

    def _event(self, at: int) -> int | None:
        """Deal with the event at `at`; return where it ends, None when its end is not in this block."""
        self.behind_sound = False
        try:
            _, end = self._decoded(at)
        except _UndecodableError as error:
            end = self._next_start(at)
            if end == len(self.text) and self.latin[at] == "{":
                if self._goes_on(error, at):
                    self.found.false_end = self.block.is_last
                    return None
                if not self.block.is_last and end - at < _LONGEST_DAMAGE:
                    return None  # the block may have been cut inside this event: look at it with more text behind it
            self._damaged(at, end, error.why)
            return end
        if self.latin[at] != "{" and not _BEHIND_ELEMENT.match(self.latin, end):  # no element, but loose text
            end = self._next_start(at)
        event = self.text[at:end]
        if self.depth is not Depth.DAMAGED or not _is_sound(event):
            self._damaged(at, end, "not an event")
        else:
            self.found.keep(event)
        self.behind_sound = True
        return end

    def _decoded(self, at: int) -> tuple[object, int]:
        """Return the value at `at` and where it ends. Raises _UndecodableError.

        The text is decoded in windows that grow where they are too short: an error costs time in proportion to the text
        before it.
        """
        size = _WINDOW
        while True:
            window = self.latin[at : at + size]
            try:
                value, end = _decoder.raw_decode(window)
            except RecursionError as error:
                raise _UndecodableError("nested too deeply", at) from error
            except json.JSONDecodeError as error:
                ran_out = error.pos >= len(window) - _LONGEST_WORD or error.msg.startswith("Unterminated")
                if ran_out and at + size < len(self.latin):
                    size *= 8
                    continue
                raise _UndecodableError(error.msg[:1].lower() + error.msg[1:], at + error.pos) from error
            except ValueError as error:
                raise _UndecodableError("a number of thousands of digits", at) from error
            return value, at + end

    def _goes_on(self, error: _UndecodableError, at: int) -> bool:
        """Say whether the text is sound up to the block's end, so that the event goes on behind it."""
        if self.block.is_last and not self.block.after:
            return False
        return error.place >= len(self.latin.rstrip()) and len(self.text) - at < _LONGEST_EVENT

    def _next_start(self, at: int) -> int:
        """Return where the next event begins behind a damaged one, or the block's end.

        An event begins where a sound one can be read, or, damaged itself, behind `},` with a phase before the next such
        place.
        """
        for start in _EVENT_START.finditer(self.latin, at + 1):
            place = start.start()
            try:
                value, _ = self._decoded(place)
            except _UndecodableError:
                if _BEHIND_EVENT.search(self.latin, max(at, place - 200), place):
                    following = BOUNDARY.search(self.text, place)
                    if _PHASE.search(self.latin, place, following.start() if following else len(self.latin)):
                        return place
                continue
            if _is_event(value):
                return place
        return len(self.text)

    def _damaged(self, at: int, end: int, why: str) -> None:
        """Repair the event that stands between two places, or reject it."""
        text = self.text[at:end].rstrip(b", \t\r\n")
        fixed = repaired(text)
        if fixed is not None:
            event, kinds = fixed
            if kinds:
                self.found.repair(self.block.offset + at, kinds)
            self.found.keep(event)
            return
        if another := _DOCUMENT.search(text):
            raise InputError(
                f"another trace begins inside of this one, near byte {self.block.offset + at + another.start():,}: one"
                " was cut and another written behind it, or several processes wrote at once; one trace per file, please"
            )
        cut = self.block.is_last and not self.block.after and end == len(self.text)
        self.found.reject(self.block.offset + at, text, "cut off where the file ends" if cut else why)


def _is_event(value: object) -> bool:
    """Say whether a value has what events have and objects inside of args practically never."""
    return isinstance(value, dict) and "ph" in value and "pid" in value and ("ts" in value or value["ph"] == "M")


def _is_sound(event: bytes) -> bool:
    """Say whether a text is valid JSON of an event that the parser takes."""
    try:
        value = orjson.loads(event)
    except orjson.JSONDecodeError:
        return False
    return isinstance(value, dict) and is_sound(value)
