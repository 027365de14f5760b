"""Fixtures: the folder of public traces, stores made from small traces, and the real command line."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.tracegen import Ingested, ingest_events, ingest_files

ROOT = Path(__file__).parent.parent
SHARED = Path(os.environ.get("TRACEANALYZER_SHARED", ROOT.parent / "shared"))


@pytest.fixture(scope="session")
def shared() -> Path:
    """Return the folder of public traces and examples, which is not part of this repository."""
    if not (SHARED / "traces").is_dir():
        message = f"no public traces at {SHARED}: set TRACEANALYZER_SHARED; tests on real traces are SKIPPED"
        warnings.warn(message, stacklevel=1)
        pytest.skip(message)
    return SHARED


@dataclass(frozen=True)
class Ran:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str


@pytest.fixture
def cli(tmp_path: Path) -> Callable[..., Ran]:
    """Return a function that runs the real command line in a subprocess, in a folder of its own."""

    def run(*arguments: str | Path, stdin: bytes | None = None, code: int | None = 0) -> Ran:
        done = subprocess.run(
            [sys.executable, "-m", "traceanalyzer", *map(str, arguments)],
            cwd=tmp_path,
            input=stdin,
            capture_output=True,
            timeout=120,
            env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"},
        )
        ran = Ran(done.returncode, done.stdout.decode(), done.stderr.decode())
        assert code is None or ran.code == code, ran
        return ran

    return run


@pytest.fixture
def store_of(tmp_path: Path) -> Callable[..., Ingested]:
    """Return a function that makes a store from events, or from files."""

    def make(*sources: list[dict] | Path, run: str = "r", **options: object) -> Ingested:
        root = tmp_path / "store"
        result = None
        for number, source in enumerate(sources):
            if isinstance(source, Path):
                result = ingest_files([source], root, run=run, **options)
            else:
                result = ingest_events(source, root, tmp_path / f"trace{number}.json", run=run, **options)
        assert result is not None
        return result

    return make
