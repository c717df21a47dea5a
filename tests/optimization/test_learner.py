import copy
import dataclasses

import pytest
import torch
from torch.nn.functional import cosine_similarity, cross_entropy, one_hot
from torch.utils._python_dispatch import TorchDispatchMode

from pmal.config import DataConfig, EncoderConfig, OptimizationConfig, RunConfig, TrainingConfig
from pmal.data.feeding.augmentation import normalize
from pmal.ensemble.classifier import Classifier, ClassifierSpec
from pmal.optimization.bank import PrototypeBank
from pmal.optimization.distances import DISTANCES
from pmal.optimization.learner import PrototypeLearner, embed_prototypes

SPEC = ClassifierSpec(EncoderConfig("small"), ("a", "b", "c"), image_size=8, channels=1)
MASK = torch.tensor([[True, True], [True, False], [True, True]])
CONFIG = RunConfig(data=DataConfig(augmentation="none"), training=TrainingConfig(label_smoothing=0.1))


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def images(count):
    return torch.randint(0, 256, (count, 1, 8, 8), dtype=torch.uint8)


def make(refresh=5, settings=None, config=CONFIG, prototypes=None, mask=MASK):
    model = Classifier(SPEC)
    model.set_normalization(torch.tensor([0.4]), torch.tensor([0.3]))
    bank = PrototypeBank(images(int(mask.sum())) if prototypes is None else prototypes, mask, 128, refresh)
    config = dataclasses.replace(config, optimization=settings or OptimizationConfig())
    return PrototypeLearner(model, bank, config, flip=False).train()


@pytest.mark.parametrize("weight", [0.0, 2.0])
def test_the_objective_is_both_losses_of_one_batch(weight):
    """Written out with autograd's own cosine; prototypes with gradient, in the samples' batch norm."""
    prototypes, batch, labels = images(5), images(6), torch.tensor([0, 1, 2, 0, 1, 2])
    learner = make(prototypes=prototypes, settings=OptimizationConfig(weight=weight, margin=0.7))
    model = learner.classifier
    loss = learner.objective(batch, labels)
    loss.backward()
    found = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()

    z = model.encoder(normalize(torch.cat([batch, prototypes]), model.mean, model.std))
    z, anchors = z[:6], z[6:]
    sets = [anchors[:2], anchors[2:3], anchors[3:]]
    attended = [((z @ p.T) / 128**0.5).softmax(1) @ p for p in sets]
    d = torch.stack([1 - cosine_similarity(z, a) for a in attended], dim=1)
    other = (d + 9 * one_hot(labels, 3)).min(1).values
    margin_loss = torch.relu(d[torch.arange(6), labels] - other + 0.7).mean()
    expected = cross_entropy(model.head(z), labels, label_smoothing=0.1) + weight * margin_loss
    torch.testing.assert_close(loss, expected)
    expected.backward()
    for gradient, parameter in zip(found, model.parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("count", [8, 40])
def test_a_step_embeds_the_batch_and_one_part_however_many_prototypes(count):
    mask = torch.ones(3, count, dtype=torch.bool)
    learner = make(refresh=7, mask=mask)
    seen = []
    learner.classifier.encoder.register_forward_hook(lambda module, args, z: seen.append(len(args[0])))
    for _ in range(3):
        learner.objective(images(6), torch.tensor([0, 1, 2, 0, 1, 2])).backward()
    assert seen == [13, 13, 13]


def test_the_cache_starts_with_what_the_first_weights_see():
    learner = make(refresh=1)
    bank = learner.bank
    assert torch.equal(bank.cache, learner.classifier.eval().embed(bank.images)[0])
    assert bank.cache.abs().sum() > 0


def test_distance_and_margin_are_those_of_the_settings():
    batch, labels = images(6), torch.tensor([0, 1, 2, 0, 1, 2])
    losses = set()
    for change in ({}, {"distance": "nearest"}, {"margin": 0.1}, {"weight": 0.5}):
        torch.manual_seed(1)
        losses.add(make(settings=OptimizationConfig(**change)).objective(batch, labels).item())
    assert len(losses) == 4


def test_images_are_augmented_and_prototypes_are_not():
    strong = dataclasses.replace(CONFIG, data=DataConfig(augmentation="strong"))
    learner = make(config=strong)
    seen = []
    learner.classifier.encoder.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    batch = images(6)
    learner.objective(batch, torch.tensor([0, 1, 2, 0, 1, 2]))
    model = learner.classifier
    assert torch.equal(seen[0][6:], normalize(learner.bank.images, model.mean, model.std))
    assert not torch.equal(seen[0][:6], normalize(batch, model.mean, model.std))


def test_mixed_precision_ends_before_the_distances():
    learner = make()
    seen = []
    distance = learner.distance

    def spy(z, prototypes, mask):
        seen.append((z.detach(), prototypes.detach(), distance(z, prototypes, mask)))
        return seen[0][2]

    learner.distance = spy
    with torch.autocast("cpu", dtype=torch.bfloat16):
        learner.objective(images(6), torch.tensor([0, 1, 2, 0, 1, 2])).backward()
    z, prototypes, found = seen[0]
    assert torch.equal(z, z.bfloat16().float())  # the encoder did run in mixed precision
    assert torch.equal(found, distance(z, prototypes, MASK))


WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "is_nonzero", "equal")


