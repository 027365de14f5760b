"""DuckDB over a store: views, macros, named queries, and free SQL in a sandbox."""
