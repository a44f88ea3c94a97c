"""felix.dataplane.conntrack_table against the fake kernel."""

from __future__ import annotations

import pytest

from felix.dataplane.conntrack_table import ConntrackTable
from libcalico.testing.kernel import FakeKernel


@pytest.fixture
def kernel() -> FakeKernel:
    made = FakeKernel()
    made.connections = {"10.0.0.1": 3, "fd00::1": 2}
    return made


async def test_each_address_is_forgotten_once(kernel):
    table = ConntrackTable(kernel)
    table.forget("10.0.0.1")
    table.forget("10.0.0.1")
    table.forget("fd00::1")
    table.queue_resync("test")
    assert (await table.apply()).deleted == 5
    assert kernel.connections == {}
    assert (await table.apply()).deleted == 0
    assert [write.key for write in kernel.writes] == ["10.0.0.1", "fd00::1"]


async def test_what_failed_is_tried_again(kernel):
    table = ConntrackTable(kernel)
    table.forget("10.0.0.1")
    table.forget("fd00::1")
    kernel.fail_next("forget", "fd00::1")
    result = await table.apply()
    assert (result.deleted, result.failed) == (0, 2)
    assert table.dump() == {"pending": ["10.0.0.1", "fd00::1"]}
    await table.apply()
    assert kernel.connections == {}
    assert table.dump() == {"pending": []}
