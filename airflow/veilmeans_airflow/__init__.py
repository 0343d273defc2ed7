"""veilmeans for Airflow: operators that run a party's commands with the `veilmeans` of its own virtualenv.

Airflow's environment needs neither Beam nor veilmeans: it knows the path of the command, and no more.
"""


def get_provider_info() -> dict[str, object]:
    """Describe the package to `airflow providers`."""
    return {
        "package-name": "veilmeans-airflow",
        "name": "veilmeans",
        "description": "K-means for companies that may not show each other their data",
        "versions": ["0.1.0"],
    }
