"""Datastore access: contract (`api`), etcd v3 client (`etcd`), typed objects (`resources`)."""
