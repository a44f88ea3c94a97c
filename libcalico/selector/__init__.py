"""The label language: parse, evaluate, canonical text, id, index terms, scoping.

Layer: pure, below libcalico.model. Users: model validation, compute, policy, felix, ipam, bgp.

    parse(text) -> Selector                 cached; raises SelectorSyntaxError
    Selector.evaluate(labels) -> bool       labels: Mapping[str, str]
    Selector.canonical, .uid                str; equality and hash go by canonical
    Selector.prefixed(prefix) -> Selector
    Selector.restrictions() -> tuple[frozenset[Term], ...]      see restrictions.py
    Selector.atoms() -> Atoms
    scope.*                                 namespace and service account rewrites, see scope.py
"""

from libcalico.selector.parser import parse
from libcalico.selector.restrictions import Atoms, Clause, Term
from libcalico.selector.selector import Selector

__all__ = ["Atoms", "Clause", "Selector", "Term", "parse"]
