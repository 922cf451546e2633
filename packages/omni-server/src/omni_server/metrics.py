"""Counters and latencies of the HTTP side, and the stages' own numbers, for Prometheus.

Names and units:
omni_requests_total{status}                requests ended, by HTTP status (499: the client left)
omni_requests_in_flight                    requests being answered
omni_request_duration_seconds              from the request being read to its last byte
omni_time_to_first_token_seconds           to the first text of a reply
omni_time_to_first_audio_seconds           to the first audio of a reply
omni_prompt_tokens_total, omni_completion_tokens_total{kind}
omni_stage_STAT{stage}                     every number of `Pipeline.stats()`, as a gauge
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from omni_core.types import AudioDelta, Event, Finished, TextDelta

LATENCY_BUCKETS_S = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 30, 60, 120)
StageStats = dict[str, dict[str, float]]


class Metrics:
    """One server's numbers, in a registry of their own."""

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

    def _latency(self, name: str, documentation: str) -> Histogram:
        return Histogram(name, documentation, buckets=LATENCY_BUCKETS_S, registry=self.registry)

    def render(self, stages: StageStats) -> bytes:
        """The exposition text, stage numbers included."""
        families = CollectorRegistry()
        families.register(_StageCollector(stages))
        return generate_latest(self.registry) + generate_latest(families)


class RequestTimer:
    """Times one request; `end` may be called twice and counts once."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._start = time.perf_counter()
        self._heard_text = self._heard_audio = self._ended = False
        metrics.in_flight.inc()

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
                self._metrics.prompt_tokens.inc(usage.prompt_tokens)
                self._metrics.completion_tokens.labels("text").inc(usage.text_tokens)
                self._metrics.completion_tokens.labels("audio").inc(usage.audio_tokens)
            case _:
                pass

    def end(self, status: int) -> None:
        """Note how the request ended."""
        if self._ended:
            return
        self._ended = True
        self._metrics.in_flight.dec()
        self._metrics.requests.labels(str(status)).inc()
        self._metrics.duration.observe(time.perf_counter() - self._start)


class _StageCollector(Collector):
    def __init__(self, stages: StageStats) -> None:
        self._stages = stages

    def collect(self) -> Iterable[GaugeMetricFamily]:
        families: dict[str, GaugeMetricFamily] = {}
        for stage, stats in self._stages.items():
            for stat, value in stats.items():
                name = f"omni_stage_{re.sub(r'[^a-zA-Z0-9_]', '_', stat)}"
                family = families.setdefault(
                    name, GaugeMetricFamily(name, f"{stat} of a stage", labels=["stage"])
                )
                family.add_metric([stage], value)
        return families.values()
