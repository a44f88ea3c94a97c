"""cni.conflist: the operator's template becomes a configuration that a runtime takes."""

from __future__ import annotations

import json

import pytest

from cni.conflist import check_name, default_conflist, names_plugin, render
from libcalico.errors import ConfigError

# The cni_network_config of Calico's manifest for etcd, shortened.
MANIFEST = """
{
  "name": "k8s-pod-network",
  "cniVersion": "0.3.1",
  "plugins": [
    {"type": "calico", "mtu": __CNI_MTU__, "etcd_endpoints": "__ETCD_ENDPOINTS__",
     "etcd_key_file": "__ETCD_KEY_FILE__", "ipam": {"type": "calico-ipam"}},
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
"""
VALUES = {
    "__CNI_MTU__": "1440",
    "__ETCD_ENDPOINTS__": 'https://a:1,https://"b":2',
    "__ETCD_KEY_FILE__": "",
}
ONE = '{"name": "n", "type": "calico"}'


def test_placeholders_become_numbers_and_escaped_text():
    conf = json.loads(render(MANIFEST, VALUES, source="here"))
    calico = conf["plugins"][0]
    assert calico["mtu"] == 1440
    assert calico["etcd_endpoints"] == 'https://a:1,https://"b":2'
    assert calico["etcd_key_file"] == ""
    assert conf["plugins"][1]["type"] == "portmap"


def test_a_value_is_not_searched_for_placeholders():
    text = render(
        '{"name": "__A__", "type": "calico"}', {"__A__": "__B__", "__B__": "x"}, source=""
    )
    assert json.loads(text)["name"] == "__B__"


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ('{"name": "n", "type": "__SERVICEACCOUNT_TOKEN__"}', "__SERVICEACCOUNT_TOKEN__"),
        ('{"name": "n", "type": "calico"', "is not JSON"),
        ("[1]", "must be a JSON object"),
        ('{"type": "calico"}', "name"),
        ('{"name": 7, "type": "calico"}', "name = 7"),
        ('{"name": "n"}', "type"),
        ('{"name": "n", "plugins": []}', "plugins: must be a list"),
        ('{"name": "n", "plugins": {}}', "plugins: must be a list"),
        ('{"name": "n", "plugins": [{"type": "calico"}, {"snat": true}]}', "plugins[1].type"),
        ('{"name": "n", "plugins": ["calico"]}', "plugins[0].type"),
    ],
)
def test_what_is_no_configuration_is_refused_with_its_place(template, said):
    with pytest.raises(ConfigError) as caught:
        render(template, {}, source="/etc/template")
    assert str(caught.value).startswith("/etc/template: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "conflist", "is_right"),
    [
        ("10-calico.conflist", default_conflist(), True),
        ("10-calico.conf", default_conflist(), False),
        ("10-calico.conf", ONE.encode(), True),
        ("10-calico.json", ONE.encode(), True),
        ("10-calico.conflist", ONE.encode(), False),
        ("../10-calico.conflist", default_conflist(), False),
        (".conflist", default_conflist(), False),
    ],
)
def test_the_name_must_be_one_that_runtimes_read_this_configuration_from(name, conflist, is_right):
    if is_right:
        check_name(name, conflist)
        return
    with pytest.raises(ConfigError, match="CNI_CONF_NAME"):
        check_name(name, conflist)


def test_whose_network_a_configuration_is():
    assert names_plugin(default_conflist(), "calico")
    assert names_plugin(ONE.encode(), "calico")
    for other in (b"", b"{", b"[]", b'{"plugins": [{"type": "bridge"}]}', b'{"plugins": "calico"}'):
        assert not names_plugin(other, "calico")
