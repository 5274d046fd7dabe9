import pytest
import torch

from lightning_fl.data.images.standin import (
    MAX_CLASSES,
    NUM_WRITERS,
    RENDERINGS,
    digits_domain,
    digits_standin,
    read_digits,
)


def test_ten_classes_are_the_digits():
    standin = digits_standin([str(k) for k in range(10)], size=8, channels=1)
    assert torch.equal(standin.images, read_digits().images)
    assert torch.equal(standin.targets, read_digits().targets)


def test_more_classes_are_turned_digits():
    standin = digits_standin([f"class {k}" for k in range(26)], size=28, channels=3)
    assert standin.images.shape[1:] == (3, 28, 28)
    assert standin.classes[25] == "class 25"
    assert (torch.bincount(standin.targets, minlength=26) > 100).all()
    plain, turned = (standin.images[standin.targets == label] for label in (3, 23))
    assert torch.equal(turned, plain.rot90(2, (2, 3)))


def test_fewer_classes_leave_digits_out():
    standin = digits_standin(["zero", "one"], size=8, channels=1)
    assert standin.targets.unique().tolist() == [0, 1]
    assert MAX_CLASSES == 80


def test_from_class_40_on_they_are_seen_in_a_mirror():
    standin = digits_standin([f"class {k}" for k in range(62)], size=8, channels=1)
    assert (torch.bincount(standin.targets, minlength=62) > 100).all()
    turned, mirrored = (standin.images[standin.targets == label] for label in (13, 53))
    assert torch.equal(mirrored, turned.flip(3))


def test_made_up_writers_press_more_or_less_hard():
    plain = digits_standin([str(k) for k in range(20)], size=8, channels=1)
    standin = digits_standin([str(k) for k in range(20)], size=8, channels=1, writers=True)
    writers = standin.column("writer")
    assert torch.equal(standin.targets, plain.targets)
    assert len(set(writers)) == NUM_WRITERS
    assert writers == digits_standin([str(k) for k in range(20)], size=8, channels=1, writers=True).column("writer")
    for writer in ("made_up_000", "made_up_119"):
        own = torch.tensor([name == writer for name in writers])
        ink = 255 - standin.images[own].float()
        share = ink.sum() / plain.images[own].sum()
        assert 0.39 < share < 1.01
        assert (ink - share * plain.images[own]).abs().max() < 1.5


@pytest.mark.slow
def test_domains_differ_visibly_and_are_the_same_every_time():
    domains = [digits_domain(index, size=16) for index in range(len(RENDERINGS))]
    assert all(domain.images.shape == (1797, 3, 16, 16) for domain in domains)
    assert all(torch.equal(domain.targets, read_digits().targets) for domain in domains)
    for first in range(len(domains)):
        assert torch.equal(domains[first].images, digits_domain(first, size=16).images)
        for second in range(first):
            difference = domains[first].images.float() - domains[second].images.float()
            assert difference.abs().mean() > 20  # of 255, over all pixels
    assert torch.equal(domains[1].images, 255 - domains[0].images)
