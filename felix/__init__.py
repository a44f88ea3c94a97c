"""The node daemon: datastore state becomes routes, interfaces and packet filters here."""
