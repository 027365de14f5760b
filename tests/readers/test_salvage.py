"""Damaged traces: what is sound is kept, what can be repaired is repaired and counted, the rest is rejected."""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.mutations import changes, generated_events, mutated_trace
from tests.tracegen import cpu_op, document, kernel
from traceanalyzer.errors import InputError
from traceanalyzer.readers.base import HowToRead
from traceanalyzer.readers.kineto import KinetoReading
from traceanalyzer.readers.repair import masked
from traceanalyzer.readers.source import ByteSource

GOOD_A = '{"ph":"X","cat":"kernel","name":"a","pid":0,"tid":7,"ts":1,"dur":2,"args":{"device":0,"stream":7}}'
GOOD_B = '{"ph":"X","cat":"kernel","name":"b","pid":0,"tid":7,"ts":5,"dur":2,"args":{"device":0,"stream":7}}'


POOL = ThreadPoolExecutor(2)


class Read:
    """A trace as read: rows by table, rejects, facts."""

    def __init__(self, path, block_size=1 << 20, pool=POOL):
        self.tables: dict[str, list] = {}
        self.rejects = []
        self.events = 0
        with ByteSource(path) as source:
            reading = KinetoReading(source, HowToRead(pool, 3, block_size, lambda: None))
            for batch in reading:
                for name, rows in batch.tables.items():
                    self.tables.setdefault(name, []).extend(rows.to_pylist())
                self.rejects += batch.rejects
                self.events += batch.events
        self.facts = reading.facts
        self.rows = {row["event_id"]: row for rows in self.tables.values() for row in rows}
        assert self.events == len(self.rows) + len(self.rejects)
        assert len({*self.rows, *(r.event_id for r in self.rejects)}) == self.events
        for row in self.rows.values():
            assert row["args"] is None or json.loads(row["args"], parse_constant=pytest.fail) is not None

    @property
    def names(self):
        return [self.rows[i]["name"] for i in sorted(self.rows)]


def read(tmp_path, text: str | bytes, **options) -> Read:
    path = tmp_path / "t.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    return Read(path, **options)


def wrapped(*events: str) -> str:
    return '{"schemaVersion":1,"traceEvents":[' + ",\n".join(events) + "]}"


def event(name='"x"', more="", args="{}"):
    return f'{{"ph":"X","cat":"kernel","name":{name},"pid":0,"tid":7,"ts":3,"dur":1{more},"args":{args}}}'


REPAIRED = {
    "bare NaN": (event(args='{"v":NaN}'), {"number that is not finite": 1}, {"v": None}),
    "bare inf and -Infinity": (
        event(args='{"v":inf,"w":[-Infinity]}'),
        {"number that is not finite": 2},
        {"v": None, "w": [None]},
    ),
    "not finite in odd spellings": (
        event(args='{"v":[NAN,nAn,Nan],"w":[INF,iNf,-INFINITY,Inf]}'),
        {"number that is not finite": 7},
        {"v": [None] * 3, "w": [None] * 4},
    ),
    "bare N/A": (event(args='{"v":N/A}'), {"number that is not finite": 1}, {"v": None}),
    "the word NaN in a text stays": (
        event(args='{"v":NaN,"w":"x:NaN, inf"}'),
        {"number that is not finite": 1},
        {"v": None, "w": "x:NaN, inf"},
    ),
    "invalid escape": (event('"torch\\cuda\\__init__.py"'), {"invalid escape": 1}, {}),
    "raw control character": (event('"a\x01b"'), {"control character": 1}, {}),
    "raw newline": (event('"a\nb"'), {"control character": 1}, {}),
    "unescaped quotes": (event('"Library("x", "IMPL")"'), {"unescaped quote": 1}, {}),
    "trailing comma beside other damage": (
        event(args='{"v":NaN,}'),
        {"number that is not finite": 1, "stray comma": 1},
        {"v": None},
    ),
    "duplicate key": (event(more=',"dur":4'), {"duplicate key": 1}, {}),
    "half a surrogate pair": (event('"a\\ud800b"'), {"half a surrogate pair": 1}, {}),
}


@pytest.mark.parametrize("case", REPAIRED)
def test_known_damage_is_repaired_and_counted(tmp_path, case):
    damaged, kinds, args = REPAIRED[case]
    got = read(tmp_path, wrapped(GOOD_A, damaged, GOOD_B))
    assert got.events == 3
    assert not got.rejects
    assert got.facts.repairs == Counter(kinds)
    assert json.loads(got.rows[1]["args"] or "{}") == args
    assert (got.rows[0]["name"], got.rows[2]["name"]) == ("a", "b")
    assert got.facts.first_repair == len('{"schemaVersion":1,"traceEvents":[') + len(GOOD_A) + 2


