"""Make the files that the commands in the README name, in the current folder.

    python examples/files.py

photos/ has four hundred painted circles and squares, x.npy two half moons of points, people.csv a
table, and pictures/ twenty handwritten digits that the shipped model was not trained on; eight.png
is another one, and mask.png marks its lower half for filling in.
"""

from __future__ import annotations

import csv
import random
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

import bfn


def photos(folder: Path, count: int = 400) -> None:
    """A circle or a square of a bright colour on a dark one, 40 x 40 pixels each."""
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(count):
        picture = Image.new("RGB", (40, 40), tuple(random.choices(range(60), k=3)))
        x, y, r = random.randint(12, 28), random.randint(12, 28), random.randint(6, 11)
        draw = ImageDraw.Draw(picture)
        paint = draw.ellipse if i % 2 else draw.rectangle
        paint((x - r, y - r, x + r, y + r), fill=tuple(random.choices(range(128, 256), k=3)))
        picture.save(folder / f"{i}.png")


def moons(path: Path, count: int = 5000) -> None:
    """Points of the plane, (count, 2)."""
    rng = np.random.default_rng(0)
    angle, moon = rng.uniform(0, np.pi, count), rng.integers(0, 2, count)
    x = np.where(moon == 0, np.cos(angle), 1 - np.cos(angle))
    y = np.where(moon == 0, np.sin(angle), 0.5 - np.sin(angle))
    np.save(path, np.stack([x, y], 1) + 0.05 * rng.normal(size=(count, 2)))


def people(path: Path, count: int = 2000) -> None:
    """Age, town, job and income, which depend on one another; some incomes are missing."""
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["age", "town", "job", "income"])
        for _ in range(count):
            age = random.randint(18, 90)
            town = random.choice(["Lund", "Oslo", "Turku"])
            job = "pensioner" if age > 66 else random.choice(["baker", "nurse", "pilot"])
            pay = {"pensioner": 18, "baker": 28, "nurse": 34, "pilot": 70}[job]
            income = round(pay * random.uniform(0.8, 1.2) * (1.2 if town == "Oslo" else 1.0), 1)
            rows.writerow([age, town, job, income if random.random() < 0.95 else ""])


def digits(folder: Path, count: int = 20) -> None:
    """Digits into pictures/, an eight and a mask beside it; shades of 0 to 255."""
    data = bfn.data.load("digits", labels=True)
    x, condition = data.batch("test", data.examples("test"))
    shades = data.render(x)[..., 0]
    (folder / "pictures").mkdir(exist_ok=True)
    for i in range(count):
        Image.fromarray(shades[i]).save(folder / "pictures" / f"{i}.png")
    eight = int((condition["label"] == 8).nonzero()[-1])
    Image.fromarray(shades[eight]).save(folder / "eight.png")
    mask = np.zeros((8, 8), np.uint8)
    mask[4:] = 255
    Image.fromarray(mask).save(folder / "mask.png")


def main(folder: Path = Path()) -> None:
    random.seed(0)
    photos(folder / "photos")
    moons(folder / "x.npy")
    people(folder / "people.csv")
    digits(folder)


if __name__ == "__main__":
    main()
