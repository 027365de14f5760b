"""The host tree against brute force, and in the cases in which profilers' rounding makes it doubtful."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from traceanalyzer.engine.nesting import ANNOTATION, CALL, FRAME, MODULE, NODE, OP, nested

ROLES = [OP, NODE, CALL, ANNOTATION, FRAME, MODULE]


def tree(ranges, size=3):
    """Return event_id -> row of ranges (thread, role, start, end), whose event_id is their place in the list."""
    order = sorted(range(len(ranges)), key=lambda n: (ranges[n][0], ranges[n][2], -ranges[n][3], n))
    rows = [(ranges[n][0], n, *ranges[n][1:]) for n in order]
    batches = [
        pa.record_batch([pa.array(c, pa.int64()) for c in zip(*rows[i : i + size], strict=True)], names=list("abcde"))
        for i in range(0, len(rows), size)
    ]
    return {row["event_id"]: row for batch in nested(batches) for row in batch.to_pylist()}


# Intervals that lie within each other or apart: cut out of their parent, recursively.
@st.composite
def forests(draw, low=0, high=64_000_000, depth=0):
    made = []
    cuts = sorted(draw(st.lists(st.integers(low // 2000, high // 2000), max_size=4, unique=True)))
    for start, end in zip(cuts[::2], cuts[1::2], strict=False):
        made.append((draw(st.sampled_from(ROLES)), start * 2000, end * 2000))
        if depth < 3 and draw(st.booleans()):
            made += draw(forests(start * 2000, end * 2000, depth + 1))
    return made


@settings(max_examples=150, deadline=None)
@given(st.lists(forests(), min_size=1, max_size=2), st.randoms())
def test_parents_and_what_is_around_equal_brute_force(threads, random):
    ranges = [(thread, *made) for thread, forest in enumerate(threads) for made in forest]
    random.shuffle(ranges)
    rows = tree(ranges)
    assert rows.keys() == {n for n, (_, role, *_) in enumerate(ranges) if role != FRAME}
    for n, row in rows.items():
        thread, role, start, end = ranges[n]
        # of the same extent, the one that is earlier in the file is outside
        around = [
            m
            for m, (t, _, s, e) in enumerate(ranges)
            if m != n and t == thread and s <= start and end <= e and ((s, e) != (start, end) or m < n)
        ]
        around.sort(key=lambda m: (ranges[m][2], -ranges[m][3], m))
        assert row["depth"] == len(around)
        assert row["parent_event_id"] == (around[-1] if around else None)
        chain = [*around, n]

        def innermost(*roles, chain=chain):
            return next((m for m in reversed(chain) if ranges[m][1] in roles), None)

        assert row["op_event_id"] == innermost(OP, NODE)
        assert row["node_event_id"] == innermost(NODE)
        assert row["annotation_event_id"] == innermost(ANNOTATION)
        assert row["module_event_id"] == innermost(MODULE)
        assert row["frame_event_id"] == innermost(FRAME, MODULE)
        assert not row["is_crossing"]
        ops = [m for m in chain if ranges[m][1] in (OP, NODE)]
        assert row["op_path"] == (ops if role == CALL else None)


def parents(*ranges):
    """Return the parents of operators [start, end), in microseconds, on one thread."""
    rows = tree([(0, OP, round(1000 * start), round(1000 * end)) for start, end in ranges])
    return [rows[n]["parent_event_id"] for n in range(len(ranges))]


def test_a_range_that_begins_just_before_another_ends_is_its_neighbour():
    assert parents((0, 10), (9.5, 12), (10.5, 11)) == [None, None, 1]
    assert parents((0, 20), (0, 10), (9.5, 12)) == [None, 0, 0]


def test_a_crossing_range_stays_inside_and_keeps_what_is_behind_out():
    ranges = [(0, OP, 0, 10_000), (0, OP, 5_000, 15_000), (0, OP, 6_000, 7_000), (0, OP, 12_000, 13_000)]
    rows = tree(ranges)
    assert [rows[n]["parent_event_id"] for n in range(4)] == [None, 0, 1, None]
    assert [rows[n]["is_crossing"] for n in range(4)] == [False, True, False, False]


def test_a_range_without_length_is_inside_and_nothing_is_inside_of_it():
    assert parents((0, 10), (5, 5), (5, 6)) == [None, 2, 0]
    assert parents((0, 10), (10, 10)) == [None, None]


def test_threads_do_not_see_each_other():
    rows = tree([(0, OP, 0, 10_000), (1, OP, 2_000, 3_000)])
    assert rows[1]["parent_event_id"] is None
