"""Molecules: atom types and coordinates in one model, and a network that respects rotations.

    python examples/molecules.py

The molecules are made by rule: saturated, without rings, 3 to 9 atoms of H, O, N and C, each bond
as long as the two atoms' radii together and at the tetrahedral angle to the others. The model knows
nothing of this and learns types (discrete) and coordinates (continuous) together. The script prints
what a molecule costs, and how many samples have bonds within 10% of their lengths, filled valences,
and atoms that are all connected: 78%. Two minutes on two CPU cores.

Where a molecule is and which way it is turned says nothing. So the data have their centre at 0, and
the network, an EGNN (arXiv:2102.09844), works with differences of coordinates: rotate theta, and
the prediction is rotated. The prediction has its centre at 0, too. Messages are still sent about
all 3 n coordinates, but about the centre data and prediction agree, and nothing is paid: the bound
is exact, for a density on the 3 n - 3 dimensions in which molecules differ.
"""

from __future__ import annotations

import math
import random
from collections import Counter

import torch
from torch import Tensor, nn

import bfn

Parts = dict[str, Tensor]
SYMBOLS = "HONC"  # with valences 1, 2, 3 and 4
RADII = torch.tensor([0.31, 0.66, 0.71, 0.76])  # in angstroms
MOST, UNIT = 9, 4.0  # atoms; and angstroms that are 1 to the model
SIGMA_1, SPREAD = 0.008, 0.2  # the deviations of what is open at t = 1, and of the data


def grow(rng: random.Random) -> list[tuple[int, int, int]]:
    """A random molecule: of each atom the type, the atom it is bound to, and at which valence."""
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
        u = nn.functional.normalize(directions[each, parents[:, i], slots[:, i]], dim=1)
        if i:
            far = RADII[types[each, parents[:, i]]] + RADII[types[:, i]]
            far = far + 0.02 * torch.randn(count, generator=generator)
            x[:, i] = x[each, parents[:, i]] + far[:, None] * u
        v = nn.functional.normalize(torch.linalg.cross(u, directions[:, i, 1]), dim=1)
        w = torch.linalg.cross(u, v)
        directions[:, i, 0] = -u
        for j in (1, 2, 3):
            turned = math.cos(2 * math.pi * j / 3) * v + math.sin(2 * math.pi * j / 3) * w
            directions[:, i, j] = u / 3 + math.sqrt(8) / 3 * turned
    nothing = torch.arange(MOST) >= length[:, None]
    x = (x / UNIT).masked_fill(nothing[..., None], math.nan)
    x = x - x.nanmean(1, keepdim=True)
    found = {"types": types.masked_fill(nothing, -1), "coordinates": x}
    kept = valid(found).all(0)  # now and then two atoms meet
    return {name: values[kept] for name, values in found.items()}, length[kept]


def valid(x: Parts) -> Tensor:
    """Whether bonds are as long as they should be, valences filled, atoms connected: (3, B)."""
    types, exists, itself = x["types"].clamp_min(0), x["types"] >= 0, torch.eye(MOST).bool()
    pairs = exists[:, :, None] & exists[:, None]
    places = x["coordinates"].nan_to_num() * UNIT
    distances = (places[:, :, None] - places[:, None]).norm(dim=-1)
    relative = distances / (RADII[types][:, :, None] + RADII[types][:, None])
    bonds = (relative < 1.25) & pairs & ~itself
    right = (relative - 1).abs() < 0.1
    filled = bonds.sum(2) == types + 1
    reached = torch.linalg.matrix_power((bonds | itself).double(), MOST) > 0
    every = (right | ~bonds).flatten(1), filled | ~exists, (reached | ~pairs).flatten(1)
    return torch.stack([each.all(1) for each in every])


