"""A mistake gets exit code 2 and one sentence, and changes nothing on disk."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bfn.cli.app import main
from support import tiny_runs


@pytest.fixture(scope="session")
def workshop(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with good runs, spoilt runs, and files to trip over."""
    folder = tmp_path_factory.mktemp("workshop")
    for name in ("digits", "text", "labelled"):
        shutil.copytree(runs / name, folder / f"run-{name}")
    tiny_runs.write(folder, "discretised")
    tiny_runs.write(folder, "binary")
    weights = (runs / "digits" / "model.safetensors").read_bytes()
    for name, file, content in (
        ("half", "model.safetensors", weights[: len(weights) // 2]),
        ("odd", "recipe.toml", b"[train]\nsteps = 'x'\n"),
        ("mute", "metrics.jsonl", b'{"step": 1, "loss": NaN}\n{"loss": "1"}\n[1]\n\xff\xfe\n'),
    ):
        shutil.copytree(runs / "digits", folder / name)
        (folder / name / file).write_bytes(content)
    for name in ("empty", "papers", "many"):
        (folder / name).mkdir()
    mine = [f"mine.{ending}" for ending in ("npy", "json", "png", "csv")]
    for name in (*mine, "file", "film.gif", "papers/a.pdf", "many/0"):
        (folder / name).write_text("mine")
    shades = {"eight": np.eye(8), "lower": np.tri(8), "large": np.ones((7, 9))}
    shades |= {"black": np.zeros((8, 8)), "grey": np.full((8, 8), 0.5)}
    for name, shade in shades.items():
        Image.fromarray((255 * shade).astype(np.uint8)).save(folder / f"{name}.png")
    (folder / "no-picture.png").write_bytes(b"no picture")
    return folder


def snapshot(folder: Path) -> dict[Path, tuple[int, int]]:
    return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in folder.rglob("*")}


def refused(folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]) -> str:
    """The sentence that answers a mistake."""
    before = snapshot(folder)
    code = main(arguments)
    captured = capsys.readouterr()
    assert code == 2, captured.out
    assert captured.out == ""
    assert snapshot(folder).keys() == before.keys(), "a file was made or removed"
    assert {
        p for p, state in snapshot(folder).items() if state != before[p] and p.is_file()
    } == set()
    (sentence,) = captured.err.splitlines()
    assert sentence.startswith("bfn: ")
    assert sentence.endswith((".", "?"))
    return sentence


