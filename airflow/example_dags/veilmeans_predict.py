"""Predict every day: the clusters of the day's new rows, by the model of the last Sunday's training.

The model and the number of rows are parameters of the run: every company gives the same. Environment: as in
veilmeans_train.py.
"""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow.sdk import DAG, Param

from veilmeans_airflow.operators import VeilmeansPredictOperator, VeilmeansReportOperator

PARTIES = [Path(folder) for folder in os.environ.get("VEILMEANS_PARTIES", "/srv/veilmeans/payco").split(":")]
ARTEFACTS = os.environ.get("VEILMEANS_ARTEFACTS", "/srv/veilmeans/artefacts")
DAY = "{{ data_interval_end | ds_nodash }}"
SUNDAY = "{{ (data_interval_end - macros.timedelta(days=data_interval_end.isoweekday() % 7)) | ds_nodash }}"
RETRY = {"retries": 20, "retry_delay": timedelta(seconds=int(os.environ.get("VEILMEANS_RETRY_S", "60")))}
PARAMS = {
    "model": Param("", type="string", description="run of the training; empty: that of the last Sunday"),
    "rows": Param(5000, type=["integer", "string"], description="number of new rows, agreed by all"),
}


def prediction(party: Path) -> DAG:
    """The daily DAG of the party with this folder."""
    model = f"{{{{ params.model }}}}{{% if not params.model %}}train-{SUNDAY}{{% endif %}}"
    command = {
        "veilmeans": os.environ.get("VEILMEANS_COMMAND", "veilmeans"),
        "config": str(party / "config.yaml"),
        "run": f"day-{DAY}",
        "execution_timeout": timedelta(hours=6),
        **RETRY,
    }
    with DAG(
        f"veilmeans_predict_{party.name}",
        schedule="0 5 * * *",
        start_date=datetime(2026, 1, 1, tzinfo=UTC),
        catchup=False,
        max_active_runs=1,
        params=PARAMS,
        tags=["veilmeans"],
    ) as dag:
        predict = VeilmeansPredictOperator(
            task_id="predict", model=model, rows="{{ params.rows }}", data=f"data/{DAY}.csv", **command
        )
        report = VeilmeansReportOperator(task_id="report", artefacts=ARTEFACTS, fields=predict.changes(), **command)
        predict >> report
    return dag


for folder in PARTIES:
    globals()[f"predict_{folder.name}"] = prediction(folder)
