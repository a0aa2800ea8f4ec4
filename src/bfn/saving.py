"""A saved model: its two files, where to find it, and its model card.

A model is a folder with config.json and model.safetensors; nothing is ever unpickled. config.json
holds format_version, the SHA-256 of model.safetensors and, for network, flow and head, a class name
and its arguments:

    {"class": "bfn.flow:GaussianFlow", "arguments": {"schedule": {"class": ..., ...}}}

Flows, heads and schedules are dataclasses, so their fields are their arguments. A network keeps the
(JSON) arguments it was built with in `net.arguments`.

The folder may be anywhere on disk, inside the package, or on the Hugging Face hub, which is reached
through huggingface_hub, an optional extra, for names owner/name that are not local folders. Code
that a folder's files name runs only if the user trusts them, wherever they come from.

The card is README.md next to a saved model; it says what the model is and how good it is.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import shutil
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from bfn.errors import BFNError, did_you_mean, import_name, is_ours, require_extra
from bfn.files import check_format, replacing, sha256, write
from bfn.flow import BayesianFlow
from bfn.output import Head
from bfn.recipe.values import signature, typed
from bfn.schedule import Schedule

FORMAT_VERSION = 1
CONFIG, WEIGHTS = "config.json", "model.safetensors"
DTYPES = {str(t)[6:]: t for t in (torch.float16, torch.bfloat16, torch.float32, torch.float64)}
"""The types that weights may have, by name."""

T = TypeVar("T")
RECIPE, README, SAMPLE = "recipe.toml", "README.md", "sample"
SHARED = (CONFIG, WEIGHTS, RECIPE, README, f"{SAMPLE}.*")
"""The files to upload and download; a run's checkpoints and metrics stay local."""

_SHIPPED = Path(__file__).parent / "pretrained"
_NAME = r"\w[\w.-]*"
_USE = """```python
import bfn

{code}
```"""
_MODEL = """model = bfn.BFN.from_pretrained("{name}")
x = bfn.generate(model, shape={shape}, steps=100)"""
_TABLE = """table = bfn.Table.load("{name}")
rows = table.sample(16)"""


def class_name(cls: type) -> str:
    """ "package:Class", by the public package of our own classes (bfn.flow, not bfn.flow.base)."""
    module = cls.__module__
    if module.startswith("bfn."):
        module = ".".join(module.split(".")[:2])
    return f"{module}:{cls.__qualname__}"


def find_class(name: str, *, trust: bool) -> type:
    """The class that "package.module:Class" names; one that is not bfn's own needs trust."""
    cls = import_name(name, trust=trust)
    if not isinstance(cls, type):
        raise BFNError(f"{name!r} is not a class; expected package.module:Class")
    return cls


def describe(value: Any) -> Any:
    """A dataclass as {"class", "arguments"}; JSON values as they are.

    The flow of a head is left out: it is the model's own, which is described beside the head.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        if isinstance(value, Head) and "flow" in names:
            names.remove("flow")
        arguments = {name: describe(getattr(value, name)) for name in names}
        return {"class": class_name(type(value)), "arguments": arguments}
    return [describe(each) for each in value] if isinstance(value, tuple) else value


def build(description: Any, kind: type[T] | tuple[type[T], ...], *, trust: bool, **own: Any) -> T:
    """The inverse of `describe`; refuses anything that is not a dataclass of the given kind.

    `own` are arguments that were left out, such as a head's flow, for a class that has them.
    """
    name, arguments = _parts(description)
    cls = find_class(name, trust=trust)
    if not (issubclass(cls, kind) and dataclasses.is_dataclass(cls)):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        expected = " or ".join(each.__name__ for each in kinds)
        raise BFNError(f"{name!r} is not a {expected}; its config.json is damaged")
    restored = {key: _restore(value, trust) for key, value in arguments.items()}
    names = {field.name for field in dataclasses.fields(cls)}
    return _construct(cls, name, restored | {key: own[key] for key in own if key in names})


def _restore(value: Any, trust: bool) -> Any:
    if isinstance(value, dict):
        # A part of a flow or head: possibly the user's own, or any of our classes.
        kind = object if is_ours(value.get("class")) else (Schedule, BayesianFlow, Head)
        return build(value, kind, trust=trust)
    return tuple(_restore(each, trust) for each in value) if isinstance(value, list) else value


def _parts(description: Any) -> tuple[Any, dict[str, Any]]:
    try:
        return description["class"], dict(description["arguments"])
    except (KeyError, TypeError, ValueError) as error:
        raise BFNError(
            f"{description!r} does not describe a part of a model; expected a class and its "
            "arguments"
        ) from error


def _construct(cls: type[T], name: str, arguments: dict[str, Any]) -> T:
    """An instance, with arguments that have the types of the class's hints."""
    hints, *_ = signature(cls)
    values = {key: typed(key, value, hints.get(key, Any)) for key, value in arguments.items()}
    try:
        return cls(**values)
    except BFNError:
        raise
    except Exception as error:  # a constructor may fail in any way
        raise BFNError(f"{name} does not take these arguments: {error}") from error


