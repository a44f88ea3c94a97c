"""libcalico.testing.fakeiptables: refuses what the tools refuse, keeps what they keep."""

from __future__ import annotations

import pytest

from libcalico.testing.fakeiptables import FakeIptables, Finished
from libcalico.testing.fakenft_vm import Packet


def restore(fake: FakeIptables, *lines: str) -> Finished:
    script = "\n".join(["*filter", *lines, "COMMIT", ""])
    return fake(("iptables-nft-restore", "--noflush"), script, 1.0)


def ipset(fake: FakeIptables, *lines: str) -> Finished:
    return fake(("ipset", "restore"), "\n".join([*lines, ""]), 1.0)


@pytest.mark.parametrize(
    "line",
    [
        "-A cali-a -j nowhere",
        "-A missing -j DROP",
        "-A cali-a -m set --match-set missing src -j DROP",
        "-A cali-a -s 10.0.0.1 -s 10.0.0.2 -j DROP",
        "-A cali-a -p tcp -m multiport --dports 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16 -j DROP",
        "-A cali-a -m multiport --dports 1 -j DROP",
        "-A cali-a -m icmp --icmp-type 8 -j DROP",
        "-A cali-a -m unheard --of 1 -j DROP",
        "-A cali-a -j REJECT --reject-with tcp-reset",
        '-A cali-a -j LOG --log-prefix "123456789012345678901234567890"',
        "-D FORWARD -j DROP",
        "-X cali-used",
        "-X cali-full",
        ":cali-a-name-that-is-far-too-long - [0:0]",
        ":FORWARD DROP [0:0]",
    ],
)
def test_a_refused_line_changes_nothing(line: str):
    fake = FakeIptables()
    assert (
        restore(
            fake,
            ":cali-used - [0:0]",
            ":cali-full - [0:0]",
            "-A cali-full -j cali-used",
        ).returncode
        == 0
    )
    before = {name: list(rules) for name, rules in fake.table("filter").items()}
    done = restore(fake, ":cali-a - [0:0]", line)
    assert done.returncode == 1
    assert "line 3" in done.stderr
    assert fake.table("filter") == before


def test_ipset_keeps_what_stood_before_the_refused_line():
    fake = FakeIptables()
    done = ipset(fake, "create a hash:net family inet maxelem 1", "add a 1.1.1.1", "add a 2.2.2.2")
    assert "line 3" in done.stderr
    assert fake.sets["a"].members == {"1.1.1.1"}


@pytest.mark.parametrize(
    "line",
    [
        "create a hash:net family inet maxelem 9",
        "create name-of-an-ipset-that-is-too-long hash:net family inet maxelem 9",
        "destroy a",
        "destroy missing",
        "swap a b",
        "add b 0.0.0.0/0",
    ],
)
def test_sets_are_guarded_as_the_kernel_guards_them(line: str):
    fake = FakeIptables()
    ipset(
        fake,
        "create a hash:net family inet maxelem 1",
        "create b hash:ip family inet maxelem 1",
    )
    restore(fake, "-A FORWARD -m set --match-set a src -j DROP")
    assert ipset(fake, line).returncode == 1


def test_packets_meet_marks_jumps_and_returns():
    fake = FakeIptables()
    assert (
        restore(
            fake,
            ":x - [0:0]",
            ":y - [0:0]",
            "-A x -p tcp -j MARK --set-xmark 0x1/0x1",
            "-A x -m mark --mark 0x1/0x1 -j RETURN",
            "-A x -j DROP",
            "-A y -i cali+ -g x",
            "-A y -j DROP",
            "-A FORWARD -j y",
            "-A FORWARD -m mark --mark 0x1/0x1 -j ACCEPT",
            "-A FORWARD -j DROP",
        ).returncode
        == 0
    )
    assert fake.forward(Packet("1.1.1.1", "2.2.2.2", "tcp"), "cali1", "eth0") == "accept"
    assert fake.forward(Packet("1.1.1.1", "2.2.2.2", "udp"), "cali1", "eth0") == "drop"
    assert fake.forward(Packet("1.1.1.1", "2.2.2.2", "tcp"), "eth1", "eth0") == "drop"


def test_a_listing_of_all_tables_makes_none():
    fake = FakeIptables()
    assert fake(("iptables-legacy-save",), "", 1.0).stdout.strip() == ""
    assert "*filter" in fake(("iptables-legacy-save", "-t", "filter"), "", 1.0).stdout
    assert "*filter" in fake(("iptables-legacy-save",), "", 1.0).stdout
    assert fake(("iptables-nft-save",), "", 1.0).stdout.strip() == ""
