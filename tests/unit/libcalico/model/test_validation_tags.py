"""libcalico.model.validation_tags: the field checks of datamodel 4.3, good and bad values each."""

from __future__ import annotations

import pytest

from libcalico.model import validation_tags as tags

VALUES = [
    (tags.NAME, ["a", "a.b-c"], ["", "A", "a_b", "a."]),
    (tags.CONTAINER_ID, ["Ab-1"], ["-a", "a_b"]),
    (tags.SELECTOR, ["", "has(a)"], ["a", "(", "a == 'b"]),
    (tags.NET, ["10.0.0.1", "10.0.0.0/8", "fd00::/8"], ["10.0.0.1/8", "x", "10.0.0.0/33"]),
    (tags.NET_V4, ["10.0.0.0/8"], ["fd00::/8"]),
    (tags.NET_V6, ["fd00::/8", "fd00::1"], ["10.0.0.0/8"]),
    (tags.CIDR, ["10.0.0.1/8", "fd00::1"], ["10.0.0", "10.0.0.0/255.0.0.0", "fe80::1%eth0"]),
    (tags.CIDR_V4, ["10.0.0.1/8"], ["fd00::1/8"]),
    (tags.CIDR_V6, ["fd00::1/8"], ["10.0.0.1/8"]),
    (tags.IP, ["10.0.0.1", "fd00::1"], ["10.0.0.1/32", "010.0.0.1"]),
    (tags.IPV4, ["10.0.0.1"], ["fd00::1"]),
    (tags.IPV6, ["fd00::1"], ["10.0.0.1"]),
    (tags.MAC, ["ee:ee:ee:ee:ee:ee", "EE-EE-EE-EE-EE-EE", "eeee.eeee.eeee"], ["ee:ee", "gg" * 6]),
    (tags.INTERFACE, ["*", "eth0.100", "cali_1"], ["", "eth*", "a" * 16, "a b"]),
    (tags.BGP_FILTER_INTERFACE, ["*", "eth*"], ["a" * 16, "a/b"]),
    (tags.IGNORED_INTERFACE, ["eth*"], ["*", "a" * 16]),
    (tags.IFACE_FILTER, ["docker+", "a:b"], ["a*", "a" * 16]),
    (tags.PORT_NAME, ["http", "a-1"], ["", "80", "HTTP", "a--b", "-a", "a-", "a" * 16]),
    (tags.IP_PORT, ["10.0.0.1", "10.0.0.1:1", "[fd00::1]:65535"], ["fd00::1:x", "10.0.0.1:65536"]),
    (tags.REACHABLE_BY, ["10.0.0.1"], ["10.0.0.0/8"]),
    (tags.KEY_VALUE_LIST, ["", "a=b", "a=b,c=,", " a=b"], ["a", "=b", "a-b=c"]),
    (tags.PROMETHEUS_HOST, ["::1", "my_host"], ["", "a b", "a" * 65]),
    (tags.IP_TYPE, ["InternalIP"], ["internalip"]),
]


@pytest.mark.parametrize(
    ("tag", "value", "expected"),
    [
        pytest.param(tag, value, expected, id=f"{tag.name} {value!r}")
        for tag, good, bad in VALUES
        for values, expected in ((good, True), (bad, False))
        for value in values
    ],
)
def test_a_value(tag, value, expected):
    assert tag.accepts(value) is expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        r"^((en|wl|ww|sl|ib)[Pcopsvx].*|(eth|wlan|wwan).*)",
        "a|b",
        "(?i)eth",
        "eth(?i)0",
        "(?P<n>a)(?:b)(?<m>c)",
        r"\d+\.\w*?\z",
        "[[:alpha:]_]+",
        r"\pL\p{Greek}\x{1F600}",
        r"\Q.*+\E",
        "a{2,1000}",
        "[*+]+",
        r"\*+",
        "a{,5}",
        "[]a]",
        r"\\1",
    ],
)
def test_what_re2_compiles(text):
    assert tags.is_go_regexp(text)


@pytest.mark.parametrize(
    "text",
    [
        "(",
        "a)",
        "[a",
        "*a",
        "a**",
        "a*+",
        "a++",
        "(?=a)",
        "(?!a)",
        "(?<=a)b",
        "(?<!a)b",
        "(?>a)",
        r"(a)\1",
        "(?P=n)",
        "a{1001}",
        "a{2,1}",
        r"\y",
        "a\\",
    ],
)
def test_what_re2_does_not_compile(text):
    assert not tags.is_go_regexp(text)
