"""ipam.report: the file, and what of several files may be released (datamodel §6.8, §6.9)."""

from __future__ import annotations

import dataclasses
import json
from ipaddress import ip_address

import pytest
from msgspec.structs import replace

from ipam import blocks, report
from ipam.blocks import Holder
from ipam.check import check
from ipam.report import Report, ReportedAllocation, ReportedHandle, ReportRefused
from ipam.requests import WINDOWS_RESERVED, Release
from libcalico.model.cluster import ClusterInformation, ClusterInformationSpec
from libcalico.model.ipam import Handle
from libcalico.model.meta import ObjectMeta
from tests.unit.ipam.test_check import NOW, block, found, pod

LOCKED = ClusterInformation(
    metadata=ObjectMeta(name="default", resource_version="41"),
    spec=ClusterInformationSpec(cluster_guid="ab", cluster_type="k8s,bgp", datastore_ready=False),
)
CURRENT = Report(version="v1", cluster_guid="ab", cluster_information_revision="41")


def leak(text: str, number: int = 5, **more: object) -> ReportedAllocation:
    return ReportedAllocation(ip=text, handle="h", sequence_number=number, **more)  # type: ignore[arg-type]


def of(*leaks: ReportedAllocation, handles: tuple[ReportedHandle, ...] = ()) -> Report:
    by_address: dict[str, tuple[ReportedAllocation, ...]] = {}
    for item in leaks:
        by_address[item.ip] = (*by_address.get(item.ip, ()), item)
    return replace(CURRENT, allocations=by_address, leaked_handles=handles)


def addresses(*reports: Report) -> list[str]:
    leaks = report.common_leaks({f"{i}": one for i, one in enumerate(reports)})
    return [str(release.address) for release in leaks.addresses]


def test_6_9_the_report_says_who_is_who():
    result = found(
        block(Holder("net.b", {"pod": "b", "node": "n2", "type": "x", "timestamp": "t"})),
        handles={"net.idle": Handle()},
    )
    result = check(dataclasses.replace(result.inventory, cluster=LOCKED), NOW)
    shown = json.loads(report.encode(report.report_of(result, "v1")))
    assert list(shown) == ["version", "clusterGUID", "datastoreLocked",
                           "clusterInformationRevision", "clusterType", "allocations",
                           "leakedHandles"]  # fmt: skip
    assert shown["clusterGUID"] == "ab"
    assert shown["datastoreLocked"] is True
    assert shown["clusterInformationRevision"] == "41"
    assert shown["clusterType"] == "k8s,bgp"
    assert shown["leakedHandles"] == [{"ID": "net.idle", "UID": None, "Revision": "7"}]
    (entry,) = shown["allocations"]["10.0.0.0"]
    assert list(entry.items()) == [
        ("ip", "10.0.0.0"), ("handle", "net.b"), ("sequenceNumber", 100), ("pod", "b"),
        ("node", "n2"), ("type", "x"), ("creationTimestamp", "t"), ("inUse", False),
        ("borrowed", True), ("owners", None),
    ]  # fmt: skip


def test_6_9_windows_addresses_have_an_owner_and_no_handle():
    result = found(blocks.new_block("10.0.0.0/29", 5, WINDOWS_RESERVED))
    shown = json.loads(report.encode(report.report_of(result, "v1")))["allocations"]
    assert shown["10.0.0.0"][0] == {
        "ip": "10.0.0.0", "sequenceNumber": 0, "inUse": True, "owners": ["Reserved for Windows"],
    }  # fmt: skip


def test_it_is_written_as_go_writes_it():
    encoded = report.encode(of(leak("10.0.0.10"), leak("10.0.0.9", pod="<&>\u2028é")))
    assert encoded.index(b'"10.0.0.10"') < encoded.index(b'"10.0.0.9"')
    assert b'"pod": "\\u003c\\u0026\\u003e\\u2028\xc3\xa9"' in encoded
    assert b"leakedHandles" not in encoded
    assert encoded.endswith(b"}")
    assert b'"allocations": {}' in report.encode(CURRENT)


def test_what_is_written_is_read_again_exactly():
    number = 2**63 + 12345
    one = of(leak("10.0.0.1", number, in_use=True, owners=("x",), cooling_down=True),
             handles=(ReportedHandle(id="h", revision="7"),))  # fmt: skip
    assert report.decode(report.encode(one), "f") == one


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (b"", "truncated"),
        (b"[]", "Expected `object`"),
        (b'{"allocations": {"10.0.0.1": [{"ip": 5}]}}', "$.allocations[...][0].ip"),
        (b'{"allocations": {"10.0.0.1": [{}]}}', "missing required field `ip`"),
        (b"\xff", "report.json"),
    ],
)
def test_what_is_no_report_is_refused_with_file_and_field(text: bytes, part: str):
    with pytest.raises(ReportRefused) as caught:
        report.decode(text, "report.json")
    assert part in str(caught.value)
    assert str(caught.value).startswith("cannot read the report report.json: ")


