"""The version of this suite, as every daemon and the command line report it.

Layer: runtime. `VERSION` carries Calico's leading "v", because version checks compare that form.
`GIT_COMMIT` stays "unknown" until a package build fills it in.
"""

from __future__ import annotations

from importlib import metadata


def _installed() -> str:
    try:
        return "v" + metadata.version("brindle")
    except metadata.PackageNotFoundError:
        # Run from a checkout that was never installed.
        return "v0.0.0"


VERSION = _installed()
GIT_COMMIT = "unknown"
