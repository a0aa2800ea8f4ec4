"""examples/audio.py: its codes on known signals, its files, and a short run from end to end."""

from __future__ import annotations

import math
import wave
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

import bfn
from support.mistakes import assert_refused
from support.scripts import load

RATE = 8000


@pytest.fixture(scope="module")
def audio() -> ModuleType:
    return load("examples/audio")


def tone(count: int, seed: int = 0) -> np.ndarray:
    """A swelling tone with a little noise, as int16."""
    i = np.arange(count)
    swell = 1.0 + 0.5 * np.sin(2 * math.pi * i / 1500)
    sound = 6000 * swell * np.sin(2 * math.pi * 200 / RATE * i)
    return (sound + np.random.default_rng(seed).normal(0, 20, count)).round().astype(np.int16)


def write(path: Path, x: np.ndarray, channels: int = 1, width: int = 2) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(RATE)
        file.writeframes(x.tobytes())
    return path


def test_codes_cost_the_entropy(audio: ModuleType) -> None:
    """log2(s sqrt(2 pi e)) bits for Gaussian amplitudes, log2(2 e b) for Laplace ones."""
    random = np.random.default_rng(0)
    x = random.normal(0, 1000, 200_000).round().astype(np.int16)
    entropy = math.log2(1000 * math.sqrt(2 * math.pi * math.e))
    assert audio.gaussian_bits([x], [x[:50_000]]) == pytest.approx(entropy, abs=0.02)
    assert entropy < audio.flac_like_bits([x[:4096]]) < entropy + 0.3
    x = random.laplace(0, 500, 200_000).round().astype(np.int16)
    entropy = math.log2(2 * math.e * 500)
    assert audio.laplace_bits([x], [x[:50_000]]) == pytest.approx(entropy, abs=0.02)
    # Silence costs a bit per sample, and a parabola is predicted.
    header = 8 / 4096 + 4 / 256
    silence = np.zeros(4096, dtype=np.int16)
    assert audio.flac_like_bits([silence]) == pytest.approx(1 + header)
    parabola = (np.arange(4096) ** 2 // 1024).astype(np.int16)
    assert audio.flac_like_bits([parabola]) < 2


def test_files(audio: ModuleType, tmp_path: Path) -> None:
    """Amplitudes survive the way to bin centres and back, the extremes included."""
    x = np.array([-32768, -32767, -1, 0, 1, 12345, 32767], dtype=np.int16)
    read, rate = audio.read_wav(write(tmp_path / "in.wav", x))
    assert rate == RATE
    assert read.tolist() == x.tolist()
    audio.write_wav(tmp_path / "out.wav", audio.to_centres(read), 11025)
    again, rate = audio.read_wav(tmp_path / "out.wav")
    assert rate == 11025
    assert again.tolist() == x.tolist()


def test_mistakes(audio: ModuleType, tmp_path: Path) -> None:
    x = np.zeros(100, dtype=np.int16)
    write(tmp_path / "stereo.wav", x, channels=2)
    write(tmp_path / "narrow.wav", x.astype(np.uint8), width=1)
    (tmp_path / "text.wav").write_text("not a sound")
    for name, words in (
        ("stereo.wav", "2 channel"),
        ("narrow.wav", "8 bits"),
        ("text.wav", "cannot be read"),
        ("absent.wav", "cannot be read"),
    ):
        assert_refused(lambda name=name: audio.read_wav(tmp_path / name), words)
    assert_refused(lambda: audio.split([x], 512), "too short")


def test_training_saves_bits(audio: ModuleType) -> None:
    train, test = audio.split([tone(8000)], 128)
    torch.manual_seed(0)
    net = audio.WaveNet(audio.scales_of(train), width=16, layers=4)
    model = bfn.discretised(net, K=audio.K, sigma_1=audio.SIGMA_1)
    before, _ = audio.evaluate(model, test, 128, repeats=16)
    audio.train(model, train, window=128, batch=8, minutes=1.0, steps=80, rate=5e-3)
    after, error = audio.evaluate(model, test, 128, repeats=16)
    assert after < before - 1.0 - 3 * error


def test_the_whole_script(
    audio: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(tmp_path / "tone.wav", tone(6000))
    options = "--minutes 0.01 --window 64 --batch 2 --width 8 --samples 2 --seconds 0.05 --steps 4"
    audio.main([str(source), "--out", str(tmp_path / "sounds"), *options.split()])
    text = capsys.readouterr().out
    for name in ("uniform", "Gaussian", "Laplace", "FLAC-like", "this model, L^inf + L^r"):
        assert name in text
    for i in range(2):
        sound, rate = audio.read_wav(tmp_path / "sounds" / f"{i}.wav")
        assert rate == RATE
        assert len(sound) == 400
