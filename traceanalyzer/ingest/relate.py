"""How the files of one ingest belong together: repeats of a process, the run each is of, ranks that only all tell."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from traceanalyzer.errors import InputError
from traceanalyzer.readers.base import Recognised
from traceanalyzer.readers.source import fingerprint

if TYPE_CHECKING:
    from traceanalyzer.ingest.plan import Planned

_PROCESS_FILE: Final = re.compile(r"\d+_\w")
"""rocprofv3 names its files by process, in a folder named by host."""


def without_repeats(plan: list[Planned]) -> list[Planned]:
    """Mark the files that hold nothing new: copies of another file, and other formats of the same process.

    rocprofv3 can write a process in several formats at once; of those the one that says most is read. Collectors'
    post-processing leaves copies of whole folders.
    """
    best: dict[tuple[Path, str], Planned] = {}
    for item in plan:
        key = _process(item)
        if key and (key not in best or item.found.richness > best[key].found.richness):
            best[key] = item
    kept: dict[tuple[int, str], Planned] = {}
    databases = {_place(item) for item in plan if item.found.reader and not item.found.is_export}
    merged = _merged(plan)
    marked = []
    for item in plan:
        key = _process(item)
        if item.path in merged:
            item = _skipped(item, merged[item.path])
        elif item.found.is_export and _place(item) in databases:
            item = _skipped(item, "an export of the database beside it, which says more")
        elif key and best[key] is not item:
            item = _skipped(item, f"the same process as {best[key].path.name}, which is read instead")
        elif key and (others := [o for o in plan if o is not item and _process(o) == key]):
            item = replace(item, otherwise=max(others, key=lambda other: other.found.richness))
        elif item.found.reader and (first := kept.setdefault(_content(item), item)) is not item:
            item = replace(item, copy_of=first.path)
        marked.append(item)
    return marked


def _process(item: Planned) -> tuple[Path, str] | None:
    prefix = item.found.process
    return (item.path.absolute().parent, prefix) if item.found.reader and prefix else None


def _place(item: Planned) -> tuple[Path, str]:
    """Return the folder of a trace and what recorded it."""
    assert item.found.reader is not None
    return item.path.absolute().parent, item.found.reader.collector


def _merged(plan: list[Planned]) -> dict[Path, str]:
    """Return the databases that hold what others beside them hold, each with the reason.

    A database merged from several processes gives way to those of the processes, where all are there; else those that
    are there give way to it.
    """
    beside: dict[tuple[Path, str], list[Planned]] = {}
    for item in plan:
        if item.found.reader and item.found.facts.pids:
            beside.setdefault(_place(item), []).append(item)
    found: dict[Path, str] = {}
    for items in beside.values():
        single = {item.found.facts.pids[0]: item for item in items if len(item.found.facts.pids) == 1}
        for item in items:
            pids = item.found.facts.pids
            if len(pids) > 1 and set(pids) <= set(single):
                found[item.path] = "merged from the databases of its processes, which lie beside it and say more"
            elif len(pids) > 1:
                also = f"its rows are in {item.path.name}, which was merged from it and others"
                found |= {single[pid].path: also for pid in pids if pid in single}
    return found


def _content(item: Planned) -> tuple[int, str]:
    assert item.found.reader is not None
    files = item.found.reader.files(item.path)
    return sum(file.stat().st_size for file in files), fingerprint(files)


def _skipped(item: Planned, why: str) -> Planned:
    problem = InputError(f"{item.path}: {why}")
    return replace(item, found=Recognised(why, problem=problem, is_trace=False), searched=True)


def guess_ranks(plan: list[Planned]) -> list[Planned]:
    """Say of which traces a guessed rank can be right, and guess by the GPUs' places where each process sees one only.

    A process that sees a single GPU numbers it 0; then the places on the PCI bus give the order. On several machines
    the same guesses would come twice, so there is none.
    """
    traces = [item for item in plan if item.found.reader and item.found.facts.rank is None]
    hosts = Counter(key for key, _ in {(_run(item), _host(item)) for item in traces})
    places: dict[tuple[str, str], set[int]] = {}
    for item in traces:
        if (place := item.found.facts.only_gpu_location) is not None:
            places.setdefault(_run(item), set()).add(place)
    # A process that is shown one GPU calls it 0: where several are known to have used the same number, it says nothing.
    used = Counter((_run(item), item.found.facts.guessed_rank) for item in traces if item.found.facts.has_gpu_work)
    guessed = []
    for item in plan:
        facts = item.found.facts
        if item.found.reader and hosts[_run(item)] == 1 and used[_run(item), facts.guessed_rank] < 2:
            item = replace(item, may_guess=True)
            place = facts.only_gpu_location
            if facts.guessed_rank == 0 and place is not None and len(places[_run(item)]) > 1:
                item = replace(item, gpu_in_order=sorted(places[_run(item)]).index(place))
        guessed.append(item)
    return guessed


def _run(item: Planned) -> tuple[str, str]:
    return item.run, item.found.reader.collector if item.found.reader else ""


def _host(item: Planned) -> str:
    return item.found.facts.host or str(item.path.absolute().parent)


def name_runs(plan: list[Planned], bases: list[Path]) -> list[Planned]:
    """Name the runs of searched folders.

    A folder is one run, and the run's name is the folder's, unless the same rank of the same collector (or several
    files of unknown rank from one machine) lies in several folders below it: then each of those is a run.
    """
    below: dict[tuple[Path, str, int | None, str], set[Path]] = {}
    for item, base in zip(plan, bases, strict=True):
        if item.searched and item.found.reader and not item.copy_of:
            host = (item.found.facts.host or "") if item.rank is None else ""
            key = (base, item.found.reader.collector, item.rank, host)
            below.setdefault(key, set()).add(_folder_of_run(item, base))
    several = {base for (base, *_), folders in below.items() if len(folders) > 1}
    named = []
    for item, base in zip(plan, bases, strict=True):
        if base in several and (folder := _folder_of_run(item, base)) != base:
            item = replace(item, run=folder.relative_to(base).as_posix())
        named.append(item)
    run_of = {item.path: item.run for item in named}
    return [replace(item, run=run_of[item.copy_of]) if item.copy_of else item for item in named]


def _folder_of_run(item: Planned, base: Path) -> Path:
    """Return the folder that a run's traces lie in: above the one that rocprofv3 names by host."""
    parent, host = item.path.parent, item.found.facts.host
    is_of_process = item.found.process and _PROCESS_FILE.match(item.path.name)
    return parent.parent if parent != base and is_of_process and host in (None, parent.name) else parent
