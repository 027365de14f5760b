"""Small traces for tests: events in one line each, documents in every shape, and stores made of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from traceanalyzer.engine import library
from traceanalyzer.engine.session import Filters, Session
from traceanalyzer.ingest.file import Outcome
from traceanalyzer.ingest.plan import RankChoice, make_plan
from traceanalyzer.ingest.run import Ingest, Resources
from traceanalyzer.store.store import Store, writing

Event = dict[str, Any]


def kernel(name: str, ts: float, dur: float, stream: int = 7, device: int = 0, **more: Any) -> Event:
    """Return a kernel; ts and dur in microseconds."""
    args = {"device": device, "stream": stream, "correlation": 1, **more.pop("args", {})}
    return {
        "ph": "X",
        "cat": "kernel",
        "name": name,
        "pid": device,
        "tid": stream,
        "ts": ts,
        "dur": dur,
        "args": args,
    } | more


def memcpy(ts: float, dur: float, **more: Any) -> Event:
    """Return a copy from host to device."""
    return kernel("Memcpy HtoD (Host -> Device)", ts, dur, **more) | {"cat": "gpu_memcpy"}


def cpu_op(name: str, ts: float, dur: float, **args: Any) -> Event:
    """Return an operator call on the host."""
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 100, "tid": 100, "ts": ts, "dur": dur, "args": args}


def annotation(name: str, ts: float, dur: float) -> Event:
    """Return a range that the user annotated on the host."""
    return cpu_op(name, ts, dur) | {"cat": "user_annotation"}


def launch(ts: float, correlation: int, name: str = "hipLaunchKernel") -> Event:
    """Return the runtime call that launched the work with the same correlation id."""
    return cpu_op(name, ts, 1, correlation=correlation) | {"cat": "cuda_runtime"}


def layers(start_us: float, count: int = 6, spacing: float = 3.0) -> list[Event]:
    """Return the kernels of some layers that are all alike."""
    names = ["gemm", "norm", "attention", "gemm", "swiglu"]
    return [kernel(name, start_us + spacing * n, 2) for n, name in enumerate(names * count)]


def training(starts_us: list[float], micro_batches: int = 1, optimizer: int = 1) -> list[Event]:
    """Return the kernels of steps: per micro batch an embedding, layers and a loss, then the optimizer."""
    made = []
    for start in starts_us:
        for micro in range(micro_batches):
            at = start + 120 * micro
            made += [kernel("copy_batch", at, 1), kernel("embedding", at + 2, 1), *layers(at + 5)]
            made += [kernel("loss", at + 100, 1)]
        at = start + 120 * micro_batches
        made += [kernel("adam", at + 2 * n, 1) for n in range(optimizer)]
    return made


def document(events: list[Event], **keys: Any) -> dict[str, Any]:
    """Return a trace document as the profiler writes it."""
    return {"schemaVersion": 1, **keys, "traceEvents": events}


class Silent:
    """A progress that shows nothing."""

    def file_started(self, path: Path, size: int) -> None:
        """Ignore."""

    def file_advanced(self, path: Path, position: int, events: int) -> None:
        """Ignore."""

    def file_done(self, path: Path) -> None:
        """Ignore."""


@dataclass
class Ingested:
    """A store and what its last ingest did."""

    root: Path
    outcomes: list[Outcome]

    def session(self, **filters: Any) -> Session:
        """Open a session over the store."""
        return Session(Store(self.root), Filters(**filters))

    def named(self, query: str, **parameters: str) -> list[dict[str, Any]]:
        """Return the rows of a named query."""
        return rows(self.session().named(library.named_query(query), parameters))

    def sql(self, text: str) -> list[dict[str, Any]]:
        """Return the rows of an SQL text."""
        return rows(self.session().sql(text))


def rows(result: Any) -> list[dict[str, Any]]:
    """Return a result as dictionaries."""
    return [dict(zip(result.columns, row, strict=True)) for batch in result.batches() for row in batch]


def ingest_files(files: list[Path], root: Path, **options: Any) -> Ingested:
    """Ingest files into the store at `root` as the command line does."""
    ranks = RankChoice(options.get("rank"))
    resources = Resources(options.get("jobs", 2), options.get("memory", 512 << 20))
    plan = make_plan([str(f) for f in files], run=options.get("run"), ranks=ranks, collector="auto")
    with writing(root) as writer:
        outcomes = Ingest(
            writer=writer,
            ranks=ranks,
            resources=resources,
            replace=options.get("replace", False),
            leave_out=frozenset(),
            strict=options.get("strict", False),
            progress=Silent(),
        ).run(plan)
    return Ingested(root, outcomes)


def ingest_events(events: list[Event], root: Path, path: Path, **options: Any) -> Ingested:
    """Write a trace of these events and ingest it."""
    path.write_text(json.dumps(document(events, **options.pop("keys", {}))))
    return ingest_files([path], root, **options)
