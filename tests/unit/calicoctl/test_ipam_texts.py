"""The texts of ipam show, configure, release and audit (datamodel 6.8)."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest

from calicoctl.commands.ipam import configure, release, show
from calicoctl.commands.ipam.audit import summary_line, violation_line
from calicoctl.main import run
from ipam.audit import Looked, Violation
from ipam.blocks import Holder
from ipam.errors import MalformedBlock
from ipam.requests import Assignment, Failure, Release, Released
from ipam.utilization import BlockUse, PoolUse
from libcalico.errors import BadSequenceNumber, SuiteError
from libcalico.model.ipam import IpamConfig
from tests.unit.ipam.test_check import block, pod

# ---- show ----------------------------------------------------------------------------------------


def test_6_8_the_sample_table_of_the_data_model():
    used = BlockUse(cidr=ip_network("10.10.3.64/26"), affinity="host:n1", capacity=64, in_use=3,
                    reserved=0, available=61)  # fmt: skip
    pool = PoolUse(name="a", cidr=ip_network("10.10.0.0/16"), capacity=65536, in_use=3,
                   available=65533, blocks=(used,))  # fmt: skip
    assert (
        show.use_text([pool], True)
        == """\
+----------+---------------+-----------+------------+--------------+--------------+
| GROUPING | CIDR          | IPS TOTAL | IPS IN USE | IPS RESERVED | IPS FREE     |
+----------+---------------+-----------+------------+--------------+--------------+
| IP Pool  | 10.10.0.0/16  |     65536 |     3 (0%) |       0 (0%) | 65533 (100%) |
| Block    | 10.10.3.64/26 |        64 |     3 (5%) |       0 (0%) |     61 (95%) |
+----------+---------------+-----------+------------+--------------+--------------+"""
    )
    assert "Block" not in show.use_text([pool], False)


def test_6_8_orphans_have_rows_and_no_pool_row():
    used = BlockUse(cidr=ip_network("10.9.0.0/26"), affinity=None, capacity=64, in_use=1,
                    reserved=0, available=63)  # fmt: skip
    orphans = PoolUse(name="orphaned allocation blocks", cidr=None, blocks=(used,))
    rows = show.use_text([orphans], True).splitlines()
    assert len(rows) == 5
    assert rows[3].startswith("| Block    | 10.9.0.0/26 |")


def test_blocks_that_are_left_out_are_named_in_one_line():
    said = "warning: IPAM blocks that do not parse are left out (see ipam check): "
    assert show.unreadable_text(["a", "b", "c"]) == f"{said}a, b, c"
    assert show.unreadable_text(["a", "b", "c", "d", "e"]) == f"{said}a, b, c and 2 more"


def test_6_8_borrowed_is_what_another_node_holds_or_nobodys_block():
    stored = [
        block(pod("own"), Holder("t", {"node": "n2", "type": "ipipTunnelAddress"}),
              Holder("p", {"node": "n2", "pod": "p", "namespace": "prod", "type": "x"})),
        block(Holder("v", {"node": "n3", "vmi-name": "vm", "pod": "q", "namespace": "prod"}),
              cidr="10.0.0.8/29", affinity=None),
        block(Holder("l", {"node": "x"}), cidr="10.0.0.16/29", affinity="virtual:load-balancer"),
    ]  # fmt: skip
    assert (
        show.borrowed_text(stored)
        == """\
