"""On a GPU: the CPU's numbers, and no waiting for the device in a training step."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import bfn
from bfn.device import on_device
from bfn.nn.accelerate import Accelerated
from bfn.sampling.batches import in_batches
from support.toys import KINDS, data, generator, model

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
every_kind = pytest.mark.parametrize("kind", KINDS)
LOSSES = {
    "continuous_time": lambda m, x, **k: bfn.loss.continuous_time(m, x, **k),
    "discrete_time": lambda m, x, **k: bfn.loss.discrete_time(m, x, 5, **k),
    "all_steps": lambda m, x, **k: bfn.loss.discrete_time(m, x, 3, steps="all", **k),
    "reconstruction": lambda m, x, **k: bfn.loss.reconstruction(m, x, **k),
}


@every_kind
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("bins", [None, 256])
def test_losses_are_those_of_the_cpu(kind: str, name: str, bins: int | None) -> None:
    """A CPU generator gives the same noise everywhere."""
    options = {"K": bins} if bins and kind == "discretised" else {}
    here, there = (model(kind, **options).double().to(d) for d in ("cpu", "cuda"))
    x = data(kind, (6, 2, 3), dtype=torch.float64)
    if options:
        x = bfn.discretise(x, 256)
    a = LOSSES[name](here, x, generator=generator(1))
    b = LOSSES[name](there, x.cuda(), generator=generator(1))
    assert b.device.type == "cuda"
    torch.testing.assert_close(a, b.cpu(), rtol=1e-9, atol=1e-9)
    gradients = [
        torch.autograd.grad(value.sum(), list(m.parameters()))
        for value, m in ((a, here), (b, there))
    ]
    for g, h in zip(*gradients, strict=True):
        torch.testing.assert_close(g, h.cpu(), rtol=1e-8, atol=1e-8)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@every_kind
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("bins", [None, 256])
def test_a_training_step_never_waits(kind: str, name: str, bins: int | None) -> None:
    options = {"K": bins} if bins and kind == "discretised" else {}
    bfn_model = model(kind, **options).cuda()
    x = data(kind, (6, 2, 3))
    x = (bfn.discretise(x, 256) if options else x).cuda()
    g = torch.Generator("cuda").manual_seed(1)
    LOSSES[name](bfn_model, x, generator=g).mean().backward()  # tables are made once
    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("error")
        LOSSES[name](bfn_model, x, generator=g).mean().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@every_kind
@pytest.mark.parametrize("solver", ["ancestral", "ode2"])
def test_samples_are_those_of_the_cpu(kind: str, solver: str) -> None:
    here, there = (model(kind).double().to(d) for d in ("cpu", "cuda"))
    a, b = (
        bfn.generate(m, (6, 4), 5, solver=solver, generator=generator(2)) for m in (here, there)
    )
    assert b.device.type == "cuda"
    torch.testing.assert_close(a, b.cpu(), rtol=1e-7, atol=1e-7)


@pytest.mark.filterwarnings("ignore")  # torch's own, while it compiles
@pytest.mark.parametrize("compile", [False, True])
def test_guided_samples_are_those_of_the_cpu(compile: bool) -> None:
    """Nearly: the network runs in bfloat16 there, and its rounding moves some pixels by a level."""
    options = {"calls": 8, "solver": "sde2", "final": "mode", "guidance": 2.0, "batch": 6}
    label = [i % 10 for i in range(10)]
    model = bfn.BFN.from_pretrained("digits-labelled")
    here = in_batches(model, 10, (1, 8, 8), label=label, **options)
    model = on_device(model, "cuda", fast=Accelerated, compile=compile)
    there = in_batches(model, 10, (1, 8, 8), label=label, static=compile, **options)
    assert there.device.type == "cpu"
    assert float((here - there).abs().mean()) < 0.02


def test_a_resumed_run_goes_on(tmp_path: Path) -> None:
    """Weights are channels last there, and the optimiser's state beside them too."""

    def fit(steps: int, **more) -> bfn.train.Fit:
        torch.manual_seed(0)
        net = bfn.nn.UNet(outputs=2, width=32, multipliers=(1, 2), blocks=1, groups=8, image_size=8)
        net = bfn.discretised(net, K=17, sigma_1=0.05)
        return bfn.train.fit(
            net, bfn.data.load("digits"), steps=steps, batch=32, log_every=1, display=False,
            device="cuda", precision="float32", compile="no", **more
        )  # fmt: skip

    whole = fit(12)
    fit(6, out=tmp_path / "run")
    resumed = fit(12, out=tmp_path / "run", resume=True)
    losses = [[line["loss"] for line in each.history] for each in (whole, resumed)]
    # Sums on a GPU are not always in the same order.
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