# ---- §6.8: whether to act ------------------------------------------------------------------------


def refusal(cluster: ClusterInformation, *reports: Report, force: bool = False) -> str:
    named = {f"r{i}": one for i, one in enumerate(reports)}
    with pytest.raises(ReportRefused) as caught:
        report.judge(named, cluster, "v1", force=force)
    return str(caught.value)


@pytest.mark.parametrize("force", [False, True])
def test_6_8_another_cluster_is_refused_whatever_is_forced(force: bool):
    assert refusal(LOCKED, CURRENT, replace(CURRENT, cluster_guid="cd"), force=force) == (
        "cluster does not match the provided report (r1): mismatched cluster GUID. "
        "Refusing to release"
    )


def test_6_8_another_version_needs_force():
    older = replace(CURRENT, version="v0")
    assert refusal(LOCKED, older) == (
        "the provided report (r0) was produced using a different version (v0) of calicoctl. "
        "Refusing to release"
    )
    assert report.judge({"r0": older}, LOCKED, "v1", force=True) == [
        "WARNING: Report was produced using a different version of calicoctl. "
        "Ignoring due to --force option"
    ]


@pytest.mark.parametrize("force", [False, True])
def test_6_8_one_report_at_least_is_of_the_present_state(force: bool):
    stale = replace(CURRENT, cluster_information_revision="40")
    assert refusal(LOCKED, stale, stale, force=force) == (
        "the provided reports are all stale - at least one should be up-to-date. "
        "Please generate a new report while the data store is locked and try again"
    )
    assert report.judge({"a": stale, "b": CURRENT}, LOCKED, "v1", force=False) == []


@pytest.mark.parametrize("ready", [True, None])
def test_6_8_an_open_datastore_needs_force(ready: bool | None):
    cluster = replace(LOCKED, spec=replace(LOCKED.spec, datastore_ready=ready))
    assert refusal(cluster, CURRENT) == (
        "data store is not locked. Either lock the data store, or re-run with --force"
    )
    assert report.judge({"r": CURRENT}, cluster, "v1", force=True) == [
        "WARNING: Data store is not locked. Ignoring due to --force option"
    ]


# ---- §6.8: what may go ---------------------------------------------------------------------------


def test_6_8_only_what_every_report_calls_leaked_goes():
    first = of(leak("10.0.0.1"), leak("10.0.0.2"), leak("10.0.0.3", in_use=True))
    second = of(leak("10.0.0.2"), leak("10.0.0.3"), leak("10.0.0.4"))
    assert addresses(first, second) == ["10.0.0.2"]
    assert addresses(first) == ["10.0.0.1", "10.0.0.2"]
    assert addresses(first, second, of()) == []


def test_6_8_what_is_in_use_or_cooling_down_stays():
    assert addresses(of(leak("10.0.0.1", in_use=True), leak("10.0.0.2", cooling_down=True))) == []


def test_6_8_another_assignment_of_the_address_is_another_leak():
    assert addresses(of(leak("10.0.0.1", 5)), of(leak("10.0.0.1", 6))) == []
    other = replace(leak("10.0.0.1"), handle="i")
    assert addresses(of(leak("10.0.0.1")), of(other)) == []


def test_6_8_handles_go_by_revision():
    same, before, after = (ReportedHandle(id=i, revision=r) for i, r in
                           (("a", "5"), ("b", "6"), ("b", "7")))  # fmt: skip
    first, second = of(handles=(same, before)), of(handles=(after, same))
    assert report.common_leaks({"1": first, "2": second}).handles == (same,)


def test_an_address_nobody_can_read_is_refused_by_its_place():
    bad = replace(CURRENT, allocations={"10.0.0.1": (leak("rubbish"),)})
    with pytest.raises(ReportRefused, match=r"allocations\[10\.0\.0\.1\]\.ip: invalid IP address"):
        addresses(bad)


def test_6_8_what_changed_since_is_told_from_what_is_gone():
    stored = [block(pod("a"), pod("b"), pod("c"), Holder())]
    leaks = [
        Release(address=ip_address(text), handle_id=handle, sequence_number=number)
        for text, handle, number in [
            ("10.0.0.0", "net.a", 100), ("10.0.0.1", "net.b", 99), ("10.0.0.2", "net.x", 100),
            ("10.0.0.3", "", 100), ("10.0.0.4", "net.d", 100), ("10.9.9.9", "h", 1),
            ("fd00::1", "h", 1),
        ]
    ]  # fmt: skip
    present = report.compare(leaks, stored)
    assert present.same == (leaks[0], leaks[3])
    assert [str(a) for a in present.changed] == ["10.0.0.1", "10.0.0.2"]
    assert [str(a) for a in present.gone] == ["10.0.0.4", "10.9.9.9", "fd00::1"]


def test_a_report_without_numbers_goes_by_handle():
    (held,) = report.compare(
        [Release(address=ip_address("10.0.0.0"), handle_id="net.a")], [block(pod("a"))]
    ).same
    assert held.sequence_number is None
