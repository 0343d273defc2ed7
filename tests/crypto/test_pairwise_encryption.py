"""Encryption between two parties: only the peer decrypts, only for the same context; a retry gives the same bytes."""

import hashlib

import pytest

from veilmeans.crypto.certificates import make_identity
from veilmeans.crypto.pairwise_encryption import DecryptionError, PairwiseCipher

PAYCO, SHOP, BANK = (make_identity(name, days=2) for name in ("payco", "shop", "bank"))
PLAIN, CONTEXT = b"a share", b"run/0/stage/0"


def test_the_peer_decrypts_what_was_encrypted_for_it() -> None:
    encrypted = PairwiseCipher(PAYCO, SHOP.certificate).encrypt(PLAIN, CONTEXT)
    assert PLAIN not in encrypted
    assert PairwiseCipher(SHOP, PAYCO.certificate).decrypt(encrypted, CONTEXT) == PLAIN


def test_a_retry_encrypts_to_the_same_bytes_and_another_context_to_others() -> None:
    cipher = PairwiseCipher(PAYCO, SHOP.certificate)
    assert cipher.encrypt(PLAIN, CONTEXT) == cipher.encrypt(PLAIN, CONTEXT)
    assert cipher.encrypt(PLAIN, CONTEXT)[:12] != cipher.encrypt(PLAIN, CONTEXT + b"1")[:12]
    assert cipher.encrypt(PLAIN, CONTEXT)[:12] != cipher.encrypt(PLAIN + b"s", CONTEXT)[:12]


def test_other_bytes_contexts_and_parties_are_refused() -> None:
    encrypted = PairwiseCipher(PAYCO, SHOP.certificate).encrypt(PLAIN, CONTEXT)
    shop = PairwiseCipher(SHOP, PAYCO.certificate)
    for altered in (b"", encrypted[:11], encrypted[:-1], encrypted[:-1] + bytes([encrypted[-1] ^ 1])):
        with pytest.raises(DecryptionError):
            shop.decrypt(altered, CONTEXT)
    with pytest.raises(DecryptionError):
        shop.decrypt(encrypted, CONTEXT + b"1")
    for other in (PairwiseCipher(BANK, PAYCO.certificate), PairwiseCipher(SHOP, BANK.certificate)):
        with pytest.raises(DecryptionError):
            other.decrypt(encrypted, CONTEXT)


def test_a_keyed_digest_is_the_same_at_both_parties_and_nowhere_else() -> None:
    """Who guesses the content cannot check the guess: that takes the key of one of the two."""
    stranger, again = make_identity("payco", days=2), make_identity("shop", days=2)
    digest = PairwiseCipher(PAYCO, SHOP.certificate).digest(b"row ids")
    assert digest == PairwiseCipher(SHOP, PAYCO.certificate).digest(b"row ids")
    assert len(digest) == 32
    others = [
        PairwiseCipher(PAYCO, SHOP.certificate).digest(b"row ids "),
        PairwiseCipher(stranger, SHOP.certificate).digest(b"row ids"),
        PairwiseCipher(PAYCO, again.certificate).digest(b"row ids"),
        hashlib.sha256(b"row ids").digest(),
    ]
    assert len({digest, *others}) == 5


def test_a_keyed_digest_is_not_the_nonce_of_an_encrypted_message() -> None:
    """Not even the digest of the content of which a nonce is made."""
    cipher = PairwiseCipher(PAYCO, SHOP.certificate)
    of_nonce = len(CONTEXT).to_bytes(4, "big") + CONTEXT + hashlib.sha256(PLAIN).digest()
    assert cipher.digest(of_nonce)[:12] != cipher.encrypt(PLAIN, CONTEXT)[:12]
