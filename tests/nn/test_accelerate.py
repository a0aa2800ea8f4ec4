"""The fast way to call a network computes what the plain way does."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import bfn
from bfn.nn import accelerate
from bfn.nn.accelerate import Accelerated, choose_dtype

NO_GPU = not torch.cuda.is_available()


def on_a_gpu(test: Callable[..., None]) -> Callable[..., None]:
    quiet = pytest.mark.filterwarnings("default")  # torch warns while it compiles
    return pytest.mark.skipif(NO_GPU, reason="needs a CUDA device")(quiet(test))


NETWORKS = {
    "unet": lambda **k: bfn.nn.UNet(
        width=16, multipliers=(1, 2), blocks=1, groups=8, labels=3, **k
    ),
    "vdm": lambda **k: bfn.nn.VDMUNet(channels=1, width=16, blocks=2, groups=8, labels=3, **k),
    "transformer": lambda **k: bfn.nn.Transformer(
        64, inputs=1, outputs=1, width=32, layers=2, heads=2, labels=3, **k
    ),
    "text": lambda **k: bfn.nn.Transformer(
        64,
        1,
        1,
        width=32,
        layers=2,
        heads=2,
        labels=3,
        rotary=True,
        convolution=5,
        input_convolution=5,
        **k,
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
    shape = (4, 64) if name in ("transformer", "text") else (4, 1, 8, 8)
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


def test_a_cpu_keeps_the_networks_type() -> None:
    assert choose_dtype("auto", torch.device("cpu")) == torch.float32
    net = NETWORKS["unet"]()
    assert not Accelerated(net).compiled
    net = network("transformer").double().eval()
    features, t, _ = inputs("transformer")
    found = Accelerated(net)(features.double(), t.double())
    assert found.dtype == torch.float64
    assert torch.equal(found, net(features.double(), t.double()))


def test_a_network_that_cannot_be_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """For instance without a C++ compiler; other errors pass through."""
    from torch._dynamo.exc import InternalTorchDynamoError

    def failing(error: Exception) -> Callable[..., Any]:
        def compiled(*arguments: torch.Tensor) -> None:
            raise error

        return lambda function, *, dynamic: compiled

    net, (features, t, _) = network("unet"), inputs("unet")
    monkeypatch.setattr(torch, "compile", failing(InternalTorchDynamoError("no g++\nhelp")))
    sentence = r"could not be compiled \(no g\+\+\); .* --train.compile no"
    with pytest.raises(bfn.BFNError, match=sentence):
        Accelerated(net, compile=True)(features, t)
    monkeypatch.setattr(torch, "compile", failing(RuntimeError("a bug")))
    with pytest.raises(RuntimeError, match=r"^a bug$"):
        Accelerated(net, compile=True)(features, t)


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
    twice = Accelerated(fast, compile=True)
    assert torch.equal(twice(features, t), net(features, t))
    assert len(calls) == 18
    calls.clear()
    # A network of unknown parts is compiled in one piece.
    other = torch.nn.Bilinear(8, 4, 2)
    Accelerated(other, compile=True)(torch.ones(4, 8), torch.ones(4, 4))
    assert calls == ["Bilinear"]


class Fake:
    """Replaces a recording: counts its calls, and calls the network."""

    made: ClassVar[list[Fake]] = []

    def __init__(self, call, given, parameters=None, stand_ins=None) -> None:
        self.call, self.parameters, self.calls, self.busy = call, parameters, 0, False
        self.made.append(self)

    def __call__(self, *given: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.call(*given)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Fake]]:
    for name in ("Recording", "TrainingRecording"):
        monkeypatch.setattr(accelerate, name, Fake)
    monkeypatch.setattr(torch, "compile", lambda function, dynamic: function)
    yield Fake.made
    Fake.made.clear()


def recording(net: torch.nn.Module) -> Accelerated:
    """As on a GPU: calls are recorded."""
    fast = Accelerated(net, compile=True)
    fast.records = True
    return fast


def test_when_calls_are_recorded_and_replayed(made: list[Fake]) -> None:
    net = network("unet", dropout=0.0)
    features, t, label = inputs("unet")
    fast = recording(net)

    def check(recordings: int, *given: torch.Tensor, **cond: torch.Tensor) -> None:
        """Results are the network's own, and this many recordings have been made."""
        before = [recording.calls for recording in made]
        for _ in range(2):
            assert torch.equal(fast(*given, **cond), net(*given, **cond))
        assert len(made) == recordings
        replayed = sum(r.calls for r in made) - sum(before)
        assert replayed == (2 if len(fast.recordings) else 0)

    check(1, features, t)
    assert len(made[0].parameters) == len(list(net.parameters()))
    check(1, -features, 1 - t)
    check(2, features, t, label=label)
    check(3, features[:2], t[:2])
    net.down[0].eval()
    check(4, features, t)
    net.eval()
    with torch.no_grad():
        check(5, features, t)
    assert made[4].parameters is None
    assert len(fast.recordings) == 5
    # Weights that are frozen, or lie elsewhere, need new recordings.
    net.stem.weight.requires_grad_(False)
    check(6, features, t)
    assert len(made[5].parameters) == len(list(net.parameters())) - 1
    assert len(fast.recordings) == 1
    net.stem.weight.data = net.stem.weight.data.clone()
    check(7, features, t)
    net.conditioning.sinusoid.frequencies = net.conditioning.sinusoid.frequencies.clone()
    check(8, features, t)
    with torch.no_grad():
        net.stem.weight.mul_(2.0)
    check(8, features, t)


