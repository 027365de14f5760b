"""Prints the published figures of rank 0's window beside those computed from the sample traces, and the truth.

usage: python sample_traces/compare.py STORE
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import traceanalyzer as ta

HERE = Path(__file__).parent


def main() -> None:
    """Print one line per figure."""
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    truth = json.loads((HERE / "truth.json").read_text())
    computed = ta.open(sys.argv[1], ranks=0).query("timeline").rows()[0]
    print(f"{'rank 0, two steps':<24}{'published ms':>14}{'computed ms':>14}{'off the truth by ns':>22}")
    for name, published in truth["published"].items():
        column = name.replace("_ms", "_ns")
        difference = computed[column] - truth["timeline"][0][column]
        print(f"{name.removesuffix('_ms'):<24}{published:>14.1f}{computed[column] / 1e6:>14.3f}{difference:>22}")
    print("(The sample traces are generated, and were fitted to the published figures: sample_traces/README.md)")


if __name__ == "__main__":
    main()
