"""felix as a whole, on fakes that refuse what the real things refuse."""

from __future__ import annotations

import asyncio
import errno
import json
import signal

import pytest

from felix.dataplane.endpoint_mgr import EndpointStatus
from felix.dataplane.ports import TrackedConnection
from libcalico.errors import ProgrammingFailed, Transient, ValidationError
from libcalico.model import FelixConfiguration, FelixConfigurationSpec, ObjectMeta
from libcalico.model.keys import ResourceKey, path_of
from libcalico.netlink import device_route
from libcalico.policy.packet import Packet as PolicyPacket
from libcalico.testing.fakenft_vm import Packet
from libcalico.testing.kernel import FAULTS
from tests.support import calc
from tests.support.felix import ALLOW, NODE, FelixWorld, cluster, workload

A, B = "10.65.0.1/32", "10.65.0.2/32"
A6, B6 = "fd00:65::1/128", "fd00:65::2/128"
TO_B = Packet("10.65.0.1", "10.65.0.2")
DENY_TO_B = calc.np("no", selector="app == 'b'", ingress=(calc.rule("Deny"),), types=("Ingress",))


@pytest.fixture
def world(tmp_path) -> FelixWorld:
    return FelixWorld(tmp_path)


def two_pods(world: FelixWorld) -> None:
    world.wire("a")
    world.wire("b")
    world.store(workload("a", A, A6), workload("b", B, B6, labels={"app": "b"}))


def passes(world: FelixWorld, packet: Packet = TO_B) -> bool:
    return world.nft.forward(packet, "calia", "calib") == "accept"


async def test_workloads_in_the_datastore_get_routes_settings_policy_and_status(world):
    two_pods(world)
    async with world.running():
        assert world.routes() == {A, B, A6, B6}
        assert passes(world)
        assert world.kernel.sysctls["net/ipv4/conf/calia/proxy_arp"] == "1"
        assert world.kernel.sysctls["net/ipv4/ip_forward"] == "1"
        directory = world.directory / "run/endpoint-status"
        await world.until(lambda: len(list(directory.glob("*"))) == 2)
        content = json.loads((directory / "k8s prod%2Fa eth0").read_text())
        assert content == {"ifaceName": "calia", "ipv4Nets": [A], "ipv6Nets": [A6]}
    assert world.exit_code == 0


async def test_changes_of_the_datastore_are_followed(world):
    two_pods(world)
    async with world.running():
        world.store(DENY_TO_B)
        await world.until(lambda: not passes(world))
        world.erase(DENY_TO_B)
        await world.until(lambda: passes(world))
        world.erase(workload("b", B))
        await world.until(lambda: world.routes() == {A, A6})
        assert not passes(world)
        world.wire("c")
        world.store(workload("c", "10.65.0.3/32"))
        await world.until(lambda: "10.65.0.3/32" in world.routes())


async def test_stopping_leaves_the_kernel_as_it_is_and_a_restart_writes_nothing(world):
    two_pods(world)
    world.store(DENY_TO_B)
    async with world.running():
        await world.settled()
    assert world.routes() == {A, B, A6, B6}
    world.kernel.writes.clear()
    generation = world.nft.generation
    async with world.running():
        await world.settled()
        assert world.kernel.writes == []
        assert world.nft.generation == generation
        assert not passes(world)


async def test_orphans_stay_until_the_datastore_is_in_sync_and_go_then(world):
    two_pods(world)
    async with world.running():
        await world.settled()
    index = world.kernel.link("calia").ifindex
    orphan = device_route("10.65.0.99/32", index, protocol=3, metric=1024)
    world.kernel.put_route(orphan)
    world.erase(workload("b", B))
    # One kind cannot be listed: felix is alive and knows much, but not everything.
    world.datastore.fail_next(count=10**6, operations=["list"], prefix=_prefix("networkpolicies"))
    async with world.running(in_sync=False):
        await world.until(lambda: world.felix is not None)
        (fault,) = world.datastore._faults
        left = fault.remaining
        await world.until(lambda: left - fault.remaining >= 3)  # it has tried, and tried again
        assert world.routes() == {A, B, A6, B6, "10.65.0.99/32"}
        assert passes(world)
        world.datastore._faults.clear()
        await world.until(lambda: world.routes() == {A, A6})
        assert not passes(world)


