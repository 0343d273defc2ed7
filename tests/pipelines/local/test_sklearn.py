"""scikit-learn's own checks of an estimator, with real party processes (`make test-sklearn`) and without (always).

All apply, except the check of other array libraries, which scikit-learn skips by default.
"""

from collections.abc import Callable

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from support import estimator_stand_in as stand_in
from veilmeans import VeilKMeans
from veilmeans.pipelines.local import estimator as module

pytestmark = [pytest.mark.slow, pytest.mark.long]

Check = Callable[[VeilKMeans], None]
CHECKS = parametrize_with_checks([VeilKMeans(n_clusters=2, max_iter=3, dealer=True)])


@CHECKS
def test_the_checks_hold_with_plaintext_parties(
    estimator: VeilKMeans, check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "run_parties", stand_in.run_parties)
    check(estimator)


@pytest.mark.sklearn
@pytest.mark.processes
@pytest.mark.timeout(1200)
@CHECKS
def test_the_checks_hold_with_party_processes(estimator: VeilKMeans, check: Check) -> None:
    check(estimator)
