"""The shared library at the bottom of Brindle: data model, datastore, selectors, syncer, runtime."""
