"""Affinity: requests that belong together go to one worker, unless it is far busier than others.

Pure functions. Rendezvous hashing (Thaler and Ravishankar, 1998): every router ranks workers alike
without talking to others, and a worker that comes or goes moves only what it wins or held. The
bound on the imbalance is that of consistent hashing with bounded loads (Mirrokni et al., 2018).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

from omni_router.routing.policies import Load


def ranked(key: str, names: Sequence[str]) -> list[int]:
    """The places of `names`, the favourite of `key` first."""
    return sorted(range(len(names)), key=lambda place: _score(key, names[place]), reverse=True)


def preferred(key: str, names: Sequence[str], loads: Sequence[Load], imbalance: float) -> int:
    """The place of the first in the ranking of `key` that one more request leaves within
    `imbalance` times its fair share of all, rounded up; there is always one if `imbalance` >= 1."""
    total, weights = sum(load.requests for load in loads) + 1, sum(load.weight for load in loads)
    for place in ranked(key, names):
        load = loads[place]
        if load.requests + 1 <= math.ceil(imbalance * total * load.weight / weights):
            return place
    return min(range(len(loads)), key=lambda place: loads[place].cost)


def _score(key: str, name: str) -> bytes:
    return hashlib.blake2b(f"{key}\0{name}".encode(), digest_size=8).digest()
