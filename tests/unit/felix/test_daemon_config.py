"""felix.daemon_config: where values come from, and what a change does."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from felix.config import SCHEMA
from felix.daemon_config import ConfigWatcher, check_local, read_local, wait_for_datastore
from libcalico.errors import ConfigError, RestartRequired, Unauthorized
from libcalico.model import (
    ClusterInformation,
    ClusterInformationSpec,
    FelixConfiguration,
    FelixConfigurationSpec,
    ObjectMeta,
)
from libcalico.model.codec import encode
from libcalico.model.keys import ResourceKey, path_of
from libcalico.runtime.config import LiveConfig
from libcalico.syncer.api import SyncStatus, Update
from libcalico.testing.clock import FakeClock
from libcalico.testing.datastore import MemoryDatastore

ENVIRON = {"NODENAME": "Node-1", "ETCD_ENDPOINTS": "http://127.0.0.1:2379"}


def configuration(name: str = "default", **spec: object) -> Update:
    value = FelixConfiguration(
        metadata=ObjectMeta(name=name),
        spec=FelixConfigurationSpec(**spec),  # type: ignore[arg-type]
    )
    return Update(ResourceKey(FelixConfiguration.kind, name), value, 1)


def cluster(*, ready: bool | None = True) -> Update:
    value = ClusterInformation(
        metadata=ObjectMeta(name="default"), spec=ClusterInformationSpec(datastore_ready=ready)
    )
    return Update(ResourceKey(ClusterInformation.kind, "default"), value, 1)


# ------------------------------------------------------------------------------------ local


def test_the_environment_wins_over_the_file_and_names_the_node(tmp_path: Path):
    file = tmp_path / "felix.cfg"
    file.write_text("[global]\nInterfacePrefix = tap\nLogSeverityScreen = Debug\n")
    local = read_local(ENVIRON | {"FELIX_INTERFACEPREFIX": "cali,tap"}, file)
    assert local.live.config.interface_prefixes == ("cali", "tap")
    assert local.live.config.log_severity_screen == "DEBUG"
    assert local.node == "Node-1"  # a chosen name is used as it is
    assert local.connection.etcd().endpoints == ("http://127.0.0.1:2379",)


def test_felix_own_parameters_win_over_the_common_ones(tmp_path: Path):
    own = {"FELIX_FELIXHOSTNAME": "other", "FELIX_ETCDENDPOINTS": "http://127.0.0.2:1"}
    local = read_local(ENVIRON | own, _empty(tmp_path))
    assert local.node == "other"
    assert local.connection.etcd().endpoints == ("http://127.0.0.2:1",)


def _empty(tmp_path: Path) -> Path:
    file = tmp_path / "felix.cfg"
    file.write_text("")
    return file


def test_a_file_that_was_named_must_exist(tmp_path: Path):
    with pytest.raises(ConfigError):
        read_local(ENVIRON, tmp_path / "nowhere.cfg")
    assert "does not exist" in check_local(ENVIRON, tmp_path / "nowhere.cfg")[0]


def test_check_names_every_problem(tmp_path: Path):
    file = _empty(tmp_path)
    assert check_local(ENVIRON, file) == []
    file.write_text("Ipv6Support = perhaps\nNoSuchThing = 1\n")
    problems = check_local(ENVIRON | {"FELIX_HEALTHPORT": "99999"}, file)
    assert len(problems) == 3
    assert {"Ipv6Support", "NoSuchThing", "HealthPort"} <= {p.split(": ")[1].split(" ")[0]
                                                            for p in problems}  # fmt: skip


# ---------------------------------------------------------------------------------- watching


def test_a_file_that_is_refused_on_reload_leaves_everything_as_it_was(tmp_path: Path):
    file = tmp_path / "felix.cfg"
    file.write_text("LogSeverityScreen = Debug\n")
    local = read_local(ENVIRON, file)
    watcher = ConfigWatcher(local.live, local.node)
    for content in ("LogSeverityScreen = Error\nNoSuchThing = 1\n", "no ini file"):
        file.write_text(content)
        watcher.reload_file(local.path)
        watcher.on_updates([configuration(ip_forwarding="Enabled")])
        assert local.live.config.log_severity_screen == "DEBUG"
    file.unlink()
    watcher.reload_file(local.path)
    assert local.live.config.log_severity_screen == "DEBUG", "a named file must exist"
    assert watcher.restart_reason is None


@pytest.fixture
def live() -> LiveConfig:
    return LiveConfig(SCHEMA)


@pytest.fixture
def watcher(live) -> ConfigWatcher:
    return ConfigWatcher(live, "n1")


def test_what_is_there_before_the_start_needs_no_restart(live, watcher):
    watcher.preload([configuration(interface_prefix="tap"), cluster()])
    assert live.config.interface_prefixes == ("tap",)
    watcher.on_updates([configuration(interface_prefix="tap")])
    assert watcher.restart_reason is None


def test_a_change_that_needs_a_restart_asks_for_one(live, watcher):
    asked = []
    watcher.on_restart(asked.append)
    watcher.on_updates([configuration(interface_prefix="tap")])
    assert isinstance(asked[0], RestartRequired)
    assert "InterfacePrefix" in str(asked[0])
    assert watcher.restart_reason is asked[0]


def test_a_change_that_needs_none_is_told(live, watcher):
    told = []
    watcher.add_listener(told.append)
    watcher.on_updates([configuration(log_severity_screen="Debug")])
    assert told[0].changed["log_severity_screen"] == ("INFO", "DEBUG")
    watcher.on_updates([configuration(log_severity_screen="Debug")])
    watcher.on_status(SyncStatus.IN_SYNC)
    assert len(told) == 1
    assert watcher.restart_reason is None
    assert "LogSeverityScreen" in watcher.dump()["parameters"]


def test_a_locked_datastore_asks_for_a_restart_once(watcher):
    asked = []
    watcher.on_restart(asked.append)
    watcher.on_updates([cluster()])
    assert asked == []
    watcher.on_updates([cluster(ready=False)])
    watcher.on_updates([cluster(ready=False)])
    assert ["locked" in str(reason) for reason in asked] == [True]


def test_a_vanished_cluster_information_is_no_reason_to_stop(watcher):
    watcher.on_updates([Update(ResourceKey(ClusterInformation.kind, "default"), None, 9)])
    watcher.on_updates([cluster(ready=None)])
    assert watcher.restart_reason is None


# ----------------------------------------------------------------------------------- waiting


def seed(datastore: MemoryDatastore, *updates: Update) -> None:
    datastore.seed({path_of(u.key): encode(u.value) for u in updates})  # type: ignore[arg-type]


async def test_waiting_ends_with_what_concerns_this_node():
    datastore = MemoryDatastore()
    seed(datastore, cluster(), configuration("node.n1"), configuration("default"))
    broken = path_of(ResourceKey(FelixConfiguration.kind, "broken"))
    datastore.seed({broken: b"{"})
    updates = await wait_for_datastore(datastore, "n1", clock=FakeClock())
    assert {update.key.name for update in updates} == {"default", "node.n1"}


@pytest.mark.parametrize("trouble", ["away", "refused", "empty", "locked"])
async def test_waiting_lasts_as_long_as_it_takes_and_says_so_once_a_minute(trouble, caplog):
    datastore, clock = MemoryDatastore(), FakeClock()
    if trouble == "locked":
        seed(datastore, cluster(ready=False))
    elif trouble != "empty":
        seed(datastore, cluster())
    if trouble == "away":
        datastore.partition()
    elif trouble == "refused":
        datastore.fail_next(10**6, error=Unauthorized("no"))
    waiting = asyncio.create_task(wait_for_datastore(datastore, "n1", clock=clock))
    await clock.advance(150)
    assert not waiting.done()
    said = [record for record in caplog.records if "waiting" in record.getMessage()]
    assert len(said) == 3, "at 0, 60 and 120 seconds"
    datastore.heal()
    datastore._faults.clear()
    seed(datastore, cluster())
    await clock.advance(10)
    assert len(await waiting) == 1
