"""The scheduler's side of the extender protocol: JSON over HTTP(S) with Go's field names."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from vgpu_local.scheduler.fit import Refusal


class ExtenderError(Exception):
    """The extender cannot be reached or reports a failure; the pod stays pending."""


@dataclass(frozen=True, slots=True)
class ExtenderConfig:
    """One entry of `extenders` in a KubeSchedulerConfiguration, with `nodeCacheCapable: true`.

    Attributes:
        managed: The resources for which the extender is called, and whether the scheduler's own
            fit ignores them; empty for every pod.
        bind_verb: The path of the bind verb; None if the scheduler binds pods itself.
        preempt_verb: The path of the preempt verb; None if the extender is not asked.
        tls: The TLS context, with a client certificate if the extender needs one.
    """

    url: str
    filter_verb: str = "filter"
    bind_verb: str | None = "bind"
    preempt_verb: str | None = None
    managed: Mapping[str, bool] = field(default_factory=dict)
    tls: ssl.SSLContext | None = None
    timeout_s: float = 10.0

    @property
    def ignored(self) -> frozenset[str]:
        """Return the resources that the scheduler's own fit leaves to the extender."""
        return frozenset(name for name, ignored in self.managed.items() if ignored)

    def interested_in(self, pod: Mapping[str, Any]) -> bool:
        """Return True if the extender is called for the pod."""
        if not self.managed:
            return True
        spec = pod["spec"]
        containers = (*(spec.get("initContainers") or ()), *(spec.get("containers") or ()))
        return any(
            name in (container.get("resources") or {}).get(kind, {})
            for container in containers
            for kind in ("requests", "limits")
            for name in self.managed
        )


@dataclass(frozen=True, slots=True)
class Filtered:
    """The result of a filter call."""

    nodes: tuple[str, ...]
    refusals: Mapping[str, Refusal]


class Extender:
    """A client of one extender."""

    def __init__(self, config: ExtenderConfig, session: aiohttp.ClientSession) -> None:
        """Create a client for the extender that `config` describes."""
        self.config = config
        self._session = session

    async def filter(self, pod: Mapping[str, Any], nodes: Sequence[str]) -> Filtered:
        """Ask which of the nodes are suitable.

        Raises:
            ExtenderError: There is no answer, or one with an error.
        """
        body = {"Pod": pod, "Nodes": None, "NodeNames": list(nodes)}
        answer = await self._post(self.config.filter_verb, body)
        refusals = {
            name: Refusal((reason,), resolvable=resolvable)
            for key, resolvable in (("failednodes", True), ("failedandunresolvablenodes", False))
            for name, reason in (answer.get(key) or {}).items()
        }
        passed = tuple(name for name in answer.get("nodenames") or () if name in nodes)
        return Filtered(passed, refusals)

    async def bind(self, pod: Mapping[str, Any], node: str) -> None:
        """Ask the extender to bind the pod.

        Raises:
            ExtenderError: It was not bound, or the outcome is unknown.
        """
        assert self.config.bind_verb is not None
        metadata = pod["metadata"]
        body = {
            "PodName": metadata["name"],
            "PodNamespace": metadata["namespace"],
            "PodUID": metadata["uid"],
            "Node": node,
        }
        await self._post(self.config.bind_verb, body)

    async def preempt(
        self, pod: Mapping[str, Any], victims: Mapping[str, Sequence[str]]
    ) -> Mapping[str, Sequence[str]]:
        """Ask on which nodes these victims would make room; return their UIDs, and perhaps more.

        Raises:
            ExtenderError: There is no answer, or one with an error.
        """
        assert self.config.preempt_verb is not None
        by_node = {
            node: {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": 0}
            for node, uids in victims.items()
        }
        body = {"Pod": pod, "NodeNameToVictims": None, "NodeNameToMetaVictims": by_node}
        answer = await self._post(self.config.preempt_verb, body)
        found = answer.get("nodenametometavictims") or {}
        return {node: [each["UID"] for each in meta["Pods"]] for node, meta in found.items()}

    async def _post(self, verb: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        url = f"{self.config.url.rstrip('/')}/{verb}"
        try:
            async with self._session.post(
                url,
                json=body,
                ssl=self.config.tls if self.config.tls is not None else True,
                timeout=aiohttp.ClientTimeout(total=self.config.timeout_s),
            ) as answer:
                if answer.status != 200:
                    raise ExtenderError(
                        f"failed {verb} with extender at URL {url}, code {answer.status}"
                    )
                fields = await answer.json(content_type=None)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise ExtenderError(f'Post "{url}": {error or "deadline exceeded"}') from error
        if not isinstance(fields, dict):
            raise ExtenderError(f'Post "{url}": the answer is not an object')
        folded = {key.lower(): value for key, value in fields.items()}
        if folded.get("error"):
            raise ExtenderError(str(folded["error"]))
        return folded
