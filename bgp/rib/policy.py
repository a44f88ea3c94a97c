"""What may come in and go out: BGPFilters, and Calico's built-in export rules.

Layer: pure. Compiled from the speaker file once per generation; used by bgp.rib.rib (import) and
bgp.rib.export. Prefix conditions are bits (see prefix_match), so a verdict depends only on the
path and a mask.

Import:  the peer's filters in order, first matching rule decides; then accept.
Export:  the peer's filters in order, an Accept sends the route as it is; then, in this order,
         disabled pools reject; prefixAdvertisements add communities; our own blocks are accepted
         exactly, what is inside them is rejected unless it has an elevated priority; service ranges
         are accepted; enabled pools are accepted; everything else is rejected.
Priorities travel as LOCAL_PREF = 2^31-1 - priority (Calico's encoding), so a lower kernel metric
wins at every node.

Source: bgp reference 6; Calico confd/pkg/backends/calico/bgp_processor.go (buildExportFilter),
bird_ipam.cfg.template (calico_export_to_bgp_peers), template_funcs.go (BGPFilter).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from bgp.rib.attributes import (
    DEFAULT_LOCAL_PREF,
    LargeCommunity,
    PathAttributes,
    as_list,
    prepend,
    with_communities,
)
from bgp.rib.nlri import IPV4, IPV6, Family, Nlri, parse
from bgp.rib.path import LocalRoute, Path
from bgp.rib.prefix_match import EQUAL, IN, Classifier, PrefixMatch
from libcalico.errors import ConfigError
from libcalico.model.bgp_filter import BGPFilterOperation, BGPFilterRuleV4, BGPFilterRuleV6
from libcalico.model.speaker import Drain, Filter, SpeakerConfig

PRIORITY_BASE = 2**31 - 1
FilterRule = BGPFilterRuleV4 | BGPFilterRuleV6


@dataclass(frozen=True, slots=True)
class Operations:
    """What an accepting rule changes."""

    communities: tuple[int, ...] = ()
    large_communities: tuple[LargeCommunity, ...] = ()
    prepended: tuple[int, ...] = ()
    local_pref: int | None = None

    def apply(self, attributes: PathAttributes) -> PathAttributes:
        changed = with_communities(attributes, self.communities, self.large_communities)
        if self.prepended:
            changed = replace(changed, as_path=prepend(changed.as_path, self.prepended))
        if self.local_pref is not None:
            changed = replace(changed, local_pref=self.local_pref)
        return changed


@dataclass(frozen=True, slots=True)
class Rule:
    """One compiled rule; a field at its default does not restrict."""

    accept: bool
    prefix_bit: int = 0
    remote_only: bool = False
    interface: str = ""
    peer_type: str = ""
    community: int | LargeCommunity | None = None
    as_path_prefix: tuple[int, ...] = ()
    local_pref: int | None = None
    operations: Operations = Operations()

    def matches(self, path: Path, mask: int, *, to_ibgp: bool) -> bool:
        if self.prefix_bit and not mask & self.prefix_bit:
            return False
        if self.peer_type and (self.peer_type == "iBGP") is not to_ibgp:
            return False
        return self._matches_origin(path) and self._matches_attributes(path.attributes)

    def _matches_origin(self, path: Path) -> bool:
        if self.remote_only and path.local is not None:
            return False
        if not self.interface:
            return True
        return path.local is not None and fnmatchcase(path.local.interface, self.interface)

    def _matches_attributes(self, attributes: PathAttributes) -> bool:
        wanted = self.community
        if isinstance(wanted, int) and wanted not in attributes.communities:
            return False
        if isinstance(wanted, tuple) and wanted not in attributes.large_communities:
            return False
        if self.local_pref is not None and attributes.local_pref != self.local_pref:
            return False
        head = self.as_path_prefix
        return not head or as_list(attributes.as_path)[: len(head)] == head


Chain = tuple[Rule, ...]


def run_chain(chain: Chain, path: Path, mask: int, *, to_ibgp: bool) -> PathAttributes | bool:
    """The attributes after an accepting rule; False when rejected; True when no rule matched."""
    for rule in chain:
        if rule.matches(path, mask, to_ibgp=to_ibgp):
            return rule.operations.apply(path.attributes) if rule.accept else False
    return True


@dataclass(slots=True)
class FamilyPolicy:
    """The policy of one family, compiled. Bits of several conditions are one mask."""

    classifier: Classifier
    imports: dict[str, Chain]
    exports: dict[str, Chain]
    normal_metric: int
    drain: Drain = Drain.NONE
    disabled_pools: int = 0
    enabled_pools: int = 0
    services: int = 0
    exported_blocks: int = 0
    inside_blocks: int = 0
    hidden_blocks: int = 0
    advertisements: tuple[tuple[int, tuple[int, ...], tuple[LargeCommunity, ...]], ...] = ()

    def import_chain(self, filters: Iterable[str]) -> Chain:
        return _joined(self.imports, filters)

    def export_chain(self, filters: Iterable[str]) -> Chain:
        return _joined(self.exports, filters)

    def export(self, path: Path, mask: int) -> PathAttributes | None:
        """Calico's built-in rules; None when the route stays here."""
        if mask & self.disabled_pools:
            return None
        attributes = path.attributes
        for bit, standard, large in self.advertisements:
            if mask & bit:
                attributes = with_communities(attributes, standard, large)
        if mask & self.exported_blocks:
            return attributes
        if mask & (self.inside_blocks | self.hidden_blocks):
            elevated = self.metric_of(path) < self.normal_metric
            return attributes if elevated and not mask & self.hidden_blocks else None
        return attributes if mask & (self.services | self.enabled_pools) else None

    def metric_of(self, path: Path) -> int:
        """The kernel metric a path stands for: its own, or what its LOCAL_PREF encodes."""
        if path.local is not None:
            return path.local.metric or self.normal_metric
        preference = path.attributes.local_pref
        return PRIORITY_BASE - (DEFAULT_LOCAL_PREF if preference is None else preference)

    def local_attributes(self, route: LocalRoute) -> PathAttributes:
        metric = route.metric or self.normal_metric
        return PathAttributes(local_pref=PRIORITY_BASE - metric)


