"""The last lines that `make demo KEEP=1` prints are true."""

from __future__ import annotations

import json
import os
import re
import signal
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from vgpu_local.command import of_a_terminal
from vgpu_local.kubectl import Kubectl

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A demo that keeps running, and its output so far."""
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "vgpu_local.demo", "--keep"]
    running = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        preexec_fn=of_a_terminal,
    )
    try:
        printed = ""
        assert running.stdout is not None
        for line in running.stdout:
            printed += line
            if line.startswith("Ctrl-C"):
                break
        yield running, printed
    finally:
        running.send_signal(signal.SIGTERM)
        running.communicate(timeout=60)


def test_kept_it_prints_a_page_that_can_be_opened_with_the_token_that_it_names(
    kept: tuple[subprocess.Popen[str], str],
) -> None:
    running, printed = kept
    kubeconfig = re.search(r"^export KUBECONFIG=(.+)$", printed, re.MULTILINE)
    page = re.search(r"^kubectl (create token \S+)  # .+: (https://\S+)$", printed, re.MULTILINE)
    assert kubeconfig is not None, printed
    assert page is not None, printed
    made = Kubectl.find(Path(kubeconfig[1])).run(*page[1].split())
    assert (made.returncode, made.stderr) == (0, "")
    headers = {"Authorization": f"Bearer {made.stdout.strip()}"}
    asked = urllib.request.Request(f"{page[2]}/api/v1/fleet", headers=headers)
    unchecked = ssl.create_default_context()  # a browser would warn, and let the user continue
    unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE
    with urllib.request.urlopen(asked, timeout=30, context=unchecked) as answer:
        fleet = json.load(answer)
    assert fleet["devices"]["nodes"] == 2
    assert fleet["claims"]["total"] > 0
    # The lines above it, as somebody would paste them into a shell.
    exports = [line for line in printed.splitlines() if line.startswith("export ")]
    script = "\n".join([*exports, "kubectl vgpu get slices -A"])
    found = {name: word for name, word in os.environ.items() if name != "KUBECONFIG"}
    shown = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=False, env=found
    )
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "kubectl vgpu get slices -A" in printed
    assert "default" in shown.stdout
    running.send_signal(signal.SIGINT)
    assert running.wait(60) == 0
