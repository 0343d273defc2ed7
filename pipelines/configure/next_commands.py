"""The way from `veilmeans init` to a result, in commands to copy: a trial on one machine, or companies apart."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from veilmeans.pipelines.configure.config_template import Example


def trial_steps(folder: Path, example: Example) -> str:
    """From a trial's folders to a result, in commands that can be copied from where the user stands."""
    return "\n".join(
        [
            f"Set up for a trial on this machine: {_listed(example.members)}, with keys for a week.",
            "The commands below can be copied as they are, from this folder.",
            "",
            "1. Put each party's data into its folder. The first line has the columns' names.",
            *(f"     {folder / name / example.data}" for name in example.parties),
            *(f"   {line}" for line in _data_rules(example)),
            "2. Let the configurations be filled in from the data (how many rows, which columns):",
            f"     veilmeans fill {_configs(folder, example.members)}",
            "3. Make the masks of a run with the dealer, who sees no data. All at the same time, as here in one",
            "   terminal, or each in a terminal of its own without the &: who is first waits for the others,",
            f"   {example.timeout} s at most. If one stops with an error, mend it and start all again: they go on.",
            *_together(folder, "offline", example.members),
            f"4. Find {example.clusters} clusters together, again at the same time:",
            *_together(folder, "train", example.parties),
            "5. Look at the result: the clusters' sizes and centroids, and each row's cluster as CSV.",
            *(_results(folder, name) for name in example.parties),
            "",
            f"Another number of clusters, before step 3: veilmeans set {_configs(folder, example.members)} "
            "kmeans.clusters=3",
            f"Where the ports from {example.port(example.parties[0])} on are taken: veilmeans init --out x --port 8101",
            "Companies that do not share a machine: veilmeans init --out apart --apart",
        ]
    )


def apart_steps(folder: Path, example: Example) -> str:
    """What each of several companies does, in commands that it copies."""
    return "\n".join(
        [
            f"Send each of {_listed(example.members)} its folder, with nothing secret in it yet. Each then does, where",
            f"the folder is (for {example.parties[0]}; the others with their own names):",
            *(line for name in example.parties[:1] for line in _apart(folder, example, name)),
            "",
            f"{example.dealer} has no data: it does steps 1, 2 and 6, and the others' `set` commands.",
            "A first try on one machine needs less: veilmeans init",
        ]
    )


def _apart(folder: Path, example: Example, name: str) -> list[str]:
    here, config = folder / name, f"--config {_config(folder, name)}"
    others = [each for each in example.members if each != name]
    return [
        "1. Make a key, and send the certificate (.crt) to the others; all else stays secret:",
        f"     veilmeans keys --name {name} --out {_quoted(here / 'keys')}",
        f"2. Put the others' certificates into {here / 'peers'}, and compare fingerprints over the phone:",
        f"     veilmeans fingerprint {' '.join(_quoted(here / 'peers' / f'{each}.crt') for each in others)}",
        "3. Say where you listen and where the others do (their addresses instead of 127.0.0.1):",
        f"     veilmeans set {config} listen=0.0.0.0:{example.port(name)} "
        + " ".join(f"peers.{each}.address=127.0.0.1:{example.port(each)}" for each in others),
        f"4. Put your data into {here / example.data}. The first line has the columns' names.",
        *(f"   {line}" for line in _data_rules(example)),
        "5. See how they would be used. It ends with a `veilmeans set` command for you and all others:",
        f"     veilmeans inspect {config}",
        f"6. At the same time, {_listed(example.members)}; who is first waits {example.timeout} s for the others:",
        f"     veilmeans offline {config}",
        f"7. At the same time, {_listed(example.parties)}:",
        f"     veilmeans train {config}",
        "8. Look at the result:",
        _results(folder, name),
    ]


def _data_rules(example: Example) -> list[str]:
    """What a file must be like."""
    if example.layout == "horizontal":
        return ["All have the same columns in the same order, each its own rows; a column `id` names the rows."]
    return [
        f"All have the same rows in the same order; a column {example.id!r}, the same at all, names them. Is it called",
        "otherwise, or is there none? The next step tells what to do. Leave out labels and what shall not count.",
    ]


def _together(folder: Path, command: str, names: Sequence[str]) -> list[str]:
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
