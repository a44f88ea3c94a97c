"""The part of IPAM that talks to the datastore.

Layer: ipam edge. `IpamClient` is the way in; see `facade` for what it offers, DESIGN.md for how.
"""

from ipam.client.affinities import AffinityClient
from ipam.client.facade import IpamClient
from ipam.client.source import DatastoreSource, Facts, FixedSource, Source

__all__ = [
    "AffinityClient",
    "DatastoreSource",
    "Facts",
    "FixedSource",
    "IpamClient",
    "Source",
]