class Operations(TorchDispatchMode):
    """The names of all operations that run inside the block."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.names.add(operation.overloadpacket.__name__)
        return operation(*args, **(kwargs or {}))


@pytest.mark.parametrize("distance", DISTANCES)
def test_nothing_in_a_step_waits_for_the_device(distance):
    """A CUDA graph can capture neither a value that goes to the host nor a shape that depends on one."""
    learner = make(refresh=2, settings=OptimizationConfig(distance=distance))
    batch, labels = images(6), torch.tensor([0, 1, 2, 0, 1, 2])
    with Operations() as run:
        learner.objective(batch, labels).backward()
    assert {"index_copy", "convolution", "convolution_backward"} <= run.names
    assert not {name for name in run.names if name.startswith(WAITING)}


def test_prototypes_are_embedded_by_class_and_rank_in_eval_mode():
    model, pictures = Classifier(SPEC).train(), images(5)
    found = embed_prototypes(model, pictures, MASK)
    one_by_one = torch.cat([model.eval().embed(picture[None])[0] for picture in pictures]).detach()
    torch.testing.assert_close(found[MASK], one_by_one)
    assert (found[~MASK] == 0).all()
    assert found.shape == (3, 2, 128)


def compare_compiled(refresh, backend, device):
    """The compiler divides forward from backward: what has moved on in between must not be read again."""
    settings = OptimizationConfig(weight=30.0, margin=0.0, temperature=0.1)
    eager = make(refresh, settings).to(device)
    other = copy.deepcopy(eager)
    fused = torch.compile(other.objective, dynamic=False, backend=backend)
    batch, labels = images(6).to(device), torch.tensor([0, 1, 2, 0, 1, 2], device=device)
    for _ in range(3):
        losses = [objective(batch, labels) for objective in (eager.objective, fused)]
        torch.testing.assert_close(*losses, rtol=1e-3, atol=1e-4)
        for model, loss in zip((eager, other), losses, strict=True):
            model.zero_grad()
            loss.backward()
        for one, same in zip(eager.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(one.grad, same.grad, rtol=1e-2, atol=1e-3)
    assert torch.equal(eager.bank.cursor, other.bank.cursor)
    torch.testing.assert_close(eager.bank.cache, other.bank.cache, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")  # the compiler's own
@pytest.mark.parametrize("refresh", [3, 5])
def test_a_compiled_step_has_the_gradients_of_an_eager_one_while_the_bank_rotates(refresh):
    compare_compiled(refresh, "aot_eager_decomp_partition", "cpu")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("refresh", [3, 5])
def test_a_step_compiled_for_a_gpu_has_the_gradients_of_an_eager_one(refresh):
    compare_compiled(refresh, "inductor", "cuda")
