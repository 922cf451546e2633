"""Counters and latencies of the HTTP side, and the stages' own numbers, for Prometheus.

Names and units:
omni_requests_total{status}                requests ended, by HTTP status (499: the client left)
omni_requests_in_flight                    requests being answered
omni_request_duration_seconds              from the request being read to its last byte
omni_time_to_first_token_seconds           to the first text of a reply
omni_time_to_first_audio_seconds           to the first audio of a reply
omni_prompt_tokens_total, omni_completion_tokens_total{kind}
omni_queue_depth, omni_requests_admitted   requests that wait for a place in the stages; in them
omni_requests_refused_total{reason}        not let in, or put out of a full queue
omni_aborts_total{reason}                  requests ended before their reply: "disconnect", or the
                                           code of the error
omni_abort_client_gone_seconds             from the request being read to its client being gone, of
                                           requests that the pipeline has not ended
omni_abort_sent_seconds                    from there to the abort being sent to the stages
omni_abort_released_seconds{stage}         from there to the stage holding nothing of the request
omni_aborts_pending                        aborted requests that some stage still holds
omni_stage_STAT{stage}                     every number of `Pipeline.stats()`, as a gauge
omni_stage_processes_ready{stage}          its processes that serve: 1, or its replicas
omni_stage_restarts{stage}                 how often they were started again
omni_relay_STAT{process}                   the same of `Pipeline.relay_stats()`: tensors that leave
                                           and enter a process
  bytes_inline                             inside messages
  bytes_lent, bytes_viewed                 through shared memory: written, and read without a copy
  bytes_copied_out                         read by copying, as the writer's pool was half full
  slots_used, slots_total, segment_bytes   of the process's pool; files of what is too large for it
  waits, waits_timed_out                   for room in the pool; the latter failed their requests
  bytes_tcp                                to other hosts
  card_bytes_pooled, card_bytes_direct     stayed on a card (CUDA IPC): copied to its pool, or read
                                           where they lay
  card_bytes_copied_out                    read by copying, as the writer's pool was half full
  card_full, card_elsewhere                tensors that left their card: for lack of room to lend,
                                           or as their reader does not use it
  card_slots_lent, card_direct_lent_bytes  what readers have of it now
  card_lenders                             processes that this one has read from
  messages_refused                         that were no message of ours, and were dropped
omni_edge_transport{source,target,transport}
                                           1 for each way that tensors take between two stages, or
                                           a stage and the coordinator: "local", "shm",
                                           "cuda-ipc", "tcp"
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from omni_core.errors import OmniError
from omni_core.pipeline import Edge, Health, Occupancy
from omni_core.types import AudioDelta, Event, Finished, TextDelta

ABORT_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
LATENCY_BUCKETS_S = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 30, 60, 120)
Stats = dict[str, dict[str, float]]


class Metrics:
    """One server's numbers, in a registry of their own; observes the pipeline."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "omni_requests", "Requests ended", ["status"], registry=self.registry
        )
        self.in_flight = Gauge(
            "omni_requests_in_flight", "Requests being answered", registry=self.registry
        )
        self.duration = self._latency("omni_request_duration_seconds", "Request to last byte")
        self.first_token = self._latency("omni_time_to_first_token_seconds", "Request to text")
        self.first_audio = self._latency("omni_time_to_first_audio_seconds", "Request to audio")
        self.prompt_tokens = Counter("omni_prompt_tokens", "Prompt tokens", registry=self.registry)
        self.completion_tokens = Counter(
            "omni_completion_tokens", "Generated tokens", ["kind"], registry=self.registry
        )
        self.refusals = Counter(
            "omni_requests_refused", "Requests refused", ["reason"], registry=self.registry
        )
        self.aborts = Counter("omni_aborts", "Requests aborted", ["reason"], registry=self.registry)
        self.client_gone = self._abort_time("client_gone", "Request to its client being gone")
        self.abort_sent = self._abort_time("sent", "Client gone to abort sent")
        self.abort_released = self._abort_time("released", "Abort sent to stage empty", "stage")

    def refused(self, reason: str) -> None:
        """See `Observer.refused`."""
        self.refusals.labels(reason).inc()

    def aborted(self, reason: str) -> None:
        """See `Observer.aborted`."""
        self.aborts.labels(reason).inc()

    def released(self, stage: str, after_s: float) -> None:
        """See `Observer.released`."""
        self.abort_released.labels(stage).observe(after_s)

    def _abort_time(self, name: str, documentation: str, *labels: str) -> Histogram:
        return Histogram(
            f"omni_abort_{name}_seconds",
            documentation,
            labels,
            buckets=ABORT_BUCKETS_S,
            registry=self.registry,
        )

    def _latency(self, name: str, documentation: str) -> Histogram:
        return Histogram(name, documentation, buckets=LATENCY_BUCKETS_S, registry=self.registry)

    def render(
        self,
        stages: Stats,
        relays: Stats,
        occupancy: Occupancy,
        health: Health,
        edges: Sequence[Edge],
    ) -> bytes:
        """The exposition text, with the numbers of the stages, of their processes and what goes
        between these, and of the queue before them."""
        families = CollectorRegistry()
        families.register(_StatsCollector("stage", stages))
        families.register(_StatsCollector("stage", _processes(health)))
        families.register(_StatsCollector("relay", relays, label="process"))
        families.register(_EdgeCollector(edges))
        families.register(_OccupancyCollector(occupancy))
        return generate_latest(self.registry) + generate_latest(families)


