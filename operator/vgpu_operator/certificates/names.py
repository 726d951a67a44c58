"""Where certificates lie: the names of Secrets and of what is in them, as manifests/ has them."""

from __future__ import annotations

AUTHORITY_SECRET = "vgpu-authority"
WEBHOOK_SECRET = "vgpu-webhook-tls"
EXTENDER_SECRET = "vgpu-extender-tls"
SCHEDULER_SECRET = "vgpu-scheduler-tls"

WEBHOOK_CONFIGURATIONS = "vgpu"
"""The name of both webhook configurations."""

# In a pair's Secret, as cert-manager names them too.
CERTIFICATE = "tls.crt"
KEY = "tls.key"
TRUST = "ca.crt"

# In the authority's Secret, beside TRUST.
SIGNING_CERTIFICATE = "signing.crt"
SIGNING_KEY = "signing.key"
ANNOUNCED_CERTIFICATE = "announced.crt"
ANNOUNCED_KEY = "announced.key"
ANNOUNCED_SINCE = "announced.since"
"""When the announced authority was first found in every bundle of trust; ISO 8601."""
