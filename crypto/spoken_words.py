"""Six pronounceable words that stand for a digest, to be compared by people over the phone.

  h = scrypt(digest, salt = "veilmeans words", N = 2^14, r = 8, p = 1), 96 bits, 16 for each word
  word = consonant vowel consonant vowel consonant, 4 + 2 + 4 + 2 + 4 bits      (proquints, arXiv:0901.4016)

Two different digests with the same words are a collision of 96 bits. Finding one takes about 2^48 evaluations of
scrypt, each with 16 MiB of memory and some hundredths of a second: hundreds of thousands of years of a processor core.
That bound holds for an attacker who chooses both digests, so no commitment has to be sent before the words.
"""

import hashlib

WORDS = 6
_BITS = 16
_CONSONANTS = "bdfghjklmnprstvz"
_VOWELS = "aiou"


def spoken_words(digest: bytes) -> tuple[str, ...]:
    """Return the six words of a digest."""
    stretched = hashlib.scrypt(digest, salt=b"veilmeans words", n=1 << 14, r=8, p=1, dklen=WORDS * _BITS // 8)
    return tuple(_word(int.from_bytes(stretched[2 * i : 2 * i + 2], "big")) for i in range(WORDS))


def _word(bits: int) -> str:
    """Spell 16 bits as one word; different bits give different words."""
    consonants = [_CONSONANTS[bits >> shift & 15] for shift in (12, 6, 0)]
    vowels = [_VOWELS[bits >> shift & 3] for shift in (10, 4)]
    return f"{consonants[0]}{vowels[0]}{consonants[1]}{vowels[1]}{consonants[2]}"
