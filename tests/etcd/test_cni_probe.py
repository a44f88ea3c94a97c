"""cni.probe: `calico -t` against a real etcd, ready, locked, empty and away."""

from __future__ import annotations

import json

import pytest

from cni import probe
from libcalico.model import ClusterInformation, ClusterInformationSpec, ObjectMeta
from libcalico.model.codec import encode
from libcalico.model.keys import ResourceKey, path_of
from libcalico.testing.etcd import EtcdCluster

pytestmark = pytest.mark.etcd
KEY = path_of(ResourceKey("ClusterInformation", "default"))


def conf(endpoint: str) -> bytes:
    return json.dumps({"name": "net", "etcd_endpoints": endpoint}).encode()


@pytest.mark.parametrize(("ready", "said"), [(True, ""), (False, "not ready"), (None, "not ready")])
async def test_the_datastore_must_say_that_it_is_ready(etcd: EtcdCluster, ready, said):
    if ready is not None:
        spec = ClusterInformationSpec(datastore_ready=ready)
        stored = ClusterInformation(metadata=ObjectMeta(name="default"), spec=spec)
        etcd.ctl("put", KEY, encode(stored).decode())
    problem = await probe.test(conf(etcd.endpoints[0]), {})
    assert said in problem
    assert bool(problem) == bool(said)


@pytest.mark.parametrize("stdin", [b"", b"[]", b"{", b'{"etcd_endpoints": 7}', b"[" * 9000])
async def test_a_configuration_that_cannot_be_read_is_said(stdin):
    assert await probe.test(stdin, {})


async def test_nobody_there_is_said_in_time():
    assert await probe.test(conf("http://127.0.0.1:1"), {})
