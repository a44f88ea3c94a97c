"""The CNI protocol without I/O: environment and standard input in, an answer out.

Layer: pure. Used by cni.agent (served over a socket) and cni.standalone (run in process).
Source: CNI SPEC 1.1.0; containernetworking/cni pkg/skel for the order of the checks.

Which variable each verb needs is a table; which versions a verb exists in is another. Every
refusal is a CniError with the specification's code, and becomes the error JSON of the answer.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from libcalico.errors import SuiteError

SUPPORTED_VERSIONS = ("0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
# The specification's rule for a configuration without cniVersion.
ASSUMED_VERSION = "0.1.0"


class Code(enum.IntEnum):
    """CNI SPEC 1.1.0 "Error"; 100 and above are the plugin's own."""

    INCOMPATIBLE_VERSION = 1
    UNSUPPORTED_FIELD = 2
    UNKNOWN_CONTAINER = 3
    INVALID_ENVIRONMENT = 4
    IO_FAILURE = 5
    DECODE_FAILURE = 6
    INVALID_CONFIG = 7
    INVALID_NETNS = 8
    TRY_AGAIN_LATER = 11
    PLUGIN_NOT_AVAILABLE = 50
    LIMITED_CONNECTIVITY = 51
    NETWORKING_FAILED = 100
    INTERNAL = 999


class CniError(SuiteError):
    """An answer that is an error. `details` may be long; `msg` is one line."""

    def __init__(self, code: int, msg: str, details: str = "") -> None:
        super().__init__(code, msg, details)
        self.code, self.msg, self.details = int(code), msg, details

    def __str__(self) -> str:
        return self.msg + (f"; {self.details}" if self.details else "")


class Verb(enum.Enum):
    ADD = "ADD"
    DEL = "DEL"
    CHECK = "CHECK"
    GC = "GC"
    STATUS = "STATUS"
    VERSION = "VERSION"


_REQUIRED = {
    Verb.ADD: ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"),
    Verb.CHECK: ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"),
    Verb.DEL: ("CNI_CONTAINERID", "CNI_IFNAME", "CNI_PATH"),
    Verb.GC: ("CNI_PATH",),
    Verb.STATUS: ("CNI_PATH",),
    Verb.VERSION: (),
}
_SINCE = {Verb.CHECK: (0, 4, 0), Verb.GC: (1, 1, 0), Verb.STATUS: (1, 1, 0)}
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.\-]*")
_IFNAME_MAX = 15
# Far above what a plugin chain writes, far below where anything here runs out of stack.
_MAX_DEPTH = 100


@dataclass(frozen=True, slots=True)
class Invocation:
    """What a runtime executed: the plugin's name, its CNI_* variables, its standard input."""

    plugin: str
    environ: Mapping[str, str]
    stdin: bytes


@dataclass(frozen=True, slots=True)
class Request:
    """A checked invocation. `config` is the network configuration as decoded JSON, names as given;
    `version` the result format the runtime asked for."""

    plugin: str
    verb: Verb
    container_id: str
    netns: str
    ifname: str
    path: str
    args: Mapping[str, str]
    config: Mapping[str, object]
    version: str
    environ: Mapping[str, str] = field(default_factory=dict)
    stdin: bytes = b""

    @property
    def network(self) -> str:
        return str(self.config.get("name", ""))


@dataclass(frozen=True, slots=True)
class Answer:
    """What the executable prints and returns. Standard output holds nothing but the result."""

    exit_code: int
    stdout: bytes = b""
    stderr: bytes = b""


def parse(invocation: Invocation) -> Request:
    """Check in the reference implementation's order: command, variables, their form, stdin.

    Errors: CniError."""
    environ = invocation.environ
    verb = _verb(environ.get("CNI_COMMAND", ""))
    missing = [name for name in _REQUIRED[verb] if not environ.get(name)]
    if missing:
        listed = ",".join(missing)
        raise CniError(Code.INVALID_ENVIRONMENT, f"required env variables [{listed}] missing")
    if verb in (Verb.ADD, Verb.CHECK, Verb.DEL):
        _check_container_id(environ["CNI_CONTAINERID"])
        _check_ifname(environ["CNI_IFNAME"])
    config = {} if verb is Verb.VERSION else _decode(invocation.stdin)
    version = _asked_version(config)
    if verb is not Verb.VERSION:
        _check_version(verb, version)
        _check_network_name(config)
    return Request(
        plugin=invocation.plugin,
        verb=verb,
        container_id=environ.get("CNI_CONTAINERID", ""),
        netns=environ.get("CNI_NETNS", ""),
        ifname=environ.get("CNI_IFNAME", ""),
        path=environ.get("CNI_PATH", ""),
        args=parse_args(environ.get("CNI_ARGS", "")),
        config=config,
        version=version,
        environ=environ,
        stdin=invocation.stdin,
    )


def _verb(command: str) -> Verb:
    if not command:
        raise CniError(Code.INVALID_ENVIRONMENT, "required env variables [CNI_COMMAND] missing")
    try:
        return Verb(command)
    except ValueError:
        raise CniError(Code.INVALID_ENVIRONMENT, f"unknown CNI_COMMAND: {command}") from None


def _check_container_id(container_id: str) -> None:
    if not _NAME.fullmatch(container_id):
        raise CniError(Code.INVALID_ENVIRONMENT, "invalid characters in containerID", container_id)


