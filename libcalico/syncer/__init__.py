"""Turns a datastore into an ordered stream of updates with an in-sync mark."""
