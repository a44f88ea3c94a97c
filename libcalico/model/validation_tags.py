"""The field checks of datamodel 4.3, by the tag names that appear in error texts.

Layer: libcalico.model, pure. Users: the validation_* tables.

Every check takes one value of the type the member has and answers yes or no; it never raises.
Checks of values that repeat across a cluster (names, labels) are cached.

Source: reference/datamodel.md 4.3; Calico LCG/validator/v3/validator.go.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

from libcalico import net
from libcalico.errors import SelectorSyntaxError
from libcalico.model.validation_rules import Tag
from libcalico.selector import parse

LABEL_FORMAT = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
SUBDOMAIN_FORMAT = LABEL_FORMAT + r"(\." + LABEL_FORMAT + ")*"
_NAME = re.compile(SUBDOMAIN_FORMAT)
_DNS_LABEL = re.compile(LABEL_FORMAT)
_CONTAINER_ID = re.compile("[a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])?")
_INTERFACE = re.compile("[a-zA-Z0-9_.-]{1,15}")
_INTERFACE_GLOB = re.compile("[a-zA-Z0-9_.*-]{1,15}")
_INTERFACE_FILTER = re.compile("[a-zA-Z0-9:._+-]{1,15}")
_PROMETHEUS_HOST = re.compile("[a-zA-Z0-9:._+-]{1,64}")
_KEY_VALUE = re.compile(r"\s*\w+=.*", re.ASCII | re.DOTALL)
_MAC = re.compile(
    "([0-9a-fA-F]{2}([:-])){5}[0-9a-fA-F]{2}|([0-9a-fA-F]{2}([:-])){7}[0-9a-fA-F]{2}"
    "|([0-9a-fA-F]{4}[.]){2}[0-9a-fA-F]{4}|([0-9a-fA-F]{4}[.]){3}[0-9a-fA-F]{4}"
    "|([0-9a-fA-F]{2}([:-])){19}[0-9a-fA-F]{2}|([0-9a-fA-F]{4}[.]){9}[0-9a-fA-F]{4}"
)
_V4_PORT = re.compile(r"([0-9]+.[0-9]+.[0-9]+.[0-9]+):([0-9]+)")
_V6_PORT = re.compile(r"\[([0-9a-fA-F:.]+)\]:([0-9]+)")
_PORT_NAME = re.compile("[-a-z0-9]{1,15}")

_QUALIFIED_FORMAT = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_LABEL_VALUE_FORMAT = f"({_QUALIFIED_FORMAT})?"
_QUALIFIED = re.compile(_QUALIFIED_FORMAT)
_LABEL_VALUE = re.compile(_LABEL_VALUE_FORMAT)
_MUST_CONSIST = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with"
    " an alphanumeric character"
)
_QUALIFIED_ERROR = (
    f"{_MUST_CONSIST} (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is"
    f" '{_QUALIFIED_FORMAT}')"
)
_LABEL_VALUE_ERROR = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.',"
    " and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or"
    f" '12345', regex used for validation is '{_LABEL_VALUE_FORMAT}')"
)
_SUBDOMAIN_ERROR = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or"
    " '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used"
    f" for validation is '{SUBDOMAIN_FORMAT}')"
)
MAX_SUBDOMAIN_BYTES = 253
MAX_LABEL_BYTES = 63


@lru_cache(maxsize=8192)
def is_name(value: str) -> bool:
    return _NAME.fullmatch(value) is not None


def is_dns_label(value: str) -> bool:
    return len(value) <= MAX_LABEL_BYTES and _DNS_LABEL.fullmatch(value) is not None


def is_selector(value: str) -> bool:
    try:
        parse(value)
    except SelectorSyntaxError:
        return False
    return True


@lru_cache(maxsize=1024)
def network_of(value: str) -> net.Network | None:
    """An address or CIDR, host bits masked off; None when it is neither."""
    try:
        return net.parse_cidr_or_ip(value)
    except net.AddressError:
        return None


def address_of(value: str) -> net.Address | None:
    try:
        return net.parse_ip(value)
    except net.AddressError:
        return None


def cidr_of(value: str) -> net.Network | None:
    """A CIDR, host bits masked off; a bare address is none."""
    try:
        return net.parse_cidr(value)
    except net.AddressError:
        return None


def _is_strict(value: str, version: int | None = None) -> bool:
    network = network_of(value)
    if network is None or version not in (None, network.version):
        return False
    if network.prefixlen == network.max_prefixlen:
        return True
    return address_of(value.partition("/")[0]) == network.network_address


def _is_cidr(value: str, version: int | None = None) -> bool:
    network = network_of(value)
    return network is not None and version in (None, network.version)


def _is_ip(value: str, version: int | None = None) -> bool:
    address = address_of(value)
    return address is not None and version in (None, address.version)


@lru_cache(maxsize=8192)
def is_interface(value: str) -> bool:
    return value == "*" or _INTERFACE.fullmatch(value) is not None


def is_port_name(value: str) -> bool:
    """An IANA service name: RFC 6335 5.1."""
    return (
        _PORT_NAME.fullmatch(value) is not None
        and re.search("[a-z]", value) is not None
        and "--" not in value
        and not value.startswith("-")
        and not value.endswith("-")
    )


def split_peer_ip(value: str) -> net.Address | None:
    """The address of `IP`, `v4:port` or `[v6]:port`; None when it is none of them."""
    found = _V4_PORT.fullmatch(value) or _V6_PORT.fullmatch(value)
    if not found:
        return address_of(value)
    port = int(found[2]) if len(found[2]) < 6 else 0
    return address_of(found[1]) if 1 <= port <= 65535 else None


def _is_key_value_list(value: str) -> bool:
    items = value.split(",") if value.strip() else []
    return all(not item or _KEY_VALUE.fullmatch(item) for item in items)


def _is_wireguard_key(value: str) -> bool:
    try:
        return len(base64.b64decode(value, validate=True)) == 32
    except (binascii.Error, ValueError):
        return False


@lru_cache(maxsize=8192)
def qualified_name_problems(value: str) -> tuple[str, ...]:
    """What is wrong with a label or annotation key, in Kubernetes' words."""
    parts = value.split("/")
    if len(parts) > 2:
        return (
            f"a qualified name {_QUALIFIED_ERROR} with an optional DNS subdomain prefix and '/'"
            " (e.g. 'example.com/MyName')",
        )
    problems: list[str] = []
    if len(parts) == 2:
        problems += (f"prefix part {problem}" for problem in _subdomain_problems(parts[0]))
    name = parts[-1]
    if not name:
        problems.append("name part must be non-empty")
    elif len(name) > MAX_LABEL_BYTES:
        problems.append(f"name part must be no more than {MAX_LABEL_BYTES} bytes")
    if not _QUALIFIED.fullmatch(name):
        problems.append(f"name part {_QUALIFIED_ERROR}")
    return tuple(problems)


