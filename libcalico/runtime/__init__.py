"""What every daemon needs around its core: paths, logs, configuration, health, metrics, supervision."""
