"""What the documents show is what happens: README commands and outputs, the contributor's example, links."""

from __future__ import annotations

import csv
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib

import pytest

from tests.conftest import ROOT
from tests.sql.test_drawn_timelines import drawn
from tests.tracegen import kernel
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


def contributed() -> tuple[str, dict]:
    """Return the example of the contributors' page: its SQL and its drawn timeline."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    sql = re.search(r"```sql\n(.*?)```", text, re.DOTALL).group(1)
    return sql, tomllib.loads(re.search(r"```toml\n(.*?)```", text, re.DOTALL).group(1))


def test_a_question_is_one_file_and_one_drawn_timeline(store_of, tmp_path, cli):
    """Added as a stranger adds it, found in the list, explained, answered, and asked in SQL; without touching Python."""
    sql, case = contributed()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "kernels_per_stream.sql").write_text(sql)
    root = store_of([drawn(*event) for event in case["events"]]).root
    listed = json.loads(cli("queries", "--queries", "mine", "--format", "json").out)
    assert "how many kernels each stream ran." in [row["answers"] for row in listed]
    assert "-p least=1" in cli("queries", "kernels_per_stream", "--queries", "mine").out
    parameters = [f"-pleast={case['parameters']['least']}"]
    got = cli("query", root, "kernels_per_stream", "--queries", "mine", *parameters, "--format", "csv").out
    columns = case["expected"].split()[0].split(",")
    rows = [{c: row[c] for c in columns} for row in csv.DictReader(got.splitlines())]
    assert rows == list(csv.DictReader(case["expected"].split()))
    sums = cli("query", root, "SELECT sum(kernels) AS n FROM queries.kernels_per_stream", "--queries", "mine").out
    assert sums.split()[-1] == "3"
    assert "at least 0" in cli("query", root, "kernels_per_stream", "--queries", "mine", "-pleast=-1", code=2).err


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("mine", lambda sql: sql, "line 1 must be '-- mine: what it is'"),
        ("kernels_per_stream", lambda sql: sql.replace("kernels (count, summed): ", "kernels: "), "is not 'column (unit): meaning'"),
        ("kernels_per_stream", lambda sql: sql.replace("least (integer: 0..) = 1", "least (integer: 0..) = -1"), "at least 0"),
        ("kernels_per_stream", lambda sql: re.sub("-- Example: .*\n", "", sql), "the header lacks example"),
        ("timeline", lambda sql: sql.replace("-- kernels_per_stream", "-- timeline"), "there is a query timeline already"),
    ],
)  # fmt: skip
def test_a_file_with_a_wrong_header_is_refused_by_name(tmp_path, cli, name, change, says):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / f"{name}.sql").write_text(change(contributed()[0]))
    err = cli("queries", "--queries", "mine", code=2).err
    assert says in err and f"{name}.sql" in err
    assert "there is no such folder" in cli("queries", "--queries", "none", code=2).err


HEADER = "-- {name}: x.\n--\n-- One row.\n--\n-- Example: x\n-- Columns:\n--   n (number): x\n"


def put(folder, name, body, header=HEADER):
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.sql").write_text(header.format(name=name) + body)


@pytest.mark.parametrize(
    "body", ["COPY (SELECT 1) TO 's/x.csv'", "SELECT 1 AS n; COPY (SELECT 1) TO 's/x.csv'", "DROP VIEW x"]
)
def test_own_queries_only_read(store_of, tmp_path, cli, body):
    root = store_of([kernel("a", 0, 1)]).root
    put(tmp_path / "mine", "evil", body.replace("'s/", f"'{root}/"))
    before = sorted(root.rglob("*"))
    for question in ("evil", "SELECT n FROM queries.evil"):
        assert "evil.sql" in cli("query", root, question, "--queries", "mine", code=1).err
    cli("query", root, "SELECT count(*) FROM queries.evil", "--queries", "mine", code=1)
    assert sorted(root.rglob("*")) == before


def test_broken_queries_do_not_harm_the_others(store_of, tmp_path, cli):
    root = store_of([kernel("a", 0, 1)]).root
    put(tmp_path / "mine", "broken", "SELEC 1 AS n ORDER BY 1")
    put(tmp_path / "mine", "one", "SELECT n FROM queries.two ORDER BY n")
    put(tmp_path / "mine", "two", "SELECT n FROM queries.one -- queries.broken\nORDER BY n")
    assert cli("query", root, "timeline", "--queries", "mine").out
    assert "broken.sql, line 8" in cli("query", root, "FROM queries.broken", "--queries", "mine", code=1).err
    assert "in a circle" in cli("query", root, "one", "--queries", "mine", code=2).err
    assert "broken" not in cli("query", root, "SHOW TABLES", "--queries", "mine").out


@pytest.mark.parametrize(
    ("name", "body", "header", "says"),
    [
        ("my-query", "SELECT 1 AS n ORDER BY n", HEADER, "small letters, digits and _ only"),
        ("q", "SELECT $foo AS n ORDER BY n", HEADER, "the SQL uses $foo, the header has no such parameter"),
        (
            "q",
            "SELECT 1 AS n ORDER BY n",
            HEADER.replace("Columns:\n--   n (number): x", "Columns: as q"),
            "list the columns",
        ),
    ],
)
def test_own_queries_that_cannot_be_are_refused_by_name(tmp_path, cli, name, body, header, says):
    put(tmp_path / "mine", name, body, header)
    err = cli("queries", "--queries", "mine", code=2).err
    assert says in err and f"{name}.sql" in err


def test_own_queries_of_any_encoding(tmp_path, cli):
    put(tmp_path / "mine", "q", "SELECT '$foo' AS n -- $bar\nORDER BY n", "\ufeff" + HEADER)
    assert "q  " in cli("queries", "--queries", "mine").out
    (tmp_path / "mine" / "r.sql").write_bytes(b"-- r: \xff")
    assert "r.sql: not UTF-8 text" in cli("queries", "--queries", "mine", code=2).err


def test_an_error_in_own_sql_shows_its_place(store_of, tmp_path, cli):
    (tmp_path / "kernels_per_stream.sql").write_text(contributed()[0].replace("count(*) >=", "count(* >="))
    root = store_of([kernel("a", 0, 1)]).root
    err = cli("query", root, "kernels_per_stream", "--queries", ".", code=1).err
    line = 1 + next(n for n, line in enumerate(contributed()[0].splitlines()) if line.startswith("ORDER BY"))
    assert f"(kernels_per_stream.sql, line {line}, at 'stream')" in err  # there the missing ) is missed
    assert "(line 2, at 'kernels')" in cli("query", root, "SELECT name\nFORM kernels", code=1).err


def test_the_generated_pages_are_fresh():
    done = subprocess.run([sys.executable, ROOT / "docs" / "generate.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_stale_page_is_found(tmp_path):
    for folder in ("docs", "sql", "traceanalyzer"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    query = tmp_path / "sql" / "queries" / "timeline.sql"
    query.write_text(query.read_text().replace("where the window of each GPU went", "where the time went"))
    done = subprocess.run(
        [sys.executable, tmp_path / "docs" / "generate.py", "--check"], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "stale: queries.md" in done.stderr


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text()):
        assert (path.parent / target).exists(), target


@pytest.mark.parametrize("kind", ["views", "macros", "queries", "derived", "checks"])
def test_every_sql_file_has_a_header_that_can_be_read(kind):
    files = library.load(kind)
    assert files
    for file in files.values():
        assert file.description, file.path
        assert "SELECT *" not in file.body, file.path
        assert kind not in ("queries", "checks") or "ORDER BY" in file.body.rsplit("\nSELECT", 1)[-1], file.path
        assert kind == "macros" or (file.columns and all(column.unit for column in file.columns)), file.path
