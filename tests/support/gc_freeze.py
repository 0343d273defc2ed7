"""Exempt everything imported so far from garbage collection: imported last by the server that forks processes.

A full collection in a forked process would visit all of it, and copy every page with an object on it.
"""

import gc

gc.collect()
gc.freeze()
