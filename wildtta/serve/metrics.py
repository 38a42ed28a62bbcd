"""What Prometheus is told: totals over all streams, and nothing that names one."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

__all__ = ["Metrics"]

_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """The counters of one service, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._requests = Counter("wildtta_requests", "Requests.", ["route", "status"], registry=registry)
        self._latency = Histogram(
            "wildtta_request_seconds", "Requests.", ["route"], buckets=_SECONDS, registry=registry
        )
        self._step = Histogram("wildtta_step_seconds", "Steps of the model.", buckets=_SECONDS, registry=registry)
        self._streams = Histogram("wildtta_step_streams", "Streams in a step.", buckets=_SIZES, registry=registry)
        self._batch = Histogram("wildtta_step_images", "Images in a step.", buckets=_SIZES, registry=registry)
        self._images = Counter("wildtta_images", "Images predicted.", registry=registry)
        self._selected = Counter("wildtta_images_selected", "Images that taught.", registry=registry)
        self._healed = Counter("wildtta_streams_healed", "Streams begun anew: not finite.", registry=registry)
        self._resets = Counter("wildtta_streams_reset", "Times that guards set streams back.", registry=registry)
        self._snapshots = Counter("wildtta_snapshots", "Snapshots.", ["result"], registry=registry)
        for result in ("written", "failed"):
            self._snapshots.labels(result)

    def watch(self, name: str, help: str, value: Callable[[], float]) -> None:
        """A gauge that is read when it is asked for."""
        Gauge(name, help, registry=self.registry).set_function(value)

    def request(self, route: str, status: int, seconds: float) -> None:
        self._requests.labels(route, str(status)).inc()
        self._latency.labels(route).observe(seconds)

    def step(self, streams: int, images: int, seconds: float) -> None:
        self._step.observe(seconds)
        self._streams.observe(streams)
        self._batch.observe(images)

    def predicted(self, images: int, selected: int, healed: bool) -> None:
        self._images.inc(images)
        self._selected.inc(selected)
        if healed:
            self._healed.inc()

    def set_back(self, times: int) -> None:
        self._resets.inc(times)

    def snapshot(self, written: bool) -> None:
        self._snapshots.labels("written" if written else "failed").inc()

    def text(self) -> bytes:
        return generate_latest(self.registry)