TRAIN = "train tiny-discretised.toml --out new"
SAMPLE = "sample run-digits --out x.npy"
TEXT = "infill run-text"
PICTURE = "infill run-digits"
SOLVERS = "solvers run-digits"
MISTAKES = [
    # The command line.
    ("trian", "unknown command 'trian'; did you mean 'train'?"),
    ("nope", "unknown command 'nope'; expected demo, recipes, train, runs, plot, eval, sample, "),
    ("nope", "import, card, push"),
    ("--out run train digits", "--out comes before the command; write bfn COMMAND --out"),
    ("train", "bfn train needs RECIPE; see bfn train --help"),
    ("train digits --data.path file --out new", "own data use bfn train images, text or array"),
    ("train digits --train.lr 1 --out new", "did you mean 'train.learning_rate'?"),
    ("train images --data.path file --out new", "neither a folder nor an intact zip archive of"),
    ("train images --data.path mine.csv --out new", "; did you mean bfn train mine.csv?"),
    ("sample run-labelled --label 0,1,2 --n 2", "--n 2 is fewer than one for each of the 3 labels"),
    ("infill run-text a_ --blank xy", "--blank 'xy' is not a single character"),
    ("infill run-digits none.png --mask lower.png", "No such file or directory; give the name of"),
    ("infill run-digits mine.npy --mask lower.png", "as a picture; repair it or omit it"),
    ("train digits --ot run", "unknown option --ot; did you mean --out?"),
    ("train digits --resume now", "bfn train does not take 'now'; see bfn train --help"),
    ("train digits --steps 5", "unknown option --steps; did you mean --train.steps?"),
    ("train digits --lr 1e-3", "unknown option --lr; did you mean --train.learning_rate?"),
    ("train images --path=x", "unknown option --path; did you mean --data.path?"),
    ("train digits --fnal mode", "unknown option --fnal; did you mean --sample.final?"),
    ("train digits --xyzzy 5", "unknown option --xyzzy; see bfn train --help"),
    ("train digits --train steps 5", "unknown option --train; see bfn train --help"),
    ("train digits train.steps=5", "does not take 'train.steps=5'; did you mean --train.steps=5?"),
    ("train digits --out", "--out has no value; write --out VALUE"),
    ("compress digits -o x.bfn", "bfn compress needs INPUTS; see bfn compress --help"),
    ("--verson", "--verson comes before the command; did you mean '--version'?"),
    ("train digits --train.steps", "--train.steps has no value; write --train.steps VALUE"),
    ("train digits --train.steps 1 --train.steps 2", "--train.steps is given twice; give it once"),
    ("recipes --train.steps 3", "takes no recipe keys such as --train.steps; see bfn recipes"),
    ("train digits --resume --force", "starts over; give one of them"),
    # Recipes and their keys.
    ("train digts", "unknown recipe 'digts'; did you mean 'digits'"),
    ("train xyzzy", "expected array, cifar10"),
    ("train no/such.toml", "there is no recipe file 'no/such.toml'"),
    (f"{TRAIN} --trian.steps 5", "'trian.steps' on the command line; did you mean 'train.steps'?"),
    (f"{TRAIN} --steps.x 5", "expected section.key, where section is one of data, net"),
    (f"{TRAIN} --train.stps 5", "train.stps on the command line; did you mean 'train.steps'"),
    (f"{TRAIN} --train.width 5", "train.width on the command line; did you mean 'net.width'?"),
    (f"{TRAIN} --eval.n 5", "unknown key eval.n on the command line; did you mean 'sample.n'?"),
    (f"{TRAIN} --net.batch 5", "takes no such argument; did you mean 'train.batch'?"),
    (f"{TRAIN} --train.steps.x 3", "train.steps.x on the command line: train.steps = 12 has no"),
    (f"{TRAIN} --train.steps 0", "train.steps = 0 on the command line is too small; expected 1"),
    (f"{TRAIN} --train.patience 2", "give train.validate_every too"),
    (f"{TRAIN} --eval.split tests", "validation or test; did you mean 'test'?"),
    (f"{TRAIN} --sample.solver sed", "unknown solver 'sed'"),
    (f"{TRAIN} --data.source digit", "unknown data source 'digit'"),
    (f"{TRAIN} --data.fom binary", "digits takes no such argument; did you mean 'form'"),
    (f"{TRAIN} --data.form binry", "unknown form 'binry'"),
    (f"{TRAIN} --data.labels 3", "data.labels = '3' on the command line is not valid; expected"),
    (f"{TRAIN} --net.widht 5", "bfn.nn:UNet takes no such argument; did you mean 'width'"),
    (f"{TRAIN} --net.class bfn.nn:Unet", "'bfn.nn:Unet' could not be imported"),
    (f"{TRAIN} --net.class bfn:Theta", "is not a torch.nn.Module"),
    (f"{TRAIN} --flow.kind discretized", "unknown flow.kind 'discretized' on the command line"),
    (f"{TRAIN} --flow.sgma_1 0.1", "did you mean 'sigma_1'"),
    (f"{TRAIN} --flow.K 16", "which has 17 bins or classes; give --flow.K 17 or --data.bins 16"),
    (f"{TRAIN} --data.bins 16", "which has 16 bins or classes; give --flow.K 16"),
    (f"{TRAIN} --data.form continuous", "which has no bins or classes; give --data.bins 17"),
    (f"{TRAIN} --data.form binary", "does not fit digits, whose values are discrete; give another"),
    ("train array --data.path many", "'many' is a folder; expected a .npy or .npz file"),
    ("train text --data.path file --data.alphabet min", "'e' at position 3, not in the alphabet"),
    # Run folders.
    ("train run-digits", "run-digits/recipe.toml --out run-digits --resume continues the run"),
    ("train tiny-discretised.toml --out run-digits", "already holds a run; continue it with"),
    ("train tiny-discretised.toml --out papers", "'papers' holds other files"),
    ("train tiny-discretised.toml --out file", "'file' is a file"),
    ("train tiny-discretised.toml --out file/run", "cannot be written"),
    ("train tiny-binary.toml --out run-digits --resume", "recipe 'tiny-discretised', not of"),
    (
        "train tiny-discretised.toml --out run-digits --resume --train.batch 4",
        "started with train.batch = 8, not 4",
    ),
    ("runs nowhere", "there is no folder 'nowhere'"),
    ("eval nowhere", "there is no run folder 'nowhere'"),
    ("eval empty", "'empty' holds no recipe.toml"),
    ("eval odd", "train.steps = 'x' in odd/recipe.toml is not valid; expected a whole number"),
    ("sample empty", "'empty' holds no config.json"),
    ("sample half --out x.npy", "model.safetensors' is damaged or truncated"),
    # Files to write.
    ("eval run-digits --json mine.json", "'mine.json' exists; give another name, or --force"),
    ("eval run-digits --per-example x.txt", "has the wrong ending; expected .csv"),
    ("sample run-digits --out mine.npy", "'mine.npy' exists; give another name, or --force"),
    ("sample run-digits --out none/x.npy", "there is no folder 'none'; create it"),
    ("sample run-digits --out many", "'many' is a folder; give the name of a file"),
    ("sample run-digits --out many --separate", "'many' exists"),
    ("sample run-digits --out x.jpg", "expected a name ending in .png or .npy"),
    # Evaluation.
    ("eval run-digits --steps 10,x", "eval.steps = '10,x' on the command line is not valid"),
    ("eval run-digits --crops 5", "digits is not a text"),
    ("eval run-digits --data.length 5", "--data.length cannot be changed for a trained run; only"),
    # Sampling.
    (f"{SAMPLE} --n 0", "sample.n = 0 on the command line is too small"),
    ("demo --seconds -1", "leaves no time to train"),
    (f"{SAMPLE} --calls 5 --steps 5", "n steps take n + 1 calls; give one of them"),
    (f"{SAMPLE} --label 3", "a label was given to a model without labels"),
    (f"{SAMPLE} --label red", "a label was given to a model without labels"),
    (f"{SAMPLE} --guidance 2", "the effect of label, which was not given"),
    (f"{SAMPLE} --compile --device cpu", "--compile pays off only on a GPU"),
    (f"{SAMPLE} --prefix the", "--prefix is for texts, but this is a model of image data"),
    ("sample run-digits --out - --film", "--film writes files, but --out - is standard output"),
    ("sample run-digits --out - --separate", "--separate writes files"),
    ("sample run-digits --film --out film.npy", "'film.gif' exists"),
    ("sample run-labelled --out x.npy --label 10", "label = '10' is not one of the model's"),
    ("sample run-labelled --out x.npy --label 3,12", "(0, 1, 2, 3, 4, 5, 6, 7, 8, 9); give one"),
    ("sample run-labelled --out x.npy --label seven", "label = 'seven' is "),
    ("sample run-text --out x.txt --prefix 'The '", "the prefix holds 'T' at position 0"),
    ("sample run-text --out x.txt --prefix 'a long one'", "10 characters, but the model's windows"),
    # Infilling.
    (f"{TEXT} abc", "the text 'abc' has no blank '_' to fill in"),
    (f"{TEXT} _________", "the text has 9 characters"),
    (f"{TEXT} a_C", "the text holds 'C' at position 2"),
    (f"{TEXT} '~/_'", "the text holds '~' at position 0"),
    (f"{TEXT} a_b --mask m.png", "--mask is for pictures and arrays, but this is a model of text"),
    (f"{TEXT} a_b --particles 2 --solver ode", "particles need"),
    (f"{TEXT} a_b --observed no", '"no"'),
    (f"{TEXT} a_b --observed learned", "--observed learned needs a run trained with train.known"),
    (f"{TEXT} a_b --out x.png", "cannot hold samples"),
    (f"{TEXT} a_b --calls 20 --resample 4", "5 n + 1 calls, so give 16 or 21"),
    (f"{PICTURE} eight.png", "nothing says which parts of 'eight.png' to fill in"),
    (f"{PICTURE} nine.png --mask lower.png", "'nine.png' cannot be read"),
    (f"{PICTURE} eight.png --mask large.png", "'large.png' has 9 x 7 pixels"),
    (f"{PICTURE} large.png --mask lower.png", "give --resize to crop and resize it as in training"),
    (f"{PICTURE} eight.png --mask black.png", "its brightest pixel is 0 of 255, and 128 or more"),
    (f"{PICTURE} eight.png --mask grey.png", "its brightest pixel is 127 of 255, and 128 or more"),
    (f"{PICTURE} eight.png --mask lower.png --blank x", "--blank is for texts"),
    (f"{TEXT} a_b --resize", "--resize is for pictures"),
    (f"{PICTURE} eight.png --mask no-picture.png", "cannot be read as a picture"),
    # Solvers.
    (f"{SOLVERS} --calls 1,5", "--calls 1 is too few"),
    (f"{SOLVERS} --calls 5,x", "--calls 5,x is not valid; expected numbers, such as 5,10,20"),
    (f"{SOLVERS} --solver ode2,sd2", "did you mean 'sde2'"),
    (f"{SOLVERS} --n 3", "is too few; precision and recall need more than 3"),
    (f"{SOLVERS} --out q.jpg", "'q.jpg' has the wrong ending; expected .png or .pdf or .svg"),
    (f"{SOLVERS} --out mine.png", "'mine.png' exists"),
    (f"{SOLVERS} --guidance 2", "this run's data have no labels"),
    (f"{SOLVERS} --data.length 5", "--data.length cannot be changed for a trained run"),
    # Pictures of runs.
    ("plot", "bfn plot needs RUNS"),
    ("plot run-digits -o c.txt", "has the wrong ending; expected .png or .pdf or .svg"),
    ("plot papers", "'papers' holds no metrics.jsonl; give the folder of a run"),
    ("plot mute", "has no line with a step and a finite loss"),
    ("plot run-digits run-text", "different units (bits per dimension, bits per character)"),
    ("plot run-digits -o mine.png", "'mine.png' exists"),
    ("figures run-text --only loses", 'for --only. Choose from: "samples", "distributions"'),
    ("figures run-text --format gif", 'Invalid value "gif" for --format. Choose from: "png", '),
    ("figures run-text --split tests", "unknown split 'tests'"),
    # Sharing.
    ("card run-digits/checkpoints", "holds no recipe.toml"),
]


