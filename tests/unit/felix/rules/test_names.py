"""felix.rules.names: names the kernel and nft take, and that nobody can aim at each other."""

from __future__ import annotations

import re

import pytest

from felix.rules.names import (
    address_set,
    digest,
    endpoint_chain,
    identity_hash,
    policy_chain,
    profile_chain,
    tier_chain,
)

NFT_WORD = re.compile(r"[a-z][A-Za-z0-9_./-]*")
LONG = "a" * 253


@pytest.mark.parametrize(
    "name",
    [
        policy_chain("in", "NetworkPolicy", "default", LONG),
        policy_chain("out", "GlobalNetworkPolicy", "", "knp.default.x"),
        profile_chain("in", "kns.default"),
        profile_chain("in", "ünï/cödé »x«"),
        profile_chain("in", ""),
        tier_chain("in", "default", LONG, LONG),
        endpoint_chain("out"),
        address_set("s:abc-_9", 4),
        address_set("svc default/http", 6),
        address_set(LONG, 6),
    ],
)
def test_names_are_words_of_nft_and_short(name: str):
    assert NFT_WORD.fullmatch(name)
    assert len(name) <= 100


def test_every_part_of_an_identity_counts():
    names = {
        policy_chain("in", "NetworkPolicy", "a", "x"),
        policy_chain("out", "NetworkPolicy", "a", "x"),
        policy_chain("in", "GlobalNetworkPolicy", "a", "x"),
        policy_chain("in", "NetworkPolicy", "b", "x"),
        policy_chain("in", "NetworkPolicy", "a", "y"),
    }
    assert len(names) == 5


def test_parts_do_not_run_into_each_other():
    assert digest("ab", "c") != digest("a", "bc")
    assert tier_chain("in", "t", "a", "b") != tier_chain("in", "t", "ab")
    assert tier_chain("in", "t", "a", "b") != tier_chain("in", "t", "b", "a")


def test_names_that_look_alike_after_cutting_stay_apart():
    assert policy_chain("in", "K", "n", LONG + "x") != policy_chain("in", "K", "n", LONG + "y")


def test_set_ids_of_calc_are_kept_readable_and_unique():
    assert address_set("s:AbC", 4) == "set-s.AbC-4"
    forms = {address_set(text, 4) for text in ("s:x", "s.x", "s-x", "s_x", "S:x")}
    assert len(forms) == 5
    assert address_set("s:x", 4) != address_set("s:x", 6)


def test_the_hash_is_96_bits():
    assert len(identity_hash("x")) == 20
