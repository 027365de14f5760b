"""What an ingest would do: finds the files behind the sources, says what each is, and names run and rank."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import orjson

from traceanalyzer.errors import InputError, NothingToAnalyse, UsageError
from traceanalyzer.readers import recognise
from traceanalyzer.readers.base import Recognised
from traceanalyzer.readers.ranks import rank_from_path
from traceanalyzer.store.layout import check_run_name

STDIN: Final = "-"
_RANKS: Final = 10_000_000
_SUFFIXES: Final = (".json", ".json.gz", ".json.zst")
"""What a search in a folder looks at; a file named on the command line may be called anything."""


@dataclass(frozen=True)
class RankChoice:
    """Where ranks come from when the user says so: one number for all, or a map from file names."""

    rank: int | None = None
    by_name: dict[str, int] = field(default_factory=dict)

    @classmethod
    def from_options(cls, rank: int | None, rank_map: Path | None) -> RankChoice:
        """Read `--rank` or `--rank-map` (JSON object or CSV lines: file name or path, rank).

        Raises UsageError when both are given or the map cannot be read.
        """
        if rank is not None and rank_map is not None:
            raise UsageError("--rank and --rank-map exclude each other: give one of them")
        if rank is not None and not 0 <= rank < _RANKS:
            raise UsageError(f"--rank {rank}: a rank is 0 or more, and below {_RANKS:,}")
        if rank_map is None:
            return cls(rank)
        try:
            text = rank_map.read_text()
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "not a text file"
            raise UsageError(f"--rank-map {rank_map}: {why}") from error
        return cls(by_name=_json_ranks(rank_map, text) if text.lstrip().startswith("{") else _csv_ranks(rank_map, text))

    def unused(self, plan: list[Planned]) -> list[str]:
        """Return the names of the map that no file of the plan has."""
        names = {name for item in plan for name in (str(item.path), item.path.name)}
        return [name for name in self.by_name if name not in names]

    def of(self, path: Path, recorded: int | None) -> tuple[int | None, str]:
        """Return (rank, rank_source) of a file whose trace says `recorded`."""
        if self.rank is not None:
            return self.rank, "--rank"
        for name in (str(path), path.name):
            if name in self.by_name:
                return self.by_name[name], "--rank-map"
        if recorded is not None:
            return recorded, "distributedInfo"
        rank, where = rank_from_path(path)
        return rank, where or "unknown"


def _json_ranks(path: Path, text: str) -> dict[str, int]:
    try:
        pairs = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise UsageError(f"--rank-map {path}: not valid JSON: {error}") from error
    for name, number in pairs.items():
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < _RANKS:
            raise UsageError(f"--rank-map {path}: the rank of {name!r} is {number!r}, not a number from 0")
    return {str(name): int(number) for name, number in pairs.items()}


def _csv_ranks(path: Path, text: str) -> dict[str, int]:
    ranks: dict[str, int] = {}
    for number, line in enumerate(map(str.strip, text.splitlines()), start=1):
        if not line or line.startswith("#"):
            continue
        name, _, rank = (part.strip() for part in line.rpartition(","))
        if not name or not rank.isdigit() or int(rank) >= _RANKS:
            raise UsageError(f"--rank-map {path}: line {number}, '{line}', is not 'file name, rank'")
        ranks[name] = int(rank)
    return ranks


@dataclass(frozen=True)
class Planned:
    """One file and what is to happen with it."""

    path: Path
    found: Recognised
    run: str
    rank: int | None
    rank_source: str
    searched: bool
    """The file was found by searching a folder, not named by the user."""
    shown: str
    """What the user knows the file as."""

    @property
    def counts(self) -> bool:
        """Whether failing on this file is a failure of the ingest: not for a stray file in a searched folder."""
        return self.found.is_trace or not self.searched


def make_plan(sources: list[str], *, run: str | None, ranks: RankChoice, collector: str) -> list[Planned]:
    """Find the files behind `sources` (files, folders, globs) and say what each is.

    Raises UsageError for a path that does not exist, NothingToAnalyse when no file is found at all.
    """
    if run is not None:
        check_run_name(run)
    plan: list[Planned] = []
    bases: list[Path] = []
    for path, base, searched in _files(sources):
        found = recognise(path, collector) if path.is_file() else _not_a_file(path)
        rank, rank_source = ranks.of(path, found.facts.rank)
        plan.append(Planned(path, found, run or base.resolve().name or "run", rank, rank_source, searched, str(path)))
        bases.append(base)
    if not plan:
        raise NothingToAnalyse(f"no traces in {', '.join(sources)}: nothing there is named {', '.join(_SUFFIXES)}")
    return plan if run else _name_runs(plan, bases)


def _name_runs(plan: list[Planned], bases: list[Path]) -> list[Planned]:
    """Name the runs of searched folders.

    A folder is one run, and the run's name is the folder's, unless the same rank (or several files of unknown rank)
    lies in several folders below it: then each of those is a run.
    """
    below: dict[tuple[Path, int | None], set[Path]] = {}
    for item, base in zip(plan, bases, strict=True):
        if item.searched and item.found.reader:
            below.setdefault((base, item.rank), set()).add(item.path.parent)
    several = {base for (base, _), parents in below.items() if len(parents) > 1}
    return [
        replace(item, run=item.path.parent.relative_to(base).as_posix())
        if base in several and item.path.parent != base
        else item
        for item, base in zip(plan, bases, strict=True)
    ]


def _not_a_file(path: Path) -> Recognised:
    why = "a broken symbolic link" if path.is_symlink() else "not a file"
    return Recognised(why, problem=InputError(f"{path}: {why}"), is_trace=False)


def _files(sources: list[str]) -> list[tuple[Path, Path, bool]]:
    """Return (file, folder that names the run, searched?) in a stable order, each file once."""
    seen: dict[Path, tuple[Path, Path, bool]] = {}
    for source in sources:
        path = Path(source)
        if path.is_dir():
            listed = [(file, path, True) for file in sorted(_search(path), key=_natural)]
        elif os.path.lexists(path):
            listed = [(path, path.absolute().parent, False)]
        elif matches := sorted((Path(m) for m in glob.glob(source, recursive=True)), key=_natural):
            listed = [(match, match.absolute().parent, False) for match in matches if not match.is_dir()]
        else:
            raise UsageError(f"{source}: no such file or folder, and no file matches it as a pattern")
        for entry in listed:
            seen.setdefault(entry[0].absolute(), entry)
    return list(seen.values())


def _natural(path: Path) -> list[tuple[int, int | str]]:
    """Sort key that puts rank2 before rank10."""
    return [(0, int(t)) if t.isdigit() else (1, t) for t in re.findall(r"\d+|\D+", str(path))]


def _search(folder: Path) -> Iterable[Path]:
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(parent, name) for name in names if name.endswith(_SUFFIXES) and not name.startswith("."))
