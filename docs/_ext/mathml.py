"""Formulas as MathML, made when the pages are built: browsers show it without any script."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError


def formula(node: nodes.Element, display: str) -> str:
    latex = node.astext()
    try:
        return convert(latex, display=display)
    except Exception as error:  # the converter has no common type for what it cannot read
        raise ExtensionError(f"cannot show the formula {latex!r}", error) from error


def inline(translator: Any, node: nodes.math) -> None:
    translator.body.append(formula(node, "inline"))
    raise nodes.SkipNode


def block(translator: Any, node: nodes.math_block) -> None:
    translator.body.append(f'<div class="formula">{formula(node, "block")}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