def _subdomain_problems(value: str) -> Iterable[str]:
    if not value:
        yield "must be non-empty"
        return
    if len(value) > MAX_SUBDOMAIN_BYTES:
        yield f"must be no more than {MAX_SUBDOMAIN_BYTES} bytes"
    if not is_name(value):
        yield _SUBDOMAIN_ERROR


@lru_cache(maxsize=8192)
def label_value_problems(value: str) -> tuple[str, ...]:
    """What is wrong with a label value, in Kubernetes' words."""
    problems: list[str] = []
    if len(value) > MAX_LABEL_BYTES:
        problems.append(f"must be no more than {MAX_LABEL_BYTES} bytes")
    if not _LABEL_VALUE.fullmatch(value):
        problems.append(_LABEL_VALUE_ERROR)
    return tuple(problems)


def _are_labels(labels: Mapping[str, str]) -> bool:
    return not any(
        qualified_name_problems(key) or label_value_problems(value) for key, value in labels.items()
    )


# What RE2 has not, once character classes and escapes are gone.
_NOT_RE2 = re.compile(r"\(\?(?:[=!>#(]|<[=!]|P[=>])|[*+?}][*+]|[*+?}]\?[?*+]")
_BACK_REFERENCE = re.compile(r"\\[1-9]")
_ESCAPE = re.compile(r"\\(?:[pP](?:\{\^?\w+\}|\w)|x\{[0-9a-fA-F]+\}|x[0-9a-fA-F]{2}|.)", re.DOTALL)
_CLASS = re.compile(r"\[\^?\]?(?:\[:\^?\w+:\]|[^\]])*\]")
_INLINE_FLAGS = re.compile(r"\(\?[imsU]*(?:-[imsU]+)?(?P<end>[:)])")
_NAMED_GROUP = re.compile(r"\(\?P?<[A-Za-z_]\w*>", re.ASCII)
_REPEAT = re.compile(r"\{(\d+)(?:,(\d*))?\}")
_LITERAL = re.compile(r"\\Q.*?(?:\\E|$)", re.DOTALL)
_BAD_ESCAPE = re.compile(r"\\[^aftnrvdswDSWbBAzpPxC0-7QE\W_]", re.ASCII)
_MAX_REPEAT = 1000


