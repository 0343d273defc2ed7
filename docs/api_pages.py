"""Write pages of all docstrings, the public API first: `python docs/api_pages.py FOLDER`."""

import sys
from pathlib import Path

import pdoc

import veilmeans

ROOMS = ("schemas", "crypto", "transforms", "io", "pipelines")


def write_pages(folder: Path) -> None:
    """Write a page for the package, for `veilmeans.protocols`, and for every module of the rooms."""
    for name in veilmeans.__all__:
        getattr(veilmeans, name)  # pdoc finds only names that were imported before
    pdoc.pdoc("veilmeans", "veilmeans.protocols", *(f"veilmeans.{room}" for room in ROOMS), output_directory=folder)


if __name__ == "__main__":
    write_pages(Path(sys.argv[1]))
