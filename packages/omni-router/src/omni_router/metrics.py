"""What the router counts, and what it knows of its workers, as Prometheus text.

docs/metrics.md says what each of them means; a test compares. Knows records and the fleet.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from omni_router.admission import Admission
from omni_router.fleet import Fleet
from omni_router.record import Record
from omni_router.worker import WorkerState

LATENCY_BUCKETS_S: Final = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
    *(1, 2, 5, 10, 30, 60, 120),
)
NO_WORKER: Final = "none"
"""Of requests that the router answers itself."""


class Metrics:
    """Of one router process."""

    def __init__(self, fleet: Fleet, admission: Admission) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "omni_router_requests",
            "Requests ended, by who answered and how",
            ["worker", "status"],
            registry=self.registry,
        )
        self._refused = Counter(
            "omni_router_refused",
            "Requests that the router answered with an error of its own",
            ["code"],
            registry=self.registry,
        )
        self._retries = Counter(
            "omni_router_retries", "Tries after the first", registry=self.registry
        )
        self._faults = Counter(
            "omni_router_worker_faults",
            "Requests that a worker could not be asked, or broke off",
            ["worker"],
            registry=self.registry,
        )
        self._duration = self._latency("request_duration", "Head to last byte")
        self._first_byte = self._latency("time_to_first_byte", "Head to the worker's answer")
        self._wait = self._latency("queue_wait", "Wait for a place at a worker")
        self._counts: dict[tuple[str, int], Counter] = {}
        """Children of `_requests`: to find one costs as much as to count."""
        self.registry.register(_State(fleet, admission))

    def _latency(self, name: str, documentation: str) -> Histogram:
        return Histogram(
            f"omni_router_{name}_seconds",
            documentation,
            buckets=LATENCY_BUCKETS_S,
            registry=self.registry,
        )

    def ended(self, record: Record) -> None:
        """A request is over."""
        assert record.end_s is not None
        assert record.status is not None
        key = (record.worker or NO_WORKER, record.status)
        if (count := self._counts.get(key)) is None:
            count = self._counts[key] = self._requests.labels(key[0], str(key[1]))
        count.inc()
        self._duration.observe(record.end_s - record.start_s)
        if record.head_s is not None:
            self._first_byte.observe(record.head_s - record.start_s)
        if record.tries:
            self._wait.observe(record.queue_s)
        if record.tries > 1:
            self._retries.inc(record.tries - 1)
        if record.code is not None:
            self._refused.labels(record.code).inc()

    def fault(self, worker: str) -> None:
        """A worker was at fault."""
        self._faults.labels(worker).inc()

    def forget(self, worker: str) -> None:
        """A worker was taken away: names that never end would fill the memory."""
        for key in [key for key in self._counts if key[0] == worker]:
            del self._counts[key]
            self._requests.remove(key[0], str(key[1]))
        self._faults.remove_by_labels({"worker": worker})

    def render(self) -> bytes:
        """The text."""
        return generate_latest(self.registry)


class _State(Collector):
    """What is so now, and what workers said of themselves last."""

    def __init__(self, fleet: Fleet, admission: Admission) -> None:
        self._fleet = fleet
        self._admission = admission

    def describe(self) -> list[Metric]:
        """Nothing: names are known once workers are."""
        return []

    def collect(self) -> Iterator[Metric]:
        yield _gauge("in_flight", "Requests with workers", self._admission.in_flight)
        yield _gauge("queue_depth", "Requests that wait for a place", self._admission.queued)
        state = GaugeMetricFamily(
            "omni_router_worker_state", "1 for the state it is in", labels=["worker", "state"]
        )
        in_flight = GaugeMetricFamily(
            "omni_router_worker_in_flight", "Requests of this process", labels=["worker"]
        )
        epochs = CounterMetricFamily(
            "omni_router_worker_starts", "Starts of it that were seen", labels=["worker"]
        )
        for worker in self._fleet:
            for one in WorkerState:
                state.add_metric([worker.name, one.value], worker.state is one)
            in_flight.add_metric([worker.name], worker.in_flight)
            epochs.add_metric([worker.name], worker.epoch)
        yield from (state, in_flight, epochs)
        yield from self._merged()

    def _merged(self) -> Iterator[Metric]:
        """The workers' own numbers, under their names, with the worker as a label more."""
        families: dict[str, GaugeMetricFamily] = {}
        for worker in self._fleet:
            for name, value in worker.said.items():
                family = families.setdefault(
                    name, GaugeMetricFamily(name, "As the worker said last", labels=["worker"])
                )
                family.add_metric([worker.name], value)
        yield from families.values()


def _gauge(name: str, documentation: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"omni_router_{name}", documentation, value=value)
