"""Molecules: atom types and coordinates in one model, and a network that respects rotations.

    python examples/molecules.py

The molecules are made by rule: saturated, without rings, 3 to 9 atoms of H, O, N and C, each bond
as long as the two atoms' radii together and at the tetrahedral angle to the others. The model
learns types (discrete) and coordinates (continuous) together, without knowing the rule. The script
prints what a molecule costs, and how many samples have bonds within 10% of their lengths, filled
valences, and atoms that are all connected: 97%. Three minutes on two CPU cores.

The position and the orientation of a molecule are arbitrary. So the data have their centre at 0,
and the network, like PaiNN (arXiv:2102.03150), sees only differences of coordinates: if theta is
rotated, so is the prediction, and its centre is at 0, too. Messages are sent about all 3 n
coordinates, but the centre is known, and costs nothing in L^inf or L^r: they bound the cost of the
3 n - 3 dimensions in which molecules differ, each to within SIGMA_1.
"""

from __future__ import annotations

import math
import random
from collections import Counter

import torch
from torch import Tensor, nn

import bfn

Parts, Three = dict[str, Tensor], tuple[Tensor, Tensor, Tensor]
SYMBOLS = "HONC"  # with valences 1, 2, 3 and 4
RADII = torch.tensor([0.31, 0.66, 0.71, 0.76])  # in angstroms
MOST, UNIT = 9, 4.0  # atoms; and angstroms that are 1 to the model
SIGMA_1, SPREAD = 0.008, 0.2  # the deviations of what is open at t = 1, and of the data


def grow(rng: random.Random) -> list[tuple[int, int, int]]:
    """A random molecule: for each atom its type, the atom it is bound to, and at which valence."""
    atoms, used = [(rng.randint(1, 3), 0, 0)], [0]
    while True:
        free = [k + 1 - u for (k, _, _), u in zip(atoms, used, strict=True)]
        if not any(free):
            return atoms
        # A heavy atom in place of a hydrogen brings hydrogens of its own.
        room = MOST - len(atoms) - sum(free)
        heavy = rng.random() < 0.3 and room > 0
        parent = rng.choice([i for i, count in enumerate(free) if count])
        atoms.append((rng.randint(1, min(3, room)) if heavy else 0, parent, used[parent]))
        used[parent] += 1
        used.append(1)


