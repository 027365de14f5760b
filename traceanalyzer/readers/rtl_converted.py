"""Reader for what 'rtl convert --format rocprofv3' makes of rocm_trace_lite's databases: rocprofv3's JSON, nearly."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from traceanalyzer.readers.base import Batch, HowToRead, TraceReading
from traceanalyzer.readers.rocprofv3 import Rocprofv3JsonReader, Rocprofv3Reading, readings
from traceanalyzer.readers.rtl import COLLECTOR
from traceanalyzer.readers.source import ByteSource, JsonFile


class _ConvertedReading:
    """A converted file being read; see `base.TraceReading`."""

    def __init__(self, reading: Rocprofv3Reading) -> None:
        self._reading = reading
        self.facts = reading.facts

    def __iter__(self) -> Iterator[Batch]:
        """Yield what rocprofv3's reader does. Raises as it does."""
        yield from self._reading
        self.facts.profiler = "rocm_trace_lite, converted to rocprofv3's form"
        self.facts.warnings.append(
            "converted files hold markers as if they were kernels, and those of several processes as one; the database"
            " they were made from says more"
        )


class RtlConvertedReader(Rocprofv3JsonReader):
    """rocprofv3's JSON as rocm_trace_lite writes it."""

    collector = COLLECTOR
    reads_converted = True

    def open(self, path: Path, how: HowToRead) -> JsonFile:
        """Open a converted file. Raises InputError when it cannot be read."""
        return JsonFile(path, how, lambda source: _converted(source, how))


def _converted(source: ByteSource, how: HowToRead) -> Iterator[TraceReading]:
    return (_ConvertedReading(reading) for reading in readings(source, how))
