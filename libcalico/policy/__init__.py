"""The reference evaluator: which verdict do these objects give this packet, and why.

Layer: pure, above libcalico.model and beside libcalico.compute (which it does not use: it is the
oracle that the fast engine and the rendered rules are compared with). Users: tests of felix,
`calicoctl policy explain`, dikastes.

    packet.py      Packet: one new connection's first packet
    world.py       World: the objects, read once, nothing indexed
    staged.py      the objects as they would be if staged policies were enforced
    matching.py    does a rule match a packet
    evaluate.py    evaluate_endpoint(world, endpoint, direction, packet) -> Verdict
                   evaluate_packet(world, packet) -> PacketVerdict (egress of the source, ingress of
                   the destination)
"""
