from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn.functional import conv2d, max_pool2d, relu
from torchvision.models import resnet18

from lightning_fl.callbacks.personal.pretrained_weights import pretrained_state
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.models.networks import ChannelsLast, build_network

CONVOLUTIONAL = ("lenet5", "cnn3", "cnn4", "cnn5", "cnn_pifl")
#: Smaller than the papers', so that the tests are fast.
SLIM = {"cnn3": {"channels": [4, 6, 8], "hidden_sizes": [10, 7]}}


def network(name, in_shape=(3, 32, 32), num_classes=10, seed=0, **arguments):
    torch.manual_seed(seed)
    return build_network(name, list(in_shape), num_classes, **(SLIM.get(name, {}) | arguments))


def images(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def num_weights(module):
    return sum(parameter.numel() for parameter in module.parameters())


# Sizes


def fully_connected(*sizes):
    return sum((before + 1) * after for before, after in pairwise(sizes))


def convolutions(kernel, *channels):
    return sum((before * kernel**2 + 1) * after for before, after in pairwise(channels))


@pytest.mark.parametrize(
    ("name", "in_shape", "expected"),
    [
        ("mlp", [1, 28, 28], fully_connected(784, 200, 200, 10)),
        ("mlp", [104], fully_connected(104, 200, 200, 10)),
        # DPFL, appendix F: 400 values enter the first fully connected layer.
        ("lenet5", [3, 32, 32], convolutions(5, 3, 6, 16) + fully_connected(400, 120, 84, 10)),
        # FedBN: 6272 values for 28 x 28 images; two numbers per normalised channel.
        (
            "cnn3",
            [3, 28, 28],
            convolutions(5, 3, 64, 64, 128) + fully_connected(6272, 2048, 512, 10) + 2 * (64 + 64 + 128 + 2048 + 512),
        ),
        ("cnn4", [3, 32, 32], convolutions(3, 3, 32, 32, 64, 64) + fully_connected(64 * 8 * 8, 128, 10)),
        ("cnn5", [3, 32, 32], convolutions(3, 3, 32, 64, 64) + fully_connected(64 * 4 * 4, 64, 10)),
        # PI-FL: 3136 values enter the first fully connected layer.
        ("cnn_pifl", [1, 28, 28], convolutions(3, 1, 32, 64, 64) + fully_connected(3136, 128, 10)),
        # FedCollab, appendix: 11,181,642 weights of a ResNet-18 with ten classes.
        ("resnet18", [3, 32, 32], 11_181_642),
    ],
)
def test_sizes_are_those_of_the_papers(name, in_shape, expected):
    with torch.device("meta"):
        assert num_weights(build_network(name, in_shape, 10)) == expected


def test_the_network_of_dpfl_for_femnist():
    with torch.device("meta"):
        found = build_network("lenet5", [1, 28, 28], 62, channels=[4, 12], hidden_sizes=[120, 100])
    assert num_weights(found) == convolutions(5, 1, 4, 12) + fully_connected(192, 120, 100, 62)


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(
    name=st.sampled_from(CONVOLUTIONAL),
    channels=st.integers(1, 4),
    height=st.integers(1, 40),
    width=st.integers(1, 40),
    num_classes=st.integers(2, 5),
)
def test_any_image_that_is_large_enough(name, channels, height, width, num_classes):
    try:
        found = network(name, (channels, height, width), num_classes)
    except ConfigurationError as error:
        least = int(str(error).split("at least ")[1].split()[0])
        assert min(height, width) < least
        network(name, (channels, max(height, least), max(width, least)), num_classes)  # what the message advises
    else:
        assert found(images(2, channels, height, width)).shape == (2, num_classes)


@pytest.mark.parametrize(("name", "least"), [("lenet5", 16), ("cnn3", 4), ("cnn4", 4), ("cnn5", 18), ("cnn_pifl", 4)])
def test_images_that_are_too_small(name, least):
    # lenet5: ((16 - 4) / 2 - 4) / 2 = 1. cnn5: ((18 - 2) / 2 - 2) / 2 - 2 = 1. Padded: two halvings of 4.
    with pytest.raises(ConfigurationError, match=rf"in_shape=\[1, {least - 1}, 30\]: .*at least {least} x {least} "):
        network(name, (1, least - 1, 30))
    assert network(name, (1, least, least)).eval()(images(1, 1, least, least)).shape == (1, 10)


# What is computed


def test_lenet5_by_hand():
    found, x = network("lenet5", (1, 28, 28)), images(4, 1, 28, 28)
    parts = dict(found.encoder.named_children())
    h = max_pool2d(relu(conv2d(x, parts["conv1"].weight, parts["conv1"].bias)), 2)
    h = max_pool2d(relu(conv2d(h, parts["conv2"].weight, parts["conv2"].bias)), 2).flatten(1)
    h = relu(relu(h @ parts["fc1"].weight.T + parts["fc1"].bias) @ parts["fc2"].weight.T + parts["fc2"].bias)
    torch.testing.assert_close(found(x), h @ found.classifier.weight.T + found.classifier.bias)


def test_an_mlp_without_hidden_layers_is_logistic_regression():
    found, x = network("mlp", (5,), 3, hidden_sizes=[]), images(4, 5)
    torch.testing.assert_close(found(x), x @ found.classifier.weight.T + found.classifier.bias)


def test_normalisation_comes_before_the_relu():
    encoder = network("cnn3").encoder
    names = [name for name, _ in encoder.named_children()]
    for layer in ("conv1", "conv2", "conv3", "fc1", "fc2"):
        start = names.index(layer)
        assert names[start : start + 3] == [layer, f"{layer}_norm", f"{layer}_relu"]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*CONVOLUTIONAL, "mlp", "resnet18"])
