"""The whole method behind scikit-learn's interface: fit, predict, and what only open-set recognition has.

N samples, K classes.
"""

import contextlib
import os
import signal
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from pmal import pipeline
from pmal._runtime.devices import choose_device
from pmal._runtime.files import make_folder, read_json, write_json
from pmal._runtime.progress import choose_display
from pmal._runtime.session import open_session
from pmal.config import Resources, RunConfig
from pmal.data.arrays import ReadSamples, are_rows, image_store
from pmal.data.samples import PixelStore, Samples
from pmal.data.sources.readers import is_named, open_source
from pmal.data.splits.task import Task, learning_task, open_task
from pmal.data.targets import KINDS, UNKNOWN, ClassLabels
from pmal.encoders.choice import AUTO
from pmal.encoders.precomputed import OF_ROWS
from pmal.errors import DataError, Interrupted, UsageError
from pmal.estimator.class_scores import is_asked_for_knownness
from pmal.estimator.conventions import Conventions, Floats, refuse_fit_options
from pmal.estimator.open_world import OpenWorldMixin
from pmal.estimator.renamed import refuse_renamed, refuses_old_names, with_present_names
from pmal.estimator.rows_given import FITTED_TO, labels_given, refuse_sparse, rows_to_answer, rows_to_fit
from pmal.estimator.settings import (
    ARRAYS,
    OF_THIS_MACHINE,
    RULE_OPTIONS,
    changed_rule,
    estimator_config,
    model_params,
    saved_params,
)
from pmal.rejection.bundle.saving import load_model, save_model
from pmal.rejection.bundle.versions import digest_of, save_version
from pmal.rejection.calibration.recalibration import recalibrated
from pmal.rejection.calibration.thresholds import check_fdr, discoveries
from pmal.rejection.model import Answers, OpenSetModel
from pmal.rejection.new_class import AddedClass, add_class, class_probabilities
from pmal.run.run_folder import CONFIG, read_config
from pmal.serving.answers.answering import TOP, describe_answers, find_model, takes_embeddings

RECORD = "estimator.json"


class OpenSetClassifier(OpenWorldMixin, Conventions):
    """Names what it knows and says -1 to what it does not.

    X is a uint8 array (N, H, W) or (N, H, W, C), a list of image files, or for rows of numbers an array or a
    table (N, D), whose columns must have the same names and order later. y holds integers, whole floats,
    truth values or text; predicted labels are of the same kind. One class alone is told from all else.

    Once fitted, `accept`, `reject_by` and `per_class_threshold` can be changed, by `set_params` or by
    assignment: the next `predict` follows them without training. All other options wait for the next `fit`.

    Args:
        method: pmal, softmax (a plain classifier), or one of docs/baselines.md.
        encoder: a network by name; "precomputed" if X holds embeddings, "mlp" if it is a table. auto: a
            pretrained one for photographs if its weights are installed, "precomputed" for rows of numbers,
            else one that is trained on X.
        reject_by: what a sample is rejected by: combined, neighbors, distance (to prototypes, the paper's
            rule), probability, logit or energy. auto: combined for pmal, for other methods the one of their
            paper.
        accept: share of known samples that the threshold accepts at least; samples that are held out set it.
        random_state: None, an integer (the seed of `pmal fit`), or a numpy RandomState.
        recipe: as in `pmal fit`. None: "precomputed", "sample" or "standard"; "own": the method's.
        finetune: "last" or "all": train that much of a pretrained encoder further on the samples. None:
            nothing.
        epochs: as in `pmal fit`. None: those of the recipe.
        held_out: share of each class's samples that is not trained on but sets the threshold; at least 40 in
            all, or a third of the samples if that is less. 0: train on all, without a threshold. None: a
            tenth; of up to 2,000 embeddings or photographs, ten parts are held out in turn, and none is lost
            to training.
        prototypes_per_class: `mining.per_class` of a run.
        per_class_threshold: `rejection.per_class` of a run.
        settings: everything else, by section, such as {"mining": {"epsilon": 0.6}}.
        unknown_label: what a sample of no known class is called, -1 or another label that no class has. With
            "unknown" next to classes that are text, scikit-learn's metrics and `scoring` take predictions as
            they are; a number next to text makes an array of objects, which they refuse.
    """

    classes_: NDArray[Any]
    model_: OpenSetModel
    n_features_in_: int

    @refuses_old_names
    def __init__(
        self,
        method: str = "pmal",
        encoder: str = "auto",
        reject_by: str = "auto",
        accept: float = 0.95,
        random_state: Any = None,
        *,
        recipe: str | None = None,
        finetune: str | None = None,
        epochs: int | None = None,
        held_out: float | None = None,
        prototypes_per_class: int | None = None,
        per_class_threshold: bool = False,
        device: str = "auto",
        data_root: str | os.PathLike[str] | None = None,
        verbose: bool = False,
        settings: Mapping[str, Any] | None = None,
        unknown_label: int | float | str = UNKNOWN,
    ) -> None:
        self.method = method
        self.encoder = encoder
        self.reject_by = reject_by
        self.accept = accept
        self.random_state = random_state
        self.recipe = recipe
        self.finetune = finetune
        self.epochs = epochs
        self.held_out = held_out
        self.prototypes_per_class = prototypes_per_class
        self.per_class_threshold = per_class_threshold
        self.device = device
        self.data_root = data_root
        self.verbose = verbose
        self.settings = settings
        self.unknown_label = unknown_label

    def __setattr__(self, name: str, value: Any) -> None:
        """Store an option; if it is one of the rule, a fitted model follows it or it is refused."""
        refuse_renamed([name])
        if name in RULE_OPTIONS and "model_" in vars(self):
            self.model_ = changed_rule(self.model_, {name: value})
            if self.model_.calibration is not None:
                _warn_of_threshold(self.model_)
        super().__setattr__(name, value)

    def set_params(self, **params: Any) -> Self:
        """Store options and return self.

        A fitted classifier follows `accept`, `reject_by` and `per_class_threshold` at once, with the scores
        of held-out samples that its model keeps; a threshold that `calibrate` found is dropped if `accept`
        or another score is given. All other options are stored, and do nothing until the next `fit`.

        Raises:
            UsageError: the fitted model does not have this score, or `accept` is not within (0, 1); then no
                option is stored.
        """
        refuse_renamed(params)
        if "model_" in vars(self):
            changed_rule(self.model_, params)  # all of them or none
        super().set_params(**params)
        return self

    def fit(
        self, X: Any, y: Any = None, *, out: str | os.PathLike[str] | None = None, **refused: Any
    ) -> Self:
        """Learn the classes of samples X with labels y, or of a source: a data set's name, a folder or file.

        A source is divided as `pmal fit` divides it: its test part, or else a fifth of it, is not looked at.
        Samples have no weights: sample_weight is rejected.

        Args:
            X: the samples, or a source.
            y: their labels; None for a source.
            out: do the work in this folder, where it can be resumed after an interruption, and leave it
                there.
            **refused: nothing. An old name or `sample_weight` is answered with the reason.
        """
        refuse_fit_options(refused)
        refuse_sparse(X)
        session, seed = open_session(self._resources(), choose_display(not self.verbose)), self._seed(out)
        if y is None:
            config, task, labels = self._source_task(X, seed)
            columns: dict[str, Any] = {}
        else:
            config, task, labels, columns = self._array_task(X, y, seed)
        with _run_folder(out) as folder:
            pipeline.fit(config, folder, session, task=task)
            model = load_model(folder / "model", session.device)
            _warn_of_unreadable(folder)
        if config.data.held_out:
            _warn_of_threshold(model)
        self._take(model, labels, columns)
        return self

    def predict(self, X: Any, fdr: float | None = None) -> NDArray[Any]:
        """Return the class of each sample, `unknown_label` (-1) for unknown.

        Args:
            X: the samples.
            fdr: instead of the threshold of each sample, bound the share of known samples among all that are
                called unknown in X (Benjamini and Hochberg). The larger X, the better it can tell.
        """
        answers = self._answers(X)
        if fdr is None:
            return self._labels.labels(answers.labels.numpy())
        p_values_N = _calibrated(answers)
        check_fdr(fdr, self.model_.most_known_scores)
        unknown_N = discoveries(p_values_N, fdr)
        return self._labels.labels(np.where(unknown_N, -1, answers.nearest.numpy()))

    def p_values(self, X: Any) -> Floats:
        """Return how likely a known sample is to look at least as unknown as each of these, from 0 to 1.

        At most a share p of known samples has a value of p or less. `predict` says unknown if
        it is 1 - accept or less.
        """
        return _calibrated(self._answers(X))

    def unknown_score(self, X: Any) -> Floats:
        """Return how unknown each sample looks; larger is more unknown."""
        embedded = self._embed(X)  # first: it fails if nothing is fitted yet
        score_N: Floats = self.model_.decision(*embedded).numpy()
        return score_N

    @available_if(is_asked_for_knownness)  # type: ignore[untyped-decorator]  # sklearn has no types
    def decision_function(self, X: Any) -> Floats:
        """Return the threshold minus the unknown score: above 0 where `predict` names a class, only there.

        It is one number for each sample, not a score for each class: scikit-learn's tools that ask for the
        latter, such as CalibratedClassifierCV, do not see this method and use `predict_proba`.
        """
        answers = self._answers(X)
        return _room(answers.score.numpy(), answers.limits.numpy())

    def predict_proba(self, X: Any) -> Floats:
        """Return the probability of each of `classes_`, as if there were no others, (N, K); rows sum to 1.

        It is the softmax of the network's logits. The network has none for a class that was added without
        training: this class is as probable as the best trained one if its prototypes are as near as the
        nearest of theirs, more if they are nearer, less if they are farther. So the most probable class is
        always the one that `predict` names if it does not say unknown.
        """
        z_ND, logits_NK, _ = self._embed(X)
        probabilities_NK: Floats = class_probabilities(self.model_, z_ND, logits_NK).numpy()
        return probabilities_NK

    def explain(self, X: Any, top: int = TOP) -> list[dict[str, Any]]:
        """Return label, score and threshold of each sample, and the prototypes that weighed most."""
        samples = self._samples(X)
        answers = self._answers_of(samples)
        names = [samples.name(position) for position in range(len(samples))]
        labels = self._labels.labels(answers.labels.numpy()).tolist()
        found = describe_answers(self.model_, answers, names, top)
        for label, entry in zip(labels, found, strict=True):
            entry["label"] = label
            for prototype in entry["prototypes"]:
                prototype["class"] = entry["nearest"]
        return found

    def calibrate(self, X: Any, y: Any = None) -> Self:
        """Set the threshold again, by samples that were not trained on.

        If some are unknown (y is `unknown_label`), it is the threshold of the best macro-F1, unknown
        counted as a class; else, as in `fit`, the one that accepts the share `accept` of known samples: then
        y may be left out.
        """
        z_ND, logits_NK, far_N = self._embed(X)
        numbers_N = None if y is None else torch.from_numpy(self._labels.numbers(y, len(z_ND)))
        self.model_ = recalibrated(self.model_, z_ND, logits_NK, far_N, numbers_N)
        if numbers_N is None or (numbers_N >= 0).all():
            _warn_of_threshold(self.model_)
        return self

    def add_class(self, X: Any, name: Any) -> AddedClass:
        """Learn one more class from its samples, without training, and return what that changed.

        The classifier needs prototypes (method pmal). It keeps its rule if that can judge the new class:
        by distance, neighbors, or combined of these two. Else it rejects by the distance from now on. The
        result and its text say from what to what the rule changed, and `reject_by` names the new one.
        """
        check_is_fitted(self, "model_")
        labels = self._labels.with_class(name)
        samples = self._samples(X, origin=labels.names[-1])
        images = self._pixels(samples)
        z_ND, _, far_N = self._embed_samples(samples)
        files = [samples.name_in_source(position) for position in range(len(samples))]
        before = self.model_.rule.score
        self.model_, effect = add_class(self.model_, labels.names[-1], z_ND, images, files, far_N)
        self.classes_ = labels.values
        self.changes_ = (*self.changes_, f"added {name} ({len(files)})")
        if before != self.model_.rule.score:
            self.reject_by = self.model_.rule.score
        if self.verbose:
            choose_display(quiet=False).say(str(effect))
        return effect

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the fitted classifier: FOLDER/model, which `pmal predict` takes, too, and estimator.json.

        If `add_class`, `remove_class` or `update` changed it, and the folder holds a model already, that
        one is kept as an earlier version (`pmal history`).
        """
        check_is_fitted(self, "model_")
        path = Path(folder)
        if path.is_dir() and any(path.iterdir()) and not (path / RECORD).is_file():
            raise UsageError(f"{path} is not empty and holds no classifier: choose another folder")
        make_folder(path)
        if self.changes_ and (path / "model").is_dir():
            before = digest_of(path / "model")
            save_version(
                path / "model", self.model_, "; ".join(self.changes_), before, {RECORD: self.record()}
            )
        else:
            save_model(path / "model", self.model_)
            write_json(path / RECORD, self.record())
        self.changes_ = ()

    def record(self) -> dict[str, Any]:
        """Return the content of the file next to a saved model: options, and the classes in their order."""
        check_is_fitted(self, "model_")
        columns = [str(name) for name in getattr(self, "feature_names_in_", ())]
        record = {"params": saved_params(self.get_params()), "labels": self._labels.kind}
        return record | ({"columns": columns} if columns else {}) | {"classes": list(self.model_.class_names)}

    @classmethod
    def load(cls, folder: str | os.PathLike[str], device: str = "auto", half: bool = False) -> Self:
        """Return what `save` wrote, or the model of a `pmal fit` run, whose classes are text.

        Args:
            folder: where it was saved, or the run.
            device: auto, cpu or cuda.
            half: compute in float16 on a GPU, which is faster; scores keep about three digits.
        """
        path = Path(folder)
        model = load_model(find_model(path), choose_device(device), half)
        model.check_statistics()
        params, kind, columns = model_params(model), "text", dict[str, Any]()
        if (path / RECORD).is_file():
            params, kind, columns = read_record(path / RECORD, model, params)
        loaded = cls(**params, device=device)
        labels = ClassLabels.named(model.class_names, kind, loaded.unknown_label)
        loaded._take(model, labels, columns)
        return loaded

    @property
    def _labels(self) -> ClassLabels:
        check_is_fitted(self, "model_")
        return ClassLabels(self.classes_, self.unknown_label)

    def _take(self, model: OpenSetModel, labels: ClassLabels, columns: Mapping[str, Any]) -> None:
        self.model_, self.classes_, self.changes_ = model, labels.values, ()
        for name in FITTED_TO:
            self.__dict__.pop(name, None)
        if takes_embeddings(model):  # a source has no columns to take it from
            self.n_features_in_ = model.classifier.spec.channels
        self.__dict__.update(columns)

    def _resources(self) -> Resources:
        root = None if self.data_root is None else os.fspath(self.data_root)
        return Resources(device=self.device, data_root=root)

    def _seed(self, out: str | os.PathLike[str] | None) -> int:
        """Return the seed: an integer is one itself; a resumed run keeps its own if none is asked for."""
        if isinstance(self.random_state, int | np.integer):
            if self.random_state < 0:
                raise UsageError(f"random_state is {self.random_state}: use 0 or more")
            return int(self.random_state)
        if self.random_state is None and out is not None and (Path(out) / CONFIG).is_file():
            return read_config(Path(out)).seed
        return int(check_random_state(self.random_state).randint(2**31))

    def _source_task(self, source: Any, seed: int) -> tuple[RunConfig, Task, ClassLabels]:
        if not isinstance(source, str | os.PathLike):
            raise UsageError(
                "fit(X, y) requires y to be passed, but the target y is None: "
                "only a source, a name or path, has its own"
            )
        path, root = os.fspath(source), self._resources().data_root
        own = None if is_named(path) else lambda: open_source(path, root).train
        config = self._config(path, seed, own)
        task = replace(open_task(config.data, self._resources().data_root), test=None, unknown=None)
        return config, task, ClassLabels.named(task.class_names, unknown=self.unknown_label)

    def _array_task(self, X: Any, y: Any, seed: int) -> tuple[RunConfig, Task, ClassLabels, dict[str, Any]]:
        rows = self.encoder in OF_ROWS or (self.encoder == AUTO and are_rows(X))
        if not rows and are_rows(X) and len(X) == np.size(y):  # else it is one image
            own = ", ".join(OF_ROWS)
            raise UsageError(
                f"encoder '{self.encoder}' takes images, and X has rows of numbers: use {own} or auto"
            )
        store, columns = rows_to_fit(self, X) if rows else (image_store(X, "X"), {})
        y = labels_given(y)
        labels = ClassLabels.of(y, len(store), self.unknown_label)
        samples = Samples.whole(store, labels.numbers(y, len(store)), labels.names)
        config = self._config(ARRAYS, seed, lambda: samples, len(labels.names) == 1)
        return config, learning_task(samples, "fit(X, y)", config.data), labels, columns

    def _config(
        self, source: str, seed: int, own: Callable[[], Samples] | None, one_class: bool = False
    ) -> RunConfig:
        config, note = estimator_config(self.get_params(), source, seed, own, one_class)
        if note:
            choose_display(not self.verbose).say(note)
        return config

    def _store(self, X: Any, origin: str = "X") -> PixelStore:
        """Return samples of the kind that the classifier was fitted on."""
        refuse_sparse(X)
        rows = takes_embeddings(self.model_)
        return rows_to_answer(self, X, origin) if rows else image_store(X, origin)

    def _samples(self, X: Any, origin: str = "X") -> Samples:
        """Return samples without labels, of the kind that the classifier was fitted on."""
        check_is_fitted(self, "model_")
        store = self._store(X, origin)
        return Samples.whole(store, np.zeros(len(store), np.int64), ("",))

    def _embed_samples(self, samples: Samples) -> tuple[torch.Tensor, ...]:
        return tuple(tensor.cpu() for tensor in self.model_.embed(self._read(samples)))

    def _read(self, samples: Samples) -> ReadSamples:
        network = self.model_.classifier
        return ReadSamples(samples, network.spec.image_shape, network.mean.device)

    def _embed(self, X: Any) -> tuple[torch.Tensor, ...]:
        return self._embed_samples(self._samples(X))

    def _answers_of(self, samples: Samples) -> Answers:
        return self.model_.answer(self._read(samples))

    def _answers(self, X: Any) -> Answers:
        return self._answers_of(self._samples(X))


def _room(score_N: Floats, limit_N: Floats) -> Floats:
    """Return how far a score is from its threshold; above 0 is accepted."""
    # A score at its threshold is accepted: the next number above it makes that more than 0.
    with np.errstate(invalid="ignore"):
        room_N = np.nextafter(limit_N, np.inf) - np.where(score_N < np.inf, score_N, 0.0)
    return np.where(score_N < np.inf, room_N, -np.inf)


def _calibrated(answers: Answers) -> Floats:
    p_values_N: Floats = answers.p_values.numpy()
    if np.isnan(p_values_N).any():
        raise UsageError("p-values need held-out samples, and this classifier has none: raise held_out")
    return p_values_N


@contextlib.contextmanager
def _run_folder(out: str | os.PathLike[str] | None) -> Iterator[Path]:
    """Give the folder to work in; without a name of its own it is removed afterwards."""
    if out is not None:
        yield Path(out)
        return
    with tempfile.TemporaryDirectory(prefix="pmal-") as folder:
        try:
            yield Path(folder) / "run"
        except Interrupted as error:
            # Nothing is left to resume from, whatever the message says.
            if error.exit_code == 128 + signal.SIGINT:
                raise KeyboardInterrupt from None
            raise


def _warn_of_unreadable(folder: Path) -> None:
    for part in read_json(folder / "quarantine.json").values():
        if part["unreadable"]:
            first, count = part["unreadable"][0], f"{len(part['unreadable'])} of {part['total']}"
            named = f"first: {first['name']}: {first['reason']}"
            warnings.warn(f"{count} images cannot be read and were left out ({named})", stacklevel=3)


def _warn_of_threshold(model: OpenSetModel) -> None:
    """Warn of a classifier that cannot reject: it should not look like one that can."""
    calibration = model.calibration
    fix = "raise held_out, lower accept, or call calibrate with samples of its own"
    if calibration is None:
        warnings.warn(f"no samples were held out, so there is no threshold: {fix}", stacklevel=3)
    elif model.limits().isinf().all():
        warnings.warn(f"nothing will be rejected: {model.guarantee()[1]}: {fix}", stacklevel=3)


def read_record(
    path: Path, model: OpenSetModel, params: dict[str, Any]
) -> tuple[dict[str, Any], str, dict[str, Any]]:
    """Return the options of a saved classifier over those of its model, its kind of labels, its columns."""
    record = read_json(path)
    try:
        given, names = with_present_names(record["params"]), record["classes"]
        # Versions before 0.2 knew integers and text alone.
        kind = record["labels"] if "labels" in record else "integers" if record["integers"] else "text"
        columns = record.get("columns", [])
        known = OpenSetClassifier().get_params()
        valid = set(given) <= set(known) - {*OF_THIS_MACHINE} and kind in KINDS.values()
        valid = valid and all(isinstance(name, str) for name in columns)
    except (KeyError, TypeError, AttributeError):
        valid = False
    if not valid or tuple(names) != model.class_names:
        raise DataError(f"{path}: does not belong to the model next to it: save the classifier again")
    return params | given, kind, {"feature_names_in_": np.array(columns, dtype=object)} if columns else {}
