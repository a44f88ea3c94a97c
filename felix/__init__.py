"""The node daemon: turns datastore state into routes, interfaces and packet filters on this host."""
