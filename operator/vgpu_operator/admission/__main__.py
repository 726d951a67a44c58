"""The entry point of the webhooks."""

from __future__ import annotations

from vgpu_operator.admission import app
from vgpu_operator.config import parse_webhook
from vgpu_operator.process import run_process


def main() -> int:
    """Run the webhooks and return the exit code."""
    return run_process("vgpu-webhook", parse_webhook, app.run)


if __name__ == "__main__":
    raise SystemExit(main())
