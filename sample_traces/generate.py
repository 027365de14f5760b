"""Writes the sample traces: two modelled training steps as three collectors record them, and the truth about them.

usage: python sample_traces/generate.py [FOLDER] [--steps N]

Nothing here was measured: see README.md beside this file. The same call always writes the same events.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from proxy import kineto, logs, rocm_trace_lite, rocprofv3
from proxy.collectors import RTL_LITE
from proxy.model import RANKS, STEPS, STRAGGLER
from proxy.truth import truth

HERE = Path(__file__).parent


def write(folder: Path, steps: int = STEPS) -> list[Path]:
    """Write everything into `folder`; return the traces.

    Of the PyTorch traces only rank 0 has its host side; rocprofv3 records rank 0 and a helper process,
    rocm_trace_lite ranks 0 and 5 into one merged database.
    """
    paths = []
    for rank in range(RANKS):
        name = f"primus-megatron-exp[deepseek-v4-flash-proxy]-rank[{rank}].1782967788000000000.pt.trace.json.gz"
        path = folder / "pytorch" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        kineto.write(path, rank, steps, with_host=rank == 0)
        paths.append(path)
    paths.append(rocprofv3.write(folder / "rocprofv3", 0, steps))
    paths.append(rocprofv3.write_helper(folder / "rocprofv3"))
    paths += rocm_trace_lite.write_merged(folder / "rocm_trace_lite", [0, STRAGGLER], RTL_LITE, steps)
    logs.write(folder / "logs")
    (folder / "truth.json").write_text(json.dumps(truth(steps), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return paths


def main() -> None:
    """Write to the folder given, else beside this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=HERE)
    parser.add_argument("--steps", type=int, default=STEPS, help="training steps in each trace")
    options = parser.parse_args()
    for path in write(options.folder, options.steps):
        print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
