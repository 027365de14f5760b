"""Writes the sample traces: two modelled training steps as three collectors record them, and the truth about them.

usage: python sample_traces/generate.py [FOLDER] [--scale sample|full] [--steps N]

Nothing here was measured: see README.md beside this file. The same call always writes the same events.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from proxy import kineto, logs, rocm_trace_lite, rocpd, rocprofv3
from proxy.collectors import PYTORCH_ALL_RANKS, RTL_FULL, RTL_LITE, Collector
from proxy.model import RANKS, STEPS, STRAGGLER
from proxy.truth import truth

HERE = Path(__file__).parent


FULL_STEPS = 70
"""Steps of rocprofv3 and rocm_trace_lite at full scale: about 150 MB of JSON per rank, and 1.8 million rows."""
FULL_PYTORCH_STEPS = 8


def write(folder: Path, steps: int = STEPS) -> list[Path]:
    """Write everything into `folder`; return the traces.

    Of the PyTorch traces only rank 0 has its host side; rocprofv3 records rank 0 and a helper process,
    rocm_trace_lite ranks 0 and 5 into one merged database.
    """
    paths = []
    for rank in range(RANKS):
        paths.append(_pytorch(folder, rank, steps, kineto.GPU_ONLY if rank else kineto.WITH_HOST))
    paths.append(rocprofv3.write(folder / "rocprof_output", 0, steps))
    paths.append(rocprofv3.write_helper(folder / "rocprof_output"))
    paths += rocm_trace_lite.write_merged(folder / "rocm_trace_lite_output", [0, STRAGGLER], RTL_LITE, steps)
    logs.write(folder / "logs")
    (folder / "truth.json").write_text(json.dumps(truth(steps), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return paths


def write_full(folder: Path, steps: int = FULL_STEPS, pytorch_steps: int = FULL_PYTORCH_STEPS) -> list[Path]:
    """Write every rank of every collector into `folder`, as large as real runs leave them; return the traces.

    PyTorch: the host side with Python stacks on rank 0, runtime calls on the others. rocprofv3: JSON, uncompressed, and
    as CSV and rocpd of rank 0. rocm_trace_lite: a database per process, and the merged one.
    """
    paths = []
    for rank in range(RANKS):
        what = kineto.WITH_CALLS if rank else kineto.WITH_STACKS
        paths.append(_pytorch(folder, rank, pytorch_steps, what, PYTORCH_ALL_RANKS))
        paths.append(rocprofv3.write(folder / "rocprof_output", rank, steps, ending=".json"))
        paths.append(rocm_trace_lite.write(folder / "rocm_trace_lite_output", rank, RTL_FULL, steps))
    paths.append(rocprofv3.write_helper(folder / "rocprof_output"))
    paths += rocpd.write_csv(folder / "rocprof_output_csv", 0, steps)
    paths.append(rocpd.write_database(folder / "rocprof_output_rocpd", 0, steps))
    paths += rocm_trace_lite.write_merged(folder / "rocm_trace_lite_output", list(range(RANKS)), RTL_FULL, steps)
    return paths


def _pytorch(folder: Path, rank: int, steps: int, what: kineto.Recorded, collector: Collector | None = None) -> Path:
    name = f"primus-megatron-exp[deepseek-v4-flash-proxy]-rank[{rank}].1782967788000000000.pt.trace.json.gz"
    path = folder / "pytorch" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    kineto.write(path, rank, steps, what, collector)
    return path


def main() -> None:
    """Write to the folder given, else beside this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=HERE)
    parser.add_argument("--scale", choices=["sample", "full"], default="sample")
    parser.add_argument(
        "--steps", type=int, help=f"training steps in each trace [default: {STEPS}, full: {FULL_STEPS}]"
    )
    options = parser.parse_args()
    if options.scale == "full":
        if options.folder == HERE:
            parser.error("--scale full writes gigabytes: name a folder for them")
        paths = write_full(options.folder, options.steps or FULL_STEPS, options.steps or FULL_PYTORCH_STEPS)
    else:
        paths = write(options.folder, options.steps or STEPS)
    for path in paths:
        print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
