"""`bfn decompress`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def decompress(
    file: Path,
    /,
    *,
    run: Path,
    out: Annotated[Path, Parameter(alias="-o")],
    only: Annotated[list[str] | None, Parameter(negative="")] = None,
    anyway: bool = False,
    force: bool = False,
) -> None:
    """Restore the files of an archive: the same bytes, or of pictures the same pixels.

    Parameters
    ----------
    file
        The archive.
    run
        The run it was made with: a folder, the name of a shipped model, or owner/name on the hub.
    out
        The folder for the files.
    only
        A file of the archive, or a folder of it, to restore alone; may be given several times.
    anyway
        Try although versions or processors differ; what is restored is checked all the same.
    force
        Restore into a folder that holds files, replacing those of the same names.
    """
    from bfn.cli.compress import open_run
    from bfn.codec.container import Archive
    from bfn.codec.fragments import Translation
    from bfn.codec.unpack import choose, open_codec, unpack
    from bfn.files import check_free
    from bfn.progress import waiting

    with Archive(file) as archive:
        choose(archive.index.items, only)
        check_free(out, force, folder=True)
        device = archive.index.header["codec"].get("device")
        model, format = open_run(run, device if isinstance(device, str) else "cpu")
        codec = open_codec(archive, model, format, run=str(run), anyway=anyway)
        with waiting("decompressing") as (report, _):
            restored = unpack(
                archive,
                codec,
                Translation.of(model, format),
                out,
                only=only,
                report=lambda done, total, note: report(done, total),
            )
    print(f"{out}: {len(restored)} file{'s' * (len(restored) != 1)}")
