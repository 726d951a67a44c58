"""The steps of setting up a cluster, each as a function."""

from __future__ import annotations

import contextlib
import signal
import ssl
import threading
from types import FrameType

import yaml

from vgpu_api import resources
from vgpu_api.config import ClusterConfig
from vgpu_client.api import Api
from vgpu_local.pki import Authority
from vgpu_local.programs import NAMESPACE, ROOT, Front
from vgpu_local.scheduler.extender import ExtenderConfig
from vgpu_local.webhooks import webhook_configurations
from vgpu_operator.cli.uninstall import BINDINGS, POLICIES

_OF_CLAIMS = ROOT / "manifests" / "overlays" / "claims"


async def furnish(api: Api, settings: ClusterConfig = ClusterConfig()) -> None:  # noqa: B008
    """Create what our programs expect: CRDs, the Lease's namespace, the fence of Claims mode."""
    for path in sorted((ROOT / "crds").glob("vgpu.dev_*.yaml")):
        definition = yaml.safe_load(path.read_text())
        await api.create(resources.CUSTOM_RESOURCE_DEFINITIONS, definition)
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    await api.create(resources.NAMESPACES, namespace)
    if settings.scheduling.mode == "Claims":
        kinds = {each.kind: each for each in (resources.DEVICE_CLASSES, POLICIES, BINDINGS)}
        for name in ("classes.yaml", "policies.yaml"):
            for document in yaml.safe_load_all((_OF_CLAIMS / name).read_text()):
                await api.create(kinds[document["kind"]], document)


async def admit_through(
    api: Api, place: Front, authority: Authority, settings: ClusterConfig
) -> None:
    """Register the webhooks for pods and claims."""
    kinds = {
        kind.kind: kind for kind in (resources.MUTATING_WEBHOOKS, resources.VALIDATING_WEBHOOKS)
    }
    for configuration in webhook_configurations(place.webhook_url, authority.certificate, settings):
        await api.create(kinds[configuration["kind"]], configuration)


def extender_config(place: Front, trust: ssl.SSLContext, settings: ClusterConfig) -> ExtenderConfig:
    """Return the extender of our KubeSchedulerConfiguration, for the stand-in scheduler."""
    return ExtenderConfig(
        url=place.extender_url,
        preempt_verb="preempt",
        managed=settings.managed_resources(),
        tls=trust,
        timeout_s=10.0,
    )


def leave_on_terminate(undo: contextlib.ExitStack) -> None:
    """Make SIGTERM unwind this process like Ctrl-C does, until `undo` is closed.

    By default the process would end at once and leave behind the processes that it has started.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    before = signal.getsignal(signal.SIGTERM)
    if before is not signal.SIG_DFL:
        return

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, leave)
    undo.callback(signal.signal, signal.SIGTERM, before)
