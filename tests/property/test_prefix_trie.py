"""The prefix trie against a list that is searched from end to end."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from libcalico import net

# Few distinct bits, so that networks nest and collide.
_BITS = {4: 32, 6: 128}


@st.composite
def networks(draw: st.DrawFn, version: int) -> net.Network:
    length = draw(st.sampled_from([0, 1, 8, 9, 16, 24, 31, _BITS[version]]))
    top = draw(st.integers(0, 2**10 - 1))
    return net.network_of(version, top << (_BITS[version] - 10), length)


operations = st.lists(
    st.tuples(st.booleans(), st.one_of(networks(4), networks(6)), st.integers(0, 99)), max_size=40
)


@settings(derandomize=True, max_examples=200, deadline=None)
@given(operations, st.one_of(networks(4), networks(6)))
def test_the_trie_says_what_a_plain_search_says(
    steps: list[tuple[bool, net.Network, int]], probe: net.Network
) -> None:
    trie: net.PrefixTrie[int] = net.PrefixTrie()
    plain: dict[net.Network, int] = {}
    for is_add, network, value in steps:
        if is_add:
            trie.add(network, value)
            plain[network] = value
        else:
            assert trie.remove(network) == plain.pop(network, None)
    assert len(trie) == len(plain)
    assert list(trie.items()) == sorted(plain.items(), key=lambda item: net.sort_key(item[0]))
    address = probe.network_address
    same = [(n, v) for n, v in plain.items() if n.version == probe.version]
    containing = [(n, v) for n, v in same if address in n]
    longest = max(containing, key=lambda item: item[0].prefixlen, default=None)
    assert trie.lookup(address) == longest
    covering = [(n, v) for n, v in same if probe.subnet_of(n)]  # type: ignore[arg-type]
    covering.sort(key=lambda item: -item[0].prefixlen)
    assert trie.all_covering(probe) == covering
    assert trie.covering(probe) == (covering[0] if covering else None)