@pytest.mark.parametrize(("line", "expected"), MISTAKES)
def test_command_lines(
    line: str,
    expected: str,
    workshop: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(workshop)
    assert expected in refused(workshop, capsys, shlex.split(line))


RECIPES = [
    ("[train\nsteps = 3", "'bad.toml' is not valid TOML"),
    ("[trian]\nsteps = 3", "unknown section trian in bad.toml; did you mean 'train'"),
    ("train = 3", "train = 3 in bad.toml is not a section; write [train] above its keys"),
    ("name = 3", "name = 3 in bad.toml is not valid; expected a string"),
    ('name = "../up"', "name = '../up' in bad.toml is not a valid run name"),
    ('name = ""', "is not a valid run name"),
    ("[train]\nsteps = 1", "the recipe 'bad' has no data.source"),
    ('[train]\nsteps = "x"', "train.steps = 'x' in bad.toml is not valid; expected a whole"),
    ("[train]\nlearning_rate = inf", "is too large; expected a finite number"),
    ("[train]\nclip = nan", "train.clip = nan in bad.toml is not a number; expected one"),
    ("[train]\nbetas = [0.9]", "expected a list of 2 values"),
    ("[train]\nbetas = [0.9, 1.0]", "train.betas = 1.0 is too large; expected less than 1"),
    ('[sample]\nfinal = "mod"', "did you mean 'mode'"),
    ('[data]\nsource = "digits"', "has no flow.kind"),
    ('[data]\nsource = "digits"\n[flow]\nkind = "discretised"', "flow.K is missing"),
    (
        tiny_runs.RECIPES["discretised"].replace("sigma_1", 'schedule = "quadratik"\nsigma_1'),
        "schedule = 'quadratik'; expected exponential, quadratic",
    ),
    (
        tiny_runs.RECIPES["continuous"].replace('"bfn:Bins"\n', '"bfn:Bins"\ncolour = "red"\n'),
        "does not describe an object",
    ),
]


@pytest.mark.parametrize(("text", "expected"), RECIPES)
def test_recipe_files(
    text: str, expected: str, tmp_path: Path, empty_folder: None, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("bad.toml").write_text(text)
    assert expected in refused(tmp_path, capsys, ["train", "bad.toml", "--out", "new"])


@pytest.mark.parametrize(
    "line", ["sample run-digits --out x.png", "demo --out demo", "card run-digits"]
)
def test_missing_extras(
    line: str, workshop: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workshop)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    assert "pip install 'bfn[plot]'" in refused(workshop, capsys, line.split())


@pytest.mark.skipif(sys.platform != "linux", reason="/proc refuses every new file")
@pytest.mark.parametrize(
    "line", ["train tiny-discretised.toml --out /proc/run", "sample run-digits --out /proc/x.npy"]
)
def test_places_that_cannot_be_written(
    line: str, workshop: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workshop)
    assert "cannot be written" in refused(workshop, capsys, line.split())
