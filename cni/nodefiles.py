"""Facts of the node that CNI configurations expect in files: its name and the pods' MTU.

Layer: edge (files). Used by cni.add. Source: Calico cni-plugin/internal/pkg/utils
(DetermineNodename, MTUFromFile). The agent lives in felix, which knows both; a file that the
configuration names is believed all the same, so that a mistake shows instead of a pod that nobody
programs.
"""

from __future__ import annotations

import errno
from pathlib import Path

from cni.netconf import MAX_MTU, NodeConfig
from cni.skel import CniError, Code


def check_node_name(conf: NodeConfig, own: str) -> None:
    """nodename > nodename_file > felix's own name, the default file's content; `hostname` counts
    only where an optional file is missing. Errors: CniError when it is another node's name."""
    named = conf.name
    where = "nodename"
    if not named and conf.name_file:
        named, where = _name_in(conf), "nodename_file"
        if not named:
            named, where = conf.hostname, "hostname"
    if named and named != own:
        raise CniError(
            Code.INVALID_CONFIG, f'{where}: "{named}" is not this node, which felix calls "{own}"'
        )


def _name_in(conf: NodeConfig) -> str:
    try:
        return Path(conf.name_file).read_text(encoding="utf-8").strip()
    except FileNotFoundError as err:
        if conf.name_file_optional:
            return ""
        raise _unreadable("nodename_file", conf.name_file, err) from err
    except (OSError, UnicodeDecodeError, ValueError) as err:
        raise _unreadable("nodename_file", conf.name_file, err) from err


def pod_mtu(conf: NodeConfig, lib_dir: Path, own: int) -> int:
    """`mtu`, else what felix says now and writes into the mtu file, else that file's content (0:
    ask the kernel). The file is read only when it may say something else, or is required.

    Errors: CniError for a file that holds no MTU, or is missing and required."""
    known = conf.mtu_bytes or own
    if known and not conf.require_mtu_file:
        return known
    path = lib_dir / "mtu"
    try:
        text = path.read_text(encoding="utf-8").strip()
    except FileNotFoundError as err:
        if conf.require_mtu_file:
            raise CniError(
                Code.TRY_AGAIN_LATER, f"{path}: does not exist, and require_mtu_file is set"
            ) from err
        return own
    except (OSError, UnicodeDecodeError) as err:
        raise _unreadable("mtu", str(path), err) from err
    if not (text.isascii() and text.isdigit() and int(text) <= MAX_MTU):
        raise CniError(Code.INVALID_CONFIG, f"{path}: must hold an MTU", repr(text[:40]))
    return conf.mtu_bytes or int(text) or own


def _unreadable(member: str, path: str, err: Exception) -> CniError:
    reason = err.strerror if isinstance(err, OSError) and err.errno != errno.ENOENT else None
    said = reason or ("does not exist" if isinstance(err, FileNotFoundError) else str(err))
    return CniError(Code.INVALID_CONFIG, f"{member}: cannot read {path}: {said}")
