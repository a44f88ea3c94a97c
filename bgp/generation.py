"""The two files confd renders, taken together or not at all.

Layer: edge. Used by bgp.daemon. speaker.json names the SHA-256 of the exabgp.conf it belongs to and
is renamed into place last, so a pair that does not fit is one half of a change: wait for the other.

Invariants:
  I1  a Generation is complete and has been parsed in full: both files, filters, neighbours;
  I2  a pair that is refused is reported once, and again only when a file changes.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bgp.rib.admission import Identity
from bgp.rib.nlri import Family
from bgp.rib.policy import Policy
from bgp.speaker.seams import Neighbors, parse_neighbors
from libcalico.errors import ConfigError
from libcalico.model.speaker import SpeakerConfig

SPEAKER_FILE, EXABGP_FILE = "speaker.json", "exabgp.conf"
_Stamp = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Generation:
    """What confd wants now. `digest` is that of speaker.json, for people."""

    config: SpeakerConfig
    neighbors: Neighbors
    digest: str


class GenerationFiles:
    """Looks at the files when they change. `error` says what is wrong with the last pair seen."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._seen: tuple[_Stamp | None, _Stamp | None] = (None, None)
        self.error = ""

    def poll(self) -> Generation | None:
        """The pair, if it is new and fits; None if there is nothing new (or not yet).

        Errors: ConfigError, the pair fits but does not make sense."""
        names = (EXABGP_FILE, SPEAKER_FILE)
        stamps = (_stamp(self._directory / names[0]), _stamp(self._directory / names[1]))
        if None in stamps or stamps == self._seen:
            return None
        conf, speaker = (self._read(name) for name in names)
        self._seen = stamps
        try:
            found = read_generation(conf, speaker)
        except ConfigError as err:
            self.error = str(err)
            raise
        self.error = ""
        if found is None:
            self.error = "speaker.json and exabgp.conf are not of one generation"
        return found

    def look_again(self) -> None:
        """Take the files up again although they have not changed (SIGHUP)."""
        self._seen = (None, None)

    def _read(self, name: str) -> bytes:
        try:
            return (self._directory / name).read_bytes()
        except OSError as err:
            raise ConfigError(name, "file", str(err)) from err


def read_generation(conf: bytes, speaker: bytes) -> Generation | None:
    """None when the two do not belong together. Errors: ConfigError."""
    try:
        config = msgspec.json.decode(speaker, type=SpeakerConfig)
    except msgspec.DecodeError as err:
        raise ConfigError(SPEAKER_FILE, "content", str(err)) from err
    if config.exabgp_sha256 != hashlib.sha256(conf).hexdigest():
        return None
    Policy(config)  # refuses what would not compile, before anything is touched
    identity = Identity.of(config)
    own: dict[Family, str] = {
        family: text.partition("/")[0]
        for (family, _), text in zip(
            identity.addresses,
            [text for text in (config.ipv4_address, config.ipv6_address) if text],
            strict=True,
        )
    }
    try:
        text = conf.decode("utf-8")
    except UnicodeDecodeError as err:
        raise ConfigError(EXABGP_FILE, "content", str(err)) from err
    digest = hashlib.sha256(speaker).hexdigest()
    return Generation(config, parse_neighbors(text, own), digest)


def _stamp(path: Path) -> _Stamp | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
