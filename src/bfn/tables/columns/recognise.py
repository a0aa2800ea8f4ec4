"""Detect the kind of a column: a number, a category, or an identifier, refused with advice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bfn.errors import BFNError, plural
from bfn.tables.columns.column import Category, Column, Number, finite, unfit
from bfn.tables.csvfile import REAL, is_number, is_text, pa, pc

MANY = 20
"""Minimum number of values for a column to count as an identifier."""
DATES = ("%Y-%m-%d", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M")
DATES += ("%Y-%m-%dT%H:%M:%SZ", "%Y/%m/%d", "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", "%H:%M:%S", "%H:%M")
"""How dates and times are written as text."""
DRESSED = r"^[-+(]?[$€£¥]? ?[-+]?([0-9]{1,3}([,.' ][0-9]{3})+|[0-9]+)([.,][0-9]+)? ?[%$€£¥]?\)?$"
"""Numbers with decimal commas, thousands, currencies, percentages or signs."""
DATED = r"^([0-9]{1,2}[/ -]([0-9]{1,2}|[A-Za-z]{3,9})[/ -]([0-9]{2}|[0-9]{4})"
DATED += r"|[0-9]{4}[/.-][0-9]{1,2}[/.-][0-9]{1,2}|[0-9]{1,2}[.][0-9]{1,2}[.][0-9]{4}"
DATED += r"|[A-Za-z]{3,9} [0-9]{1,2},? [0-9]{4})([T ].*)?$"
"""Dates in any form."""
TIMED = r"^([01]?[0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9]([.][0-9]+)?)?( ?[AaPp][.]?[Mm][.]?)?$"
"""Times of day in any form."""
FORMS = (
    (DRESSED, r"[$€£¥%,'+( ]", "numbers", "1234.5"),
    (DATED, "", "dates", "2024-01-31 or 2024-01-31 12:00:00"),
    (TIMED, "", "times", "08:30 or 08:30:00"),
)
"""Patterns that should be written differently, if many values show the given sign."""
FRACTIONS = ("timestamp[ms]", "timestamp[us]", "timestamp[ns]")
"""Arrow's types for dates with fractions of seconds."""


def recognise(
    name: str,
    array: Any,
    kind: str | None,
    most: int | None,
    knots: int,
    rows: np.ndarray | None = None,
) -> Column:
    """The column of an array, of the given or the detected kind.

    Args:
        kind: "number", "category", "ordered" or None.
        most, knots: as in `Bins.fit`.
        rows: those to train on, whose values the column has; by default all.
    """
    types, type, order = pa.types, array.type, None
    if types.is_dictionary(type):
        kind = kind or ("ordered" if type.ordered else "category")
        order = array.dictionary if kind == "ordered" else None
        most, type = None, type.value_type  # new rows have no values other than the categories
    text, number = is_text(type), is_number(type) or types.is_temporal(type)
    if not (text or number or types.is_boolean(type) or types.is_null(type)):
        what = getattr(type, "extension_name", type)
        raise BFNError(
            f"column {name!r} holds {what} values, which are not numbers, dates, text or "
            "booleans; convert them, or leave the column out with kind drop"
        )
    array = array.cast(type)
    train = array if rows is None else array.take(pa.array(rows))
    if train.null_count == len(train):
        return Category.fit(name, train)
    values, form = array, None
    if kind is None and text:
        values, form, number = _dates(array)
    elif kind == "number" and not number:
        values, number = _numbers(name, array), True
    if kind is None:
        _refuse(name, values, number)
    if number and kind != "category" and order is None:
        finite(name, values)
        values = values if rows is None else values.take(pa.array(rows))
        try:
            return Number.fit(name, values, None if kind == "ordered" else most, knots, type, form)
        except unfit():
            raise BFNError(
                f"column {name!r} holds {type} values beyond the range of int64; convert them to "
                "float64, or make the column a category"
            ) from None
    if kind == "ordered" and order is None:
        order = array.drop_null().unique()
        order = order.take(pc.array_sort_indices(order))
    return Category.fit(name, train, order)


