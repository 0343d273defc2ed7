"""A party's commands as Airflow tasks. A command that is rerun resumes where it stopped, so a retry loses nothing."""

import shlex
import shutil
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from veilmeans_airflow.command_process import CommandProcess

PUBLISHED = ("party", "run", "config", "results", "report", "ended", "store", "runs", "iterations", "rows")
"""Facts that go to XCom: names, paths and numbers, never an opened value, a share or a row."""


class VeilmeansOperator(BaseOperator):
    """One command of a party: `prepare`, `offline`, `train`, `predict`, `reveal`, `report`, …

    `fields` are set for this run only (`--set`), so the party's configuration is one file that no task changes or
    copies. Exit codes 2, 3, 4, 6 and 7 fail the task at once, because a person must act; after 1, 5, 8 and signals it
    is retried. XCom gets the run, the configuration and the paths of results and report.

    With `gateway: embedded` a party listens on one port while a command runs, so two of its commands must not run at
    once, whatever their DAGs: give all of a party's tasks one pool with one slot.
    """

    template_fields: Sequence[str] = ("config", "run", "fields", "flags", "veilmeans", "env")
    ui_color = "#e4e0f3"

    def __init__(
        self,
        *,
        command: str,
        config: str,
        run: str | None = None,
        fields: Mapping[str, str] | None = None,
        flags: Sequence[str] = (),
        veilmeans: str = "veilmeans",
        env: Mapping[str, str] | None = None,
        grace: float = 10.0,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("retries", 20)  # a late peer is no failure
        kwargs.setdefault("retry_delay", timedelta(minutes=1))
        super().__init__(**kwargs)
        self.command, self.config, self.run, self.fields = command, config, run, dict(fields or {})
        self.flags, self.veilmeans, self.env, self.grace = list(flags), veilmeans, dict(env or {}), grace
        self._process: CommandProcess | None = None

    def execute(self, context: Any) -> dict[str, Any]:  # noqa: ARG002
        """Run the command, and return what goes to XCom."""
        line = self.command_line()
        self.log.info("%s", shlex.join(line))
        self._process = CommandProcess(line, self.env, lambda text: self.log.info("%s", text))
        ended = self._process.wait()
        if ended.code:
            raise (AirflowException if ended.retry else AirflowFailException)(ended.sentence)
        return {name: ended.facts[name] for name in PUBLISHED if name in ended.facts}

    def command_line(self) -> list[str]:
        """The command with its options; the last ones are Beam's."""
        run = [] if self.run is None else ["--run", self.run]
        changes = [word for field, value in self.changes().items() for word in ("--set", f"{field}={value}")]
        return [self.veilmeans, *self.command.split(), "--config", self.config, *run, *changes, "--json", *self.flags]

    def changes(self) -> dict[str, str]:
        """The fields of this run, and their values in YAML."""
        return self.fields

    def on_kill(self) -> None:
        """End the command when its task is ended by hand or by its time-out."""
        if self._process is not None:
            self._process.stop(self.grace)


class VeilmeansPredictOperator(VeilmeansOperator):
    """New rows with a trained model: `config` is that of the training, `model` the training's run.

    `data` is this party's file (the dealer has none), `rows` the number of new rows on which all agree (horizontal: a
    mapping in YAML, `{payco: 5, shop: 7}`). The triple store has the run's name.
    """

    template_fields: Sequence[str] = (*VeilmeansOperator.template_fields, "model", "data", "rows")

    def __init__(
        self, *, model: str, rows: str, data: str | None = None, command: str = "predict", **kwargs: Any
    ) -> None:
        super().__init__(command=command, **kwargs)
        self.model, self.rows, self.data = model, rows, data

    def changes(self) -> dict[str, str]:
        """The fields that differ from those of the training; the model's centroids and inertia were opened there."""
        data = {} if self.data is None else {"kmeans.data": self.data}
        return {
            "triples.store": f'"{self.run}"',
            "kmeans.rows": self.rows,
            "kmeans.predict.model": f'"{self.model}"',
            "kmeans.reveal.centroids": "[]",
            "kmeans.reveal.inertia": "[]",
            **data,
            **self.fields,
        }


class VeilmeansReportOperator(VeilmeansOperator):
    """The report of a run, one HTML file that needs no network, kept as an artefact: ARTEFACTS/PARTY-RUN.html."""

    template_fields: Sequence[str] = (*VeilmeansOperator.template_fields, "artefacts")

    def __init__(self, *, artefacts: str, **kwargs: Any) -> None:
        super().__init__(command="report", **kwargs)
        self.artefacts = artefacts

    def execute(self, context: Any) -> dict[str, Any]:
        """Write the report and copy it to the artefacts; for this user only, as the report is."""
        facts = super().execute(context)
        folder = Path(self.artefacts)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        target = folder / f"{facts['party']}-{facts['run']}.html"
        shutil.copy(facts["report"], target)
        target.chmod(0o600)
        return {**facts, "artefact": str(target)}
