"""Train every week: wait for the peers, prepare, train, keep the report.

Each company has this file in its own Airflow. All have the same schedule, in UTC, so the same date gives the same run
name everywhere: nothing else is agreed at run time. A company that is late is waited for, by exchange.timeout_s and by
retries.

Environment of the scheduler and its workers:
  VEILMEANS_PARTIES    folders with a config.yaml, separated by colons; a company has one
  VEILMEANS_COMMAND    the `veilmeans` of its own virtualenv
  VEILMEANS_PEERS      HOST:PORT of the peers' gateways, separated by commas, if they are separate processes
  VEILMEANS_ARTEFACTS  folder for the reports
"""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow.sdk import DAG, Asset

from veilmeans_airflow.operators import VeilmeansOperator, VeilmeansReportOperator
from veilmeans_airflow.sensors import VeilmeansPeerSensor

PARTIES = [Path(folder) for folder in os.environ.get("VEILMEANS_PARTIES", "/srv/veilmeans/payco").split(":")]
PEERS = [address for address in os.environ.get("VEILMEANS_PEERS", "").split(",") if address]
ARTEFACTS = os.environ.get("VEILMEANS_ARTEFACTS", "/srv/veilmeans/artefacts")
DAY = "{{ data_interval_end | ds_nodash }}"
RETRY = {"retries": 20, "retry_delay": timedelta(seconds=int(os.environ.get("VEILMEANS_RETRY_S", "60")))}


def training(party: Path) -> DAG:
    """The weekly DAG of the party with this folder."""
    run = f"train-{DAY}"
    command = {
        "veilmeans": os.environ.get("VEILMEANS_COMMAND", "veilmeans"),
        "config": str(party / "config.yaml"),
        "run": run,
        "fields": {"triples.store": run, "kmeans.data": f"data/{DAY}.csv"},
        "execution_timeout": timedelta(hours=6),
        **RETRY,
    }
    with DAG(
        f"veilmeans_train_{party.name}",
        schedule="0 3 * * 0",
        start_date=datetime(2026, 1, 1, tzinfo=UTC),
        catchup=False,
        max_active_runs=1,
        tags=["veilmeans"],
    ) as dag:
        prepare = VeilmeansOperator(task_id="prepare", command="prepare", **command)
        model = Asset(f"veilmeans://{party.name}/model")
        train = VeilmeansOperator(task_id="train", command="train", outlets=[model], **command)
        report = VeilmeansReportOperator(task_id="report", artefacts=ARTEFACTS, **command)
        if PEERS:
            VeilmeansPeerSensor(task_id="peers", addresses=PEERS) >> train
        prepare >> train >> report
    return dag


for folder in PARTIES:
    globals()[f"train_{folder.name}"] = training(folder)
