"""A table as LaTeX, for the package booktabs."""

import re
from collections.abc import Sequence

_ESCAPES = {letter: f"\\{letter}" for letter in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    # At the start of a row it would be an option of the line break before.
    "[": "{[}",
    "]": "{]}",
}
_SPECIAL = re.compile("|".join(map(re.escape, _ESCAPES)))


def escape(text: str) -> str:
    r"""Return text as LaTeX prints it, letter by letter.

    >>> escape("100 % of a_b, 90.4 ± 1.2 [89, 91]")
    '100 \\% of a\\_b, 90.4 $\\pm$ 1.2 {[}89, 91{]}'
    """
    return _SPECIAL.sub(lambda found: _ESCAPES[found[0]], text)


def latex_table(
    caption: str,
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    notes: Sequence[str],
    numbers: Sequence[bool],
) -> str:
    r"""Return a `table` environment, whose document needs \usepackage{booktabs}.

    Args:
        caption: What stands above it.
        heads: The names of the columns.
        rows: As many cells each.
        notes: Lines below it.
        numbers: Which columns are aligned at their right end.
    """
    columns = "".join("r" if is_number else "l" for is_number in numbers)
    body = [_row(row) for row in rows]
    below = [f"\\par\\smallskip\\footnotesize {escape(note)}" for note in notes]
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            f"\\caption{{{escape(caption)}}}",
            f"\\begin{{tabular}}{{{columns}}}",
            *(r"\toprule", _row(heads), r"\midrule", *body, r"\bottomrule"),
            r"\end{tabular}",
            *below,
            r"\end{table}",
        ]
    )


def _row(cells: Sequence[str]) -> str:
    return " & ".join(map(escape, cells)) + r" \\"