def _joined(chains: dict[str, Chain], filters: Iterable[str]) -> Chain:
    """A filter that does not exist (yet) filters nothing, as in Calico."""
    return tuple(rule for name in filters for rule in chains.get(name, ()))


class Policy:
    """One generation: compiled from the speaker file, replaced as a whole."""

    def __init__(self, config: SpeakerConfig) -> None:
        """Errors: ConfigError naming what does not compile."""
        self.families: dict[Family, FamilyPolicy] = {
            family: FamilyPolicy(
                Classifier(family), {}, {}, config.kernel.metric_of(version), config.drain
            )
            for family, version in ((IPV4, 4), (IPV6, 6))
        }
        for item in config.filters:
            self._add_filter(item)
        self._add_pools(config)
        self._add_blocks(config)
        for cidr in config.service_cidrs:
            match = _match(cidr, "service_cidrs")
            self.families[match.family].services |= self._bit(match)
        self._add_advertisements(config)

    def local_routes(self, config: SpeakerConfig) -> dict[tuple[Family, Nlri], LocalRoute]:
        """Blocks and service ranges; workloads come from the kernel."""
        found: dict[tuple[Family, Nlri], LocalRoute] = {}
        for cidr in config.service_cidrs:
            found[parse(cidr)] = LocalRoute("service")
        for block in config.blocks:
            family, nlri = parse(block.cidr)
            is_host = nlri[0] == family.bits
            found[family, nlri] = LocalRoute("block", blackhole=block.blackhole and not is_host)
        return found

    def _bit(self, match: PrefixMatch) -> int:
        return self.families[match.family].classifier.add(match)

    def _add_filter(self, item: Filter) -> None:
        v4, v6 = self.families.values()
        for policy, imports, exports in (
            (v4, item.import_v4, item.export_v4),
            (v6, item.import_v6, item.export_v6),
        ):
            policy.imports[item.name] = self._chain(item.name, imports)
            policy.exports[item.name] = self._chain(item.name, exports)

    def _chain(self, name: str, rules: Sequence[FilterRule]) -> Chain:
        compiled = []
        for number, rule in enumerate(rules):
            try:
                compiled.append(self._rule(rule))
            except ValueError as err:
                raise ConfigError("speaker.json", f"filter {name} rule {number}", str(err)) from err
        return tuple(compiled)

    def _rule(self, rule: FilterRule) -> Rule:
        if rule.action not in ("Accept", "Reject"):
            raise ValueError(f"unknown action {rule.action!r}")
        # A condition we do not know must not be read as no condition: with Accept it would open.
        if rule.source and rule.source != "RemotePeers":
            raise ValueError(f"unknown source {rule.source!r}")
        if rule.peer_type and rule.peer_type not in ("eBGP", "iBGP"):
            raise ValueError(f"unknown peerType {rule.peer_type!r}")
        bit = 0
        if rule.cidr:
            lengths = rule.prefix_length
            bit = self._bit(
                PrefixMatch.of(
                    rule.cidr,
                    rule.match_operator or IN,
                    min_length=lengths.min if lengths else None,
                    max_length=lengths.max if lengths else None,
                )
            )
        values = rule.communities.values if rule.communities else ()
        return Rule(
            accept=rule.action == "Accept",
            prefix_bit=bit,
            remote_only=rule.source == "RemotePeers",
            interface=rule.interface or "",
            peer_type=rule.peer_type or "",
            community=community(values[0]) if values else None,
            as_path_prefix=tuple(int(asn) for asn in rule.as_path_prefix),
            local_pref=None if rule.priority is None else PRIORITY_BASE - rule.priority,
            operations=_operations(rule.operations),
        )

    def _add_pools(self, config: SpeakerConfig) -> None:
        for pool in config.pools:
            match = _match(pool.cidr, "pools")
            policy = self.families[match.family]
            bit = self._bit(match)
            if pool.export:
                policy.enabled_pools |= bit
            else:
                policy.disabled_pools |= bit

    def _add_blocks(self, config: SpeakerConfig) -> None:
        for block in config.blocks:
            exact, inside = _match(block.cidr, "blocks", EQUAL), _match(block.cidr, "blocks")
            policy = self.families[exact.family]
            if block.export:
                policy.exported_blocks |= self._bit(exact)
                policy.inside_blocks |= self._bit(inside)
            else:
                policy.hidden_blocks |= self._bit(inside)

    def _add_advertisements(self, config: SpeakerConfig) -> None:
        for item in config.prefix_advertisements:
            match = _match(item.cidr, "prefix_advertisements")
            policy = self.families[match.family]
            standard, large = split_communities((*item.communities, *item.large_communities))
            entry = (self._bit(match), standard, large)
            policy.advertisements = (*policy.advertisements, entry)


