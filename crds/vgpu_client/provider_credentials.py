"""Credentials from the identity providers of older kubeconfigs (`auth-provider`: OIDC, GCP).

kubernetes-asyncio asks the providers. Importing it takes half a second and 50 MiB, so only a
process that needs it imports this module; those in a cluster never do.
"""

from __future__ import annotations

from collections.abc import Mapping

import yaml
from kubernetes_asyncio.client import Configuration
from kubernetes_asyncio.config import ConfigException, load_kube_config
from kubernetes_asyncio.config.kube_config import KubeConfigLoader

from vgpu_client.errors import LoginError


class ProviderCredentials:
    """The credentials of a kubeconfig's context whose user has a provider.

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
        """Return the provider's token, renewed if it is about to expire."""
        loader = self._loader
        if loader is None:
            await self.renew()
        elif loader.provider == "gcp":
            self._found.api_key["BearerToken"] = await loader.load_gcp_token()
        value = await self._found.get_api_key_with_prefix("BearerToken")
        return {"Authorization": value.strip()} if value else {}

    async def renew(self) -> None:
        """Ask the provider again.

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
