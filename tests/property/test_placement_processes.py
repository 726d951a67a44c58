"""Equal inputs give equal answers in every process, regardless of the hash seed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.programs

MEMORY = "limits.nvidia.com/gpumem"


def test_two_processes_with_different_hash_seeds_answer_alike(tmp_path: Path):
    devices = [
        {"uuid": f"GPU-{index}", "model": "T4", "memoryMiB": 16384, "numa": index % 2}
        for index in range(4)
    ]
    nodes = [
        {"name": f"n{at}", "devices": [{**d, "uuid": f"n{at}-{d['uuid']}"} for d in devices]}
        for at in range(20)
    ]
    policies = ("Binpack", "Spread", "NUMAFirst", "Fragmentation")
    claims: list[dict[str, Any]] = [
        {
            "kind": "VGPUClaim",
            "metadata": {"name": f"c{number}"},
            "spec": {
                "requests": [{"memory": f"{1 + number % 5}Gi", "count": 1 + number % 2}],
                "placement": {"node": policies[number % 4], "device": ["Topology", "BestFit"]},
            },
        }
        for number in range(60)
    ]
    (tmp_path / "state.json").write_text(json.dumps({"nodes": nodes}))
    (tmp_path / "many.jsonl").write_text("\n".join(map(json.dumps, claims)))
    few = {"nodes": nodes[:7], "quotas": [{"namespace": "q", "hard": {MEMORY: "4Gi"}}]}
    cases = [
        {"id": number, "state": few, "claim": {**claim, "metadata": {"namespace": namespace}}}
        for number, claim in enumerate([*claims[:8], *map(too_large, claims[:8])])
        for namespace in ("default", "q")
    ]
    (tmp_path / "cases.jsonl").write_text("\n".join(map(json.dumps, cases)))
    answers = {answered(tmp_path, seed) for seed in ("0", "1", "4242")}
    assert len(answers) == 1
    ((replay, singles),) = answers
    assert '"placed": 60' in replay
    assert "ResourceQuotaNotFit" in singles
    assert "CardInsufficientMemory" in singles


def too_large(claim: dict[str, Any]) -> dict[str, Any]:
    spec = {**claim["spec"], "requests": [{"memory": "17Gi"}]}
    return {**claim, "spec": spec}


def answered(folder: Path, hash_seed: str) -> tuple[str, str]:
    many = ["--state", str(folder / "state.json"), "--many", str(folder / "many.jsonl")]
    cases = ["--cases", str(folder / "cases.jsonl")]
    return replayed(many, hash_seed), replayed(cases, hash_seed)


def replayed(files: list[str], hash_seed: str) -> str:
    command = [sys.executable, "-m", "vgpu_operator.cli", "simulate", "-o", "json"]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [*command, *files], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout
