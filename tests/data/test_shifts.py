import pytest
import torch

from lightning_fl.data.shifts import (
    FedCollabConceptShift,
    Inversion,
    LabelPermutation,
    Rotation,
    Shift,
    concept_permutations,
)

IMAGES = torch.randint(0, 256, (6, 3, 9, 9), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(6)


def test_a_shift_by_itself_changes_nothing():
    shift = Shift()
    shift.check(3, 10)
    assert torch.equal(shift.images(2, IMAGES, LABELS), IMAGES)
    assert torch.equal(shift.labels(2, LABELS, 6), LABELS)
    assert shift.describe() == {"name": "Shift"}


def test_right_angles_turn_counter_clockwise_exactly():
    rotation = Rotation(degrees=[0, 90, 180, -90], clients_per_value=2)
    rotation.check(8, 10)
    before = IMAGES.clone()
    for client, quarters in enumerate([0, 0, 1, 1, 2, 2, 3, 3]):
        turned = rotation.images(client, IMAGES, LABELS)
        assert turned.dtype == torch.uint8
        assert torch.equal(turned, torch.rot90(IMAGES, quarters, dims=(2, 3)))
    assert torch.equal(IMAGES, before)
    assert torch.equal(rotation.labels(3, LABELS, 6), LABELS)
    assert rotation.describe() == {"name": "Rotation", "degrees": [0, 90, 180, -90], "clients_per_value": 2}


def test_other_angles_keep_the_size_turn_about_the_centre_and_bring_in_black():
    white = torch.full((2, 1, 28, 28), 255, dtype=torch.uint8)
    turned = Rotation().images(0, white, LABELS[:2])
    assert turned.shape == white.shape
    assert turned[:, :, 4:24, 4:24].eq(255).all()  # 25 degrees reach the corners only
    assert turned[:, :, 0, 0].eq(0).all()
    # 25 and 155 degrees differ by 130, 25 and -155 by a half turn.
    smooth = torch.arange(28)[:, None].mul(3).add(torch.arange(28)).to(torch.uint8).expand(1, 1, 28, 28)
    by_25, by_minus_155 = (Rotation().images(client, smooth, LABELS[:1]).float() for client in (0, 15))
    assert (by_25 - by_minus_155.flip(2, 3)).abs().max() <= 1
    # A bright spot right of the centre goes up when it is turned counter-clockwise.
    spot = torch.zeros(1, 1, 29, 29, dtype=torch.uint8)
    spot[0, 0, 13:16, 23:26] = 255
    assert Rotation(degrees=[25], clients_per_value=1).images(0, spot, LABELS[:1])[0, 0].float().sum(1).argmax() < 13


def test_a_client_without_images_has_none_turned():
    assert Rotation().images(0, IMAGES[:0], LABELS[:0]).shape == (0, 3, 9, 9)


def test_labels_are_renumbered_by_block():
    permutation = LabelPermutation(permutations=[[0, 1, 2], [2, 0, 1]], clients_per_value=2)
    permutation.check(4, 3)
    labels = torch.tensor([0, 2, 1, 1])
    assert permutation.labels(1, labels, 3).tolist() == [0, 2, 1, 1]
    assert permutation.labels(2, labels, 3).tolist() == [2, 1, 0, 0]
    assert labels.tolist() == [0, 2, 1, 1]
    assert permutation.labels(2, labels[:0], 3).dtype == torch.int64
    assert torch.equal(permutation.images(2, IMAGES, LABELS), IMAGES)


@pytest.mark.parametrize(("num_classes", "num_permuted"), [(20, 6), (10, 3), (10, 5), (6, 2), (7, 3), (4, 2)])
def test_concept_permutations(num_classes, num_permuted):
    types = torch.tensor(concept_permutations(num_classes, num_permuted))
    assert torch.equal(types.sort(dim=1).values, torch.arange(num_classes).expand(4, -1))
    agreeing = (types[:, None] == types[None, :]).sum(2)
    within = num_classes - num_permuted
    assert int(agreeing[0, 1]) == within
    assert int(agreeing[2, 3]) == within
    assert int(agreeing[:2, 2:].max()) == num_classes % 2


def test_fedcollab_s_concept_shift():
    shift = FedCollabConceptShift()
    shift.check(20, 20)
    labels = torch.arange(20)
    assert torch.equal(shift.labels(4, labels, 20), labels)
    assert shift.labels(5, labels, 20).tolist() == [5, 4, 3, 2, 1, 0, *range(6, 20)]
    assert shift.labels(14, labels, 20).tolist() == list(range(19, -1, -1))
    assert shift.labels(15, labels, 20).tolist() == [*range(14, 20), *range(13, -1, -1)]
    agreeing = [sum((shift.labels(0, labels, 20) == shift.labels(c, labels, 20)).tolist()) for c in (5, 10, 15)]
    assert agreeing == [14, 0, 0]


def test_inversion_is_of_the_clients_named_and_its_own_inverse():
    inversion = Inversion(clients=[1])
    inversion.check(2, 10)
    assert torch.equal(inversion.images(0, IMAGES, LABELS), IMAGES)
    negative = inversion.images(1, IMAGES, LABELS)
    assert negative.dtype == torch.uint8
    assert torch.equal(negative.int() + IMAGES.int(), torch.full_like(IMAGES, 255).int())
    assert torch.equal(inversion.images(1, negative, LABELS), IMAGES)
