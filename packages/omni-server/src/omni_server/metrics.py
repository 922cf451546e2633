"""Counters and latencies of the HTTP side, and the stages' own numbers, for Prometheus.

docs/metrics.md says what each of them means; a test compares. Knows events of the pipeline. Knows
no route.
"""

from __future__ import annotations

import operator
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from omni_core.errors import OmniError
from omni_core.pipeline import Edge, Health, Occupancy
from omni_core.types import AudioDelta, Event, Finished, Modality, StageSpan, TextDelta, Usage
from omni_server.record import current

ABORT_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
LATENCY_BUCKETS_S = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 30, 60, 120)
Stats = dict[str, dict[str, float]]
Together = Callable[[Usage, Usage], Usage]


class Metrics:
    """One server's numbers, in a registry of their own; observes the pipeline."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "omni_requests", "Requests ended", ["status"], registry=self.registry
        )
        self.in_flight = self._gauge("requests_in_flight", "Requests being answered")
        self.realtime_sessions = self._gauge("realtime_sessions", "Realtime sessions that are open")
        self.responses = Counter(
            "omni_http_responses",
            "Responses of any route",
            ["method", "route", "status"],
            registry=self.registry,
        )
        self.duration = self._latency("request_duration", "Request to last byte")
        self.first_token = self._latency("time_to_first_token", "Request to text", "output")
        self.first_audio = self._latency("time_to_first_audio", "Request to audio")
        self.text_done = self._latency("time_to_text_done", "Request to last text", "output")
        self.audio_done = self._latency("time_to_audio_done", "Request to last audio")
        self.queue_wait = self._latency("queue_wait", "Wait for a place in the stages", "output")
        self.media = self._latency("media_preparation", "Work of the first stage", "media")
        self.stage_time = self._latency("stage_request", "Begin to end of a stage", "stage")
        self.prompt_tokens = Counter("omni_prompt_tokens", "Prompt tokens", registry=self.registry)
        self.completion_tokens = Counter(
            "omni_completion_tokens", "Generated tokens", ["kind"], registry=self.registry
        )
        self.audio_cut = Counter(
            "omni_audio_cut", "Requests whose audio reached its limit", registry=self.registry
        )
        self.refusals = Counter(
            "omni_requests_refused", "Requests refused", ["reason"], registry=self.registry
        )
        self.aborts = Counter("omni_aborts", "Requests aborted", ["reason"], registry=self.registry)
        self.weight_updates = Counter(
            "omni_weight_updates", "New weights asked for", ["outcome"], registry=self.registry
        )
        self.client_gone = self._abort_time("client_gone", "Request to its client being gone")
        self.abort_sent = self._abort_time("sent", "Client gone to abort sent")
        self.abort_released = self._abort_time("released", "Abort sent to stage empty", "stage")

    def admitted(self, modalities: Collection[Modality], waited_s: float) -> None:
        """See `Observer.admitted`."""
        self.queue_wait.labels(_output("audio" in modalities)).observe(waited_s)

    def answered(self, method: str, route: str, status: int) -> None:
        """A request of whatever route is over."""
        self.responses.labels(method, route, str(status)).inc()

    def finished(self, event: Finished) -> None:
        """The pipeline has finished a request."""
        usage = event.usage
        self.prompt_tokens.inc(usage.prompt_tokens)
        self.completion_tokens.labels("text").inc(usage.text_tokens)
        self.completion_tokens.labels("audio").inc(usage.audio_tokens)
        self.audio_cut.inc(event.audio_finish_reason == "length")
        for span in event.timeline:
            self.stage_time.labels(span.stage).observe(span.end_s - span.start_s)
        if event.timeline:
            entry: StageSpan = min(event.timeline, key=lambda span: span.start_s)
            self.media.labels(_media(usage)).observe(entry.end_s - entry.start_s)

    def refused(self, reason: str) -> None:
        """See `Observer.refused`."""
        self.refusals.labels(reason).inc()

    def weights_updated(self, outcome: str) -> None:
        """An operator asked for new weights, and this came of it."""
        self.weight_updates.labels(outcome).inc()

    def aborted(self, reason: str) -> None:
        """See `Observer.aborted`."""
        self.aborts.labels(reason).inc()

    def released(self, stage: str, after_s: float) -> None:
        """See `Observer.released`."""
        self.abort_released.labels(stage).observe(after_s)

    def ready(self, process: str, stages: Sequence[str]) -> None:
        """See `Observer.ready`; /health is asked when there is somebody who wants to know."""

    def lost(self, process: str, stages: Sequence[str], cause: str) -> None:
        """See `Observer.lost`, and `ready`."""

    def _gauge(self, name: str, documentation: str) -> Gauge:
        return Gauge(f"omni_{name}", documentation, registry=self.registry)

    def _abort_time(self, name: str, documentation: str, *labels: str) -> Histogram:
        return Histogram(
            f"omni_abort_{name}_seconds",
            documentation,
            labels,
            buckets=ABORT_BUCKETS_S,
            registry=self.registry,
        )

    def _latency(self, name: str, documentation: str, *labels: str) -> Histogram:
        return Histogram(
            f"omni_{name}_seconds",
            documentation,
            labels,
            buckets=LATENCY_BUCKETS_S,
            registry=self.registry,
        )

    def render(
        self,
        stages: Stats,
        relays: Stats,
        occupancy: Occupancy,
        health: Health,
        edges: Sequence[Edge],
        meanings: Mapping[str, str],
    ) -> bytes:
        """The exposition text, with the numbers of the stages, of their processes and what goes
        between these, and of the queue before them. `meanings` of numbers of stages are those that
        plugins give."""
        families = CollectorRegistry()
        families.register(_StatsCollector("stage", stages, meanings=meanings))
        families.register(_StatsCollector("stage", _processes(health)))
        families.register(_StatsCollector("relay", relays, label="process"))
        families.register(_EdgeCollector(edges))
        families.register(_OccupancyCollector(occupancy))
        return generate_latest(self.registry) + generate_latest(families)


class RequestTimer:
    """Times one request of a client, which may be several of the pipeline; `end` may be called
    twice and counts once."""

    def __init__(self, metrics: Metrics, together: Together = operator.add) -> None:
        """`together` says what the usages of two requests of the pipeline come to."""
        self._metrics = metrics
        self._together = together
        self._usage: Usage | None = None
        self._unfinished = 0
        self._record = current.get()
        self._start = time.perf_counter()
        self._text: _Heard | None = None
        self._audio: _Heard | None = None
        self._ended = self._is_open = False
        metrics.in_flight.inc()

    @contextmanager
    def generating(self, requests: int = 1) -> Iterator[None]:
        """Around all that is asked of the pipeline, and over once so many have finished; a client
        that leaves before, which closes or cancels this in the middle, aborts its request."""
        self._is_open = True
        self._unfinished = requests
        try:
            yield
        except OmniError:
            self._is_open = False
            raise
        self._is_open = False

    def saw(self, event: Event) -> None:
        """Note one event of the pipeline."""
        elapsed_s = time.perf_counter() - self._start
        match event:
            case TextDelta(text=text) if text:
                self._text = _heard(self._text, elapsed_s)
            case AudioDelta():
                self._audio = _heard(self._audio, elapsed_s)
            case Finished():
                self._metrics.finished(event)
                self._finished(event)
            case _:
                pass

    def _finished(self, event: Finished) -> None:
        usage = event.usage
        self._usage = usage if self._usage is None else self._together(self._usage, usage)
        if self._record is not None:
            self._record.usage = self._usage
            self._record.is_audio_cut |= event.audio_finish_reason == "length"
        self._unfinished -= 1
        if not self._unfinished:
            self._is_open = False
            self._done()

    def _done(self) -> None:
        """All text and audio is there."""
        if self._text is not None:
            self._metrics.text_done.labels(self._output).observe(self._text.last_s)
        if self._audio is not None:
            self._metrics.audio_done.observe(self._audio.last_s)

    @property
    def _output(self) -> str:
        return _output(self._audio is not None)

    def end(self, status: int, gone_s: float | None = None) -> None:
        """Note how the request ended; `gone_s` is when its client was noticed to have left, by
        `time.perf_counter`, once the stages have been sent the abort."""
        if self._ended:
            return
        self._ended = True
        if gone_s is not None and self._is_open:
            self._metrics.client_gone.observe(gone_s - self._start)
            self._metrics.abort_sent.observe(time.perf_counter() - gone_s)
        if self._text is not None:
            self._metrics.first_token.labels(self._output).observe(self._text.first_s)
        if self._audio is not None:
            self._metrics.first_audio.observe(self._audio.first_s)
        if self._record is not None:
            self._record.status = status
        self._metrics.in_flight.dec()
        self._metrics.requests.labels(str(status)).inc()
        self._metrics.duration.observe(time.perf_counter() - self._start)


@dataclass(slots=True)
class _Heard:
    """When a reply's first and last text, or audio, came, since its request."""

    first_s: float
    last_s: float


