"""What the documents show is what happens: README commands and outputs, the contributor's example, links."""

from __future__ import annotations

import re
import shlex
import shutil

import pytest

from tests.conftest import ROOT
from tests.tracegen import kernel, rows
from traceanalyzer.engine import library

README = (ROOT / "README.md").read_text()
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")]


def without_seconds(text: str) -> list[str]:
    """Return the lines without the last column where that is a time."""
    return [re.sub(r"\s+\d+\.\d+$", "", line.rstrip()) for line in text.splitlines()]


def test_readme_commands_print_what_readme_shows(cli, tmp_path):
    shutil.copytree(ROOT / "sample_traces", tmp_path / "sample_traces")
    blocks = re.findall(r"```console\n\$ (traceanalyzer [^\n]+)\n(.*?)```", README, re.DOTALL)
    assert len(blocks) >= 4
    for command, shown in blocks:
        ran = cli(*shlex.split(command)[1:])
        assert without_seconds(ran.out) == without_seconds(shown), command


def test_readme_names_every_format_and_exit_code():
    for word in ("table", "csv", "json", "jsonl", "markdown", "parquet"):
        assert f"`{word}`" in README
    for code in ("0 fine", "1 a query failed", "2 wrong usage", "3 unreadable", "4 nothing", "6 the machine", "130"):
        assert code in README


def test_contributing_example_works(store_of, tmp_path):
    text = (ROOT / "CONTRIBUTING.md").read_text()
    sql = re.search(r"```sql\n(.*?)```", text, re.DOTALL).group(1)
    path = tmp_path / "kernels_per_stream.sql"
    path.write_text(sql)
    query = library.parse(path)
    session = store_of(
        [kernel("a", 0, 1, stream=7), kernel("b", 2, 1, stream=7), kernel("c", 2, 1, stream=8)]
    ).session()
    assert [(r["stream"], r["kernels"]) for r in rows(session.named(query, {"least": "2"}))] == [(7, 2)]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text()):
        assert (path.parent / target).exists(), target


@pytest.mark.parametrize("kind", ["views", "macros", "queries"])
def test_every_sql_file_has_a_header_that_can_be_read(kind):
    files = library.load(kind)
    assert files
    for file in files.values():
        assert file.description, file.path
        assert "SELECT *" not in file.body, file.path