def molecules(count: int, seed: int) -> tuple[Parts, Tensor]:
    """Types and coordinates, with -1 and NaN beyond the number of atoms; and that number."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    grown = [grow(rng) for _ in range(count)]
    length = torch.tensor(list(map(len, grown)))
    table = torch.tensor([atoms + [(0, 0, 0)] * (MOST - len(atoms)) for atoms in grown])
    types, parents, slots = table.unbind(2)
    each, x = torch.arange(count), torch.zeros(count, MOST, 3)
    # Where the valences of an atom point, the first one to its parent.
    directions = torch.randn(count, MOST, 4, 3, generator=generator)
    for i in range(MOST):
        parent = each, parents[:, i]
        u = nn.functional.normalize(directions[*parent, slots[:, i]], dim=1)
        noise = 0.02 * torch.randn(count, generator=generator)
        x[:, i] = x[parent] + (RADII[types[parent]] + RADII[types[:, i]] + noise)[:, None] * u
        v = nn.functional.normalize(torch.linalg.cross(u, directions[:, i, 1]), dim=1)
        w = torch.linalg.cross(u, v)
        directions[:, i, 0] = -u
        for j in (1, 2, 3):
            turned = math.cos(2 * math.pi * j / 3) * v + math.sin(2 * math.pi * j / 3) * w
            directions[:, i, j] = u / 3 + math.sqrt(8) / 3 * turned
    nothing = torch.arange(MOST) >= length[:, None]
    x = (x / UNIT).masked_fill(nothing[..., None], math.nan)
    found = {"types": types.masked_fill(nothing, -1), "coordinates": x - x.nanmean(1, keepdim=True)}
    kept = valid(found).all(0)  # now and then two atoms meet
    return {name: values[kept] for name, values in found.items()}, length[kept]


def valid(x: Parts) -> Tensor:
    """Whether bonds are as long as they should be, valences filled, atoms connected: (3, B)."""
    types, exists, itself = x["types"].clamp_min(0), x["types"] >= 0, torch.eye(MOST).bool()
    pairs = exists[:, :, None] & exists[:, None]
    places = x["coordinates"].nan_to_num() * UNIT
    relative = torch.cdist(places, places) / (RADII[types][:, :, None] + RADII[types][:, None])
    bonds = (relative < 1.25) & pairs & ~itself
    right = (relative - 1).abs() < 0.1
    filled = bonds.sum(2) == types + 1
    reached = torch.linalg.matrix_power((bonds | itself).double(), MOST) > 0
    every = (right | ~bonds).flatten(1), filled | ~exists, (reached | ~pairs).flatten(1)
    return torch.stack([each.all(1) for each in every])


class Layer(nn.Module):
    """Messages to atoms i from atoms j; they change invariants h and vectors v, and move atoms."""

    def __init__(self, width: int, arrows: int) -> None:
        super().__init__()
        self.own, self.other = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.geometry = nn.Linear(16 + 2 * arrows, width, bias=False)
        self.message = nn.Sequential(nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.arrows, self.mix = nn.Linear(width, 2 * arrows), nn.Linear(arrows, 2 * arrows, False)
        known = 2 * width + arrows
        self.update = nn.Sequential(nn.Linear(known, width), nn.SiLU(), nn.Linear(width, width))
        self.gate, self.move = nn.Linear(width, arrows), nn.Linear(arrows, 1, False)
        nn.init.zeros_(self.move.weight)

    def forward(self, h: Tensor, v: Tensor, x: Tensor, i: Tensor, j: Tensor) -> Three:
        difference = x[i] - x[j]
        distance = (difference.square().sum(-1, keepdim=True) + 1e-4).sqrt()
        near = torch.exp(-0.5 * (distance / 0.3 - torch.arange(16, device=x.device)).square())
        u, v_j = (difference / (distance + 0.3))[:, None], v[j]
        geometry = torch.cat((near, (v[i] * u).sum(-1), (v_j * u).sum(-1)), -1)
        m = self.message(self.own(h)[i] + self.other(h)[j] + self.geometry(geometry))
        new, passed = self.arrows(m)[..., None].chunk(2, 1)
        v = v.index_add(0, i, new * u + passed * v_j, alpha=0.3)
        a, b = self.mix(v.mT).mT.chunk(2, 1)
        received = torch.zeros_like(h).index_add(0, i, m)
        h = h + self.update(torch.cat((h, received, (a * b).sum(-1)), -1))
        v = v + self.gate(h)[..., None] * a
        return h, v, self.move(v.mT).squeeze(-1)


class Equivariant(nn.Module):
    """Logits of types (B, n, 4), and the coordinates' noise epsilon (B, n, 3)."""

    def __init__(self, width: int = 64, arrows: int = 16, layers: int = 4) -> None:
        super().__init__()
        self.arguments = {"width": width, "arrows": arrows, "layers": layers}
        self.embed = nn.Linear(len(SYMBOLS) + 3, width)
        self.layers = nn.ModuleList(Layer(width, arrows) for _ in range(layers))
        self.types = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 4))

    def forward(self, features: Parts, t: Tensor, mask: Parts) -> Parts:
        exists, mu = mask["types"][..., None].to(t.dtype), features["coordinates"]
        n, shape = exists.sum(1, keepdim=True), mu.shape
        # mu = gamma x + sqrt(gamma (1 - gamma)) epsilon. From its own mu alone, a coordinate is
        # best guessed as x below, give or take size: the layers move the atoms on from there.
        gamma = -torch.expm1(2 * math.log(SIGMA_1) * t)[:, None, None].clamp_max(-1e-7)
        variance = gamma * SPREAD**2 + 1 - gamma
        x = mu * SPREAD**2 / variance * UNIT
        size = SPREAD * ((1 - gamma) / variance).sqrt() * UNIT
        about = torch.cat((t[:, None, None], size.log(), n / MOST), -1).expand(-1, shape[1], -1)
        h = self.embed(torch.cat((features["types"], about), -1))

        # All molecules' atoms in one row, and the pairs that exist, which are less than half.
        pairs = (exists * exists.mT).bool() & ~torch.eye(shape[1], device=mu.device).bool()
        molecule, i, j = pairs.nonzero().T
        i, j = shape[1] * molecule + i, shape[1] * molecule + j
        h, x, size = (each.flatten(0, 1) for each in (h, x, size.expand(-1, shape[1], -1)))
        v = x.new_zeros(len(x), self.arguments["arrows"], 3)
        for layer in self.layers:
            h, v, move = layer(h, v, x, i, j)
            x = x + size * move
        x = x.reshape(shape) / UNIT
        x = x - (x * exists).sum(1, keepdim=True) / n
        epsilon = (mu - gamma * x) / (gamma * (1 - gamma)).sqrt()
        return {"types": self.types(h).reshape(*shape[:2], 4), "coordinates": epsilon}


def shuffled(x: Parts, seed: int = 0) -> Parts:
    """The same molecules, with types in random order."""
    order = torch.rand(x["types"].shape, generator=torch.Generator().manual_seed(seed))
    return {**x, "types": x["types"].gather(1, (order + (x["types"] < 0)).argsort(1))}


def untrained() -> bfn.BFN:
    torch.manual_seed(0)
    variables = {
        # Few messages about types: the coordinates come first, and then say which atom is what.
        "types": bfn.Variable("discrete", (MOST,), K=len(SYMBOLS), beta_1=1.0),
        # Predictions are not cut to the cube [-1, 1], which no rotation respects.
        "coordinates": bfn.Variable("continuous", (MOST, 3), sigma_1=SIGMA_1, x_min=-9, x_max=9),
    }
    return bfn.mixed(Equivariant(), variables)


def main(
    steps: int = 2500, examples: int = 60_000, count: int = 500, display: bool = True
) -> tuple[bfn.evaluate.Evaluation, dict[str, Parts]]:
    """Train; return the cost of held-out molecules, and these, samples and a control."""
    model, (x, length) = untrained(), molecules(examples, seed=0)
    settings = {"optimiser": "muon", "learning_rate": 4e-3, "decay": 0.8, "ema_decay": 0.995}
    bfn.train.fit(model, x, lengths=length, steps=steps, batch=64, display=display, **settings)
    held_out, length = molecules(count, seed=1)
    cost = bfn.evaluate.evaluate(model, held_out, lengths=length, steps=["inf"])
    samples = bfn.generate(model, count, 100, final="mode", seed=0)
    return cost, {"held out": held_out, "samples": samples, "shuffled": shuffled(samples)}


if __name__ == "__main__":
    cost, found = main()
    print(cost)
    print(f"{'':10}   valid   bonds  valences  connected   most often")
    for name, x in found.items():
        shares = torch.stack((valid(x).all(0), *valid(x))).double().mean(1).tolist()
        atoms = ("".join(sorted(SYMBOLS[k] for k in row if k >= 0)) for row in x["types"].tolist())
        cells = "{:8.0%}{:8.0%}{:10.0%}{:11.0%}  ".format(*shares)
        print(f"{name:10}{cells}", *dict(Counter(atoms).most_common(5)))
