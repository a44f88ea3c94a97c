"""The calculation graph: from datastore objects to what this node must enforce.

Layer: pure (no I/O, no clock, no logging). `felix.daemon` feeds `CalcGraph`; its intents
(felix/intent.py) go to the dataplane. felix/DESIGN.md draws the whole; graph.py draws the nodes.
"""

from felix.calc.graph import CalcGraph

__all__ = ["CalcGraph"]
