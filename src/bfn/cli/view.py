"""`bfn view`."""

from __future__ import annotations

from pathlib import Path

from bfn.cli.options import Calls, Force, Out, Run, SampleKeys, Trust, chosen


def view(
    run: Run,
    /,
    *,
    out: Out | None = None,
    keys: SampleKeys = None,
    calls: Calls = None,
    force: Force = False,
    trust: Trust = False,
) -> None:
    """Record generations as one page, which any browser opens.

    There is one generation unless --n gives another number, and one for each label.

    Args:
        out: The .html file to write; named after the run by default.
    """
    import dataclasses

    from bfn.cli import sampling
    from bfn.errors import plural
    from bfn.files import check_free
    from bfn.guidance import labels
    from bfn.web import film, subject

    found, given = subject.load(run, trust=trust), chosen(keys)
    settings = dataclasses.replace(found.settings, n=1).updated(**given)
    settings = sampling.with_calls(settings, calls, given.get("steps"))
    out = out or Path(f"{run.resolve().name}.html")
    check_free(out, force, endings=(".html",))
    wanted = labels.read(found.model, settings.label) if settings.label else []
    if wanted:
        labels.prepare(found.model, wanted, len(wanted))
    made = film.record(dataclasses.replace(found, settings=settings), settings.n, wanted)
    made.save(out)
    said = plural(settings.n * max(1, len(wanted)), "generation")
    print(f"{out}: {said}, {plural(made.frames, 'frame')}")
