"""Fixtures of the readers' tests."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Return a path for a document of rocprofv3."""
    return tmp_path / "4242_results.json"
