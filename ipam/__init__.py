"""Block-based IP address management: pure algorithms, and `client`, the loop that writes."""