def _prefix(plural: str) -> str:
    return f"/calico/resources/v3/projectcalico.org/{plural}"


async def test_a_datastore_that_is_away_at_start_is_waited_for(world, caplog):
    two_pods(world)
    world.datastore.partition()
    async with world.running(in_sync=False):
        await world.until(lambda: "waiting for the datastore" in caplog.text)
        assert world.felix is None
        world.datastore.heal()
        await world.until(lambda: world.routes() == {A, B, A6, B6})


async def test_a_datastore_that_goes_away_leaves_everything_and_comes_back_with_the_news(world):
    two_pods(world)
    async with world.running():
        await world.settled()
        world.datastore.partition()
        world.erase(workload("b", B))
        await world.settled()
        assert world.routes() == {A, B, A6, B6}
        index = world.kernel.link("calia").ifindex
        world.kernel.drop_route(device_route(A, index, protocol=3, metric=1024))
        await world.until(lambda: A in world.routes())
        world.datastore.heal()
        await world.until(lambda: world.routes() == {A, A6})


async def test_a_list_after_a_compaction_takes_what_vanished_and_touches_nothing_else(world):
    two_pods(world)
    async with world.running():
        await world.settled()
        world.kernel.writes.clear()
        await world.list_again(lambda: world.erase(workload("b", B)))
        await world.until(lambda: world.routes() == {A, A6})
        written = {write.key for write in world.kernel.writes}
        assert not written & {A, A6}


async def test_one_bad_object_does_not_stop_the_others(world):
    two_pods(world)
    path = path_of(workload("broken", A)[0])
    world.datastore.seed({path: b"{not json"})
    invalid = calc.np("invalid", selector="app ==", ingress=(ALLOW,))
    world.store(invalid, DENY_TO_B)
    async with world.running():
        assert world.routes() == {A, B, A6, B6}
        assert not passes(world)
        world.store(workload("broken", "10.65.0.9/32"))
        world.wire("broken")
        await world.until(lambda: "10.65.0.9/32" in world.routes())


@pytest.mark.parametrize(("operation", "error"), FAULTS, ids=lambda value: str(value))
async def test_every_kernel_call_may_fail_once(world, operation, error):
    """A fault at each kind of call, while a pod comes, another goes, and a policy is there."""
    two_pods(world)
    world.store(DENY_TO_B)
    async with world.running():
        world.kernel.fail_next(operation, error=error)
        world.wire("c")
        world.store(workload("c", "10.65.0.3/32", "fd00:65::3/128"))
        world.erase(workload("a", A))
        world.felix.dataplane.loop.queue_resync("test")
        expected = {B, B6, "10.65.0.3/32", "fd00:65::3/128"}
        await world.until(lambda: world.routes() == expected)
        await world.until(lambda: world.kernel.sysctls["net/ipv4/conf/calic/proxy_arp"] == "1")
        assert not passes(world, Packet("10.65.0.3", "10.65.0.2"))
        await world.until(lambda: not world.kernel._faults)  # the fault was met


async def test_while_the_filter_cannot_be_written_no_new_route_appears(world):
    two_pods(world)
    async with world.running():
        world.nft.refuse_batches(errno.ENOMEM)
        world.wire("c")
        world.store(workload("c", "10.65.0.3/32"))
        key = workload("c", A)[0]
        await world.until(lambda: world.felix.dataplane.endpoints.endpoint(key) is not None)
        for _ in range(3):
            report = await world.felix.dataplane.loop.flush()
            assert not report.is_filtering
        assert "10.65.0.3/32" not in world.routes()
        world.nft.allow()
        await world.until(lambda: "10.65.0.3/32" in world.routes())
        await world.until(lambda: world.felix.dataplane.endpoints.status(key) is EndpointStatus.UP)


# ---------------------------------------------------------------------------- for the CNI agent


