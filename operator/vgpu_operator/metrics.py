"""The Prometheus metrics of the operator and the webhooks."""

from __future__ import annotations

from importlib.metadata import version

from prometheus_client import Counter, Gauge, Histogram

_FAST = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5)

BUILD_INFO = Gauge(
    "vgpu_build_info", "Always 1; the label is the version of the program.", ["version"]
)
BUILD_INFO.labels(version("vgpu")).set(1)
SCHEDULING_ATTEMPTS = Counter(
    "vgpu_scheduling_attempts_total", "Decisions taken.", ["result", "reason"]
)
RESOURCE_CLAIM_WRITES = Counter(
    "vgpu_resource_claim_writes_total",
    "Writes of ResourceClaims that have ended.",
    ["purpose", "outcome"],
)
EXTENDER_DURATION = Histogram(
    "vgpu_extender_duration_seconds",
    "Time taken by the extender to answer.",
    ["verb"],
    buckets=_FAST,
)
EXTENDER_ERRORS = Counter(
    "vgpu_extender_errors_total", "Requests that got no decision.", ["verb", "reason"]
)
WATCH_RESTARTS = Counter(
    "vgpu_watch_restarts_total", "Watches that a new list had to replace.", ["kind", "reason"]
)
EVENTS_DROPPED = Counter("vgpu_events_dropped_total", "Events that could not be written.")
LEADER = Gauge("vgpu_leader", "1 if this replica decides, else 0.")
WEBHOOK_REQUESTS = Counter("vgpu_webhook_requests_total", "Admission reviews answered.", ["code"])
WEBHOOK_DURATION = Histogram(
    "vgpu_webhook_duration_seconds",
    "Time from the last byte of a review to its answer.",
    ["webhook"],
    buckets=_FAST,
)
CERTIFICATE_EXPIRY = Gauge(
    "vgpu_certificate_expiry_timestamp_seconds", "Unix time of a certificate's end.", ["name"]
)
