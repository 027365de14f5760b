"""Throws mutated traces at the reader for as long as you like: `make fuzz`, or python benchmarks/fuzz.py.

usage: python benchmarks/fuzz.py [ROUNDS] [--seed N] [--corpus TRACE...]

Each round mutates single events of a small trace, generated or a dozen events of a trace of the corpus: bytes flipped,
cut out, put in, repeated; keys renamed, numbers enlarged; sometimes the file is cut. It insists that reading neither
crashes nor hangs, that the ledger adds up, and that every untouched event is there.
A finding prints the bytes that made it and ends the run with an error. Rounds go to all processors.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.mutations import KINDS, generated_events, mutated_trace, real_events
from tests.readers.test_salvage import read_and_check

_BATCH = 250
_BLOCK_SIZES = [60, 400, *[100_000] * 98]  # a small size costs a query per event or two


def rounds(seed: int, count: int, corpus: list[Path]) -> str | None:
    """Run `count` rounds; return what went wrong, with the bytes, or None."""
    chance = random.Random(seed)
    source = chance.choice([None, *corpus])
    events = chance.choice(real_events(source)) if source else generated_events()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.json"
        for _ in range(count):
            changes = [
                (chance.choice(KINDS), chance.random(), chance.randrange(256), chance.randint(1, 20))
                for _ in range(chance.randint(1, 4))
            ]
            layout = chance.choice([{}, {"indent": 1}, {"separators": (",", ":")}])
            text, untouched = mutated_trace(events, changes, layout)
            if chance.random() < 0.1:
                text, untouched = text[: chance.randrange(1, len(text))], set()
            path.write_bytes(text)
            try:
                read_and_check(path, chance.choice(_BLOCK_SIZES), untouched)
            except AssertionError as error:
                return f"{error}\n{text!r}"
            except Exception as error:
                return f"{type(error).__name__}: {error}\n{text!r}"
    return None


def main() -> None:
    """Run the campaign and say how it went."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rounds", type=int, nargs="?", default=100_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--corpus", type=Path, nargs="+", default=[], help="real traces to take events from")
    options = parser.parse_args()
    seed, started, done = options.seed, time.monotonic(), 0
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        batches = [pool.submit(rounds, seed + n, _BATCH, options.corpus) for n in range(-(-options.rounds // _BATCH))]
        for batch in batches:
            if finding := batch.result():
                for other in batches:
                    other.cancel()
                sys.exit(f"finding after about {done:,} rounds (seed {seed}): {finding}")
            done += _BATCH
            if done % 10_000 == 0:
                print(f"{done:,} rounds, {time.monotonic() - started:.0f} s", flush=True)
    print(f"{done:,} mutations without a finding, seed {seed}, {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
