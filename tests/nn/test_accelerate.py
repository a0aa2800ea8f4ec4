"""The fast way to call a network computes what the plain way does."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

import bfn
from bfn.nn.accelerate import Accelerated, choose_dtype

NO_GPU = not torch.cuda.is_available()


def on_a_gpu(test: Callable[..., None]) -> Callable[..., None]:
    quiet = pytest.mark.filterwarnings("default")  # torch warns of this and that as it compiles
    return pytest.mark.skipif(NO_GPU, reason="needs a CUDA device")(quiet(test))


NETWORKS = {
    "unet": lambda **k: bfn.nn.UNet(
        width=16, multipliers=(1, 2), blocks=1, groups=8, labels=3, **k
    ),
    "vdm": lambda **k: bfn.nn.VDMUNet(channels=1, width=16, blocks=2, groups=8, labels=3, **k),
    "transformer": lambda **k: bfn.nn.Transformer(
        64, inputs=1, outputs=1, width=32, layers=2, heads=2, labels=3, **k
    ),
}


def network(name: str, **options: float) -> torch.nn.Module:
    torch.manual_seed(0)
    net = NETWORKS[name](**options)
    for parameter in net.parameters():  # branches that start at zero would hide everything
        parameter.data.add_(0.05 * torch.randn_like(parameter))
    return net


def inputs(name: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = (4, 64) if name == "transformer" else (4, 1, 8, 8)
    features = torch.rand(shape, generator=generator) * 2 - 1
    return features, torch.rand(4, generator=generator), torch.tensor([0, 2, -1, 1])


@pytest.mark.parametrize("name", NETWORKS)
def test_bfloat16_is_float32_but_for_rounding(name: str) -> None:
    net = network(name).eval()
    features, t, label = inputs(name)
    plain, fast = Accelerated(net, "float32"), Accelerated(net, "bfloat16")
    expected = net(features, t, label=label)
    assert torch.equal(plain(features, t, label=label), expected)
    found = fast(features, t, label=label)
    assert found.dtype == torch.float32
    error = (found - expected).norm() / expected.norm()
    assert 1e-5 < error < 3e-2
    # Masters and gradients stay in float32, and gradients agree, too.
    a, b = (
        torch.autograd.grad(y.square().sum(), list(net.parameters())) for y in (expected, found)
    )
    assert all(g.dtype == torch.float32 for g in b)
    flat = [torch.cat([g.flatten() for g in each]) for each in (a, b)]
    assert (flat[1] - flat[0]).norm() / flat[0].norm() < 5e-2


def test_a_cpu_stays_with_float32_unless_told() -> None:
    assert choose_dtype("auto", torch.device("cpu")) == torch.float32
    net = NETWORKS["unet"]()
    assert not Accelerated(net).compiled
    with pytest.raises(bfn.BFNError, match="precision = 'float8'; expected auto, float32"):
        Accelerated(net, "float8")  # pyright: ignore[reportArgumentType]


def test_units_are_compiled_for_this_caller_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def compile(function, *, dynamic: bool):
        assert not dynamic

        def compiled(*arguments):
            calls.append(type(function.__self__).__name__)
            return function(*arguments)

        return compiled

    monkeypatch.setattr(torch, "compile", compile)
    net = network("unet").eval()
    features, t, label = inputs("unet")
    expected = net(features, t, label=label)
    fast = Accelerated(net, compile=True)
    assert torch.equal(fast(features, t, label=label), expected)
    assert sorted(calls) == ["Doubling", *["ResidualBlock"] * 8]
    net(features, t)
    assert len(calls) == 9
    assert not any("forward" in vars(module) for module in net.modules())
    # A network of other parts is compiled as a whole.
    other = torch.nn.Bilinear(8, 4, 2)
    Accelerated(other, compile=True)(torch.ones(4, 8), torch.ones(4, 4))
    assert calls[9:] == ["Bilinear"]


@pytest.fixture
def exact() -> Iterator[None]:
    """Float32 products as they are on a CPU."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.allow_tf32, matmul.allow_tf32
    cudnn.allow_tf32 = matmul.allow_tf32 = False
    yield
    cudnn.allow_tf32, matmul.allow_tf32 = before


