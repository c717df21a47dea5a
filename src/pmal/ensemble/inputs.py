"""The inputs of a run's networks: pixels, or the features that a frozen network computes from them."""

from dataclasses import dataclass, replace
from pathlib import Path

from pmal._runtime.session import Session
from pmal._runtime.tensors import has_tensors, load_tensors, save_tensors
from pmal.config import EncoderConfig, RunConfig
from pmal.data.decoding.fitting import ImageShape
from pmal.data.feeding.parts import Part, open_part
from pmal.data.samples import Samples
from pmal.data.splits.task import Task
from pmal.encoders.features import FeatureCache, open_features
from pmal.encoders.precomputed import PRECOMPUTED
from pmal.encoders.pretrained.backbone import Backbone
from pmal.encoders.pretrained.creating import create_backbone, rebuild_backbone
from pmal.encoders.pretrained.names import PRETRAINED, is_frozen, is_pretrained
from pmal.ensemble.classifier import ClassifierSpec
from pmal.ensemble.heads import HeadConfig

BACKBONE, FEATURES = "backbone", "features"
"""Files of a run: the frozen network, and its features of the images."""
FINETUNED, FINETUNED_FEATURES = "finetuned", "finetuned-features"
"""The same files of the fine-tuned network."""


@dataclass(frozen=True)
class Inputs:
    """How samples become batches for the networks of a run."""

    size: int
    channels: int
    """Channels that the networks see: those of an image, or features as one pixel of many channels."""
    backbone: Backbone | None = None
    cache: FeatureCache | None = None

    def open(self, name: str, samples: Samples, session: Session) -> Part:
        """Return a part with every image decoded or embedded."""
        if self.backbone is None or self.cache is None:
            return open_part(name, samples, ImageShape(self.size, self.channels), session)
        return open_features(name, samples, self.backbone, self.cache, session)

    def open_parts(self, task: Task, session: Session) -> dict[str, Part]:
        """Return the parts of a task that exist, by name: train, held out, test and unknown."""
        return {name: self.open(name, part, session) for name, part in task.parts().items()}

    def spec(self, encoder: EncoderConfig, class_names: tuple[str, ...], head: HeadConfig) -> ClassifierSpec:
        """Return what the networks are built from; on features, the encoder is one linear layer."""
        options = dict(encoder.options)
        if is_pretrained(encoder.name):  # this option is about the weights' origin, not the network
            options.pop(PRETRAINED, None)
            encoder = replace(encoder, options=options)
        if self.backbone is not None:
            # The weights file was that of the backbone.
            encoder = replace(encoder, name=PRECOMPUTED, options=options, weights="")
        return ClassifierSpec(encoder, class_names, self.size, self.channels, head)


def run_inputs(
    config: RunConfig, shape: ImageShape, run: Path, session: Session, *, write: bool = False
) -> Inputs:
    """Return the inputs of a run's networks; a frozen network scales images to its own size.

    With `write`, as for a run itself, new features are saved in its folder, and the network is the frozen one
    that a run starts with. Without, it is the fine-tuned one if the run has one.
    """
    if not is_frozen(config.encoder):
        return Inputs(shape.size, shape.channels)
    if not write and has_tensors(run / FINETUNED, session.ranks):
        return finetuned_inputs(run, session, write=False)
    stored = _stored_backbone(config, run, session)
    backbone = stored or create_backbone(config.encoder.name, weights=config.encoder.weights or None)
    return _inputs_of(backbone, run / FEATURES, session, write)


def finetuned_inputs(run: Path, session: Session, *, write: bool) -> Inputs:
    """Return inputs of the fine-tuned network in the run's folder."""
    tensors, about = load_tensors(run / FINETUNED, session.ranks)
    backbone = rebuild_backbone(about["backbone"])
    backbone.load_state_dict(tensors)
    return _inputs_of(backbone, run / FINETUNED_FEATURES, session, write)


def _inputs_of(backbone: Backbone, features: Path, session: Session, write: bool) -> Inputs:
    backbone = backbone.to(session.device)
    cache = FeatureCache(backbone, features, session, write=write)
    return Inputs(1, backbone.num_features, backbone, cache)


def keep_backbone(inputs: Inputs, config: RunConfig, run: Path, session: Session) -> None:
    """Save the frozen network in the run's folder, so the run works without the original weights."""
    if inputs.backbone is not None and _stored_backbone(config, run, session) is None:
        about = {"backbone": inputs.backbone.description(), "weights": config.encoder.weights}
        save_tensors(run / BACKBONE, inputs.backbone.state_dict(), about, session.ranks)


def _stored_backbone(config: RunConfig, run: Path, session: Session) -> Backbone | None:
    """Return the backbone in the run's folder, if it is the one that the settings name."""
    if not has_tensors(run / BACKBONE, session.ranks):
        return None
    tensors, about = load_tensors(run / BACKBONE, session.ranks)
    description = about["backbone"]
    if (description["name"], about["weights"]) != (config.encoder.name, config.encoder.weights):
        return None
    backbone = rebuild_backbone(description)
    backbone.load_state_dict(tensors)
    return backbone
