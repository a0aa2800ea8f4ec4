# %% [markdown]
"""Diamonds: new rows of a table, missing values, and probabilities, cell by cell.

    python examples/diamonds.py --data diamonds.csv

The table has 53,940 diamonds: weight in carats, cut, colour, clarity, price and sizes. Download it
from https://raw.githubusercontent.com/tidyverse/ggplot2/main/data-raw/diamonds.csv. Training takes
a few minutes on two CPU cores; a second run loads the saved model. The pictures, which
docs/tutorials/tables.md shows, need the extra `plot`. An editor that knows cells (`# %%`) runs them
one at a time, as a notebook does.
"""

# %% What is where.
from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import bfn
from bfn.plots import style

parser = argparse.ArgumentParser(description="Model a table of diamonds.")
parser.add_argument("--data", default="diamonds.csv", help="the table")
parser.add_argument("--model", type=Path, default=Path("diamonds-model"), help="to save or load")
parser.add_argument("--out", type=Path, default=Path("."), help="the folder for pictures")
parser.add_argument("--steps", type=int, default=bfn.Table().steps, help="training steps")
args, _ = parser.parse_known_args()  # a notebook's kernel adds its own arguments

# %% A fifth of the rows is held out, to judge the model by.
diamonds = pd.read_csv(args.data)
order = np.random.default_rng(0).permutation(len(diamonds))
train, test = (diamonds.iloc[rows] for rows in np.split(order, [len(order) * 4 // 5]))
train, test = train.reset_index(drop=True), test.reset_index(drop=True)

# %% Train. The kind of each column is recognised.
if args.model.exists():
    table = bfn.Table.load(args.model)
else:
    table = bfn.Table(steps=args.steps).fit(train)
    table.save(args.model)
print(table)

# %% How probable are rows that the model never saw? A number out of range counts as the nearest.
held_out = test.head(1000)
scores = table.log_prob(held_out, draws=4, nearest=True)
print(f"log probability: {scores.value.mean():.2f} nats per row")
print(f"with independent columns: {table.independent(held_out, nearest=True).sum(1).mean():.2f}")

# %% New rows. They have the types and the decimals of the real ones.
new = table.sample(min(4000, len(test)), seed=0)
print(new.head())


# %% Weight and price of real rows, which the model never saw, and of new ones.
def scatter(real: pd.DataFrame, new: pd.DataFrame) -> Any:
    figure = style.new(2.9)
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    for panel, rows, title in zip(panels, (real, new), ("held-out rows", "new rows"), strict=True):
        panel.scatter(rows.carat, rows.price, s=1.5, alpha=0.3, linewidths=0, color=style.BLUE)
        panel.set(xscale="log", yscale="log", xlabel="carat", title=title)
        panel.set_xticks([0.25, 0.5, 1, 2, 4], ["0.25", "0.5", "1", "2", "4"])
        panel.minorticks_off()
    panels[0].set_ylabel("price in dollars")
    panels[0].set_yticks([500, 2000, 10_000], ["500", "2,000", "10,000"])
    return figure


# %% The columns one by one: spikes at round weights, and the frequencies of categories.
def columns(real: pd.DataFrame, new: pd.DataFrame) -> Any:
    figure = style.new(2.3)
    panels = figure.subplots(1, 3, width_ratios=[2, 1.3, 1.3])
    sides = {"held-out": (real, style.GREY, 2.2), "new": (new, style.RED, 1.0)}
    for name, (rows, colour, width) in sides.items():
        for panel, column, edges in (
            (panels[0], "carat", np.arange(0.195, 2.1, 0.01)),
            (panels[1], "depth", np.arange(57.95, 66, 0.2)),
        ):
            share = np.histogram(rows[column], edges)[0] / len(rows)
            panel.stairs(100 * share, edges, color=colour, linewidth=width, label=name)
            panel.set_xlabel(column)
    panels[0].set_ylabel("rows, %")
    panels[0].legend()
    grades = ["I1", "SI2", "SI1", "VS2", "VS1", "VVS2", "VVS1", "IF"]
    for i, (rows, colour, _) in enumerate(sides.values()):
        share = rows.clarity.value_counts(normalize=True).reindex(grades).fillna(0)
        panels[2].bar(np.arange(len(grades)) + 0.4 * i, 100 * share, 0.4, color=colour)
    panels[2].set_xticks(np.arange(len(grades)) + 0.2, grades, rotation=90)
    panels[2].set_xlabel("clarity")
    return figure


# %% Missing prices are drawn, not guessed: what may a diamond of one carat cost?
grades = ["SI2", "VS2", "VVS2"]
offers = {
    clarity: table.sample(200, given={"carat": 1.0, "clarity": clarity}) for clarity in grades
}

# %% A column with holes is filled in by draws from its conditional law, given the rest of the row.
holes = held_out.astype({"price": "Int64"})
holes.loc[::2, "price"] = pd.NA
filled = table.impute(holes, seed=0)
hidden = holes["price"].isna()
print(f"of {hidden.sum():,} hidden prices, drawn ones differ by a factor of", end=" ")
print(f"{np.exp(np.abs(np.log(filled.price / held_out.price))[hidden].median()):.2f}")

# %% Probabilities: how often is a cut that is given 70% what the diamond has?
p, classes = table.predict_proba(held_out, "cut"), np.array(table.classes("cut"))
hit = classes == held_out["cut"].to_numpy()[:, None]
print(f"the most probable cut is right for {hit[np.arange(len(p)), p.argmax(1)].mean():.0%}")
middle = table.predict(held_out, "price")
off = np.abs(middle / held_out.price - 1).median()
print(f"half of the predicted prices are within {off:.1%} of the true ones")


def given_others(offers: dict[str, pd.DataFrame], p: np.ndarray, hit: np.ndarray) -> Any:
    figure = style.new(2.6)
    panels = figure.subplots(1, 2, width_ratios=[1.5, 1])
    rng = np.random.default_rng(0)
    for i, (clarity, rows) in enumerate(offers.items()):
        real = diamonds.price[(diamonds.carat == 1.0) & (diamonds.clarity == clarity)]
        for prices, place, colour, name in (
            (rows.price, i + 0.2, style.RED, "drawn"),
            (
                real.sample(min(len(real), len(rows)), random_state=0),
                i - 0.2,
                style.GREY,
                "real ones",
            ),
        ):
            jitter = rng.uniform(-0.13, 0.13, len(prices))
            dots = {"s": 4, "alpha": 0.5, "linewidths": 0, "label": None if i else name}
            panels[0].scatter(prices, place + jitter, color=colour, **dots)
    panels[0].set_yticks(range(len(offers)), list(offers))
    panels[0].set(xlabel="price of one carat, in dollars", ylabel="clarity")
    panels[0].legend(loc="lower right", markerscale=2)
    bin_ = np.minimum((p * 10).astype(int), 9)
    points = [(p[bin_ == b].mean(), hit[bin_ == b].mean()) for b in range(10) if (bin_ == b).any()]
    panels[1].plot([0, 1], [0, 1], color=style.GREY, linewidth=0.8)
    panels[1].plot(*zip(*points, strict=True), "o-", markersize=4, color=style.RED)
    panels[1].set(xlabel="probability of a cut", ylabel="how often it is so")
    return figure


# %% All pictures.
args.out.mkdir(parents=True, exist_ok=True)
with style.styled():
    for name, figure in (
        ("rows", scatter(test.head(len(new)), new)),
        ("columns", columns(test, new)),
        ("conditionals", given_others(offers, p, hit)),
    ):
        style.save(figure, args.out / f"diamonds-{name}.png", 130)
