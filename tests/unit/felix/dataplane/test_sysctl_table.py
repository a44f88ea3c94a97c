"""felix.dataplane.sysctl_table against the fake kernel."""

from __future__ import annotations

import errno

import pytest

from felix.dataplane.sysctl_table import NODE, Setting, SysctlTable
from libcalico.testing.kernel import FakeKernel

ARP = "net/ipv4/conf/cali1/proxy_arp"
RA = "net/ipv6/conf/cali1/accept_ra"
FORWARD = "net/ipv4/ip_forward"


@pytest.fixture
def kernel() -> FakeKernel:
    made = FakeKernel()
    made.add_link("cali1")
    return made


@pytest.fixture
def table(kernel: FakeKernel) -> SysctlTable:
    return SysctlTable(kernel)


def written(kernel: FakeKernel) -> list[str]:
    writes, kernel.writes = kernel.writes, []
    return [write.key for write in writes]


async def test_settings_are_written_the_nodes_first_and_then_in_the_given_order(kernel, table):
    table.set_settings("cali1", [Setting(RA, "0"), Setting(ARP, "1")])
    table.set_settings(NODE, [Setting(FORWARD, "1")])
    assert (await table.apply()).written == 3
    assert written(kernel) == [FORWARD, RA, ARP]
    assert kernel.sysctls[ARP] == "1"
    assert table.problem("cali1") == ""


async def test_nothing_is_written_twice(kernel, table):
    table.set_settings("cali1", [Setting(ARP, "1")])
    await table.apply()
    table.set_settings("cali1", [Setting(ARP, "1")])
    assert (await table.apply()).written == 0


async def test_a_reading_back_repairs_what_somebody_changed_and_nothing_else(kernel, table):
    table.set_settings("cali1", [Setting(ARP, "1"), Setting(RA, "0")])
    await table.apply()
    kernel.sysctls[ARP] = "0"
    written(kernel)
    table.queue_resync("test")
    await table.apply()
    assert written(kernel) == [ARP]


async def test_a_changed_value_is_written_and_a_dropped_one_left_as_it_is(kernel, table):
    table.set_settings("cali1", [Setting(ARP, "1"), Setting(RA, "0")])
    await table.apply()
    table.set_settings("cali1", [Setting(ARP, "0")])
    await table.apply()
    assert (kernel.sysctls[ARP], kernel.sysctls[RA]) == ("0", "0")
    kernel.sysctls[RA] = "7"
    table.queue_resync("test")
    await table.apply()
    assert kernel.sysctls[RA] == "7", "nobody wants it any more"


async def test_an_interface_made_anew_gets_its_settings_again(kernel, table):
    table.set_settings("cali1", [Setting(ARP, "1")])
    await table.apply()
    kernel.delete_link("cali1")
    kernel.add_link("cali1")
    table.forget_written("cali1")
    await table.apply()
    assert kernel.sysctls[ARP] == "1"


async def test_a_refused_vital_setting_is_a_problem_and_is_tried_again(kernel, table):
    table.set_settings("cali1", [Setting(ARP, "1"), Setting(RA, "0")])
    kernel.fail_next("set", ARP, error=errno.EACCES)
    result = await table.apply()
    assert (result.written, result.failed) == (1, 1)
    assert "Permission denied" in table.problem("cali1")
    assert (await table.apply()).failed == 0
    assert table.problem("cali1") == ""
    assert kernel.sysctls[ARP] == "1"


async def test_a_refused_optional_setting_is_let_go(kernel, table):
    table.set_settings("cali1", [Setting("net/ipv6/conf/nowhere/accept_ra", "0", True)])
    result = await table.apply()
    assert (result.written, result.failed) == (0, 0)
    assert table.problem("cali1") == ""
    assert (await table.apply()).failed == 0


async def test_a_setting_not_written_yet_is_a_problem(table):
    table.set_settings("cali1", [Setting(ARP, "1")])
    assert "not written yet" in table.problem("cali1")


async def test_a_call_that_fails_as_a_whole_leaves_everything_dirty(kernel, table):
    table.set_settings("cali1", [Setting(ARP, "1")])
    kernel.fail_next("write settings")
    assert (await table.apply()).failed == 1
    assert (await table.apply()).written == 1


async def test_an_owner_that_goes_takes_its_trouble_along(kernel, table):
    table.set_settings("cali9", [Setting("net/ipv4/conf/cali9/proxy_arp", "1")])
    assert (await table.apply()).failed == 1
    table.set_settings("cali9", [])
    result = await table.apply()
    assert (result.failed, result.written) == (0, 0)
    assert table.dump()["refusals"] == {}
