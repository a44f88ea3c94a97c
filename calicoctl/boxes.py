"""Box-drawn tables in plain ASCII, as `ipam show` and `node status` print them (datamodel 6.8).

Layer: pure. Headers are upper case and left aligned; columns named in `right` are right aligned.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence


def draw(headers: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> str:
    shown = [header.upper() for header in headers]
    widths = [max(len(row[i]) for row in (shown, *rows)) for i in range(len(headers))]
    rule = "+" + "+".join("-" * (width + 2) for width in widths) + "+"

    def line(row: Sequence[str], is_header: bool) -> str:
        padded = (
            cell.rjust(width) if i in right and not is_header else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        return "| " + " | ".join(padded) + " |"

    body = [line(row, False) for row in rows]
    return "\n".join([rule, line(shown, True), rule, *body, rule])


def percent(part: int, whole: int) -> str:
    """`%.5g (%.0f%%)`: "3 (0%)"."""
    share = 100 * part / whole if whole else 0.0
    return f"{five_digits(part)} ({share:.0f}%)"


def five_digits(value: int) -> str:
    """Go's %.5g of a float."""
    return f"{float(value):.5g}"
