"""`vgpu-operator`: arguments and environment to a configuration, then run."""

from __future__ import annotations

import asyncio
import logging
import sys

from vgpu_api.errors import VgpuError
from vgpu_operator import app
from vgpu_operator.config import parse


def main() -> int:
    """Run the operator; the exit code is 0 when it was told to stop, 1 when something failed."""
    try:
        config = parse(sys.argv[1:])
    except (VgpuError, OSError) as error:
        print(f"vgpu-operator: {error}", file=sys.stderr)
        return 2
    logging.basicConfig(
        level=config.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    for chatty in ("aiohttp.access", "kopf.objects"):  # a line for every admission review
        logging.getLogger(chatty).setLevel(logging.WARNING)
    try:
        asyncio.run(app.run(config))
    except VgpuError as error:
        print(f"vgpu-operator: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
