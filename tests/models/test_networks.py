"""The papers' networks, and a user's own."""

import importlib
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from harness.base.columns import Columns, Group, TableShape
from harness.base.errors import UsageError
from harness.datasets.adult import COLUMNS
from harness.models import MODELS, RowModel, build_module, find_factory
from harness.models.transformer import VisionTransformer

OWN = '''
"""A user's networks."""
from torch import nn

NOT_A_FUNCTION = 3

def tanh(image_shape, classes):
    channels, height, width = image_shape
    inputs = channels * height * width
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 9), nn.Tanh(), nn.Linear(9, classes))

def scripted(image_shape, classes):
    import torch, warnings
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is deprecated
        return torch.jit.script(tanh(image_shape, classes))

def no_module(image_shape, classes):
    return [1.0]

def headless(image_shape, classes):
    return nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4, 2 * classes), nn.MaxPool1d(2))

def normalised(image_shape, classes):
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.LazyLinear(classes))

def frozen(image_shape, classes):
    return nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(144, classes)).eval()

def dropping(image_shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(144, classes))

def idle_dropout(image_shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.0), nn.Linear(144, classes))

def evaluated_dropout(image_shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(144, classes)).eval()

def one_activation_twice(image_shape, classes):
    activation = nn.Sigmoid()
    return nn.Sequential(
        nn.Flatten(), nn.Linear(144, 9), activation, nn.Linear(9, 9), activation, nn.Linear(9, classes)
    )

def one_layer_twice(image_shape, classes):
    layer = nn.Linear(9, 9)
    return nn.Sequential(nn.Flatten(), nn.Linear(144, 9), layer, nn.Tanh(), layer, nn.Linear(9, classes))

def overwriting(image_shape, classes):
    return nn.Sequential(nn.Conv2d(1, 3, 3, bias=False), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(300, classes))

def linear_over_pixel_rows(image_shape, classes):
    return nn.Sequential(nn.Linear(12, 5), nn.Tanh(), nn.Flatten(), nn.Linear(60, classes))

def hooked(image_shape, classes):
    network = nn.Sequential(nn.Flatten(), nn.Linear(144, classes))
    network[1].register_forward_hook(twice)
    return network

def twice(layer, inputs, output):
    return 2 * output
'''


