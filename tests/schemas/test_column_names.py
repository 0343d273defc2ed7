"""Names of columns: whatever is in them, they come back as they were."""

from hypothesis import given
from hypothesis import strategies as st

from veilmeans.schemas.column_names import distinct_names, join_names, split_names

names = st.lists(st.text(st.sampled_from("ab\\n\n\r\x00 _0é"), max_size=6), min_size=1)


@given(names)
def test_names_come_back_line_breaks_included(given_names: list[str]) -> None:
    assert split_names(join_names(given_names)) == given_names


@given(st.binary(max_size=40))
def test_any_text_is_read_as_names(text: bytes) -> None:
    assert len(split_names(text)) == text.count(b"\n") + 1


@given(names)
def test_distinct_names_are_distinct_and_in_order(given_names: list[str]) -> None:
    made = distinct_names(given_names)
    assert len(set(made)) == len(given_names)
    assert all(new.startswith(old) for new, old in zip(made, given_names, strict=True))
