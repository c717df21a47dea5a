"""Fine-tuning: a pretrained network is trained further on the known classes, then stays as it is.

A linear layer on top, which starts at zero, learns the classes together with the last blocks of the network,
or all of them. Lower blocks are trained at lower rates, and the statistics of batch norm stay those of the
pretraining: a few hundred images would only blur them. The layer is thrown away afterwards.
"""

import copy
import math
from pathlib import Path

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pmal._engine.loop import Training, finish, train_together, training_set
from pmal._engine.optimizers import RatesByDepth
from pmal._runtime.seeds import stream
from pmal._runtime.session import Session
from pmal._runtime.tensors import has_tensors, save_tensors
from pmal.config import EncoderConfig, RunConfig, TrainingConfig
from pmal.data.feeding.augmentation import augment
from pmal.data.feeding.parts import open_part
from pmal.data.splits.task import Task
from pmal.encoders.pretrained.backbone import Backbone
from pmal.encoders.pretrained.names import is_frozen
from pmal.ensemble.inputs import FINETUNED, Inputs, finetuned_inputs
from pmal.errors import UsageError

BATCH = 32
LAST = 0.25
"""Share of the blocks that `last` trains: of EfficientNet-Lite0, the last four and the convolution above."""
_COST = {"last": 1.5, "all": 3.0}
"""Cost of a training step, in forward passes."""


class Learner(RatesByDepth):
    """A pretrained network with a linear layer on top; depth of training by name."""

    def __init__(self, backbone: Backbone, classes: int, depth: str, decay: float) -> None:
        super().__init__()
        self.backbone, self.decay = backbone, decay
        self.head = nn.Linear(backbone.num_features, classes)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        stages = backbone.stages()
        count = len(stages) if depth == "all" else math.ceil(LAST * len(stages))
        self.trained = stages[-count:]
        for parameter in (p for stage in self.trained for p in stage):
            parameter.requires_grad_(True)

    def rate_groups(self) -> list[tuple[float, list[nn.Parameter]]]:
        """Return the linear layer at the full rate, then the blocks from the last one down."""
        below = [(self.decay**i, stage) for i, stage in enumerate(reversed(self.trained), start=1)]
        return [(1.0, list(self.head.parameters())), *below]

    def loss(self, images_BCHW: Tensor, labels_B: Tensor, flip: bool) -> Tensor:
        """Return the cross entropy of augmented images."""
        mean_C, std_C = self.backbone.mean.flatten(), self.backbone.std.flatten()
        x_BCHW = augment(images_BCHW, "standard", mean_C, std_C, flip)
        return cross_entropy(self.head(self.backbone.body(x_BCHW).float()), labels_B)


def check_finetuning(config: RunConfig) -> None:
    """Refuse fine-tuning if there is nothing to fine-tune, or if it would break the threshold."""
    if config.encoder.finetune == "none":
        return
    if not is_frozen(config.encoder):
        raise UsageError(
            f"finetune {config.encoder.finetune} goes with a pretrained encoder, not with "
            f"{config.encoder.name}: choose encoder efficientnet_lite0, or leave finetune out"
        )
    if config.data.folds:
        raise UsageError(
            "data.folds does not go with finetune, which would have seen the images of every fold: "
            "leave it out, and data.held_out sets the threshold"
        )


def finetune_inputs(inputs: Inputs, task: Task, config: RunConfig, run: Path, session: Session) -> Inputs:
    """Return inputs by the network after fine-tuning on the training images alone; done once for a run."""
    encoder, place, folder = config.encoder, run / FINETUNED, run / "finetuning"
    assert inputs.backbone is not None  # the settings were checked
    if not has_tensors(place, session.ranks):
        backbone = copy.deepcopy(inputs.backbone)
        part = open_part("train", task.train, backbone.image_shape, session)
        model = Learner(backbone, len(task.class_names), encoder.finetune, encoder.finetune_decay)
        steps, data = training_of(encoder), training_set(part, session)
        training = Training(
            "fine-tuning",
            model.to(session.device),
            lambda images, labels: model.loss(images, labels, task.flip),
            stream(config.seed, "fine-tuning"),
            folder,
        )
        train_together("fine-tuning", [training], data, steps, session)
        about = {"backbone": backbone.description(), "finetune": encoder.finetune, "data": data.digest}
        save_tensors(place, backbone.state_dict(), about, session.ranks)
    finish(folder, session.ranks)
    return finetuned_inputs(run, session, write=True)


def training_of(encoder: EncoderConfig) -> TrainingConfig:
    """Return how a network is fine-tuned."""
    return TrainingConfig(
        epochs=encoder.finetune_epochs,
        batch_size=BATCH,
        learning_rate=encoder.finetune_rate,
        weight_decay=1e-4,
        warmup_epochs=1.0,
    )


def forward_passes(encoder: EncoderConfig) -> float:
    """Return what fine-tuning costs per training image, in forward passes; 0 if there is none."""
    return encoder.finetune_epochs * _COST[encoder.finetune] if encoder.finetune != "none" else 0.0
