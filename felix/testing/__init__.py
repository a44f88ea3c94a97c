"""Fakes of felix, shipped like a product: they refuse what the real thing refuses.

Layer: testing; nothing but tests imports it. (Not in libcalico.testing, which may not know felix.)
"""
