"""Store, or check, what transformers answers to every parity case.

    python tests/parity/reference.py --checkpoint DIR           write tests/parity/data/NAME.npz
    python tests/parity/reference.py --checkpoint DIR --check   run again and compare with them

DIR is the checkpoint that `omni tiny qwen3 DIR` writes with seed 0. See `oracle` for what must be
installed.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
import torch

from cases import CASES, READINGS, Case, Reading
from expected import WAV_TOLERANCE, Reference, load_reference, store_reference
from oracle import Margins, Oracle


def main() -> int:
    """Run all cases; the exit status is the number of those that differ from the stored answer."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    options = parser.parse_args()
    torch.set_num_threads(1)
    oracle = Oracle.load(options.checkpoint)
    differing = 0
    for case in (*CASES, *READINGS):
        margins = Margins()
        match case:
            case Case():
                reply = oracle.answer(case, margins)
            case Reading():
                reply = oracle.read_aloud(case, margins)
        print(f"{case.name}: {describe(reply)}; margins {format_margins(margins)}", flush=True)
        if options.check:
            problems = differences(reply, load_reference(case.name))
            differing += bool(problems)
            for problem in problems:
                print(f"  DIFFERS: {problem}")
        else:
            store_reference(case.name, reply)
    return differing


def describe(reply: Reference) -> str:
    """Sizes of a reply, for the log."""
    return f"{len(reply.text_ids)} tokens, {reply.codes.shape[1]} frames, {reply.wav.size} samples"


def format_margins(margins: Margins) -> str:
    """The smallest gaps, for the log."""
    return " ".join(f"{kind}={gap:.1e}" for kind, gap in margins.smallest.items())


def differences(mine: Reference, stored: Reference) -> list[str]:
    """What of a reply is not as stored, one sentence each."""
    problems = [
        f"{field} are not equal"
        for field in ("text_ids", "codes")
        if not np.array_equal(getattr(mine, field), getattr(stored, field))
    ]
    if mine.wav.shape != stored.wav.shape:
        return [*problems, f"{mine.wav.size} samples, not {stored.wav.size}"]
    error = float(np.abs(mine.wav - stored.wav).max(initial=0.0))
    if error > WAV_TOLERANCE:
        problems.append(f"a sample is {error:.1e} off, more than {WAV_TOLERANCE:.0e}")
    return problems


if __name__ == "__main__":
    sys.exit(main())
