"""TLS between our own daemons: both sides show a certificate, and who the other is gets checked.

Layer: datastore edge (beside `tls`, whose certificates it takes). Used by typha and its clients.

  P1  a certificate of the CA alone is not enough: the common name or a URI SAN must be the required
      one, as in Calico (either suffices where both are required);
  P2  TLS 1.2 at least; files that change are taken over by `PeerTls.renewed`, when they fit
      together; a bad change leaves the last good ones in use.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from libcalico.datastore.tls import Signature, TlsConfig
from libcalico.errors import ConfigError, SuiteError


class WrongPeer(SuiteError):
    """The other side has a certificate of our CA, but not the required name."""

    def __init__(self, names: str, required: str) -> None:
        super().__init__(names, required)
        self.names, self.required = names, required

    def __str__(self) -> str:
        return f"the certificate is for {self.names}, not for {self.required}"


@dataclass(frozen=True, slots=True)
class PeerIdentity:
    """What the other side must be: "" is not asked for."""

    common_name: str = ""
    uri_san: str = ""

    def check(self, certificate: Mapping[str, Any] | None) -> None:
        """`certificate` as `ssl` describes it. Errors: WrongPeer (P1)."""
        names, uris = _names(certificate or {})
        if self.common_name and self.common_name in names:
            return
        if self.uri_san and self.uri_san in uris:
            return
        shown = ", ".join([*names, *uris]) or "nobody"
        raise WrongPeer(shown, " or ".join(filter(None, (self.common_name, self.uri_san))))


def _names(certificate: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    subject = certificate.get("subject", ())
    names = [value for part in subject for name, value in part if name == "commonName"]
    uris = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "URI"]
    return names, uris


class PeerTls:
    """Certificates and the contexts made of them, for one side."""

    def __init__(self, files: TlsConfig, peer: PeerIdentity, *, is_server: bool) -> None:
        """Errors: ConfigError when a file is missing, does not fit, or no name is required."""
        if not (files.ca_file and files.cert_file and files.key_file):
            raise ConfigError("TLS", "CAFile", "CA, certificate and key files go together")
        if not (peer.common_name or peer.uri_san):
            raise ConfigError("TLS", "CN", "a common name or URI SAN of the peer is required")
        self.peer = peer
        self._files, self._is_server = files, is_server
        self._signature: Signature = files.signature()
        self.context = self._made()

    def renewed(self) -> bool:
        """Whether changed files were taken over. Errors: ConfigError, once per change."""
        signature = self._files.signature()
        if signature == self._signature:
            return False
        self._signature = signature
        self.context = self._made()
        return True

    def _made(self) -> ssl.SSLContext:
        files = self._files
        files.load()
        protocol = ssl.PROTOCOL_TLS_SERVER if self._is_server else ssl.PROTOCOL_TLS_CLIENT
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # The required name takes the place of the host name (P1): typhas move between hosts.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(files.ca_file)
            context.load_cert_chain(files.cert_file, files.key_file)
        except (OSError, ssl.SSLError) as err:
            raise ConfigError("TLS", "CAFile", str(err), files.ca_file) from err
        return context
