"""Datastore access: the contract (`api`), the etcd v3 client (`etcd`), typed resources (`resources`)."""
