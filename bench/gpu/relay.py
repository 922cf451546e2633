"""Tensors from process to process on one card: pooled and direct CUDA IPC beside a way through the
host. `--fake` runs the same without a card, to see that it runs.

`python -m gpu.relay DIRECTORY [--fake]` is the reading process, which `measure` starts.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE
from typing import IO, Final

import msgspec
import numpy as np
import torch

from omni_core.relay.cuda_device import Card, CudaCard
from omni_core.relay.cuda_ipc import CudaIpcRelay
from omni_core.relay.cuda_ledger import CardReference
from omni_core.testing.cards import FakeCard
from results import Case, Report

POOLED_BYTES: Final = 1 << 20
DIRECT_BYTES: Final = 64 << 20
FAKE_SHRINK: Final = 16
IN_FLIGHT: Final = 8
READER: Final = "reader"
GIB: Final = 1 << 30


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the bench."""
    parser.add_argument("--fake", action="store_true", help="a card made of files; no card needed")
    parser.add_argument("--rounds", type=int, default=200, help="tensors of each size (200)")


def measure(options: argparse.Namespace) -> Report:
    """Each way: whether the bytes are the same, and how many of them a second."""
    with tempfile.TemporaryDirectory() as name, _reader(Path(name), options.fake) as pipes:
        directory = Path(name)
        card = _card(directory, options.fake)
        relay = CudaIpcRelay(directory, "sender", [card])
        sender = _Sender(relay, card, *pipes)
        cases = []
        for way, size in (("pooled", POOLED_BYTES), ("direct", DIRECT_BYTES)):
            size //= FAKE_SHRINK if options.fake else 1
            data = sender.tensor(size)
            cases += [
                _rate(way, sender, data, options.rounds),
                Case(
                    case=f"{way}: arrived bytes that are those sent",
                    unit="share",
                    ours=sender.same_share,
                    goal=1.0,
                ),
            ]
        pipes[0].close()
        pipes[1].read()  # until the reader has given everything back
        cases.append(_left(relay))
        relay.close()
    return Report(cases=tuple(cases), notes=f"on {_name(card)}")


class _Sender:
    """This end of the two processes."""

    def __init__(
        self, relay: CudaIpcRelay, card: Card, to_reader: IO[bytes], from_reader: IO[bytes]
    ) -> None:
        self._relay = relay
        self._card = card
        self._to_reader = to_reader
        self._from_reader = from_reader
        self._same = self._compared = 0

    @property
    def same_share(self) -> float:
        """Of what was sent so far, how much came with the right sum."""
        return self._same / self._compared

    def tensor(self, size: int) -> torch.Tensor:
        """Noise on the card."""
        noise = np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8)
        if isinstance(self._card, FakeCard):
            return self._card.tensor(noise)
        return torch.from_numpy(noise).to(self._card.device)

    def stream(self, data: torch.Tensor, rounds: int) -> float:
        """Seconds for so many tensors, a few of them in flight at a time."""
        expected = _sum(data)
        began = time.perf_counter()
        for number in range(rounds + IN_FLIGHT):
            if number < rounds:
                reference = self._relay.place(data, READER)
                self._to_reader.write(msgspec.json.encode(reference) + b"\n")
                self._to_reader.flush()
            if number >= IN_FLIGHT:
                self._compared += 1
                self._same += int(self._from_reader.readline()) == expected
        return time.perf_counter() - began


def _rate(way: str, sender: _Sender, data: torch.Tensor, rounds: int) -> Case:
    sender.stream(data, IN_FLIGHT)  # mappings and events are made
    return Case(
        case=f"{way}, {data.nbytes >> 10} KiB a tensor, read once by the other process",
        unit="GiB/s",
        ours=rounds * data.nbytes / GIB / sender.stream(data, rounds),
        other=rounds * data.nbytes / GIB / _through_host(data, rounds),
        other_name="through the host",
    )


def _through_host(data: torch.Tensor, rounds: int) -> float:
    """Seconds for copies to the host and to the card and a sum there: what a segment costs."""
    began = time.perf_counter()
    for _ in range(rounds):
        _sum(data.cpu().clone().to(data.device))
    return time.perf_counter() - began


def _left(relay: CudaIpcRelay) -> Case:
    stats = relay.stats()
    return Case(
        case="slots and direct bytes still out once the reader has ended",
        unit="",
        ours=stats["card_slots_lent"] + stats["card_direct_lent_bytes"],
        goal=0,
        better="less",
    )


def _sum(data: torch.Tensor) -> int:
    """Waits for the card."""
    return int(data.sum(dtype=torch.int64))


def _card(directory: Path, fake: bool) -> Card:
    return FakeCard(directory / "cards") if fake else CudaCard(0)


def _name(card: Card) -> str:
    return "a fake card" if isinstance(card, FakeCard) else torch.cuda.get_device_name(card.device)


@contextmanager
def _reader(directory: Path, fake: bool) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    (directory / "cards").mkdir()
    command = [sys.executable, "-m", "gpu.relay", str(directory), *(["--fake"] if fake else [])]
    bench = Path(__file__).resolve().parent.parent
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, cwd=bench) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield process.stdin, process.stdout
    assert process.returncode == 0, "the reading process failed"


def read(arguments: list[str]) -> None:
    """Open what stdin names, line by line, and answer with the sum of its bytes."""
    directory, fake = Path(arguments[0]), "--fake" in arguments
    relay = CudaIpcRelay(directory, READER, [_card(directory, fake)])
    for line in sys.stdin:
        print(_sum(relay.open(msgspec.json.decode(line, type=CardReference))), flush=True)
    relay.close()


if __name__ == "__main__":
    read(sys.argv[1:])
