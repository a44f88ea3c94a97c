"""cni.results: the same attachment in every version's shape, and back."""

from __future__ import annotations

import pytest

from cni import results
from cni.results import Interface, IPConfig, Result, RouteConfig
from cni.skel import CniError

RESULT = Result(
    interfaces=(
        Interface("cali1", "ee:ee:ee:ee:ee:ee", mtu_bytes=1450),
        Interface("eth0", "02:00:00:00:00:01", "/run/netns/x", 1450),
    ),
    ips=(IPConfig("10.65.0.1/32", interface=1), IPConfig("fd65::1/128", interface=1)),
    routes=(RouteConfig("0.0.0.0/0", "169.254.1.1"), RouteConfig("::/0")),
    dns={"nameservers": ["192.0.2.53"]},
)


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0"])
def test_the_oldest_versions_have_one_address_a_family(version):
    assert RESULT.to_json(version) == {
        "cniVersion": version,
        "ip4": {"ip": "10.65.0.1/32", "routes": [{"dst": "0.0.0.0/0", "gw": "169.254.1.1"}]},
        "ip6": {"ip": "fd65::1/128", "routes": [{"dst": "::/0"}]},
        "dns": {"nameservers": ["192.0.2.53"]},
    }


@pytest.mark.parametrize("version", ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"])
def test_the_whole_shape_of_the_newer_versions(version):
    family = [{"version": "4"}, {"version": "6"}] if version < "1" else [{}, {}]
    mtu = {"mtu": 1450} if version == "1.1.0" else {}
    assert RESULT.to_json(version) == {
        "cniVersion": version,
        "interfaces": [
            {"name": "cali1", "mac": "ee:ee:ee:ee:ee:ee", **mtu},
            {"name": "eth0", "mac": "02:00:00:00:00:01", "sandbox": "/run/netns/x", **mtu},
        ],
        "ips": [
            {"address": "10.65.0.1/32", "interface": 1, **family[0]},
            {"address": "fd65::1/128", "interface": 1, **family[1]},
        ],
        "routes": [{"dst": "0.0.0.0/0", "gw": "169.254.1.1"}, {"dst": "::/0"}],
        "dns": {"nameservers": ["192.0.2.53"]},
    }


def test_what_only_1_1_knows_is_passed_on_and_left_out_before():
    raw = {
        "interfaces": [{"name": "vh0", "socketPath": "/s", "pciID": "0000:00:01.0", "mtu": 9000}],
        "routes": [{"dst": "10.0.0.0/8", "mtu": 1400, "advmss": 1360, "priority": 0, "table": 7}],
    }
    newest = results.parse(raw).to_json("1.1.0")
    assert newest["interfaces"] == raw["interfaces"]
    assert newest["routes"] == raw["routes"], "priority 0 is a value"
    older = results.parse(raw).to_json("1.0.0")
    assert older["interfaces"] == [{"name": "vh0"}]
    assert older["routes"] == [{"dst": "10.0.0.0/8"}]


@pytest.mark.parametrize("version", ["0.3.0", "0.3.1", "0.4.0"])
def test_the_middle_versions_say_the_family_of_an_address(version):
    body = RESULT.to_json(version)
    assert [ip["version"] for ip in body["ips"]] == ["4", "6"]
    assert "mtu" not in body["interfaces"][0]


def test_version_1_0_has_no_family_and_1_1_has_the_mtu():
    assert "version" not in RESULT.to_json("1.0.0")["ips"][0]
    assert "mtu" not in RESULT.to_json("1.0.0")["interfaces"][1]
    assert RESULT.to_json("1.1.0")["interfaces"][1] == {
        "name": "eth0",
        "mac": "02:00:00:00:00:01",
        "mtu": 1450,
        "sandbox": "/run/netns/x",
    }


@pytest.mark.parametrize("version", ["0.3.1", "0.4.0", "1.0.0", "1.1.0"])
def test_a_result_parses_back(version):
    parsed = results.parse(RESULT.to_json(version))
    assert parsed.ips == RESULT.ips
    assert parsed.routes == RESULT.routes
    assert [item.name for item in parsed.interfaces] == ["cali1", "eth0"]


def test_an_old_result_parses_back():
    parsed = results.parse(RESULT.to_json("0.2.0"))
    assert [ip.address for ip in parsed.ips] == ["10.65.0.1/32", "fd65::1/128"]


def test_an_old_result_needs_an_address():
    with pytest.raises(CniError):
        Result().to_json("0.2.0")


@pytest.mark.parametrize(
    "raw",
    [
        None,
        [],
        {"ips": "x"},
        {"ips": [{}]},
        {"ips": [{"address": "nonsense"}]},
        {"ips": [7]},
        {"interfaces": [{}]},
        {"routes": [{"dst": "x"}]},
        {"ip4": {"ip": "x"}},
        {"ip4": 7},
        {"dns": 7},
        {"interfaces": [{"name": 7}]},
        {"interfaces": [{"name": "a", "mtu": True}]},
        {"ips": [{"address": "10.0.0.1/32", "interface": 0}]},
        {"interfaces": [{"name": "a"}], "ips": [{"address": "10.0.0.1/32", "interface": -1}]},
        {"routes": [{"dst": "10.0.0.0/8", "mtu": "x"}]},
    ],
)
def test_a_bad_result_is_code_6(raw):
    with pytest.raises(CniError) as caught:
        results.parse(raw)
    assert caught.value.code == 6