async def test_program_returns_with_route_and_policy_in_the_kernel(world):
    two_pods(world)
    world.store(DENY_TO_B)
    async with world.running():
        key, endpoint = workload("b2", "10.65.0.7/32", "fd00:65::7/128", labels={"app": "b"})
        world.wire("b2")
        await world.felix.programmer.program(key, endpoint)
        assert {"10.65.0.7/32", "fd00:65::7/128"} <= world.routes()
        assert world.nft.forward(Packet("10.65.0.1", "10.65.0.7"), "calia", "calib2") == "drop"
        assert world.nft.forward(Packet("10.65.0.7", "10.65.0.1"), "calib2", "calia") == "accept"
        assert world.felix.programmer.endpoint_in_dataplane(key)


async def test_a_programmed_endpoint_stands_through_a_re_list_and_falls_with_its_retraction(world):
    async with world.running():
        key, endpoint = workload("n", "10.65.0.7/32")
        world.wire("n")
        await world.felix.programmer.program(key, endpoint)
        await world.list_again(lambda: world.store(workload("other", A)))
        assert "10.65.0.7/32" in world.routes(), "P1"
        world.kernel.connections["10.65.0.7"] = 3
        await world.felix.programmer.retract(key)
        assert world.routes() == set(), "P2"
        await world.until(lambda: world.kernel.connections == {})
        assert not world.felix.programmer.endpoint_in_dataplane(key)


async def test_an_address_used_again_at_once_keeps_its_new_workloads_connections(world):
    """However late the kernel forgets those of the former one."""
    async with world.running():
        address, programmer = "10.65.0.7", world.felix.programmer
        old, new = workload("old", f"{address}/32"), workload("new", f"{address}/32")
        world.wire("old")
        await programmer.program(*old)
        world.kernel.connections[address] = 3
        world.kernel.fail_next("forget", address, times=3)
        await programmer.retract(old[0])
        world.wire("new")
        await programmer.program(*new)
        assert address not in world.kernel.connections, "none of the former workload's"
        world.kernel.connections[address] = 1
        await world.settled()
        conntrack = world.felix.dataplane.conntrack
        await world.until(lambda: conntrack.dump() == {"pending": [], "due": []})
        assert world.kernel.connections == {address: 1}


async def test_an_endpoint_that_goes_late_takes_no_connection_of_its_successor(world):
    """The pod is dead, its address somebody else's, and only then the datastore says so."""
    async with world.running():
        address, programmer = "10.65.0.7", world.felix.programmer
        old = workload("a-old", f"{address}/32")
        world.wire("a-old")
        world.store(old)
        await world.until(lambda: world.routes() == {f"{address}/32"})
        world.kernel.connections[address] = 3
        world.kernel.delete_link("calia-old")
        world.wire("new")
        await programmer.program(*workload("new", f"{address}/32"))
        assert address not in world.kernel.connections
        world.kernel.connections[address] = 1
        world.erase(old)
        endpoints = world.felix.dataplane.endpoints
        await world.until(lambda: endpoints.endpoint(old[0]) is None)
        await world.settled()
        conntrack = world.felix.dataplane.conntrack
        await world.until(lambda: conntrack.dump() == {"pending": [], "due": []})
        assert world.kernel.connections == {address: 1}


async def test_after_confirm_the_datastore_decides(world):
    async with world.running():
        item = workload("n", "10.65.0.7/32")
        world.wire("n")
        await world.felix.programmer.program(*item)
        world.store(item)
        await world.felix.programmer.confirm(item[0], world.datastore.revision)
        await world.settled()
        assert world.routes() == {"10.65.0.7/32"}
        world.erase(item)
        await world.until(lambda: world.routes() == set())


async def test_many_requests_share_cycles(world):
    async with world.running():
        cycles = world.felix.dataplane.loop.dump()["cycles"]
        pods = [workload(f"p{n}", f"10.65.1.{n}/32") for n in range(100)]
        for n in range(100):
            world.wire(f"p{n}")
        await asyncio.gather(*(world.felix.programmer.program(*pod) for pod in pods))
        assert len(world.routes()) == 100
        assert world.felix.dataplane.loop.dump()["cycles"] - cycles < 30
        await asyncio.gather(*(world.felix.programmer.retract(key) for key, _ in pods))
        assert world.routes() == set()


async def test_a_refusal_that_passes_is_not_seen_by_the_caller(world):
    async with world.running():
        world.wire("n")
        world.kernel.fail_next("replace route", error=errno.ENOMEM, times=2)
        await world.felix.programmer.program(*workload("n", "10.65.0.7/32"))
        assert world.routes() == {"10.65.0.7/32"}


