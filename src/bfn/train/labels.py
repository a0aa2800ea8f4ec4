"""Labels in training: some of them hidden, for guidance without a classifier."""

from __future__ import annotations

from torch import Tensor

from bfn import noise
from bfn.data.base import DataSet
from bfn.errors import BFNError
from bfn.model import BFN
from bfn.recipe.sections import Train


def hide(
    labels: dict[str, Tensor], probability: float, generator: noise.Source
) -> dict[str, Tensor]:
    """Every label is replaced by -1, "no label", with some probability."""
    if not probability:
        return labels
    label = labels["label"]
    u = noise.uniform(label.shape, generator, device=label.device)
    return {**labels, "label": label.masked_fill(u < probability, -1)}


def check_labels(model: BFN, data: DataSet, settings: Train) -> None:
    """Refuse to hide labels that are not there, or that the network does not take."""
    if not settings.label_dropout:
        return
    given = f"train.label_dropout = {settings.label_dropout} hides labels, but"
    if "train" not in data.labels:
        raise BFNError(
            f"{given} {data.name} comes without labels; leave it out, or train on data that has "
            "them"
        )
    if getattr(model.net, "arguments", {}).get("labels") == 0:
        raise BFNError(f"{given} the network takes none; build it with labels=N, or leave it out")
