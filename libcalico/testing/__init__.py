"""Fakes shipped like a product: they refuse what the real thing refuses."""
