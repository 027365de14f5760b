"""Damages traces in the ways that files get damaged, one event at a time, and knows which events it left alone."""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from hypothesis import strategies as st

from tests.tracegen import cpu_op, kernel

KINDS = ("flip", "delete", "insert", "splice", "rename", "enlarge")
_KEY = re.compile(rb'"([^"\\]{1,20})"\s*:')
_NUMBER = re.compile(rb"(?<=[:\[,\s])-?\d[\d.]*")
_NAMES = (b"ph", b"ts", b"dur", b"args", b"name", b"pid", b"", b"Ph", b"tS", b"correlation", b"stream", b"unknown")
_SUFFIXES = (b"0" * 20, b"e999", b"e-999", b".5", b"9999999999", b".", b"-", b"E", b"00", b"_0", b"." + b"1" * 40)

Change = tuple[str, float, int, int]
"""A kind, where in the event (0 to 1), a byte, a length."""

changes = st.lists(
    st.tuples(st.sampled_from(KINDS), st.floats(0, 1), st.integers(0, 255), st.integers(1, 20)), min_size=1, max_size=4
)


def generated_events() -> list[dict]:
    """Return events of two kinds whose texts hold what cutting must not fall for."""
    args = {"list": [{"x": 1}, {"name": "y"}], "t": "é\\n"}
    return [
        cpu_op(f"unique {n} }}, {{", n * 3, 2, args=args)
        if n % 3
        else kernel(f"unique {n} }}, {{", n * 3, 2, args=args)
        for n in range(12)
    ]


@cache
def real_events(path: Path) -> list[list[dict]]:
    """Return dozens of events in a row, from all over a real gzip-compressed trace, with unique names."""
    events = json.loads(gzip.decompress(path.read_bytes()), strict=False)["traceEvents"]
    chance = random.Random(0)
    starts = [chance.randrange(max(1, len(events) - 12)) for _ in range(50)]
    return [
        [{**e, "name": f"unique {n} {e.get('name')}"} for n, e in enumerate(events[start : start + 12])]
        for start in starts
    ]


def mutated(text: bytes, change: Change) -> bytes:
    """Return the text of an event with one change made."""
    kind, where, byte, length = change
    at = int(where * (len(text) - 1))
    match kind:
        case "flip":
            return text[:at] + bytes([byte]) + text[at + 1 :]
        case "delete":
            return text[:at] + text[at + length :]
        case "insert":
            return text[:at] + bytes([byte]) * length + text[at:]
        case "splice":
            return text[:at] + text[at // 2 : at // 2 + length] + text[at:]
        case "rename":
            return _replaced(text, _KEY, at, lambda m: b'"' + _NAMES[byte % len(_NAMES)] + b'":')
        case "enlarge":
            return _replaced(text, _NUMBER, at, lambda m: m.group() + _SUFFIXES[byte % len(_SUFFIXES)])
    raise AssertionError(kind)


def _replaced(text, pattern, at, by) -> bytes:
    match = pattern.search(text, at) or pattern.search(text)
    return text[: match.start()] + by(match) + text[match.end() :] if match else text


def mutated_trace(events: list[dict], made: Iterable[Change], layout: dict) -> tuple[bytes, set[str]]:
    """Return a trace with single events changed, and the names of the events that were left alone."""
    texts = [json.dumps(e, ensure_ascii=False, **layout).encode() for e in events]
    touched = set()
    for change in made:
        n = 1 + int(change[1] * 997) % (len(texts) - 2)
        texts[n] = mutated(texts[n], change)
        touched.add(n)
    untouched = {event["name"] for n, event in enumerate(events) if n not in touched}
    return b'{"traceEvents": [' + b", ".join(texts) + b'], "traceName": "x"}', untouched
