"""`bfn decompress`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from bfn.cli.options import Out, Trust


def decompress(
    file: Path,
    /,
    *,
    run: Path,
    out: Out,
    only: Annotated[list[str] | None, Parameter(negative="")] = None,
    anyway: bool = False,
    force: bool = False,
    trust: Trust = False,
) -> None:
    """Restore the files of an archive.

    Args:
        file: The archive.
        run: The run it was made with: a folder, the name of a shipped model, or owner/name on the
            hub.
        out: The folder for the files.
        only: Restore only this file or folder of the archive; may be given several times.
        anyway: Try even if versions or processors differ; what is restored is still checked.
        force: Restore into a folder that holds files, replacing those of the same names.
    """
    from bfn.cli.sampling import open_run
    from bfn.codec.archive import Archive
    from bfn.codec.pack import choose, open_codec, unpack
    from bfn.codec.translation import Translation
    from bfn.device import find_device
    from bfn.errors import plural
    from bfn.files import check_free
    from bfn.progress import waiting

    with Archive(file) as archive:
        choose(archive.contents.entries, only)
        check_free(out, force, folder=True)
        _, model, format = open_run(run, trust)
        model.to(find_device(archive.contents.made_with["device"], "device"))
        codec = open_codec(archive, model, format, run=str(run), anyway=anyway)
        translation = Translation.of(model, format)
        with waiting("decompressing") as (report, _):
            restored = unpack(archive, codec, translation, out, only=only, report=report)
    print(f"{out}: {plural(len(restored), 'file')}")
