"""What the router counts, and what it knows of its workers, as Prometheus text.

Knows names of metrics; docs/metrics.md has their meanings.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from omni_router.access import Record
from omni_router.admission import Admission
from omni_router.fleet import Fleet
from omni_router.worker import WorkerState

_BUCKETS: Final = (0.005, 0.02, 0.1, 0.3, 1, 3, 10, 30, 120)
_WAITS: Final = (0.001, 0.01, 0.05, 0.2, 1, 5, 15, 30)


class Metrics(Collector):
    """Of one router process."""

    def __init__(self, fleet: Fleet, admission: Admission) -> None:
        self._fleet = fleet
        self._admission = admission
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "omni_router_requests",
            "Requests ended, by who answered and how",
            ["worker", "status"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "omni_router_request_duration_seconds",
            "From a request's head to its last byte",
            registry=self._registry,
            buckets=_BUCKETS,
        )
        self._waits = Histogram(
            "omni_router_queue_wait_seconds",
            "For a place at a worker",
            registry=self._registry,
            buckets=_WAITS,
        )
        self._retries = Counter(
            "omni_router_retries", "Tries after the first", registry=self._registry
        )
        self._faults = Counter(
            "omni_router_worker_faults",
            "Requests that a worker could not be asked, or broke off",
            ["worker"],
            registry=self._registry,
        )
        self._registry.register(self)

    def ended(self, record: Record) -> None:
        """A request is over."""
        self._requests.labels(record.worker, str(record.status)).inc()
        self._seconds.observe(time.perf_counter() - record.start_s)
        if record.tries:
            self._waits.observe(record.waited_s)
            self._retries.inc(record.tries - 1)

    def fault(self, worker: str) -> None:
        """A worker was at fault."""
        self._faults.labels(worker).inc()

    def render(self) -> bytes:
        """The text."""
        return generate_latest(self._registry)

    def describe(self) -> list[Metric]:
        """Nothing that could clash: see `Collector`."""
        return []

    def collect(self) -> Iterator[Metric]:
        """What is so now."""
        yield _gauge("queue_depth", "Requests that wait for a place", self._admission.queued)
        yield _gauge("in_flight", "Requests with workers", self._admission.in_flight)
        up = GaugeMetricFamily(
            "omni_router_worker_up", "1 if requests are sent to it", labels=["worker", "state"]
        )
        own = GaugeMetricFamily(
            "omni_router_worker_in_flight", "Requests of this router", labels=["worker"]
        )
        reported = GaugeMetricFamily(
            "omni_router_worker_reported",
            "Requests it has or queues, of everybody, as it said last",
            labels=["worker"],
        )
        lives = CounterMetricFamily(
            "omni_router_worker_starts", "Lives of its process seen", labels=["worker"]
        )
        for worker in self._fleet:
            up.add_metric([worker.name, worker.state], worker.state is WorkerState.READY)
            own.add_metric([worker.name], worker.in_flight)
            reported.add_metric([worker.name], worker.reported)
            lives.add_metric([worker.name], worker.epoch)
        yield from (up, own, reported, lives)


def _gauge(name: str, told: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"omni_router_{name}", told, value=value)
