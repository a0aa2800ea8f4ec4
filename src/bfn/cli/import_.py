"""`bfn import`."""

from __future__ import annotations

from pathlib import Path

from bfn.cli.options import Overrides


def import_(
    checkpoint: Path,
    recipe: str,
    /,
    *,
    out: Path | None = None,
    force: bool = False,
    overrides: Overrides,
) -> None:
    """Turn a published checkpoint into a run that eval and sample use.

    Parameters
    ----------
    checkpoint
        A published .pt file, which holds tensors by name.
    recipe
        The configuration it was trained with: the recipe of that name (see `bfn recipes`), or the
        path of a .toml file. Its keys can be overridden as --section.key VALUE.
    out
        The run folder; runs/NAME by default.
    force
        Replace the run that is in the folder.
    """
    from bfn import published
    from bfn import recipe as config

    resolved = config.read(recipe, overrides)
    folder = out or Path("runs") / resolved.name
    model = published.import_run(checkpoint, resolved, folder, force=force)
    count = sum(p.numel() for p in model.net.parameters())
    print(f"{folder}: {count:,} parameters; go on with bfn eval {folder} or bfn sample {folder}")
