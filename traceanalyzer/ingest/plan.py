"""What an ingest would do: finds the files behind the sources, says what each is, and names run and rank."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import orjson

from traceanalyzer.errors import InputError, NothingToAnalyse, UsageError
from traceanalyzer.ingest.relate import guess_ranks, name_runs, without_repeats
from traceanalyzer.ingest.search import find_files
from traceanalyzer.readers import recognise
from traceanalyzer.readers.base import Facts, Recognised
from traceanalyzer.readers.ranks import rank_from_path
from traceanalyzer.store.layout import check_run_name

STDIN: Final = "-"
_RANKS: Final = 10_000_000


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

    def of(self, path: Path, facts: Facts, *, may_guess: bool = False) -> tuple[int | None, str]:
        """Return (rank, rank_source) of a trace: what the user, the trace, its name say, or what it may be."""
        if self.rank is not None:
            return self.rank, "--rank"
        for name in (str(path), path.name):
            if name in self.by_name:
                return self.by_name[name], "--rank-map"
        if facts.rank is not None:
            return facts.rank, facts.rank_source or "unknown"
        rank, where = rank_from_path(path)
        if rank is None and may_guess and facts.guessed_rank is not None:
            return facts.guessed_rank, facts.guess_source or "unknown"
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
    may_guess: bool = False
    """Whether a guess of the rank can be right: not where the traces of a run come from several machines."""
    gpu_in_order: int | None = None
    """Where each process sees one GPU only: which of them this one is, in the order of their places."""
    otherwise: Planned | None = None
    """The same process in another format, should this file turn out to hold nothing or to be cut."""
    copy_of: Path | None = None
    """Another file of the plan that seems to hold the same; the ingest makes sure."""

    @property
    def counts(self) -> bool:
        """Whether failing on this file is a failure of the ingest: not for a stray file in a searched folder."""
        return self.found.is_trace or not self.searched

    def rank_of(self, ranks: RankChoice, facts: Facts) -> tuple[int | None, str]:
        """Return (rank, rank_source) by what is known of the trace now."""
        if self.gpu_in_order is not None:
            facts = replace(facts, guessed_rank=self.gpu_in_order, guess_source="guess: order of the GPUs")
        return ranks.of(self.path, facts, may_guess=self.may_guess)


def make_plan(sources: list[str], *, run: str | None, ranks: RankChoice, collector: str) -> list[Planned]:
    """Find the files behind `sources` (files, folders, globs) and say what each is.

    Raises UsageError for a path that does not exist, NothingToAnalyse when no file is found at all.
    """
    if run is not None:
        check_run_name(run)
    plan: list[Planned] = []
    bases: list[Path] = []
    taken: set[Path] = set()
    for path, base, searched in find_files(sources):
        if path.absolute() in taken:  # it is read with another file
            continue
        found = recognise(path, collector) if path.is_file() else _not_a_file(path)
        if searched and path.name.endswith(".tmp"):
            found = _unfinished(path)
        if found.reader:
            files = found.reader.files(path)
            taken.update(file.absolute() for file in files)
            path = files[0]
        plan.append(Planned(path, found, run or base.resolve().name or "run", None, "unknown", searched, str(path)))
        bases.append(base)
    if not plan:
        raise NothingToAnalyse(f"no traces in {', '.join(sources)}: no file there has the name of a trace")
    plan = guess_ranks(without_repeats(plan))
    plan = [replace(item, rank=rank, rank_source=source) for item in plan for rank, source in [_rank(item, ranks)]]
    return plan if run else name_runs(plan, bases)


def _rank(item: Planned, ranks: RankChoice) -> tuple[int | None, str]:
    return item.rank_of(ranks, item.found.facts)


def _unfinished(path: Path) -> Recognised:
    why = "left by a profiler that ended while it wrote; name the file itself to read what there is"
    return Recognised("an unfinished file", problem=InputError(f"{path}: {why}"), is_trace=False)


def _not_a_file(path: Path) -> Recognised:
    why = "a broken symbolic link" if path.is_symlink() else "not a file"
    return Recognised(why, problem=InputError(f"{path}: {why}"), is_trace=False)
