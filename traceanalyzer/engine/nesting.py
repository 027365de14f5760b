"""Which host range lies within which, thread by thread: a stack, which SQL does badly.

Operators, runtime calls, annotations and Python frames of a thread enclose each other. A range's parent is the
innermost one that was open when it began; with it, a range inherits the operator, autograd node, annotation, module and
frame around it, so that nobody has to climb.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa

OP, NODE, CALL, ANNOTATION, FRAME, MODULE, RECOMPUTE = range(7)
"""Roles of ranges: an operator, the engine's span around an autograd node, a runtime call, an annotation, a Python
frame, an nn.Module's frame, the frame of a checkpoint's recomputation."""
_CROSSING_NS: Final = 1_000
"""A range that begins so shortly before another ends, and ends behind it, is its neighbour: profilers round times."""


@dataclass(slots=True)
class _Open:
    """A range that has not ended, and what is around and including it."""

    end_ns: int
    event_id: int
    op: int | None
    node: int | None
    annotation: int | None
    frame: int | None
    module: int | None
    recompute: int | None
    path: tuple[int, ...]
    """The operators around it, outermost first."""


_NOTHING: Final = _Open(0, -1, None, None, None, None, None, None, ())


@dataclass
class _Rows:
    """Rows of the answer, column by column."""

    event_id: list[int] = field(default_factory=list)
    parent_event_id: list[int | None] = field(default_factory=list)
    depth: list[int] = field(default_factory=list)
    op_event_id: list[int | None] = field(default_factory=list)
    node_event_id: list[int | None] = field(default_factory=list)
    annotation_event_id: list[int | None] = field(default_factory=list)
    frame_event_id: list[int | None] = field(default_factory=list)
    module_event_id: list[int | None] = field(default_factory=list)
    recompute_event_id: list[int | None] = field(default_factory=list)
    is_crossing: list[bool] = field(default_factory=list)
    op_path: list[tuple[int, ...] | None] = field(default_factory=list)


def nested(batches: Iterable[pa.RecordBatch], *, as_tracelens: bool = False) -> Iterator[pa.RecordBatch]:
    """Yield parent, depth and surroundings of host ranges.

    In: thread, event_id, role, start_ns, end_ns; in the order of thread, start, end (the later one first), event_id.
    With `as_tracelens`, which sorts by start and event_id only, a range that ends behind its parent is its neighbour
    where two or more are open and the parent ends within a microsecond; else it is in no tree.
    Out: `SCHEMA`, for all ranges but plain Python frames, in the same order. The operator, node, annotation, frame and
    module are those around or at the range; `op_path` has the operators around a runtime call, outermost first.
    """
    import pyarrow as pa

    stack: list[_Open] = []
    current = None
    for batch in batches:
        rows = _Rows()
        for thread, event_id, role, start, end in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            if thread != current:
                stack, current = [], thread
            crosses = False
            while stack and start >= stack[-1].end_ns:
                stack.pop()
            while stack and end > stack[-1].end_ns:
                if as_tracelens:
                    crosses = len(stack) < 2 or stack[-1].end_ns - start >= _CROSSING_NS
                    if not crosses:
                        stack.pop()
                    break
                if stack[-1].end_ns - start >= _CROSSING_NS:
                    crosses, end = True, stack[-1].end_ns  # what comes behind the parent is not within
                    break
                stack.pop()
            if crosses and as_tracelens:
                continue
            around = stack[-1] if stack else _NOTHING
            within = _within(around, event_id, role, end)
            if role not in (FRAME, RECOMPUTE):
                _add(rows, around, within, role, len(stack), crosses)
            if end > start:
                stack.append(within)
        yield pa.record_batch([pa.array(getattr(rows, name), kind) for name, kind in _types()], schema())


def schema() -> pa.Schema:
    """Return the columns of the answer."""
    import pyarrow as pa

    return pa.schema([pa.field(name, kind) for name, kind in _types()])


def _types() -> list[tuple[str, pa.DataType]]:
    import pyarrow as pa

    special = {"is_crossing": pa.bool_(), "op_path": pa.list_(pa.int64())}
    return [(name, special.get(name, pa.int64())) for name in _Rows.__dataclass_fields__]


def _within(around: _Open, event_id: int, role: int, end_ns: int) -> _Open:
    """Return a range with what is around it, itself included."""
    is_op = role in (OP, NODE)
    return _Open(
        end_ns,
        event_id,
        event_id if is_op else around.op,
        event_id if role == NODE else around.node,
        event_id if role == ANNOTATION else around.annotation,
        event_id if role in (FRAME, MODULE, RECOMPUTE) else around.frame,
        event_id if role == MODULE else around.module,
        event_id if role == RECOMPUTE else around.recompute,
        (*around.path, event_id) if is_op else around.path,
    )


def _add(rows: _Rows, around: _Open, within: _Open, role: int, depth: int, crosses: bool) -> None:
    rows.event_id.append(within.event_id)
    rows.parent_event_id.append(around.event_id if depth else None)
    rows.depth.append(depth)
    rows.op_event_id.append(within.op)
    rows.node_event_id.append(within.node)
    rows.annotation_event_id.append(within.annotation)
    rows.frame_event_id.append(within.frame)
    rows.module_event_id.append(within.module)
    rows.recompute_event_id.append(within.recompute)
    rows.is_crossing.append(crosses)
    rows.op_path.append(within.path if role == CALL else None)
