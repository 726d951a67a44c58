"""Reads the HAMi installation in the cluster: its objects, arguments and configuration.

HAMi's chart labels its objects with their component, whatever the release is called. Its webhook
configuration has no such label, so it is recognized by the name of its webhook.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vgpu_api import names
from vgpu_api.config import ClusterConfig, Notice, read_cluster_config
from vgpu_api.errors import BadInput
from vgpu_api.resources import CONFIG_MAPS, MUTATING_WEBHOOKS
from vgpu_api.vendors import kinds
from vgpu_client.api import Api
from vgpu_client.transport import Object
from vgpu_operator.cli.foreign_parts import without_foreign_parts
from vgpu_operator.cli.other_plugins import COMPONENT, PLUGIN
from vgpu_operator.cli.uninstall import DAEMON_SETS, DEPLOYMENTS

SCHEDULER = "hami-scheduler"
_WEBHOOK = "vgpu.hami.io"
_CONFIG_MAPS = ("hami-scheduler-device", "hami-device-config", "hami-device-plugin")
"""ConfigMaps that people create by these names from HAMi's documents, without the labels."""
_CHOICES: Mapping[str, str] = {
    "node-scheduler-policy": "nodeSchedulerPolicy",
    "gpu-scheduler-policy": "gpuSchedulerPolicy",
}
_FORCED = "force-overwrite-default-scheduler"
_OF_ITS_PROCESS = frozenset(
    {
        *("http_bind", "cert_file", "key_file", "metrics-bind-address", "device-config-file"),
        *("leader-elect", "leader-elect-resource-name", "leader-elect-resource-namespace"),
        *("scheduler-name", "debug", "v", "legacy-metrics", _FORCED, *_CHOICES),
        *("enable-ascend", "enable-iluvatar", "kube-qps", "kube-burst", "kube-timeout"),
    }
)
"""Arguments of the extender that are carried over, or that only concern its own process."""


@dataclass(frozen=True, slots=True)
class HamiInstallation:
    """HAMi's objects in the cluster.

    Attributes:
        config_maps: Its ConfigMaps.
        schedulers: The Deployments of its scheduler.
        plugins: The DaemonSets of its device plugin.
        webhooks: Its mutating webhook configurations.
    """

    config_maps: Sequence[Object]
    schedulers: Sequence[Object]
    plugins: Sequence[Object]
    webhooks: Sequence[Object]

    @property
    def is_there(self) -> bool:
        """True if any of HAMi's programs is installed."""
        return bool(self.schedulers or self.plugins or self.webhooks)

    @property
    def scheduler_name(self) -> str:
        """Return the scheduler that HAMi's webhook writes into pods."""
        return next(map(scheduler_of, self.schedulers), SCHEDULER)

    def node_selector(self) -> dict[str, str]:
        """Return the labels of the nodes on which HAMi's device plugin runs."""
        found: dict[str, str] = {}
        for plugin in self.plugins:
            found |= plugin["spec"]["template"]["spec"].get("nodeSelector") or {}
        return found


@dataclass(frozen=True, slots=True)
class HamiConfiguration:
    """HAMi's settings, from its ConfigMaps and arguments, as a configuration of ours.

    Attributes:
        config: The equivalent configuration; the defaults if there is an error.
        left: A line for each setting that is not carried over.
        errors: A line for each document that cannot be read.
    """

    config: ClusterConfig
    left: Sequence[str]
    errors: Sequence[str]


async def read_installation(api: Api) -> HamiInstallation:
    """Read HAMi's objects.

    Raises:
        ClientError: They cannot be read.
    """
    selector = f"{COMPONENT} in ({SCHEDULER},{PLUGIN})"
    config_maps = list((await api.list(CONFIG_MAPS, label_selector=selector)).items)
    known = {each["metadata"]["uid"] for each in config_maps}
    for name in _CONFIG_MAPS:
        listing = await api.list(CONFIG_MAPS, field_selector=f"metadata.name={name}")
        config_maps += [each for each in listing.items if each["metadata"]["uid"] not in known]
    schedulers = (await api.list(DEPLOYMENTS, label_selector=f"{COMPONENT}={SCHEDULER}")).items
    plugins = (await api.list(DAEMON_SETS, label_selector=f"{COMPONENT}={PLUGIN}")).items
    webhooks = [
        each for each in (await api.list(MUTATING_WEBHOOKS)).items if is_hamis_webhook(each)
    ]
    return HamiInstallation(config_maps, schedulers, plugins, webhooks)


def is_hamis_webhook(configuration: Object) -> bool:
    """Return True if HAMi's chart made this webhook configuration."""
    return any(hook.get("name") == _WEBHOOK for hook in configuration.get("webhooks") or ())


def is_hamis_scheduler(deployment: Object) -> bool:
    """Return True if a Deployment runs HAMi's scheduler."""
    labels: Mapping[str, str] = deployment["metadata"].get("labels") or {}
    return labels.get(COMPONENT) == SCHEDULER


def scheduler_of(deployment: Object) -> str:
    """Return the name under which a Deployment of HAMi's schedules pods."""
    return arguments_of(deployment).get("scheduler-name") or SCHEDULER


