"""Cutting a document into blocks: any shape, any block size, the same events."""

from __future__ import annotations

import gzip
import io
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tracegen import document, kernel
from traceanalyzer.errors import InputError
from traceanalyzer.readers.base import HowToRead
from traceanalyzer.readers.document import Document
from traceanalyzer.readers.kineto import KinetoReading
from traceanalyzer.readers.kineto_facts import KEPT_KEYS
from traceanalyzer.readers.salvage import salvage
from traceanalyzer.readers.source import ByteSource

# Names that look like the places where a cut may be, or like the end of the array.
HOSTILE = [
    '}, {"ph"',
    '}, {"ph": "X"}, {',
    "}, {",
    "}]",
    '"}], "traceName": "x"}',
    "]}",
    "\\",
    '\\"',
    "{lambda()#1}",
    "a\nb\tc\u0001",
    "\N{SNOWMAN}\U0001f600",
    "[{}, {}]",
]

names = st.one_of(st.sampled_from(HOSTILE), st.text(max_size=12))
nested = st.recursive(
    st.one_of(st.integers(-(2**53), 2**53), st.none(), st.booleans(), names),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(names, inner, max_size=3)),
    max_leaves=12,
)
objects = st.lists(st.fixed_dictionaries({"name": names, "ph": st.just("X")}), min_size=2, max_size=5)
events = st.builds(
    lambda name, ts, dur, args, more: kernel(name, ts / 1000, dur / 1000, args={"deep": args, "list": more}),
    names,
    st.integers(0, 10**7),
    st.integers(0, 10**6),
    nested,
    objects,
)
layouts = st.sampled_from(
    [{"separators": (",", ":")}, {}, {"indent": 0}, {"indent": 1}, {"indent": 4}, {"indent": "\t"}]
)
around = st.dictionaries(st.sampled_from(["metadata", "traceName", "INFO", "}, {"]), nested, max_size=2)


def read(path: Path, block_size: int) -> tuple[dict[str, list], dict[str, object]]:
    """Return the rows of each table, and the top-level facts, as read with this block size."""
    tables: dict[str, list] = {}
    with ThreadPoolExecutor(2) as pool, ByteSource(path) as source:
        reading = KinetoReading(source, HowToRead(pool, 3, block_size, lambda: None))
        for batch in reading:
            for name, rows in batch.tables.items():
                tables.setdefault(name, []).extend(rows.to_pylist())
    return tables, {"rank": reading.facts.rank, "base": reading.facts.clock_base_ns}


@settings(max_examples=60, deadline=None)
@given(st.lists(events, max_size=12), layouts, around, around, st.integers(1, 3000), st.booleans())
def test_random_block_sizes_give_the_same_rows(tmp_path_factory, listed, layout, before, after, size, as_list):
    folder = tmp_path_factory.mktemp("cut")
    path = folder / "t.json"
    keys = {"distributedInfo": {"rank": 3, "world_size": 8}, "baseTimeNanoseconds": 1_700_000_000_000_000_000}
    text = (
        listed if as_list else {**before, "traceEvents": listed, **keys, **{f"after {k}": v for k, v in after.items()}}
    )
    path.write_text(json.dumps(text, ensure_ascii=False, **layout), encoding="utf-8")
    tables, facts = read(path, size)
    got = tables.get("gpu_events", [])
    assert [row["name"] for row in got] == [event["name"] for event in listed]
    assert [row["event_id"] for row in got] == list(range(len(listed)))
    assert [(row["start_ns"], row["dur_ns"]) for row in got] == [
        (round(event["ts"] * 1000), round(event["dur"] * 1000)) for event in listed
    ]
    assert [json.loads(row["args"]) for row in got] == [event["args"] for event in listed]
    assert list(tables) == (["gpu_events"] if listed else [])
    if not as_list:
        assert facts == {"rank": 3, "base": 1_700_000_000_000_000_000}


def blocks(text: bytes, size: int) -> list[bytes]:
    document = Document(io.BytesIO(text), size, KEPT_KEYS)
    found = []
    while block := document.next_block():
        found.append(block.array)
    return found


def test_blocks_cover_the_events_and_nothing_else():
    listed = [kernel(f"k{n}", n, 1) for n in range(500)]
    text = json.dumps(document(listed)).encode()
    found = blocks(text, 2_000)
    assert len(found) > 10
    assert [event for block in found for event in json.loads(block)] == listed
    assert max(map(len, found)) < 4_500


