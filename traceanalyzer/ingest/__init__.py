"""Trace files into a store: what to read, in parallel, all or nothing."""
