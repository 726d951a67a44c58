from __future__ import annotations

import base64
import signal
import ssl
import subprocess
import sys
import urllib.request
from pathlib import Path

import yaml


def test_the_program_serves_until_it_is_told_to_stop(tmp_path: Path):
    kubeconfig = tmp_path / "kubeconfig"
    command = [sys.executable, "-m", "vgpu_local.apiserver", "--kubeconfig", str(kubeconfig)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        url = program.stdout.readline().strip()
        cluster = yaml.safe_load(kubeconfig.read_text())["clusters"][0]["cluster"]
        assert cluster["server"] == url
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        trusted = ssl.create_default_context(cadata=authority)
        with urllib.request.urlopen(f"{url}/readyz", context=trusted, timeout=5) as answer:
            assert answer.read() == b"ok"
        program.send_signal(signal.SIGTERM)
        assert program.wait(timeout=10) == 0
