"""Which node are we? One rule for every process of a node.

Layer: runtime edge. Used by calico-node, felix, confd and the CNI plugin: processes that disagree
would each work for another Node object.

    NODENAME  >  the nodename file that calico-node wrote  >  HOSTNAME  >  the host's own name

Only what is taken from the host is put in lower case; a name that somebody chose is used as it is,
without surrounding white space (reference/datamodel.md 1.7).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from libcalico.model.names import node_name
from libcalico.runtime import paths


def nodename_file(environ: Mapping[str, str] | None = None) -> Path:
    """Written by calico-node, read by the CNI plugin and at the next start."""
    return paths.lib_dir(environ) / "nodename"


def resolve(environ: Mapping[str, str], *, file: Path | None = None, hostname: str = "") -> str:
    """`file` and `hostname` replace those places where a caller has other ones (CNI's
    `nodename_file` and `hostname` members)."""
    named = environ.get("NODENAME", "").strip()
    if named:
        return named
    stored = _stored(file or nodename_file(environ))
    if stored:
        return stored
    given = environ.get("HOSTNAME", "").strip() or os.uname().nodename
    return hostname.strip() or node_name(given)


def _stored(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""
