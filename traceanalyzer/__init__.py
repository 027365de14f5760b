"""traceanalyzer: GPU training traces into Parquet, and every number about them by SQL."""

__version__ = "0.1.0"
