"""How large do the digits and a text become, beside everyday compressors?

    python benchmarks/codec_table.py digits [RUN] [--steps 10,25,100] [--block N]
    python benchmarks/codec_table.py text RUN [--steps 10,25,100] [--block N]

The digits are the 297 test images, the text is the test part of Python's manual (or of whatever
text the run was trained on). Every compressor gets all images in one file, in whichever of several
arrangements comes out smallest, at its highest setting. zstd is also given the training text as a
dictionary. Sizes are those of whole files, containers and checksums included, without the models.

gzip, bzip2 and xz are Python's own, PNG and WebP are pillow's, zstd is the command.
"""

from __future__ import annotations

import argparse
import bz2
import gzip
import io
import lzma
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import bfn
from bfn.codec.pack import pack
from bfn.data.formats import Format
from bfn.recipe import build
from bfn.runs.folder import RunFolder
from bfn.saving import WEIGHTS

GENERAL: dict[str, Callable[[bytes], bytes]] = {
    "gzip -9": lambda data: gzip.compress(data, 9, mtime=0),
    "bzip2 -9": lambda data: bz2.compress(data, 9),
    "xz -9e": lambda data: lzma.compress(
        data, preset=9 | lzma.PRESET_EXTREME, check=lzma.CHECK_NONE
    ),
    "zstd --ultra -22": lambda data: zstd(data),
}


def zstd(data: bytes, known: bytes = b"") -> bytes:
    """Without checksum and name; `known` may be referred to."""
    if shutil.which("zstd") is None:
        raise SystemExit("this table needs the command zstd: install it first")
    with tempfile.TemporaryDirectory() as folder:
        command = ["zstd", "--ultra", "-22", "--long=27", "--no-check", "-c"]
        if known:
            (Path(folder) / "known").write_bytes(known)
            command.append(f"--patch-from={folder}/known")
        (Path(folder) / "data").write_bytes(data)
        done = subprocess.run([*command, f"{folder}/data"], capture_output=True, check=True)
    return done.stdout


def arrangements(images: np.ndarray) -> Iterator[np.ndarray]:
    """Sheets (H, W) of images (N, 8, 8): grids of all widths that leave few places empty."""
    count, height, width = images.shape
    for columns in (1, 2, 3, 4, 9, 11, 17, 18, 27, 33, 99, 149, count):
        rows = -(-count // columns)
        sheet = np.zeros((rows * columns, height, width), np.uint8)
        sheet[:count] = images
        grid = sheet.reshape(rows, columns, height, width).swapaxes(1, 2)
        yield grid.reshape(rows * height, columns * width)


def picture(sheet: np.ndarray, **options: object) -> int:
    with io.BytesIO() as file:
        Image.fromarray(sheet).save(file, **options)
        return file.tell()


def best_pictures(images: np.ndarray) -> dict[str, int]:
    """All images on one sheet, levels as they are or as the palette's places."""
    sizes: dict[str, list[int]] = {"PNG": [], "WebP, lossless": []}
    for sheet in arrangements(images):
        for pixels in (sheet, np.round(sheet * (255 / 16)).astype(np.uint8)):
            for level in (6, 9):
                sizes["PNG"].append(
                    picture(pixels, format="PNG", optimize=True, compress_level=level)
                )
            sizes["WebP, lossless"].append(
                picture(pixels, format="WEBP", lossless=True, quality=100, method=6)
            )
    return {name: min(found) for name, found in sizes.items()}


def best_general(ways: list[bytes]) -> dict[str, int]:
    return {name: min(len(compress(data)) for data in ways) for name, compress in GENERAL.items()}


def ours(
    model: bfn.BFN, format: Format, path: Path, steps: int, block: int | None
) -> tuple[int, int, float]:
    """Bytes of the archive and of its blocks, and seconds (with the check)."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "archive.bfn"
        start = time.perf_counter()
        archive = pack(model, format, [path], out, steps=steps, block=block, run="benchmark")
        seconds = time.perf_counter() - start
        return out.stat().st_size, sum(map(len, archive.blocks)), seconds


def bound(model: bfn.BFN, data: bfn.data.DataSet, n: int, draws: int = 2) -> float:
    """L^n + L^r in bits per dimension, summed over all n steps of every example."""
    generator = torch.Generator().manual_seed(0)
    x, _ = data.batch("test", data.examples("test"))
    with model.evaluating():
        nats = [
            bfn.loss.discrete_time(model, x, n, steps="all", generator=generator)
            + bfn.loss.reconstruction(model, x, generator=generator)
            for _ in range(draws)
        ]
    return float(torch.stack(nats).mean()) / np.log(2) / x[0].numel()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", choices=["digits", "text"])
    parser.add_argument("run", nargs="?", default="digits")
    parser.add_argument("--steps", default="10,25,100")
    parser.add_argument("--block", type=int)
    given = parser.parse_args()
    folder = RunFolder.find(given.run)
    model, format, data = folder.load_model(), folder.format(), build.data(folder.recipe())
    stored = data.split("test").numpy()
    variables = stored.size
    with tempfile.TemporaryDirectory() as place:
        if given.data == "digits":
            path = Path(place) / "digits.npy"
            np.save(path, stored)
            images = stored.reshape(-1, 8, 8)
            by_pixel = images.reshape(len(images), 64).T
            rows = best_general([images.tobytes(), by_pixel.tobytes()]) | best_pictures(images)
            uniform = variables * np.log2(17) / 8
        else:
            path = Path(place) / "text.txt"
            text = format.decode(data.split("test")[None])[0]
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
            known = format.decode(data.split("train")[None])[0]
            known = known if isinstance(known, bytes) else known.encode()
            rows = best_general([path.read_bytes()])
            rows["zstd, knowing the training text"] = len(zstd(path.read_bytes(), known))
            uniform = variables * np.log2(format.K or 2) / 8
        print("| | bytes | bits per dimension |\n|---|---|---|")
        print(f"| one byte each | {variables} | 8.000 |")
        print(f"| uniform | {uniform:.0f} | {8 * uniform / variables:.3f} |")
        for name, size in rows.items():
            print(f"| {name} | {size} | {8 * size / variables:.3f} |")
        for steps in map(int, given.steps.split(",")):
            size, blocks, seconds = ours(model, format, path, steps, given.block)
            bits = bound(model, data, steps)
            print(
                f"| bfn, n = {steps} | {size} | {8 * size / variables:.3f} | "
                f"blocks alone {8 * blocks / variables:.3f}, L^n + L^r {bits:.3f}, "
                f"{seconds:.0f} s |",
                flush=True,
            )
    parameters = sum(p.numel() for p in model.net.parameters())
    weights = (folder.path / WEIGHTS).stat().st_size
    print(f"\nthe model: {parameters:,} parameters, {weights:,} bytes")


if __name__ == "__main__":
    main()
