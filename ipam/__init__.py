"""Block-based IP address management: the algorithms are pure, `client` is the compare-and-swap loop."""
