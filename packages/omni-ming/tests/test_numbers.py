"""Numbers as they are said: what no golden pins is read as a person would read it."""

from __future__ import annotations

import string
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from omni_ming.speech_text.front_end import MOST_CHARACTERS, utterances
from omni_ming.speech_text.numbers import write_numbers

DATES = {
    "on 2026-12-01.": "on December first, twenty twenty-six.",
    "2026-12-01T10:30:00Z": "December first, twenty twenty-six ten : thirty",
    "2026-01": "January twenty twenty-six",
    "12/01/2026": "December first, twenty twenty-six",
    "31/12/2026": "December thirty-first, twenty twenty-six",
    "3/4/05": "March fourth, oh five",
    "24.12.2026": "December twenty-fourth, twenty twenty-six",
    "Dec 1, 2026": "December first, twenty twenty-six",
    "Dec. 1st": "December first",
    "May 5-7, 2009": "May fifth to seventh, two thousand nine",
    "the 1st of May 2024": "the first of May twenty twenty-four",
    "5 May 1905": "the fifth of May nineteen oh five",
    "May 2024": "May twenty twenty-four",
    "you may 5 times": "you may five times",
    "Q3 2024": "Q three twenty twenty-four",
    "(1999)": "(nineteen ninety-nine)",
    "in 1999": "in nineteen ninety-nine",
    "from 1914 to 1918": "from nineteen fourteen to nineteen eighteen",
    "1914-1918": "nineteen fourteen to nineteen eighteen",
    "2019–20": "twenty nineteen to twenty",
    "2024/25": "twenty twenty-four twenty-five",
    "in 1500 m": "in one thousand, five hundred meters",
    "1999 cats": "one thousand, nine hundred ninety-nine cats",
    "the 1990s": "the nineteen nineties",
    "the 1900s": "the nineteen hundreds",
    "the '80s": "the eighties",
    "in her 30s": "in her thirties",
}
TIMES = {
    "10:30": "ten : thirty",
    "10:05": "ten : oh five",
    "10:00": "ten o'clock",
    "14:00": "fourteen hundred",
    "0:00": "zero : zero zero",
    "10:00 am": "ten AM",
    "9:30am-5pm": "nine : thirty AM to five PM",
    "9:00–17:30": "nine o'clock to seventeen : thirty",
    "1:02:03": "one : oh two : oh three",
    "16:9": "sixteen to nine",
    "1:100": "one to one hundred",
}
UNITS = {
    "5 a day": "five a day",
    "3 A batteries": "three A batteries",
    "2.5 A": "two point five amperes",
    "12 V": "twelve volts",
    "5 v 5": "five v five",
    "60 W.": "sixty watts .",
    "100 W Main St": "one hundred W Main St",
    "10 s": "ten seconds",
    "10 S Main St": "ten S Main St",
    "5 m tall": "five meters tall",
    "5G and 4g": "five G and four g",
    "4 g of sugar": "four grams of sugar",
    "200g": "two hundred grams",
    "0.5 l": "zero point five liters",
    "2 h": "two hours",
    "10 min": "ten minutes",
    "5 in the morning": "five in the morning",
    "1 km": "one kilometer",
    "6 ft": "six feet",
    "a 6-ft pole": "a six foot pole",
    "a 5 km run": "a five kilometer run",
    "10 km/h": "ten kilometers per hour",
    "9.8 m/s²": "nine point eight meters per second squared",
    "25 m²": "twenty-five square meters",
    "20 mph": "twenty miles per hour",
    "5 kWh": "five kilowatt hours",
    "5 MW or 5 mW": "five megawatts or five milliwatts",
    "-5°C": "minus five degrees celsius",
    "90°": "ninety degrees",
    "10 µm": "ten micrometers",
    "5'10\"": "five feet ten inches",
    "at 5 am": "at five AM",
}
MONEY = {
    "€20": "twenty euros",
    "20 € 50¢": "twenty euros fifty cents",
    "¥100": "one hundred yen",
    "$1": "one dollar",
    "-$5": "minus five dollars",
    "$5 million": "five million dollars",
    "$1.5bn": "one point five billion dollars",
    "$5-10": "five to ten dollars",
    "$5–$10": "five to ten dollars",
    "$5/month": "five dollars per month",
    "a $5 fee": "a five dollar fee",
}
SIGNS = {
    "5-10 people": "five to ten people",
    "5–10%": "five to ten percent",
    "5%-10%": "five percent to ten percent",
    "10 - 5": "ten minus five",
    "10-5=5": "ten minus five equals five",
    "-5 degrees": "minus five degrees",
    "x = -2": "x equals minus two",
    "f(2)-3": "f( two ) minus three",
    "2 + 2 = 4": "two plus two equals four",
    "3 x 4": "three times four",
    "3x4": "three by four",
    "2x - 3": "two x minus three",
    "n + 3": "n plus three",
    "10% - 20%": "ten percent to twenty percent",
    "12 m x 5 m": "twelve meters by five meters",
    "4.5/5": "four point five out of five",
    "call 911": "call nine one one",
    ".5": "zero point five",
    "0x1F": "zero x one F",
    "+5 points": "plus five points",
    "x³ = 8": "x cubed equals eight",
    '"-5"': '"minus five "',
    "10 / 2": "ten divided by two",
    "10^-3": "ten to the power of minus three",
    "x² = 4": "x squared equals four",
    "1e5": "one times ten to the power of five",
    "2.5E-3": "two point five times ten to the power of minus three",
    ">= 5, ~10": "at least five , about ten",
    "18+": "eighteen plus",
    "#1": "number one",
    "C++11": "C++ eleven",
    "call 555-1234": "call five five five, one two three four",
    "500-1000 people": "five hundred to one thousand people",
    "call 500-1000": "call five zero zero, one zero zero zero",
    "(555) 123-4567": "five five five, one two three, four five six seven",
    "+1 555-123-4567": "plus one, five five five, one two three, four five six seven",
    "1-2-3": "one, two, three",
    "v1.2.3": "v one point two point three",
    "24/7": "twenty-four seven",
    "2 1/2 cups": "two and one half cups",
    "½ cup": "one half cup",
    "12/25": "twelve over twenty-five",
    "8/8": "eight out of eight",
    "1/3": "one third",
    "007": "zero zero seven",
    "B2B, MP3, 3D": "B two B, MP three, three D",
    "20-year-old": "twenty year-old",
    "COVID-19": "COVID nineteen",
}


