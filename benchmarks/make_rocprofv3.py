"""Make a big rocprofv3 JSON by repeating the records of one with shifted times and ids.

usage: python benchmarks/make_rocprofv3.py SOURCE.json[.gz] OUT.json[.gz] [--bytes 1e9]

Every copy of a list's records is moved behind the one before it in time, and correlation and dispatch ids are shifted,
so the result looks like one long run: no two launches share an id. The head with its kernel symbols stays as it is.
Memory: the source in raw form, once or twice.
"""

from __future__ import annotations

import argparse
import gzip
import re
from collections.abc import Iterator
from pathlib import Path

SHIFTED = re.compile(rb'("start_timestamp"|"end_timestamp"|"internal"|"dispatch_id"):(\d+)')
LISTS = re.compile(rb'"(kernel_dispatch|hip_api|memory_copy)":\[(?=\{)')


def _pieces(raw: bytes, target: int) -> Iterator[bytes]:
    """Yield the pieces of the big file: what stands between the lists as it is, and copies of their records."""
    starts = [int(m.group(2)) for m in SHIFTED.finditer(raw) if m.group(1) == b'"start_timestamp"']
    ids = [int(m.group(2)) for m in SHIFTED.finditer(raw) if m.group(1) == b'"internal"']
    span, id_span = max(starts) - min(starts) + 1_000_000, max(ids) + 1
    spans = []
    for found in LISTS.finditer(raw):
        end = re.compile(rb'\}\](?=,"|\}\})').search(raw, found.end())
        assert end is not None
        while raw[end.end() : end.end() + 9] == b',"retval"':  # the end of a call's arguments
            end = re.compile(rb'\}\](?=,"|\}\})').search(raw, end.end())
            assert end is not None
        spans.append((found.end(), end.start() + 1))
    size = sum(end - start for start, end in spans)
    copies = max(1, round((target - len(raw) + size) / size))
    at = 0
    for start, end in spans:
        yield raw[at:start]
        for copy in range(copies):

            def shift(m: re.Match[bytes], copy: int = copy) -> bytes:
                by = copy * (span if m.group(1).endswith(b'timestamp"') else id_span)
                return b"%b:%d" % (m.group(1), int(m.group(2)) + by)

            yield (b"," if copy else b"") + (SHIFTED.sub(shift, raw[start:end]) if copy else raw[start:end])
        at = end
    yield raw[at:]


def make(source: Path, out: Path, target: int) -> None:
    """Write about `target` bytes of raw JSON to `out` (gzip level 6 when it ends in `.gz`)."""
    raw = gzip.decompress(source.read_bytes()) if source.suffix == ".gz" else source.read_bytes()
    with gzip.open(out, "wb", 6) if out.suffix == ".gz" else out.open("wb") as file:
        for piece in _pieces(raw, target):
            file.write(piece)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--bytes", type=float, default=1e9)
    args = parser.parse_args()
    make(args.source, args.out, int(args.bytes))