async def test_a_refusal_that_stays_is_the_callers_error_and_retract_cleans_up(world):
    async with world.running():
        key, endpoint = workload("n", "10.65.0.7/32", "fd00:65::7/128")
        world.wire("n")
        world.kernel.fail_next("replace route", "10.65.0.7/32", error=errno.ENOMEM, times=10**6)
        with pytest.raises(ProgrammingFailed, match="Cannot allocate memory"):
            await world.felix.programmer.program(key, endpoint)
        assert not world.felix.programmer.endpoint_in_dataplane(key)
        await world.felix.programmer.retract(key)
        assert world.routes() == set()


async def test_an_endpoint_without_interface_is_an_error_that_says_so(world):
    async with world.running():
        with pytest.raises(ProgrammingFailed, match="no interface calin"):
            await world.felix.programmer.program(*workload("n", "10.65.0.7/32"))


async def test_an_endpoint_that_felix_would_ignore_is_refused_at_once(world):
    async with world.running():
        key, endpoint = workload("n", "10.65.0.7/24")
        with pytest.raises(ValidationError):
            await world.felix.programmer.program(key, endpoint)


async def test_a_pod_whose_dispatch_the_kernel_refuses_stays_closed_and_the_others_open(world):
    two_pods(world)
    async with world.running():
        key, endpoint = workload("n", "10.65.0.7/32")
        world.wire("n")
        world.nft.refuse_element("dispatch-ingress", b"calin")
        with pytest.raises(ProgrammingFailed, match="policy of interface calin"):
            await world.felix.programmer.program(key, endpoint)
        assert world.nft.forward(Packet("10.65.0.1", "10.65.0.7"), "calia", "calin") == "drop"
        assert passes(world)
        world.nft.allow()
        await world.felix.programmer.retract(key)
        await world.felix.programmer.program(key, endpoint)
        assert world.nft.forward(Packet("10.65.0.1", "10.65.0.7"), "calia", "calin") == "accept"


async def test_before_in_sync_program_says_try_again_and_retract_does_nothing(world):
    world.datastore.fail_next(count=10**6, operations=["list"], prefix=_prefix("networkpolicies"))
    async with world.running(in_sync=False):
        await world.until(lambda: world.felix is not None)
        key, endpoint = workload("n", "10.65.0.7/32")
        assert not world.felix.programmer.is_ready()
        with pytest.raises(Transient):
            await world.felix.programmer.program(key, endpoint)
        await world.felix.programmer.retract(key)
        world.datastore._faults.clear()


async def test_the_settings_of_the_agent_follow_the_configuration(tmp_path):
    world = FelixWorld(tmp_path, FELIX_INTERFACEPREFIX="tap,cali", FELIX_IPV6SUPPORT="false")
    async with world.running():
        settings = world.felix.programmer.settings()
        assert (settings.node_name, settings.interface_prefix) == ("here", "tap")
        assert not settings.ipv6_support


async def test_the_mtu_of_the_uplinks_is_told_to_the_agent_and_written_down(world):
    world.kernel.add_link("eth0", mtu_bytes=1450)
    world.kernel.add_link("eth1", mtu_bytes=9000)
    world.kernel.add_link("cali9", mtu_bytes=1280)
    file = world.directory / "lib/mtu"
    async with world.running():
        await world.until(file.exists)
        assert file.read_text() == "1450\n"
        assert world.felix.programmer.settings().mtu_bytes == 1450
        world.kernel.set_link("eth0", mtu_bytes=1400)
        await world.until(lambda: world.felix.programmer.settings().mtu_bytes == 1400)
        await world.until(lambda: file.read_text() == "1400\n")


async def test_a_node_without_uplink_ends_where_the_mtu_is_required(tmp_path):
    world = FelixWorld(tmp_path, FELIX_REQUIREMTUFILE="true")
    async with world.running(in_sync=False):
        await world.until(lambda: world.process._stopping.is_set())
    assert world.exit_code == 1


# ------------------------------------------------------------------------- configuration, reports


def configuration(name: str = "default", **spec: object):
    key = ResourceKey(FelixConfiguration.kind, name)
    made = FelixConfigurationSpec(**spec)  # type: ignore[arg-type]
    return key, FelixConfiguration(metadata=ObjectMeta(name=name), spec=made)


