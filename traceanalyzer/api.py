"""The Python interface: `import traceanalyzer as ta; ta.open("store").query("timeline").pl()`."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from traceanalyzer.tables import unique

if TYPE_CHECKING:
    import duckdb
    import polars
    import pyarrow

    from traceanalyzer.engine.session import Session


@dataclass(frozen=True)
class Answer:
    """The rows of an answer, as whatever table you work with. Times are integer nanoseconds, shares are 0 to 1."""

    table: pyarrow.Table
    notes: list[str] = field(default_factory=list)
    """What whoever uses the answer should know: what the traces lack, which runs it spans."""

    @property
    def columns(self) -> list[str]:
        """The names of the columns; `traceanalyzer queries NAME` says what they hold."""
        return list(self.table.column_names)

    def arrow(self) -> pyarrow.Table:
        """Return the rows as an Arrow table."""
        return self.table

    def pl(self) -> polars.DataFrame:
        """Return the rows as a Polars data frame."""
        import polars

        frame = polars.from_arrow(self.table)
        assert isinstance(frame, polars.DataFrame)
        return frame

    def df(self) -> Any:
        """Return the rows as a pandas data frame. Raises ImportError when pandas is not installed."""
        return self.table.to_pandas()

    def relation(self) -> duckdb.DuckDBPyRelation:
        """Return the rows as a DuckDB relation, to go on in SQL."""
        import duckdb

        return duckdb.connect().from_arrow(self.table)

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows as dictionaries, column -> value."""
        rows: list[dict[str, Any]] = self.table.to_pylist()
        return rows


class Traces:
    """The traces of a store, or those of it that were chosen; made by `open`. Not to be shared between threads."""

    def __init__(self, session: Session, queries: Path | None) -> None:
        self._session = session
        self._queries = queries

    def query(self, question: str, **parameters: object) -> Answer:
        """Return the answer to a named query with its parameters, or to one SQL SELECT.

        Raises UsageError for unknown names and values that do not fit, QueryError when the query fails,
        NothingToAnalyse when no trace holds GPU work and the query needs some.

        >>> traces.query("kernel_summary", kind="kernel").pl()  # doctest: +SKIP
        """
        from traceanalyzer.engine import library
        from traceanalyzer.errors import UsageError

        if question.strip().isidentifier():
            texts = {name: str(v).lower() if isinstance(v, bool) else str(v) for name, v in parameters.items()}
            result = self._session.named(library.named_query(question.strip(), self._queries), texts)
        elif parameters:
            raise UsageError("parameters are for named queries; in SQL, write the value into the text")
        else:
            result = self._session.sql(question)
        table = _table(*result.arrow())
        return Answer(table, [*self._session.caveats(result.query), *result.notes, *result.meanings(table.num_rows)])

    def queries(self) -> list[str]:
        """Return the names of the named queries."""
        from traceanalyzer.engine import library

        return list(library.queries(self._queries))

    def close(self) -> None:
        """Close the connection; also done at the end of a `with`."""
        self._session.close()

    def __enter__(self) -> Traces:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def _table(schema: pyarrow.Schema, batches: Iterable[pyarrow.RecordBatch]) -> pyarrow.Table:
    """Return the batches as a table, its sums as integers of 64 bits where they fit: DuckDB sums in 128."""
    import pyarrow as pa

    table = pa.Table.from_batches(batches, schema)
    table = table.rename_columns(unique(table.column_names))
    for place, column in enumerate(table.schema):
        if pa.types.is_decimal(column.type) and column.type.scale == 0:
            with suppress(pa.ArrowInvalid):  # larger ones stay as they are
                table = table.set_column(place, column.name, table.column(place).cast(pa.int64()))
    return table


def _several(value: Any) -> tuple[Any, ...]:
    """Return the values, or the one value, as a tuple."""
    return (value,) if isinstance(value, str | int) else tuple(value)


def open(
    store: str | PathLike[str],
    *,
    runs: str | Iterable[str] = (),
    ranks: int | str | Iterable[int | str] = (),
    collectors: str | Iterable[str] = (),
    devices: int | Iterable[int] = (),
    rules: str | PathLike[str] | None = None,
    queries: str | PathLike[str] | None = None,
) -> Traces:
    """Open a store, for all its traces or those of some: one or several runs, ranks, collectors, devices.

    The rank of traces without is 'unknown'.
    `rules` is a file of kernel rules that are tried before the built-in ones, `queries` a folder of your own queries.
    Raises UsageError when there is no such store, run, rank, collector or device, InputError when the store cannot be
    read, NothingToAnalyse when it is empty.
    """
    from traceanalyzer.engine.rules import load
    from traceanalyzer.engine.session import Filters, Session
    from traceanalyzer.store.store import Store

    filters = Filters(
        _several(runs), tuple(str(rank) for rank in _several(ranks)), _several(collectors), _several(devices)
    )
    folder = Path(queries) if queries is not None else None
    own = load(Path(rules) if rules is not None else None)
    return Traces(Session(Store(Path(store)), filters, rules=own, queries=folder), folder)
