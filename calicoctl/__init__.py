"""The operator command line, and the node start-up command under `calicoctl.node`."""
