"""examples/audio.py: its codes on known signals, its files, and a short run from end to end."""

from __future__ import annotations

import math
import wave
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

import bfn
from support.example_scripts import load
from support.mistakes import assert_refused

RATE = 8000


@pytest.fixture(scope="module")
def audio() -> ModuleType:
    return load("audio")


@pytest.fixture(autouse=True)
def _leave_the_global_generator_alone() -> Iterator[None]:
    with torch.random.fork_rng():
        yield


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


def test_gaussian_code(audio: ModuleType) -> None:
    """The entropy of Gaussian amplitudes, log2(s sqrt(2 pi e)) bits; one amplitude, retyped."""
    x = np.random.default_rng(0).normal(0, 1000, 200_000).round().astype(np.int16)
    entropy = math.log2(1000 * math.sqrt(2 * math.pi * math.e))
    assert audio.gaussian_bits([x], [x[:50_000]]) == pytest.approx(entropy, abs=0.02)
    past = np.array([-93, 107] * 50, dtype=np.int16)  # mean 7, deviation 100
    x = np.array([250], dtype=np.int16)
    mass = 0.5 * (math.erf((250.5 - 7) / 100 / 2**0.5) - math.erf((249.5 - 7) / 100 / 2**0.5))
    assert audio.gaussian_bits([past], [x]) == pytest.approx(-math.log2(mass), rel=1e-9)


def test_laplace_code(audio: ModuleType) -> None:
    """On Laplace amplitudes: the entropy, log2(2 e b) bits; and the masses of all bins add to 1."""
    x = np.random.default_rng(0).laplace(0, 500, 200_000).round().astype(np.int16)
    entropy = math.log2(2 * math.e * 500)
    assert audio.laplace_bits([x], [x[:50_000]]) == pytest.approx(entropy, abs=0.02)
    past = np.array([-3, 5], dtype=np.int16)
    values = [np.array([k], dtype=np.int16) for k in range(-200, 201)]
    assert sum(2 ** -audio.laplace_bits([past], [x]) for x in values) == pytest.approx(1.0)


def rice_code(number: int, k: int) -> str:
    """The code word itself."""
    folded = 2 * number if number >= 0 else -2 * number - 1
    return "1" * (folded >> k) + "0" + (f"{folded % 2**k:0{k}b}" if k else "")


def test_rice_code_has_the_length_of_its_words(audio: ModuleType) -> None:
    residual = np.random.default_rng(0).normal(0, 40, 100).round().astype(np.int64)
    lengths = [sum(len(rice_code(int(r), k)) for r in residual) for k in range(16)]
    assert audio.rice_bits(residual) == min(lengths)
    assert audio.rice_bits(np.zeros(10, dtype=np.int64)) == 10


def test_flac_like_code(audio: ModuleType) -> None:
    """Silence costs a bit per sample; a parabola is predicted; noise costs what its spread says."""
    header = 8 / 4096 + 4 / 256
    silence = np.zeros(4096, dtype=np.int16)
    assert audio.flac_like_bits([silence]) == pytest.approx(1 + header)
    i = np.arange(4096)
    parabola = (i * i // 1024).astype(np.int16)
    assert audio.flac_like_bits([parabola]) < 2
    noise = np.random.default_rng(0).normal(0, 300, 4096).round().astype(np.int16)
    entropy = math.log2(300 * math.sqrt(2 * math.pi * math.e))
    assert entropy < audio.flac_like_bits([noise]) < entropy + 0.3


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


def test_split(audio: ModuleType) -> None:
    x = np.arange(1000, dtype=np.int16)
    train, test = audio.split([x, x[:300]], 32)
    assert [len(part) for part in train] == [900, 270]
    assert np.array_equal(test[0], x[900:996])  # three whole windows
    assert len(test) == 1  # the other tenth is shorter than a window
    assert len(audio.split([x, x], 32, most=128)[1][0]) == 64


def test_an_untrained_network_costs_little_more_than_a_gaussian_code(audio: ModuleType) -> None:
    """Not the same, because a Gaussian cut into bins is wider than the posterior of a bin."""
    x = np.random.default_rng(1).normal(0, 2000, 1 << 14).round().astype(np.int16)
    net = audio.WaveNet(audio.scales_of([x]), width=8, layers=2)
    model = bfn.discretised(net, K=audio.K, sigma_1=audio.SIGMA_1)
    bits, error = audio.evaluate(model, [x], window=256, repeats=16)
    code = audio.gaussian_bits([x], [x])
    assert error < 0.05
    assert code - 4 * error < bits < code + 0.25 + 4 * error


def test_the_network_sees_numbers_of_unit_size_at_all_times(audio: ModuleType) -> None:
    x = audio.to_centres(tone(16 * 512)).reshape(16, 512)
    net = audio.WaveNet(audio.scales_of([tone(16 * 512)]), width=8, layers=2)
    model = bfn.discretised(net, K=audio.K, sigma_1=audio.SIGMA_1)
    for time in (1e-4, 0.3, 0.6, 1.0):
        t = torch.full((16,), time)
        theta = model.flow.sample(x, t, torch.Generator().manual_seed(0))
        v = theta.V / theta.beta
        channels = net.channels(v, theta.beta)
        size = channels[..., 8:].square().mean((0, 2)).sqrt()
        assert size.min() > 0.8
        assert size.max() < 1.2


def test_a_short_run(audio: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = tone(8000)
    train, test = audio.split([x], 128)
    torch.manual_seed(0)
    net = audio.WaveNet(audio.scales_of(train), width=16, layers=4)
    model = bfn.discretised(net, K=audio.K, sigma_1=audio.SIGMA_1)
    before, _ = audio.evaluate(model, test, 128, repeats=16)
    audio.train(model, train, window=128, batch=8, minutes=1.0, steps=80, rate=5e-3)
    assert "step    80" in capsys.readouterr().out
    after, error = audio.evaluate(model, test, 128, repeats=16)
    assert after < before - 1.0 - 3 * error
    generator = torch.Generator().manual_seed(0)
    sounds = bfn.generate(model, (2, 500), steps=10, generator=generator)
    audio.write_wav(tmp_path / "sound.wav", sounds[0], RATE)
    with wave.open(str(tmp_path / "sound.wav"), "rb") as file:
        assert file.getparams()[:4] == (1, 2, RATE, 500)
        written = np.frombuffer(file.readframes(500), "<i2")
    assert audio.to_centres(written).tolist() == sounds[0].tolist()
    assert 300 < written.astype(float).std() < 20_000


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