def test_repaired_texts_are_what_was_meant(tmp_path):
    names = ['"torch\\cuda\\x"', '"Library("x", "IMPL")"', '"a\x01b"']
    got = read(tmp_path, wrapped(GOOD_A, *map(event, names)))
    assert got.names == ["a", "torch\\cuda\\x", 'Library("x", "IMPL")', "a\x01b"]


@pytest.mark.parametrize("time", ["16827258e98237042", "1e99999999999999999999", "-1e400"])
def test_a_time_with_an_exponent_beyond_all_bounds_is_dropped(tmp_path, time):
    got = read(tmp_path, wrapped(GOOD_A, event().replace('"ts":3', f'"ts":{time}'), GOOD_B))
    assert got.names == ["a", "x", "b"]
    assert got.rows[1]["start_ns"] is None
    assert got.facts.repairs == {"time that is no number": 1}


def test_a_number_beyond_all_bounds_stays_as_it_is_when_its_event_is_repaired(tmp_path):
    args = '{"n":@,"x":1e999,"z":"#1e999"}'
    got = read(tmp_path, wrapped(GOOD_A, event(args=args.replace("@", "NaN"))))
    assert got.rows[1]["args"].replace(" ", "") == args.replace("@", "null")


def test_bytes_that_are_not_utf8_are_replaced_and_counted(tmp_path):
    text = wrapped(GOOD_A, event('"k@"'), GOOD_B).encode().replace(b"@", b"\xff\xfe")
    got = read(tmp_path, text)
    assert got.names == ["a", "k\ufffd\ufffd", "b"]
    assert got.facts.repairs == {"bytes that are not UTF-8": 1}


def test_the_last_of_a_duplicate_key_counts_also_in_the_fields(tmp_path):
    got = read(tmp_path, wrapped(GOOD_A, event(more=',"ts":9')))
    assert got.rows[1]["start_ns"] == 9000


REJECTED = {
    "unquoted words": '{"name":"AllGather","cat":"COLL_API","ph":"b","id":0,"ts":0.0,"args":{"datatype":ncclFloat32,"Stream":0x7f12}}',
    "missing colon": '{"ph":"X","name" "k","ts":1}',
    "a number": "17",
    "a text": '"hello"',
    "a list": "[1, 2]",
    "half an event": '{"ph":"X","name":"k","args":{"a":1}',
    "a missing value": '{"ph":"X","name":,"ts":1}',
}


@pytest.mark.parametrize("case", REJECTED)
def test_one_bad_event_costs_one_event(tmp_path, case):
    got = read(tmp_path, wrapped(GOOD_A, REJECTED[case], GOOD_B))
    assert got.names == ["a", "b"]
    assert [r.event_id for r in got.rejects] == [1]
    assert got.rejects[0].byte_offset == len('{"schemaVersion":1,"traceEvents":[') + len(GOOD_A) + 2
    assert got.rejects[0].reason
    assert REJECTED[case][:20] in got.rejects[0].sample


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        (f"[{GOOD_A},{GOOD_B},]", {"stray comma": 1}),
        (f"[{GOOD_A},,{GOOD_B}]", {"stray comma": 1}),
        (f"[{GOOD_A} {GOOD_B}]", {"missing comma": 1}),
        (f'{{"traceEvents":[{GOOD_A},{GOOD_B},\n]}}', {"stray comma": 1}),
    ],
)
def test_commas_too_many_or_too_few(tmp_path, text, kinds):
    got = read(tmp_path, text)
    assert got.names == ["a", "b"]
    assert got.facts.repairs == kinds
    assert got.facts.complete


def test_a_leading_comma_and_an_empty_object_are_accepted(tmp_path):
    got = read(tmp_path, f"[,{{}},{GOOD_A}]")
    assert got.rows[1]["name"] == "a"


def test_a_time_that_is_no_number_makes_the_event_incomplete(tmp_path):
    got = read(tmp_path, wrapped(GOOD_A, GOOD_B.replace('"ts":5', '"ts":"soon"')))
    assert got.facts.repairs == {"time that is no number": 1}
    assert got.rows[1]["defect"] == "incomplete"


def test_epoch_times_beside_damage_stay_exact(tmp_path):
    exact = GOOD_B.replace('"ts":5', '"ts":1712345678901234.567')
    got = read(tmp_path, wrapped(event(args='{"v":NaN}'), exact, exact.replace('"args":{', '"args":{"w":NaN,')))
    assert [got.rows[n]["start_ns"] for n in (1, 2)] == [1712345678901234567] * 2


