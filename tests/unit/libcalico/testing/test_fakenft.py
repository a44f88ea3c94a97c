"""libcalico.testing.fakenft: the fake refuses what the kernel refuses.

tests/netns/test_nft_fake.py runs the same cases on the real kernel.
"""

from __future__ import annotations

import pytest

from felix.dataplane.nft_port import AddChain, AddTable, TransactionRefused
from felix.kernel.nft import NftKernel
from libcalico.testing.fakenft import FakeNft, Packet
from tests.support.nft_cases import CASES, Case


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_a_batch_is_taken_or_refused_as_by_the_kernel(case: Case):
    fake = FakeNft()
    kernel = NftKernel(fake)
    await kernel.commit(case.before)
    before = await kernel.read()
    if not case.number:
        await kernel.commit(case.ops)
        return
    with pytest.raises(TransactionRefused) as caught:
        await kernel.commit(case.ops)
    first = caught.value.refusals[0]
    assert (first.op_index, first.errno) == (case.place, case.number)
    assert await kernel.read() == before, "a refused batch leaves nothing"
    kernel.close()


async def test_the_generation_moves_by_one_a_batch():
    fake = FakeNft()
    kernel = NftKernel(fake)
    before = fake.generation
    await kernel.commit([AddTable(), AddChain("a"), AddChain("b")])
    assert fake.generation == before + 1


def test_a_packet_in_words_has_headers():
    packet = Packet("10.0.0.1", "10.0.0.2", "udp", sport=1, dport=2)
    assert packet.network_header()[12:20] == bytes([10, 0, 0, 1, 10, 0, 0, 2])
    assert packet.network_header()[9] == 17
    assert packet.transport_header()[:4] == b"\0\1\0\2"
    six = Packet("fd00::1", "fd00::2", "icmpv6", icmp_type=135)
    assert six.network_header()[8] == 0xFD
    assert six.network_header()[6] == 58
    assert six.transport_header()[0] == 135


def test_without_tables_everything_passes():
    fake = FakeNft()
    assert fake.forward(Packet("10.0.0.1", "10.0.0.2"), "cali1", "cali2") == "accept"
