"""Make a big Kineto trace by repeating a real one with shifted times and ids.

usage: python benchmarks/make_trace.py SOURCE.json[.gz] OUT.json[.gz] [--bytes 1e9] [--damage 0.01]

Every copy of the events is moved behind the one before it in time, and the ids that must be unique in a
file (correlation, External id, flow id, Ev Idx, Python id) are shifted, so the result looks like one long
profile: no two kernels share a correlation id, and the share of each kind of event is that of the source.
`--damage` puts a wrong byte into that share of the events, at a random place (the same on every run).
Memory: the source in raw form, once.
"""

from __future__ import annotations

import argparse
import gzip
import random
import re
from collections.abc import Iterator
from pathlib import Path

SHIFTED = re.compile(
    rb'("ts"|"correlation"|"External id"|"Ev Idx"|"Python id"|"Python parent id"|"id")(\s*:\s*)(\d+)((?:\.\d+)?)'
)
BOUNDARY = re.compile(rb'(?<=\})\s*,\s*(?=\{\s*"(?:ph|name)"\s*:)')


def _copies(raw: bytes, target: int) -> Iterator[bytes]:
    """Yield the pieces of the big file: head, copies of the events, tail."""
    first = raw.index(b"[", raw.index(b'"traceEvents"')) + 1
    last = re.search(rb"\}\s*\]\s*[,}]", raw[raw.rindex(b'"ph"') :])
    assert last is not None
    end = raw.rindex(b'"ph"') + last.start() + 1
    events = raw[first:end]
    stamps = [int(m.group(3)) for m in SHIFTED.finditer(events) if m.group(1) == b'"ts"']
    ids = [int(m.group(3)) for m in SHIFTED.finditer(events) if m.group(1) != b'"ts"']
    span, id_span = max(stamps) - min(stamps) + 1_000, max(ids) + 1
    yield raw[:first]
    written = 0
    copy = 0
    while written < target:

        def shift(m: re.Match[bytes], copy: int = copy) -> bytes:
            by = copy * (span if m.group(1) == b'"ts"' else id_span)
            return b"%b%b%d%b" % (m.group(1), m.group(2), int(m.group(3)) + by, m.group(4))

        piece = SHIFTED.sub(shift, events) if copy else events
        if written + len(piece) > target:  # end the last copy at an event, near the wanted size
            cut = BOUNDARY.search(piece, max(0, target - written))
            piece = piece[: cut.start()] if cut else piece
        yield piece if copy == 0 else b", " + piece
        written += len(piece)
        copy += 1
    yield raw[end:]


def damaged(piece: bytes, share: float, chance: random.Random) -> bytes:
    """Return the events with a wrong byte in some of them."""
    starts = [m.end() for m in BOUNDARY.finditer(piece)]
    text = bytearray(piece)
    for start in chance.sample(starts, int(share * len(starts))):
        text[start - chance.randrange(5, 60)] = chance.choice(b'\x02"}{,x')
    return bytes(text)


def make(source: Path, out: Path, target: int, damage: float = 0.0) -> None:
    """Write about ``target`` bytes of raw JSON to ``out`` (gzip level 6 when it ends in ``.gz``)."""
    chance = random.Random(1)
    raw = gzip.decompress(source.read_bytes()) if source.suffix == ".gz" else source.read_bytes()
    with gzip.open(out, "wb", 6) if out.suffix == ".gz" else out.open("wb") as f:
        for piece in _copies(raw, target):
            f.write(damaged(piece, damage, chance) if damage else piece)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--bytes", type=float, default=1e9)
    parser.add_argument("--damage", type=float, default=0.0)
    args = parser.parse_args()
    make(args.source, args.out, int(args.bytes), args.damage)