def is_go_regexp(text: str) -> bool:
    """Whether Go's regexp (RE2) compiles it: no look-around, no back references, repeats <= 1000.

    Python's engine judges the structure, after what the two spell differently is replaced.
    """
    bare = _LITERAL.sub("q", text)
    if _BACK_REFERENCE.search(bare.replace("\\\\", "")) or _BAD_ESCAPE.search(
        bare.replace("\\\\", "")
    ):
        return False
    bare = _ESCAPE.sub("e", bare)
    bare = _CLASS.sub("c", bare)
    bare = _INLINE_FLAGS.sub(lambda found: "(?:" if found["end"] == ":" else "", bare)
    bare = _NAMED_GROUP.sub("(", bare)
    if _NOT_RE2.search(bare) or any(
        int(bound) > _MAX_REPEAT for found in _REPEAT.findall(bare) for bound in found if bound
    ):
        return False
    try:
        re.compile(bare)
    except (re.error, OverflowError, RecursionError):
        return False
    return True


NAME = Tag("name", is_name)
CONTAINER_ID = Tag("containerID", lambda value: _CONTAINER_ID.fullmatch(value) is not None)
SELECTOR = Tag("selector", is_selector)
NET = Tag("net", _is_strict)
NET_V4 = Tag("netv4", lambda value: _is_strict(value, 4))
NET_V6 = Tag("netv6", lambda value: _is_strict(value, 6))
CIDR = Tag("cidr", _is_cidr)
CIDR_V4 = Tag("cidrv4", lambda value: _is_cidr(value, 4))
CIDR_V6 = Tag("cidrv6", lambda value: _is_cidr(value, 6))
CIDRS = Tag("cidrs", lambda values: all(map(_is_cidr, values)))
IP = Tag("ip", _is_ip)
IPV4 = Tag("ipv4", lambda value: _is_ip(value, 4))
IPV6 = Tag("ipv6", lambda value: _is_ip(value, 6))
MAC = Tag("mac", lambda value: _MAC.fullmatch(value) is not None)
INTERFACE = Tag("interface", is_interface)
BGP_FILTER_INTERFACE = Tag(
    "bgpFilterInterface", lambda value: _INTERFACE_GLOB.fullmatch(value) is not None
)
IGNORED_INTERFACE = Tag(
    "ignoredInterface",
    lambda value: value != "*" and _INTERFACE_GLOB.fullmatch(value) is not None,
)
IFACE_FILTER = Tag("ifaceFilter", lambda value: _INTERFACE_FILTER.fullmatch(value) is not None)
IFACE_FILTER_SLICE = Tag(
    "ifaceFilterSlice", lambda values: all(_INTERFACE_FILTER.fullmatch(value) for value in values)
)
PORT_NAME = Tag("portName", is_port_name)
IP_PORT = Tag("IP:port", lambda value: split_peer_ip(value) is not None)
REACHABLE_BY = Tag("reachableBy", _is_ip)
LABELS = Tag("labels", _are_labels)
REGEXP = Tag("regexp", is_go_regexp)
KEY_VALUE_LIST = Tag("keyValueList", _is_key_value_list)
PROMETHEUS_HOST = Tag("prometheusHost", lambda value: _PROMETHEUS_HOST.fullmatch(value) is not None)
WIREGUARD_PUBLIC_KEY = Tag("wireguardPublicKey", _is_wireguard_key)
IP_TYPE = Tag("ipType", frozenset({"CalicoNodeIP", "InternalIP", "ExternalIP"}).__contains__)
BPF_LOG_FILTERS = Tag(
    "bpfLogFilters", lambda filters: all(_INTERFACE.fullmatch(key) for key in filters)
)
CREATE_DEFAULT_HOST_ENDPOINT = Tag(
    "createDefaultHostEndpoint", frozenset({"Enabled", "Disabled"}).__contains__
)
