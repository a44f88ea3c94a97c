"""IpamClient.settings: /calico/ipam/v2/config (datamodel §0.4, §0.5, §2.2)."""

from __future__ import annotations

import json

import pytest

from ipam.client.settings import SettingsRefused
from libcalico.model.ipam import IpamConfig
from libcalico.testing.datastore import MemoryDatastore
from tests.support.ipam import client, source

KEY = "/calico/ipam/v2/config"


async def test_a_missing_key_means_automatic_blocks_and_reading_does_not_write_it():
    store = MemoryDatastore()
    config = await client(store, source()).settings.get()
    assert config == IpamConfig(auto_allocate_blocks=True)
    assert store.contents() == {}


async def test_a_stored_empty_object_means_no_automatic_blocks():
    store = MemoryDatastore()
    store.seed({KEY: b"{}"})
    assert not (await client(store, source()).settings.get()).auto_allocate_blocks


async def test_what_is_stored_is_calicos_form():
    store = MemoryDatastore()
    await client(store, source()).settings.set(
        IpamConfig(
            strict_affinity=True,
            auto_allocate_blocks=True,
            max_blocks_per_host=4,
            kube_virt_vm_address_persistence="Enabled",
            ip_cooldown_seconds=30,
        )
    )
    assert json.loads(store.contents()[KEY]) == {
        "strict_affinity": True,
        "auto_allocate_blocks": True,
        "maxBlocksPerHost": 4,
        "kubeVirtVMAddressPersistence": "Enabled",
        "ipCooldownSeconds": 30,
    }


async def test_setting_what_is_set_writes_nothing():
    store = MemoryDatastore()
    await client(store, source()).settings.set(IpamConfig(auto_allocate_blocks=True))
    assert store.contents() == {}


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (IpamConfig(),
         "Cannot disable 'StrictAffinity' and 'AutoAllocateBlocks' at the same time"),
        (IpamConfig(auto_allocate_blocks=True, max_blocks_per_host=1),
         "MaxBlocksPerHost requires StrictAffinity to be enabled"),
    ],
)  # fmt: skip
async def test_settings_that_contradict_each_other_are_refused(config: IpamConfig, text: str):
    store = MemoryDatastore()
    with pytest.raises(SettingsRefused) as refused:
        await client(store, source()).settings.set(config)
    assert str(refused.value) == text
    assert store.contents() == {}