def runs_beside(agents: Object) -> bool:
    """Return True if our agents run only on nodes that were taken over from HAMi."""
    found: Any = agents["spec"]["template"]["spec"]
    for key in ("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution"):
        found = found.get(key) or {}
    terms = found.get("nodeSelectorTerms") or [{}]
    return all(only_on(names.LABEL_NODE_AGENT, each.get("matchExpressions")) for each in terms)


def only_on(key: str, expressions: Sequence[Mapping[str, Any]] | None) -> bool:
    """Return True if match expressions require the value `on` of a label."""
    return any(
        each.get("key") == key and each.get("operator") == "In" and each.get("values") == [names.ON]
        for each in expressions or ()
    )


def place_of(obj: Object) -> str:
    """Return an object's kind-less place: its namespace and name."""
    metadata = obj["metadata"]
    return "/".join(filter(None, (metadata.get("namespace"), metadata["name"])))


def configuration_of(installed: HamiInstallation) -> HamiConfiguration:
    """Return the configuration of an installed HAMi."""
    kept: list[Any] = []
    left: list[str] = []
    errors: list[str] = []
    documents = [
        *((f"ConfigMap {place_of(each)}", _own(each)) for each in installed.config_maps),
        *(_of_arguments(each) for each in installed.schedulers),
    ]
    for source, document in documents:
        foreign: list[str] = []
        notices: list[Notice] = []
        try:
            own = without_foreign_parts(document, foreign)
            read_cluster_config(own, notices.append)
        except BadInput as error:
            errors.append(f"{source}: {error}")
            continue
        left += [f"{source}: {line}" for line in (*foreign, *map(str, notices))]
        if own is not None:
            kept.append(own)
    for scheduler in installed.schedulers:
        left += _unread_arguments(scheduler)
    return HamiConfiguration(read_cluster_config(kept), left, errors)


def _own(config_map: Object) -> dict[str, Any]:
    """Return a ConfigMap of HAMi's; a server that lists it leaves out its kind."""
    return {**config_map, "kind": "ConfigMap"}


def arguments_of(deployment: Object) -> dict[str, str]:
    """Return the flags of HAMi's scheduler extender; a flag without a value is `true`."""
    found: dict[str, str] = {}
    for container in deployment["spec"]["template"]["spec"].get("containers") or ():
        words = [*(container.get("command") or ()), *(container.get("args") or ())]
        if words[:1] == ["scheduler"] or "extender" in container.get("name", ""):
            found |= dict(_flags(words))
    return found


def _flags(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    for at, word in enumerate(words):
        if not word.startswith("-"):
            continue
        name, given, value = word.lstrip("-").partition("=")
        following = words[at + 1] if at + 1 < len(words) else "-"
        yield name, value if given else "true" if following.startswith("-") else following


def _of_arguments(deployment: Object) -> tuple[str, Any]:
    """Return the extender's arguments that our configuration has, as values of HAMi's chart."""
    arguments = arguments_of(deployment)
    policies = {ours: arguments[flag] for flag, ours in _CHOICES.items() if flag in arguments}
    values: dict[str, Any] = {"defaultSchedulerPolicy": policies} if policies else {}
    if arguments.get(_FORCED) == "false":
        values["forceOverwriteDefaultScheduler"] = False
    return f"Deployment {place_of(deployment)}", {"scheduler": values}


def _unread_arguments(deployment: Object) -> Iterator[str]:
    for name, value in arguments_of(deployment).items():
        if name not in _OF_ITS_PROCESS:
            yield (
                f"Deployment {place_of(deployment)}: --{name}={value}: an argument of HAMi's "
                "scheduler; see docs/compatibility.md for what there is here"
            )


def missing_beside(
    installed: HamiInstallation, hamis: ClusterConfig, ours: ClusterConfig
) -> Iterator[str]:
    """Yield the keys of our configuration that must be others while HAMi runs."""
    scheduling, other = ours.scheduling, installed.scheduler_name
    for key, theirs in hamis.nvidia.model_dump(by_alias=True).items():
        own = ours.nvidia.model_dump(by_alias=True)[key]
        if key.startswith("resource") and theirs != own:
            yield (
                f"our configuration: nvidia.{key} is {own}, and HAMi's pods ask for {theirs}: add "
                "what kubectl vgpu import hami prints"
            )
    if scheduling.mode == "Extender" and other not in scheduling.scheduler_aliases:
        yield (
            f"our configuration: scheduling.schedulerAliases must have {other}: HAMi's webhook "
            "sees a pod first and writes that name"
        )
    if ours.views.hami_node_register:
        yield (
            "our configuration: views.hamiNodeRegister must be false: HAMi's scheduler would "
            f"place its pods on a node with the annotation {names.HAMI_NODE_REGISTER}"
        )
    both = [kind.name for kind in kinds() if kind.name not in ours.vendors.leave_alone]
    if both:
        yield (
            f"our configuration: vendors.leaveAlone must have {', '.join(both)}: HAMi's scheduler "
            "places the pods of these devices"
        )
