"""controllers.config: the environment over KubeControllersConfiguration."""

from __future__ import annotations

import pytest

from controllers.config import is_enabled, layer_of, read_local
from libcalico.errors import ConfigError
from libcalico.model.cluster import (
    ControllersConfig,
    KubeControllersConfiguration,
    KubeControllersConfigurationSpec,
    NodeControllerConfig,
)
from libcalico.model.meta import ObjectMeta


def stored(node: NodeControllerConfig | None, **spec: object) -> KubeControllersConfiguration:
    controllers = ControllersConfig(node=node)
    made = KubeControllersConfigurationSpec(controllers=controllers, **spec)  # type: ignore[arg-type]
    return KubeControllersConfiguration(metadata=ObjectMeta(name="default"), spec=made)


def test_the_defaults_are_calicos():
    config = read_local({}).config
    assert (config.leak_grace_period_s, config.reconciler_period_s) == (900.0, 300.0)
    assert (config.prometheus_metrics_port, config.enabled_controllers) == (9094, ("node",))


def test_the_resource_is_followed_and_the_environment_wins():
    live = read_local({"RECONCILER_PERIOD": "7s"})
    node = NodeControllerConfig(leak_grace_period="1m0s", reconciler_period="2m0s")
    live.set_layer(layer_of(stored(node, log_severity_screen="Debug", prometheus_metrics_port=0)))
    config = live.config
    assert (config.leak_grace_period_s, config.reconciler_period_s) == (60.0, 7.0)
    assert (config.log_level, config.prometheus_metrics_port) == ("debug", 0)
    live.set_layer(layer_of(None))
    assert live.config.leak_grace_period_s == 900.0


@pytest.mark.parametrize(
    ("grace", "period", "expected"), [("10s", "1m", 5.0), ("15m", "5m", 300.0), ("0", "1m", 60.0)]
)
def test_there_are_two_looks_in_a_grace_period(grace: str, period: str, expected: float):
    live = read_local({"LEAK_GRACE_PERIOD": grace, "RECONCILER_PERIOD": period})
    assert live.config.period_s == expected


def test_a_resource_without_a_node_controller_turns_it_off_unless_the_environment_names_it():
    for environ, expected in (({}, False), ({"ENABLED_CONTROLLERS": "node"}, True)):
        live = read_local(environ)
        assert is_enabled(live)
        live.set_layer(layer_of(stored(None)))
        assert is_enabled(live) is expected


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("ENABLED_CONTROLLERS", "policy", "there is no controller 'policy' here, only: node"),
        ("ENABLED_CONTROLLERS", ",", "names no controller"),
        ("RECONCILER_PERIOD", "0", "must be more than nothing"),
        ("LEAK_GRACE_PERIOD", "-1s", "must not be negative"),
        ("IPAM_MIN_BLOCKS_PER_NODE", "-1", "MinBlocksPerNode"),
    ],
)
def test_what_cannot_be_is_refused(variable: str, value: str, said: str):
    with pytest.raises(ConfigError) as caught:
        read_local({variable: value})
    assert said in str(caught.value)


def test_a_bad_value_of_the_resource_leaves_the_default_in_force():
    live = read_local({})
    live.set_layer(layer_of(stored(NodeControllerConfig(leak_grace_period="soon"))))
    assert live.config.leak_grace_period_s == 900.0
    assert live.error_count == 1
