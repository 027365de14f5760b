"""The command line: `traceanalyzer COMMAND`. Errors become one line on stderr and an exit code here, nowhere else."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer
from typer.exceptions import TyperException

from traceanalyzer import __version__
from traceanalyzer.cli import ingest, query
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
app.command("ingest")(ingest.ingest)
app.command("query")(query.query)
app.command("queries")(query.queries)
app.command("schema")(query.schema)


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
    sys.exit(_run(arguments, debug=len(arguments) < len(sys.argv) - 1))


def _run(arguments: list[str], *, debug: bool) -> int:
    console = Console()
    try:
        code = app(arguments, standalone_mode=False) or 0
        if code == INTERRUPTED:
            console.error("interrupted; nothing half-done is left behind")
        return int(code)
    except BrokenPipeError:  # the reader of our output had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if debug:
            raise
        match error:
            case TraceAnalyzerError():
                console.error(str(error))
                return error.exit_code
            case TyperException():
                console.error(f"{error.format_message()} (see 'traceanalyzer --help')")
                return UsageError.exit_code
            case MemoryError():
                console.error("out of memory")
                return MachineError.exit_code
        console.error(f"internal error: {type(error).__name__}: {error}; please report it with the output of --debug")
        return 1
