"""Requests as no runtime sends them: pairs of environment and standard input, from a seed.

Used by tests/netns/test_cni_fuzz.py. Every pair begins as a valid request of one of a few
containers and is then spoiled in up to three places; some stay as they are, so that pods come and
go meanwhile.
Nothing here makes an address last (ipam.sticky) or asks another machine (readiness_gates).
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from cni import netconf
from cni.pod_annotations import PREFIX

Environ = dict[bytes, bytes]
Path = tuple[str, ...]
CONTAINERS = 40
VERBS = ("ADD", "ADD", "ADD", "DEL", "DEL", "CHECK", "GC", "STATUS", "VERSION")
VERSIONS = ("0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0", "1.1.0")
ANNOTATIONS = (
    *("ipAddrs", "ipAddrsNoIpam", "ipv4pools", "ipv6pools", "ipFamilies", "hwAddr"),
    *("floatingIPs", "allowedSourcePrefixes", "stickyIPs"),
)
# Written by hand into the JSON: Python's own encoder refuses them, or takes them for a mistake.
_RAW = {
    "@deep": b"[" * 200 + b"]" * 200,
    "@deeper": b'{"a":' * 900 + b"1" + b"}" * 900,
    "@abyss": b"[" * 100_000,
    "@nan": b"NaN",
    "@huge": b"9" * 5000,
    "@half": b'"\\ud800"',
    "@nul": b'"\\u0000"',
    "@latin": b'"\xe9"',
}
_JUNK: tuple[Any, ...] = (
    *(None, True, 0, -1, 1.5, 2**63, 10**300, "", "x", " ", "/", "calico", "a" * 5000),
    *([], [None], [[]], ["x"], [{}], [{"key": 1}], {}, {"": {}}, {"type": 7}, ["10.65.0.1"] * 9),
    *_RAW,
)
# What some member takes, and others do not: what is refused at once tries nothing.
_PLAUSIBLE: tuple[Any, ...] = (
    *("10.65.0.9", "10.65.0.9/32", "fd65::9", "::/0", "02:00:00:00:00:01", "true", "k8s", "net"),
    *(
        "calico-ipam",
        "no-such-plugin",
        "../calico",
        "0.1.0",
        "0.3.1",
        "9.9.9",
        "v4",
        "/etc/hostname",
    ),
    *(1, 1400, True, ["v4"], ["fd65::/112"], ["10.65.0.9/24", "fd65::9"], [{"dst": "10.0.0.0/8"}]),
    '["10.65.0.9"]',
)
# What once got no answer, or a wrong one: a delegate that is this plugin waited for itself, a file
# name was too long, NaN came back as an answer, and a bad prevResult was refused when the pod was
# connected already.
_KNOWN: tuple[tuple[Path, Any], ...] = (
    (("ipam", "type"), "calico"),
    (("ipam", "type"), "a" * 5000),
    (("prevResult", "dns", "search"), "@nan"),
    (("prevResult", "dns", "search"), "@deep"),
    (("prevResult", "dns", "search"), "@deeper"),
    (("mode",), "@deeper"),
    (("prevResult", "interfaces"), "calico"),
)
_TEXTS = (
    *(b"", b" ", b"x", b"-", b"..", b"../../etc", b"\xff\xfe", b"\n", b"%d", b"=", b";", b"{}"),
    *(b"a" * 16, b"a" * 300, b"a" * 60_000, "\u00e9".encode(), b"\x1b[2J", b"lo"),
)
_TEXTS_BY_NAME = {
    b"CNI_COMMAND": (b"add", b"ADD ", b"HOP", b"\xff"),
    b"CNI_CONTAINERID": (b"c-", b"c/", b"\xff"),
    b"CNI_IFNAME": (b"eth%d", b"eth 0", b"a/b", b"e\xc3\xa9", b"all", b"default"),
    b"CNI_PATH": (b"/", b"\xff:/no/such", b":", b"a" * 3000),
}
_ARGS = (
    *(b"IgnoreUnknown", b"IgnoreUnknown=1;;", b"=", b"=;=", b"a=b=c", b"X=1", b";" * 3000),
    *(b"IgnoreUnknown=1;IP=10.65.0.300", b"IgnoreUnknown=1;IP=\xff", b"IgnoreUnknown=1;MAC=x"),
    *(b"IgnoreUnknown=1;IP=203.0.113.9", b"IgnoreUnknown=1;MAC=ff:ff:ff:ff:ff:ff"),
    b"IgnoreUnknown=1;K8S_POD_NAMESPACE=../x;K8S_POD_NAME=web",
    b"IgnoreUnknown=1;K8S_POD_NAMESPACE=prod;K8S_POD_NAME=" + b"a" * 400,
    b"IgnoreUnknown=1;K8S_POD_NAMESPACE=prod;K8S_POD_NAME=\xff\n",
)


@dataclass
class Pair:
    """`is_python` chooses the client."""

    plugin: str
    environ: Environ
    config: dict[str, Any]
    stdin: bytes = b""
    is_python: bool = False

    @property
    def verb(self) -> bytes:
        return self.environ.get(b"CNI_COMMAND", b"")


@dataclass
class Places:
    """Where things are: `pods` are the namespaces' paths, `odd` paths that are none of a pod."""

    bin_dir: str
    pods: Sequence[str]
    odd: Sequence[str]
    _paths: tuple[Path, ...] = field(init=False)

    def __post_init__(self) -> None:
        self._paths = tuple(_paths(_everything()))

    def pairs(self, seed: int, count: int, python_every: int) -> Iterator[Pair]:
        draw = random.Random(seed)
        for number, (path, junk) in enumerate(_KNOWN[:count]):
            pair = self._valid(draw, "ADD", number)
            _put(pair.config, path, junk)
            pair.stdin = _encoded(pair.config)
            yield pair
        for number in range(len(_KNOWN), count):
            pair = self._valid(draw, draw.choice(VERBS), draw.randrange(CONTAINERS))
            pair.is_python = number % python_every == 0
            spoil = draw.choice((0, 1, 1, 1, 2, 3))
            # Every member is spoiled, in turn.
            if spoil:
                junk = draw.choice(draw.choice((_JUNK, _PLAUSIBLE)))
                _put(pair.config, self._paths[number % len(self._paths)], junk)
            for _ in range(spoil - 1):
                self._spoil_environ(draw, pair)
            pair.stdin = _encoded(pair.config)
            if spoil == 2 and draw.random() < 0.4:
                pair.stdin = _broken(draw, pair.stdin)
            yield pair

    def _valid(self, draw: random.Random, verb: str, number: int) -> Pair:
        plugin = draw.choice(("calico", "calico", "calico-ipam"))
        environ = {
            b"CNI_COMMAND": verb.encode(),
            b"CNI_CONTAINERID": b"c%d" % number,
            b"CNI_NETNS": self.pods[number % len(self.pods)].encode(),
            b"CNI_IFNAME": b"eth%d" % (number // len(self.pods)),
            b"CNI_PATH": self.bin_dir.encode(),
            b"CNI_ARGS": b"IgnoreUnknown=1",
        }
        if number % 2:
            environ[b"CNI_ARGS"] += b";K8S_POD_NAMESPACE=prod;K8S_POD_NAME=p%d" % number
        config: dict[str, Any] = {
            "cniVersion": draw.choice(VERSIONS),
            "name": "net",
            "type": "calico",
            "ipam": {"type": "calico-ipam", "assign_ipv4": "true", "assign_ipv6": "true"},
        }
        if verb == "GC":
            config["cni.dev/valid-attachments"] = [
                {"containerID": f"c{n}", "ifname": f"eth{n // len(self.pods)}"}
                for n in range(CONTAINERS)
            ]
        if verb == "CHECK":
            config["prevResult"] = _everything()["prevResult"]
        return Pair(plugin, environ, config)

    def _spoil_environ(self, draw: random.Random, pair: Pair) -> None:
        name = draw.choice(sorted(pair.environ))
        match draw.randrange(5):
            case 0:
                del pair.environ[name]
            case 1:
                pair.environ[name] = draw.choice(_TEXTS + _TEXTS_BY_NAME.get(name, ()))
            case 2:
                pair.environ[b"CNI_NETNS"] = draw.choice(self.odd).encode()
            case 3:
                pair.environ[b"CNI_ARGS"] = draw.choice(_ARGS)
            case _:
                pair.environ[b"CNI_" + draw.choice((b"", b"\xff", b"X" * 9000))] = b"\xff=\n"


def _everything() -> dict[str, Any]:
    """A configuration that has every member this plugin knows."""
    runtime = {
        "mac": "02:00:00:00:00:01",
        "ips": ["10.65.0.77"],
        "dns": {"servers": [], "searches": [], "options": [], "domain": "x"},
        "bandwidth": {"ingressRate": 1, "ingressBurst": 1, "egressRate": 1, "egressBurst": 1},
        "portMappings": [],
        "io.kubernetes.cri.pod-annotations": {PREFIX + name: "[]" for name in ANNOTATIONS},
    }
    result = {
        "cniVersion": "1.0.0",
        "interfaces": [{"name": "eth0"}],
        "ips": [{"address": "10.1.0.1/32", "interface": 0}],
        "routes": [{"dst": "0.0.0.0/0"}],
        "dns": {"search": []},
        "ip4": {},
        "ip6": {},
    }
    network_info = {"labels": {"labels": []}}
    names = (*netconf._TEXTS, *netconf._NUMBERS, *netconf._BOOLEANS)
    return {
        **dict.fromkeys(("cniVersion", "name", "mtu", "num_queues", "nodename", "hostname"), 1),
        **dict.fromkeys((*names, "nodename_file", "nodename_file_optional", "device_type"), 1),
        **dict.fromkeys(("require_mtu_file", "readiness_gates", "include_default_routes"), 1),
        **{name: dict.fromkeys(members, 1) for name, members in netconf._TEXTS_BY_MEMBER.items()},
        "policy": {"type": "k8s"},
        "dataplane_options": {"type": "linux"},
        "container_settings": {"allow_ip_forwarding": True},
        "feature_control": {"ip_addrs_no_ipam": True, "floating_ips": True},
        "args": {
            "cni": {"ips": [], "labels": []},
            "org.apache.mesos": {"network_info": network_info},
        },
        "ipam": dict.fromkeys(
            (*("type", "assign_ipv4", "assign_ipv6", "ipv4_pools", "ipv6_pools"), "routes"), 1
        ),
        "runtimeConfig": runtime,
        "prevResult": result,
        "cni.dev/valid-attachments": [],
    }


def _paths(value: dict[str, Any], above: Path = ()) -> Iterator[Path]:
    for name, member in value.items():
        yield (*above, name)
        if isinstance(member, dict):
            yield from _paths(member, (*above, name))


def _put(config: dict[str, Any], path: Path, junk: Any) -> None:
    at = config
    for name in path[:-1]:
        at = at.setdefault(name, {})
    at[path[-1]] = copy.deepcopy(junk)
    if path[-1].startswith(PREFIX) and not isinstance(junk, str):
        at[path[-1]] = json.dumps(junk)


def _encoded(config: dict[str, Any]) -> bytes:
    text = json.dumps(config).encode()
    for name, raw in _RAW.items():
        text = text.replace(b'"%s"' % name.encode(), raw)
    return text


def _broken(draw: random.Random, text: bytes) -> bytes:
    at = draw.randrange(len(text))
    return draw.choice((
        *(b"", b"null", b"[]", b"7", b'"x"', b"\xff", b"\0", text * 2, text[:at], text[at:]),
        *(text[:at] + b"\0" + text[at:], text + b" " * (1 << 20), b"\xef\xbb\xbf" + text),
        text.decode("latin-1").encode("utf-16"),
    ))  # fmt: skip
