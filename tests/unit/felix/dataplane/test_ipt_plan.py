"""felix.dataplane.ipt_plan: the script between what a table holds and what it should hold."""

from __future__ import annotations

import pytest

from felix.dataplane.ipt_plan import TableState
from felix.dataplane.ipt_save import SavedTable, parse_tables
from felix.rules.ipt_layout import hook_rule
from felix.rules.render_iptables import IptChain

A = IptChain("cali-a", ("-j cali-b", "-j RETURN"))
B = IptChain("cali-b", ("-j DROP",))
FOREIGN = "-s 10.0.0.1/32 -j ACCEPT"


def state(*chains: IptChain, hooks: tuple[str, ...] = (), appends: bool = False) -> TableState:
    made = TableState(4, "filter", appends=appends)
    made.want({chain.name: chain for chain in chains}, frozenset(hooks))
    return made


def saved(*chains: IptChain, forward: tuple[str, ...] = ()) -> SavedTable:
    """What the kernel would print."""
    lines = ["*filter", ":FORWARD ACCEPT [0:0]"]
    lines += [f":{chain.name} - [0:0]" for chain in chains]
    lines += [f"-A FORWARD {rule}" for rule in forward]
    lines += [line for chain in chains for line in chain.lines]
    return parse_tables("\n".join([*lines, "COMMIT", ""]))["filter"]


def lines_of(made: TableState) -> list[str]:
    script = made.script()
    return [] if script is None else script.lines


def test_all_chains_are_declared_before_any_rule():
    made = state(A, B, hooks=("FORWARD",))
    made.absorb(saved())
    assert lines_of(made) == [
        "*filter",
        ":cali-a - [0:0]",
        ":cali-b - [0:0]",
        *A.lines,
        *B.lines,
        f"-I FORWARD 1 {hook_rule('FORWARD')}",
        "COMMIT",
    ]


def test_what_is_right_is_not_mentioned():
    made = state(A, B, hooks=("FORWARD",))
    made.absorb(saved(A, B, forward=(hook_rule("FORWARD"), FOREIGN)))
    assert lines_of(made) == []


def test_a_changed_chain_is_written_alone():
    made = state(A, B)
    made.absorb(saved(A, IptChain("cali-b", ("-j LOG",))))
    assert lines_of(made) == ["*filter", ":cali-b - [0:0]", *B.lines, "COMMIT"]


@pytest.mark.parametrize(
    "found",
    [
        IptChain("cali-b", ("-j DROP", "-j DROP")),
        IptChain("cali-b", ()),
    ],
)
def test_a_chain_somebody_edited_is_written_again(found: IptChain):
    made = state(B)
    made.absorb(saved(found))
    assert lines_of(made) == ["*filter", ":cali-b - [0:0]", *B.lines, "COMMIT"]


def test_what_is_unwanted_is_emptied_and_deleted_after_what_led_there():
    made = state(A)
    made.absorb(saved(A, B))
    assert lines_of(made) == ["*filter", ":cali-b - [0:0]", "-X cali-b", "COMMIT"]


def test_confirmed_is_done_and_a_fresh_wish_begins_from_there():
    made = state(A, B, hooks=("FORWARD",))
    made.absorb(saved(forward=(FOREIGN,)))
    script = made.script()
    assert script is not None
    made.confirm(script)
    assert made.script() is None
    made.want({"cali-a": A}, frozenset({"FORWARD"}))
    assert lines_of(made) == ["*filter", ":cali-b - [0:0]", "-X cali-b", "COMMIT"]


def test_an_old_hook_is_deleted_by_its_words_and_put_first_again():
    ours = hook_rule("FORWARD")
    made = state(A, hooks=("FORWARD",))
    made.absorb(saved(A, forward=(FOREIGN, ours)))
    assert lines_of(made) == [
        "*filter",
        f"-D FORWARD {ours}",
        f"-I FORWARD 1 {ours}",
        "COMMIT",
    ]


def test_in_append_mode_it_is_put_last():
    ours = hook_rule("FORWARD")
    made = state(A, hooks=("FORWARD",), appends=True)
    made.absorb(saved(A, forward=(ours, FOREIGN)))
    assert lines_of(made) == ["*filter", f"-D FORWARD {ours}", f"-A FORWARD {ours}", "COMMIT"]
    made.absorb(saved(A, forward=(FOREIGN, ours)))
    assert lines_of(made) == []


def test_two_hooks_of_ours_are_one_too_many():
    ours = hook_rule("FORWARD")
    made = state(A, hooks=("FORWARD",))
    made.absorb(saved(A, forward=(ours, ours)))
    assert lines_of(made)[1:-1] == [
        f"-D FORWARD {ours}",
        f"-D FORWARD {ours}",
        f"-I FORWARD 1 {ours}",
    ]


def test_a_hook_nobody_wants_goes():
    made = state()
    made.absorb(saved(forward=(FOREIGN, "-j cali-FORWARD")))
    assert lines_of(made) == ["*filter", "-D FORWARD -j cali-FORWARD", "COMMIT"]
    assert not made.is_empty
    made.confirm(made.script())  # type: ignore[arg-type]
    assert made.is_empty


def test_a_chain_that_others_lead_to_is_emptied_once_and_kept():
    text = (
        "*filter\n:MINE - [0:0]\n:cali-b - [0:0]\n-A MINE -j cali-b\n" + B.lines[0] + "\nCOMMIT\n"
    )
    made = state()
    made.absorb(parse_tables(text)["filter"])
    assert lines_of(made) == ["*filter", ":cali-b - [0:0]", "COMMIT"]
    made.absorb(parse_tables(text.replace(B.lines[0] + "\n", ""))["filter"])
    assert lines_of(made) == []


def test_a_line_says_what_it_is_about():
    made = state(A, hooks=("FORWARD",))
    made.absorb(saved(B))
    script = made.script()
    assert script is not None
    told = {
        line: (subject.kind, subject.name)
        for line, subject in ((n, script.subject_at(n)) for n in range(1, len(script.lines) + 1))
    }
    assert told == {
        1: ("commit", ""),
        2: ("chain", "cali-a"),
        3: ("chain", "cali-b"),
        4: ("chain", "cali-a"),
        5: ("chain", "cali-a"),
        6: ("hook", "FORWARD"),
        7: ("delete", "cali-b"),
        8: ("commit", ""),
    }


def test_a_trial_is_a_chain_nothing_leads_to():
    made = state(A, B)
    assert made.trial(["cali-a", "cali-b"]).lines == [
        "*filter",
        ":cali-trial - [0:0]",
        "-A cali-trial -j RETURN",
        "-A cali-trial -j DROP",
        "COMMIT",
    ]
