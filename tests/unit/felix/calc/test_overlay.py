"""felix.calc.overlay: pins and retractions against a slow, repeating, forgetful syncer."""

from __future__ import annotations

import pytest

from felix.calc.overlay import EndpointOverlay
from libcalico.syncer.api import Update
from tests.support.calc import ELSEWHERE, wep

KEY, ONE = wep("w", "10.0.0.1")
_, TWO = wep("w", "10.0.0.2")
REMOTE_KEY, REMOTE = wep("r", "10.0.0.9", node=ELSEWHERE)


@pytest.fixture
def overlay() -> EndpointOverlay:
    return EndpointOverlay("here")


def say(overlay: EndpointOverlay, value: object | None, revision: int) -> object | None:
    return overlay.on_update(KEY, Update(KEY, value, revision)).value


def test_without_calls_the_datastore_speaks(overlay):
    """E4."""
    update = Update(KEY, ONE, 5)
    assert overlay.on_update(KEY, update) is update
    gone = Update(KEY, None, 6)
    assert overlay.on_update(KEY, gone) is gone
    assert overlay.dump() == {}


def test_a_pin_stands_until_it_is_confirmed_and_the_echo_is_here(overlay):
    """E1."""
    assert overlay.pin(KEY, ONE).value is ONE
    assert say(overlay, None, 9) is ONE
    assert overlay.confirm(KEY, 10) is None
    assert say(overlay, None, 9) is ONE
    assert say(overlay, TWO, 10) is TWO
    assert say(overlay, None, 11) is None
    assert not overlay.held_keys()


def test_a_delete_newer_than_the_confirmed_write_ends_a_pin_whose_echo_never_came(overlay):
    """E1: somebody deleted the key, and a re-list swallowed both. A syncer that never showed the
    key says nothing of it (E3); as soon as it does, at whatever newer revision, it is believed."""
    overlay.pin(KEY, ONE)
    overlay.confirm(KEY, 2)
    assert say(overlay, None, 1) is ONE
    assert say(overlay, None, 3) is None
    assert not overlay.held_keys()
    assert say(overlay, None, 3) is None


def test_an_echo_before_the_confirmation_is_shown_with_it(overlay):
    overlay.pin(KEY, ONE)
    assert say(overlay, TWO, 10) is ONE
    released = overlay.confirm(KEY, 10)
    assert released is not None
    assert released.value is TWO


def test_only_its_own_key_ends_a_pin(overlay):
    """E3."""
    overlay.pin(KEY, ONE)
    overlay.confirm(KEY, 10)
    overlay.on_update(REMOTE_KEY, Update(REMOTE_KEY, REMOTE, 99))
    assert overlay.held_keys() == {KEY}
    assert say(overlay, None, 9) is ONE


def test_nothing_the_syncer_says_ends_an_unconfirmed_pin(overlay):
    overlay.pin(KEY, ONE)
    assert say(overlay, None, 99) is ONE


def test_a_new_pin_replaces_the_old_one_and_needs_its_own_confirmation(overlay):
    overlay.pin(KEY, ONE)
    overlay.confirm(KEY, 10)
    overlay.pin(KEY, TWO)
    assert say(overlay, ONE, 10) is TWO
    assert overlay.confirm(KEY, 12) is None
    assert say(overlay, TWO, 12) is TWO


def test_a_retraction_hides_what_the_datastore_still_shows(overlay):
    """E2."""
    say(overlay, ONE, 5)
    assert overlay.retract(KEY).value is None
    assert say(overlay, ONE, 5) is None
    assert say(overlay, None, 6) is None
    assert not overlay.held_keys()
    assert say(overlay, TWO, 7) is TWO


def test_something_newer_than_what_was_retracted_is_shown(overlay):
    say(overlay, ONE, 5)
    overlay.retract(KEY)
    assert say(overlay, TWO, 6) is TWO


def test_the_echo_of_a_confirmed_write_stays_hidden_after_its_retraction(overlay):
    """E2: ADD was undone at once; put and delete are still on their way."""
    overlay.pin(KEY, ONE)
    overlay.confirm(KEY, 10)
    overlay.retract(KEY)
    assert say(overlay, None, 4) is None
    assert say(overlay, ONE, 10) is None
    assert say(overlay, None, 11) is None
    assert not overlay.held_keys()


def test_retracting_what_nobody_knows_holds_nothing(overlay):
    assert overlay.retract(KEY) is None
    overlay.pin(KEY, ONE)
    assert overlay.retract(KEY).value is None
    assert not overlay.held_keys()
    assert say(overlay, TWO, 3) is TWO


def test_a_retracted_endpoint_that_could_not_be_deleted_stays_hidden(overlay):
    """E2: the pod is gone, whatever the datastore says; only something newer counts."""
    say(overlay, ONE, 5)
    overlay.retract(KEY)
    assert say(overlay, ONE, 5) is None
    assert say(overlay, ONE, 5) is None
    assert overlay.held_keys() == {KEY}


def test_a_write_confirmed_after_the_retraction_is_hidden_too(overlay):
    """ADD was cancelled while its write was on the way; its delete will follow."""
    say(overlay, ONE, 5)
    overlay.retract(KEY)
    assert overlay.confirm(KEY, 7) is None
    assert say(overlay, TWO, 7) is None
    assert say(overlay, None, 8) is None
    assert not overlay.held_keys()


def test_confirming_what_nobody_holds_is_nothing(overlay):
    assert overlay.confirm(REMOTE_KEY, 6) is None
    assert not overlay.held_keys()


def test_pinning_again_after_a_retraction(overlay):
    """The pod comes back under the same name before its delete has."""
    say(overlay, ONE, 5)
    overlay.retract(KEY)
    assert overlay.pin(KEY, TWO).value is TWO
    assert say(overlay, None, 6) is TWO
    overlay.confirm(KEY, 7)
    assert say(overlay, TWO, 7) is TWO


def test_endpoints_of_other_nodes_are_not_remembered(overlay):
    overlay.on_update(REMOTE_KEY, Update(REMOTE_KEY, REMOTE, 5))
    assert overlay.retract(REMOTE_KEY) is None
    assert not overlay.held_keys()


def test_an_endpoint_that_moved_away_while_it_was_pinned_is_shown_where_it_is(overlay):
    overlay.pin(REMOTE_KEY, ONE)
    overlay.on_update(REMOTE_KEY, Update(REMOTE_KEY, REMOTE, 5))
    shown = overlay.retract(REMOTE_KEY)
    assert shown is not None
    assert shown.value is REMOTE
    assert not overlay.held_keys()


def test_dump_says_what_is_held_and_why(overlay):
    say(overlay, ONE, 5)
    overlay.retract(KEY)
    other, value = wep("x", "10.0.0.3")
    overlay.pin(other, value)
    assert overlay.dump() == {
        "prod/w": {"state": "hidden", "revision": 5},
        "prod/x": {"state": "pinned", "revision": None},
    }