async def test_configuration_present_at_start_is_used_without_a_restart(world):
    world.store(configuration(ip_forwarding="Disabled"))
    async with world.running():
        assert world.kernel.sysctls["net/ipv4/ip_forward"] == "0"
    assert world.exit_code == 0


async def test_a_changed_parameter_ends_the_process_with_129_and_touches_nothing(world):
    two_pods(world)
    async with world.running():
        await world.settled()
        world.kernel.writes.clear()
        world.store(configuration(interface_prefix="tap"))
        await world.until(lambda: world.process._stopping.is_set())
    assert world.exit_code == 129
    assert world.kernel.writes == []


async def test_a_parameter_that_needs_no_restart_is_taken_over(world):
    async with world.running():
        world.store(configuration(log_severity_screen="Debug"))
        await world.settled()
        live = world.felix._local.live
        await world.until(lambda: live.config.log_severity_screen == "DEBUG")
        world.store(configuration(log_severity_screen="Info"))
        await world.until(lambda: live.config.log_severity_screen == "INFO")
    assert world.exit_code == 0


async def test_sighup_reads_the_file_again(world):
    world.config_file = world.directory / "felix.cfg"
    world.config_file.write_text("LogSeverityScreen = Info\n")
    async with world.running():
        live = world.felix._local.live
        world.config_file.write_text("LogSeverityScreen = Debug\n")
        assert live.config.log_severity_screen == "INFO", "nobody has asked yet"
        signal.raise_signal(signal.SIGHUP)
        await world.until(lambda: live.config.log_severity_screen == "DEBUG")
        world.config_file.write_text("LogSeverityScreen = Error\nNoSuchThing = 1\n")
        signal.raise_signal(signal.SIGHUP)
        await world.settled()
        assert live.config.log_severity_screen == "DEBUG", "a bad file changes nothing"
        world.config_file.write_text("LogSeverityScreen = Info\n")
        signal.raise_signal(signal.SIGHUP)
        await world.until(lambda: live.config.log_severity_screen == "INFO")
    assert world.exit_code == 0


async def test_sighup_ends_with_129_when_the_file_asks_for_something_else(world):
    world.config_file = world.directory / "felix.cfg"
    world.config_file.write_text("")
    async with world.running():
        world.config_file.write_text("InterfacePrefix = tap\n")
        signal.raise_signal(signal.SIGHUP)
        await world.until(lambda: world.process._stopping.is_set())
    assert world.exit_code == 129


async def test_metrics_whose_clients_could_not_be_checked_are_refused_at_start(tmp_path):
    world = FelixWorld(
        tmp_path,
        FELIX_PROMETHEUSMETRICSENABLED="true",
        FELIX_PROMETHEUSMETRICSCLIENTAUTH="RequireAndVerifyClientCert",
    )
    async with world.running(in_sync=False):
        await world.until(lambda: world.process._stopping.is_set())
    assert world.exit_code == 1


async def test_a_datastore_that_is_locked_ends_the_process_and_the_next_one_waits(world):
    two_pods(world)
    async with world.running():
        world.store(cluster(ready=False))
        await world.until(lambda: world.process._stopping.is_set())
    assert world.exit_code == 129
    asked = ("get", path_of(cluster()[0]))
    before = world.datastore.calls.count(asked)
    async with world.running(in_sync=False):
        await world.until(lambda: world.datastore.calls.count(asked) - before >= 2)
        assert world.felix is None
        assert world.routes() == {A, B, A6, B6}
        world.store(cluster())
        await world.until(lambda: world.felix is not None)


