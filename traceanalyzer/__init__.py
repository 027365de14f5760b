"""GPU training traces into Parquet, and every number about them by SQL."""

from traceanalyzer.api import Answer, Traces, open

__version__ = "0.1.0"
__all__ = ["Answer", "Traces", "__version__", "open"]
