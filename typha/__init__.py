"""Datastore fan-out for large clusters. Nothing is built here yet; nodes read etcd directly."""