async def test_status_keys_are_written_when_they_are_asked_for(tmp_path):
    world = FelixWorld(
        tmp_path,
        FELIX_ENDPOINTREPORTINGENABLED="true",
        FELIX_ENDPOINTREPORTINGDELAYSECS="0.01",
        FELIX_REPORTINGINTERVALSECS="0.05",
    )
    stale = "/calico/felix/v2/no-region/host/here/workload/k8s/prod%2fold/endpoint/eth0"
    world.datastore.seed({stale: b'{"status":"up"}'})
    world.wire("a")
    world.store(workload("a", A))
    prefix = "/calico/felix/v2/no-region/host/here/"
    present = f"{prefix}workload/k8s/prod%2fa/endpoint/eth0"

    def reported() -> dict[str, bytes]:
        return world.datastore.contents("/calico/felix/v2")

    async with world.running():
        await world.until(lambda: reported().get(present) == b'{"status":"up"}')
        await world.until(lambda: stale not in reported())
        world.kernel.set_link("calia", is_up=False)
        await world.until(lambda: reported().get(present) == b'{"status":"down"}')
        # The two are written one after the other, and this is the later one.
        await world.until(lambda: f"{prefix}last_reported_status" in reported())
        report = json.loads(reported()[f"{prefix}last_reported_status"])
        assert set(report) == {"time", "uptime", "first_update"}
        world.erase(workload("a", A))
        await world.until(lambda: present not in reported())
    (kv,) = [kv for kv in world.datastore.snapshot(f"{prefix}status") if kv.key.endswith("/status")]
    assert kv.lease, "it goes by itself when felix does not come back"


async def test_the_state_dump_holds_every_part(world):
    two_pods(world)
    async with world.running():
        await world.settled()
        dump = world.process.dumps.collect()
    parts = {"syncer", "graph", "story", "dataplane", "policies", "endpoints", "status", "cni"}
    assert parts <= dump.keys()
    assert all("error" not in part for part in dump.values() if isinstance(part, dict))
    assert "here-k8s-a-eth0" in json.dumps(dump["endpoints"])


# -- how policies are reported -----------------------------------------------------------------


async def test_a_policy_change_is_measured_until_the_kernel_has_it(world):
    two_pods(world)
    took: list[float] = []
    async with world.running():
        policies = world.felix.dataplane.policies
        policies.add_listener(took.append)
        world.store(DENY_TO_B)
        await world.until(lambda: took)
        assert not passes(world)
        (entry,) = world.datastore.snapshot(path_of(DENY_TO_B[0]))
        assert policies.dump()["in_force"] == {str(DENY_TO_B[0]): entry.mod_revision}
        world.erase(DENY_TO_B)
        await world.until(lambda: len(took) == 2)
        assert passes(world)
        assert policies.dump()["in_force"] == {}


async def test_a_staged_policy_is_reported_and_stops_nothing(world):
    two_pods(world)
    staged = calc.snp("no", selector="app == 'b'", ingress=(calc.rule("Deny"),), types=("Ingress",))
    async with world.running():
        world.store(staged)
        await world.until(lambda: world.felix.dataplane.policies.staged_count)
        await world.settled()
        assert passes(world)
        (told,) = world.felix.graph.dump()["staged"].values()
        assert [name for name in told["endpoints"] if "k8s-b" in name]


# -- connections when policy tightens -----------------------------------------------------------


def connection(source: str, destination: str) -> TrackedConnection:
    packet = PolicyPacket.tcp(source, destination, 80)
    return TrackedConnection(packet, f"{source}>{destination}".encode())


@pytest.mark.parametrize(("sweep", "is_swept"), [("Enabled", True), ("Disabled", False)])
async def test_a_connection_that_policy_denies_now_ends_if_asked_for(tmp_path, sweep, is_swept):
    world = FelixWorld(tmp_path, FELIX_POLICYCONNTRACKSWEEP=sweep)
    two_pods(world)
    to_b, to_a = connection("10.65.0.1", "10.65.0.2"), connection("10.65.0.2", "10.65.0.1")
    world.kernel.tracked = [to_b, to_a]
    async with world.running():
        world.store(DENY_TO_B)
        await world.until(lambda: not passes(world))
        if is_swept:
            await world.until(lambda: world.kernel.tracked == [to_a])
        await world.settled()
    assert world.kernel.tracked == ([to_a] if is_swept else [to_b, to_a])
    assert bool(world.kernel.conntrack_readings) is is_swept
    loose = world.kernel.sysctls["net/netfilter/nf_conntrack_tcp_loose"]
    assert loose == ("0" if is_swept else "1")


# ------------------------------------------------------------------------------ host endpoints

TO_HOST = Packet("192.0.2.7", "192.0.2.1", dport=80)
SSH_TO_HOST = Packet("192.0.2.7", "192.0.2.1", dport=22)
HOST_STATUS = "/calico/felix/v1/host/here/endpoint/h"


