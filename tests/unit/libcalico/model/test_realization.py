"""libcalico.model.realization: the stored form, and a round trip."""

from __future__ import annotations

from libcalico.model import codec
from libcalico.model.keys import PolicyRealizationKey
from libcalico.model.realization import PolicyException, PolicyRealization

KEY = PolicyRealizationKey("n1")
RAW = (
    b'{"revisions":{"NetworkPolicy":7},"exceptions":[{"kind":"NetworkPolicy","namespace":"prod",'
    b'"name":"web","reason":"refused: full"}],"unlisted":2}'
)


def test_what_is_stored_is_small_and_comes_back():
    exception = PolicyException(
        kind="NetworkPolicy", namespace="prod", name="web", reason="refused: full"
    )
    said = PolicyRealization(revisions={"NetworkPolicy": 7}, exceptions=(exception,), unlisted=2)
    assert codec.encode(said) == RAW
    assert codec.decode(KEY, RAW, 1) == said
    assert codec.encode(PolicyRealization()) == b"{}"


def test_a_newer_felix_may_say_more():
    assert codec.decode(KEY, b'{"revisions":{},"later":[1]}', 1) == PolicyRealization()
