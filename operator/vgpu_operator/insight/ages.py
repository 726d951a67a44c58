"""Ages and durations as kubectl prints them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any


def age(metadata: Mapping[str, Any], now: datetime) -> str:
    """Return the age of an object in kubectl's format, with at most two units."""
    created = metadata.get("creationTimestamp")
    if not created:
        return ""
    return lasting((now - datetime.fromisoformat(str(created))).total_seconds())


def lasting(seconds: float) -> str:
    """Format a duration with at most two units: 90s, 4m30s, 2h10m, 3d."""
    s = max(int(seconds), 0)
    if s < 120:
        return f"{s}s"
    minutes, s = divmod(s, 60)
    if minutes < 10:
        return f"{minutes}m{s}s" if s else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    hours, minutes = divmod(minutes, 60)
    if hours < 8:
        return f"{hours}h{minutes}m" if minutes else f"{hours}h"
    return f"{hours}h" if hours < 48 else f"{hours // 24}d"