def describe_network(net: nn.Module) -> dict[str, Any]:
    arguments = getattr(net, "arguments", None)
    if not isinstance(arguments, dict):
        raise BFNError(
            f"{type(net).__name__} cannot be saved: it does not remember how it was built; in its "
            "__init__, set self.arguments = dict(...) of its (JSON) constructor arguments"
        )
    if type(net).__module__ == "__main__":
        name = type(net).__qualname__
        warnings.warn(
            f"the class {name} is defined in the running script, so no other program can import "
            f"it: load this model with from_pretrained(..., net={name}(...)), or move the class to "
            "a module",
            stacklevel=2,
        )
    return {"class": class_name(type(net)), "arguments": arguments}


def build_network(description: Mapping[str, Any], *, trust: bool) -> nn.Module:
    name, arguments = _parts(description)
    if str(name).startswith("__main__:") and not hasattr(sys.modules["__main__"], name[9:]):
        raise BFNError(
            f"the network {name[9:]!r} was defined in a script, which cannot be imported; load the "
            f"model in Python with from_pretrained(..., net={name[9:]}(...))"
        )
    cls = find_class(name, trust=trust)
    if not issubclass(cls, nn.Module):
        raise BFNError(f"{name!r} is not a torch.nn.Module")
    return _construct(cls, name, arguments)


