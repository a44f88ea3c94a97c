"""A new configuration in a running speaker: only what changed is touched, and it does take."""

from __future__ import annotations

import os
import signal

import msgspec

from libcalico.model.bgp_filter import BGPFilterRuleV4
from libcalico.model.speaker import Filter
from tests.peers.base import PATIENCE_S, Fabric, Neighbour
from tests.peers.bird import Bird
from tests.peers.speaker import CalicoBgp
from tests.support.netns import eventually


def three(fabric: Fabric) -> tuple[CalicoBgp, list[Bird]]:
    """Ours with two BIRDs, a third one ready."""
    ours = CalicoBgp(fabric, 1, blocks=("10.65.1.0/26",))
    birds = [Bird(fabric, n, routes=(f"10.65.{n}.0/26",)) for n in (2, 3, 4)]
    for bird in birds:
        bird.configure(Neighbour(ours.v4, is_passive=True))
        bird.start()
    ours.configure(*(Neighbour(bird.v4) for bird in birds[:2]))
    ours.start()
    ours.wait_established(*(bird.v4 for bird in birds[:2]))
    return ours, birds


def test_a_speaker_started_before_its_configuration_waits_with_one_line_and_goes_on(
    fabric: Fabric,
):
    ours, bird = CalicoBgp(fabric, 1), Bird(fabric, 2)
    ours.start()
    assert eventually(lambda: "waiting for configuration" in ours.log(), timeout_s=PATIENCE_S)
    # It looks again and again: each time it is asked to, it says what it finds.
    for count in (1, 2, 3):
        ours.publish("nonsense;")
        assert eventually(
            lambda n=count: ours.log().count("configuration refused") >= n, timeout_s=PATIENCE_S
        )
    assert ours.log().count("waiting for configuration") == 1
    bird.configure(Neighbour(ours.v4, is_passive=True))
    bird.start()
    ours.configure(Neighbour(bird.v4))
    ours.wait_established(bird.v4)


def test_adding_and_removing_a_neighbour_leaves_the_others_alone(fabric: Fabric):
    ours, (one, two, late) = three(fabric)
    before = [ours.uptime_since(bird.v4) for bird in (one, two)]
    ours.configure(*(Neighbour(bird.v4) for bird in (one, two, late)))
    ours.wait_established(late.v4)
    late.wait_learned("10.65.1.0/26")
    ours.wait_kernel("10.65.4.0/26", "via 10.99.0.4")
    assert [ours.uptime_since(bird.v4) for bird in (one, two)] == before
    # Removed although both sides restart gracefully: it is told, and keeps nothing of ours.
    ours.configure(Neighbour(one.v4), Neighbour(two.v4))
    ours.wait_no_kernel("10.65.4.0/26")
    late.wait_forgotten("10.65.1.0/26")
    assert [ours.uptime_since(bird.v4) for bird in (one, two)] == before
    # And back again.
    ours.configure(*(Neighbour(bird.v4) for bird in (one, two, late)))
    ours.wait_established(late.v4)
    assert [ours.uptime_since(bird.v4) for bird in (one, two)] == before


def test_a_change_of_one_neighbour_resets_only_its_session(fabric: Fabric):
    ours, (one, two, _) = three(fabric)
    before = ours.uptime_since(one.v4)
    ours.configure(Neighbour(one.v4), Neighbour(two.v4, hold_s=30))
    assert eventually(lambda: ours.peer(two.v4).get("hold_time_s") == 30)
    ours.wait_established(two.v4)
    ours.wait_kernel("10.65.3.0/26", "via 10.99.0.3")
    assert ours.uptime_since(one.v4) == before


def test_a_peer_that_is_another_one_for_the_rib_alone_starts_over(fabric: Fabric):
    """speaker.json and exabgp.conf should agree; when they do not, nothing hangs."""
    ours, (one, two, _) = three(fabric)
    before = [ours.uptime_since(bird.v4) for bird in (one, two)]
    conf = (ours.bgp_dir / "exabgp.conf").read_text()
    first, second = ours.settings.peers
    changed = msgspec.structs.replace(first, remote_as=65001)
    ours.settings = msgspec.structs.replace(ours.settings, peers=(changed, second))
    ours.publish(conf)
    assert eventually(
        lambda: ours.established(one.v4) and ours.uptime_since(one.v4) != before[0], timeout_s=15
    )
    ours.wait_kernel("10.65.2.0/26", "via 10.99.0.2")
    assert ours.uptime_since(two.v4) == before[1]


