"""The command line as such: help, version, what it imports, tracebacks."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import ROOT

HEAVY = ("duckdb", "pyarrow", "polars", "orjson")


@pytest.mark.parametrize("command", [[], ["ingest"], ["query"], ["queries"], ["schema"]])
def test_help_imports_nothing_heavy(command):
    script = (
        f"import sys; sys.argv = ['traceanalyzer', *{command!r}, '--help']\n"
        "from traceanalyzer.cli.main import main\n"
        "try: main()\nexcept SystemExit as e: assert e.code == 0\n"
        f"print([m for m in {HEAVY!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.splitlines()[-1] == "[]", done


@pytest.mark.parametrize("command", ["ingest", "query", "queries", "schema"])
def test_every_command_has_an_example_in_its_help(cli, command):
    assert "Example: traceanalyzer" in cli(command, "--help").out


def test_version(cli):
    assert cli("--version").out.startswith("traceanalyzer 0.")


def test_an_unknown_command_names_the_nearest(cli):
    ran = cli("querry", code=2)
    assert "querry" in ran.err
    assert ran.err.count("\n") == 1


def test_a_traceback_only_with_debug(cli):
    assert "Traceback" not in cli("query", "none", "timeline", code=2).err
    assert "Traceback" in cli("query", "none", "timeline", "--debug", code=1).err


def test_without_arguments_the_help_is_shown(cli):
    assert cli().out.startswith("Usage: traceanalyzer")


def test_usage_errors_point_to_the_help_of_the_command(cli):
    assert "see 'traceanalyzer query --help'" in cli("query", code=2).err