def _dates(array: Any) -> tuple[Any, str | None, bool]:
    """Text as times, their format, and whether every value parses and round-trips."""

    def found(read: Callable[[Any], Any], write: Callable[[Any], Any]) -> Any:
        for part in (array.drop_null()[:1], array):  # most formats fail on the first value
            try:
                times = read(part)
            except unfit():
                return None
            if times.null_count > part.null_count or not write(times).cast(part.type).equals(part):
                return None
        return times

    for form in DATES:
        times = found(
            lambda part, form=form: pc.strptime(part, form, "s", error_is_null=True),
            lambda times, form=form: pc.strftime(times, form),
        )
        if times is not None:
            return times, form, True
    for name in FRACTIONS:
        type = pa.type_for_alias(name)
        times = found(lambda part, type=type: part.cast(type), lambda times: times)
        if times is not None:
            return times, None, True
    return array, None, False


def _numbers(name: str, array: Any) -> Any:
    """Text or booleans as integers or reals."""
    for type in (pa.int64(), pa.float64()):
        try:
            return array.cast(type)
        except unfit():
            continue
    wrong = array.filter(pc.invert(pc.match_substring_regex(array, REAL)))
    raise BFNError(
        f"column {name!r} is declared a number, but holds {wrong[0].as_py()!r}; repair it, or "
        "make it a category"
    )


def _refuse(name: str, array: Any, number: bool) -> None:
    """Refuse text that never repeats, integers that count the rows, numbers with a little text
    among them, and numbers and dates in unsupported formats."""
    values = array.drop_null()
    if len(values) < MANY:
        return
    if number:
        if not pa.types.is_integer(values.type) or array.null_count:
            return
        counted = np.sort(values.to_numpy(zero_copy_only=False))
        if (np.diff(counted) != 1).any():
            return
        what = f"it holds every number from {counted[0]} to {counted[-1]} once"
    elif is_text(values.type):
        numeric = pc.match_substring_regex(array, REAL)
        most = numeric.true_count >= 0.9 * len(values)
        if not most and numeric.true_count >= 0.5 * len(values):
            numbers, others = (array.filter(each) for each in (numeric, pc.invert(numeric)))
            # Many numbers and one word, which usually stands for a missing value.
            words = pc.count_distinct(others).as_py()
            most = words == 1 and pc.count_distinct(numbers).as_py() > MANY
        if most and numeric.false_count:
            row = pc.index(numeric, False).as_py()
            raise BFNError(
                f"column {name!r} mixes {plural(numeric.true_count, 'number')} with text, such as "
                f"{array[row].as_py()!r} in row {row + 1:,}; repair it or leave it empty, or "
                "declare the column a category"
            )
        _refuse_forms(name, array)
        different = pc.count_distinct(values).as_py()
        if different < 0.95 * len(values):
            return
        what = f"{different:,} of {plural(len(values), 'value')} are different"
    else:
        return
    raise BFNError(
        f"column {name!r} looks like an identifier: {what}; declare its kind: drop leaves it out, "
        "text-id numbers new rows, and number or category models it anyway"
    )


def _refuse_forms(name: str, array: Any) -> None:
    """Refuse numbers and dates in unsupported formats."""
    valid = array.is_valid()
    for pattern, sign, what, plain in FORMS:
        alike = pc.match_substring_regex(array, pattern)
        signed = pc.and_(alike, pc.match_substring_regex(array, sign))
        if alike.true_count < 0.9 * valid.true_count or signed.true_count < 0.1 * valid.true_count:
            continue
        whole = pc.replace_substring_regex(array, r"(:[0-9]{2})[.][0-9]+$", r"\1")
        fits = max((_fits(whole, form) for form in DATES), key=lambda fits: fits.true_count)
        odd = pc.and_not(valid, fits)
        wrong = f"in an unsupported format, such as {array.filter(signed)[0].as_py()!r}"
        if fits.true_count and odd.true_count:
            row = pc.index(odd, True).as_py()
            wrong = (
                f"such as {array.filter(fits)[0].as_py()!r}, but in row {row + 1:,} "
                f"{array[row].as_py()!r}, which is invalid or written differently"
            )
        raise BFNError(
            f"column {name!r} holds {what} {wrong}; write them all as {plain}, or declare the "
            "column a category"
        )


def _fits(text: Any, form: str) -> Any:
    """Which texts are dates or times written in a form."""
    times = pc.strptime(text, form, "s", error_is_null=True)
    return pc.equal(pc.strftime(times, form).cast(text.type), text).fill_null(False)
