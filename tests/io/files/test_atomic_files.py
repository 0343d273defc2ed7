"""Atomic files: complete or absent, and for this user only."""

from pathlib import Path

import pytest

from support.parties import file_mode
from veilmeans.io.files.atomic_files import atomic_write, write_text


def test_a_new_file_and_its_folders_are_for_this_user_only(tmp_path: Path) -> None:
    write_text(tmp_path / "a/b/c.txt", "text")
    assert [file_mode(tmp_path / name) for name in ("a", "a/b", "a/b/c.txt")] == [0o700, 0o700, 0o600]


def test_a_file_that_is_replaced_keeps_its_mode(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.touch()
    file.chmod(0o640)
    write_text(file, "run: x")
    assert (file_mode(file), file.read_text()) == (0o640, "run: x")


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    write_text(tmp_path / "a", "old")
    with pytest.raises(TypeError), atomic_write(tmp_path / "a") as part:
        part.write_text(b"new")  # type: ignore[arg-type]
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("a", "old")]