def _heard(before: _Heard | None, now_s: float) -> _Heard:
    if before is None:
        return _Heard(now_s, now_s)
    before.last_s = now_s
    return before


def _output(is_spoken: bool) -> str:
    return "audio" if is_spoken else "text"


def _media(usage: Usage) -> str:
    kinds = {"audio": usage.prompt_audio_tokens, "vision": usage.prompt_image_tokens}
    return "+".join(kind for kind, tokens in kinds.items() if tokens) or "none"


def _processes(health: Health) -> Stats:
    return {
        name: {"processes_ready": stage.processes_ready, "restarts": stage.restarts}
        for name, stage in health.stages.items()
    }


class _StatsCollector(Collector):
    def __init__(
        self,
        kind: str,
        stats: Stats,
        label: str | None = None,
        meanings: Mapping[str, str] | None = None,
    ) -> None:
        self._kind = kind
        self._meanings = meanings or {}
        self._label = label or kind
        self._stats = stats

    def collect(self) -> Iterable[GaugeMetricFamily]:
        families: dict[str, GaugeMetricFamily] = {}
        for owner, stats in self._stats.items():
            for stat, value in stats.items():
                name = f"omni_{self._kind}_{re.sub(r'[^a-zA-Z0-9_]', '_', stat)}"
                text = self._meanings.get(stat, f"{stat} of a {self._label}")
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
