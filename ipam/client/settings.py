"""IPAM's own settings: /calico/ipam/v2/config, not the v3 IPAMConfiguration (datamodel §0.4).

Layer: ipam edge. Reached as `IpamClient.settings`; used by calicoctl.
"""

from __future__ import annotations

from libcalico.datastore.api import Datastore
from libcalico.errors import ValidationError
from libcalico.model import codec
from libcalico.model.ipam import MISSING_IPAM_CONFIG, IpamConfig
from libcalico.model.keys import IpamConfigKey, path_of

_KEY = IpamConfigKey()


class SettingsRefused(ValidationError):
    """The settings contradict each other. The reason is the whole text."""

    def __str__(self) -> str:
        return self.errors[0].reason


class Settings:
    """Reading and writing the settings."""

    def __init__(self, datastore: Datastore) -> None:
        self._datastore = datastore

    async def get(self) -> IpamConfig:
        """As stored; a missing key is the default, and reading never writes it (§2.2)."""
        kv = await self._datastore.get(path_of(_KEY))
        if kv is None:
            return MISSING_IPAM_CONFIG
        return codec.decode_as(IpamConfig, _KEY, kv.value, kv.mod_revision)

    async def set(self, config: IpamConfig) -> None:
        """Nothing happens when it is so already. A plain put, as Calico's.

        Errors: SettingsRefused."""
        if config == await self.get():
            return
        check(config)
        await self._datastore.put(path_of(_KEY), codec.encode(config))


def check(config: IpamConfig) -> None:
    """Errors: SettingsRefused."""
    if not config.strict_affinity and not config.auto_allocate_blocks:
        raise SettingsRefused.of(
            "AutoAllocateBlocks",
            reason="Cannot disable 'StrictAffinity' and 'AutoAllocateBlocks' at the same time",
        )
    if config.max_blocks_per_host > 0 and not config.strict_affinity:
        raise SettingsRefused.of(
            "MaxBlocksPerHost", reason="MaxBlocksPerHost requires StrictAffinity to be enabled"
        )
