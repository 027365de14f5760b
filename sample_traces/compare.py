"""Prints the published figures of rank 0's window beside those computed from the sample traces, and the truth.

usage: python sample_traces/compare.py STORE
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import traceanalyzer as ta

HERE = Path(__file__).parent
EXPERTS = 32
"""Grouped expert weights have this many experts in their first dimension."""


def causes(traces: ta.Traces) -> list[tuple[str, float, float]]:
    """Return published figures about what launched the work, with those computed: name, published, computed."""
    families = {row["family"]: row for row in traces.query("op_families").rows()}
    adds = [row for row in traces.query("accumulate_grad").rows() if row["op"] == "aten::add_"]
    experts = [row["share"] for row in adds if json.loads(row["input_dims"])[0][0] == EXPERTS]
    updates = [row["update_ns"] for row in traces.query("optimizer_steps").rows()]
    return [
        ("MegaMoE ms", 96.3, families["mega_moe"]["direct_ns"] / 1e6),
        ("MegaMoE % of direct time", 22.6, 100 * families["mega_moe"]["share"]),
        ("elementwise operators ms", 71.0, families["elementwise"]["direct_ns"] / 1e6),
        ("Adam ms", 45.9, sum(updates) / 1e6),
        ("add_ % in AccumulateGrad of experts", 71.0, 100 * sum(experts)),
    ]


def main() -> None:
    """Print one line per figure."""
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    truth = json.loads((HERE / "truth.json").read_text())
    traces = ta.open(sys.argv[1], ranks=0, collectors="pytorch")
    computed = traces.query("timeline").rows()[0]
    print(f"{'rank 0, two steps':<24}{'published ms':>14}{'computed ms':>14}{'off the truth by ns':>22}")
    for name, published in truth["published"].items():
        column = name.replace("_ms", "_ns")
        difference = computed[column] - truth["timeline"][0][column]
        print(f"{name.removesuffix('_ms'):<24}{published:>14.1f}{computed[column] / 1e6:>14.3f}{difference:>22}")
    print(f"\n{'what launched it':<38}{'published':>10}{'computed':>12}")
    for name, published, figure in causes(traces):
        print(f"{name:<38}{published:>10.1f}{figure:>12.3f}")
    print("(The sample traces are generated, and were fitted to the published figures: sample_traces/README.md)")


if __name__ == "__main__":
    main()
