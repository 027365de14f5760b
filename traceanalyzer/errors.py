"""Errors that people see: one class per exit code, each message says what, where, why and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TraceAnalyzerError(Exception):
    """Base of all expected errors; the command line prints its text as one line and exits with `exit_code`."""

    exit_code = 1


class QueryError(TraceAnalyzerError):
    """A query failed, or a check does not hold."""

    exit_code = 1


class UsageError(TraceAnalyzerError):
    """What was asked for does not exist or has the wrong form: names, parameters, paths."""

    exit_code = 2


class InputError(TraceAnalyzerError):
    """An input file cannot be read: corrupt, cut, or not a trace."""

    exit_code = 3


class NothingToAnalyse(TraceAnalyzerError):
    """The input is sound but holds nothing to analyse: no events, or no GPU events."""

    exit_code = 4


class MachineError(TraceAnalyzerError):
    """The machine failed us: disk full, store locked, out of memory."""

    exit_code = 6


class InternalError(TraceAnalyzerError):
    """A fault of this tool with one input, which must not keep it from the others; its cause is the exception."""

    exit_code = 1


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` for the nearest of `known`, or a list of all when none is near.

    >>> did_you_mean("timelin", ["timeline", "traces"])
    "; did you mean 'timeline'?"
    """
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if near:
        return f"; did you mean '{near[0]}'?"
    return f"; there is {', '.join(names)}" if names else ""