def test_encoder_and_classifier(name):
    found, x = network(name).eval(), images(3, 3, 32, 32)
    embeddings = found.encoder(x)
    assert embeddings.shape == (3, found.classifier.in_features)
    assert isinstance(found.classifier, nn.Linear)
    torch.testing.assert_close(found.classifier(embeddings), found(x))
    parts = {parameter.split(".")[0] for parameter, _ in found.named_parameters()}
    assert parts == {"encoder", "classifier"}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*CONVOLUTIONAL, "mlp", "resnet18"])
def test_dropout_is_active_in_training_only(name):
    shape = (3, 32, 32)
    found, x = network(name, shape, dropout=0.5), images(4, *shape)
    found.train()
    torch.manual_seed(1)
    first = found(x)
    assert not torch.equal(first, found(x))
    found.eval()
    assert torch.equal(found(x), found(x))


# Channels last


@pytest.mark.parametrize("channels", [1, 3])
def test_channels_last_changes_the_layout_and_nothing_else(channels):
    x = images(4, channels, 6, 5).requires_grad_()
    y = ChannelsLast()(x)
    assert torch.equal(y, x)
    assert y.stride() == (channels * 30, 1, 5 * channels, channels)
    weights = images(4, channels, 6, 5, seed=1)
    (y * weights).sum().backward()
    assert torch.equal(x.grad, weights)
    for part in (slice(None, None, 2), slice(1, None)):
        view = images(6, channels, 6, 5)[part, :, 1:]
        assert torch.equal(ChannelsLast()(view), view)


@pytest.mark.parametrize("name", CONVOLUTIONAL)
@pytest.mark.parametrize("channels", [1, 3])
def test_outputs_and_gradients_are_those_of_the_usual_layout(name, channels):
    x = images(16, channels, 20, 20)
    outputs, gradients = [], []
    for usual in (False, True):
        found = network(name, (channels, 20, 20))
        if usual:
            found.encoder.channels_last = nn.Identity()
        outputs.append(found(x))
        outputs[-1].square().mean().backward()
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in found.parameters()]))
    torch.testing.assert_close(*outputs, rtol=1e-4, atol=1e-5)
    assert (gradients[0] - gradients[1]).norm() < 1e-5 * gradients[1].norm()


@pytest.mark.parametrize("channels", [1, 3])
def test_many_clients_at_once(channels):
    # torch.func must be able to stack the weights of several clients.
    models = [network("cnn5", (channels, 20, 20), seed=seed) for seed in range(3)]
    parameters, buffers = stack_module_state(models)
    x = images(3, 4, channels, 20, 20)

    def loss(parameters, buffers, x):
        return functional_call(models[0], (parameters, buffers), (x,)).square().sum()

    gradients = vmap(grad(loss))(parameters, buffers, x)
    for index, model in enumerate(models):
        model(x[index]).square().sum().backward()
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(gradients[name][index], parameter.grad, rtol=1e-4, atol=1e-5)


# ResNet-18


@pytest.mark.slow
def test_resnet18_is_torchvision_s(tmp_path):
    torch.manual_seed(3)
    original = resnet18(weights=None).eval()
    original.fc = nn.Identity()
    torch.save(original.state_dict(), tmp_path / "resnet18.pth")
    found = network("resnet18", (3, 40, 40), 5).eval()
    pretrained_state(tmp_path / "resnet18.pth", found.encoder, "network.encoder")  # as PretrainedWeights
    x = images(2, 3, 40, 40)
    torch.testing.assert_close(found.encoder(x), original(x))
    assert found(x).shape == (2, 5)


@pytest.mark.slow
def test_the_small_stem_keeps_the_image_s_size():
    sizes = {}
    for stem in ("imagenet", "small"):
        encoder = network("resnet18", (1, 32, 32), stem=stem).encoder
        encoder.layer1.register_forward_hook(
            lambda module, args, output, stem=stem: sizes.update({stem: output.shape[2:]})
        )
        encoder(images(2, 1, 32, 32))
    assert sizes == {"imagenet": (8, 8), "small": (32, 32)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "in_shape", "arguments"),
    [
        ("cnn3", (3, 16, 16), {}),
        ("cnn3", (3, 16, 16), {"hidden_sizes": []}),
        ("cnn5", (3, 32, 32), {}),
        ("resnet18", (3, 32, 32), {}),
        ("resnet18", (3, 32, 33), {}),
        ("resnet18", (3, 8, 8), {"stem": "small"}),
        ("resnet18", (3, 9, 8), {"stem": "small"}),
    ],
)
def test_the_smallest_batch_that_can_be_trained(name, in_shape, arguments):
    found = network(name, in_shape, **arguments).train()
    found(images(found.min_batch_size, *in_shape))
    if found.min_batch_size > 1:
        with pytest.raises(ValueError, match="more than 1 value per channel"):
            found(images(1, *in_shape))
