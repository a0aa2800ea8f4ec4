"""`bfn compare`."""

from __future__ import annotations

from pathlib import Path

from bfn.cli import results
from bfn.cli.options import Force, Json, Out, Whole
from bfn.files import check_free, replacing


def compare(
    real: Path,
    new: Path,
    /,
    *,
    holdout: Path | None = None,
    target: str | None = None,
    seed: Whole = 0,
    json: Json = None,
    out: Out | None = None,
    force: Force = False,
) -> None:
    """Compare new rows with real ones: how alike they are, and whether they are copies.

    Args:
        real: The table that a model was trained on, a .csv or .parquet.
        new: A table of new rows.
        holdout: Real rows that the model was not trained on; they show what real rows would get.
        target: A column that is predicted from the others, after learning from new rows.
        seed: Of the classifiers, and of which rows are chosen.
        out: Also write a page with what the numbers mean and pictures to this .html.
    """
    from bfn.compare.measures import compare as compare_tables
    from bfn.compare.report import page

    check_free(out, force, endings=(".html",))
    results.check_json(json, force)
    found = compare_tables(real, new, holdout, target, seed=seed)
    if out is not None:
        with replacing(out) as path:
            path.write_text(page(found), encoding="utf-8")
    if results.write_json(json, found.as_dict()):
        return
    results.show(*found.table(), title=found.note())
    for warning in found.warnings:
        print(warning)
    if out is not None:
        print(f"look at {out}")