def test_an_event_larger_than_a_block_is_read_whole():
    big = kernel("big", 1, 1, args={"Call stack": "x" * 50_000})
    text = json.dumps(document([kernel("a", 0, 1), big, kernel("b", 2, 1)])).encode()
    assert [event for block in blocks(text, 1_000) for event in json.loads(block)][1] == big


def test_foreign_keys_are_stepped_over_without_being_kept():
    foreign = {"env": {"SECRET_TOKEN": "hunter2"}, "list": [{"ph": "X"}, {"ph": "X"}], "text": "x" * 300_000}
    text = json.dumps({**foreign, **document([kernel("a", 0, 1)]), "more": [[{"a": 1}], "]}"]}).encode()
    parsed = Document(io.BytesIO(text), 1_000, KEPT_KEYS)
    assert parsed.next_block() is not None
    assert parsed.next_block() is None
    assert parsed.metadata == {"schemaVersion": 1}
    assert parsed.foreign_keys == 4


def test_a_second_array_of_events_is_read_as_well():
    text = b'{"traceEvents": [{"ph": "i", "name": "a", "ts": 1}], "x": 1, "traceEvents": [{"ph": "i", "name": "b", "ts": 2}]}'
    parsed = [event["name"] for block in blocks(text, 1_000) for event in json.loads(block)]
    # The end of the array is proven by the rest of the document, so both arrays come as blocks of their own.
    assert parsed == ["a", "b"]


def test_a_byte_order_mark_is_skipped():
    assert len(blocks(b"\xef\xbb\xbf" + json.dumps([kernel("a", 0, 1)]).encode(), 100)) == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"hello", "neither"),
        (b'{"a": 1', "byte 7"),
        (b'{"a" 1}', "':'"),
        (b'{"traceEvents": []} {"traceEvents": []}', "several documents"),
        (b'{"metadata": {"a": [1, 2', "ends early"),
    ],
)
def test_what_is_no_document_is_refused_with_the_place(text, says):
    with pytest.raises(InputError, match=says):
        blocks(text, 100)


@pytest.mark.parametrize(
    "text", [b'{"traceEvents": []', b'{"traceEvents": [], "a', b'{"traceEvents": [], "a": {', b'{"traceEvents": [], 7}']
)
def test_a_document_that_ends_early_behind_its_events_says_so(text):
    parsed = Document(io.BytesIO(text), 100, KEPT_KEYS)
    assert parsed.next_block() is None
    assert "byte" in parsed.incomplete


def test_a_known_key_with_a_malformed_value_is_left_out_and_said():
    text = b'{"distributedInfo": {"rank": tru}, "traceEvents": [{"ph": "M"}]}'
    parsed = Document(io.BytesIO(text), 100, KEPT_KEYS)
    assert parsed.next_block().text() == b'{"ph": "M"}'
    assert parsed.metadata == {}
    assert "distributedInfo" in parsed.problems[0]


def test_an_event_that_ends_in_another_block_is_given_back():
    document = Document(
        io.BytesIO(b'[{"a": [{"b": 1}, {"b": 2}]}, {"c": "}"}, {"d": [{"e": 1}, {"f": 1' + b" " * 99), 75, KEPT_KEYS
    )
    block = document.next_block()
    assert not block.is_last
    found = salvage(block, duckdb.connect())
    assert json.loads(found.array) == [{"a": [{"b": 1}, {"b": 2}]}, {"c": "}"}]
    assert block.text(found.consumed).strip() == b'{"d": [{"e": 1}'
    assert not found.array_ended
    assert not found.rejects


def test_gzip_members_in_a_row_are_one_stream(tmp_path):
    text = json.dumps(document([kernel(f"k{n}", n, 1) for n in range(50)])).encode()
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(text[:700]) + gzip.compress(text[700:]))
    tables, _ = read(path, 500)
    assert len(tables["gpu_events"]) == 50


def test_a_long_foreign_text_costs_no_more_than_its_bytes():
    import tracemalloc

    text = json.dumps({"env": "b" * 3_000_000, **document([kernel("a", 0, 1)])}).encode()
    tracemalloc.start()
    assert len(blocks(text, 1_000)) == 1
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 30 * len(text)  # a hundred times, were the pattern to keep its way back
