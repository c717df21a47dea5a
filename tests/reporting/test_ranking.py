import csv
import io

import numpy as np
import pytest
import torch
from PIL import Image

from pmal._runtime.progress import Lines
from pmal._runtime.session import open_session
from pmal.config import EnsembleConfig, MiningConfig, Resources, RunConfig
from pmal.data.samples import ArrayStore, Samples
from pmal.errors import UsageError
from pmal.mining.candidates import select_candidates
from pmal.mining.miner import mine, mine_spaces
from pmal.mining.quality import QualityOptions
from pmal.mining.sample_quality import SampleQuality
from pmal.reporting.contact_sheet import CAPTION, MARGIN, SIDE, TITLE, Row, contact_sheet
from pmal.reporting.ranking import Audit, audit_table, check_auditable, make_audit, sheet_rows, write_audit
from pmal.run.run_folder import open_run
from tests.reporting.embedded import embedded_samples
from tests.support.jobs import make_job


@pytest.fixture
def audit():
    labels = np.array([0, 1, 0, 1, 0, 1, 0])
    pixels = np.zeros((9, 8, 8, 1), np.uint8)
    pixels[:, 0, 0, 0] = np.arange(9)
    store = ArrayStore("birds", pixels)
    samples = Samples(store, np.array([0, 1, 3, 4, 5, 7, 8]), labels, ("=owl/../x", "tit"))
    log_r = torch.tensor([-0.5, -0.1, -0.2, -3.0, -0.2, -0.2, -2.0], dtype=torch.float64)
    points = torch.tensor([[0.0], [0.0], [5.0], [1.0], [5.1], [9.0], [2.0]], dtype=torch.float64)
    settings, names = MiningConfig(per_class=2), samples.class_names
    found = mine(log_r, points, labels, settings, num_classes=2, ids=samples.ids, class_names=names)
    candidates = select_candidates(log_r, torch.from_numpy(labels), at_least=2)
    return Audit(samples, log_r, candidates, torch.tensor([0, 1, 0, 0, 0, 1, 1]), found)