@pytest.mark.parametrize(("text", "words"), (DATES | TIMES | UNITS | MONEY | SIGNS).items())
def test_as_a_person_would(text: str, words: str) -> None:
    assert write_numbers(text) == words
    assert write_numbers(f"Say {text}") == f"Say {words}"


NUMBERS = st.one_of(
    st.text("0123456789", min_size=1, max_size=33),
    st.integers(0, 2100).map(str),
    st.sampled_from(["3.14", "1,234", "2026", "12", "05"]),
)
MARKS = st.sampled_from([*string.punctuation, *string.ascii_letters, *"–−×°²½€’ \n", " ", ""])
WORDS = st.sampled_from(
    ["May", "Dec.", "in ", "the ", "a ", "km", "kWh/h", "am", "call ", "T", "s"]
)
TEXTS = st.lists(st.one_of(NUMBERS, MARKS, WORDS), max_size=40).map("".join)


@settings(max_examples=500, deadline=None)
@example("13/13/2026 0/0 00/00/00 1/0 2026-13-01 99:99:99 0x 1e999 #0 +0 5'99\" 0.0%")
@given(TEXTS)
def test_no_digit_is_left(text: str) -> None:
    words = write_numbers(text)
    assert not set(words) & set(string.digits)
    assert len(words) <= 14 * len(text) + 20
    assert write_numbers(words).replace(" ", "") == words.replace(" ", "")


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters(exclude_categories=["N", "Cs"]), max_size=100))
def test_without_numbers_nothing_changes(text: str) -> None:
    assert write_numbers(text) == " ".join(text.split())


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=100))
def test_any_text_is_read(text: str) -> None:
    write_numbers(text)


REPEATED = [
    *(
        "1",
        "1.",
        "1-",
        "1/",
        "1:",
        "1,",
        "1 ",
        "£1",
        "$1-",
        "1=",
        "1+",
        "1^",
        "1e",
        "1a",
        "a1",
        "a",
    ),
    *("May ", "May 1-", "2026-", "12/12/", "10:30-", "+1 (555)", "+1-", "(555) ", "1 1/", "1.1-"),
    *(
        "in 2026 to ",
        "a 1 ",
        "5 km-",
        "5'1",
        "1 - ",
        "1²",
        "1 %",
        "1x",
        "1–",
        "1 €",
        "12,34,",
        "0 ",
    ),
    *(
        "½",
        "7rpm ",
        "7 °f ",
        "8 Kbps/s ",
        "7e-7 ",
        "9" * 33 + " ",
        "1,000,",
        "the 5 of ",
        "0 ",
        "a",
    ),
]


@pytest.mark.parametrize("unit", REPEATED)
@pytest.mark.parametrize("end", ["", "x"])
def test_time_and_length_are_in_proportion(unit: str, end: str) -> None:
    text = (unit * 20_000)[:20_000] + end
    began = time.process_time()
    words = write_numbers(text)
    assert time.process_time() - began < 2  # 0.3 at most; with the square of the length, minutes
    assert len(words) <= 14 * len(text)
    spoken = [one["text"] for one in utterances(text[:3_000])]
    assert max(map(len, spoken)) <= MOST_CHARACTERS


def test_a_number_is_whole_in_a_text_that_is_cut() -> None:
    text = "word " * 30 + "we paid 1,234,567 dollars on Dec 1, 2026. " + "word " * 30
    spoken = " ".join(one["text"] for one in utterances(text))
    assert "one million, two hundred thirty-four thousand, five hundred sixty-seven" in spoken
    assert "on December first, twenty twenty-six" in spoken
