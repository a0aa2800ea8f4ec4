"""What every network promises, checked on small instances of all of them; and their parts."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bfn.nn import MLP, Transformer, UNet, VDMUNet, blocks
from bfn.nn.blocks import (
    LabelEmbedding,
    Neighbours,
    ResidualBlock,
    RotaryAttention,
    WideLinear,
    vdm_times,
)
from support.mistakes import assert_refused


def unet(**arguments: Any) -> UNet:
    sizes = {"width": 16, "multipliers": (1, 2), "blocks": 1, "groups": 4, "heads": 2}
    return UNet(**(sizes | arguments))


def vdm(**arguments: Any) -> VDMUNet:
    sizes = {"channels": 1, "width": 16, "blocks": 1, "groups": 4, "fourier": (1, 2)}
    return VDMUNet(**(sizes | arguments))


def transformer(**arguments: Any) -> Transformer:
    sizes = {"length": 12, "inputs": 1, "outputs": 1, "width": 16, "layers": 2, "heads": 2}
    return Transformer(**(sizes | arguments))


def channels(**arguments: Any) -> Transformer:
    return transformer(channels=3, **arguments)


def rotary(**arguments: Any) -> Transformer:
    return transformer(rotary=True, convolution=3, input_convolution=3, **arguments)


def mlp(**arguments: Any) -> MLP:
    return MLP(**({"variables": 8, "width": 16, "layers": 2} | arguments))


BUILDERS: list[Callable[..., nn.Module]] = [unet, vdm, transformer, channels, rotary, mlp]
every_network = pytest.mark.parametrize("build", BUILDERS)
image_network = pytest.mark.parametrize("build", [unet, vdm])


def randomised(net: nn.Module) -> nn.Module:
    """In float64 with every parameter random: nothing hides behind a branch that starts at 0."""
    generator = torch.Generator().manual_seed(0)
    for parameter in net.parameters():
        parameter.data.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return net.double()


def inputs(net: nn.Module, batch: int = 3, side: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    channels: Any = getattr(net, "channels", None)
    sequence = (side,) if channels is None else (side, channels)
    variables = sequence if isinstance(net, Transformer | MLP) else (channels, side, side - 4)
    last = () if net.inputs == 1 else (net.inputs,)
    x = torch.randn(batch, *variables, *last, generator=generator, dtype=torch.float64)
    return x, torch.linspace(0, 1, batch, dtype=torch.float64)


@every_network
@pytest.mark.parametrize(("numbers_in", "numbers_out"), [(1, 1), (1, 2), (5, 5)])
def test_shapes_follow_the_contract(build: Callable, numbers_in: int, numbers_out: int) -> None:
    net = randomised(build(inputs=numbers_in, outputs=numbers_out))
    x, t = inputs(net)
    variables = x.shape if numbers_in == 1 else x.shape[:-1]
    output = net(x, t)
    assert output.shape == (variables if numbers_out == 1 else (*variables, numbers_out))
    assert output.std() > 0.1


@every_network
def test_arguments_rebuild_the_network(build: Callable) -> None:
    net = build(outputs=2, labels=3, known=True)
    arguments = json.loads(json.dumps(net.arguments))
    assert arguments == net.arguments
    assert set(arguments) == set(inspect.signature(type(net)).parameters)
    again = type(net)(**arguments)
    again.load_state_dict(net.state_dict())
    x, t = inputs(net)
    label = torch.tensor([0, 1, 2])
    net, again = net.double().eval(), again.double().eval()
    assert torch.equal(net(x, t, label), again(x, t, label))


@every_network
def test_gradients_reach_every_parameter(build: Callable) -> None:
    extra = {"attention": (1, 2)} if build is unet else {}
    net = randomised(build(outputs=2, labels=2, known=True, **extra))
    x, t = inputs(net)
    label, known = torch.tensor([0, 1, 0]), some_known(x)
    net(x.requires_grad_(), t, label, known).square().sum().backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 1e-9, name
    assert x.grad is not None
    assert (x.grad != 0).all()


@every_network
def test_evaluation_is_deterministic_and_training_drops(build: Callable) -> None:
    net = randomised(build(dropout=0.5))
    x, t = inputs(net)
    torch.manual_seed(0)
    assert not torch.equal(net(x, t), net(x, t))
    assert torch.equal(net.eval()(x, t), net(x, t))


@every_network
def test_examples_do_not_see_each_other(build: Callable) -> None:
    net = randomised(build(labels=3)).eval()
    x, t = inputs(net)
    label = torch.tensor([2, -1, 0])
    together = net(x, t, label)
    for i in range(3):
        alone = net(x[i : i + 1], t[i : i + 1], label[i : i + 1])
        torch.testing.assert_close(together[i : i + 1], alone, rtol=1e-9, atol=1e-9)


@every_network
def test_time_and_input_matter(build: Callable) -> None:
    """Not shown by parity: the small VDM example hardly depends on the time, by 1e-6."""
    net = randomised(build()).eval()
    x, t = inputs(net)
    assert (net(x, t) - net(x, t.flip(0)))[[0, 2]].abs().mean() > 1e-3
    assert (net(x, t) - net(-x, t)).abs().mean() > 1e-3


def test_labels_start_large_enough_to_be_seen() -> None:
    """Starting at 0.02, a label had no effect on what a network learned in 500 steps."""
    vectors = LabelEmbedding(100, 64)(torch.arange(100))
    assert 0.9 < float(vectors.detach().std()) < 1.1


@every_network
def test_label_minus_one_is_no_label(build: Callable) -> None:
    net = randomised(build(labels=3)).eval()
    x, t = inputs(net)
    none = net(x, t)
    assert torch.equal(net(x, t, label=torch.full((3,), -1)), none)
    mixed = net(x, t, label=torch.tensor([-1, 2, -1]))
    assert torch.equal(mixed[[0, 2]], none[[0, 2]])
    assert (mixed[1] - none[1]).abs().max() > 1e-3


def some_known(x: Tensor) -> Tensor:
    return torch.rand(x.shape, generator=torch.Generator().manual_seed(2)) < 0.5


@every_network
def test_known_variables_are_seen(build: Callable) -> None:
    """Each variable has its own mark; a mask without marks is the same as no mask."""
    net = randomised(build(known=True)).eval()
    x, t = inputs(net)
    none, mask = net(x, t), torch.zeros(x.shape, dtype=torch.bool)
    assert torch.equal(net(x, t, known=mask), none)
    for place in (0, -1):
        one = mask.flatten(1).clone()
        one[1, place] = True
        marked = net(x, t, known=one.reshape(x.shape))
        assert torch.equal(marked[[0, 2]], none[[0, 2]])
        assert (marked[1] - none[1]).abs().max() > 1e-3
    assert not torch.allclose(net(x, t, known=some_known(x)), net(x, t, known=~some_known(x)))


@every_network
def test_the_marks_start_at_zero_and_learn(build: Callable) -> None:
    """A fresh network that can see what is known is the one that cannot, with the same weights."""
    net, blind = build(known=True).double().eval(), build().double().eval()
    missing, unknown = net.load_state_dict(blind.state_dict(), strict=False)
    assert (missing, unknown) == (["known.vectors"], [])
    x, t = inputs(net)
    output = net(x, t, known=some_known(x))
    assert torch.equal(output, blind(x, t))
    output.square().sum().backward()
    # In a fresh VDM U-Net nothing but the input reaches the output, and the marks are not in it.
    assert bool((net.known.vectors.grad != 0).any()) == (build is not vdm)


@pytest.mark.parametrize("build", [transformer, channels, rotary])
def test_positions_that_do_not_exist_are_not_seen(build: Callable) -> None:
    """A sequence with padding gives what the shorter one gives, whatever the padding holds."""
    net = randomised(build()).eval()
    x, t = inputs(net)
    lengths = torch.tensor([8, 5, 1])
    exists = torch.arange(8) < lengths[:, None]
    mask = exists.reshape(*exists.shape, *(1,) * (x.dim() - 2)).expand(x.shape)
    padded = net(x, t, mask=mask)
    for i, length in enumerate(lengths):
        alone = net(x[i : i + 1, :length], t[i : i + 1])
        torch.testing.assert_close(padded[i : i + 1, :length], alone)
    assert torch.equal(net(torch.where(mask, x, 7.0), t, mask=mask)[mask], padded[mask])
    assert_refused(lambda: net(x, t, mask=mask.float()), "mask is torch.float32 of shape")
    assert_refused(lambda: net(x, t, mask=mask[:, :4]), f"of the data's shape, {tuple(x.shape)}")


@every_network
def test_mistakes(build: Callable) -> None:
    net, labelled = build().double(), build(labels=3).double()
    marked = build(known=True).double()
    x, t = inputs(net)
    for call, words in (
        (lambda: labelled(x, t, label=torch.tensor([0, 3, 1])), "labels run from 0 to 3"),
        (lambda: labelled(x, t, label=torch.tensor([0, -2, 1])), "labels run from -2 to 1"),
        (lambda: labelled(x, t, label=torch.tensor([0, 1])), "one whole number per example"),
        (lambda: labelled(x, t, label=torch.rand(3)), "torch.float32 of shape"),
        (lambda: net(x, t, label=torch.tensor([0, 1, 2])), "build it with labels=N"),
        (lambda: net(x, t, known=some_known(x)), "build it with known=True"),
        (lambda: marked(x, t, known=some_known(x).float()), "known is torch.float32 of shape"),
        (lambda: marked(x, t, known=some_known(x)[:2]), f"of the data's shape, {tuple(x.shape)}"),
        (lambda: build(known=3), "known = 3; expected true or false"),
        (lambda: net(x, t[:, None]), "t has shape (3, 1), but there are 3 examples"),
        (lambda: net(x[..., None], t), "features have shape"),
    ):
        assert_refused(call, words)


def test_sizes_that_do_not_fit() -> None:
    image, t = torch.zeros(2, 1, 8, 6), torch.zeros(2)
    halved = "images of 8 x 6 cannot be halved 2 times; pad them to multiples of 4"
    wide = torch.zeros(2, 13)
    for call, words in (
        (lambda: unet(image_size=8)(image, t), "built with image_size=[8, 8]"),
        (lambda: vdm(image_size=8)(image, t), "built with image_size=[8, 8]"),
        (lambda: unet(channels=3)(image, t), "built for (B, 3, H, W)"),
        (lambda: vdm(inputs=3)(image[..., None], t), "built for (B, 1, H, W, 3)"),
        (lambda: unet(multipliers=(1, 1, 1))(image, t), halved),
        (lambda: unet(multipliers=(1, 1, 1), image_size=(8, 6)), halved),
        (lambda: transformer()(wide, t), "sequences are 13 long"),
        (lambda: transformer(layers=0), "layers = 0; expected a whole number, at least 1"),
        (lambda: unet(multipliers=(1, 0)), "multipliers = 0; expected a whole number"),
        (lambda: vdm(dropout=1.0), "dropout = 1.0; expected a probability"),
        (lambda: unet(width="wide"), "width = 'wide'; expected a whole number"),
        (lambda: unet(image_size=(1, 2, 3)), "expected one size, or a height and a width"),
        (lambda: unet(groups=32), "groups = 32 does not divide"),
        (lambda: transformer(heads=5), "heads = 5 does not divide width = 16"),
        (lambda: transformer(convolution=2), "convolution = 2; expected an odd number"),
        (lambda: transformer(input_convolution=4), "input_convolution = 4; expected an odd number"),
    ):
        assert_refused(call, words)
    assert unet(image_size=(8, 4)).arguments["image_size"] == [8, 4]
    assert unet(image_size=8).arguments["image_size"] == vdm(image_size=8).arguments["image_size"]
    assert unet(image_size=8).arguments["image_size"] == [8, 8]  # as in every run so far
    assert transformer()(wide[:, :5], t).shape == (2, 5)


@image_network
@pytest.mark.parametrize("numbers", [1, 2])
def test_channels_last_changes_nothing(build: Callable, numbers: int) -> None:
    net = randomised(build(channels=3, outputs=numbers)).eval()
    x, t = inputs(net)
    expected = net(x, t)
    net = net.to(memory_format=torch.channels_last)
    output = net(x.to(memory_format=torch.channels_last), t)
    torch.testing.assert_close(output, expected, rtol=1e-9, atol=1e-9)
    assert output.is_contiguous(memory_format=torch.channels_last) or numbers > 1


@image_network
def test_classes_are_channels_of_their_own(build: Callable) -> None:
    net = randomised(build(channels=2, inputs=3, outputs=3)).eval()
    flat = type(net)(**(net.arguments | {"channels": 6, "inputs": 1, "outputs": 1})).double().eval()
    flat.load_state_dict(net.state_dict())
    x, t = inputs(net)
    joined = torch.stack([x[:, c, :, :, k] for c in range(2) for k in range(3)], dim=1)
    output = net(x, t)
    together = flat(joined, t)
    for c in range(2):
        for k in range(3):
            torch.testing.assert_close(output[:, c, :, :, k], together[:, 3 * c + k])


def test_a_fresh_unet_is_a_projection_of_its_input() -> None:
    torch.manual_seed(0)
    net = unet(channels=2, outputs=2).double()
    x, t = inputs(net)
    w_in, w_out = net.project.weight[:, :, 0, 0], net.readout.weight[:, :16, 0, 0]
    seen = torch.cat((x, (2 * t - 1)[:, None, None, None].expand(-1, 1, 8, 4)), dim=1)
    projected = torch.einsum("oi,bihw->bohw", w_in, seen) + net.project.bias[:, None, None]
    expected = torch.einsum("oi,bihw->bohw", w_out, projected) + net.readout.bias[:, None, None]
    output = net(x, t)
    for c in range(2):
        for p in range(2):
            torch.testing.assert_close(output[:, c, :, :, p], expected[:, 2 * c + p])


def test_a_fresh_vdm_unet_is_a_projection_of_its_input() -> None:
    torch.manual_seed(0)
    net = vdm(channels=3).double()
    x, t = inputs(net)
    expected = torch.einsum("oi,bihw->bohw", net.readout.weight[:, :3, 0, 0], x)
    torch.testing.assert_close(net(x, t), expected + net.readout.bias[:, None, None])


def test_unet_attention_is_where_it_is_requested() -> None:
    def at(net: UNet) -> list[str]:
        return [name for name, _ in net.named_parameters() if name.endswith("qkv.weight")]

    assert at(unet(attention=(8, 16))) == ["middle.attention.attention.qkv.weight"]
    assert at(unet(attention=(2,)))[:1] == ["down.1.attentions.0.attention.qkv.weight"]
    assert len(at(unet(attention=(1, 2)))) == 1 + 2 * (1 + 2)


@pytest.mark.parametrize(("width", "std"), [(768, 0.02), (192, 0.04)])
def test_transformer_initialisation(width: int, std: float) -> None:
    torch.manual_seed(0)
    net = transformer(width=width, layers=2, heads=4, labels=2)
    branch = std / math.sqrt(4)
    for layer in net.layers:
        # 192 x 192 numbers and more: the standard error of a deviation is below 0.4%.
        assert layer.attention.qkv.weight.std().item() == pytest.approx(std, rel=0.02)
        assert layer.hidden.weight.std().item() == pytest.approx(std, rel=0.02)
        assert layer.attention.output.weight.std().item() == pytest.approx(branch, rel=0.02)
        assert layer.output.weight.std().item() == pytest.approx(branch, rel=0.02)
        assert layer.hidden.bias.abs().max() == 0


def test_rotary_attention_retyped_with_complex_numbers() -> None:
    torch.manual_seed(0)
    attention = RotaryAttention(width=12, heads=2, length=9).double()
    x = torch.randn(2, 7, 12, dtype=torch.float64)
    q, k, v = (attention.qkv(x)[..., 12 * i : 12 * (i + 1)].unflatten(-1, (2, 6)) for i in range(3))
    position, j = torch.arange(7)[:, None, None], torch.arange(3)
    turn = torch.exp(1j * position.double() * 1000.0 ** (-j.double() / 3))

    def turned(a: Tensor) -> Tensor:
        a = a / ((a**2).mean(-1, keepdim=True) + 1e-6).sqrt()
        return torch.complex(a[..., :3], a[..., 3:]) * turn

    score = torch.einsum("bphj,bqhj->bhpq", turned(q), turned(k).conj()).real / math.sqrt(6)
    mixed = torch.einsum("bhpq,bqhd->bphd", score.softmax(-1), v).flatten(2)
    torch.testing.assert_close(attention(x), attention.output(mixed), rtol=1e-6, atol=1e-6)


def test_neighbours_are_a_convolution_along_the_positions() -> None:
    torch.manual_seed(0)
    near = Neighbours(width=4, kernel=5).double()
    x = torch.randn(2, 7, 4, dtype=torch.float64)
    assert torch.equal(near(x), x)  # at first
    nn.init.normal_(near.weights)
    own = F.conv1d(x.mT, near.weights.T[:, None], padding=2, groups=4).mT
    torch.testing.assert_close(near(x), x + own)


def test_a_wide_linear_layer_is_a_dense_convolution_along_the_positions() -> None:
    torch.manual_seed(0)
    wide = WideLinear(inputs=3, outputs=4, kernel=5).double()
    x, exists = torch.randn(2, 7, 3, dtype=torch.float64), torch.rand(2, 7) < 0.7
    weight = wide.weight.unflatten(1, (3, 5))
    for mask, seen in ((None, x), (exists, x.where(exists[..., None], 0.0))):
        own = torch.zeros(2, 7, 4, dtype=torch.float64)
        for p in range(7):
            for j in range(5):
                if 0 <= p + j - 2 < 7:
                    own[:, p] += seen[:, p + j - 2] @ weight[..., j].T
        torch.testing.assert_close(wide(x, mask), own + wide.bias)


def test_a_kernel_of_one_is_the_transformer_without() -> None:
    net, plain = randomised(transformer(input_convolution=1)), transformer().double()
    plain.load_state_dict(net.state_dict())
    x, t = inputs(net)
    torch.testing.assert_close(net(x, t), plain(x, t))


def test_a_rotary_transformer_sees_distances_alone() -> None:
    net = randomised(rotary())
    x, t = inputs(net, side=11)
    exists = torch.ones_like(x, dtype=torch.bool)
    first, last = exists.clone(), exists.clone()
    first[:, 7:], last[:, :4] = False, False
    moved = torch.roll(x, 4, dims=1)
    torch.testing.assert_close(net(x, t, mask=first)[:, :7], net(moved, t, mask=last)[:, 4:])


@every_network
def test_nothing_depends_on_values(build: Callable) -> None:
    """On the meta device there are none: any access to a value would raise."""
    with torch.device("meta"):
        net = build(outputs=2, labels=3, known=True)
        x, t = inputs(build())[0].float(), torch.empty(3)
        known = torch.empty(x.shape, dtype=torch.bool)
        output = net(x.to("meta"), t, torch.empty(3, dtype=torch.int64), known)
    assert output.shape == (*x.shape, 2)


# The parts: what parity with the published networks does not show of them.


def random(*shape: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def test_a_fresh_vdm_block_ignores_its_condition_and_a_unet_block_does_not() -> None:
    torch.manual_seed(0)
    vdm = ResidualBlock(8, 8, 6, groups=4, dropout=0.0, zero_condition=True)
    assert vdm.condition.bias is None
    assert vdm.condition.weight.abs().max() == 0
    unet = ResidualBlock(8, 8, 6, groups=4, dropout=0.0)
    assert unet.condition.bias is not None
    assert unet.condition.weight.abs().min() > 0


LAYOUTS = [torch.contiguous_format, torch.channels_last]


@pytest.mark.parametrize("memory", LAYOUTS)
def test_doubling_repeats_every_pixel(memory: torch.memory_format) -> None:
    x = random(2, 3, 4, 5).contiguous(memory_format=memory).requires_grad_()
    y = blocks.doubled(x)
    assert y.is_contiguous(memory_format=memory)
    expected = x.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)
    torch.testing.assert_close(y, expected, rtol=0, atol=0)
    assert torch.autograd.gradcheck(blocks.doubled, x)


@pytest.mark.parametrize("memory", LAYOUTS)
@pytest.mark.parametrize("compiling", [False, True])
def test_joined_channels_and_their_gradients(
    memory: torch.memory_format, compiling: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiling)
    x, kept = (random(2, c, 4, 5, seed=c).contiguous(memory_format=memory) for c in (3, 2))
    x, kept = x.requires_grad_(), kept.requires_grad_()
    y = blocks.joined(x, kept)
    assert torch.equal(y, torch.cat((x, kept), dim=1))
    assert torch.autograd.gradcheck(blocks.joined, (x, kept))
    slopes = torch.autograd.grad(y, (x, kept), random(2, 5, 4, 5).contiguous(memory_format=memory))
    assert all(s.is_contiguous(memory_format=memory) is compiling for s in slopes)
    # And what a block does with them.
    block = randomised(ResidualBlock(5, 6, 4, groups=1, dropout=0.0))
    c = random(2, 4)
    torch.testing.assert_close(block(x, c, kept), block(y, c))


def test_vdm_times_are_sines_then_cosines_of_1000_t() -> None:
    times = [0.0, 1e-6, 0.37, 1.0]
    waves = vdm_times(128).double()(torch.tensor(times, dtype=torch.float64))
    for row, t in zip(waves.tolist(), times, strict=True):
        angles = [1000 * (t + 0.001) * 10 ** (-4 * i / 63) for i in range(64)]
        expected = [math.sin(a) for a in angles] + [math.cos(a) for a in angles]
        assert row == pytest.approx(expected, abs=1e-4)  # frequencies in float32
    assert_refused(lambda: vdm_times(33), "width = 33")
