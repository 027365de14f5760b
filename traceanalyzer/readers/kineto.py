"""Reader for the PyTorch profiler's JSON (Kineto), from torch 1.8 to today's, ROCm and CUDA."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from traceanalyzer.errors import InputError, NothingToAnalyse
from traceanalyzer.readers.base import BLOCKS_AT_ONCE, Batch, Facts, Form, HowToRead, Recognised, Reject
from traceanalyzer.readers.document import Document
from traceanalyzer.readers.json_stream import Block
from traceanalyzer.readers.kineto_facts import KEPT_KEYS, fill_facts, metadata_at_end
from traceanalyzer.readers.kineto_parser import BlockRefused, KeyTwiceRefused, Parsed, parser_of_thread
from traceanalyzer.readers.repair import masked
from traceanalyzer.readers.salvage import Depth, Salvaged, salvage
from traceanalyzer.readers.source import ByteSource, JsonFile

_HEAD: Final = 64 << 10
_FEW_REJECTS: Final = 8
"""So many damaged events are no reason to refuse a file, however short it is."""
_EPOCH_FROM_NS: Final = 10**17
"""A time without base that is later than 1973 is a Unix time."""


@dataclass
class _Result:
    """What became of some blocks in a row: typed rows, and, of a single damaged block, what was salvaged."""

    last: Block
    parsed: Parsed | None
    found: Salvaged | None = None

    @property
    def leaves_text(self) -> bool:
        """Whether the block does not end where its last event does, so that the cuts behind it are wrong."""
        found = self.found
        return found is not None and (found.array_ended or found.false_end or found.consumed < self.last.size)


_Waiting = tuple[list[Block], Future[list[_Result]]]


class KinetoReading:
    """One Kineto file being read; see `base.TraceReading`."""

    def __init__(self, source: ByteSource, how: HowToRead) -> None:
        self.facts = Facts()
        self._source = source
        self._document = Document(source, how.block_size, KEPT_KEYS)
        self._pool = how.pool
        self._lookahead = how.lookahead
        self._exact = threading.Event()
        self._events = 0
        self._rejected = 0
        self._latest_ns = 0

    def __iter__(self) -> Iterator[Batch]:
        """Yield the events in file order, typed.

        Raises InputError for what is not a JSON trace, or holds several.
        """
        try:
            yield from self._read()
        except InputError as error:
            if self._source.members > 1:
                raise InputError(f"{error} ({self._source.members} compressed streams in one file)") from error
            raise

    def _read(self) -> Iterator[Batch]:
        waiting: deque[_Waiting] = deque()
        try:
            while True:
                while len(waiting) < self._lookahead and (blocks := self._next_blocks(waiting)):
                    waiting.append(self._submit(blocks))
                if not waiting:
                    break
                blocks, future = waiting.popleft()
                results = future.result()
                for result in results:
                    yield self._batch(result.parsed, result.found)
                if results[-1].leaves_text:
                    self._cut_anew(blocks, results[-1], waiting)
        finally:
            for _, future in waiting:
                future.cancel()
        if not self._document.has_events:
            raise InputError("JSON without 'traceEvents': not a trace")
        self._complete_facts()

    def _next_blocks(self, waiting: deque[_Waiting]) -> list[Block]:
        """Return the next blocks to parse together; none at the end, or while the array's end waits for its proof."""
        blocks: list[Block] = []
        last = waiting[-1][0][-1] if waiting else None
        while len(blocks) < BLOCKS_AT_ONCE and not (last and last.is_last):
            last = self._document.next_block()
            if last is None:
                break
            blocks.append(last)
        return blocks

    def _submit(self, blocks: list[Block]) -> _Waiting:
        return blocks, self._pool.submit(self._parse_blocks, blocks)

    # -- in the pool's threads ----------------------------------------------------------------------------------

    def _parse_blocks(self, blocks: list[Block]) -> list[_Result]:
        """Parse blocks together; where that is refused, one by one, and a refused one event by event.

        Stops behind a block that leaves text, since what was cut behind it is cut in the wrong place.
        """
        try:
            return [_Result(blocks[-1], self._parse([block.array for block in blocks]))]
        except BlockRefused as refusal:
            if len(blocks) == 1:
                depth = Depth.KEYS if isinstance(refusal, KeyTwiceRefused) else Depth.DAMAGED
                return [self._salvage(blocks[0], depth)]
        results: list[_Result] = []
        for block in blocks:
            results += self._parse_blocks([block])
            if results[-1].leaves_text:
                break
        return results

    def _salvage(self, block: Block, depth: Depth) -> _Result:
        """Keep what is sound in a refused block, going as deep as it takes."""
        found = salvage(block, parser_of_thread().connection, depth)
        try:
            return _Result(block, self._parse_salvaged(found), found)
        except BlockRefused:
            if depth is not Depth.EVERY_EVENT:
                return self._salvage(block, Depth.EVERY_EVENT)
            self._sift(block, found)
            return _Result(block, self._parse_salvaged(found), found)

    def _sift(self, block: Block, found: Salvaged) -> None:
        """Reject the events that the parser refuses on their own."""
        good: list[int] = []

        def sift(numbers: list[int]) -> None:
            try:
                self._parse([b"[%b]" % b",".join(found.pieces[n] for n in numbers)], salvaged=True)
            except BlockRefused as refusal:
                if len(numbers) > 1:
                    sift(numbers[: len(numbers) // 2])
                    sift(numbers[len(numbers) // 2 :])
                    return
                reason = f"refused by the parser: {str(refusal).splitlines()[0][:120]}"
                sample = masked(found.pieces[numbers[0]][:200])
                found.rejects.append(Reject(found.ordinals[numbers[0]], block.offset, reason, sample))
            else:
                good.extend(numbers)

        if found.pieces:
            sift(list(range(len(found.pieces))))
        found.pieces = [found.pieces[n] for n in good]
        found.ordinals = [found.ordinals[n] for n in good]

    def _parse_salvaged(self, found: Salvaged) -> Parsed | None:
        return self._parse([found.array], salvaged=True) if found.pieces else None

    def _parse(self, arrays: list[bytes], *, salvaged: bool = False) -> Parsed:
        return parser_of_thread().parse(arrays, self._exact, salvaged=salvaged)

    # -- in the reader's thread ---------------------------------------------------------------------------------

    def _cut_anew(self, blocks: list[Block], result: _Result, waiting: deque[_Waiting]) -> None:
        """Give back what a salvaged block leaves and all that was cut behind it, and let it be cut anew."""
        block, found = result.last, result.found
        assert found is not None
        later = [*blocks[blocks.index(block) + 1 :], *(b for group, _ in waiting for b in group)]
        for _, future in waiting:
            future.cancel()
        waiting.clear()
        behind = b"".join(b.text() + b.after for b in later)
        if found.false_end:
            self._document.trust_end = False
        self._document.give_back(block.text(found.consumed) + block.after + behind, array_ended=found.array_ended)
        # The block ended inside its first event: it was cut in a nested list, or the event is larger than a block.
        grow = not found.consumed and not found.array_ended and not block.is_last
        if grow and (larger := self._document.next_block(longer_than=block.size)):
            waiting.append(self._submit([larger]))

    def _batch(self, parsed: Parsed | None, found: Salvaged | None = None) -> Batch:
        """Number the events as in the file; those of a salvaged block with the rejected ones in between."""
        import pyarrow as pa
        import pyarrow.compute as pc

        base = pa.scalar(self._events, pa.int64())
        ordinals = pa.array(found.ordinals, pa.int64()) if found else None

        def numbered(rows: pa.Table) -> pa.Table:
            ids = rows.column("event_id")
            ids = pc.add(pc.take(ordinals, ids) if ordinals is not None else ids, base)
            return rows.set_column(0, "event_id", ids)

        tables = {name: numbered(rows) for name, rows in parsed.tables.items()} if parsed else {}
        rejects = [replace(r, event_id=r.event_id + self._events) for r in found.rejects] if found else []
        events = found.events if found else parsed.events if parsed else 0
        self._events += events
        self._rejected += len(rejects)
        if found:
            self.facts.repairs += found.repairs
            if self.facts.first_repair is None:
                self.facts.first_repair = found.first_repair
        if parsed:
            self._latest_ns = max(self._latest_ns, parsed.latest_ns or 0)
            if self.facts.pid is None:
                self.facts.pid = parsed.pid
        return Batch(events, tables, rejects)

    def _complete_facts(self) -> None:
        """Fill in what is only known at the end.

        Raises InputError when more of the file is damaged than sound.
        """
        if self._rejected > max(_FEW_REJECTS, self._events // 2):
            raise InputError(
                f"{self._rejected:,} of {self._events:,} events cannot be read: damaged, or several writers in one file"
            )
        for end in (self._source.damage, self._document.incomplete):
            if end:
                self.facts.complete = False
                self.facts.warnings.append(end)
        self.facts.warnings.extend(self._document.problems)
        fill_facts(self.facts, self._document.metadata)
        if self.facts.clock_domain == "relative" and self._latest_ns > _EPOCH_FROM_NS:
            self.facts.clock_domain = "epoch"


class KinetoReader:
    """The PyTorch profiler's Chrome-trace JSON."""

    collector = "pytorch"
    form = Form.JSON

    def recognise(self, path: Path) -> Recognised | None:
        """Claim any JSON document with `traceEvents` or a list of events."""
        with ByteSource(path) as source:
            document = Document(source, _HEAD, KEPT_KEYS)
            try:
                document.next_block()
            except InputError as error:
                return Recognised("damaged JSON", problem=InputError(f"{path}: {error}"))
            if not document.has_events:
                problem = NothingToAnalyse(f"{path}: JSON without 'traceEvents': not a trace")
                return Recognised("JSON, not a trace", problem=problem, is_trace=False)
            metadata = dict(document.metadata)
        if "distributedInfo" not in metadata:
            metadata |= metadata_at_end(path)
        facts = Facts()
        fill_facts(facts, metadata)
        return Recognised("PyTorch profiler JSON", self, facts)

    def files(self, path: Path) -> list[Path]:
        return [path]

    def open(self, path: Path, how: HowToRead) -> JsonFile:
        return JsonFile(path, how, lambda source: iter([KinetoReading(source, how)]))