def test_truncating_at_every_byte_keeps_exactly_the_whole_events(tmp_path):
    events = [kernel("a{", 1, 2), cpu_op('b"}]', 3, 1, deep=[{"ph": "X", "name": "n"}, {"y": 1}]), kernel("c", 9, 1)]
    text = json.dumps(document(events, distributedInfo={"rank": 3})).encode()
    first = text.index(b"[") + 1
    ends = []
    decoder = json.JSONDecoder()
    at = text.index(b'"traceEvents": [') + len(b'"traceEvents": [')
    for _ in events:
        _, at = decoder.raw_decode(text.decode(), at)
        ends.append(at)
        at += 2
    assert first < ends[0]
    start = text.index(b'"traceEvents": [') + len(b'"traceEvents": [')
    for cut in range(start, len(text)):
        got = read(tmp_path, text[:cut])
        whole = sum(end <= cut for end in ends)
        assert got.names == [e["name"] for e in events][:whole], text[:cut]
        assert not got.facts.complete
        assert got.facts.rank == 3
        assert "byte" in got.facts.warnings[0]
    assert read(tmp_path, text).facts.complete


def test_truncated_and_damaged_gzip_give_what_was_before(tmp_path):
    events = [kernel(f"k{n:05}", n, 1) for n in range(3000)]
    packed = gzip.compress(json.dumps(document(events)).encode())
    for cut in (len(packed) // 3, len(packed) - 9, len(packed) - 1):
        got = read(tmp_path, packed[:cut])
        assert not got.facts.complete
        assert "ends early" in got.facts.warnings[0]
        assert got.names == [e["name"] for e in events][: len(got.names)]
    assert len(got.names) == 3000
    broken = bytearray(packed)
    broken[len(packed) // 2] ^= 0xFF
    try:
        got = read(tmp_path, bytes(broken))
    except InputError:
        return
    assert not got.facts.complete


def test_several_documents_are_refused(tmp_path):
    one = json.dumps(document([kernel("a", 0, 1)])).encode()
    with pytest.raises(InputError, match="several documents"):
        read(tmp_path, one + b"\n" + one)
    with pytest.raises(InputError, match="2 compressed streams"):
        read(tmp_path, gzip.compress(one) + gzip.compress(one))


def test_ranks_interleaved_in_one_file_are_refused(tmp_path):
    def rank(number):
        events = [kernel(f"rank{number} kernel {n}", n, 1, args={"more": "x" * 90}) for n in range(300)]
        return json.dumps(document(events)).encode()

    a, b = rank(0), rank(1)
    mixed = b"".join(a[n : n + 150] + b[n : n + 150] for n in range(0, len(a), 150))
    with pytest.raises(InputError, match=r"cannot be read|malformed|several"):
        read(tmp_path, mixed)


def test_one_percent_of_damage_costs_only_the_damaged_events(tmp_path):
    chance = random.Random(3)
    events = [kernel(f"kernel <{n}>", n, 0.5, args={"External id": n, "k": "v" * (n % 50)}) for n in range(5000)]
    texts = [json.dumps(e) for e in events]
    damaged = set(chance.sample(range(5000), 50))
    for n in damaged:
        at = chance.randrange(1, len(texts[n]) - 1)
        texts[n] = chance.choice(
            [
                texts[n][:at] + "\x02" + texts[n][at + 1 :],
                texts[n][:at] + texts[n][at + 1 :],
                texts[n][:at] + '"' + texts[n][at:],
            ]
        )
    for size in (2_000, 50_000, 10_000_000):
        got = read(tmp_path, '{"traceEvents": [' + ", ".join(texts) + "]}", block_size=size)
        kept = {row["name"] for row in got.rows.values()}
        assert not {f"kernel <{n}>" for n in range(5000) if n not in damaged} - kept
        assert len(got.rejects) <= 50


@settings(max_examples=300, deadline=None)
@given(changes, st.sampled_from([37, 300, 5000]), st.sampled_from([{}, {"indent": 1}, {"separators": (",", ":")}]))
def test_any_mutation_leaves_the_untouched_events(tmp_path_factory, made, size, layout):
    path = tmp_path_factory.mktemp("fuzz") / "t.json"
    text, untouched = mutated_trace(generated_events(), made, layout)
    path.write_bytes(text)
    read_and_check(path, size, untouched)


def read_and_check(path, size, untouched) -> None:
    """Read a trace, whose ledger must add up, and insist on the untouched events."""
    try:
        got = Read(path, block_size=size)
    except InputError:
        if untouched:
            raise
        return
    missing = untouched - {row["name"] for row in got.rows.values()}
    assert not missing, missing


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ('{"AUTH_TOKEN": "abc123", "x": 1}', "abc123"),
        ('{"password": "p@ss w", "y"', "p@ss"),
        ("--api-key=zzz --api_key=yyy9", "yyy9"),
        ("hf_abcdefghijklmnopqrstuvwx", "hf_abcdefghijklmnopqrstuvwx"),
        ("Authorization: Bearer xyz.abc", "xyz.abc"),
        ('"my_secret" : {"a', "nothing"),
    ],
)
def test_samples_mask_what_looks_like_a_secret(text, hidden):
    assert hidden not in masked(text.encode())
