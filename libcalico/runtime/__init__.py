"""What daemons need around their core: paths, logs, configuration, health, supervision."""
