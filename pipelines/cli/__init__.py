"""The command line."""

from veilmeans.pipelines.local.malloc_arenas import share_malloc

share_malloc()  # before anything here imports Arrow
