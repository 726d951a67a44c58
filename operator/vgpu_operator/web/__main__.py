"""The entry point of the web page."""

from __future__ import annotations

from vgpu_operator.config import parse_web
from vgpu_operator.process import run_process
from vgpu_operator.web import app


def main() -> int:
    """Serve the page and return the exit code."""
    return run_process("vgpu-web", parse_web, app.run)


if __name__ == "__main__":
    raise SystemExit(main())
