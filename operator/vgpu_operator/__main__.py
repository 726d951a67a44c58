"""The entry point of the operator."""

from __future__ import annotations

from vgpu_operator import app
from vgpu_operator.config import parse
from vgpu_operator.process import run_process


def main() -> int:
    """Run the operator and return the exit code."""
    return run_process("vgpu-operator", parse, app.run)


if __name__ == "__main__":
    raise SystemExit(main())
