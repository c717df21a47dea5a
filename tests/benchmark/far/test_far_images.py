"""Made images: what each kind keeps of the images, and what it does not."""

import pytest
import torch

from pmal.benchmark.far.far_images import MADE, blurred, constant, inverted, noise, shuffled_patches


def make_images(count=12, channels=3, size=16):
    shape = (count, channels, size, size)
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(5), dtype=torch.uint8)


@pytest.mark.parametrize("name", MADE)
def test_every_kind_has_the_shape_of_the_images_and_is_the_same_every_time(name):
    for channels, size in ((1, 8), (3, 13), (1, 28), (3, 28)):
        images = make_images(channels=channels, size=size)
        before = images.clone()
        made = MADE[name](images)
        assert (made.shape, made.dtype) == (images.shape, torch.uint8)
        assert torch.equal(made, MADE[name](images))
        assert torch.equal(images, before)
        assert not torch.equal(made, images)


def test_noise_has_every_value_as_often():
    counts = torch.bincount(noise(make_images(40, 3, 32)).flatten().int(), minlength=256)
    assert counts.min() > 0.7 * counts.float().mean()


def test_constant_images_have_one_color_each():
    for channels in (1, 3):
        made = constant(make_images(300, channels))
        assert (made == made[:, :, :1, :1]).all()
    grays = constant(make_images(300, 1))[:, 0, 0, 0]
    assert grays.tolist() == list(range(256))  # there are no more
    assert constant(make_images(3, 1))[:, 0, 0, 0].tolist() == [0, 128, 255]
    assert len(constant(make_images(300))) == 300


def test_inverted_twice_is_the_image():
    images = make_images()
    assert torch.equal(inverted(inverted(images)), images)
    assert torch.equal(inverted(images)[0, 0, 0, 0], 255 - images[0, 0, 0, 0])


def test_shuffled_patches_are_the_same_squares_elsewhere():
    images = make_images(size=18)  # squares of 4 px, and two rows and columns that stay
    made = shuffled_patches(images)

    def squares(one):
        inner = one[:, :16, :16].unfold(1, 4, 4).unfold(2, 4, 4)  # (C, 4, 4, 4, 4)
        return sorted(inner.permute(1, 2, 0, 3, 4).reshape(16, -1).tolist())

    assert [squares(one) for one in made] == [squares(one) for one in images]
    assert torch.equal(made[:, :, 16:], images[:, :, 16:])
    assert torch.equal(made[:, :, :, 16:], images[:, :, :, 16:])
    assert not torch.equal(made[0] - images[0], made[1] - images[1])  # each in its own order


def test_blurred_pixels_are_means_of_a_square():
    images = make_images(300, 1, 28)
    made = blurred(images)
    square = images[299, 0, 7:14, 4:11].float()
    assert made[299, 0, 10, 7] == int(square.mean())
