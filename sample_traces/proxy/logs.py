"""Writes what unprofiled runs leave: training logs as Primus and Megatron print them, and madengine's perf.csv.

The eight rungs of the published ladder, each repeated, and the last one at three batch sizes. Where the step of a rung
was not published, it is assumed, so that the published differences come out. Noise is drawn per iteration: 0.6 % of
the step, normally distributed, plus a first few iterations that warm up.
"""

from __future__ import annotations

import csv
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SEQUENCE: Final = 4096
GPUS: Final = 8
ITERATIONS: Final = 30
REPEATS: Final = 2
NOISE: Final = 0.006
WARM_UP: Final = (8.0, 1.9, 1.25)
"""How many times longer the first iterations take."""


@dataclass(frozen=True)
class Rung:
    """A configuration of the ladder: its step, and its peak memory."""

    name: str
    step_ms: float
    memory_gb: float
    basis: str
    """P: published; A: assumed, with the published differences kept."""
    batch: int = 8


LADDER: Final = (
    Rung("1-baseline", 556.0, 117.3, "P"),
    Rung("2-attention", 549.2, 117.3, "A"),
    Rung("3-triton-fusions", 333.7, 117.3, "A"),
    Rung("4-grouped-gemm", 300.8, 117.3, "A"),
    Rung("5-deepep", 296.9, 117.3, "A"),
    Rung("6-megamoe", 261.7, 117.3, "A"),
    Rung("7-attention-flydsl", 258.2, 117.3, "A"),
    Rung("8-no-recompute", 239.8, 128.1, "P"),
)
"""Each rung has all changes of those before it."""
BATCHES: Final = (
    Rung("8-no-recompute-batch16", 73.0 + 20.8 * 16, 150.2, "A", batch=16),
    Rung("8-no-recompute-batch32", 73.0 + 20.8 * 32, 194.4, "A", batch=32),
)


def write(folder: Path) -> list[Path]:
    """Write one log per rung and repeat, and perf.csv; return the logs."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for rung in (*LADDER, *BATCHES):
        for repeat in range(REPEATS):
            paths.append(folder / f"{rung.name}.repeat{repeat}.log")
            paths[-1].write_text("".join(_lines(rung, repeat)), encoding="utf-8")
    _perf(folder / "perf.csv")
    return paths


def tokens_per_s_per_gpu(rung: Rung, step_ms: float) -> float:
    """Return the throughput of a step."""
    return rung.batch * SEQUENCE / GPUS / (step_ms / 1000)


def steps_ms(rung: Rung, repeat: int) -> list[float]:
    """Return how long each iteration of a repeat took, in milliseconds."""
    chance = random.Random(f"{rung.name}/{repeat}")
    steps = [rung.step_ms * max(1 + chance.gauss(0, NOISE), 0.9) for _ in range(ITERATIONS)]
    return [round(step * (WARM_UP[n] if n < len(WARM_UP) else 1), 1) for n, step in enumerate(steps)]


def _lines(rung: Rung, repeat: int) -> list[str]:
    """Return a log: what a launcher prints, in colours, and the iterations."""
    lines = [f"\x1b[32m[INFO]\x1b[0m [{rung.name}] world_size {GPUS}, seq_length {SEQUENCE}\n"]
    steps = steps_ms(rung, repeat)
    memory = f"{rung.memory_gb:.2f}GB/{256 - rung.memory_gb:.2f}GB/256.00GB/{rung.memory_gb / 256:.2%}"
    for n, step in enumerate(steps, 1):
        seen = steps[:n]
        mean = sum(seen) / len(seen)
        tokens = tokens_per_s_per_gpu(rung, step)
        lines.append(
            f"\x1b[36m[2026-10-01 12:{n // 60:02d}:{n % 60:02d}]\x1b[0m [rank-0/{GPUS}] "
            f" iteration {n:8d}/{ITERATIONS:8d} | consumed samples: {n * rung.batch:12d} |"
            f" elapsed time per iteration (ms): {step:.1f}/{mean:.1f} |"
            f" hip mem usage/free/total/usage_ratio: {memory} |"
            f" tokens/s/GPU inst/harmonic mean: {tokens:.1f}/{tokens_per_s_per_gpu(rung, mean):.1f} |"
            f" global batch size: {rung.batch:5d} | lm loss: {11.8 - 0.01 * n:.6E} |"
            f" grad norm: {7.872 - 0.01 * n:.3f} |\n"
        )
    return lines


def _perf(path: Path) -> None:
    """Write one row per repeat, as madengine collects them."""
    columns = (
        *("model", "n_gpus", "nnodes", "gpus_per_node", "training_precision", "pipeline", "args", "tags"),
        *("docker_file", "base_docker", "docker_sha", "docker_image", "git_commit", "machine_name", "deployment_type"),
        *("launcher", "gpu_architecture", "performance", "metric", "relative_change", "status", "build_duration"),
        *("test_duration", "dataname", "data_provider_type", "data_size", "data_download_duration", "build_number"),
        "additional_docker_run_options",
    )
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
        writer.writeheader()
        for rung in (*LADDER, *BATCHES):
            for repeat in range(REPEATS):
                settled = steps_ms(rung, repeat)[len(WARM_UP) :]
                performance = tokens_per_s_per_gpu(rung, sum(settled) / len(settled))
                row = {
                    "model": f"deepseek_v4_flash_proxy_{rung.name}",
                    "n_gpus": GPUS,
                    "nnodes": 1,
                    "gpus_per_node": GPUS,
                }
                row |= {"training_precision": "bf16", "machine_name": "mi350x-node-0", "launcher": "torchrun"}
                row |= {"gpu_architecture": "gfx950", "performance": f"{performance:.1f}", "status": "SUCCESS"}
                row |= {"metric": "tokens_per_second_per_gpu", "build_number": repeat}
                writer.writerow(row)
