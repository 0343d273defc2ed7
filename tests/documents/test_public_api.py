"""The public API: every name resolves, and `import veilmeans` stays light."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import veilmeans
from veilmeans import protocols


@pytest.mark.parametrize("name", veilmeans.__all__)
def test_every_public_name_resolves_and_is_documented(name: str) -> None:
    found = getattr(veilmeans, name)
    assert name in dir(veilmeans)
    assert name == "__version__" or found.__doc__


def test_every_name_for_protocols_resolves() -> None:
    assert sorted(protocols.__all__, key=str.lower) == sorted(set(protocols.__all__), key=str.lower)
    assert [name for name in protocols.__all__ if not hasattr(protocols, name)] == []


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="KMeans"):
        _ = veilmeans.KMeans


@pytest.mark.processes
def test_importing_the_package_imports_no_large_library() -> None:
    """scikit-learn is needed for the estimator only; without it, the error names the extra to install."""
    code = (
        "import sys, veilmeans; print({'sklearn', 'apache_beam', 'numpy', 'pydantic'} & set(sys.modules)); "
        "sys.modules['sklearn'] = None; veilmeans.VeilKMeans"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(veilmeans.__file__).parents[1])}
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert ended.stdout == "set()\n"
    assert "'veilmeans[sklearn]'" in ended.stderr