@pytest.mark.parametrize(
    "settings",
    [
        MiningConfig(),
        MiningConfig(temperature=0.5, epsilon=0.9, per_class=2),
        MiningConfig(landmarks=10, topology="rms", per_class=3),
        MiningConfig(diversity="random", per_class=3),
    ],
)
def test_the_audit_is_that_of_the_run_s_mining(tmp_path, settings):
    samples, embedded = embedded_samples()
    config, session = RunConfig(seed=5, mining=settings), open_session(Resources(device="cpu"))
    found = make_audit(embedded, None, make_job(config, samples=samples, folder=tmp_path, session=session))
    options = QualityOptions(settings, seed=5, device="cpu")
    mined = mine_spaces([e.space for e in embedded], samples.labels, options, ids=samples.ids)[0]
    assert torch.equal(found.prototypes.table(), mined.table())
    assert torch.equal(found.log_r_N[mined.ids // 2], mined.log_r)
    assert found.candidate_N[mined.ids // 2].all()
    assert found.warnings == ()


def test_classifiers_that_do_not_differ_are_a_plain_note(tmp_path, capsys):
    samples, embedded = embedded_samples(same=True)
    session = open_session(Resources(device="cpu"), Lines())
    found = make_audit(embedded, None, make_job(samples=samples, folder=tmp_path, session=session))
    assert (found.log_r_N == 0).all()
    [note] = found.warnings
    assert note.startswith("two spaces have the same topology")
    assert capsys.readouterr().err.splitlines()[-1] == f"warning: {note}"


def test_what_the_mining_left_is_used_and_its_notes_repeated(tmp_path, capsys):
    samples, embedded = embedded_samples()
    session = open_session(Resources(device="cpu"), Lines())
    left = SampleQuality(torch.from_numpy(samples.ids), -torch.arange(30.0).double(), "topology", ("odd",))
    left.save(tmp_path / "quality")
    found = make_audit(embedded, None, make_job(samples=samples, folder=tmp_path, session=session))
    assert torch.equal(found.log_r_N, left.log_r)
    assert found.warnings == ("odd",)
    assert capsys.readouterr().err == "warning: odd\n"


def test_a_run_with_other_settings_is_named(tmp_path):
    two = EnsembleConfig(size=2)
    check_auditable(tmp_path / "new", RunConfig(ensemble=two))
    with open_run(tmp_path / "run", RunConfig(seed=1, ensemble=two)):
        pass
    check_auditable(tmp_path / "run", RunConfig(seed=1, ensemble=two))
    with pytest.raises(UsageError, match=r"run was fitted with seed = 1, not 2: choose another --out, or"):
        check_auditable(tmp_path / "run", RunConfig(seed=2, ensemble=two))
    with pytest.raises(UsageError, match=r"run was fitted with ensemble\.size = 2, not 3: "):
        check_auditable(tmp_path / "run", RunConfig(seed=1, ensemble=EnsembleConfig(size=3)))
    with pytest.raises(UsageError, match=r"fitted with method_options\.weight = None, not 0\.2: "):
        check_auditable(tmp_path / "run", RunConfig(seed=1, ensemble=two, method_options={"weight": 0.2}))
    with pytest.raises(UsageError, match=r"needs 2 classifiers, and there is 1: .*ensemble\.size=2"):
        check_auditable(tmp_path / "run", RunConfig(seed=1, ensemble=EnsembleConfig(size=1)))


def test_the_table_has_every_sample_once_most_robust_first(audit):
    rows = list(csv.DictReader(io.StringIO(audit_table(audit))))
    assert [(row["class"], row["rank"], row["id"]) for row in rows] == [
        ("'=owl/../x", "0", "3"),  # no formula for a spreadsheet
        ("'=owl/../x", "1", "5"),
        ("'=owl/../x", "2", "0"),
        ("'=owl/../x", "3", "8"),
        ("tit", "0", "1"),
        ("tit", "1", "7"),
        ("tit", "2", "4"),
    ]
    assert float(rows[0]["r"]) == pytest.approx(np.exp(-0.2), abs=1e-6)
    assert rows[3]["predicted"] == "tit"
    assert rows[0]["name"] == "birds[3]"
    assert [row["id"] for row in rows if row["prototype"] == "0"] == ["3", "1"]


def test_a_sheet_shows_prototypes_best_and_worst(audit):
    prototypes, best, worst = sheet_rows(audit, 0)
    assert [int(pixels[0, 0, 0]) for pixels, _ in best.pictures] == [3, 5, 0, 8]
    assert [int(pixels[0, 0, 0]) for pixels, _ in worst.pictures] == [8, 0, 5, 3]
    assert int(prototypes.pictures[0][0][0, 0, 0]) == 3
    assert worst.pictures[0][1] == "r 0.14"


def test_files_are_written_whatever_a_class_is_called(audit, tmp_path):
    done = []
    write_audit(audit, tmp_path / "audit", done.append)
    names = sorted(f.name for f in (tmp_path / "audit").iterdir())
    assert names == ["audit.csv", "sheet-000-_owl____x.png", "sheet-001-tit.png"]
    assert sum(done) == 2
    with Image.open(tmp_path / "audit" / "sheet-000-_owl____x.png") as image:
        assert image.format == "PNG"


def test_pictures_stand_where_they_should_and_long_titles_are_cut():
    red = np.full((20, 30, 3), (255, 0, 0), np.uint8)
    sheet = contact_sheet("a very long name " * 20, [Row("x", [(red, "r 1.00")] * 2), Row("empty", [])])
    top = MARGIN + TITLE + TITLE
    assert sheet.getpixel((MARGIN + SIDE // 2, top + SIDE // 2)) == (255, 0, 0)
    assert sheet.getpixel((sheet.width - 2, sheet.height - 2)) == (255, 255, 255)
    assert sheet.height == 2 * MARGIN + TITLE + 2 * (TITLE + SIDE + CAPTION + 8)
