"""The figures of the paper (PMAL, AAAI 2022), as printed there, in percent.

They were measured on the paper's own splits. A star marks results of earlier methods that its authors
computed themselves. Unknown images are rejected by the distance to the nearest prototypes (the paper's
DR), in the softmax row by the probability. The row of CPN is by the probability as well: the public code of
ARPL, which has it as GCPLoss, scores it so, and it is one of the two rules of its own paper.
"""

from dataclasses import dataclass

SCORES = {"softmax": "probability", "cpn": "probability", "pmal": "distance"}
"""Score that the paper rejects by. Other methods are measured by their own score."""

SMALL = ("mnist", "svhn", "cifar10", "cifar+10", "cifar+50", "tinyimagenet")
LARGE = ("imagenet-lt", "imagenet-100", "imagenet-200")
ABLATION_DATA = "tinyimagenet"
"""Data set of Tables 3 to 5. They use the wide ResNet: their best figure is that of PMAL-WRN in Table 1."""

_TABLE_1 = """
SoftMax    | 99.5 94.7 80.1 - - - | 97.8 88.6 67.7 81.6 80.5 57.7
CPN        | 99.7 96.7 92.9 94.8* 95.0* 81.4* | 99.0 92.6 82.8 88.1 87.9 63.9
PROSER     | - 96.5 92.8 - - 52.1 | 94.3 - 89.1 96.0 95.3 69.3
CGDL       | 99.6 94.2 91.2 - - - | 99.4 93.5 90.3 95.9 95.0 76.2
OpenHybrid | 94.7 92.9 86.8 - - - | 99.5 94.7 95.0 96.2 95.5 79.3
RPL-OSCRI  | 99.5* 95.3* 94.3* 94.6* 94.7* 81.3* | 99.3 95.1 86.1 85.6 85.0 70.2
ARPL       | 99.5 94.3 87.9 94.7 92.9 65.9 | 99.7 96.7 91.0 97.1 95.1 78.2
RPL-WRN    | 99.6* 95.8* 95.1* 95.5* 95.9* 81.7* | 99.6 96.8 90.1 97.6 96.8 80.9
PMAL-OSCRI | 99.6 96.5 96.3 96.4 96.9 84.4 | 99.5 96.3 94.6 96.0 94.3 81.8
PMAL-WRN   | 99.8 97.1 97.5 97.8 98.1 84.7 | 99.7 97.0 95.1 97.8 96.9 83.1
"""

_TABLE_2 = """
Softmax | 37.8 81.7 79.7 | 53.3 79.7 78.4
CPN     | 37.1 86.1 82.1 | 54.5 82.3 79.5
RPL     | 39.0 81.8* 80.7* | 55.1 81.2* 80.2*
RPL++   | 39.7 - - | 55.2 - -
PMAL    | 42.9 86.2 84.1 | 71.7 94.9 93.9
"""

ADDITIONAL_PARAMETERS = {
    "Softmax": ("0", "0", "0"),
    "CPN": ("2M", "0.2M", "0.4M"),
    "RPL": ("2M", "0.2M", "0.4M"),
    "RPL++": ("4M", "", ""),
    "PMAL": ("0", "0", "0"),
}
"""Parameters in addition to the backbone, in Table 2: for imagenet-lt, imagenet-100 and imagenet-200."""

METHOD_ROWS = {
    ("softmax", None): "SoftMax",
    ("cpn", None): "CPN",
    ("proser", None): "PROSER",
    ("cgdl", None): "CGDL",
    ("openhybrid", None): "OpenHybrid",
    ("rpl", "oscri"): "RPL-OSCRI",
    ("rpl", "wide_resnet"): "RPL-WRN",
    ("arpl+cs", None): "ARPL",  # its AUROC is that of ARPL+CS in the paper of ARPL
    ("pmal", "oscri"): "PMAL-OSCRI",
    ("pmal", "wide_resnet"): "PMAL-WRN",
}
"""Row of Table 1 that a method and its encoder (None: any) are compared with."""

LARGE_ROWS = {"softmax": "Softmax", "cpn": "CPN", "rpl": "RPL", "rpl++": "RPL++", "pmal": "PMAL"}
"""The same for Table 2."""

_TABLE_3 = {
    "(a) quality": 80.3,
    "(b) diversity": 78.1,
    "(c) quality, point-to-set": 81.6,
    "(d) diversity, point-to-set": 80.2,
    "(e) quality, diversity": 81.9,
    "(f) quality, diversity, point-to-set": 83.1,
}

_TABLE_4 = {
    "quality: probability": (81.9, 79.3),
    "quality: deep ensembles": (82.3, 80.5),
    "quality: MC dropout": (81.6, 78.8),
    "diversity: random": (81.5, 79.1),
    "diversity: clustering": (81.8, 79.6),
    "topology and gap (ours)": (84.7, 83.1),
}

_TABLE_5 = {
    "T": {"1": 79.9, "5": 81.1, "10": 83.1, "20": 82.6, "30": 83.1},
    "epsilon": {"0.1": 73.6, "0.3": 78.1, "0.5": 82.6, "0.7": 83.1, "0.9": 81.2},
    "U": {"2": 83.1, "3": 83.3, "4": 83.2, "5": 83.0, "6": 83.3},
    "margin": {"0.1": 80.9, "0.3": 82.8, "0.5": 83.1, "0.8": 82.1, "1": 80.5},
}

_LAMBDA = {"0.5": 82.6, "0.8": 82.8, "1": 82.9}
"""From the text of the section on hyper-parameters."""


@dataclass(frozen=True)
class Printed:
    """One figure of the paper."""

    value: float
    own: bool = False
    """Whether the authors computed it for an earlier method: a star in the paper."""


def method_tables() -> dict[int, dict[str, dict[tuple[str, str], Printed]]]:
    """Return Tables 1 and 2: by number, row, and (ACC or AUROC, data set).

    >>> method_tables()[1]["PMAL-OSCRI"]["AUROC", "tinyimagenet"]
    Printed(value=81.8, own=False)
    """
    return {1: _parse(_TABLE_1, SMALL), 2: _parse(_TABLE_2, LARGE)}


def sweep_figures(sweep: str) -> dict[str, tuple[float | None, float]]:
    """Return ACC (None: not printed) and AUROC of an ablation, by the label of the variant.

    >>> sweep_figures("epsilon")["0.7"]
    (None, 83.1)
    """
    if sweep == "quality or diversity":
        return {label: (acc, auroc) for label, (acc, auroc) in _TABLE_4.items()}
    plain = {"components": _TABLE_3, "lambda": _LAMBDA, **_TABLE_5}
    return {label: (None, auroc) for label, auroc in plain.get(sweep, {}).items()}


def _parse(text: str, sets: tuple[str, ...]) -> dict[str, dict[tuple[str, str], Printed]]:
    table: dict[str, dict[tuple[str, str], Printed]] = {}
    for line in text.strip().splitlines():
        row, accuracy, auroc = (part.strip() for part in line.split("|"))
        figures = zip(("ACC", "AUROC"), (accuracy.split(), auroc.split()), strict=True)
        table[row] = {
            (metric, name): Printed(float(word.rstrip("*")), word.endswith("*"))
            for metric, listed in figures
            for name, word in zip(sets, listed, strict=True)
            if word != "-"
        }
    return table
