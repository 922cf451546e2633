"""Units as they are written behind a number, and their words.

A unit whose letter may be a word or a name ("5 a day", "5G", "100 W Main St") is read as one only
where it can be nothing else; elsewhere the letter stays.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_IN_ANY_CASE: Final = {
    "hz": "hertz",
    "khz": "kilohertz",
    "mhz": "megahertz",
    "ghz": "gigahertz",
    "kb": "kilobytes",
    "mb": "megabytes",
    "gb": "gigabytes",
    "tb": "terabytes",
    "bps": "bits per second",
    "kbps": "kilobits per second",
    "mbps": "megabits per second",
    "gbps": "gigabits per second",
    "cm": "centimeters",
    "km": "kilometers",
    "ft": "feet",
    "kg": "kilograms",
    "lb": "pounds",
    "lbs": "pounds",
    "ml": "milliliters",
    "sec": "seconds",
    "secs": "seconds",
    "min": "minutes",
    "mins": "minutes",
    "hr": "hours",
    "hrs": "hours",
    "mph": "miles per hour",
    "kmh": "kilometers per hour",
    "kph": "kilometers per hour",
    "fps": "frames per second",
    "rpm": "revolutions per minute",
    "db": "decibels",
    "wh": "watt hours",
    "kw": "kilowatts",
    "kwh": "kilowatt hours",
    "kcal": "kilocalories",
    "px": "pixels",
    "°c": "degrees celsius",
    "°f": "degrees fahrenheit",
}
_AS_WRITTEN: Final = {
    "ns": "nanoseconds",
    "μs": "microseconds",
    "ms": "milliseconds",
    "s": "seconds",
    "h": "hours",
    "nm": "nanometers",
    "μm": "micrometers",
    "mm": "millimeters",
    "m": "meters",
    "mi": "miles",
    "cm²": "square centimeters",
    "m²": "square meters",
    "km²": "square kilometers",
    "cm³": "cubic centimeters",
    "m³": "cubic meters",
    "μg": "micrograms",
    "mg": "milligrams",
    "g": "grams",
    "oz": "ounces",
    "l": "liters",
    "L": "liters",
    "A": "amperes",
    "V": "volts",
    "v": "volts",
    "W": "watts",
    "w": "watts",
    "mV": "millivolts",
    "kV": "kilovolts",
    "mA": "milliamperes",
    "mAh": "milliampere hours",
    "mW": "milliwatts",
    "MW": "megawatts",
    "MWh": "megawatt hours",
    "GW": "gigawatts",
}
_WHERE: Final = {
    "A": r"(?:(?<=\.[0-9])|(?<=\.[0-9] ))A",
    "g": r"(?:(?<!(?<![.0-9])[2-6])g|g(?= of\b))",  # 5g, the network
    "v": r"(?<=[0-9])v",  # versus
    "w": r"(?<=[0-9])w",
    "W": r"W(?! [A-Z0-9])",  # west
}
"""Where those that are written so are units."""
_PER_WORDS: Final = "second minute hour day night week month year person user mile"
PER: Final = {word: word for word in _PER_WORDS.split()} | {
    "s": "second",
    "s²": "second squared",
    "sec": "second",
    "min": "minute",
    "h": "hour",
    "hr": "hour",
    "mo": "month",
    "yr": "year",
    "m": "meter",
    "m²": "square meter",
    "m³": "cubic meter",
    "km": "kilometer",
    "mi": "mile",
    "g": "gram",
    "kg": "kilogram",
    "lb": "pound",
    "l": "liter",
    "L": "liter",
}
"""What may stand behind a unit or an amount and a slash."""
_ONE: Final = {
    "feet": "foot",
    "degrees celsius": "degree celsius",
    "degrees fahrenheit": "degree fahrenheit",
}


def longest_first(written: Iterable[str]) -> str:
    """A pattern of all these, none of which hides a longer one."""
    return "|".join(sorted(written, key=len, reverse=True))


UNIT: Final = (
    rf"(?:(?i:{longest_first(_IN_ANY_CASE)})"
    rf"|{'|'.join(_WHERE.get(unit, unit) for unit in sorted(_AS_WRITTEN, key=len, reverse=True))})"
)
"""A pattern without groups."""


def unit_words(written: str, *, one: bool) -> str:
    """Of what `UNIT` has found; for one of it, or for many."""
    words = _AS_WRITTEN.get(written) or _IN_ANY_CASE[written.casefold()]
    if not one:
        return words
    what, per, rest = words.partition(" per ")
    return _ONE.get(what, what.removesuffix("s")) + per + rest
