"""Every link of the manual works, every command exists and every page can be reached."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from manual import shell
from manual.pages import DOCS
from manual.words import ROOT
from vgpu_api.names import API_VERSION
from vgpu_api.v1alpha1 import GPUDevice, VGPUClaim

PAGES = shell.documents()
LANGUAGES = {"sh", "yaml", "json", "text", "mermaid", "python", "c", "toml"}
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def slugs(page: Path) -> set[str]:
    """Return the anchors of a page: explicit ones, and those that forges and MkDocs generate."""
    text = page.read_text()
    titles = re.findall(r"^#+ +(.*)$", text, re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", title.replace("`", "").lower()) for title in titles)
    own = re.findall(r'<a id="([\w-]+)"></a>', text)
    return {*(title.strip().replace(" ", "-") for title in plain), *own}


def links(page: Path) -> list[tuple[Path, str]]:
    """Return the files and anchors inside the tree that a page links to."""
    found = []
    for target in LINK.findall(page.read_text()):
        if "://" not in target:
            file, _, anchor = target.partition("#")
            found.append(((page.parent / file).resolve() if file else page, anchor))
    return found


@pytest.mark.parametrize("page", shell.documents(), ids=name)
def test_every_link_leads_to_a_file_and_a_heading_of_it(page: Path) -> None:
    broken = [
        f"{target}#{anchor}"
        for target, anchor in links(page)
        if not target.exists() or (anchor and anchor not in slugs(target))
    ]
    assert broken == []


def test_every_page_of_the_manual_is_reached_from_its_map() -> None:
    reached, wanted = set(), [DOCS / "README.md"]
    while wanted:
        page = wanted.pop()
        if page not in reached and page.suffix == ".md" and page.is_relative_to(DOCS):
            reached.add(page)
            wanted += [target for target, _ in links(page) if target.exists()]
    unreached = sorted(name(page) for page in set(DOCS.rglob("*.md")) - reached)
    assert unreached == [], "add a row to docs/README.md"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_shell_block_is_valid_shell(page: Path) -> None:
    for block in shell.blocks(page.read_text(), "sh"):
        done = subprocess.run(
            ["bash", "-n"], input=block, text=True, capture_output=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_command_exists_with_its_options(page: Path) -> None:
    text = page.read_text()
    found = [fault for command in shell.commands(text) for fault in shell.faults(command)]
    assert [*found, *shell.unknown_options(text)] == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_names_its_language_and_can_be_read(page: Path) -> None:
    text = page.read_text()
    assert set(re.findall(r"^```(\w*)\n(?:.|\n)*?^```", text, re.MULTILINE)) <= LANGUAGES
    for block in shell.blocks(text, "json"):
        json.loads(block)
    for block in shell.blocks(text, "yaml"):
        for document in yaml.safe_load_all(block):
            if document.get("apiVersion") == API_VERSION:
                model = {"VGPUClaim": VGPUClaim, "GPUDevice": GPUDevice}[document["kind"]]
                model.model_validate(document)


STATEMENTS = {
    "flowchart": r"\w+(\[.*\])?( -->(\|[^|]+\|)? \w+(\[.*\])?)?",
    "sequenceDiagram": r"participant \w+ as [\w -]+|\w+-?->>\w+: .+",
    "stateDiagram-v2": r'state ".+" as \w+|(\w+|\[\*\]) --> (\w+|\[\*\]): [^:;]+',
}
"""The elements that the manual's drawings use, by kind; Mermaid's grammar has many more."""


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_drawing_consists_of_statements_of_its_kind(page: Path) -> None:
    for block in shell.blocks(page.read_text(), "mermaid"):
        kind, *lines = block.splitlines()
        statement = STATEMENTS[kind.split()[0]]
        assert lines
        assert [line for line in lines if not re.fullmatch(statement, line.strip())] == []


def test_the_manual_has_links_blocks_and_commands() -> None:
    found = [command for page in PAGES for command in shell.commands(page.read_text())]
    programs = {command[0] for command in found}
    assert programs >= {"make", "kubectl", "bash"}
    assert len(found) > 60


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        ("make demmo", "no target demmo"),
        ("make -C libvgpu tset", "no target tset"),
        ("kubectl gett pods", "kubectl has no command gett"),
        ("kubectl get pods --widee", "kubectl get has no flag --widee"),
        (
            "kubectl create clusterrolebinding NAME --clusterole=view",
            "kubectl create clusterrolebinding has no flag --clusterole",
        ),
        ("kubectl create -f pod.yaml --widee", "kubectl create has no flag --widee"),
        ("kubectl apply -k manifests/overlays/none", "no file manifests/overlays/none"),
        ("kubectl -n vgpu-sistem get pods", "no namespace vgpu-sistem in manifests/base"),
        (
            "kubectl rollout status deployment/vgpu-operater",
            "no deployment/vgpu-operater in manifests/base or manifests/uninstall",
        ),
        ("kubectl vgpu simulate --nope", "unrecognized arguments: --nope"),
        ("kubectl vgpu audit --nodes NODE", "unrecognized arguments: --nodes NODE"),
        ("kubectl vgpu fly", "no such command: kubectl vgpu fly"),
        ("bash tests/cluster/none.sh", "no file tests/cluster/none.sh"),
    ],
)
def test_a_wrong_command_is_named_with_what_is_wrong(command: str, fault: str) -> None:
    assert shell.faults(command.split()) == [f"`{command}`: {fault}"]


@pytest.mark.parametrize(
    "command",
    [
        "make test-integration",
        "kubectl get pods -n vgpu-node -o wide",
        "kubectl patch gpudevice NAME --type=merge",
        "kubectl vgpu audit --node NODE -o json",
        "kubectl-vgpu simulate --state state.json -f pod.yaml",
        "kubectl create clusterrolebinding NAME --clusterrole=view --group=GROUP",
        "kubectl rollout status daemonset/vgpu-cleaner -n vgpu-node",
        "docker build -t x .",
    ],
)
def test_a_right_command_has_no_fault(command: str) -> None:
    assert shell.faults(command.split()) == []


def test_commands_are_found_behind_loops_pipes_and_assignments() -> None:
    source = 'for x in 1 2; do kubectl get pods | grep "a b"; done\nKEEP=1 make demo # twice\n'
    found = [*shell.simple_commands(source)]
    assert ["kubectl", "get", "pods"] in found
    assert ["grep", "a b"] in found
    assert ["make", "demo"] in found


def test_an_option_that_no_program_takes_is_named() -> None:
    text = "With `--on-violation=Evict` and `--many`, not `--on-violation=Shoot` or `--manny`."
    assert [fault.partition(":")[0] for fault in shell.unknown_options(text)] == [
        "`--on-violation=Shoot`",
        "`--manny`",
    ]


@pytest.mark.tools
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    mkdocs = Path(sys.executable).parent / "mkdocs"
    assert mkdocs.exists() or shutil.which("mkdocs"), "make setup installs it"
    done = subprocess.run(
        [str(mkdocs), "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env={"NO_MKDOCS_2_WARNING": "1", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "reference" / "reasons.html").exists()
