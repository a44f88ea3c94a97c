"""libcalico.runtime.config: order of sources, refusals, last good values, restarts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from libcalico.errors import ConfigError, RestartRequired
from libcalico.runtime import parse
from libcalico.runtime.config import (
    Layer,
    LiveConfig,
    Schema,
    Source,
    environment_layer,
    file_layer,
    param,
)


@dataclass(frozen=True, slots=True)
class DemoConfig:
    interface_prefix: str = param("cali", parse=parse.text, restart=True, doc="Workload prefix.")
    refresh_interval_s: float = param(90.0, parse=parse.seconds)
    probe_interval_s: float = param(0.05, parse=parse.millis, name="ProbeIntervalMillis")
    ipv6_support: bool = param(True, parse=parse.boolean, name="Ipv6Support")
    node_name: str = param("", parse=parse.text, env_name="NODENAME", local_only=True)
    password: str = param("", parse=parse.text, secret=True)
    failsafe: tuple[parse.ProtoPort, ...] = param(
        (parse.ProtoPort("tcp", 22),), parse=parse.proto_ports
    )
    max_size: int = param(10, parse=parse.integer(1, 100), non_zero=True)


SCHEMA = Schema.of(DemoConfig, prefix="DEMO_", tolerated=["BPFEnabled"])


def environment(**variables: str) -> Layer:
    return environment_layer(SCHEMA, variables)


def test_every_source_overrides_the_ones_below_it_and_is_remembered():
    layers = [Layer(source, {"MaxSize": str(int(source))}) for source in Source if source > 0]
    for count in range(len(layers) + 1):
        # The order in which layers are handed in must not matter.
        resolution = SCHEMA.resolve(reversed(layers[:count]))
        expected = count or 10
        assert resolution.config.max_size == expected
        assert resolution.effective["max_size"].source == Source(count)


def test_names_are_compared_without_case_in_every_source():
    resolution = SCHEMA.resolve(
        [Layer(Source.FILE, {"interfaceprefix": "tap"}), environment(DEMO_REFRESHINTERVAL="5")]
    )
    assert resolution.config.interface_prefix == "tap"
    assert resolution.config.refresh_interval_s == 5.0


def test_a_variable_named_in_the_table_needs_no_prefix():
    layer = environment(NODENAME="worker-1", HOME="/root")
    assert SCHEMA.resolve([layer]).config.node_name == "worker-1"


@pytest.mark.parametrize("source", [Source.FILE, Source.ENVIRONMENT])
def test_an_unknown_local_name_is_refused(source: Source):
    with pytest.raises(ConfigError, match="InterfacePrefx: unknown parameter"):
        SCHEMA.resolve([Layer(source, {"InterfacePrefx": "tap"}, "felix.cfg")])


@pytest.mark.parametrize(
    "source", [Source.DATASTORE_GLOBAL, Source.DATASTORE_SELECTOR, Source.DATASTORE_NODE]
)
def test_an_unknown_datastore_name_is_reported_and_ignored(source: Source):
    resolution = SCHEMA.resolve([Layer(source, {"FromTheFuture": "1", "MaxSize": "7"})])
    assert resolution.config.max_size == 7
    assert [problem.name for problem in resolution.problems] == ["FromTheFuture"]


def test_a_parameter_of_calico_that_does_nothing_here_is_reported_and_accepted():
    resolution = SCHEMA.resolve([environment(DEMO_BPFENABLED="true")])
    assert [problem.reason for problem in resolution.problems] == ["not used here"]


@pytest.mark.parametrize("source", [Source.FILE, Source.ENVIRONMENT])
def test_a_bad_local_value_is_refused_with_source_name_and_value(source: Source):
    with pytest.raises(ConfigError) as caught:
        SCHEMA.resolve([Layer(source, {"MaxSize": "1000"}, "/etc/calico/felix.cfg")])
    assert str(caught.value) == "/etc/calico/felix.cfg: MaxSize = '1000': must be at most 100"


def test_a_bad_datastore_value_keeps_the_last_good_one():
    live = LiveConfig(SCHEMA)
    live.set_layer(Layer(Source.DATASTORE_GLOBAL, {"MaxSize": "50"}))
    changes = live.set_layer(Layer(Source.DATASTORE_GLOBAL, {"MaxSize": "fifty"}))
    assert live.config.max_size == 50
    assert not changes
    assert live.error_count == 1
    # Still the last good one after a second bad value, and gone when the parameter is gone.
    live.set_layer(Layer(Source.DATASTORE_GLOBAL, {"MaxSize": "sixty"}))
    assert live.config.max_size == 50
    live.set_layer(Layer(Source.DATASTORE_GLOBAL, {}))
    assert live.config.max_size == 10
    assert live.error_count == 0


def test_a_bad_datastore_value_without_a_good_one_falls_to_the_next_source():
    layers = [
        Layer(Source.DATASTORE_GLOBAL, {"MaxSize": "20"}),
        Layer(Source.DATASTORE_NODE, {"MaxSize": "x"}),
    ]
    resolution = SCHEMA.resolve(layers)
    assert resolution.config.max_size == 20
    assert resolution.effective["max_size"].source == Source.DATASTORE_GLOBAL


def test_a_local_only_parameter_is_ignored_from_the_datastore():
    resolution = SCHEMA.resolve([Layer(Source.DATASTORE_NODE, {"NodeName": "evil"})])
    assert resolution.config.node_name == ""
    assert len(resolution.problems) == 1


def test_none_means_off_and_empty_means_not_given():
    resolution = SCHEMA.resolve(
        [environment(DEMO_FAILSAFE="none", DEMO_REFRESHINTERVAL="", DEMO_IPV6SUPPORT="None")]
    )
    assert resolution.config.failsafe == ()
    assert resolution.config.refresh_interval_s == 90.0
    assert resolution.config.ipv6_support is False


def test_none_is_refused_where_zero_makes_no_sense():
    with pytest.raises(ConfigError, match="cannot be none"):
        SCHEMA.resolve([environment(DEMO_MAXSIZE="none")])


def test_a_change_of_a_restart_parameter_asks_for_a_restart_and_others_do_not():
    live = LiveConfig(SCHEMA)
    changes = live.set_layer(Layer(Source.DATASTORE_GLOBAL, {"MaxSize": "20"}))
    assert changes.changed == {"max_size": (10, 20)}
    changes.raise_if_restart()
    changes = live.set_layer(Layer(Source.DATASTORE_NODE, {"InterfacePrefix": "tap"}))
    with pytest.raises(RestartRequired, match="InterfacePrefix"):
        changes.raise_if_restart()


def test_a_datastore_change_hidden_by_the_environment_is_no_change():
    live = LiveConfig(SCHEMA, [environment(DEMO_INTERFACEPREFIX="cali")])
    changes = live.set_layer(Layer(Source.DATASTORE_GLOBAL, {"InterfacePrefix": "tap"}))
    assert not changes


def test_dump_shows_values_and_sources_but_no_secret():
    live = LiveConfig(SCHEMA, [environment(DEMO_PASSWORD="hunter2", DEMO_MAXSIZE="3")])
    parameters = live.dump()["parameters"]
    assert parameters["MaxSize"] == {"value": "3", "source": "environment"}
    assert parameters["RefreshInterval"] == {"value": "90.0", "source": "default"}
    assert "hunter2" not in str(live.dump())


def test_a_secret_that_does_not_parse_is_not_quoted_in_the_error():
    @dataclass(frozen=True, slots=True)
    class Secretive:
        pin: int = param(0, parse=parse.integer(), secret=True)

    with pytest.raises(ConfigError) as caught:
        Schema.of(Secretive, prefix="S_").resolve([Layer(Source.FILE, {"Pin": "hunter2"})])
    assert "hunter2" not in str(caught.value)


def test_check_reports_every_problem_of_every_layer():
    problems = SCHEMA.check(
        [
            environment(DEMO_MAXSIZE="x", DEMO_NOPE="1"),
            Layer(Source.DATASTORE_NODE, {"RefreshInterval": "soon"}),
        ]
    )
    assert [problem.name for problem in problems] == ["NOPE", "MaxSize", "RefreshInterval"]


def test_two_parameters_of_one_name_are_a_bug_found_at_import():
    @dataclass(frozen=True, slots=True)
    class Twice:
        one: int = param(1, parse=parse.integer(), name="Same")
        two: int = param(1, parse=parse.integer(), name="same")

    with pytest.raises(ValueError, match="twice"):
        Schema.of(Twice, prefix="X_")


@pytest.mark.parametrize("header", ["", "[global]\n", "# comment\n[Felix]\n"])
def test_a_file_is_read_with_or_without_sections(tmp_path: Path, header: str):
    path = tmp_path / "felix.cfg"
    path.write_text(header + "InterfacePrefix = tap\nMaxSize=5\n")
    config = SCHEMA.resolve([file_layer(path)]).config
    assert (config.interface_prefix, config.max_size) == ("tap", 5)


def test_a_missing_file_is_an_empty_layer_unless_it_is_required(tmp_path: Path):
    assert file_layer(tmp_path / "none").values == {}
    with pytest.raises(ConfigError, match="does not exist"):
        file_layer(tmp_path / "none", required=True)


def test_a_file_that_does_not_parse_is_refused_in_one_line(tmp_path: Path):
    path = tmp_path / "felix.cfg"
    path.write_text("this is not an assignment\n")
    with pytest.raises(ConfigError) as caught:
        file_layer(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
