"""The command line: `traceanalyzer COMMAND`. Errors become one line on stderr and an exit code here, nowhere else."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, Final

import typer
from typer.exceptions import TyperException

from traceanalyzer import __version__
from traceanalyzer.cli import doctor, ingest, query, runs
from traceanalyzer.console import Console
from traceanalyzer.errors import MachineError, TraceAnalyzerError, UsageError

INTERRUPTED = 130

app = typer.Typer(
    name="traceanalyzer",
    help="GPU training traces into Parquet, and every number about them by SQL.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMANDS: Final[dict[str, Callable[..., None]]] = {
    "ingest": ingest.ingest,
    "query": query.query,
    "queries": query.queries,
    "schema": query.schema,
    "runs": runs.runs,
    "doctor": doctor.doctor,
}
for _name, _function in COMMANDS.items():
    app.command(_name)(_function)


def _print_version(value: bool) -> None:
    if value:
        print(f"traceanalyzer {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback when something fails.")] = False,
) -> None:
    """GPU training traces into Parquet, and every number about them by SQL."""


def main() -> None:
    """Run the command line and exit with its code; no traceback unless --debug is given."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    sys.exit(_run(arguments or ["--help"], debug="--debug" in sys.argv))


def _run(arguments: list[str], *, debug: bool) -> int:
    console = Console()
    try:
        code = app(arguments, prog_name="traceanalyzer", standalone_mode=False) or 0
        if code == INTERRUPTED:
            console.error("interrupted; what was finished is stored, nothing half-done is left behind")
        return int(code)
    except Exception as error:
        if debug:
            raise
        match error:
            case TraceAnalyzerError():
                console.error(str(error))
                return error.exit_code
            case TyperException():
                command = f" {arguments[0]}" if arguments[0] in COMMANDS else ""
                console.error(f"{error.format_message()} (see 'traceanalyzer{command} --help')")
                return UsageError.exit_code
            case BrokenPipeError():  # the reader of our output had enough
                return 0
            case OSError():
                console.error(f"the machine failed: {error}")
                return MachineError.exit_code
            case MemoryError():
                console.error("out of memory")
                return MachineError.exit_code
        console.error(f"internal error: {type(error).__name__}: {error}; please report it with the output of --debug")
        return 1
