"""What operator and webhooks measure of themselves, as Prometheus metrics."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

_FAST = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5)

SCHEDULING_ATTEMPTS = Counter(
    "vgpu_scheduling_attempts_total", "Decisions taken.", ["result", "reason"]
)
EXTENDER_DURATION = Histogram(
    "vgpu_extender_duration_seconds",
    "How long the extender took to answer.",
    ["verb"],
    buckets=_FAST,
)
EXTENDER_ERRORS = Counter(
    "vgpu_extender_errors_total", "Requests that got no decision.", ["verb", "reason"]
)
WATCH_RESTARTS = Counter(
    "vgpu_watch_restarts_total", "Streams that had to be made up for by a list.", ["kind", "reason"]
)
EVENTS_DROPPED = Counter("vgpu_events_dropped_total", "Events that could not be written.")
LEADER = Gauge("vgpu_leader", "1 where this replica decides.")
WEBHOOK_REQUESTS = Counter("vgpu_webhook_requests_total", "Admission reviews answered.", ["code"])
WEBHOOK_DURATION = Histogram(
    "vgpu_webhook_duration_seconds",
    "How long a review took, from its last byte to the answer.",
    ["webhook"],
    buckets=_FAST,
)
CERTIFICATE_EXPIRY = Gauge(
    "vgpu_certificate_expiry_timestamp_seconds", "When a certificate ends, as Unix time.", ["name"]
)