class RequestTimer:
    """Times one request; `end` may be called twice and counts once."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._start = time.perf_counter()
        self._heard_text = self._heard_audio = self._ended = False
        self._is_open = False
        metrics.in_flight.inc()

    @contextmanager
    def generating(self) -> Iterator[None]:
        """Around all that is asked of the pipeline; a client that leaves meanwhile, which closes or
        cancels this in the middle, aborts its request."""
        self._is_open = True
        try:
            yield
        except OmniError:
            self._is_open = False
            raise
        self._is_open = False

    def saw(self, event: Event) -> None:
        """Note one event of the pipeline."""
        elapsed = time.perf_counter() - self._start
        match event:
            case TextDelta(text=text) if text and not self._heard_text:
                self._heard_text = True
                self._metrics.first_token.observe(elapsed)
            case AudioDelta() if not self._heard_audio:
                self._heard_audio = True
                self._metrics.first_audio.observe(elapsed)
            case Finished(usage=usage):
                self._is_open = False
                self._metrics.prompt_tokens.inc(usage.prompt_tokens)
                self._metrics.completion_tokens.labels("text").inc(usage.text_tokens)
                self._metrics.completion_tokens.labels("audio").inc(usage.audio_tokens)
            case _:
                pass

    def end(self, status: int, gone_s: float | None = None) -> None:
        """Note how the request ended; `gone_s` is when its client was noticed to have left, by
        `time.perf_counter`, once the stages have been sent the abort."""
        if self._ended:
            return
        self._ended = True
        if gone_s is not None and self._is_open:
            self._metrics.client_gone.observe(gone_s - self._start)
            self._metrics.abort_sent.observe(time.perf_counter() - gone_s)
        self._metrics.in_flight.dec()
        self._metrics.requests.labels(str(status)).inc()
        self._metrics.duration.observe(time.perf_counter() - self._start)


def _processes(health: Health) -> Stats:
    return {
        name: {"processes_ready": stage.processes_ready, "restarts": stage.restarts}
        for name, stage in health.stages.items()
    }


class _StatsCollector(Collector):
    def __init__(self, kind: str, stats: Stats, label: str | None = None) -> None:
        self._kind = kind
        self._label = label or kind
        self._stats = stats

    def collect(self) -> Iterable[GaugeMetricFamily]:
        families: dict[str, GaugeMetricFamily] = {}
        for owner, stats in self._stats.items():
            for stat, value in stats.items():
                name = f"omni_{self._kind}_{re.sub(r'[^a-zA-Z0-9_]', '_', stat)}"
                text = f"{stat} of a {self._label}"
                family = families.setdefault(
                    name, GaugeMetricFamily(name, text, labels=[self._label])
                )
                family.add_metric([owner], value)
        return families.values()


class _EdgeCollector(Collector):
    def __init__(self, edges: Sequence[Edge]) -> None:
        self._edges = edges

    def collect(self) -> Iterable[GaugeMetricFamily]:
        family = GaugeMetricFamily(
            "omni_edge_transport", "How tensors travel", labels=["source", "target", "transport"]
        )
        for edge in self._edges:
            for transport in edge.transports:
                family.add_metric([edge.source, edge.target, transport], 1)
        yield family


class _OccupancyCollector(Collector):
    def __init__(self, occupancy: Occupancy) -> None:
        self._occupancy = occupancy

    def collect(self) -> Iterable[GaugeMetricFamily]:
        now = self._occupancy
        yield GaugeMetricFamily("omni_queue_depth", "Requests that wait", value=now.queued)
        yield GaugeMetricFamily(
            "omni_requests_admitted", "Requests in the stages", value=now.in_flight
        )
        yield GaugeMetricFamily(
            "omni_aborts_pending", "Aborted requests that a stage holds", value=now.aborting
        )
