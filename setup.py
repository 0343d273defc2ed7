"""Packaging: the rooms at the repository's root become the one import package `veilmeans` (see CONTRIBUTING.md)."""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
VERSION = re.search(r'__version__ = "([^"]+)"', (HERE / "src/veilmeans/__init__.py").read_text()).group(1)

setup(
    name="veilmeans",
    version=VERSION,
    description="K-means for companies that may not show each other their data, on Apache Beam",
    long_description=(HERE / "README.md").read_text(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11,<3.13",
    package_dir={"": "src"},
    packages=find_packages("src"),
    package_data={"veilmeans": ["py.typed"], "veilmeans.pipelines.reporting": ["*.html.j2"]},
    install_requires=[
        "apache-beam>=2.77,<2.78",
        "cryptography>=46,<51",
        "gmpy2>=2.2,<3",
        "jinja2>=3.1.5,<4",
        "numba>=0.62,<0.69",
        "numpy>=2.0,<2.5",
        "pyarrow>=20,<26",
        "pydantic>=2.10,<3",
        "pynacl>=1.5,<2",
        "pyyaml>=6.0.2,<7",
        "rich>=14,<16",
        "ruamel.yaml>=0.18,<0.20",
        "scipy>=1.14,<1.18",
        "tenacity>=9,<10",
        "typer>=0.20,<1",
    ],
    extras_require={
        "paillier": ["phe>=1.5,<2"],
        "gcs": ["apache-beam[gcp]>=2.77,<2.78"],
        "s3": ["apache-beam[aws]>=2.77,<2.78"],
        "sklearn": ["scikit-learn>=1.6,<2"],
        "dev": [
            "boto3>=1.35,<2",
            "hypothesis>=6.130,<7",
            "matplotlib>=3.10,<4",
            "pandas>=2.2,<4",
            "pdoc>=15,<17",
            "phe>=1.5,<2",
            "scikit-learn>=1.6,<2",
            "moto[s3,server]>=5.1,<6",
            "mypy>=2.4,<2.5",
            "pytest>=9,<10",
            "pytest-timeout>=2.4,<3",
            "pytest-xdist>=3.6,<4",
            "ruff>=0.17,<0.18",
            "types-PyYAML>=6.0.12",
        ],
    },
    entry_points={"console_scripts": ["veilmeans=veilmeans.pipelines.cli.main:run"]},
)
