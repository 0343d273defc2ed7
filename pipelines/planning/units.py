"""Numbers and times as text: about three digits, in the unit that fits."""

from datetime import datetime

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def format_number(number: float) -> str:
    """Format a number with three digits, or with all digits before the point."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def format_size(number: float) -> str:
    """Format bytes in a unit that leaves three digits."""
    unit = 0
    while number >= 999.5 and unit < len(_UNITS) - 1:
        number, unit = number / 1000, unit + 1
    return f"{number:.3g} {_UNITS[unit]}"


def format_seconds(number: float) -> str:
    """Format seconds to a millisecond, and to three digits."""
    return f"{number:.3f}" if number < 1 else format_number(number)


def format_duration(number: float) -> str:
    """Format seconds in milliseconds, seconds, minutes or hours."""
    if number < 0.0995:
        return f"{number * 1e3:.0f} ms"
    if number < 120:
        return f"{number:.2f} s" if number < 9.995 else f"{number:.1f} s"
    return f"{number / 60:.1f} min" if number < 7200 else f"{number / 3600:.1f} h"


def format_time(when: str) -> str:
    """Format a time of `report.json`."""
    time = datetime.fromisoformat(when)
    return f"{time.day} {time:%b %Y, %H:%M} UTC"


def format_period(began: str, ended: str) -> str:
    """Format two times of `report.json` as a period; a common day is named once."""
    if format_time(began) == format_time(ended):
        return format_time(began)
    first, last = datetime.fromisoformat(began), datetime.fromisoformat(ended)
    if first.date() != last.date():
        return f"{format_time(began)} – {format_time(ended)}"
    return f"{first.day} {first:%b %Y, %H:%M}–{last:%H:%M} UTC"
