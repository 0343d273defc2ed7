"""A key that is renewed in mid-run: the rerun resumes, with and without ids; with files it says why it cannot."""

from pathlib import Path

import pytest

from support.commands import assert_all_succeeded, at_rename
from support.run_results import final_shares
from support.worlds import BOTH, World, changed_config, two_companies
from veilmeans.crypto.certificates import make_identity
from veilmeans.schemas.errors import RefusedError

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def halfway(folder: Path, ids: bool, kind: str = "gateway") -> World:
    """Two iterations of four are done, and both parties have died."""
    world = two_companies(folder, "vertical")
    for name, config in world.configs.items():
        job = {} if ids else {"kmeans": {"id": None, "columns": list(FEATURES[name])}}
        world.configs[name] = changed_config(config, **job, exchange={"kind": kind})
    world.train_until_killed(at_rename("checkpoints/3.arrow"))
    return world


FEATURES = {"payco": ("amount", "age"), "shop": ("visits", "spent"), "notary": ()}


def renew(world: World, name: str) -> None:
    """Replace a party's certificate and key, which its peer pins from the same file."""
    identity = make_identity(name, 2)
    world[name].certificate.write_bytes(identity.certificate)
    world[name].key.write_bytes(identity.key)


@pytest.mark.parametrize("ids", [True, False], ids=["with ids", "without ids"])
def test_a_run_resumes_with_a_renewed_key_and_has_the_same_shares(tmp_path: Path, ids: bool) -> None:
    """It ended before: the data or the job had changed, because a digest of the ids is under the parties' keys."""
    world = halfway(tmp_path / "world", ids)
    undisturbed = world.copied(tmp_path / "copy")
    assert_all_succeeded(undisturbed.train_as_processes())
    renew(world, "shop")
    assert_all_succeeded(world.train_as_processes())
    assert final_shares(world) == final_shares(undisturbed)


def test_with_files_a_message_under_the_old_key_ends_the_run_in_a_sentence(tmp_path: Path) -> None:
    world = halfway(tmp_path / "world", ids=False, kind="files")
    renew(world, "shop")
    ended = world.train_as_processes()
    assert {code for code, _ in ended.values()} == {RefusedError.code}
    for name in BOTH:
        assert "Traceback" not in ended[name][1]
        assert "cannot be decrypted" in ended[name][1] or "holds a different message" in ended[name][1]
