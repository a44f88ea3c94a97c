"""The BGP speaker: a pure RIB, ExaBGP embedded for sessions, and kernel route export."""