def _check_ifname(ifname: str) -> None:
    reason = ""
    if not ifname.isprintable():
        # Bytes that are no UTF-8 arrive as surrogates, which are not printable either.
        reason = "interface name contains characters that cannot be shown"
    elif len(ifname.encode()) > _IFNAME_MAX:
        reason = f"interface name is too long: more than {_IFNAME_MAX} characters"
    elif ifname in (".", ".."):
        reason = "interface name is . or .."
    elif any(char in "/:" or char.isspace() for char in ifname):
        reason = "interface name contains / or : or whitespace characters"
    elif "%" in ifname:
        # The kernel would take it for a pattern and choose a name.
        reason = "interface name contains %"
    if reason:
        raise CniError(Code.INVALID_ENVIRONMENT, reason, ifname)


def _decode(stdin: bytes) -> dict[str, object]:
    try:
        # A duplicate member is not an error in Go's decoder either: the last one wins.
        config = json.loads(stdin, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as err:
        raise CniError(Code.DECODE_FAILURE, f"error unmarshall network config: {err}") from None
    if not isinstance(config, dict):
        raise CniError(
            Code.DECODE_FAILURE, "error unmarshall network config: it is not a JSON object"
        )
    if stdin.count(b"[") + stdin.count(b"{") > _MAX_DEPTH and _depth(config) > _MAX_DEPTH:
        raise CniError(
            Code.DECODE_FAILURE,
            f"error unmarshall network config: nested deeper than {_MAX_DEPTH} levels",
        )
    return config


def _refuse_constant(name: str) -> None:
    """NaN and the infinities: Python's decoder takes them, and an answer would repeat them."""
    raise ValueError(f"{name} is not JSON")


def _depth(config: object) -> int:
    """Levels of objects and lists, without recursion."""
    depth, level = 0, [config]
    while level:
        below: list[object] = []
        for value in level:
            if isinstance(value, dict):
                below += value.values()
            elif isinstance(value, list):
                below += value
        depth += 1
        level = [value for value in below if isinstance(value, dict | list)]
    return depth


def _asked_version(config: Mapping[str, object]) -> str:
    version = config.get("cniVersion") or ASSUMED_VERSION
    if not isinstance(version, str):
        raise CniError(Code.DECODE_FAILURE, "cniVersion is not a string", repr(version))
    return version


def _check_version(verb: Verb, version: str) -> None:
    if version not in SUPPORTED_VERSIONS:
        listed = " ".join(SUPPORTED_VERSIONS)
        raise CniError(
            Code.INCOMPATIBLE_VERSION,
            "incompatible CNI versions",
            f'config is "{version}", plugin supports [{listed}]',
        )
    since = _SINCE.get(verb)
    if since and tuple(map(int, version.split("."))) < since:
        needed = ".".join(map(str, since))
        raise CniError(
            Code.INCOMPATIBLE_VERSION,
            f"config version does not allow {verb.value}",
            f"needs {needed}",
        )


def _check_network_name(config: Mapping[str, object]) -> None:
    name = config.get("name")
    if not name:
        raise CniError(Code.INVALID_CONFIG, "missing network name:", "")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise CniError(Code.INVALID_CONFIG, "invalid characters found in network name", str(name))


# CNI_ARGS keys this plugin understands; others need IgnoreUnknown (skel's LoadArgs).
_KNOWN_ARGS = frozenset(
    {
        "IgnoreUnknown",
        "IP",
        "MAC",
        "K8S_POD_NAME",
        "K8S_POD_NAMESPACE",
        "K8S_POD_INFRA_CONTAINER_ID",
        "K8S_POD_UID",
    }
)


def parse_args(text: str) -> dict[str, str]:
    """ "K=V;K=V" to a mapping. Errors: CniError for a pair without exactly one "=", and for an
    unknown key unless IgnoreUnknown is true."""
    found: dict[str, str] = {}
    for pair in text.split(";") if text else ():
        key, equals, value = pair.partition("=")
        if not equals or "=" in value:
            raise CniError(Code.INVALID_ENVIRONMENT, f"ARGS: invalid pair {json.dumps(pair)}")
        found[key] = value
    unknown = sorted(set(found) - _KNOWN_ARGS)
    if unknown and found.get("IgnoreUnknown", "").lower() not in ("1", "true", "t"):
        raise CniError(Code.INVALID_ENVIRONMENT, f"ARGS: unknown args {json.dumps(unknown)}")
    return found


def success(result: Mapping[str, object] | None = None) -> Answer:
    return Answer(0, b"" if result is None else _encode(result))


def failure(error: CniError, version: str = "") -> Answer:
    """The error JSON on stdout, non-zero exit. `version` "" leaves cniVersion to our newest."""
    body: dict[str, object] = {"cniVersion": version or SUPPORTED_VERSIONS[-1]}
    body |= {"code": error.code, "msg": error.msg}
    if error.details:
        body["details"] = error.details
    return Answer(1, _encode(body))


def version_answer(stdin: bytes) -> Answer:
    """VERSION answers whatever stdin holds, in the version asked for if there is one."""
    try:
        asked = json.loads(stdin).get("cniVersion", "")
    except (ValueError, AttributeError, RecursionError):
        asked = ""
    shown = asked if asked in SUPPORTED_VERSIONS else SUPPORTED_VERSIONS[-1]
    return success({"cniVersion": shown, "supportedVersions": list(SUPPORTED_VERSIONS)})


def error_version(stdin: bytes) -> str:
    """The version an error answer should carry when parsing did not get that far."""
    try:
        asked = json.loads(stdin).get("cniVersion", "")
    except (ValueError, AttributeError, RecursionError):
        return ""
    return asked if isinstance(asked, str) and asked in SUPPORTED_VERSIONS else ""


def _encode(value: Mapping[str, object]) -> bytes:
    return json.dumps(value, indent=4).encode() + b"\n"
