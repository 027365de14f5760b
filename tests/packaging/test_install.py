"""The package as users get it: a wheel in an empty environment, and an editable install, both away from the tree."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.packaging


def run(*command: str | Path, cwd: Path) -> str:
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run([*map(str, command)], cwd=cwd, capture_output=True, text=True, env=environment, timeout=900)
    assert done.returncode == 0, done
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT, cwd=folder)
    return next(folder.glob("*.whl"))


def check_in_an_empty_environment(folder: Path, *install: str | Path) -> None:
    """Install into a new environment and use the tool in a folder that has nothing to do with the tree."""
    run(sys.executable, "-m", "venv", folder / "venv", cwd=folder)
    binaries = folder / "venv" / "bin"
    run(binaries / "python", "-m", "pip", "install", "--quiet", *install, cwd=folder)
    empty = folder / "empty"
    empty.mkdir()
    tool = binaries / "traceanalyzer"
    run(tool, "ingest", ROOT / "sample_traces" / "pytorch", "--store", "s", "--run", "proxy", cwd=empty)
    rows = json.loads(run(tool, "query", "s", "timeline", "--format", "json", cwd=empty))
    truth = json.loads((ROOT / "sample_traces" / "truth.json").read_text())["timeline"]
    assert {row["rank"]: row["window_ns"] for row in rows} == {n: of["window_ns"] for n, of in enumerate(truth)}
    assert "timeline" in run(tool, "queries", cwd=empty)
    assert "gpu_events" in run(tool, "schema", cwd=empty)


def test_the_wheel_holds_the_sql_and_nothing_foreign(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert "traceanalyzer/sql/queries/timeline.sql" in names
    assert {name.split("/")[0].split("-")[0] for name in names} == {"traceanalyzer"}
    assert len([n for n in names if n.endswith(".sql")]) == len(list((ROOT / "sql").rglob("*.sql")))


def test_the_wheel_works_in_an_empty_environment(wheel, tmp_path):
    check_in_an_empty_environment(tmp_path, wheel)


def test_an_editable_install_works_away_from_the_tree(tmp_path):
    check_in_an_empty_environment(tmp_path, "-e", ROOT)
