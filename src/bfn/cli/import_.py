"""`bfn import`."""

from __future__ import annotations

from pathlib import Path

from bfn.cli.options import Force, Out, Overrides, Trust, is_own


def import_(
    checkpoint: Path,
    recipe: str,
    /,
    *,
    out: Out | None = None,
    force: Force = False,
    trust: Trust = False,
    overrides: Overrides,
) -> None:
    """Turn a published checkpoint into a run.

    Args:
        checkpoint: A published .pt file, which holds tensors by name.
        recipe: The recipe it was trained with: a name (see `bfn recipes`) or the path of a .toml
            file. Its keys can be overridden as --section.key VALUE.
        out: The run folder; runs/NAME by default.
    """
    from bfn import published
    from bfn import recipe as config

    resolved = config.read(recipe, overrides, trust=trust or is_own(recipe))
    folder = out or Path("runs") / resolved.name
    model = published.import_run(checkpoint, resolved, folder, force=force)
    count = sum(p.numel() for p in model.net.parameters())
    print(f"{folder}: {count:,} parameters; next: bfn eval {folder} or bfn sample {folder}")