def test_calls_that_are_not_replayed(made: list[Fake]) -> None:
    net = network("unet", dropout=0.0)
    features, t, _ = inputs("unet")
    fast = recording(net)

    def replayed(*given: torch.Tensor, **cond: Any) -> int:
        before = sum(recording.calls for recording in made)
        assert torch.equal(fast(*given, **cond), net(*given, **cond))
        return sum(recording.calls for recording in made) - before

    assert replayed(features, t, label=None) == 0
    assert replayed(features.clone().requires_grad_(), t) == 0
    assert not made
    assert replayed(features, t) == 1
    made[0].busy = True
    assert replayed(features, t) == 0
    made[0].busy = False
    assert replayed(features, t) == 1
    # Each keeps memory, so their number is limited.
    wide = torch.cat([features] * 4)
    sizes = range(5, 5 + accelerate.MOST_RECORDINGS)
    assert [replayed(wide[:n], wide[:n, 0, 0, 0]) for n in sizes] == [*[1] * (len(sizes) - 1), 0]
    assert replayed(features, t) == 1


@pytest.mark.parametrize("replaces", [False, True])
def test_recording_is_not_counted_as_calls(
    replaces: bool, made: list[Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Buffers written in place are put back; a network that replaces them is not recorded."""

    class Warm(Fake):
        def __init__(self, call, given, *more) -> None:
            super().__init__(call, given, *more)
            for _ in range(accelerate.WARM_UP):
                call(*given)

    class Counting(torch.nn.BatchNorm1d):
        def forward(self, features: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            if replaces:
                self.running_mean = self.running_mean.clone()
            return super().forward(features)

    monkeypatch.setattr(accelerate, "TrainingRecording", Warm)
    features, t = torch.randn(4, 8, generator=torch.Generator().manual_seed(0)), torch.rand(4)
    net, plain = Counting(8), Counting(8)
    fast = recording(net)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for calls in (1, 2, 3):
            assert torch.equal(fast(features, t), plain(features, t))
            assert net.num_batches_tracked == calls
            assert torch.equal(net.running_mean, plain.running_mean)
    assert ["replaces its buffers" in str(each.message) for each in caught] == [True] * replaces
    assert sum(recording.calls for recording in made) == (0 if replaces else 3)


def test_a_failed_recording_warns_once(made: list[Fake], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(accelerate, "TrainingRecording", fail)
    net = network("unet", dropout=0.0)
    features, t, _ = inputs("unet")
    fast = recording(net)
    with pytest.warns(UserWarning, match="without CUDA graphs: operation not permitted .*ing$"):
        found = fast(features, t)
    assert torch.equal(found, net(features, t))
    assert torch.equal(fast(features, t), found)


def test_a_network_that_was_moved_to_the_cpu_is_not_recorded(made: list[Fake]) -> None:
    fast = Accelerated(network("unet").eval())
    fast.records, fast.device = True, torch.device("cuda:0")  # where it was made
    features, t, _ = inputs("unet")
    with torch.no_grad():
        assert torch.equal(fast(features, t), fast.net(features, t))
    assert not made
    assert not fast.recordings


class Tape:
    """Replaces a CUDA graph: computes again what it recorded, into the same memory."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call, self.results = call, call()

    def replay(self) -> None:
        mine, new = (r if isinstance(r, list) else [r] for r in (self.results, self.call()))
        for a, b in zip(mine, new, strict=True):
            if a is not None:
                a.data.copy_(b)

    def pool(self) -> None: ...


class Aside(torch.nn.Module):
    """Weights that two layers share, that are kept in a list, that are both, or unused."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        self.second.weight = self.first.weight
        self.scale, self.unused = (torch.nn.Parameter(torch.randn(8)) for _ in range(2))
        self.kept = [self.scale, self.first.bias]

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        y = self.second(torch.tanh(self.first(x))) * self.kept[0] + self.kept[1].square()
        return y + t[:, None]


@pytest.mark.parametrize("name", [*NETWORKS, "aside"])
def test_gradients_of_stand_ins_are_the_parameters_own(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One replay on a CPU; only parameters without a stand-in are differentiated themselves."""
    touched: list[torch.Tensor] = []
    grad = torch.autograd.grad

    def differentiate(output, leaves, slope, allow_unused):
        found = grad(output, leaves, slope, allow_unused=allow_unused, retain_graph=True)
        touched.extend(p for p, g in zip(leaves, found, strict=True) if g is not None)
        return found

    monkeypatch.setattr(accelerate, "hand_over", lambda own, given: None)  # same input
    monkeypatch.setattr(accelerate, "warm_up", lambda call: call())
    monkeypatch.setattr(accelerate, "record", lambda call, _=None: ((t := Tape(call)), t.results))
    monkeypatch.setattr(torch, "compile", lambda function, dynamic: function)
    torch.manual_seed(0)
    net = Aside() if name == "aside" else network(name, dropout=0.0)
    features, t = (torch.randn(4, 8), torch.rand(4)) if name == "aside" else inputs(name)[:2]
    own = list(net.parameters())
    expected = net(features, t)
    fast = recording(net)
    monkeypatch.setattr(torch.autograd, "grad", differentiate)
    found = fast(features, t)
    assert torch.equal(found, expected)
    assert None not in fast.recordings.values()
    recorded = {id(p) for p in touched}
    found.square().sum().backward()
    gradients = [p.grad for p in own]
    net.zero_grad()
    expected.square().sum().backward()
    for parameter, gradient in zip(own, gradients, strict=True):
        if parameter.grad is None:
            assert gradient is None
        else:
            torch.testing.assert_close(gradient, parameter.grad)
    assert all(a is b for a, b in zip(net.parameters(), own, strict=True))
    aside = [p for p in own if id(p) in recorded]
    assert len(aside) == (2 if name == "aside" else 0)


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
    assert len(fast.recordings) == 1
    assert None not in fast.recordings.values()
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
def test_a_recorded_network_is_joined_to_other_processes(tmp_path: Path, exact: None) -> None:
    """DDP awaits gradients of all parameters from its beginning to its end."""
    net = network("unet", dropout=0.0).cuda()
    features, t, _ = (v.cuda() for v in inputs("unet"))
    expected = gradients(net, net(features, t))
    fast = Accelerated(net, "float32")
    group = f"file://{tmp_path}/group"
    torch.distributed.init_process_group("gloo", init_method=group, rank=0, world_size=1)
    try:
        joined = DistributedDataParallel(fast, find_unused_parameters=True)  # it has no labels
        for _ in range(2):
            close(gradients(net, joined(features, t)), expected)
    finally:
        torch.distributed.destroy_process_group()
    assert len(fast.recordings) == 1
    assert None not in fast.recordings.values()


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
        assert len(fast.recordings) == 1
        assert None not in fast.recordings.values()
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
    torch.manual_seed(1)
    earliest = fast(features, t)  # recorded now
    torch.manual_seed(1)
    first, second = fast(features, t), fast(features, t)
    assert torch.equal(earliest, first)
    assert not torch.equal(first, second)
    torch.manual_seed(1)
    assert torch.equal(fast(features, t), first)


@on_a_gpu
def test_what_cannot_be_recorded_runs_without() -> None:
    class Waits(torch.nn.Linear):
        def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * float(t.sum().cpu())

    net: torch.nn.Module = Waits(8, 8).cuda()
    fast = Accelerated(net, "float32")
    x, t = torch.randn(4, 8, device="cuda"), torch.ones(4, device="cuda")
    before = torch.cuda.current_stream()
    with pytest.warns(UserWarning, match="runs without CUDA graphs"), torch.no_grad():
        found = fast(x, t)
    assert torch.cuda.current_stream() == before
    torch.testing.assert_close(found, net(x, t), rtol=1e-3, atol=1e-3)
    assert torch.isfinite(fast(x, t)).all()


@on_a_gpu
def test_a_recorded_call_has_one_backward_pass() -> None:
    net = network("unet", dropout=0.0).cuda()
    features, t, _ = (v.cuda() for v in inputs("unet"))
    y = Accelerated(net, "float32")(features, t).square().sum()
    y.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="only one backward pass"):
        y.backward()
