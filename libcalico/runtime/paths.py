"""Where files live, and how every place can be moved.

Layer: runtime edge. Several nodes run on one machine in network namespaces, each with its own
directories, so nobody spells a path out: they ask here.
  CALICO_RUN_DIR  /var/run/calico   sockets, pid files, rendered configuration, endpoint status
  CALICO_LIB_DIR  /var/lib/calico   nodename, mtu, cni-datastore.cfg, cni-queue, cni-journal
  CALICO_LOG_DIR  /var/log/calico   logs and state dumps
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def run_dir(environ: Mapping[str, str] | None = None) -> Path:
    return _place("CALICO_RUN_DIR", "/var/run/calico", environ)


def lib_dir(environ: Mapping[str, str] | None = None) -> Path:
    return _place("CALICO_LIB_DIR", "/var/lib/calico", environ)


def log_dir(environ: Mapping[str, str] | None = None) -> Path:
    return _place("CALICO_LOG_DIR", "/var/log/calico", environ)


def cni_socket(environ: Mapping[str, str] | None = None) -> Path:
    """The unix socket on which felix serves the CNI client."""
    return run_dir(environ) / "cni.sock"


def bgp_dir(environ: Mapping[str, str] | None = None) -> Path:
    """exabgp.conf and speaker.json (written by confd), calico-bgp's pid file and control socket."""
    return run_dir(environ) / "bgp"


def cni_datastore_file(environ: Mapping[str, str] | None = None) -> Path:
    """How to reach the datastore, for the CNI executable while felix is down (0600)."""
    return lib_dir(environ) / "cni-datastore.cfg"


def cni_queue_dir(environ: Mapping[str, str] | None = None) -> Path:
    """DELs that wait for the datastore (0700)."""
    return lib_dir(environ) / "cni-queue"


def cni_journal_dir(environ: Mapping[str, str] | None = None) -> Path:
    """Pods made while the datastore was away (0700)."""
    return lib_dir(environ) / "cni-journal"


def _place(variable: str, default: str, environ: Mapping[str, str] | None) -> Path:
    found = (os.environ if environ is None else environ).get(variable)
    return Path(found) if found else Path(default)