class Layer(nn.Module):
    """Messages between all atoms, from their distances; they change h and move x."""

    def __init__(self, width: int, basis: int = 16) -> None:
        super().__init__()
        self.own, self.other = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.distance = nn.Linear(basis, width, bias=False)
        self.message = nn.Sequential(nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.move = nn.Linear(width, 1, bias=False)
        self.update = nn.Sequential(nn.Linear(2 * width, width), nn.SiLU(), nn.Linear(width, width))
        nn.init.zeros_(self.move.weight)

    def forward(self, h: Tensor, x: Tensor, pairs: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
        difference = x[:, :, None] - x[:, None]  # (B, n, n, 3)
        distance = (difference.square().sum(-1, keepdim=True) + 1e-4).sqrt()
        centres = 0.3 * torch.arange(self.distance.in_features, device=x.device)
        near = torch.exp(-0.5 * ((distance - centres) / 0.3).square())
        m = self.own(h)[:, :, None] + self.other(h)[:, None] + self.distance(near)
        m = self.message(m) * pairs  # an atom's message to itself does not move it
        x = x + size * (difference / (distance + 1) * self.move(m)).sum(2)
        return h + self.update(torch.cat((h, m.sum(2)), -1)), x


class EGNN(nn.Module):
    """Logits of types (B, n, 4), and the coordinates' noise epsilon (B, n, 3)."""

    def __init__(self, width: int = 64, layers: int = 3) -> None:
        super().__init__()
        self.arguments = {"width": width, "layers": layers}
        self.embed = nn.Linear(len(SYMBOLS) + 3, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))
        self.types = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 4))

    def forward(self, features: Parts, t: Tensor, mask: Parts) -> Parts:
        exists = mask["types"][..., None].to(t.dtype)
        n, mu = exists.sum(1, keepdim=True), features["coordinates"]
        pairs = exists[:, :, None] * exists[:, None]

        def centred(x: Tensor) -> Tensor:
            return x - (x * exists).sum(1, keepdim=True) / n

        # mu = gamma x + sqrt(gamma (1 - gamma)) epsilon. Were all coordinates independent, the
        # first line would be the best guess of x and the second what it leaves open: the layers
        # move the atoms from there, by steps of that size.
        gamma = -torch.expm1(2 * math.log(SIGMA_1) * t)[:, None, None].clamp_max(-1e-7)
        v = gamma * SPREAD**2 + 1 - gamma
        x = centred(mu) * SPREAD**2 / v * UNIT
        size = SPREAD * ((1 - gamma) / v).sqrt() * UNIT
        about = torch.cat((t[:, None, None], size.log(), n / MOST), -1).expand(-1, mu.shape[1], -1)
        h = self.embed(torch.cat((features["types"], about), -1))
        for layer in self.layers:
            h, x = layer(h, x, pairs, size)
        epsilon = (mu - gamma * centred(x) / UNIT) / (gamma * (1 - gamma)).sqrt()
        return {"types": self.types(h), "coordinates": epsilon}


def shuffled(x: Parts, seed: int = 0) -> Parts:
    """The same molecules, but which atom has which type is left to chance."""
    noise = torch.rand(x["types"].shape, generator=torch.Generator().manual_seed(seed))
    noise = noise.masked_fill(x["types"] < 0, 2.0)
    return {**x, "types": x["types"].gather(1, noise.argsort(1))}


def untrained() -> bfn.BFN:
    torch.manual_seed(0)
    variables = {
        # Few messages about types: the coordinates come first, and then say which atom is what.
        "types": bfn.Variable("discrete", (MOST,), K=len(SYMBOLS), beta_1=1.0),
        # Predictions are not cut to the cube [-1, 1], which no rotation respects.
        "coordinates": bfn.Variable("continuous", (MOST, 3), sigma_1=SIGMA_1, x_min=-9, x_max=9),
    }
    return bfn.mixed(EGNN(), variables)


def main(
    steps: int = 3500, examples: int = 20_000, count: int = 500, display: bool = True
) -> tuple[bfn.evaluate.Evaluation, dict[str, Parts]]:
    """Train; return the cost of held-out molecules, and these, samples and a control."""
    model, (x, length) = untrained(), molecules(examples, seed=0)
    settings = {"optimiser": "muon", "learning_rate": 4e-3, "decay": 0.8, "ema_decay": 0.995}
    bfn.train.fit(model, x, lengths=length, steps=steps, batch=64, display=display, **settings)
    held_out, length = molecules(count, seed=1)
    cost = bfn.evaluate.evaluate(model, held_out, lengths=length, steps=["inf"])
    samples = bfn.generate(model, count, 100, final="mode", seed=0)
    return cost, {"held out": held_out, "samples": samples, "shuffled": shuffled(samples)}


def formula(types: list[int]) -> str:
    counts = Counter(SYMBOLS[k] for k in types if k >= 0)
    return "".join(f"{a}{counts[a] if counts[a] > 1 else ''}" for a in "CHNO" if counts[a])


if __name__ == "__main__":
    cost, found = main()
    print(cost)
    print(f"{'':10}{'valid':>7}{'bonds':>7}{'valences':>10}{'connected':>11}   most often")
    for name, x in found.items():
        judged = valid(x).double()
        shares = (float(judged.prod(0).mean()), *judged.mean(1).tolist())
        cells = "".join(f"{share:{w}.0%}" for share, w in zip(shares, (7, 7, 10, 11), strict=True))
        formulas = Counter(formula(types) for types in x["types"].tolist()).most_common(5)
        print(f"{name:10}{cells}   {' '.join(name for name, _ in formulas)}")
