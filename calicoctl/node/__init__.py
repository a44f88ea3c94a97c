"""The `calico-node` command: registers this host in the datastore, then keeps its daemons running.

settings      the environment, parsed and refused with a reason
autodetect    which address is the node's (pure)
registration  the Node object, default pools, initial objects (pure decisions, one CAS writer)
interfaces    the kernel's interfaces (edge)
supervisor    child processes (edge)
main          the command
"""
