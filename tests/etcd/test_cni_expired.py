"""A DEL without felix whose credentials are no good: queued, and done when a felix can.

No namespace is given and no endpoint is known, so no interface is touched anywhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cni import standalone
from cni.addresses import Addresses
from cni.endpoints import EndpointStore
from cni.queue import DeleteQueue
from cni.replay import Replayer
from cni.skel import Invocation
from ipam.client import IpamClient
from libcalico.datastore.config import connect, from_file
from libcalico.model.codec import encode
from libcalico.model.defaults import initial_cluster_information
from libcalico.model.keys import key_of, path_of
from libcalico.testing.certs import Authority, Identity
from libcalico.testing.etcd import EtcdOptions, EtcdTls
from tests.support.cni import RecordingProgrammer
from tests.support.etcd import ClusterFactory
from tests.support.ipam import all_handles, ask, client, pool, source

pytestmark = pytest.mark.etcd
CONF = {"cniVersion": "1.0.0", "name": "net", "type": "calico", "ipam": {"type": "calico-ipam"}}
DELETE = {
    "CNI_COMMAND": "DEL", "CNI_CONTAINERID": "c1", "CNI_IFNAME": "eth0", "CNI_PATH": "/none",
    "CNI_NETNS": "",
}  # fmt: skip


def config(folder: Path, endpoint: str, ca: Path, identity: Identity) -> Path:
    spec = {
        "datastoreType": "etcdv3", "etcdEndpoints": endpoint, "etcdCACertFile": str(ca),
        "etcdCertFile": str(identity.certificate), "etcdKeyFile": str(identity.key),
    }  # fmt: skip
    document = {"apiVersion": "projectcalico.org/v3", "kind": "CalicoAPIConfig", "spec": spec}
    path = folder / "cni-datastore.cfg"
    path.write_text(json.dumps(document))
    return path


async def test_an_expired_certificate_queues_the_del(
    tmp_path: Path,
    etcd_cluster_factory: ClusterFactory,
    etcd_authority: Authority,
    etcd_tls: EtcdTls,
):
    cluster = etcd_cluster_factory(options=EtcdOptions(tls=etcd_tls))
    (endpoint,) = cluster.endpoints
    store = connect(from_file(config(tmp_path, endpoint, etcd_tls.ca, etcd_tls.client)))
    information = initial_cluster_information("0" * 32)
    await store.put(path_of(key_of(information)), encode(information))
    ipam = client(store, source(pool("a", "10.0.0.0/24")))
    await ipam.auto_assign(ask("c1"))

    expired = etcd_authority.issue("expired-client", days=-1)
    config(tmp_path, endpoint, etcd_tls.ca, expired)
    environ = {"CALICO_LIB_DIR": str(tmp_path), "NODENAME": "n1"}
    answer = await standalone.run(Invocation("calico", DELETE, json.dumps(CONF).encode()), environ)
    assert (answer.exit_code, answer.stdout) == (0, b"")
    assert set(await all_handles(store)) == {"net.c1"}

    queue = DeleteQueue(tmp_path / "cni-queue")
    assert [entry.handle_id for entry in queue.entries()] == ["net.c1"]
    addresses = Addresses(IpamClient(store))
    replayer = Replayer(queue, EndpointStore(store), addresses, RecordingProgrammer())
    assert await replayer.replay_all() == 0
    assert await all_handles(store) == {}
    await store.close()
