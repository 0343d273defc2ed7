"""Imported last by the server of processes: what it has imported is garbage for none of them, so none looks through it.

A full collection in a process that was forked would also copy every page with an object on it.
"""

import gc

gc.collect()
gc.freeze()
