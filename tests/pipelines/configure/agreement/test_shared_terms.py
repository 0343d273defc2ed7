"""Terms in a configuration's text: also fields that runs leave out of their handshakes while they are 0."""

from pathlib import Path

import pytest

from support.worlds import blobs, make_world_without_stores, tables
from veilmeans.pipelines.configure.agreement.shared_terms import terms_of, with_terms
from veilmeans.pipelines.configure.edit_config import as_yaml
from veilmeans.schemas.config import parse_config
from veilmeans.schemas.errors import RefusedError


def test_an_optional_field_can_be_proposed_and_taken_back(tmp_path: Path) -> None:
    data = tables(blobs(9, 4), list("abcd"), [2], axis=1)
    world = make_world_without_stores(tmp_path, data, {"layout": "vertical", "clusters": 2})
    config, field, file = world["payco"], "kmeans.reveal.minimum_size", tmp_path / "config.yaml"
    text = as_yaml(config.model_dump(mode="json"))
    assert terms_of(config)[field] == 0
    changed = with_terms(text, {field: 5}, file, "a proposal")
    assert parse_config(changed, file).required_kmeans.reveal.minimum_size == 5
    again = with_terms(changed, {field: 0}, file, "a proposal")
    assert parse_config(again, file).required_kmeans.reveal.minimum_size == 0
    with pytest.raises(RefusedError, match="not valid here"):
        with_terms(text, {field: -1}, file, "a proposal")
