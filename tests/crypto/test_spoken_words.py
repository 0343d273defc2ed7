"""Six words of a digest: always the same, pronounceable, and different where 96 bits are."""

import re

from hypothesis import given
from hypothesis import strategies as st

from veilmeans.crypto import spoken_words


def test_the_words_are_always_the_same() -> None:
    assert spoken_words.spoken_words(bytes(32)) == spoken_words.spoken_words(bytes(32))
    assert spoken_words.spoken_words(bytes(32)) == ("pigug", "pumul", "budog", "dabud", "nujom", "fozur")


def test_all_words_differ_and_can_be_pronounced() -> None:
    words = {spoken_words._word(bits) for bits in range(1 << 16)}
    assert len(words) == 1 << 16
    consonant, vowel = "[bdfghjklmnprstvz]", "[aiou]"
    assert all(re.fullmatch(f"({consonant}{vowel}){{2}}{consonant}", each) for each in words)


@given(st.integers(0, 0xFFFF))
def test_a_word_is_the_proquint_of_its_bits(bits: int) -> None:
    word = spoken_words._word(bits)
    back = 0
    for letter in word:
        alphabet = "aiou" if letter in "aiou" else "bdfghjklmnprstvz"
        back = back * len(alphabet) + alphabet.index(letter)
    assert back == bits


def test_one_bit_of_the_digest_changes_the_words() -> None:
    one, other = spoken_words.spoken_words(bytes(32)), spoken_words.spoken_words(bytes(31) + b"\1")
    assert sum(a == b for a, b in zip(one, other, strict=True)) <= 1
    assert len(one) == len(other) == 6
