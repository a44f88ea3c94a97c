"""Certificates for the datastore connection: files or inline PEM, re-read when files change.

Layer: datastore edge. Used by `libcalico.datastore.etcd_link` (and typha's client later).
A changed file is taken over only when certificate and key belong together: a rotation replaces two
files one after the other, and a connection built in between would fail.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from libcalico.errors import ConfigError

Signature = tuple[tuple[str, int, int, int], ...]


@dataclass(frozen=True, slots=True)
class TlsMaterial:
    """PEM bytes; None where nothing is configured."""

    ca: bytes | None
    certificate: bytes | None
    key: bytes | None


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """Where certificates come from. Files and inline values must not be mixed (checked on reading
    the configuration). Without a CA the system's authorities decide."""

    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    ca: str = ""
    cert: str = ""
    key: str = ""

    def load(self) -> TlsMaterial:
        """Read everything. Errors: ConfigError naming the file that is missing or does not fit."""
        material = TlsMaterial(
            ca=_pem(self.ca_file, self.ca, "etcdCACertFile"),
            certificate=_pem(self.cert_file, self.cert, "etcdCertFile"),
            key=_pem(self.key_file, self.key, "etcdKeyFile"),
        )
        if (material.certificate is None) != (material.key is None):
            raise ConfigError("etcd TLS", "etcdCertFile", "certificate and key go together")
        if self.cert_file and self.key_file:
            _check_pair(self.cert_file, self.key_file)
        return material

    def signature(self) -> Signature:
        """Changes when any of the files does; a missing file has a signature too."""
        named = (self.ca_file, self.cert_file, self.key_file)
        return tuple(_file_signature(path) for path in named if path)


def _pem(path: str, inline: str, name: str) -> bytes | None:
    if inline:
        return inline.encode()
    if not path:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as err:
        raise ConfigError(path, name, err.strerror or str(err)) from err


def _check_pair(cert_file: str, key_file: str) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(cert_file, key_file)
    except (OSError, ssl.SSLError) as err:
        reason = f"does not go with {key_file}: {err}"
        raise ConfigError(cert_file, "etcdCertFile", reason) from err


def _file_signature(path: str) -> tuple[str, int, int, int]:
    try:
        found = Path(path).stat()
    except OSError:
        return (path, 0, 0, 0)
    return (path, found.st_mtime_ns, found.st_size, found.st_ino)