+-----------+----------------+--------------+---------------+-------------------+--------------+
| IP        | BORROWING-NODE | BLOCK        | BLOCK OWNER   | TYPE              | ALLOCATED-TO |
+-----------+----------------+--------------+---------------+-------------------+--------------+
| 10.0.0.1  | n2             | 10.0.0.0/29  | n1            | ipipTunnelAddress |              |
| 10.0.0.2  | n2             | 10.0.0.0/29  | n1            | pod               | prod/p       |
| 10.0.0.8  | n3             | 10.0.0.8/29  |               | vmi               | prod/vm      |
| 10.0.0.16 | x              | 10.0.0.16/29 | load-balancer |                   |              |
+-----------+----------------+--------------+---------------+-------------------+--------------+"""
    )


def test_6_8_allocations_without_a_node_are_counted_in_a_note():
    said = show.borrowed_text([block(Holder("h"), Holder("i"))])
    assert said.endswith(
        "\n\nNote: found 2 IP allocations without an explicit node association. "
        "Unable to determine if they are borrowed."
    )


@pytest.mark.parametrize(
    ("persistence", "shown"),
    [(None, "(*ipam.VMAddressPersistence)(nil)      "),
     ("Enabled", '(*ipam.VMAddressPersistence)("Enabled")')],
)  # fmt: skip
def test_6_8_the_settings_as_go_prints_them(persistence: str | None, shown: str):
    config = IpamConfig(strict_affinity=True, max_blocks_per_host=4, ip_cooldown_seconds=30,
                        kube_virt_vm_address_persistence=persistence)  # fmt: skip
    rows = show.configuration_text(config).splitlines()
    assert [row.split(" | ") for row in rows[3:-1]] == [
        ["| StrictAffinity              ", f"{'true':<{len(shown.rstrip())}} |"],
        ["| AutoAllocateBlocks          ", f"{'false':<{len(shown.rstrip())}} |"],
        ["| MaxBlocksPerHost            ", f"{'4':<{len(shown.rstrip())}} |"],
        ["| KubeVirtVMAddressPersistence", f"{shown.rstrip()} |"],
        ["| IPCooldownSeconds           ", f"{'30':<{len(shown.rstrip())}} |"],
    ]


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        (
            Assignment(address=ip_address("10.0.0.1"), handle_id="h",
                       attributes={"pod": "a", "node": "n1"}, alternate_attributes={"pod": "b"}),
            "IP 10.0.0.1 is in use\nHandle ID: h\nActive Owner Attributes:\n  node: n1\n  pod: a\n"
            "Alternate Owner Attributes:\n  pod: b",
        ),
        (
            Assignment(address=ip_address("10.0.0.1")),
            "IP 10.0.0.1 is in use\nHandle ID: <none>\nNo Active Owner attributes defined",
        ),
    ],
)  # fmt: skip
def test_6_8_who_holds_an_address(assignment: Assignment, expected: str):
    assert show.assignment_text(assignment) == expected


# ---- configure -----------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["true", "True", "TRUE", "t", "T", "1"])
def test_6_8_every_true_of_go_is_one(text: str):
    assert configure.parse_strict(text)
    assert not configure.parse_strict({"t": "f", "T": "F", "1": "0"}.get(text, "false"))


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--strictaffinity=yes", "invalid value. Use true or false to set strictaffinity"),
        ("--max-blocks-per-host=many", "invalid value for maxblockhost. Use a valid number"),
        ("--max-blocks-per-host=-1", "invalid value for maxblockhost. Use a valid number"),
        ("--max-blocks-per-host=2147483648", "invalid value for maxblockhost. Use a valid number"),
        ("--max-blocks-per-host=\u0664", "invalid value for maxblockhost. Use a valid number"),
        ("--kubevirt-ip-persistence=enabled",
         "invalid value for --kubevirt-ip-persistence. Use Enabled or Disabled"),
        ("--ip-cooldown-seconds=soon", 'invalid argument "soon" for "--ip-cooldown-seconds" flag: '
         'strconv.ParseInt: parsing "soon": invalid syntax'),
        ("--strictaffinity=", "at least one configuration option must be specified"),
    ],
)  # fmt: skip
def test_6_8_bad_settings(option: str, message: str, capsys: pytest.CaptureFixture[str]):
    assert run(["ipam", "configure", option]) == 1
    assert capsys.readouterr().err == message + "\n"


# ---- release -------------------------------------------------------------------------------------


def failure(text: str, error: SuiteError) -> Failure:
    return Failure(Release(address=ip_address(text)), error)


def test_6_8_what_was_not_released_is_one_line_that_names_it():
    done = Released(failed=(
        failure("10.0.0.1", BadSequenceNumber("10.0.0.1", 1, 2)),
        failure("10.0.0.9", MalformedBlock("10.0.0.8/29", ("odd",))),
    ))  # fmt: skip
    assert release.release_text([ip_address("10.0.0.2")], done) == (
        "An error occurred while releasing some IPs: update conflict: 10.0.0.2; "
        "update conflict: 10.0.0.1; "
        "10.0.0.9: IPAM block 10.0.0.8/29 is malformed: odd.  "
        "Problems are often caused by an out-of-date IPAM report.  "
        "Try regenerating the IPAM report and retry."
    )
    assert release.release_text([], Released()) == ""
    many = [ip_address(f"10.0.0.{i}") for i in range(12)]
    assert "10.0.0.9; and 2 more.  " in release.release_text(many, Released())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "at least one of the flags in the group [ip from-report] is required"),
        (("--ip=1.2.3.4", "--from-report=x"), "if any flags in the group [ip from-report] are set "
         "none of the others can be; [from-report ip] were all set"),
        (("--ip=here",), "Error executing command: invalid IP address specified: here"),
        (("--from-report=/nowhere/x",), "open /nowhere/x: no such file or directory"),
    ],
)  # fmt: skip
def test_6_8_wrong_words_to_release(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
):
    assert run(["ipam", "release", *arguments]) == 1
    assert capsys.readouterr().err == message + "\n"


# ---- audit ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "verdict"), [(0, "no violation"), (1, "1 violation"), (2, "2 violations")]
)
def test_the_summary_of_an_audit(count: int, verdict: str):
    assert summary_line(3, 9, Looked(4, 2, 60), count, False) == (
        "Audited revisions 3 to 9: 4 with changes of IPAM or endpoints, 2 blocks, 60 addresses; "
        + verdict
    )
    assert summary_line(3, 9, Looked(4, 2, 60), count, True) == (
        f'{{"from":3,"to":9,"revisions":4,"blocks":2,"addresses":60,"violations":{count}}}'
    )


def test_a_violation_is_a_line():
    violation = Violation(7, "overlap", "10.0.0.1", "a and b")
    assert violation_line(violation, False) == "revision 7: overlap: 10.0.0.1: a and b"
    assert violation_line(violation, True) == (
        '{"revision":7,"kind":"overlap","subject":"10.0.0.1","detail":"a and b"}'
    )