def gradients(net: torch.nn.Module, output: torch.Tensor) -> list[torch.Tensor]:
    net.zero_grad()
    output.square().sum().backward()
    return [p.grad.clone() for p in net.parameters() if p.grad is not None]


def close(a: list[torch.Tensor], b: list[torch.Tensor]) -> None:
    assert len(a) == len(b) > 10
    for g, h in zip(a, b, strict=True):
        assert (g - h).norm() <= 1e-4 * h.norm() + 1e-5


@on_a_gpu
@pytest.mark.parametrize("name", NETWORKS)
def test_recorded_training_computes_what_the_network_does(name: str, exact: None) -> None:
    net = network(name, dropout=0.0).cuda()
    features, t, label = (v.cuda() for v in inputs(name))
    fast = Accelerated(net, "float32")
    for sign in (1.0, -0.5, 0.3):
        x = sign * features
        expected, found = net(x, t, label=label), fast(x, t, label=label)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        close(gradients(net, found), gradients(net, expected))
        with torch.no_grad():  # as an optimiser does: other values in the same places
            for parameter in net.parameters():
                parameter.mul_(0.9)
    assert len(fast._recordings) == 1
    # Gradients of two calls add up, one after the other and both at once.
    both = [net(x, t), net(-x, t)]
    expected = gradients(net, torch.stack(both))
    net.zero_grad()
    fast(x, t).square().sum().backward()
    fast(-x, t).square().sum().backward()
    close([p.grad for p in net.parameters() if p.grad is not None], expected)
    close(gradients(net, torch.stack([fast(x, t), fast(-x, t)])), expected)
    # Gradients of the features are not recorded, and right nevertheless.
    x = x.clone().requires_grad_()
    a, b = (torch.autograd.grad(f(x, t).square().sum(), x)[0] for f in (net, fast))
    torch.testing.assert_close(b, a, rtol=1e-3, atol=1e-3 * float(a.abs().max()))


@on_a_gpu
@pytest.mark.parametrize("name", NETWORKS)
def test_recorded_inference_computes_what_the_network_does(name: str, exact: None) -> None:
    net = network(name).eval().cuda()
    features, t, label = (v.cuda() for v in inputs(name))
    fast = Accelerated(net, "float32")
    with torch.no_grad():
        kept = []
        for x, other in ((features, label), (-features, label), (features, label.flip(0))):
            kept.append((fast(x, t, label=other), net(x, t, label=other)))
        for found, expected in kept:  # also the first, after the others
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        assert len(fast._recordings) == 1
        for b in (1, 2, 3):  # other shapes
            torch.testing.assert_close(
                fast(features[:b], t[:b]), net(features[:b], t[:b]), rtol=1e-4, atol=1e-4
            )
        net.cpu().cuda()  # other places
        for parameter in net.parameters():
            parameter.mul_(0.9)
        torch.testing.assert_close(fast(features, t), net(features, t), rtol=1e-4, atol=1e-4)


@on_a_gpu
def test_dropout_of_a_recording_is_new_each_time_and_follows_the_seed() -> None:
    net = network("unet", dropout=0.5).cuda().train()
    features, t, _ = (v.cuda() for v in inputs("unet"))
    fast = Accelerated(net)
    fast(features, t)
    torch.manual_seed(1)
    first, second = fast(features, t), fast(features, t)
    assert not torch.equal(first, second)
    torch.manual_seed(1)
    assert torch.equal(fast(features, t), first)


@on_a_gpu
def test_what_cannot_be_recorded_runs_without() -> None:
    class Waits(torch.nn.Linear):
        def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * float(t.sum().cpu())

    net = Waits(8, 8).cuda()
    fast = Accelerated(net, "float32")
    x, t = torch.randn(4, 8, device="cuda"), torch.ones(4, device="cuda")
    with pytest.warns(UserWarning, match="runs without CUDA graphs"), torch.no_grad():
        found = fast(x, t)
    torch.testing.assert_close(found, net(x, t), rtol=1e-3, atol=1e-3)
    assert torch.isfinite(fast(x, t)).all()
