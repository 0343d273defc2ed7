"""The commands that lead from `veilmeans init` to a result, to be copied: for a trial, or for separate companies."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from veilmeans.pipelines.configure.config_template import TemplateValues


def trial_commands(folder: Path, values: TemplateValues) -> str:
    """Return the commands of a trial on one machine, as they can be copied in the current folder."""
    lines = [
        f"A trial on this machine is set up for {_listed(values.members)}, with keys for a week.",
        "Copy the commands below as they are, in this folder.",
        "",
        "1. Put each party's data into its folder. The first line has the names of the columns.",
        *(f"     {folder / name / values.data}" for name in values.parties),
        *(f"   {line}" for line in _data_rules(values)),
        "2. Fill in the configurations from the data (number of rows, columns, categories):",
        f"     veilmeans config fill {_configs(folder, values.members)}",
        *_run_steps(folder, values),
        f"{5 if values.dealer else 4}. Show the result: sizes and centroids of the clusters, and each row's cluster "
        "as CSV.",
        *(_results(folder, name) for name in values.parties),
        "",
        f"Another number of clusters, before step 3: veilmeans config set {_configs(folder, values.members)} "
        "kmeans.clusters=3",
        f"If ports from {values.port(values.parties[0])} on are in use: veilmeans init --out x --port 8101",
        "Companies that do not share a machine: veilmeans invite --help",
    ]
    return "\n".join(lines)


def _run_steps(folder: Path, values: TemplateValues) -> list[str]:
    """The commands of a run, from step 3 on: one without a dealer, two with one."""
    together = [
        "   All run at the same time: in one terminal, as here, or each in its own terminal without the &. The first",
        f"   waits for the others, at most {values.timeout} s. If one stops with an error, correct it and rerun all:",
        "   they resume.",
    ]
    if values.dealer is None:
        return [
            f"3. Find {values.clusters} clusters in the data of all parties; first they make correlated randomness.",
            *together,
            *_at_the_same_time(folder, "train", values.parties),
        ]
    return [
        f"3. Make the triple store of a run with {values.dealer}, which sees no data.",
        *together,
        *_at_the_same_time(folder, "offline", values.members),
        f"4. Find {values.clusters} clusters in the data of all parties, again at the same time:",
        *_at_the_same_time(folder, "train", values.parties),
    ]


def separate_commands(folder: Path, values: TemplateValues) -> str:
    """Return the commands that each of several companies runs on its own machine."""
    name = values.parties[0]
    own, config = folder / name, f"--config {_config(folder, name)}"
    others = [each for each in values.members if each != name]
    lines = [
        f"Send each of {_listed(values.members)} its folder; nothing in it is secret yet. Each then runs, where",
        f"the folder is (here {name}; the others use their own names):",
        "1. Make a key, and send the certificate (.crt) to the others; the other files stay secret:",
        f"     veilmeans config keys --name {name} --out {_quoted(own / 'keys')}",
        f"2. Put the others' certificates into {own / 'peers'}, and compare their fingerprints by phone:",
        f"     veilmeans config fingerprint {' '.join(_quoted(own / 'peers' / f'{each}.crt') for each in others)}",
        "3. Set the address on which you listen, and those of the others (instead of 127.0.0.1):",
        f"     veilmeans config set {config} listen=0.0.0.0:{values.port(name)} "
        + " ".join(f"peers.{each}.address=127.0.0.1:{values.port(each)}" for each in others),
        f"4. Put your data into {own / values.data}. The first line has the names of the columns.",
        *(f"   {line}" for line in _data_rules(values)),
        "5. See how they would be used. The last lines are a `config set` command for you and all others:",
        f"     veilmeans inspect {config}",
        f"6. {_listed(values.members)} at the same time; the first waits {values.timeout} s for the others:",
        *([f"     veilmeans offline {config}", "   Then the parties, in the same way:"] if values.dealer else []),
        f"     veilmeans train {config}",
        "7. Show the result:",
        _results(folder, name),
        "",
        "A trial on one machine needs fewer steps: veilmeans init",
    ]
    if values.dealer:
        lines.append(f"{values.dealer} has no data: it does steps 1 and 2, the parties' `config set`, and `offline`.")
    return "\n".join(lines)


def _data_rules(values: TemplateValues) -> list[str]:
    """The rules that a data file must follow."""
    if values.layout == "horizontal":
        return ["All have the same columns in the same order, each its own rows; a column `id` identifies the rows."]
    return [
        f"A column {values.id!r} identifies the rows, in any order; those that all have are found privately. If it",
        "has another name, or if there is none, the next step prints what to do. Leave out labels.",
    ]


def _at_the_same_time(folder: Path, command: str, names: Sequence[str]) -> list[str]:
    return [*(f"     veilmeans {command} --config {_config(folder, name)} &" for name in names), "     wait"]


def _results(folder: Path, name: str) -> str:
    return f"     veilmeans results --config {_config(folder, name)} --csv {_quoted(folder / name / 'clusters.csv')}"


def _configs(folder: Path, names: Sequence[str]) -> str:
    return " ".join(f"--config {_config(folder, name)}" for name in names)


def _config(folder: Path, name: str) -> str:
    return _quoted(folder / name / "config.yaml")


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"