def _match(cidr: str, where: str, operator: str = IN) -> PrefixMatch:
    try:
        return PrefixMatch.of(cidr, operator)
    except ValueError as err:
        raise ConfigError("speaker.json", where, str(err), cidr) from err


def _operations(operations: Sequence[BGPFilterOperation]) -> Operations:
    communities: list[str] = []
    prepended: tuple[int, ...] = ()
    local_pref: int | None = None
    for operation in operations:
        if operation.add_community is not None:
            communities.append(operation.add_community.value)
        if operation.prepend_as_path is not None:
            # The last prepend operation ends up in front of the earlier ones.
            prepended = tuple(int(a) for a in operation.prepend_as_path.prefix) + prepended
        if operation.set_priority is not None:
            local_pref = PRIORITY_BASE - operation.set_priority.value
    standard, large = split_communities(communities)
    return Operations(standard, large, prepended, local_pref)


def split_communities(
    texts: Iterable[str],
) -> tuple[tuple[int, ...], tuple[LargeCommunity, ...]]:
    values = [community(text) for text in texts]
    standard = tuple(value for value in values if isinstance(value, int))
    large = tuple(value for value in values if isinstance(value, tuple))
    return standard, large


def community(text: str) -> int | LargeCommunity:
    """ "aa:nn" or "aa:nn:mm". Errors: ValueError."""
    numbers = [int(part) for part in text.split(":")]
    if len(numbers) == 2 and all(0 <= number <= 0xFFFF for number in numbers):
        return numbers[0] << 16 | numbers[1]
    if len(numbers) == 3 and all(0 <= number <= 0xFFFFFFFF for number in numbers):
        return (numbers[0], numbers[1], numbers[2])
    raise ValueError(f"not a community: {text!r}")


def policy_inputs(config: SpeakerConfig) -> tuple[object, ...]:
    """What a Policy is compiled from: equal inputs, equal policy."""
    return (
        config.filters,
        config.pools,
        config.blocks,
        config.service_cidrs,
        config.prefix_advertisements,
        config.kernel.metric,
        config.kernel.metric_v6,
        config.drain,
    )
