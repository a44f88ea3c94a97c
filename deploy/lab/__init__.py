"""A Brindle cluster on one machine: nodes are network namespaces. Used by hand and by tests/e2e."""
