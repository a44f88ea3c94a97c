"""The routing table of the speaker, pure: messages and state in, messages and changes out.

Layer: pure (no I/O, no clock, no logging, no exabgp). Used by bgp.speaker (sessions), bgp.kernel
(what to program) and bgp.daemon. `rib.Rib` is the front door; `oracle` recomputes the same
answers the slow and obvious way, for the property tests.
"""