class Bounded(TorchFunctionMode):
    """While one of bfn's networks is built, limits its tensors to little more than the weights.

    Otherwise a damaged or hostile config.json could ask for any amount of memory.
    """

    def __init__(self, description: Mapping[str, Any], weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        # Computed tables, such as positions, are not among the weights; other networks, which are
        # trusted, may have many.
        size = sum(weight.numel() for weight in weights.values())
        self.left = 2**18 + 2 * size if is_ours(description["class"]) else math.inf

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if args and func in (torch.empty, torch.zeros, torch.ones, torch.arange):
            self.left -= math.prod(args[0] if isinstance(args[0], tuple | list) else args)
            if self.left < 0:
                raise BFNError(
                    f"{CONFIG} describes a network far larger than {WEIGHTS}; restore it"
                )
        return func(*args, **(kwargs or {}))


def save(
    folder: Path,
    config: dict[str, Any],
    weights: Mapping[str, Tensor],
    store: torch.dtype | None = None,
) -> None:
    """Write both files; a reader sees the old ones or the new ones, never a partial one.

    With `store`, weights are written in that type; the network is still loaded in its own.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise BFNError(
            f"{str(folder)!r} is a file, or would be inside of one; give the name of a folder"
        ) from None
    # Copied, because the file format refuses tensors that share memory (tied weights).
    tensors = {name: t.detach().to("cpu", copy=True).contiguous() for name, t in weights.items()}
    if store is not None:
        if store not in DTYPES.values():
            expected = ", ".join(f"torch.{name}" for name in DTYPES)
            raise BFNError(f"store = {store!r}; expected {expected}, or None")
        floats = {k: t for k, t in tensors.items() if t.is_floating_point()}
        kinds = {str(t.dtype).removeprefix("torch.") for t in floats.values()}
        if len(kinds) != 1:
            raise BFNError("weights of several types cannot be stored as one; leave out the type")
        config = {**config, "dtype": kinds.pop()}
        tensors |= {k: _narrowed(k, t, store) for k, t in floats.items()}
    with replacing(folder / WEIGHTS) as filled, replacing(folder / CONFIG) as described:
        save_file(tensors, filled, metadata={"format": "pt"})
        config = {**config, "sha256": sha256(filled)}
        described.write_text(json.dumps(config, indent=2) + "\n")
        shutil.copymode(described, filled)  # save_file makes files readable only by their owner


def check_free(folder: Path) -> None:
    """Refuse a folder that holds anything but a README.md and a saved model."""
    if (folder / RECIPE).is_file():
        raise BFNError(
            f"{str(folder)!r} holds a training run, whose model would be replaced; give another "
            "folder"
        )
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    if any(name != README and name[0] != "." for name in names):
        try:
            load_config(folder)
        except BFNError:
            raise BFNError(
                f"{str(folder)!r} holds other files and no saved model; give another folder"
            ) from None


def _narrowed(name: str, tensor: Tensor, store: torch.dtype) -> Tensor:
    narrowed = tensor.to(store)
    if not torch.equal(narrowed.isfinite(), tensor.isfinite()):
        raise BFNError(f"{name} holds numbers beyond {store}; store it in another type")
    return narrowed


def load_config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    if not folder.is_dir():
        raise BFNError(
            f"there is no run folder {str(folder)!r}; give the folder of a trained run, or the "
            "name of a shipped model or of one on the hub"
        )
    if not path.is_file():
        raise BFNError(f"{str(folder)!r} holds no {CONFIG}; it is not a finished run")
    try:
        config = json.loads(path.read_text())
        version, *parts = (config[key] for key in ("format_version", "net", "flow", "head"))
    except (ValueError, KeyError, TypeError) as error:
        raise BFNError(f"{str(path)!r} is damaged ({error}); restore it or train again") from error
    check_format("model", path, version, FORMAT_VERSION)
    for part in parts:
        _parts(part)
    return config


def read_weights(folder: Path, config: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of model.safetensors by name, checked if config.json has their checksum."""
    path = folder / WEIGHTS
    if not path.is_file():
        raise BFNError(f"{str(folder)!r} holds no {WEIGHTS}; it is not a finished run")
    try:
        weights = load_file(path)
        if "sha256" in config and sha256(path) != config["sha256"]:
            raise ValueError(f"its SHA-256 is not the one in {CONFIG}")
    except (SafetensorError, OSError, ValueError) as error:
        raise BFNError(
            f"{str(path)!r} is damaged or truncated ({error}); try again if its training is "
            "running; otherwise restore it, or resume its training"
        ) from error
    kinds = {weight.dtype for weight in weights.values() if weight.is_floating_point()}
    if others := kinds - set(DTYPES.values()):
        raise BFNError(
            f"{str(path)!r} holds weights of type {others.pop()}; expected {', '.join(DTYPES)}"
        )
    return weights


def fill(net: nn.Module, weights: Mapping[str, Tensor], dtype: str | None = None) -> None:
    """Fill a network, in `dtype` if config.json names one, else in the type of the weights."""
    if reason := misfit(net, weights):
        raise BFNError(
            f"the weights in {WEIGHTS} do not fit the network {type(net).__name__}: {reason}; "
            f"restore {CONFIG} and {WEIGHTS}, or give the network that was saved as net=..."
        )
    kinds = {weight.dtype for weight in weights.values() if weight.is_floating_point()}
    if dtype is not None:
        if str(dtype) not in DTYPES:
            raise BFNError(f"dtype = {dtype!r} in {CONFIG}; expected {', '.join(DTYPES)}")
        net.to(DTYPES[dtype])
    elif len(kinds) == 1:
        net.to(kinds.pop())  # a float64 network is restored as float64
    net.load_state_dict(weights)


def misfit(net: nn.Module, weights: Mapping[str, Tensor]) -> str:
    """The first mismatch between weights and a network; empty if they fit."""
    own = net.state_dict()
    for name, value in own.items():
        if name not in weights:
            return f"they lack {name}"
        if value.shape != weights[name].shape:
            shapes = f"{tuple(weights[name].shape)}, in the network {tuple(value.shape)}"
            return f"{name} has shape {shapes}"
        if value.is_floating_point() != weights[name].is_floating_point():
            return f"{name} has type {weights[name].dtype}, in the network {value.dtype}"
    return next((f"the network has no {name}" for name in weights if name not in own), "")


# Finding a model.


def shipped() -> list[str]:
    """The names of the models inside the package."""
    return sorted(path.parent.name for path in _SHIPPED.glob(f"*/{CONFIG}"))


def locate(name: str | Path, *, revision: str | None = None, token: str | None = None) -> Path:
    """The folder of a model: a folder as it is, a shipped name, or owner/name from the hub.

    A folder takes precedence over a shipped name if it holds a model, and over the hub if it
    exists. A name that is found nowhere is returned as a path, which its reader will refuse.
    """
    text, path = str(name), Path(name).expanduser()
    if any((path / file).is_file() for file in (CONFIG, RECIPE)):
        return path
    if text in shipped():
        return _SHIPPED / text
    if path.exists():
        return path
    if re.fullmatch(f"{_NAME}/{_NAME}", text, re.ASCII) and not path.parent.is_dir():
        return download(text, revision=revision, token=token)
    if "/" not in text and (near := did_you_mean(text, shipped())):
        raise BFNError(f"there is no run folder {text!r}{near}")
    return path


def download(repository: str, *, revision: str | None = None, token: str | None = None) -> Path:
    """Fetch a model from the hub, or find it in the hub's own cache; returns its folder."""
    missing = f"there is no run folder {repository!r} here"
    hub = require_extra("huggingface_hub", "hub", f"{missing}, and fetching it from the hub")
    try:
        folder = hub.snapshot_download(
            repository, revision=revision, token=token, allow_patterns=list(SHARED)
        )
    except Exception as error:  # dozens of types, from the hub's client and its dependencies
        raise BFNError(
            f"{missing}, and it could not be fetched from the hub ({_reason(error)}); check the "
            "name, the connection, and that you may read it"
        ) from error
    return Path(folder)


def upload(
    folder: Path,
    repository: str,
    *,
    private: bool | None = None,
    token: str | None = None,
) -> str:
    """Upload a folder's model, creating the repository if need be; returns its address."""
    hub = require_extra("huggingface_hub", "hub", "uploading a model")
    try:
        api = hub.HfApi(token=token)
        created = api.create_repo(repository, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=created.repo_id,
            folder_path=str(folder),
            allow_patterns=list(SHARED),
            commit_message="Upload model",
        )
    except Exception as error:
        raise BFNError(
            f"the model could not be uploaded to {repository!r} ({_reason(error)}); check the name "
            "and the connection, and log in with: hf auth login"
        ) from error
    return str(created)


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


# The card.


@dataclass(frozen=True)
class Card:
    """What a model card says beyond the model's own files.

    Args:
        title: the heading.
        data: what it was trained on, in sentences.
        recipe: the recipe it was trained with, as TOML.
        losses: a table in Markdown.
        sample: a picture or a text file of samples; it is copied next to the card.
        name: the model's folder or name on the hub, for the example.
    """

    title: str = "A Bayesian Flow Network"
    data: str = ""
    recipe: str = ""
    losses: str = ""
    sample: Path | None = None
    name: str = "FOLDER"

    def write(
        self, folder: Path, net: nn.Module, head: Head, format: Mapping[str, Any] | None
    ) -> None:
        """Write README.md and a copy of the sample beside a saved model of this network and head.

        The format is `BFN.data_format`. Sections with nothing to say are left out, except for
        the data.
        """
        if self.sample is not None:
            kept = folder / f"{SAMPLE}{self.sample.suffix}"
            if self.sample.resolve() != kept.resolve():
                shutil.copyfile(self.sample, kept)
        network, parameters = type(net).__name__, sum(p.numel() for p in net.parameters())
        parts = [
            "---\nlibrary_name: bfn\ntags:\n- bayesian-flow-network\n---",
            f"# {self.title}",
            f"A Bayesian Flow Network of {head.kind} data: a `{network}` of {parameters:,} "
            "parameters, saved by `bfn`.",
            _USE.format(code=self._code(format)),
            "## Data",
            " ".join(filter(None, (self.data, _sentence(format)))) or "Not stated.",
        ]
        for heading, text in (
            ("Losses", self.losses),
            ("A sample", self._sample()),
            ("Recipe", f"```toml\n{self.recipe.strip()}\n```" if self.recipe else ""),
        ):
            if text:
                parts += [f"## {heading}", text]
        write(folder / README, "\n\n".join(parts) + "\n")

    def _code(self, format: Mapping[str, Any] | None) -> str:
        if format is not None and format.get("medium") == "table":
            return _TABLE.format(name=self.name)
        return _MODEL.format(name=self.name, shape=_batch(format))

    def _sample(self) -> str:
        if self.sample is None:
            return ""
        if self.sample.suffix == ".txt":
            return f"```text\n{self.sample.read_text(encoding='utf-8').rstrip()}\n```"
        link = "!" if self.sample.suffix == ".png" else ""
        return f"{link}[drawn by the model]({SAMPLE}{self.sample.suffix})"


def _batch(format: Mapping[str, Any] | None) -> str:
    """What to ask `bfn.generate` for: 16 examples."""
    if format is None:
        return "(16, ...)"
    if format.get("medium") == "mixed":
        return "16"
    return f"(16, {format['length'] if format.get('medium') == 'text' else _sizes(format)})"


def _sizes(variable: Mapping[str, Any]) -> str:
    return ", ".join(map(str, variable["shape"]))


def _sentence(format: Mapping[str, Any] | None) -> str:
    """What one example is."""
    if format is None:
        return ""
    if format.get("medium") == "text":
        alphabet = format["alphabet"]
        of = "bytes" if alphabet is None else f"characters out of {len(alphabet)}"
        up_to = "a line of up to " if format.get("lines") else ""
        return f"An example is {up_to}{format['length']} {of}."
    if format.get("medium") == "mixed":
        each = (
            f"{name} of shape ({_sizes(variable)})"
            + (f" with {variable['K']} classes" if variable["K"] else "")
            for name, variable in format["variables"].items()
        )
        return f"An example has the variables {', '.join(each)}."
    if format.get("medium") == "table":
        return f"An example is a row with the columns {', '.join(format['names'])}."
    form = format["form"]
    bins = f", K = {form['K']}" if form.get("K") else ""
    return f"An example has the shape ({_sizes(format)}) and is {form['name']}{bins}."
