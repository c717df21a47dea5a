"""One shape for every batch, so that nobody's answer depends on the company; and the queue in front of it."""

import asyncio
import dataclasses
import threading

import pytest
import torch

from pmal.ensemble.cost import multiplications
from pmal.rejection.model import Rule
from pmal.serving.http import batching as service_batching
from pmal.serving.http.batching import MicroBatcher, answer_padded, batch_size, is_steady, prototype_weights
from tests.serving.tiny_model import make_model, pictures_of
from tests.support.hanging import HANGING


@pytest.mark.parametrize("rule", [Rule("distance"), Rule("neighbors"), Rule("combined"), Rule("logit")])
def test_padded_answers_have_the_same_bits_in_every_company_and_place(rule):
    model, images = make_model(rule), [*pictures_of(0, 3).numpy(), *pictures_of(3, 5).numpy()]

    def rows(chosen):
        """What is said of each image, with its weights."""
        answers = answer_padded(model, chosen, 8)
        columns = [getattr(answers, f.name) for f in dataclasses.fields(answers)]
        return list(zip(*columns, prototype_weights(model, answers), strict=True))

    alone = [rows([image])[0] for image in images]
    for order in ([0, 1, 2, 3, 4, 5, 6, 7], [7, 0], [3, 3, 3, 1], [6, 5, 4, 3, 2, 1, 0]):
        for answer, i in zip(rows([images[i] for i in order]), order, strict=False):
            assert all(map(torch.equal, answer, alone[i]))


def test_the_size_follows_the_work_of_one_image_and_not_the_clock(monkeypatch):
    model = make_model()
    monkeypatch.setitem(service_batching.WORK, "cpu", 1.0)
    assert batch_size(model) == 1
    monkeypatch.setitem(service_batching.WORK, "cpu", 1e15)
    monkeypatch.setattr(service_batching, "LARGEST", 4)
    assert batch_size(model) == 4
    assert batch_size(model, 3) == 3
    each = multiplications(model.classifier)
    for limit, size in ((4 * each, 4), (4 * each - 1, 2)):
        monkeypatch.setitem(service_batching.WORK, "cpu", limit)
        assert batch_size(model) == size


def test_where_the_place_in_a_batch_matters_images_go_one_by_one():
    model = make_model()

    class Unsteady:
        classifier, reference = model.classifier, None

        def answer(self, images):
            found = model.answer(images)
            found.score[0] += 1e-16 + found.score[0] * 1e-15
            return found

    assert is_steady(model, 4)
    assert not is_steady(Unsteady(), 4)
    assert not is_steady(Unsteady(), 2)
    assert batch_size(Unsteady(), 4) == 1


def test_a_shape_is_asked_until_its_bits_stay():
    model, asked = make_model(), []

    class Replaying:
        classifier, reference = model.classifier, None

        def answer(self, images):
            asked.append(len(images))
            found = model.answer(images)
            if asked.count(len(images)) == 1:  # computed, not yet replayed
                found.score[:] *= 1 + 1e-15
            return found

    assert is_steady(Replaying(), 4)
    assert batch_size(Replaying(), 1) == 1
    assert asked.count(1) > 1


class Log:
    """What a worker was asked, batch by batch."""

    def __init__(self):
        self.batches = []

    def __call__(self, model, images):
        self.batches.append((model, images))
        if "bad" in images:
            raise ValueError("bad")
        return [image.upper() for image in images]


async def with_batcher(log, use, size=3, wait=0.02):
    batcher = MicroBatcher(log, lambda model: size, wait)
    await batcher.start()
    try:
        return await use(batcher)
    finally:
        await batcher.stop()


def test_images_that_come_together_go_together_in_their_order():
    log = Log()

    async def use(batcher):
        return await asyncio.gather(*(batcher.ask("m", letter) for letter in "abcde"))

    assert asyncio.run(with_batcher(log, use)) == list("ABCDE")
    assert log.batches == [("m", ["a", "b", "c"]), ("m", ["d", "e"])]


def test_models_are_never_mixed():
    log = Log()

    async def use(batcher):
        pairs = [("old", "a"), ("old", "b"), ("new", "c"), ("new", "d")]
        return await asyncio.gather(*(batcher.ask(*pair) for pair in pairs))

    assert asyncio.run(with_batcher(log, use)) == list("ABCD")
    assert log.batches == [("old", ["a", "b"]), ("new", ["c", "d"])]


def test_whoever_is_gone_is_passed_over():
    log = Log()

    async def use(batcher):
        asked = [asyncio.ensure_future(batcher.ask("m", letter)) for letter in "abc"]
        await asyncio.sleep(0)
        asked[0].cancel()
        asked[2].cancel()
        return await asyncio.gather(*asked, return_exceptions=True)

    found = asyncio.run(with_batcher(log, use))
    assert found[1] == "B"
    assert log.batches == [("m", ["b"])]


def test_a_failure_reaches_its_batch_and_no_other():
    log = Log()

    async def use(batcher):
        first = await asyncio.gather(batcher.ask("m", "bad"), batcher.ask("m", "a"), return_exceptions=True)
        return first, await batcher.ask("m", "b"), batcher.alive

    first, second, alive = asyncio.run(with_batcher(log, use))
    assert [type(error) for error in first] == [ValueError, ValueError]
    assert (second, alive) == ("B", True)


def test_the_first_does_not_wait_longer_than_it_was_promised():
    async def use(batcher):
        return await asyncio.wait_for(batcher.ask("m", "a"), HANGING)

    assert asyncio.run(with_batcher(Log(), use, size=100, wait=0.01)) == "A"


def test_the_first_waits_for_company():
    log = Log()

    async def use(batcher):
        first = asyncio.ensure_future(batcher.ask("m", "a"))
        await asyncio.sleep(0.01)  # the batcher has seen it
        return await asyncio.gather(first, batcher.ask("m", "b"))

    assert asyncio.run(with_batcher(log, use, size=2, wait=HANGING)) == ["A", "B"]
    assert log.batches == [("m", ["a", "b"])]


@pytest.mark.parametrize("company", ["b", "bad"])
def test_whoever_goes_while_its_batch_is_answered_takes_nobody_along(company):
    began, go_on, log = threading.Event(), threading.Event(), Log()

    def work(model, images):
        began.set()
        assert go_on.wait(HANGING)
        return log(model, images)

    async def use(batcher):
        asked = [asyncio.ensure_future(batcher.ask("m", letter)) for letter in ("a", company)]
        await asyncio.to_thread(began.wait, HANGING)
        asked[0].cancel()
        go_on.set()
        [_, found] = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), HANGING)
        return found, await asyncio.wait_for(batcher.ask("m", "c"), HANGING), batcher.alive

    found, after, alive = asyncio.run(with_batcher(work, use, size=2))
    assert isinstance(found, ValueError) if company == "bad" else found == "B"
    assert (after, alive) == ("C", True)