def test_a_filter_is_a_refresh(fabric: Fabric):
    ours, (one, two, _) = three(fabric)
    ours.wait_kernel("10.65.2.0/26", "via 10.99.0.2")
    one.wait_learned("10.65.1.0/26")
    before = [ours.uptime_since(bird.v4) for bird in (one, two)]
    reject = BGPFilterRuleV4(action="Reject")
    nothing = Filter(name="nothing", import_v4=(reject,), export_v4=(reject,))
    ours.settings = msgspec.structs.replace(ours.settings, filters=(nothing,))
    ours.configure(Neighbour(one.v4, filters=("nothing",)), Neighbour(two.v4))
    ours.wait_no_kernel("10.65.2.0/26")
    one.wait_forgotten("10.65.1.0/26")
    assert "10.65.1.0/26" in two.learned()
    ours.configure(Neighbour(one.v4), Neighbour(two.v4))
    ours.wait_kernel("10.65.2.0/26", "via 10.99.0.2")
    one.wait_learned("10.65.1.0/26")
    assert [ours.uptime_since(bird.v4) for bird in (one, two)] == before


def test_a_broken_file_changes_nothing_and_does_not_poison_the_next(fabric: Fabric):
    ours, (one, two, late) = three(fabric)
    before = [ours.uptime_since(bird.v4) for bird in (one, two)]
    generation = ours.ask("version")["generation"]
    for broken in ("neighbor 10.99.0.2 { router-id", "neighbor x { }", "nonsense;", "process p {"):
        ours.publish(broken)
        assert eventually(lambda: ours.ask("version")["config_error"] != "")
        assert ours.ask("version")["generation"] == generation
        assert ours.established(one.v4)
    ours.configure(*(Neighbour(bird.v4) for bird in (one, two, late)))
    ours.wait_established(late.v4)
    assert ours.ask("version")["config_error"] == ""
    assert [ours.uptime_since(bird.v4) for bird in (one, two)] == before


def test_half_a_generation_is_not_taken(fabric: Fabric):
    ours, (one, _, late) = three(fabric)
    generation = ours.ask("version")["generation"]
    conf = (ours.bgp_dir / "exabgp.conf").read_text()
    (ours.bgp_dir / "exabgp.conf").write_text(conf + "# newer\n")
    os.kill(ours.pid, signal.SIGHUP)
    assert eventually(lambda: "one generation" in ours.ask("version")["config_error"])
    assert ours.ask("version")["generation"] == generation
    # The other half arrives without any signal: the files are looked at every second.
    pid, ours.process = ours.process, None
    ours.configure(Neighbour(one.v4), Neighbour(late.v4))
    ours.process = pid
    ours.wait_established(late.v4)


def test_what_only_a_new_process_can_take_over_ends_this_one_with_129(fabric: Fabric):
    ours, (one, two, _) = three(fabric)
    ours.wait_kernel("10.65.2.0/26", "via 10.99.0.2")
    ours.settings = msgspec.structs.replace(ours.settings, listen_port=1790)
    ours.configure(Neighbour(one.v4), Neighbour(two.v4))
    assert ours.process is not None
    assert ours.process.wait(timeout=PATIENCE_S) == 129
    assert "proto bgp" in ours.kernel("10.65.2.0/26")
    ours.start()
    ours.wait_established(one.v4, two.v4)


def test_many_signals_at_once_are_all_served(fabric: Fabric):
    ours, (one, two, late) = three(fabric)
    for _ in range(20):
        ours.configure(Neighbour(one.v4), Neighbour(two.v4), Neighbour(late.v4))
        ours.configure(Neighbour(one.v4), Neighbour(two.v4))
    ours.configure(Neighbour(one.v4), Neighbour(late.v4))
    ours.wait_established(one.v4, late.v4)
    assert eventually(lambda: ours.peer(two.v4) == {})


def test_a_state_dump(fabric: Fabric):
    ours, _ = three(fabric)
    os.kill(ours.pid, signal.SIGUSR1)
    assert eventually(lambda: any(ours.directory.glob("calico-bgp-*.json")))
    (path,) = ours.directory.glob("calico-bgp-*.json")
    dump = msgspec.json.decode(path.read_bytes())
    assert {peer["state"] for peer in dump["peers"]} == {"Established"}
    assert dump["kernel"]["writer"]["dirty"] == []
    assert dump["tables"]["ipv4"]["groups"][0]["sent"] == 1
