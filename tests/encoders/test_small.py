import torch
from torch import nn
from torch.nn import functional

from pmal.encoders import create_encoder


def test_four_convolutions_make_a_7_by_7_map_of_28_px():
    encoder = create_encoder("small", in_channels=1).eval()
    assert sum(isinstance(module, nn.Conv2d) for module in encoder.modules()) == 4
    with torch.no_grad():
        assert encoder.body(torch.randn(1, 1, 28, 28)).shape == (1, 128, 7, 7)


def test_parameter_count():
    kernels = 9 * (1 * 32 + 32 * 64 + 64 * 96 + 96 * 128)
    norms = 2 * (32 + 64 + 96 + 128)
    encoder = create_encoder("small", in_channels=1)
    assert sum(p.numel() for p in encoder.parameters()) == kernels + norms


def test_learns_random_labels_of_a_few_images():
    """Any break in the signal or the gradient leaves it at chance."""
    torch.manual_seed(0)
    images, labels = torch.randn(32, 1, 12, 12), torch.arange(32) % 4
    encoder = create_encoder("small", in_channels=1)
    head = nn.Linear(encoder.num_features, 4)
    optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=0.05, momentum=0.9)
    for _ in range(40):
        optimizer.zero_grad()
        functional.cross_entropy(head(encoder(images)), labels).backward()
        optimizer.step()
    encoder.eval()
    assert (head(encoder(images)).argmax(1) == labels).float().mean() == 1
