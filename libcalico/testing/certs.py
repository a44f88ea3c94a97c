"""Certificates for tests: an authority and what it issues, made by the openssl program.

Layer: testing. Used with `libcalico.testing.etcd`. Keys are small curves, made in milliseconds.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_TIMEOUT_S = 20
_LOOPBACK_NAMES = ("IP:127.0.0.1", "IP:::1", "DNS:localhost")


@dataclass(frozen=True, slots=True)
class Identity:
    """A certificate and its key, as files."""

    certificate: Path
    key: Path


class Authority:
    """A private CA in `directory`. Two authorities never trust each other."""

    def __init__(self, directory: Path, name: str = "test-ca") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._key = directory / f"{name}.key"
        self.certificate = directory / f"{name}.pem"
        _new_key(self._key)
        _openssl(
            "req", "-x509", "-new", "-key", str(self._key), "-subj", f"/CN={name}",
            "-days", "30", "-out", str(self.certificate),
            # Strict verifiers (Python 3.13 is one) want it said what a CA's key is for.
            "-addext", "keyUsage=critical,keyCertSign,cRLSign",
        )  # fmt: skip

    def issue(
        self, name: str, *, names: Sequence[str] = _LOOPBACK_NAMES, days: int = 30
    ) -> Identity:
        """A certificate for server and client use. `days` below zero: it has expired already."""
        found = Identity(self._directory / f"{name}.pem", self._directory / f"{name}.key")
        self.issue_into(found, name, names=names, days=days)
        return found

    def issue_into(
        self, place: Identity, name: str, *, names: Sequence[str] = _LOOPBACK_NAMES, days: int = 30
    ) -> None:
        """As `issue`, overwriting the files of `place`: what a rotation does."""
        request = self._directory / f"{name}.csr"
        extensions = self._directory / f"{name}.ext"
        new_key, new_certificate = place.key.with_suffix(".new"), request.with_suffix(".crt")
        _new_key(new_key)
        _openssl("req", "-new", "-key", str(new_key), "-subj", f"/CN={name}", "-out", str(request))
        extensions.write_text(
            f"subjectAltName={','.join(names)}\nextendedKeyUsage=serverAuth,clientAuth\n"
            "subjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n"
        )
        _openssl(
            "x509", "-req", "-in", str(request), "-CA", str(self.certificate),
            "-CAkey", str(self._key), "-CAcreateserial", "-days", str(days),
            "-extfile", str(extensions), "-out", str(new_certificate),
        )  # fmt: skip
        new_key.replace(place.key)
        new_certificate.replace(place.certificate)


def _new_key(path: Path) -> None:
    _openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", str(path))


def _openssl(*arguments: str) -> None:
    done = subprocess.run(
        ["openssl", *arguments], capture_output=True, timeout=_TIMEOUT_S, check=False
    )
    if done.returncode:
        raise RuntimeError(f"openssl {arguments[0]} failed: {done.stderr.decode(errors='replace')}")
