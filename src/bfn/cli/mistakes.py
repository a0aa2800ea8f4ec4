"""One sentence for each way to get a command line wrong."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping

from cyclopts import CycloptsError, MissingArgumentError, UnknownOptionError, UnusedCliTokensError

from bfn.cli import keys
from bfn.recipe.values import Text


def sentence(error: CycloptsError, words: list[str], overrides: Mapping[str, Text]) -> str:
    """What is wrong with the words of a command line, from which the recipe's keys were taken."""
    command = f"bfn {words[0]}"
    see = f"see {command} --help"
    if isinstance(error, UnknownOptionError):
        option = (error.token.keyword or error.token.value).partition("=")[0]
        known = {n.lstrip("-"): n for each in error.argument_collection for n in each.names}
        if words[0] == "train":
            known = {**bare(words[1:], overrides), **known}
        near = difflib.get_close_matches(option.lstrip("-").replace("-", "_"), known, n=1)
        return f"unknown option {option}; {f'did you mean {known[near[0]]}?' if near else see}"
    if isinstance(error, UnusedCliTokensError):
        unused = " ".join(error.unused_tokens or ())
        is_key = re.match(r"[a-z]+\.\w", unused)
        return f"{command} cannot use {unused!r}; {f'did you mean --{unused}?' if is_key else see}"
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        if error.keyword is not None:
            return f"{error.keyword} has no value; write {error.keyword} VALUE"
        return f"{command} needs {error.argument.name}; {see}"
    error.verbose = False
    said = " ".join(str(error).split()).rstrip("., ")
    return said if said.endswith("?") else f"{said}; {see}"


def bare(words: list[str], overrides: Mapping[str, Text]) -> dict[str, str]:
    """The options --section.key of the recipe that the words name, by key alone."""
    recipe = keys.recipe_in(words, overrides)
    if recipe is None:
        return {}
    from bfn.recipe.keys import keys as keys_of

    sections = keys_of(recipe)
    first = sections.pop("train")
    found = [*first, *(key for section in sections.values() for key in section)]
    return {key.name.partition(".")[2]: f"--{key.name}" for key in reversed(found)}
