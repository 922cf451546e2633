"""Feed damaged media to the loaders: `nox -s fuzz_media`, or `python tests/fuzz/media.py --help`.

The loaders run in a child process whose address space is limited, so that a decoder that crashes,
hangs or asks for too much memory is a finding and not the end of the run. A finding prints the
number that makes the file again: `--first NUMBER --count 1 --keep DIRECTORY` writes it down.
"""

from __future__ import annotations

import argparse
import os
import resource
import select
import signal
import struct
import subprocess
import sys
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import mutate
from seeds import Kind, Seed, seeds

from omni_core.errors import MediaError, PayloadTooLargeError, RequestError
from omni_core.media import MediaLimits, load_audio, load_image, load_video

MIB = 1024 * 1024
ADDRESS_SPACE_MIB = 4096
"""What one item may take beyond the loaded decoders. The default `MediaLimits` admit a video of
1.5 GB of pixels and an image of 64 million, which is 0.8 GB with its conversions."""
RETAINED_MIB = 256
"""Resident growth that may remain after all files: caches of allocator and decoders."""
FILE_DEADLINE_S = 5.0
START_DEADLINE_S = 60.0
KINDS: tuple[Kind, ...] = ("image", "audio", "video")
_SIZE = struct.Struct("<I")


@dataclass
class Outcome:
    """What became of the files of one run."""

    verdicts: Counter[str] = field(default_factory=Counter)
    """How many of each kind were taken, refused or neither."""
    findings: list[str] = field(default_factory=list)
    slowest: tuple[float, str] = (0.0, "none")
    """Seconds, and which file took them."""
    retained_mib: float = 0.0
    """Resident growth after all files."""


@dataclass
class Worker:
    """A child that answers one line for each file: "ready", "taken", "refused" or "escaped ..."."""

    process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        command = [sys.executable, "-X", "faulthandler", __file__, "--worker"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._answer(START_DEADLINE_S)

    def load(self, kind: Kind, data: bytes) -> str:
        """What became of one file; "hang" and "crash ..." end the child."""
        stdin = self.process.stdin
        assert stdin is not None
        try:
            stdin.write(bytes([KINDS.index(kind)]) + _SIZE.pack(len(data)) + data)
            stdin.flush()
        except BrokenPipeError:
            pass  # the answer says how it ended
        return self._answer(FILE_DEADLINE_S)

    def resident_mib(self) -> float:
        """Resident memory now."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / MIB

    def close(self) -> None:
        """End the child."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.kill()
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()

    def _answer(self, deadline_s: float) -> str:
        stdout = self.process.stdout
        assert stdout is not None
        if not select.select([stdout], [], [], deadline_s)[0]:
            return "hang"
        line = stdout.readline().decode()
        if line:
            return line.strip()
        code = self.process.wait()
        return f"crash {signal.Signals(-code).name if code < 0 else code}"


def work(requests: BinaryIO, answers: BinaryIO) -> None:
    """The child: load what comes until the pipe ends."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    limit = used + ADDRESS_SPACE_MIB * MIB
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    answers.write(b"ready\n")
    answers.flush()
    while header := requests.read(1 + _SIZE.size):
        data = requests.read(_SIZE.unpack(header[1:])[0])
        answers.write(verdict(KINDS[header[0]], data).encode() + b"\n")
        answers.flush()


def verdict(kind: Kind, data: bytes) -> str:
    """Load one file; anything but our own errors is a finding."""
    try:
        load(kind, data)
    except (MediaError, RequestError, PayloadTooLargeError):
        return "refused"
    except BaseException as exc:  # noqa: BLE001 - finding what escapes is what this is for
        where = traceback.extract_tb(exc.__traceback__)[-1]
        place = f"{Path(where.filename).name}:{where.lineno}"
        return f"escaped {type(exc).__name__} at {place}: {' '.join(str(exc).split())}"
    return "taken"


def load(kind: Kind, data: bytes) -> None:
    """As a server does with its default limits."""
    limits = MediaLimits()
    match kind:
        case "image":
            load_image(data, limits)
        case "audio":
            load_audio(data, limits)
        case "video":
            load_video(data, limits, fps=2.0, max_frames=limits.max_frames, with_audio=True)


def case(number: int, known: list[Seed]) -> tuple[Seed, Kind, bytes]:
    """The seed, the loader and the bytes of one number; every eighth goes to a wrong loader."""
    seed = known[number % len(known)]
    other = known[(number * 7 + 3) % len(known)]
    kind = KINDS[number % 3] if number % 8 == 7 else seed.kind
    return seed, kind, mutate.mutated(number, seed.data, other.data)


def main() -> int:
    """Run the files, report, and return 1 if there is any finding."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="files to try")
    parser.add_argument("--first", type=int, default=0, help="number of the first")
    parser.add_argument("--keep", type=Path, help="directory for the files of findings")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(sys.stdin.buffer, sys.stdout.buffer)
        return 0
    policy, param = os.sched_getscheduler(0), os.sched_getparam(0)
    known = seeds()
    os.sched_setscheduler(0, policy, param)  # as root, SVT-AV1 makes its caller a real-time thread
    numbers = range(options.first, options.first + options.count)
    return int(report(run(known, numbers, options.keep)))


def run(known: list[Seed], numbers: range, keep: Path | None) -> Outcome:
    """Load the seeds, which are valid, and then the damaged files of these numbers."""
    worker, outcome = Worker(), Outcome()
    outcome.findings += [
        f"valid {seed.name}: {answer}"
        for seed in known
        if (answer := worker.load(seed.kind, seed.data)) != "taken"
    ]
    start_mib = worker.resident_mib()
    for number in numbers:
        seed, kind, data = case(number, known)
        started_s = time.monotonic()
        answer = worker.load(kind, data)
        took_s = time.monotonic() - started_s
        outcome.verdicts[f"{kind} {answer.split()[0]}"] += 1
        outcome.slowest = max(outcome.slowest, (took_s, f"#{number} {seed.name} as {kind}"))
        if answer not in ("taken", "refused"):
            finding = f"#{number} {seed.name} as {kind} after {took_s:.1f} s: {answer}"
            outcome.findings.append(finding)
            if keep is not None:
                (keep / f"{number}.bin").write_bytes(data)
        if answer.startswith(("hang", "crash")):
            worker.close()
            worker = Worker()
            start_mib = worker.resident_mib()
        else:
            outcome.retained_mib = max(0.0, worker.resident_mib() - start_mib)
    worker.close()
    return outcome


def report(outcome: Outcome) -> bool:
    """Print the outcome; True if there is anything to mend."""
    findings, retained_mib = list(outcome.findings), outcome.retained_mib
    if retained_mib > RETAINED_MIB:
        findings.append(f"{retained_mib:.0f} MiB remain, more than {RETAINED_MIB}")
    counts = sorted(outcome.verdicts.items())
    took_s, name = outcome.slowest
    lines = [
        "  ".join(f"{verdict}: {count}" for verdict, count in counts),
        f"slowest: {name}, {took_s:.2f} s; resident memory grew by {retained_mib:.0f} MiB",
        f"findings: {len(findings)}",
        *findings,
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    return bool(findings)


if __name__ == "__main__":
    sys.exit(main())
