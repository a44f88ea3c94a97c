"""The shared library at the bottom: data model, datastore, selectors, syncer, runtime."""
