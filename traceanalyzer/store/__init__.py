"""The Parquet store: layout, manifests, writing, finding runs and ranks."""
