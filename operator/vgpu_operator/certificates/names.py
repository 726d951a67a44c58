"""The names of the Secrets and their keys, as in manifests/."""

from __future__ import annotations

AUTHORITY_SECRET = "vgpu-authority"
WEBHOOK_SECRET = "vgpu-webhook-tls"
EXTENDER_SECRET = "vgpu-extender-tls"
SCHEDULER_SECRET = "vgpu-scheduler-tls"

WEBHOOK_CONFIGURATIONS = "vgpu"
"""The name of both webhook configuration objects."""

# Keys of a pair's Secret, the same as cert-manager's.
CERTIFICATE = "tls.crt"
KEY = "tls.key"
TRUST = "ca.crt"

# Additional keys of the authority's Secret.
SIGNING_CERTIFICATE = "signing.crt"
SIGNING_KEY = "signing.key"
ANNOUNCED_CERTIFICATE = "announced.crt"
ANNOUNCED_KEY = "announced.key"
ANNOUNCED_SINCE = "announced.since"
"""The time at which the announced authority was first seen in all trust bundles, in ISO 8601."""
