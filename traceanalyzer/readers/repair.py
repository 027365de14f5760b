"""Repairs single events whose JSON is damaged in the ways that profilers are known to damage it.

Each repair has a name that is counted and shown. Nothing is guessed: a value that cannot be known becomes null, a
text is kept byte by byte where that is possible, and an event that needs more than this is rejected.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Set
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

_STRING: Final = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_NON_FINITE: Final = re.compile(
    rf"({_STRING})|(?<=[:\[,\s])[-+]?(?:nan|inf(?:inity)?|n/a)(?=\s*[,\]}}])", re.IGNORECASE | re.DOTALL
)
_BAD_ESCAPE: Final = re.compile(r'(\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))|\\')
_HALF_PAIR: Final = re.compile("[\ud800-\udfff]")
_TRAILING_COMMA: Final = re.compile(rf"({_STRING})|,(?=\s*[}}\]])", re.DOTALL)
_NAME: Final = re.compile(
    r'("name"\s*:\s*")(.*?)("\s*,\s*"(?:ph|cat|pid|tid|ts|dur|args|id|s|bp)"\s*:|"\s*\}\s*\Z)', re.DOTALL
)
_TIMES: Final = ("ts", "dur")
_LATEST: Final = Decimal("1e17")
_MARKS_OF_AN_EVENT: Final = frozenset({"ph", "cat", "name", "ts"})

_SECRET_PAIR: Final = re.compile(
    r'("[^"]*(?:token|secret|passw|credential|api_?key|private|auth)[^"]*"\s*:\s*)("(?:[^"\\]|\\.)*"?|[^,}\]\s]+)',
    re.IGNORECASE,
)
_SECRET_WORD: Final = re.compile(
    r"\b(?:AKIA[0-9A-Z]{12,}|gh[pousr]_\w{16,}|hf_\w{16,}|sk-[\w-]{16,}|xox\w-[\w-]{10,}|bearer\s+\S+"
    r"|eyJ[\w-]{10,}[.\w-]*|(?:token|secret|password|passwd|api_?key)\s*[=:]\s*[^\s\",}]+)",
    re.IGNORECASE,
)


def masked(text: bytes) -> str:
    """Return a sample of a text with what looks like a secret masked, readable whatever its bytes.

    >>> masked(b'{"AUTH_TOKEN": "abc", "x": 1}')
    '{"AUTH_TOKEN": "***", "x": 1}'
    """
    shown = text.decode("utf-8", "replace")
    return _SECRET_WORD.sub("***", _SECRET_PAIR.sub(r'\1"***"', shown))


def is_sound(event: dict[str, Any]) -> bool:
    """Say whether the times of an event are numbers (or texts of numbers), which the parser insists on."""
    for key in _TIMES:
        value = event.get(key)
        if type(value) is float or type(value) is int:  # nearly always: this runs for every event of a damaged block
            if not -1e17 < value < 1e17:
                return False
        elif not _is_time(value):
            return False
    return True


def _is_time(value: object) -> bool:
    if value is None:
        return True
    if isinstance(value, bool) or not isinstance(value, int | float | str | _Number):
        return False
    try:
        return -_LATEST < Decimal(value.text if isinstance(value, _Number) else value) < _LATEST
    except ArithmeticError:  # no number, or one with an exponent beyond all bounds
        return False


@dataclass(frozen=True)
class _Number:
    """A number with a point or an exponent, with the digits that it came with."""

    text: str


def repaired(text: bytes, marks: Set[str] = _MARKS_OF_AN_EVENT) -> tuple[bytes, Counter[str]] | None:
    """Return a damaged event as valid JSON with the repairs that were made, None when it cannot be repaired.

    Tries the repairs one after the other, each on top of those before it, until the text is a JSON object that has
    one of the keys in `marks`.
    """
    kinds: Counter[str] = Counter()
    try:
        shown = text.decode()
    except UnicodeDecodeError:
        shown = text.decode("utf-8", "replace")
        kinds["bytes that are not UTF-8"] = 1
    for fix in (None, _non_finite, _escapes, _trailing_commas, _quotes):
        if fix:
            shown, kind, count = fix(shown)
            if not count:
                continue
            kinds[kind] += count
        event = _decoded(shown, kinds, marks)
        if event is not None:
            return _encoded(event, kinds), +kinds
    return None


def _decoded(text: str, kinds: Counter[str], marks: Set[str]) -> dict[str, Any] | None:
    """Return the event that the text holds, None when it holds none.

    Raw control characters in texts are taken as they are; of a key that comes twice, the last counts.
    """
    for strict in (True, False):
        more: Counter[str] = Counter()

        def pairs(items: list[tuple[str, Any]], more: Counter[str] = more) -> dict[str, Any]:
            value = dict(items)
            more["duplicate key"] += len(items) - len(value)
            return value

        def null(_: str, more: Counter[str] = more) -> None:
            more["number that is not finite"] += 1

        decoder = json.JSONDecoder(strict=strict, object_pairs_hook=pairs, parse_constant=null, parse_float=_Number)
        try:
            value = decoder.decode(text)
        except (ValueError, RecursionError):
            continue
        if not isinstance(value, dict) or not value.keys() & marks:
            return None
        if not strict:
            more["control character"] += 1
        kinds += more
        return value
    return None


def _encoded(event: dict[str, Any], kinds: Counter[str]) -> bytes:
    """Return the event as JSON; a time that is no number is dropped, the event is then incomplete."""
    for key in _TIMES:
        if not _is_time(event.get(key)):
            event[key] = None
            kinds["time that is no number"] += 1
        elif isinstance(number := event.get(key), _Number):
            event[key] = number.text  # as text no digit is lost, and the parser takes it
    text = _with_every_digit(event)
    if _HALF_PAIR.search(text):  # an escaped half of a surrogate pair is no character
        text = _HALF_PAIR.sub("\N{REPLACEMENT CHARACTER}", text)
        kinds["half a surrogate pair"] += 1
    return text.encode()


def _with_every_digit(event: dict[str, Any]) -> str:
    """Return the event as JSON text, its numbers with the digits that they came with."""
    mark = "#"
    text = json.dumps(event, ensure_ascii=False, default=lambda number: number.text)
    while mark in text:  # a mark that no text of the event holds
        mark += "#"
    marked = json.dumps(event, ensure_ascii=False, default=lambda number: mark + number.text)
    return re.sub(rf'"{mark}([^"]*)"', r"\1", marked)


def _non_finite(text: str) -> tuple[str, str, int]:
    changed = _NON_FINITE.sub(lambda m: m.group(1) or "null", text)
    count = sum(1 for match in _NON_FINITE.finditer(text) if match.group(1) is None)
    return changed, "number that is not finite", count


def _escapes(text: str) -> tuple[str, str, int]:
    changed = _BAD_ESCAPE.sub(lambda m: m.group(1) or "\\\\", text)
    return changed, "invalid escape", int(changed != text)


def _trailing_commas(text: str) -> tuple[str, str, int]:
    changed = _TRAILING_COMMA.sub(lambda m: m.group(1) or "", text)
    return changed, "stray comma", int(changed != text)


def _quotes(text: str) -> tuple[str, str, int]:
    """Escape quotes inside the name: it ends where a quote is followed by the next field."""

    def escape(match: re.Match[str]) -> str:
        inner = re.sub(r'(\\.)|"', lambda m: m.group(1) or '\\"', match.group(2), flags=re.DOTALL)
        return match.group(1) + inner + match.group(3)

    changed = _NAME.sub(escape, text, count=1)
    return changed, "unescaped quote", int(changed != text)