@pytest.fixture(autouse=True)
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of the user's on the import path."""
    (tmp_path / "networks_of_a_user.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()


@pytest.mark.parametrize(
    ("name", "shape", "classes", "parameters"),
    [
        ("lenet", (1, 28, 28), 10, 17_038),
        ("lenet", (3, 32, 32), 10, 19_438),
        ("lenet", (3, 32, 32), 62, 59_426),
        ("mlp2", (1, 1, 105), 2, 41_502),
        ("mlp2", (1, 1, 30), 2, 26_502),
        ("lenet", (3, 32, 32), 106, 93_262),
        ("cnn", (1, 28, 28), 10, 34_720),
        ("keras_cnn", (1, 28, 28), 10, 34_720),
        ("logistic", (1, 1, 53), 2, 108),
        ("unit_logistic", (1, 28, 28), 47, 36_895),
        ("tempered_cnn", (1, 28, 28), 10, 26_010),
        ("pca_mlp", (1, 28, 28), 10, 14_210),
        ("frozen_linear", (1, 28, 28), 10, 10_250),
        ("frozen_linear", (3, 32, 32), 10, 10_250),
        ("vit", (3, 32, 32), 10, 914_122),
        ("ft_transformer", TableShape(COLUMNS), 2, 74_882),
        ("ft_transformer", TableShape(Columns(tuple(map(str, range(30))))), 2, 71_106),
        ("mlp", (1, 8, 8), 10, 64 * 200 + 200 + 200 * 100 + 100 + 100 * 10 + 10),
    ],
)
def test_parameter_counts(name: str, shape: tuple[int, ...], classes: int, parameters: int) -> None:
    model = RowModel(name, shape, classes, torch.rand(9, *shape))
    assert model.layout.total == parameters
    weights = model.initial_weights([(0, 0), (0, 1)])
    assert model.logits(weights, torch.rand(2, 3, *shape)).shape == (2, 3, classes)


def test_the_attack_lenet_starts_uniform_and_the_accuracy_network_has_no_bias() -> None:
    lenet = RowModel("lenet", (1, 28, 28), 10)
    weights = lenet.initial_weights([(0, 0)])
    assert weights.abs().max() <= 0.5 and float(weights.std()) == pytest.approx(12**-0.5, rel=0.03)
    assert len(lenet.layout.names) == 10 and lenet.last_linear() == ("9.weight", "9.bias")
    assert RowModel("cnn", (1, 12, 12), 4).last_linear() == ("7.weight", None)


def test_the_transformer_s_last_layer_is_one_of_all_tokens_read_at_the_first() -> None:
    network = build_module("vit", (3, 8, 8), 10, seed=0)
    assert isinstance(network, VisionTransformer)
    images = torch.rand(2, 3, 8, 8)
    tokens = torch.cat([network.class_token.expand(2, -1, -1), network.tokens(images).flatten(2).mT], 1)
    whole = network.head(network.norm(network.encoder(tokens + network.places)[:, 0]))
    torch.testing.assert_close(network(images), whole)


def test_an_ft_transformer_computed_column_by_column() -> None:
    """Tokens by lookups, attention and normalisation by their formulas; and rows together as each by itself."""
    columns = Columns(("a", "b"), (Group("g", tuple("uvw")), Group("h", tuple("xy"), optional=True)))
    rows = torch.tensor([[0.3, 0.7, 0, 1, 0, 1, 0], [0.9, 0.1, 1, 0, 0, 0, 0]], dtype=torch.float64)
    model = RowModel("ft_transformer", TableShape(columns), 3).to(torch.device("cpu"), torch.float64)
    weights = model.initial_weights([("a",), ("b",)]).double()
    weights += 0.1 * torch.randn(weights.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    images, labels = rows[:, None, None].expand(2, -1, -1, -1, -1), torch.tensor([[0, 2], [1, 1]])
    logits, gradients = model.logits(weights, images), model.per_example_gradients(weights, images, labels)
    torch.testing.assert_close(model.gradient(weights, images, labels), gradients.mean(1))
    for row in range(2):
        leaf = weights[row].clone().requires_grad_()
        expected = torch.stack([_ft_transformer(model.layout.split(leaf), *one) for one in _read(rows)])
        torch.testing.assert_close(model.plain(weights[row])(images[row]), expected)
        torch.testing.assert_close(logits[row], expected)
        losses = nn.functional.cross_entropy(expected, labels[row], reduction="none")
        own = [torch.autograd.grad(loss, leaf, retain_graph=True)[0] for loss in losses]
        torch.testing.assert_close(gradients[row], torch.stack(own))


def _read(rows: Tensor) -> list[tuple[list[float], list[int | None]]]:
    """Numbers, and the feature of each category; None where it is missing."""
    found = [[next((k for k in part if row[k] == 1), None) for part in (range(2, 5), range(5, 7))] for row in rows]
    return [(row[:2].tolist(), places) for row, places in zip(rows, found, strict=True)]


def _ft_transformer(own: dict[str, Tensor], numbers: list[float], categories: list[int | None]) -> Tensor:
    weight, bias = own["tokens.weight"], own["tokens.bias"]
    tokens = [own["class_token"][0, 0], *(weight[j] * x + bias[j] for j, x in enumerate(numbers))]
    tokens += [bias[t] if k is None else weight[k] + bias[t] for t, k in enumerate(categories, len(numbers))]
    values = torch.stack(tokens)

    def linear(name: str, given: Tensor) -> Tensor:
        return given @ own[f"{name}.weight"].T + own[f"{name}.bias"]

    def norm(name: str, given: Tensor) -> Tensor:
        apart = given - given.mean(-1, keepdim=True)
        return (
            apart / (apart.square().mean(-1, keepdim=True) + 1e-5).sqrt() * own[f"{name}.weight"] + own[f"{name}.bias"]
        )

    for layer in ("encoder.0", "encoder.1"):
        normed = norm(f"{layer}.norm1", values)
        parts = normed @ own[f"{layer}.self_attn.in_proj_weight"].T + own[f"{layer}.self_attn.in_proj_bias"]
        heads = []
        for head in range(4):
            query, key, value = (parts[:, 64 * kind + 16 * head : 64 * kind + 16 * (head + 1)] for kind in range(3))
            scores = (query @ key.T / 4).exp()
            heads.append(scores / scores.sum(1, keepdim=True) @ value)
        values = values + linear(f"{layer}.self_attn.out_proj", torch.cat(heads, 1))
        hidden = linear(f"{layer}.linear1", norm(f"{layer}.norm2", values))
        hidden = hidden * 0.5 * (1 + torch.erf(hidden / 2**0.5))
        values = values + linear(f"{layer}.linear2", hidden)
    return linear("head", norm("norm", values)[0].clamp_min(0))


def test_the_table_names_these_networks() -> None:
    assert {"lenet", "cnn", "mlp"} <= set(MODELS)


OWN_NETWORKS = [
    "tanh", "frozen", "idle_dropout", "evaluated_dropout", "one_activation_twice", "overwriting",
    "linear_over_pixel_rows", "hooked",
]  # fmt: skip


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("factory", OWN_NETWORKS)
def test_a_network_of_the_users_own(factory: str, rows: int) -> None:
    model = RowModel(f"networks_of_a_user:{factory}", (1, 12, 12), 4)
    weights = model.initial_weights([(0, 0), (0, 1)])[:rows]
    images, labels = torch.rand(rows, 3, 1, 12, 12), torch.tensor([[0, 1, 2], [3, 0, 1]])[:rows]
    gradient = model.gradient(weights, images, labels)
    loss = nn.functional.cross_entropy(model.plain(weights[-1])(images[-1]), labels[-1])
    expected = torch.autograd.grad(loss, list(model.plain_module.parameters()))
    truth = torch.cat([each.flatten() for each in expected])
    trained = model.example_gradients(weights, images, labels, None, 3)
    for made in (
        gradient,
        trained.mean(),
        trained.materialise().mean(1),
        trained.weighted_sum(trained.norms() * 0 + 1 / 3),
    ):
        assert torch.allclose(made[-1], truth, atol=1e-6)
    assert torch.equal(gradient, model.gradient(weights, images, labels))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("lenett", "unknown model 'lenett'; did you mean 'lenet'"),
        ("no_such_module_here:tanh", "cannot import model .*check the module name and PYTHONPATH"),
        (":tanh", "cannot import model"),
        ("networks_of_a_user:tang", "has no factory 'tang'"),
        ("networks_of_a_user:", "has no factory ''"),
        ("networks_of_a_user:NOT_A_FUNCTION", "is not callable; name a function"),
        ("networks_of_a_user:no_module", "returned list; its factory must return a torch.nn.Module"),
        ("networks_of_a_user:scripted", "a script of torch.jit; return the network before it is made one"),
        ("networks_of_a_user:normalised", "has a lazy layer"),
        ("networks_of_a_user:dropping", "active dropout.*set p=0"),
    ],
)
def test_refused_networks(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        build_module(name, (1, 12, 12), 4, seed=0)
    assert "\n" not in str(caught.value)


def test_weights_of_two_layers_get_the_sum_of_their_gradients() -> None:
    model = RowModel("networks_of_a_user:one_layer_twice", (1, 12, 12), 4)
    weights = model.initial_weights([(0,), (1,)])
    images, labels = torch.rand(2, 3, 1, 12, 12), torch.tensor([[0, 1, 2], [3, 2, 1]])
    found = model.gradient(weights, images, labels)
    for row in range(2):
        module = model.plain(weights[row])
        loss = torch.nn.functional.cross_entropy(module(images[row]), labels[row])
        parts = torch.autograd.grad(loss, list(module.parameters()))
        torch.testing.assert_close(found[row], torch.cat([part.flatten() for part in parts]))


def test_a_network_without_a_last_linear_layer_has_no_labels_to_infer() -> None:
    model = RowModel("networks_of_a_user:headless", (1, 12, 12), 4)
    with pytest.raises(UsageError, match=r"no last linear layer.*--labels known"):
        model.last_linear()


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("tempered_cnn", (1, 15, 16), r"at least 16x16 pixels.*--model mlp"),
        ("tempered_cnn", (1, 1, 30), "needs images, not table rows of 30"),
        ("frozen_linear", (1, 1, 30), "needs images, not table rows of 30"),
        ("vit", (1, 1, 30), "needs images, not table rows of 30"),
        ("ft_transformer", (1, 1, 30), "reads table rows whose columns are known.*such as mlp2"),
        ("vit", (1, 28, 30), "multiples of 4 pixels, not 28x30; use another --model"),
    ],
)
def test_data_that_a_network_cannot_take(name: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        find_factory(name)(shape, 4)


@pytest.mark.parametrize("shape", [(1, 9, 12), (1, 12, 9), (1, 8, 8)])
def test_images_too_small_for_the_accuracy_network(shape: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match=r"at least 10x10 pixels.*--model mlp"):
        find_factory("cnn")(shape, 4)


@pytest.mark.parametrize("name", ["mlp2+precode", "vit+adapters(2)", "vit+adapters(2|3)+only(encoder)"])
def test_weights_that_a_change_draws_follow_the_seed(name: str) -> None:
    """And nobody else's random numbers are taken for them."""
    before = torch.random.get_rng_state()
    first, again, other = (
        torch.nn.utils.parameters_to_vector(build_module(name, (3, 8, 8), 4, seed).parameters()) for seed in (1, 1, 2)
    )
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.equal(torch.random.get_rng_state(), before)
