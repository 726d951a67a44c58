"""Credentials from exec plugins and identity providers (EKS, GKE, AKS, OIDC).

kubernetes-asyncio runs the plugins and asks the providers. Importing it takes half a second and 50
MiB, so only a process that needs it imports this module; those in a cluster never do.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import yaml
from kubernetes_asyncio.client import Configuration
from kubernetes_asyncio.config import ConfigException, load_kube_config
from kubernetes_asyncio.config.kube_config import KubeConfigLoader

from vgpu_client.credentials import ClientCertificate
from vgpu_client.errors import LoginError


class PluginCredentials:
    """The credentials of a kubeconfig's context whose user has a plugin or a provider.

    Args:
        files: The paths of a `KUBECONFIG` list.
        context: The context.
    """

    def __init__(self, files: str, context: str) -> None:
        self._files = files
        self._context = context
        self._found = Configuration()
        self._loader: KubeConfigLoader | None = None

    async def headers(self) -> Mapping[str, str]:
        """Return the plugin's token, renewed if it is about to expire."""
        loader = self._loader
        if loader is None:
            await self.renew()
        elif loader.provider == "gcp":
            self._found.api_key["BearerToken"] = await loader.load_gcp_token()
        elif hasattr(loader, "exec_plugin_expiry"):
            # Returns at once while the plugin's token is valid. A plugin that reports no expiry is
            # only asked again after a 401.
            await loader.load_from_exec_plugin()
            self._found.api_key["BearerToken"] = loader.token
        value = await self._found.get_api_key_with_prefix("BearerToken")
        return {"Authorization": value.strip()} if value else {}

    async def renew(self) -> None:
        """Ask the plugin or the provider again.

        Raises:
            LoginError: It gave no usable credentials.
        """
        try:
            self._loader = await load_kube_config(
                self._files, self._context, client_configuration=self._found
            )
        except (ConfigException, OSError, yaml.YAMLError, TypeError, KeyError, ValueError) as error:
            # The loader lets through any error that Python raises on a malformed file.
            raise LoginError(f"kubeconfig {self._files}: {error}") from error

    def certificate(self) -> ClientCertificate | None:
        """Return the client certificate that a plugin gave, if it gave one."""
        certificate, key = self._found.cert_file, self._found.key_file
        if not certificate or not key:
            return None
        return ClientCertificate(Path(certificate).read_bytes(), Path(key).read_bytes())
