"""Reader for rocprofv3's JSON, from rocprofiler-sdk 0.5 to 1.3."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from traceanalyzer.errors import InputError
from traceanalyzer.readers.base import Batch, Facts, Form, HowToRead, Recognised
from traceanalyzer.readers.kineto_facts import integer
from traceanalyzer.readers.recording import Recording, in_order
from traceanalyzer.readers.rocprofv3_document import HEAD_KEYS, SYMBOLS, TOOL_KEY, Records, Rocprofv3Document
from traceanalyzer.readers.rocprofv3_facts import fill_facts, process_of
from traceanalyzer.readers.rocprofv3_names import KernelNames, RecordNames
from traceanalyzer.readers.rocprofv3_parser import Context, ParsedRecords, parse_records, parse_symbols
from traceanalyzer.readers.source import ByteSource, JsonFile

_HEAD: Final = 64 << 10
_SUFFIXES: Final = ("_results.json", "_results.json.gz", "_results.json.zst")
_FEW_REJECTS: Final = 8
"""So many damaged records are no reason to refuse a file, however short it is."""
RICHNESS: Final = 3
COLLECTOR: Final = "rocprofv3"


class Rocprofv3Reading:
    """The records of one process; see `base.TraceReading`."""

    def __init__(self, source: ByteSource, document: Rocprofv3Document, how: HowToRead) -> None:
        """Read what the process whose head was just read has recorded."""
        self._source = source
        self._document = document
        self._how = how
        head = document.metadata
        process = process_of(head.get("metadata"), head.get("agents"))
        self._recording = Recording(process)
        self.facts = self._recording.facts
        strings = head.get("strings")
        is_new = isinstance(head.get("metadata"), dict) and "node" in head["metadata"]
        self.facts.profiler = f"rocprofv3 JSON, rocprofiler-sdk {'1.0 or newer' if is_new else 'before 1.0'}"
        self._kernels = KernelNames()
        self._context = Context(
            process.pid, process.device_of(), self._kernels, RecordNames.of(strings), _markers(strings)
        )

    def __iter__(self) -> Iterator[Batch]:
        """Yield the records in file order, typed, behind what the process says about itself.

        Raises NothingToAnalyse when it recorded nothing, InputError for what is not rocprofv3's JSON.
        """
        for list_name, parsed in in_order(self._how, self._tasks()):
            self._note_repairs(parsed)
            yield from self._recording.batches(parsed.rows, parsed.events, list_name, parsed.rejects)
        self._complete_facts()

    @property
    def has_records(self) -> bool:
        """Whether any record was read."""
        return self._recording.recorded.total() > 0

    def _tasks(self) -> Iterator[Callable[[], tuple[str, ParsedRecords]]]:
        """Yield a task per block of records; kernel symbols are taken in on the way."""
        while records := self._document.next_block():
            if records.list_name == SYMBOLS and not records.group:
                self._note_repairs(parse_symbols(records, self._kernels))
            else:
                yield partial(self._parse, records)

    def _parse(self, records: Records) -> tuple[str, ParsedRecords]:
        return records.list_name, parse_records(records, self._context)

    def _note_repairs(self, parsed: ParsedRecords) -> None:
        self.facts.repairs += parsed.repairs
        if self.facts.first_repair is None:
            self.facts.first_repair = parsed.first_repair

    def _complete_facts(self) -> None:
        facts, rejected, total = self.facts, self._recording.rejected, self._recording.recorded.total()
        if late := self._document.late:
            raise InputError(
                f"its keys are in another order than rocprofv3 writes them: {', '.join(late)} must stand before the"
                " records (re-saved by another tool with its keys sorted?)"
            )
        if rejected > max(_FEW_REJECTS, total // 2):
            raise InputError(f"{rejected:,} of {total:,} records cannot be read: damaged")
        for end in (self._source.damage, self._document.incomplete):
            if end:
                facts.complete = False
                facts.warnings.append(end)
        if self._document.problems:
            facts.warnings.extend(self._document.problems)
            facts.repairs["malformed part of the head left out"] += len(self._document.problems)
            facts.first_repair = facts.first_repair or 0
        self._recording.finish()


def _markers(strings: object) -> dict[int, str]:
    """Return the texts of markers by correlation id."""
    pairs = strings.get("marker_api") if isinstance(strings, dict) else None
    texts = {}
    for pair in pairs if isinstance(pairs, list) else ():
        key = integer(pair.get("key")) if isinstance(pair, dict) else None
        if key is not None and isinstance(pair.get("value"), str):
            texts[key] = pair["value"]
    return texts


class Rocprofv3JsonReader:
    """rocprofv3's JSON: <host>/<pid>_results.json."""

    collector = COLLECTOR
    form = Form.JSON
    reads_converted = False

    def recognise(self, path: Path) -> Recognised | None:
        """Claim a JSON document that begins with rocprofv3's own key."""
        with ByteSource(path) as source:
            if f'"{TOOL_KEY}"'.encode() not in source.read(_HEAD):
                return None
        what, process = "rocprofv3 JSON", process_of_file(path, _SUFFIXES)
        with ByteSource(path) as source:
            document = Rocprofv3Document(source, _HEAD, HEAD_KEYS)
            try:
                if not document.next_process():
                    return None
            except InputError as error:
                return Recognised(what, problem=InputError(f"{path}: {error}"))
            head = document.metadata
            if is_converted(head) is not self.reads_converted:
                return None
            facts = Facts()
            fill_facts(facts, process_of(head.get("metadata"), head.get("agents")))
        return Recognised(what, self, facts, process=process, richness=RICHNESS)

    def files(self, path: Path) -> list[Path]:
        return [path]

    def open(self, path: Path, how: HowToRead) -> JsonFile:
        return JsonFile(path, how, lambda source: readings(source, how))


def is_converted(head: dict[str, Any]) -> bool:
    """Say whether another tool, rocm_trace_lite, wrote a process's head in rocprofv3's form."""
    agents = head.get("agents")
    named = [a.get("name") for a in agents if isinstance(a, dict)] if isinstance(agents, list) else []
    has_config = isinstance(head.get("metadata"), dict) and "config" in head["metadata"]
    return not has_config and any(str(name).startswith("GPU-Agent-") for name in named)


def readings(source: ByteSource, how: HowToRead) -> Iterator[Rocprofv3Reading]:
    document = Rocprofv3Document(source, how.block_size, HEAD_KEYS)
    last: Rocprofv3Reading | None = None
    while document.next_process():
        reading = Rocprofv3Reading(source, document, how)
        yield reading
        last = reading if reading.has_records else last
    if last and document.incomplete and last.facts.complete:  # between two processes, or behind the last one
        last.facts.complete = False
        last.facts.warnings.insert(0, document.incomplete)


def process_of_file(path: Path, suffixes: tuple[str, ...]) -> str | None:
    """Return what stands before a known ending of the file's name: '908' of 908_results.json."""
    return next((path.name.removesuffix(suffix) for suffix in suffixes if path.name.endswith(suffix)), None)
