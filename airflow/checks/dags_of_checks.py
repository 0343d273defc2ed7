"""The DAG of a check: a training whose configuration is wrong, with many retries that it must not use."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow.sdk import DAG

from veilmeans_airflow.operators import VeilmeansOperator

with DAG("wrong_configuration", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False) as dag:
    VeilmeansOperator(
        task_id="train",
        command="train",
        veilmeans=os.environ["VEILMEANS_COMMAND"],
        config=str(Path(os.environ["VEILMEANS_PARTIES"].split(":")[0]) / "config.yaml"),
        run="wrong",
        fields={"kmeans.clusters": "0"},
        retries=20,
        retry_delay=timedelta(seconds=1),
    )
