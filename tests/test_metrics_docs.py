"""docs/metrics.md: every metric of the code has a row, and every row a metric."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from prometheus_client import Histogram

from omni_core.engine.base import EngineStats
from omni_router.admission import Admission, Bounds
from omni_router.fleet import Fleet
from omni_router.metrics import LATENCY_BUCKETS_S as ROUTER_BUCKETS_S
from omni_router.metrics import Metrics as RouterMetrics
from omni_router.worker import Worker
from omni_server.metrics import ABORT_BUCKETS_S, LATENCY_BUCKETS_S, Metrics

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "docs" / "metrics.md").read_text()
ROWS = {
    cells[0].strip("` "): [cell.strip() for cell in cells[1:]]
    for line in TEXT.splitlines()
    if line.startswith("| `omni_")
    for cells in [line.strip("|").split("|")]
}
COLLECTED = {
    "omni_queue_depth",
    "omni_requests_admitted",
    "omni_aborts_pending",
    "omni_edge_transport",
    "omni_stage_processes_ready",
    "omni_stage_restarts",
}
"""Made when they are asked for, of the pipeline's state."""
SOURCES = ("omni-core", "omni-qwen3", "omni-ming")
NOT_SERVED = ("testing", "omni_core/config")


def of_router() -> dict[str, tuple[str, tuple[str, ...]]]:
    """{name in the exposition: type, labels} of the router's metrics, before one worker."""
    fleet = Fleet(policy="random", affinity=(), imbalance=1.0, slow_start_s=0.0)
    fleet.add(Worker("one", "http://one", 1))
    admission = Admission(Bounds(max_in_flight=1, max_queue=1, queue_timeout_s=1.0))
    found = {}
    for collector in set(RouterMetrics(fleet, admission).registry._collector_to_names):
        for family in collector.collect():
            suffix = "_total" if family.type == "counter" else ""
            sampled = [label for sample in family.samples[:1] for label in sample.labels]
            labels = getattr(collector, "_labelnames", sampled)
            found[family.name + suffix] = (family.type, tuple(labels))
    return found


def own() -> dict[str, tuple[str, tuple[str, ...]]]:
    """{name in the exposition: type, labels} of the server's own metrics."""
    registry = Metrics().registry
    found = {}
    for collector in set(registry._collector_to_names):
        [family] = collector.collect()
        suffix = "_total" if family.type == "counter" else ""
        found[family.name + suffix] = (family.type, tuple(collector._labelnames))
    return found


def told_by(package: str) -> Iterator[str]:
    """Names that a `stats` method of a package gives, as literal keys."""
    for path in (ROOT / "packages" / package / "src").rglob("*.py"):
        if any(part in str(path) for part in NOT_SERVED):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name in ("stats", "_relay_stats"):
                for part in ast.walk(node):
                    if isinstance(part, ast.Dict):
                        yield from (k.value for k in part.keys if isinstance(k, ast.Constant))


def test_every_metric_of_the_server_has_a_row_with_its_type_and_labels() -> None:
    metrics = own() | of_router()
    assert len(metrics) > 25
    for name, (kind, labels) in metrics.items():
        assert name in ROWS, name
        assert ROWS[name][0] == kind, name
        assert tuple(re.findall(r"`(\w+)`", ROWS[name][1])) == labels, name


def test_every_number_of_a_stage_or_process_has_a_row() -> None:
    told = {name for package in SOURCES for name in told_by(package)}
    told |= {field.name for field in fields(EngineStats)}
    documented = {name.removeprefix("omni_stage_").removeprefix("omni_relay_") for name in ROWS}
    assert len(told) > 40
    assert told <= documented


def test_every_row_is_of_a_metric() -> None:
    told = {name for package in SOURCES for name in told_by(package)}
    told |= {field.name for field in fields(EngineStats)}
    source = "".join(
        path.read_text() for path in (ROOT / "packages" / "omni-core" / "src").rglob("*.py")
    )
    for name in ROWS:
        if name in own() or name in of_router() or name in COLLECTED:
            continue
        stat = re.sub("^omni_(stage|relay)_", "", name)
        assert stat in told or f'"{stat}"' in source, name


def test_names_and_types_follow_the_conventions() -> None:
    for name, (kind, _) in (own() | of_router()).items():
        assert re.fullmatch("omni_[a-z_]+", name)
        assert name.endswith("_total") == (kind == "counter"), name
        assert not re.search("_(ms|millis|kb|mb)(_|$)", name)
        if kind == "histogram":
            assert name.endswith("_seconds")


def test_the_buckets_are_those_of_the_code() -> None:
    told = [
        re.findall(r"[\d.]*\d", line) for line in re.findall(r"in seconds: ([^A-Z]*?)\.\n", TEXT)
    ]
    assert [[float(n) for n in numbers] for numbers in told] == [
        list(LATENCY_BUCKETS_S),
        list(ABORT_BUCKETS_S),
        list(ROUTER_BUCKETS_S),
    ]
    metrics = Metrics()
    assert isinstance(metrics.duration, Histogram)
