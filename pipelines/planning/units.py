"""Numbers for people: three digits or so, in the unit that fits."""

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def short(number: float) -> str:
    """With three digits, or all of those before the point."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def size(number: float) -> str:
    """Bytes in a unit that leaves three digits."""
    unit = 0
    while number >= 999.5 and unit < len(_UNITS) - 1:
        number, unit = number / 1000, unit + 1
    return f"{number:.3g} {_UNITS[unit]}"


def seconds(number: float) -> str:
    """To a millisecond, and to three digits."""
    return f"{number:.3f}" if number < 1 else short(number)


def duration(number: float) -> str:
    """Seconds in milliseconds, minutes or hours, where that reads better."""
    if number < 0.0995:
        return f"{number * 1e3:.0f} ms"
    if number < 120:
        return f"{number:.2f} s" if number < 9.995 else f"{number:.1f} s"
    return f"{number / 60:.1f} min" if number < 7200 else f"{number / 3600:.1f} h"
