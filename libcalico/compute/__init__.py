"""The pure cluster-wide engine: labels and selectors in, matches and set members out.

Layer: pure (no I/O, no clock, no logging); imports libcalico.model and libcalico.selector.
Users: felix.calc (which policies touch a local endpoint; what is in an ip set), typha's spans.

The shape is "state in, deltas out": the `update_*` and `delete_*` calls only remember, `flush()`
works out what changed since the flush before and returns the *net* deltas. Repeating a call,
deleting what is not there, or changing something and changing it back gives no delta. The result
depends on the state only, never on the order of the calls. So load everything, then flush once.

    labelindex.py
        LabelIndex[I, S]()                       I = item id, S = selector id: any hashables
            update_item(item_id, labels, parents=())          labels: Mapping[str, str], not copied
            delete_item(item_id)
            update_parent(name, labels)                       a profile's labelsToApply
            delete_parent(name)
            update_selector(selector_id, selector)            libcalico.selector.Selector
            delete_selector(selector_id)                      its matches are reported as stopped
            flush() -> list[MatchDelta[S, I]]
            members(selector_id) -> Matches[I]                as of the last flush
            selectors_of(item_id) -> list[S]                  as of the last flush
        MatchDelta(selector_id, started: Matches[I], stopped: Matches[I])
        Matches[I]: Collection, cheap len() and `in`, iterated lazily; valid until the next flush

    members.py
        MemberIndex[I, S]()                      I = item id, S = set id; members are text
            update_item(item_id, labels, parents=(), *, addresses=(), ports=())
            delete_item(item_id) / update_parent(name, labels) / delete_parent(name)
            update_set(set_id, selector, *, port: PortMatch | None = None)
            delete_set(set_id)                                gives no delta: the set is gone
            flush() -> list[SetDelta[S]]
            members(set_id) -> frozenset[str]
            sets_of(item_id) -> list[S]
        SetDelta(set_id, is_new, added: frozenset, removed: frozenset)   is_new: first of this set,
                                                 added is all of it; told even when it is empty
        EndpointPort(name, protocol, port)       what an item offers (network sets: none)
        PortMatch(name, protocol)                what a named-port set looks for
        addresses are canonical CIDR text, protocols lower case; members of a set with a port are
        "10.0.0.1,tcp,8080", of any other set the addresses as given

    What stored objects mean to it, the same for every node and for typha:
    contributions.py   what an endpoint or network set contributes (labels, addresses, ports)
    policies.py        the five kinds of policy in one shape
    rule_compiler.py   rules -> compiled rules, and the sets they name by id
    rules.py           compiled rules

    linear.py      LinearIndex: the same calls as LabelIndex, slow and obvious; the tests' oracle
"""
