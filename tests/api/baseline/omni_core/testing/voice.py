from __future__ import annotations
from typing import Final
import numpy as np
import numpy.typing as npt
FORMANTS: Final = {'a': ((730, 90), (1090, 110), (2440, 170)), 'e': ((530, 70), (1840, 100), (2480, 150)), 'i': ((270, 60), (2290, 100), (3010, 150)), 'o': ((570, 80), (840, 90), (2410, 150)), 'u': ((300, 60), (870, 90), (2240, 150))}
VOWEL_S: Final = 0.18

def say_vowels(vowels: str, rate: int=16000, seed: int=0) -> FloatArray:
    ...
