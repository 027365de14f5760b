"""Reader for rocprofv3's JSON, from rocprofiler-sdk 0.5 to 1.3."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from traceanalyzer.errors import InputError, NothingToAnalyse
from traceanalyzer.readers.base import Batch, Facts, Form, HowToRead, Recognised
from traceanalyzer.readers.kineto_facts import integer
from traceanalyzer.readers.rocprofv3_document import HEAD_KEYS, SYMBOLS, TOOL_KEY, Records, Rocprofv3Document
from traceanalyzer.readers.rocprofv3_facts import Process, fill_facts, guess_from_devices, process_of
from traceanalyzer.readers.rocprofv3_names import KernelNames, RecordNames
from traceanalyzer.readers.rocprofv3_parser import Context, ParsedRecords, parse_records, parse_symbols
from traceanalyzer.readers.rocprofv3_rows import table
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
        self.facts = Facts()
        self._source = source
        self._document = document
        self._how = how
        head = document.metadata
        self._process = process_of(head.get("metadata"), head.get("agents"))
        fill_facts(self.facts, self._process)
        strings = head.get("strings")
        is_new = isinstance(head.get("metadata"), dict) and "node" in head["metadata"]
        self.facts.profiler = f"rocprofv3 JSON, rocprofiler-sdk {'1.0 or newer' if is_new else 'before 1.0'}"
        self._kernels = KernelNames()
        self._context = Context(
            self._process.pid, self._process.device_of(), self._kernels, RecordNames.of(strings), _markers(strings)
        )
        self._events = 0
        self._rejected = 0
        self._recorded: Counter[str] = Counter()
        self._noticed: Counter[str] = Counter()
        self._devices: set[int] = set()

    def __iter__(self) -> Iterator[Batch]:
        """Yield the records in file order, typed, behind what the process says about itself.

        Raises NothingToAnalyse when it recorded nothing, InputError for what is not rocprofv3's JSON.
        """
        about: Batch | None = about_process(self._process)
        waiting: deque[tuple[Records, Future[ParsedRecords]]] = deque()
        try:
            while True:
                while len(waiting) < self._how.lookahead and (records := self._next()):
                    waiting.append((records, self._how.pool.submit(parse_records, records, self._context)))
                if not waiting:
                    break
                records, future = waiting.popleft()
                parsed = future.result()
                if about:
                    self._devices |= parsed.rows.devices
                    guess_from_devices(self.facts, self._process, self._devices)
                    yield self._about(about)
                    about = None
                yield self._batch(records, parsed)
        finally:
            for _, future in waiting:
                future.cancel()
        self._complete_facts()

    @property
    def has_records(self) -> bool:
        """Whether any record was read."""
        return self._recorded.total() > 0

    def _next(self) -> Records | None:
        """Return the next block of records; kernel symbols are taken in on the way."""
        while records := self._document.next_block():
            if records.list_name != SYMBOLS or records.group:
                return records
            self._note_repairs(parse_symbols(records, self._kernels))
        return None

    def _about(self, batch: Batch) -> Batch:
        self._events += batch.events
        return batch

    def _batch(self, records: Records, parsed: ParsedRecords) -> Batch:
        """Number the records as in the file."""
        import pyarrow as pa
        import pyarrow.compute as pc

        base = pa.scalar(self._events, pa.int64())
        tables = {
            name: rows.set_column(0, "event_id", pc.add(rows.column("event_id"), base))
            for name, rows in parsed.rows.tables.items()
            if rows.num_rows
        }
        rejects = [replace(r, event_id=r.event_id + self._events) for r in parsed.rejects]
        self._events += parsed.events
        self._rejected += len(rejects)
        self._recorded[records.list_name] += parsed.events
        self._noticed += parsed.rows.noticed
        self._devices |= parsed.rows.devices
        self._note_repairs(parsed)
        return Batch(parsed.events, tables, rejects)

    def _note_repairs(self, parsed: ParsedRecords) -> None:
        self.facts.repairs += parsed.repairs
        if self.facts.first_repair is None:
            self.facts.first_repair = parsed.first_repair

    def _complete_facts(self) -> None:
        facts, recorded = self.facts, self._recorded
        if late := self._document.late:
            raise InputError(
                f"its keys are in another order than rocprofv3 writes them: {', '.join(late)} must stand before the"
                " records (re-saved by another tool with its keys sorted?)"
            )
        for end in (self._source.damage, self._document.incomplete):
            if end:
                facts.complete = False
                facts.warnings.append(end)
        if not recorded.total():
            facts.warnings.append("no records")
            raise NothingToAnalyse("a process without any records: a helper that only loaded the GPU's runtime")
        if self._rejected > max(_FEW_REJECTS, recorded.total() // 2):
            raise InputError(f"{self._rejected:,} of {recorded.total():,} records cannot be read: damaged")
        if self._document.problems:
            facts.warnings.extend(self._document.problems)
            facts.repairs["malformed part of the head left out"] += len(self._document.problems)
            facts.first_repair = facts.first_repair or 0
        facts.warnings.extend(noticed_warnings(self._noticed))
        guess_from_devices(facts, self._process, self._devices)
        explain_missing_kernels(facts, recorded)


def about_process(process: Process) -> Batch:
    """Return what a process says about itself as rows of `threads`: when it ran, and each of its agents."""
    import pyarrow as pa

    texts, values, tids = [json.dumps({"init_time": process.init_ns, "fini_time": process.fini_ns})], [process.host], []
    names = ["process"]
    for agent in process.agents:
        names.append("agent")
        values.append(agent.product)
        tids.append(None if agent.ordinal is None else str(agent.ordinal))
        texts.append(json.dumps({"kind": agent.kind, "handle": agent.handle, "visible": agent.visible, **agent.facts}))
    rows = len(names)
    pid = None if process.pid is None else str(process.pid)
    columns = {
        "event_id": pa.arange(0, rows),
        "name": pa.array(names),
        "value": pa.array(values, pa.string()),
        "pid": pa.array([pid] * rows, pa.string()),
        "tid": pa.array([None, *tids], pa.string()),
        "start_ns": pa.array([process.init_ns] + [None] * (rows - 1), pa.int64()),
        "args": pa.array(texts),
    }
    return Batch(rows, {"threads": table("threads", columns)})


def noticed_warnings(noticed: Counter[str]) -> list[str]:
    """Say how many records could not be named."""
    return [f"{count:,} {what}" for what, count in sorted(noticed.items()) if count]


def explain_missing_kernels(facts: Facts, recorded: Counter[str]) -> None:
    """Say what kind of run it was when no kernel was recorded, by the records there are."""
    if recorded["kernel_dispatch"]:
        return
    counters = sum(recorded[name] for name in ("counter_collection", "spm_counter_collection"))
    samples = sum(recorded[name] for name in ("pc_sample_host_trap", "pc_sample_stochastic"))
    if counters:
        facts.warnings.append(
            "no kernel dispatches but counters: a run that collects counters executes kernels one by one, so its times"
            " say nothing about the training; record again with --kernel-trace"
        )
    elif samples:
        facts.warnings.append("no kernel dispatches but samples of program counters; record with --kernel-trace")
    elif not recorded["memory_copy"]:
        facts.is_helper = True


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
