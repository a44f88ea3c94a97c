"""Renders BGP configuration from the datastore."""