def reporting(tmp_path) -> FelixWorld:
    return FelixWorld(
        tmp_path,
        FELIX_ENDPOINTREPORTINGENABLED="true",
        FELIX_ENDPOINTREPORTINGDELAYSECS="0.01",
    )


def status_of_host(world: FelixWorld) -> str | None:
    found = world.datastore.contents("/calico/felix/v1").get(HOST_STATUS)
    return None if found is None else json.loads(found)["status"]


def arrives(world: FelixWorld, packet: Packet, ifname: str = "eth0") -> bool:
    return world.nft.deliver(packet, ifname) == "accept"


async def test_a_host_endpoint_is_enforced_reported_and_taken_away(tmp_path):
    world = reporting(tmp_path)
    endpoint = calc.hep("h", "192.0.2.1", node=NODE, labels={"role": "edge"})
    web = calc.gnp(
        "web",
        selector="role == 'edge'",
        types=("Ingress",),
        ingress=(calc.rule(protocol="TCP", destination={"ports": (80,)}),),
    )
    world.store(endpoint)
    async with world.running():
        await world.until(lambda: status_of_host(world) == "error")  # no such interface
        assert arrives(world, TO_HOST)
        world.kernel.add_link("eth0")
        world.kernel.add_address("eth0", "192.0.2.1/24")
        await world.until(lambda: status_of_host(world) == "up")
        assert not arrives(world, TO_HOST)
        assert arrives(world, SSH_TO_HOST)
        world.store(web)
        await world.until(lambda: arrives(world, TO_HOST))
        world.kernel.set_link("eth0", has_carrier=False)
        await world.until(lambda: status_of_host(world) == "down")
        world.erase(web)
        await world.until(lambda: not arrives(world, TO_HOST))
        world.erase(endpoint)
        await world.until(lambda: status_of_host(world) is None)
        assert arrives(world, TO_HOST)


async def test_a_host_endpoint_for_all_interfaces_with_the_default_profile_closes_nothing(world):
    world.kernel.add_link("eth0")
    profile = ("projectcalico-default-allow",)
    world.store(calc.hep("h", "192.0.2.1", node=NODE, interface_name="*", profiles=profile))
    deny = calc.gnp("no", selector="all()", types=("Ingress",), ingress=(calc.rule("Deny"),))
    async with world.running():
        await world.settled()
        assert arrives(world, TO_HOST)
        world.store(deny)
        await world.until(lambda: not arrives(world, TO_HOST))
        assert not arrives(world, TO_HOST, "eth9"), "also one that appears later"
        assert arrives(world, SSH_TO_HOST)


async def test_a_host_endpoint_of_another_node_is_not_ours(world):
    world.store(calc.hep("h", node="there", interface_name="eth0"))
    async with world.running():
        await world.settled()
        assert arrives(world, TO_HOST)


async def test_a_host_endpoint_is_not_up_before_its_policy_is_in_the_kernel(tmp_path):
    world = reporting(tmp_path)
    world.kernel.add_link("eth0")
    async with world.running():
        world.nft.refuse_batches(errno.ENOMEM)
        world.store(calc.hep("h", node=NODE, interface_name="eth0"))
        key = calc.hep("h")[0]
        await world.until(lambda: world.felix.dataplane.hosts.governed_by(key))
        for _ in range(3):
            assert not (await world.felix.dataplane.loop.flush()).is_filtering
        assert status_of_host(world) is None
        world.nft.allow()
        await world.until(lambda: status_of_host(world) == "up")
        assert not arrives(world, TO_HOST)


async def test_a_restart_keeps_host_endpoints_as_they_are(world):
    world.kernel.add_link("eth0")
    world.kernel.add_address("eth0", "192.0.2.1/24")
    world.store(
        calc.hep("h", "192.0.2.1", node=NODE),
        calc.hep("all", node=NODE, interface_name="*", profiles=("kns.prod",)),
    )
    async with world.running():
        await world.settled()
    assert not arrives(world, TO_HOST), "felix is away"
    commits = world.nft.commits
    async with world.running():
        await world.settled()
        assert not arrives(world, TO_HOST)
    assert world.nft.commits == commits
